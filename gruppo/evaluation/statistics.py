"""How sure a figure is: intervals for a rate and for a paired gain, tests, pass@k. Pure functions on plain numbers.

Knows nothing of tasks or episodes (`metrics`, `measures` do), and draws nothing (`report` does).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import NamedTuple

_PANELS = 400  # of Simpson's rule; the tail of Student's distribution is then right to four digits


class Gain(NamedTuple):
    """A mean difference with its interval, and the chance of one at least that far from 0 if there were none."""

    mean: float
    low: float
    high: float
    p_value: float


class Spread(NamedTuple):
    """The mean over seeds, the standard deviation between them and Student's interval; None with a single seed."""

    mean: float
    stdev: float | None
    low: float | None
    high: float | None


def wilson(successes: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval (low, high) of a success rate, both within [0, 1] and around `successes / n`.

    `successes` may be a fraction: the sum over tasks of each task's mean success, with `n` the number of tasks. As that
    sum varies at most as much as a count does, the interval is then on the wide side, never too narrow.
    Raises ValueError for n < 1, successes outside [0, n], or a confidence outside (0, 1).
    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if not n >= 1:
        raise ValueError(f"wilson needs at least one trial, not n={n}")
    if not 0 <= successes <= n:
        raise ValueError(f"wilson: successes={successes} is not within 0 and n={n}")
    z2 = _z(confidence) ** 2
    rate = successes / n
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (rate * (1 - rate) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # At rates 0 and 1 one bound is exact on paper; min and max keep it so in floating point.
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))


