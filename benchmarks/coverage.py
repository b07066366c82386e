"""Do 95 % intervals hold the truth in 95 % of cases? `python benchmarks/coverage.py [--runs 2000] [--json FILE]`.

Evaluations are drawn from a known truth, over and over, and it is counted how often the interval that a report would
show holds it. Fails (exit code 1) where that is not within 93 and 97 %.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

from gruppo.evaluation.statistics import crossed_gain, paired_bootstrap, wilson, wilson_of_tasks

LOWEST, HIGHEST = 0.93, 0.97

Setting = Callable[[random.Random, int], tuple[float, float, float]]
"""(random stream, bootstrap resamples) -> low, high, and the truth, of one evaluation."""


def of_rate(n: int, rate: float, draw: random.Random, resamples: int) -> tuple[float, float, float]:
    """n tasks, one attempt each."""
    return *wilson(sum(draw.random() < rate for _ in range(n)), n), rate


def of_attempts(n: int, attempts: int, alike: float, draw: random.Random, resamples: int) -> tuple[float, float, float]:
    """n tasks whose own rates are drawn from a beta distribution of mean 0.5; the smaller `alike`, the more attempts at
    one task agree."""
    rates = []
    for _ in range(n):
        own = draw.betavariate(alike, alike)
        rates.append(sum(draw.random() < own for _ in range(attempts)) / attempts)
    return *wilson_of_tasks(rates, attempts), 0.5


def of_pairs(n: int, better: float, worse: float, draw: random.Random, resamples: int) -> tuple[float, float, float]:
    """n tasks, of which a share gets better and another worse; the bootstrap."""
    drawn = (draw.random() for _ in range(n))
    differences = [1.0 if value < better else -1.0 if value < better + worse else 0.0 for value in drawn]
    _, low, high = paired_bootstrap(differences, draw.randrange(2**32), resamples)
    return low, high, better - worse


def of_clusters(n: int, attempts: int, draw: random.Random, resamples: int) -> tuple[float, float, float]:
    """n tasks, several attempts at each by both systems; the bootstrap over tasks."""
    differences = []
    for _ in range(n):
        before = draw.betavariate(0.6, 0.9)
        after = min(1.0, before + draw.choice((0.0, 0.0, 0.3)))
        rates = [fmean(draw.random() < rate for _ in range(attempts)) for rate in (before, after)]
        differences.append(rates[1] - rates[0])
    _, low, high = paired_bootstrap(differences, draw.randrange(2**32), resamples)
    return low, high, _mean_gain()


def _mean_gain(points: int = 2000) -> float:
    """The true gain of `of_clusters`: a third of the mean of min(1 - rate, 0.3), rates beta(0.6, 0.9)."""
    if not _GAIN:
        draw = random.Random(12345)
        _GAIN.append(fmean(min(1 - draw.betavariate(0.6, 0.9), 0.3) for _ in range(100 * points)) / 3)
    return _GAIN[0]


_GAIN: list[float] = []


def of_seeds(n: int, seeds: int, spread: float, draw: random.Random, resamples: int) -> tuple[float, float, float]:
    """n tasks and a few training seeds, whose gains differ by `spread` (standard deviation)."""
    tasks = [draw.gauss(0.06, 0.3) for _ in range(n)]
    own = [draw.gauss(0.0, spread) for _ in range(seeds)]
    found = crossed_gain([[seed + task + draw.gauss(0.0, 0.4) for task in tasks] for seed in own])
    return found.low, found.high, 0.06


SETTINGS: Mapping[str, Setting] = {
    "wilson, 300 tasks, rate 0.5": partial(of_rate, 300, 0.5),
    "wilson, 100 tasks, rate 0.2": partial(of_rate, 100, 0.2),
    "wilson, 40 tasks, rate 0.3": partial(of_rate, 40, 0.3),
    "wilson, 100 tasks x 4 attempts, much alike": partial(of_attempts, 100, 4, 0.3),
    "wilson, 100 tasks x 8 attempts, little alike": partial(of_attempts, 100, 8, 3.0),
    "bootstrap, 300 pairs": partial(of_pairs, 300, 0.2, 0.1),
    "bootstrap, 100 pairs": partial(of_pairs, 100, 0.25, 0.2),
    "bootstrap, 100 pairs x 4 attempts": partial(of_clusters, 100, 4),
    "seeds and tasks, 100 x 1": partial(of_seeds, 100, 1, 0.0),
    "seeds and tasks, 100 x 3, seeds alike": partial(of_seeds, 100, 3, 0.0),
    "seeds and tasks, 100 x 3, seeds apart": partial(of_seeds, 100, 3, 0.05),
    "seeds and tasks, 60 x 5, seeds far apart": partial(of_seeds, 60, 5, 0.1),
}


def coverage(setting: Setting, runs: int, seed: int, resamples: int) -> float:
    """The share of runs whose interval holds the truth."""
    draw, held = random.Random(seed), 0
    for _ in range(runs):
        low, high, truth = setting(draw, resamples)
        held += low <= truth <= high
    return held / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: dict[str, float] = {}
    print("| setting | coverage | seconds |\n|---|---|---|")
    for name, setting in SETTINGS.items():
        started = time.monotonic()
        found[name] = coverage(setting, asked.runs, asked.seed, asked.resamples)
        print(f"| {name} | {found[name]:.2%} | {time.monotonic() - started:.0f} |", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2))
    sys.exit(not all(LOWEST <= value <= HIGHEST for value in found.values()))


if __name__ == "__main__":
    main()
