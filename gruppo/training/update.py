"""The update: one optimizer step of a policy from its rows, whatever the algorithm, however it is split.

Each row's weight in the step's loss is known before the first forward, so microbatches only add up. It knows no
algorithm: loss, aggregation, correction and KL are looked up by name.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from gruppo.algorithms import AGGREGATIONS, AlgorithmConfig
from gruppo.algorithms.aggregations import AggregationSettings, RowShape
from gruppo.algorithms.batching import Pack, Row, balanced, collate, merge
from gruppo.algorithms.corrections import CorrectionSettings, mismatch_metrics, mismatch_sums
from gruppo.algorithms.curriculum import adaptive_entropy_coefficient, adaptive_kl_coefficient
from gruppo.algorithms.losses import (
    LINEAR_ON_POLICY,
    TREATS_CHOSEN_APART,
    LossSettings,
    ObjectiveSettings,
    clip_cov_tokens,
    high_entropy_tokens,
    kl_cov_tokens,
    objective,
)
from gruppo.algorithms.ratios import Tokens
from gruppo.training.learner import Learner


@dataclass(frozen=True)
class Coefficients:
    """A policy's weights of KL and entropy, which may adapt as training goes on; part of a checkpoint."""

    kl: float
    entropy: float


@dataclass(frozen=True)
class Step:
    """How one optimizer step is made."""

    algorithm: AlgorithmConfig
    coefficients: Coefficients
    learning_rate_scale: float
    max_grad_norm: float
    microbatch_tokens: int

    seed: int = 0  # of what an algorithm draws at random

    @property
    def objective(self) -> ObjectiveSettings:
        """The loss of a token, with the coefficients as they are now."""
        algorithm = self.algorithm
        shared = {f.name for f in fields(LossSettings)} & type(algorithm).model_fields.keys()
        constants = {name: getattr(algorithm, name) for name in shared}
        constants |= {name: constants[name] or None for name in ("dual_clip", "ratio_cap")}  # 0 stands for none
        mask = algorithm.off_policy_mask or None
        return ObjectiveSettings(
            loss=algorithm.loss,
            constants=LossSettings(**constants),
            correction=algorithm.correction,
            bounds=CorrectionSettings(algorithm.correction_high, algorithm.correction_low, mask),
            kl_estimator=algorithm.kl_estimator,
            kl_coefficient=self.kl_in_loss,
            entropy_coefficient=self.coefficients.entropy,
        )

    @property
    def kl_in_loss(self) -> float:
        """The KL's weight in the loss."""
        return self.coefficients.kl if self.algorithm.kl_in == "loss" else 0.0


def update(learner: Learner, policy: str, shares: Sequence[Sequence[Row]], step: Step) -> dict[str, float]:
    """One optimizer step of a policy per share of its rows; returns its metrics. A policy without rows is skipped.

    Of the first share the old log-probs are the new ones, so the ratio is exactly 1 and equal rows merge exactly.
    """
    algorithm = step.algorithm
    prepared = [weighted(rows, algorithm) for rows in shares]
    for number, rows in enumerate(prepared):
        if number or chooses(algorithm):
            prepared[number] = measured(learner, policy, rows, step)
    if chooses(algorithm):
        prepared = [chosen(rows, algorithm, step.seed) for rows in prepared]
    metrics: dict[str, float] = defaultdict(float)
    num_packs = 0
    for number, rows in enumerate(prepared):
        if number == 0 and can_merge(step):
            rows = merge(rows)
        spread_out = spread(rows, learner, step)
        num_packs += sum(len(packs) for parts in spread_out for packs in parts)
        for found in learner.side_by_side(back_propagate, policy, [(parts, step) for parts in spread_out]):
            for name, value in found.items():
                metrics[name] += value
        if spread_out:
            norm = learner.step(policy, step.learning_rate_scale, step.max_grad_norm)
            metrics["grad_norm"] += norm / len(shares)
            metrics["skipped"] += not math.isfinite(norm)
    per_token = ("clipped", "ratio", "kl_old", "kl", "weight", "rejected", "infinite", "unknown", "entropy")
    seen = metrics["seen"] or 1.0
    found = {name: metrics[name] / seen for name in per_token if name in metrics}
    found |= {name: metrics[name] for name in ("loss", "grad_norm", "skipped") if name in metrics}
    found |= mismatch_metrics(metrics)
    found |= {
        "rows": sum(map(len, prepared)),
        "trained_tokens": sum(len(row.action_ids) for rows in prepared for row in rows),
        "packs": num_packs,
    }
    return {f"{name}/{policy}": float(value) for name, value in found.items()}


def weighted(rows: Sequence[Row], algorithm: AlgorithmConfig) -> list[Row]:
    """The rows with the weight that the aggregation of the whole step gives each."""
    shapes = [RowShape(len(row.action_ids), row.episode, row.sequence or number) for number, row in enumerate(rows)]
    weights = AGGREGATIONS[algorithm.aggregation](shapes, AggregationSettings(algorithm.length_norm))
    return [replace(row, weight=weight) for row, weight in zip(rows, weights, strict=True)]


def can_merge(step: Step) -> bool:
    """Whether the step's gradient is linear in the rows' advantages, so that equal rows add up."""
    algorithm = step.algorithm
    linear = algorithm.loss in LINEAR_ON_POLICY and algorithm.ratio_level in ("token", "turn")
    terms = step.kl_in_loss or step.coefficients.entropy or algorithm.off_policy_mask or chooses(algorithm)
    return linear and not terms and algorithm.correction == "off"


