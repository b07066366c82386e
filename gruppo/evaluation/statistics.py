"""How sure a figure is: intervals for one rate, for a paired gain, and pass@k. Pure functions on plain numbers.

Knows nothing of tasks or episodes (`metrics` does), and draws nothing (`report` does).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist, fmean


def wilson(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval (low, high) of a success rate, both within [0, 1] and around `successes / n`.

    `successes` may be a fraction: the sum over tasks of each task's mean success, with `n` the number of tasks. As that
    sum varies at most as much as a count does, the interval is then on the wide side, never too narrow.
    Raises ValueError for n < 1, successes outside [0, n], or a confidence outside (0, 1).
    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if n < 1:
        raise ValueError(f"wilson needs at least one trial, not n={n}")
    if not 0 <= successes <= n:
        raise ValueError(f"wilson: successes={successes} is not within 0 and n={n}")
    z2 = _z(confidence) ** 2
    rate = successes / n
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (rate * (1 - rate) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # At rates 0 and 1 one bound is exact on paper; min and max keep it so in floating point.
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))


def paired_bootstrap(
    differences: Sequence[float], seed: int, resamples: int = 2000, confidence: float = 0.95
) -> tuple[float, float, float]:
    """The mean of per-task differences and its percentile bootstrap interval: (mean, low, high).

    Tasks are the units drawn with replacement. The same arguments give the same bits.
    Raises ValueError for no differences, fewer than one resample, or a confidence outside (0, 1).
    """
    if not differences:
        raise ValueError("paired_bootstrap needs at least one difference")
    if resamples < 1:
        raise ValueError(f"paired_bootstrap needs at least one resample, not {resamples}")
    _z(confidence)
    draw, n = random.Random(seed), len(differences)
    means = sorted(fmean(draw.choices(differences, k=n)) for _ in range(resamples))
    # How many resampled means each side cuts off; the tiny term undoes rounding, as 0.1 / 2 * 2000 falls below 100.
    tail = math.floor((1 - confidence) / 2 * resamples + 1e-9)
    return fmean(differences), means[tail], means[resamples - 1 - tail]


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased chance that at least one of k attempts succeeds, from c successes among n attempts at one task.

    Raises ValueError for k > n (it can't be known), k < 1, or c outside [0, n]. Source: arXiv 2107.03374.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n, not k={k} with n={n} attempts")
    if not 0 <= c <= n:
        raise ValueError(f"pass@k: c={c} successes is not within 0 and n={n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _z(confidence: float) -> float:
    """The two-sided normal quantile, 1.96 for 0.95."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be within 0 and 1, not {confidence}")
    return NormalDist().inv_cdf((1 + confidence) / 2)
