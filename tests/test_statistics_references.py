"""Our statistics beside SciPy's and statsmodels', on drawn data."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from gruppo.evaluation.statistics import (
    crossed_gain,
    detectable_gain,
    holm,
    mcnemar,
    paired_bootstrap,
    seed_spread,
    student_quantile,
    student_tail,
    wilson,
)

stats = pytest.importorskip("scipy.stats", reason="needs scipy: pip install 'gruppo[dev]'")
proportion = pytest.importorskip("statsmodels.stats.proportion", reason="needs statsmodels: pip install 'gruppo[dev]'")
multitest = pytest.importorskip("statsmodels.stats.multitest")
tables = pytest.importorskip("statsmodels.stats.contingency_tables")
power = pytest.importorskip("statsmodels.stats.power")


@pytest.mark.parametrize("n", [1, 7, 30, 300, 5000])
def test_wilson(n: int) -> None:
    for count in {0, 1, n // 3, n - 1, n}:
        for confidence in (0.9, 0.95, 0.99):
            theirs = proportion.proportion_confint(count, n, 1 - confidence, "wilson")
            assert wilson(count, n, confidence) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 3.7, 10, 29, 299, 5000.5, 1e6])
def test_students_distribution(freedom: float) -> None:
    for t in (0.0, 0.3, 1.0, 2.0, 4.5, 12.0):
        assert student_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=2e-4, abs=1e-12)
    for probability in (0.5, 0.6, 0.95, 0.975, 0.995):
        assert student_quantile(probability, freedom) == pytest.approx(
            stats.t.ppf(probability, freedom), rel=1e-4, abs=1e-9
        )


@pytest.mark.parametrize(("fixed", "broken"), [(0, 0), (1, 0), (5, 0), (6, 1), (8, 8), (30, 12), (400, 350)])
def test_mcnemar(fixed: int, broken: int) -> None:
    theirs = tables.mcnemar([[40, broken], [fixed, 9]], exact=True).pvalue
    assert mcnemar(fixed, broken) == pytest.approx(theirs, rel=1e-9)
    if fixed + broken:
        assert mcnemar(fixed, broken) == pytest.approx(stats.binomtest(fixed, fixed + broken).pvalue, rel=1e-9)


def test_holm() -> None:
    draw = random.Random(0)
    for size in (1, 2, 5, 20):
        p_values = [draw.random() ** 3 for _ in range(size)]
        theirs = multitest.multipletests(p_values, method="holm")[1]
        assert holm(p_values) == pytest.approx(list(theirs), abs=1e-12)


def test_one_seed_is_the_paired_t_test() -> None:
    draw = random.Random(1)
    differences = [draw.choice((-1.0, 0.0, 0.0, 1.0, 1.0)) for _ in range(60)]
    found, theirs = crossed_gain([differences]), stats.ttest_1samp(differences, 0.0)
    interval = theirs.confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (fmean(differences), interval.low, interval.high), abs=1e-6
    )
    assert found.p_value == pytest.approx(theirs.pvalue, rel=1e-4)


def test_several_seeds_are_the_two_way_analysis_of_variance() -> None:
    pandas = pytest.importorskip("pandas")
    formula = pytest.importorskip("statsmodels.formula.api")
    anova = pytest.importorskip("statsmodels.stats.anova")
    draw = random.Random(2)
    tasks, seeds = [draw.gauss(0.1, 0.4) for _ in range(25)], [draw.gauss(0, 0.3) for _ in range(4)]
    rows = [[seed + task + draw.gauss(0, 0.3) for task in tasks] for seed in seeds]
    data = pandas.DataFrame([(s, t, rows[s][t]) for s in range(4) for t in range(25)], columns=["seed", "task", "gain"])
    table = anova.anova_lm(formula.ols("gain ~ C(seed) + C(task)", data).fit())
    mean_squares = table["sum_sq"] / table["df"]
    seed, task, error = (mean_squares[name] for name in ("C(seed)", "C(task)", "Residual"))
    total = seed + task - error
    freedom = total**2 / (seed**2 / 3 + task**2 / 24 + error**2 / 72)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(total / 100)
    mean = fmean(map(fmean, rows))
    found = crossed_gain(rows)
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half), abs=1e-6)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(mean) / math.sqrt(total / 100), freedom), rel=1e-4)


def test_seed_spread() -> None:
    values = [0.41, 0.47, 0.44]
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = seed_spread(values)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-6)
    assert found.stdev == pytest.approx(stats.tstd(values))


@pytest.mark.parametrize(("n", "spread"), [(30, 0.5), (300, 0.6), (1319, 0.4)])
def test_detectable_gain(n: int, spread: float) -> None:
    theirs = power.zt_ind_solve_power(nobs1=n, alpha=0.05, power=0.8, ratio=0) * spread
    assert detectable_gain(n, spread) == pytest.approx(theirs, rel=1e-4)


def test_paired_bootstrap_is_scipys_percentile_interval() -> None:
    draw = random.Random(3)
    differences = [draw.choice((-1.0, 0.0, 0.0, 1.0)) for _ in range(200)]
    theirs = stats.bootstrap((differences,), fmean, n_resamples=2000, method="percentile", vectorized=False, rng=0)
    _, low, high = paired_bootstrap(differences, 0)
    assert (low, high) == pytest.approx(theirs.confidence_interval, abs=0.012)
