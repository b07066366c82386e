"""Supervised fine-tuning: the cold start on demonstrated turns, and rejection sampling's second half.

Loss on the shown action only, its end-of-turn token included, with the same template, rows and forward as RL. Where the
demonstrations come from is not its business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from gruppo.algorithms.batching import Pack, Row, balanced, collate
from gruppo.config import Config
from gruppo.data.base import draw
from gruppo.errors import ConfigError
from gruppo.log import Log
from gruppo.training.learner import Learner


class SFTConfig(Config):
    """How the demonstrations are learnt."""

    demonstrations: int = Field(60, ge=1)
    """Gold episodes."""
    families: list[str] = []
    """Question families the demonstrations are taken from; empty: all."""
    steps: int = Field(20, ge=0)
    """Optimizer steps of each policy; 0 skips the cold start."""
    batch_size: int = Field(16, ge=1)
    """Turns per step."""
    learning_rate: float = Field(2e-3, gt=0)
    """Constant but for the warm-up."""
    warmup_steps: int = Field(2, ge=0)
    """Steps over which the learning rate rises."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    microbatch_tokens: int = Field(16384, ge=1)
    """Padded tokens of one forward pass."""
    max_length: int = Field(0, ge=0)
    """Tokens of the longest demonstrated turn, its prompt included; longer ones are left out. 0: none is."""
    save_every: int = Field(0, ge=0)
    """Steps between checkpoints; 0: none, since a short cold start that is killed is soon repeated, exactly."""
    eval_every: int = Field(0, ge=0)
    """Steps between evaluations: the loss on demonstrations of the validation split; 0: none."""


@dataclass(frozen=True)
class Shown:
    """What is demonstrated: rows by policy, to learn from and to evaluate on."""

    rows: Mapping[str, Sequence[Row]]
    held_out: Mapping[str, Sequence[Row]] = field(default_factory=dict)


def sft(
    learner: Learner, shown: Shown, config: SFTConfig, seed: int, log: Log, done: int = 0
) -> Iterator[dict[str, Any]]:
    """Train each policy on its rows after `done` steps, a record per step. Policies without rows stay as they are.

    The optimizers have to be there. What is drawn at a step depends on the seed and the step alone.
    """
    rows = shown.rows
    with log.progress("sft", config.steps, done) as progress:
        for step in range(done, config.steps):
            record: dict[str, Any] = {"stage": "sft", "step": step + 1}
            scale = min(1.0, (step + 1) / (config.warmup_steps + 1))
            for policy, own in rows.items():
                batch = draw(own, step, config.batch_size, f"{policy} {seed}")
                record[f"loss/{policy}"] = accumulate(learner, policy, batch, config.microbatch_tokens)
                record[f"grad_norm/{policy}"] = learner.step(policy, scale, config.max_grad_norm)
                record[f"learning_rate/{policy}"] = config.learning_rate * scale
            if config.eval_every and (step + 1) % config.eval_every == 0:
                for policy, own in shown.held_out.items():
                    record[f"eval/loss/{policy}"] = loss_of(learner, policy, own, config.microbatch_tokens)
            progress.advance(loss=sum(record[f"loss/{policy}"] for policy in rows) / max(1, len(rows)))
            yield record


def short_enough(rows: Mapping[str, Sequence[Row]], max_length: int) -> dict[str, list[Row]]:
    """The rows of at most `max_length` tokens, all if it is 0. Raises ConfigError for a policy that has none left."""
    found: dict[str, list[Row]] = {}
    for policy, own in rows.items():
        found[policy] = [row for row in own if not max_length or row.num_tokens <= max_length]
        if not found[policy]:
            shortest = min(row.num_tokens for row in own)
            raise ConfigError(f"sft.max_length = {max_length}: the shortest demonstration has {shortest} tokens")
    return found


def accumulate(learner: Learner, policy: str, rows: Sequence[Row], max_tokens: int) -> float:
    """Back-propagate the token-mean cross-entropy of `rows`; returns it."""
    num_tokens = sum(len(row.action_ids) for row in rows)
    shares = balanced(rows, learner.replicas.num, max_tokens, learner.can_share)
    return sum(learner.side_by_side(back_propagate, policy, [(parts, num_tokens) for parts in shares]))


def back_propagate(learner: Learner, policy: str, parts: Sequence[Sequence[Pack]], num_tokens: int) -> float:
    """As `accumulate`, of one process's share of the tokens."""
    total = 0.0
    for part in parts:
        loss = cross_entropy(learner, policy, part, num_tokens)
        loss.backward()
        total += loss.item()
    return total


def loss_of(learner: Learner, policy: str, rows: Sequence[Row], max_tokens: int) -> float:
    """The token-mean cross-entropy of `rows`, from which nothing is learnt."""
    num_tokens = sum(len(row.action_ids) for row in rows)
    shares = balanced(rows, learner.replicas.num, max_tokens, learner.can_share)
    return sum(learner.replicas.map(measure, learner, [(policy, parts, num_tokens) for parts in shares]))


@torch.no_grad()
def measure(learner: Learner, policy: str, parts: Sequence[Sequence[Pack]], num_tokens: int) -> float:
    """As `loss_of`, of one process's share of the tokens."""
    return sum(cross_entropy(learner, policy, part, num_tokens).item() for part in parts)


def cross_entropy(learner: Learner, policy: str, part: Sequence[Pack], num_tokens: int) -> Tensor:
    """One microbatch's part of the cross-entropy."""
    batch = collate(part, learner.pad_id, learner.config.device)
    return -learner.logprobs(policy, batch).sum() / num_tokens
