"""The hub: reinforcement learning of a team, from tasks to better policies, read top to bottom.

Take tasks, roll out, drop groups without signal, advantages, batch, log-probs and loss, step, sync the engine, log,
save, evaluate. It knows no algorithm: the three functions that make one are looked up by name. Every draw is a function
of (seed, step), so a run that is killed and resumed goes the same way as one that was not.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from torch import Tensor, no_grad

from gruppo.algorithms import ADVANTAGES, AGGREGATIONS, LOSSES, AlgorithmConfig
from gruppo.algorithms.advantages import role_advantages
from gruppo.algorithms.batching import Batch, Pack, Row, collate, merge, microbatches, rows_of
from gruppo.algorithms.losses import k3, masked
from gruppo.config import Config
from gruppo.data.base import TaskSet
from gruppo.errors import CheckpointError, ConfigError, UserError
from gruppo.log import Log
from gruppo.rollout import Rollout
from gruppo.store import Checkpoint, Run
from gruppo.training.learner import Learner
from gruppo.types import Group

PATIENCE = 10  # steps in a row without any signal before the run stops with a hint


class GRPOConfig(Config):
    """The loop's sizes and rhythm."""

    steps: int = Field(40, ge=0)
    """Rollouts and, with `updates` 1, optimizer steps of each policy."""
    families: list[str] = []
    """Question families that tasks are taken from; empty: all."""
    tasks_per_step: int = Field(16, ge=1)
    """Groups per step."""
    attempts: int = Field(8, ge=2)
    """Episodes per group: a group of one has no baseline."""
    updates: int = Field(1, ge=1)
    """Optimizer steps per rollout, each on its own share of the groups; 1 is on-policy."""
    warmup_steps: int = Field(2, ge=0)
    """Steps over which the learning rate rises; it is constant afterwards."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    microbatch_tokens: int = Field(16384, ge=1)
    """Padded tokens of one forward pass."""
    save_every: int = Field(10, ge=1)
    """Steps between checkpoints; the last step is always saved."""
    keep_last: int = Field(2, ge=1)
    """Checkpoints kept."""
    eval_every: int = Field(0, ge=0)
    """Steps between evaluations on the validation split; 0: none."""


@dataclass(frozen=True)
class Parts:
    """What the loop works with; `run.py` puts it together."""

    run: Run
    learner: Learner
    rollout: Rollout
    tasks: TaskSet
    algorithm: AlgorithmConfig
    seed: int
    log: Log
    measure: Callable[[Sequence[Group]], dict[str, float]]  # rollouts -> metrics
    evaluate: Callable[[int], dict[str, float]]  # step -> metrics on held-out tasks


def grpo(parts: Parts, config: GRPOConfig) -> None:
    """Train until `config.steps`, from the newest checkpoint of the run if there is one.

    Raises CheckpointError for a checkpoint of another base, UserError when nothing can be learnt.
    """
    run, learner, rollout, algorithm = parts.run, parts.learner, parts.rollout, parts.algorithm
    roles = [role for role in rollout.roles.values() if role.trainable]
    start, idle = begin(parts), 0
    with parts.log.progress("grpo", config.steps, start) as progress:
        for step in range(start, config.steps):
            started = time.monotonic()
            tasks = parts.tasks.batch(step, config.tasks_per_step, parts.seed)
            groups = rollout.collect(tasks, config.attempts, parts.seed, f"grpo-{step + 1:06d}")
            record: dict[str, Any] = {"stage": "grpo", "step": step + 1, **parts.measure(groups)}
            record["seconds/rollout"] = time.monotonic() - started

            advantage = ADVANTAGES[algorithm.advantage]
            advantages = {role.name: role_advantages(groups, role.name, advantage) for role in roles}
            with_signal = {group_id for found in advantages.values() for group_id, _ in found}
            kept = [group for group in groups if group.id in with_signal]
            record["groups/dropped"] = len(groups) - len(kept)

            scale = min(1.0, (step + 1) / (config.warmup_steps + 1))
            for policy in learner.policies:
                shares = [rows_of(kept[share :: config.updates], policy, advantages) for share in range(config.updates)]
                record |= update(learner, policy, [rows for rows in shares if rows], algorithm, config, scale)

            # No engine to sync: the learner hands the local one the new weights when it next samples this version.
            idle = 0 if kept else idle + 1
            if idle == PATIENCE:
                raise UserError(
                    f"no group had a signal in {PATIENCE} steps: all rewards equal; easier tasks or more attempts?"
                )
            record["seconds/step"] = time.monotonic() - started
            run.write_episodes(f"grpo-{step + 1:06d}", groups)
            if config.eval_every and (step + 1) % config.eval_every == 0:
                record |= parts.evaluate(step + 1)
            run.append_metrics(record)
            if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
                run.save_checkpoint(step + 1, learner.save, state(parts, step + 1))
                run.prune(config.keep_last)
            progress.advance(
                num_episodes=sum(len(group.episodes) for group in groups),
                reward_mean=record.get("reward/mean"),
                reward_std=record.get("reward/std"),
            )


def begin(parts: Parts) -> int:
    """Optimizers, references and weights as the first step to come needs them; returns the number of steps done."""
    learner, run = parts.learner, parts.run
    learner.start_optimizers({name: policy.learning_rate for name, policy in learner.policies.items()})
    checkpoint = run.latest_checkpoint()
    if checkpoint is None:
        if parts.algorithm.kl_coefficient and parts.algorithm.kl_reference == "start":
            for policy in learner.policies:
                learner.freeze_reference(policy)
        run.save_checkpoint(0, learner.save, state(parts, 0))
        return 0
    load(learner, checkpoint)
    if checkpoint.state["tasks"] != parts.tasks.fingerprint:
        raise CheckpointError(f"{checkpoint.path}: was trained on other tasks; start a new run with --out")
    run.truncate_metrics(lambda record: record.get("stage") != "grpo" or record["step"] <= checkpoint.step)
    return checkpoint.step


def load(learner: Learner, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's weights into the learner. Raises CheckpointError if it stands on another base."""
    if checkpoint.state["base"] != learner.base_fingerprint:
        raise CheckpointError(
            f"{checkpoint.path}: was trained on another base than model.base = {learner.config.base!r} "
            f"(weights {checkpoint.state['base'][:12]}, here {learner.base_fingerprint[:12]})"
        )
    learner.load(checkpoint.path, checkpoint.state["versions"])