def chooses(algorithm: AlgorithmConfig) -> bool:
    """Whether tokens are picked over the whole step before it is split."""
    return algorithm.loss in TREATS_CHOSEN_APART or algorithm.high_entropy_share < 1


def measured(learner: Learner, policy: str, rows: Sequence[Row], step: Step) -> list[Row]:
    """The rows with their log-probs, and their tokens' entropies, before the first update of this rollout."""
    shares = [(policy, parts) for parts in spread(rows, learner, step)]
    return [row for found in learner.replicas.map(measure, learner, shares) for row in found]


@torch.no_grad()
def measure(learner: Learner, policy: str, parts: Sequence[Sequence[Pack]]) -> list[Row]:
    """As `measured`, of one process's share."""
    found: list[Row] = []
    for packs in parts:
        batch = collate(packs, learner.pad_id, learner.config.device)
        logprobs_N, entropy_N = learner.logprobs_and_entropy(policy, batch)
        start = 0
        for row in (row for pack in packs for row in pack.rows):
            end = start + len(row.action_ids)
            old, entropy = tuple(logprobs_N[start:end].tolist()), tuple(entropy_N[start:end].tolist())
            found.append(replace(row, old=old, entropy=entropy))
            start = end
    return found


def chosen(rows: Sequence[Row], algorithm: AlgorithmConfig, seed: int) -> list[Row]:
    """The measured rows with the tokens marked that the loss treats apart, or trains on, picked over all of them."""
    old_N = torch.tensor([value for row in rows for value in row.old])
    advantages_N = torch.tensor([row.advantage for row in rows for _ in row.old])
    if algorithm.loss == "clip_cov":
        generator = torch.Generator().manual_seed(seed)
        window = algorithm.cov_low, algorithm.cov_high
        chosen_N = clip_cov_tokens(old_N, advantages_N, generator, algorithm.cov_share, *window)
    elif algorithm.loss == "kl_cov":
        chosen_N = kl_cov_tokens(old_N, advantages_N, algorithm.cov_share)
    else:
        entropy_N = torch.tensor([value for row in rows for value in row.entropy])
        chosen_N = high_entropy_tokens(entropy_N, algorithm.high_entropy_share)
    marks = iter(chosen_N.tolist())
    return [replace(row, chosen=tuple(itertools.islice(marks, len(row.action_ids)))) for row in rows]


def spread(rows: Sequence[Row], learner: Learner, step: Step) -> list[list[list[Pack]]]:
    """The microbatches of each process: about equally many tokens, no microbatch beyond the step's limit."""
    whole = step.algorithm.ratio_level.startswith("sequence")
    return balanced(rows, learner.replicas.num, step.microbatch_tokens, learner.can_share, whole)


def back_propagate(learner: Learner, policy: str, parts: Sequence[Sequence[Pack]], step: Step) -> Mapping[str, float]:
    """As `accumulate`, of all microbatches of one process."""
    metrics: dict[str, float] = defaultdict(float)
    for packs in parts:
        for name, value in accumulate(learner, policy, packs, step).items():
            metrics[name] += value
    return metrics


def accumulate(learner: Learner, policy: str, packs: Sequence[Pack], step: Step) -> dict[str, float]:
    """Back-propagate one microbatch's part of the step's loss; returns sums over its `seen` tokens."""
    algorithm = step.algorithm
    batch = collate(packs, learner.pad_id, learner.config.device)
    entropy_N: Tensor | None = None
    if step.coefficients.entropy:
        new_N, entropy_N = learner.logprobs_and_entropy(policy, batch)
    else:
        new_N = learner.logprobs(policy, batch)
    tokens = Tokens(
        old_N=torch.where(batch.old_N.isnan(), new_N.detach(), batch.old_N),
        advantages_N=batch.advantages_N,
        sequence_N=batch.sequence_N,
        sampled_N=batch.sampled_N,
        reference_N=learner.reference_logprobs(policy, batch) if step.kl_in_loss else None,
        entropy_N=entropy_N,
        chosen_N=batch.chosen_N if chooses(algorithm) else None,
    )
    losses_N, sums = objective(new_N, tokens, step.objective)
    loss = (losses_N * batch.weights_N).sum()
    loss.backward()
    known_N = batch.sampled_N[batch.sampled_N.isfinite()]
    entropy = -known_N.mean() * len(new_N) if len(known_N) else torch.tensor(0.0)  # estimated by what was sampled
    sums |= {"loss": loss.detach(), "seen": torch.tensor(len(new_N)), "entropy": entropy, **mismatch_sums(tokens)}
    return {name: float(value) for name, value in sums.items()}


def adapted(now: Coefficients, algorithm: AlgorithmConfig, record: Mapping[str, float], policy: str) -> Coefficients:
    """The coefficients after a step that gave `record`."""
    kl, entropy = record.get(f"kl/{policy}"), record.get(f"entropy/{policy}")
    if algorithm.kl_target and kl is not None:
        episodes, horizon = int(record["episodes"]), algorithm.kl_horizon
        now = replace(now, kl=adaptive_kl_coefficient(now.kl, kl, algorithm.kl_target, horizon, episodes))
    if algorithm.entropy_target and entropy is not None:
        target, delta = algorithm.entropy_target, algorithm.entropy_step
        now = replace(now, entropy=adaptive_entropy_coefficient(now.entropy, entropy, target, delta))
    return now
