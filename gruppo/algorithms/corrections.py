"""Corrections: weights for tokens that were sampled from other probabilities than the learner computes.

A sampler in another engine, precision or version gives a token the probability mu, the learner pi_old; w = pi_old / mu
is the token's importance weight. Weights carry no gradient and multiply the loss, not the ratio. Where the sampler said
nothing (NaN), w = 1. Where either log-prob is infinite the token is rejected and counted. A rejected token stays in the
denominator of the mean: rejecting makes a step smaller, not steeper. How old a sample may be is not decided here.

The product of the weights of a long sequence says little: with a spread of .02 per token, 8,000 ordinary tokens leave
an effective sample of 4 %. Prefer tokens or the geometric mean for what agents write. With "token_truncate" and no
bound (high = inf) a clipped loss is decoupled PPO (arXiv 2505.24298).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.algorithms.ratios import MAX_LOG_RATIO, Tokens, sequence_mean, sequence_sum


@dataclass(frozen=True)
class CorrectionSettings:
    """Bounds of the weights."""

    high: float = 2.0  # what is above is cut to it, or rejected
    low: float = 0.0  # what is below is rejected
    off_policy_mask: float | None = None  # in nats per token, see `on_policy_enough`

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high:
            raise ValueError(f"low = {self.low}, high = {self.high}: 1, a perfect match, must lie between them")


Correction = Callable[[Tensor, Tensor, CorrectionSettings], Tensor]  # log w per token, sequence_N, bounds -> weights_N


def off(log_weights_N: Tensor, sequence_N: Tensor, settings: CorrectionSettings) -> Tensor:
    """1."""
    return torch.ones_like(log_weights_N)


def token_truncate(log_weights_N: Tensor, sequence_N: Tensor, settings: CorrectionSettings) -> Tensor:
    """min(w, high): truncated importance sampling, as in verl, slime and TRL."""
    return log_weights_N.exp().clamp(max=settings.high)


def token_mask(log_weights_N: Tensor, sequence_N: Tensor, settings: CorrectionSettings) -> Tensor:
    """w within [low, high], else 0. Source: arXiv 2510.18855 (IcePop, window .5 to 5)."""
    weights_N = log_weights_N.exp()
    return torch.where(inside(weights_N, settings), weights_N, 0.0)


def sequence_truncate(log_weights_N: Tensor, sequence_N: Tensor, settings: CorrectionSettings) -> Tensor:
    """min(product of the sequence's w, high)."""
    return product(log_weights_N, sequence_N).clamp(max=settings.high)


def sequence_mask(log_weights_N: Tensor, sequence_N: Tensor, settings: CorrectionSettings) -> Tensor:
    """The product of the sequence's w within [low, high], else 0: TRL's default with high = 3."""
    weights_N = product(log_weights_N, sequence_N)
    return torch.where(inside(weights_N, settings), weights_N, 0.0)


def geometric_mask(log_weights_N: Tensor, sequence_N: Tensor, settings: CorrectionSettings) -> Tensor:
    """1 for sequences whose geometric mean of w is within [low, high], else 0; windows are narrow: .99 to 1.01."""
    return inside(sequence_mean(log_weights_N, sequence_N).exp(), settings).to(log_weights_N.dtype)


def geometric_mask_weighted(log_weights_N: Tensor, sequence_N: Tensor, settings: CorrectionSettings) -> Tensor:
    """As `geometric_mask`, with w itself, however large, in the sequences that pass: OpenRLHF's seq-mask-tis."""
    return geometric_mask(log_weights_N, sequence_N, settings) * log_weights_N.exp()


def inside(weights_N: Tensor, settings: CorrectionSettings) -> Tensor:
    """Which weights are within the bounds, both included."""
    return (settings.low <= weights_N) & (weights_N <= settings.high)


def product(log_weights_N: Tensor, sequence_N: Tensor) -> Tensor:
    """For each token the product of its sequence's weights."""
    return sequence_sum(log_weights_N, sequence_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


CORRECTIONS: Mapping[str, Correction] = {
    "off": off,
    "token_truncate": token_truncate,
    "token_mask": token_mask,
    "sequence_truncate": sequence_truncate,
    "sequence_mask": sequence_mask,
    "geometric_mask": geometric_mask,
    "geometric_mask_weighted": geometric_mask_weighted,
}


def log_weights(tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """(log w, 0 where it can't be known; bool: known; bool: rejected, for a log-prob is infinite)."""
    sampled_N = torch.full_like(tokens.old_N, math.nan) if tokens.sampled_N is None else tokens.sampled_N
    rejected_N = tokens.old_N.isinf() | sampled_N.isinf()
    known_N = ~(sampled_N.isnan() | rejected_N)
    log_weights_N = (tokens.old_N - sampled_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.where(known_N, log_weights_N, 0.0).detach(), known_N, rejected_N


def correction_weights(name: str, tokens: Tokens, settings: CorrectionSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """The weights_N of a correction, and the sums "weight", "rejected" (weight 0), "infinite" and "unknown".

    Raises ValueError if there is something to correct by and the sampler's log-probs are absent altogether.
    """
    if tokens.sampled_N is None and name != "off":
        raise ValueError(f"correction = {name!r} needs the sampler's log-probs, and there are none; use 'off'")
    log_weights_N, known_N, rejected_N = log_weights(tokens)
    weights_N = CORRECTIONS[name](log_weights_N, tokens.sequence_N, settings)
    weights_N = torch.where(rejected_N, 0.0, weights_N)
    return weights_N, {
        "weight": weights_N.sum(),
        "rejected": (weights_N == 0).sum(),
        "infinite": rejected_N.sum(),
        "unknown": (~(known_N | rejected_N)).sum(),
    }


def on_policy_enough(new_N: Tensor, tokens: Tokens, limit: float) -> Tensor:
    """bool: False for tokens of negative advantage in sequences whose log-prob fell by more than `limit` per token.

    The fall is counted from the sampler's log-probs, or from pi_old where those are unknown.
    Source: arXiv 2512.02556 (off-policy sequence mask).
    """
    log_weights_N, _, _ = log_weights(tokens)
    fall_N = torch.where(tokens.old_N.isinf(), 0.0, tokens.old_N - new_N.detach()) - log_weights_N
    return (tokens.advantages_N >= 0) | (sequence_mean(fall_N, tokens.sequence_N) <= limit)


def mismatch_sums(tokens: Tokens) -> dict[str, Tensor]:
    """What `mismatch_metrics` needs of one microbatch; the sums of an optimizer step's microbatches add up."""
    log_weights_N, known_N, _ = log_weights(tokens)
    weights_N, product_N = log_weights_N.exp(), product(log_weights_N, tokens.sequence_N)
    once_N = 1 / sequence_sum(torch.ones_like(log_weights_N), tokens.sequence_N)  # adds up to 1 over a sequence
    return {
        "known": known_N.sum(),
        "gap": log_weights_N.abs().sum(),
        "k1": -log_weights_N.sum(),
        "k3": (weights_N - log_weights_N - 1).sum(),
        "chi2": (weights_N.square() - 1).sum(),
        "sequences": once_N.sum(),
        "product": (once_N * product_N).sum(),
        "product_squared": (once_N * product_N.square()).sum(),
    }


def mismatch_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """How far the sampler is from the learner: KL(mu || pi_old) and its like in nats per known token, chi² and ESS.

    "mismatch": mean of |log w|; "ess": the effective share of the sequences by the product of their weights, 1 at best.
    Bounds that practice sets (verl): |k1| < .1, chi² < 1 per token, ESS > .3, if sequences are short.
    """
    if not sums["known"]:
        return {}
    per_token = {"mismatch": "gap", "mismatch_k1": "k1", "mismatch_k3": "k3", "chi2_token": "chi2"}
    return {
        **{name: sums[key] / sums["known"] for name, key in per_token.items()},
        "chi2_sequence": sums["product_squared"] / sums["sequences"] - 1,
        "ess": sums["product"] ** 2 / (sums["sequences"] * sums["product_squared"]),
    }