def state(parts: Parts, step: int) -> dict[str, Any]:
    """What a checkpoint says of itself. Draws depend on (seed, step) alone, so this is the data position too."""
    learner = parts.learner
    return {
        "step": step,
        "seed": parts.seed,
        "versions": dict(learner.versions),
        "base": learner.base_fingerprint,
        "tasks": parts.tasks.fingerprint,
    }


def update(
    learner: Learner,
    policy: str,
    shares: Sequence[Sequence[Row]],
    algorithm: AlgorithmConfig,
    config: GRPOConfig,
    scale: float,
) -> dict[str, float]:
    """One optimizer step of a policy per share of its rows; returns its metrics. A policy without rows is skipped.

    With a single share the old log-probs are the new ones, so the ratio is exactly 1 and equal rows merge exactly.
    """
    on_policy = config.updates == 1
    if on_policy and not algorithm.kl_coefficient:
        batches = [microbatches(merge(rows), config.microbatch_tokens, learner.can_share) for rows in shares]
    else:
        batches = [microbatches(rows, config.microbatch_tokens, learner.can_share) for rows in shares]
    old = [[None if on_policy else old_logprobs(learner, policy, part) for part in parts] for parts in batches]
    metrics: dict[str, float] = defaultdict(float)
    num_tokens = [sum(len(row.action_ids) for row in rows) for rows in shares]
    for parts, olds, count in zip(batches, old, num_tokens, strict=True):
        for part, old_BT in zip(parts, olds, strict=True):
            for name, value in accumulate(learner, policy, part, old_BT, algorithm, count).items():
                metrics[name] += value
        if parts:
            norm = learner.step(policy, scale, config.max_grad_norm)
            metrics["grad_norm"] += norm / len(batches)
            metrics["skipped"] += not math.isfinite(norm)
    total = sum(num_tokens)
    per_token = ("clipped", "ratio", "kl_old", "kl", "mismatch", "entropy")
    found = {name: value / metrics["seen"] for name, value in metrics.items() if name in per_token and metrics["seen"]}
    found |= {name: metrics[name] for name in ("loss", "grad_norm", "skipped") if name in metrics}
    found |= {
        "rows": sum(map(len, shares)),
        "trained_tokens": total,
        "packs": sum(len(part) for parts in batches for part in parts),
    }
    return {f"{name}/{policy}": float(value) for name, value in found.items()}


def accumulate(
    learner: Learner,
    policy: str,
    packs: Sequence[Pack],
    old_BT: Tensor | None,
    algorithm: AlgorithmConfig,
    num_tokens: int,
) -> dict[str, float]:
    """Back-propagate one microbatch's part of the step's loss; returns sums over its `seen` tokens."""
    batch = collate(packs, learner.pad_id, learner.config.device)
    logprobs_BT = learner.logprobs(policy, batch)
    old_BT = logprobs_BT.detach() if old_BT is None else old_BT
    losses_BT, sums = LOSSES[algorithm.loss](
        logprobs_BT, old_BT, batch.advantages_BT, batch.mask_BT, algorithm.clip_low, algorithm.clip_high
    )
    if algorithm.kl_coefficient:
        kl_BT = k3(logprobs_BT, learner.reference_logprobs(policy, batch), batch.mask_BT)
        losses_BT = losses_BT + algorithm.kl_coefficient * kl_BT
        sums["kl"] = kl_BT.detach().sum()
    loss = AGGREGATIONS[algorithm.aggregation](losses_BT, num_tokens)
    loss.backward()
    sums |= {"loss": loss.detach(), "seen": batch.mask_BT.sum(), **against_sampler(logprobs_BT.detach(), batch)}
    return {name: float(value) for name, value in sums.items()}


def against_sampler(logprobs_BT: Tensor, batch: Batch) -> dict[str, Tensor]:
    """How far the learner's log-probs are from those recorded when sampled, and an estimate of the entropy."""
    return {
        "mismatch": masked((logprobs_BT - batch.sampled_logprobs_BT).abs(), batch.mask_BT).sum(),
        "entropy": masked(-batch.sampled_logprobs_BT, batch.mask_BT).sum(),
    }


def old_logprobs(learner: Learner, policy: str, packs: Sequence[Pack]) -> Tensor:
    """The log-probs before the first update of this rollout."""
    with no_grad():
        return learner.logprobs(policy, collate(packs, learner.pad_id, learner.config.device))


def check(config: GRPOConfig, rollout: Rollout) -> None:
    """Refuse what can't be trained. Raises ConfigError."""
    for role in rollout.roles.values():
        if role.trainable and (role.sampling.top_p < 1 or role.sampling.temperature == 0):
            raise ConfigError(
                f"roles.{role.name}: a trained role samples with top_p = 1 and temperature > 0, "
                f"not top_p = {role.sampling.top_p}, temperature = {role.sampling.temperature}"
            )
    if not any(role.trainable for role in rollout.roles.values()):
        raise ConfigError("no role is trained: give one a policy, as in [roles.planner] policy = 'planner'")