def wilson_of_tasks(rates: Sequence[float], attempts: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson interval of a success rate where each task was attempted `attempts` times; `rates` are per task.

    Attempts at one task are alike, so n is neither the number of tasks nor that of attempts but the number of
    independent trials whose rate would vary as much as the mean of the tasks' rates does, kept between the two.
    Raises ValueError for no rates, attempts < 1, or a rate outside [0, 1]. Source: Kish 1965, "Survey sampling".
    """
    if not rates or attempts < 1 or not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"wilson_of_tasks needs rates within 0 and 1 and attempts >= 1, not {attempts}")
    n, rate = len(rates), min(1.0, fmean(rates))
    trials = float(n)
    if attempts > 1 and n > 1 and 0 < rate < 1:
        spread = _variance(rates)
        trials = n * attempts if spread == 0 else rate * (1 - rate) * n / spread
        trials = min(n * attempts, max(n, trials))
    return wilson(rate * trials, trials, confidence)


def paired_bootstrap(
    differences: Sequence[float], seed: int, resamples: int = 2000, confidence: float = 0.95
) -> tuple[float, float, float]:
    """The mean of per-task differences and its percentile bootstrap interval: (mean, low, high).

    Tasks are the units drawn with replacement: the attempts at one go together. The same arguments give the same bits.
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


def crossed_gain(differences: Sequence[Sequence[float]], confidence: float = 0.95) -> Gain:
    """The mean of a table of differences, one row per training seed and one column per task, and how sure it is.

    Both seeds and tasks are a sample of those there could be, and vary the mean: two-way random effects without
    replication, a component that comes out negative taken as 0, Student's interval with Satterthwaite's degrees of
    freedom. One row gives the paired t interval. The p-value is 1 where nothing varies and the mean is 0.
    Raises ValueError for fewer than two tasks or rows of unequal length.
    Source: Satterthwaite 1946, "An approximate distribution of estimates of variance components".
    """
    num_seeds, num_tasks = len(differences), len(differences[0]) if differences else 0
    if num_tasks < 2 or any(len(row) != num_tasks for row in differences):
        raise ValueError("crossed_gain needs rows of the same two tasks or more, one row per seed")
    of_tasks = [fmean(column) for column in zip(*differences, strict=True)]
    of_seeds = [fmean(row) for row in differences]
    mean, cells = fmean(of_seeds), num_seeds * num_tasks
    squares = [(_variance(of_tasks) * num_seeds, num_tasks - 1)]  # mean squares with their degrees of freedom
    if num_seeds > 1:
        residuals = (
            (value - seed - task + mean) ** 2
            for row, seed in zip(differences, of_seeds, strict=True)
            for value, task in zip(row, of_tasks, strict=True)
        )
        degrees = (num_seeds - 1) * (num_tasks - 1)
        error = math.fsum(residuals) / degrees
        between = [*squares, (_variance(of_seeds) * num_tasks, num_seeds - 1)]
        kept = [square for square in between if square[0] > error]
        # Each kept component holds the error once more; two hold it twice, none not at all.
        squares = [*kept, (error * (1 - len(kept)), degrees)]
    total = math.fsum(square for square, _ in squares)
    if total <= 0:
        return Gain(mean, mean, mean, float(mean == 0))
    freedom = total**2 / math.fsum(square**2 / degrees for square, degrees in squares)
    error_of_mean = math.sqrt(total / cells)
    half = student_quantile((1 + _checked(confidence)) / 2, freedom) * error_of_mean
    return Gain(mean, mean - half, mean + half, 2 * student_tail(abs(mean) / error_of_mean, freedom))


def seed_spread(values: Sequence[float], confidence: float = 0.95) -> Spread:
    """How much a figure differs between seeds. One seed tells no spread. Raises ValueError for no values."""
    if not values:
        raise ValueError("seed_spread needs at least one value")
    mean, n = fmean(values), len(values)
    if n == 1:
        return Spread(mean, None, None, None)
    deviation = math.sqrt(_variance(values))
    half = student_quantile((1 + _checked(confidence)) / 2, n - 1) * deviation / math.sqrt(n)
    return Spread(mean, deviation, mean - half, mean + half)


def mcnemar(fixed: int, broken: int) -> float:
    """The exact two-sided p-value of McNemar's test: `fixed` tasks got solved, `broken` no longer are.

    Where tasks have several attempts and so a rate, it is the sign test on them. 1 where nothing changed.
    Raises ValueError for a negative count.
    """
    if fixed < 0 or broken < 0:
        raise ValueError(f"mcnemar: fixed={fixed}, broken={broken}: counts are not negative")
    n, least = fixed + broken, min(fixed, broken)
    tail, term = 0, 1  # term is n over i
    for i in range(least + 1):
        tail += term
        term = term * (n - i) // (i + 1)
    return min(1.0, 2 * tail / 2**n)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for being several, in their order: below 0.05, the whole set errs once in 20 times at most.

    Raises ValueError for a p-value outside [0, 1]. Source: Holm 1979, "A simple sequentially rejective multiple test
    procedure".
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"holm: {wrong[0]} is no p-value")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def detectable_gain(n: int, spread: float, power: float = 0.8, confidence: float = 0.95) -> float:
    """The smallest true gain that n paired tasks show with this power, two-sided, by the normal approximation.

    `spread` is the standard deviation of the per-task differences: about the root of the share of tasks on which the
    two systems differ. Raises ValueError for n < 1, a spread that is not positive, or a power outside (0, 1).
    """
    if n < 1 or not 0 < spread < math.inf or not 0 < power < 1:
        raise ValueError(f"detectable_gain needs n >= 1, spread > 0, power within 0 and 1, not {n}, {spread}, {power}")
    return (_z(confidence) + NormalDist().inv_cdf(power)) * spread / math.sqrt(n)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased chance that at least one of k attempts succeeds, from c successes among n attempts at one task.

    It is about one task: a benchmark's pass@k is the mean of its tasks' (`measures` takes it), never the figure of
    their pooled counts. Raises ValueError for k > n (it can't be known), k < 1, or c outside [0, n].
    Source: arXiv 2107.03374.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n, not k={k} with n={n} attempts")
    if not 0 <= c <= n:
        raise ValueError(f"pass@k: c={c} successes is not within 0 and n={n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def student_tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's distribution, t >= 0, for any real degrees of freedom >= 1."""
    if t < 0 or not freedom >= 1:
        raise ValueError(f"student_tail needs t >= 0 and freedom >= 1, not {t} and {freedom}")
    # T = sqrt(freedom) tan(angle) has the density c cos(angle)^(freedom - 1): smooth, and over a bounded range, of
    # which only 40 standard deviations count.
    angle = math.atan2(t, math.sqrt(freedom))
    step = min(math.pi / 2 - angle, 40 / math.sqrt(freedom)) / _PANELS
    heights = [max(0.0, math.cos(angle + index * step)) ** (freedom - 1) for index in range(_PANELS + 1)]
    inner = 4 * math.fsum(heights[1:-1:2]) + 2 * math.fsum(heights[2:-1:2])
    return min(0.5, _student_scale(freedom) * step / 3 * (heights[0] + inner + heights[-1]))


def student_quantile(probability: float, freedom: float) -> float:
    """The t below which Student's distribution has this probability, from 0.5 on."""
    if not 0.5 <= probability < 1:
        raise ValueError(f"student_quantile needs a probability from 0.5 on and below 1, not {probability}")
    # Newton's method from the normal quantile, which lies to the left: the tail is convex, so each step stays there.
    t, scale = NormalDist().inv_cdf(probability), _student_scale(freedom) / math.sqrt(freedom)
    for _ in range(200):
        density = scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        step = (student_tail(t, freedom) - (1 - probability)) / density
        t = max(0.0, t + step)
        if abs(step) < 1e-9 * (1 + t):
            break
    return t


def _student_scale(freedom: float) -> float:
    return math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


def _variance(values: Sequence[float]) -> float:
    """The unbiased variance, in floating point: the standard library's is exact, and a hundred times slower."""
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be within 0 and 1, not {confidence}")
    return confidence


def _z(confidence: float) -> float:
    """The two-sided normal quantile, 1.96 for 0.95."""
    return NormalDist().inv_cdf((1 + _checked(confidence)) / 2)
