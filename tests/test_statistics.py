"""Intervals and pass@k: golden numbers, and what must hold for every input."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.evaluation.statistics import paired_bootstrap, pass_at_k, wilson


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
