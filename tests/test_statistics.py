"""Intervals and pass@k: golden numbers, and what must hold for every input."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.evaluation.statistics import (
    crossed_gain,
    detectable_gain,
    holm,
    mcnemar,
    paired_bootstrap,
    pass_at_k,
    seed_spread,
    student_quantile,
    student_tail,
    wilson,
    wilson_of_tasks,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_golden(successes: int, n: int, low: float, high: float) -> None:
    """The four cases of Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I."""
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_is_exact_at_the_edges() -> None:
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.floats(0, n), st.just(n))))
def test_wilson_holds_its_rate_and_stays_within_bounds(case: tuple[float, int]) -> None:
    successes, n = case
    low, high = wilson(successes, n)
    assert 0.0 <= low <= successes / n <= high <= 1.0
    narrow = wilson(successes, n, confidence=0.5)
    assert low <= narrow[0] + 1e-12 and narrow[1] <= high + 1e-12


@given(st.integers(0, 50), st.integers(0, 50))
def test_wilson_mirrors(successes: int, failures: int) -> None:
    if n := successes + failures:
        low, high = wilson(successes, n)
        assert wilson(failures, n) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize("arguments", [(1, 0), (-1, 5), (6, 5), (1, 5, 1.0), (1, 5, 0.0), (float("nan"), 5)])
def test_wilson_refuses(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"wilson|confidence"):
        wilson(*arguments)


def test_bootstrap_golden_and_deterministic() -> None:
    differences = [1.0] * 20 + [-1.0] * 5 + [0.0] * 25
    mean, low, high = paired_bootstrap(differences, seed=7)
    assert mean == pytest.approx(0.3)
    # The normal approximation: 0.3 -+ 1.96 * sqrt(0.41 / 50) = (0.1225, 0.4775).
    assert (low, high) == pytest.approx((0.12, 0.48), abs=0.021)
    assert paired_bootstrap(differences, seed=7) == (mean, low, high)
    assert any(paired_bootstrap(differences, seed) != (mean, low, high) for seed in (8, 9, 10))


def test_bootstrap_of_equal_differences_has_no_width() -> None:
    assert paired_bootstrap([0.5, 0.5, 0.5], seed=0) == (0.5, 0.5, 0.5)


def test_bootstrap_cuts_equal_tails() -> None:
    draw = random.Random(3)
    differences = [draw.choice((-1.0, 0.0, 1.0)) for _ in range(30)]
    _, low, high = paired_bootstrap(differences, seed=3, resamples=2000)
    resample = random.Random(3)
    means = [sum(resample.choices(differences, k=30)) / 30 for _ in range(2000)]
    assert sum(mean < low - 1e-12 for mean in means) <= 50 <= sum(mean <= low + 1e-12 for mean in means)
    assert sum(mean > high + 1e-12 for mean in means) <= 50 <= sum(mean >= high - 1e-12 for mean in means)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.integers(0, 99))
def test_bootstrap_stays_within_the_data(differences: list[float], seed: int) -> None:
    mean, low, high = paired_bootstrap(differences, seed, resamples=50)
    slack = 1e-9
    assert min(differences) - slack <= low <= high <= max(differences) + slack
    assert min(differences) - slack <= mean <= max(differences) + slack


def test_bootstrap_refuses() -> None:
    with pytest.raises(ValueError, match="at least one difference"):
        paired_bootstrap([], seed=0)
    with pytest.raises(ValueError, match="resample"):
        paired_bootstrap([1.0], seed=0, resamples=0)
    with pytest.raises(ValueError, match="confidence"):
        paired_bootstrap([1.0], seed=0, confidence=95)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_golden_and_large() -> None:
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert pass_at_k(10, 3, 5) == pytest.approx(1 - 21 / 252)
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5)


@pytest.mark.parametrize("case", [(4, 2, 5), (4, 2, 0), (4, 5, 2), (4, -1, 2), (0, 0, 1)])
def test_pass_at_k_refuses(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="pass@k"):
        pass_at_k(*case)


# Several attempts, seeds, tests --------------------------------------------------------------------------------------


def test_attempts_at_one_task_are_neither_one_trial_nor_many() -> None:
    alike, apart = [1.0, 0.0] * 50, [0.5] * 100
    assert wilson_of_tasks(alike, 1) == wilson(50, 100)
    assert wilson_of_tasks(alike, 4) == pytest.approx(wilson(50, 100))  # attempts agree: they add nothing
    assert wilson_of_tasks(apart, 4) == pytest.approx(wilson(200, 400))
    assert wilson_of_tasks([1.0] * 10, 8) == wilson(10, 10)  # nothing says how attempts differ
    with pytest.raises(ValueError, match="wilson_of_tasks"):
        wilson_of_tasks([], 1)
    with pytest.raises(ValueError, match="wilson_of_tasks"):
        wilson_of_tasks([1.5], 1)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_the_interval_of_tasks_lies_between_its_extremes(counts: list[int]) -> None:
    rates = [count / 4 for count in counts]
    low, high = wilson_of_tasks(rates, 4)
    widest, narrowest = wilson(sum(rates), len(rates)), wilson(sum(counts), 4 * len(counts))
    assert widest[0] - 1e-9 <= low <= narrowest[0] + 1e-9 and narrowest[1] - 1e-9 <= high <= widest[1] + 1e-9


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_a_fair_coin(fixed: int, broken: int) -> None:
    n, far = fixed + broken, abs(fixed - broken)
    expected = sum(math.comb(n, i) for i in range(n + 1) if abs(2 * i - n) >= far) / 2**n
    assert mcnemar(fixed, broken) == pytest.approx(min(1.0, expected))
    assert mcnemar(fixed, broken) == mcnemar(broken, fixed)


def test_mcnemar_golden() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 0) == 0.0625
    assert mcnemar(10, 2) == pytest.approx(0.03857421875)
    assert mcnemar(30_000, 29_000) == pytest.approx(3.9e-5, rel=0.05)  # large counts stay exact
    with pytest.raises(ValueError, match="mcnemar"):
        mcnemar(-1, 3)


def test_holm_golden_and_in_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == [] and holm([0.2]) == [0.2]
    with pytest.raises(ValueError, match="no p-value"):
        holm([0.5, 1.5])


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_lowers_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    ranked = sorted(zip(p_values, adjusted, strict=True))
    assert [a for _, a in ranked] == sorted(adjusted)


def test_a_gain_over_seeds_is_less_sure_the_more_seeds_differ() -> None:
    tasks = [1.0, 0.0, 0.0, -1.0, 1.0, 0.0, 1.0, 0.0] * 10
    alike = crossed_gain([tasks] * 3)
    apart = crossed_gain([[t + shift for t in tasks] for shift in (-0.2, 0.0, 0.2)])
    single = crossed_gain([tasks])
    assert alike.mean == pytest.approx(apart.mean) == pytest.approx(single.mean) == pytest.approx(0.25)
    assert (alike.low, alike.high) == pytest.approx((single.low, single.high))  # the same three times is no more
    assert apart.low < alike.low < 0.25 < alike.high < apart.high
    assert apart.p_value > alike.p_value
    assert crossed_gain([[0.0, 0.0]]) == (0.0, 0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="crossed_gain"):
        crossed_gain([[1.0, 0.0], [1.0]])
    with pytest.raises(ValueError, match="crossed_gain"):
        crossed_gain([[1.0]])


def test_one_seed_tells_no_spread() -> None:
    assert seed_spread([0.4]) == (0.4, None, None, None)
    mean, deviation, low, high = seed_spread([0.4, 0.5, 0.6])
    assert (mean, deviation) == pytest.approx((0.5, 0.1)) and (low, high) == pytest.approx((0.2516, 0.7484), abs=1e-4)
    with pytest.raises(ValueError, match="seed_spread"):
        seed_spread([])


def test_detectable_gain_golden() -> None:
    assert detectable_gain(300, 0.6) == pytest.approx(0.09705, abs=1e-4)  # 2.8016 * 0.6 / sqrt(300)
    assert detectable_gain(1200, 0.6) == pytest.approx(detectable_gain(300, 0.6) / 2)
    assert detectable_gain(300, 0.6, power=0.9) > detectable_gain(300, 0.6)
    for wrong in ((0, 0.5), (10, 0.0), (10, float("nan"))):
        with pytest.raises(ValueError, match="detectable_gain"):
            detectable_gain(*wrong)


def test_students_distribution_golden() -> None:
    assert student_quantile(0.975, 1) == pytest.approx(12.7062, abs=1e-4)
    assert student_quantile(0.975, 2) == pytest.approx(4.30265, abs=1e-5)
    assert student_quantile(0.975, 1e6) == pytest.approx(1.95997, abs=1e-5)
    assert student_quantile(0.5, 7) == 0.0 and student_tail(0.0, 7) == pytest.approx(0.5)
    for wrong in (0.4, 1.0):
        with pytest.raises(ValueError, match="student_quantile"):
            student_quantile(wrong, 3)
