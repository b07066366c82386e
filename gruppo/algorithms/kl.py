"""KL: estimates of KL(policy || reference) from the log-probs of the sampled tokens. Weights and placement are others'.

Every estimator maps (new_N, reference_N, old_N), log-probs of N tokens, to values_N in nats; with d = new - reference:

    name      value            gradient    use
    k1        d                1           in the reward; as a loss its expected gradient is 0
    k2        d² / 2           d           as a loss: the gradient of the KL on-policy
    squared   d²               2 d         k2 twice: as a loss, k2 with twice the coefficient
    k3        exp(-d) + d - 1  1 - exp(-d) never negative: the one to watch; as a loss right in sign, biased in size
    k3+       as k3            as k2       k3 to watch, k2 to follow
    abs       |d|              sign d
    k3_ratio  k3 · ratio       ratio · d   k3 for tokens of an older policy

Sources: Schulman, Approximating KL Divergence (2020); what each does as a loss: arXiv 2510.01555; k3_ratio: arXiv
2512.02556; k3+ as in verl. Departs from these: d is cut at ±20 and values at ±10, as in verl, and a cut value has no
gradient, so that one token on which the reference insists can't outweigh all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from gruppo.algorithms.ratios import log_ratio

MAX_VALUE = 10.0  # nats


def bounded(values_N: Tensor) -> Tensor:
    """`values_N` within ±MAX_VALUE."""
    return values_N.clamp(-MAX_VALUE, MAX_VALUE)


def k1(new_N: Tensor, reference_N: Tensor, old_N: Tensor) -> Tensor:
    """d: right in expectation, of any sign."""
    return bounded(log_ratio(new_N, reference_N))


def k2(new_N: Tensor, reference_N: Tensor, old_N: Tensor) -> Tensor:
    """d² / 2."""
    return bounded(log_ratio(new_N, reference_N).square() / 2)


def squared(new_N: Tensor, reference_N: Tensor, old_N: Tensor) -> Tensor:
    """(reference - new)²: k2 without its half."""
    return bounded(log_ratio(new_N, reference_N).square())


def k3(new_N: Tensor, reference_N: Tensor, old_N: Tensor) -> Tensor:
    """exp(-d) + d - 1."""
    delta_N = log_ratio(new_N, reference_N)
    return bounded((-delta_N).exp() + delta_N - 1)


def k3_plus(new_N: Tensor, reference_N: Tensor, old_N: Tensor) -> Tensor:
    """k3 in value, k2 in gradient."""
    followed_N = k2(new_N, reference_N, old_N)
    return k3(new_N, reference_N, old_N).detach() + followed_N - followed_N.detach()


def absolute(new_N: Tensor, reference_N: Tensor, old_N: Tensor) -> Tensor:
    """|d|."""
    return bounded(log_ratio(new_N, reference_N).abs())


def k3_ratio(new_N: Tensor, reference_N: Tensor, old_N: Tensor) -> Tensor:
    """k3 times the token's ratio new / old, through which the gradient flows too."""
    delta_N = log_ratio(new_N, reference_N)
    # Bounded as a whole: k3 cut by itself would leave a gradient that pushes away from the reference.
    return bounded(((-delta_N).exp() + delta_N - 1) * log_ratio(new_N, old_N).exp())


KLS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "squared": squared,
    "k3": k3,
    "k3+": k3_plus,
    "abs": absolute,
    "k3_ratio": k3_ratio,
}
