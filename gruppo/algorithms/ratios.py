"""Ratios: what the losses read of a token, and how far the policy has moved since it was sampled. Nothing is clipped.

Tokens are flat: N action tokens, one after another. There is no padding and no mask, so what is not trained can't leak
into a loss. A sequence is whatever the ratio is taken over, a turn or all turns of a role in an episode; its statistics
come back per token, each token holding its sequence's value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp beyond this is no ratio any more; cut before exp, or the gradient becomes 0 * inf


@dataclass(frozen=True)
class Tokens:
    """N action tokens of one microbatch, float32 where nothing else is said. No sequence is split over microbatches."""

    old_N: Tensor  # log-probs before the step's first update, no gradient
    advantages_N: Tensor
    sequence_N: Tensor  # int64: which sequence; 0, 1, 2, … without gaps, in any order
    sampled_N: Tensor | None = None  # log-probs reported by the sampler, NaN where unknown
    reference_N: Tensor | None = None  # log-probs under the reference
    entropy_N: Tensor | None = None  # of the policy's distribution, with gradient
    chosen_N: Tensor | None = None  # bool: tokens picked beforehand over the whole optimizer step


def log_ratio(new_N: Tensor, old_N: Tensor) -> Tensor:
    """new - old, within ±MAX_LOG_RATIO; 0 without gradient where old is infinite, since that token can't be judged."""
    return torch.where(old_N.isinf(), 0.0, new_N - old_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_sum(values_N: Tensor, sequence_N: Tensor) -> Tensor:
    """For each token the sum over its sequence."""
    # There are at most as many sequences as tokens: sized like that, no device has to be asked for their number.
    return torch.zeros_like(values_N).index_add(0, sequence_N, values_N)[sequence_N]


def sequence_mean(values_N: Tensor, sequence_N: Tensor) -> Tensor:
    """For each token the mean over its sequence."""
    return sequence_sum(values_N, sequence_N) / sequence_sum(torch.ones_like(values_N), sequence_N)


def token_ratio(new_N: Tensor, tokens: Tokens) -> Tensor:
    """Each token's own ratio. Source: arXiv 1707.06347."""
    return log_ratio(new_N, tokens.old_N).exp()


def sequence_ratio(new_N: Tensor, tokens: Tokens) -> Tensor:
    """The geometric mean over the sequence. Source: arXiv 2507.18071 (GSPO), with turns as sequences 2503.09501."""
    return sequence_mean(log_ratio(new_N, tokens.old_N), tokens.sequence_N).exp()


def sequence_token_ratio(new_N: Tensor, tokens: Tokens) -> Tensor:
    """The sequence's ratio in value, the token's own in gradient. Source: arXiv 2507.18071 (GSPO-token)."""
    return sequence_ratio(new_N, tokens).detach() * (new_N - new_N.detach()).exp()


def sequence_product(new_N: Tensor, tokens: Tokens) -> Tensor:
    """The probability ratio of the whole sequence. Source: arXiv 2402.14740 as TRL's RLOOTrainer reads it."""
    total_N = sequence_sum(log_ratio(new_N, tokens.old_N), tokens.sequence_N)
    return total_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


RATIOS: Mapping[str, Callable[[Tensor, Tokens], Tensor]] = {
    "token": token_ratio,
    "turn": sequence_ratio,  # with a sequence per turn
    "sequence": sequence_ratio,
    "sequence_token": sequence_token_ratio,
    "sequence_sum": sequence_product,
}
