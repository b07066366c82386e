"""Supervised fine-tuning: the cold start on demonstrated turns, and rejection sampling's second half.

Loss on the shown action only, its end-of-turn token included, with the same template, rows and forward as RL. Where the
demonstrations come from is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from gruppo.algorithms.batching import Pack, Row, balanced, collate
from gruppo.config import Config
from gruppo.data.base import draw
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


def sft(learner: Learner, rows: Mapping[str, Sequence[Row]], config: SFTConfig, seed: int, log: Log) -> list[dict]:
    """Train each policy on its rows; returns a record per step. Policies without rows stay as they are."""
    records: list[dict] = []
    learner.start_optimizers({policy: config.learning_rate for policy in rows})
    with log.progress("sft", config.steps) as progress:
        for step in range(config.steps):
            record: dict = {"stage": "sft", "step": step + 1}
            scale = min(1.0, (step + 1) / (config.warmup_steps + 1))
            for policy, own in rows.items():
                batch = draw(own, step, config.batch_size, f"{policy} {seed}")
                record[f"loss/{policy}"] = accumulate(learner, policy, batch, config.microbatch_tokens)
                record[f"grad_norm/{policy}"] = learner.step(policy, scale, config.max_grad_norm)
            records.append(record)
            progress.advance(loss=sum(record[f"loss/{policy}"] for policy in rows) / max(1, len(rows)))
    return records


def accumulate(learner: Learner, policy: str, rows: Sequence[Row], max_tokens: int) -> float:
    """Back-propagate the token-mean cross-entropy of `rows`; returns it."""
    num_tokens = sum(len(row.action_ids) for row in rows)
    shares = balanced(rows, learner.replicas.num, max_tokens, learner.can_share)
    return sum(learner.side_by_side(back_propagate, policy, [(parts, num_tokens) for parts in shares]))


def back_propagate(learner: Learner, policy: str, parts: Sequence[Sequence[Pack]], num_tokens: int) -> float:
    """As `accumulate`, of one process's share of the tokens."""
    total = 0.0
    for part in parts:
        batch = collate(part, learner.pad_id, learner.config.device)
        loss = -learner.logprobs(policy, batch).sum() / num_tokens
        loss.backward()
        total += loss.item()
    return total
