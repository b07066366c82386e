"""The intervals hold what they promise: a small simulation; `benchmarks/coverage.py` is the large one."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("coverage_of_intervals", ROOT / "benchmarks" / "coverage.py")
assert SPEC and SPEC.loader
coverage = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = coverage
SPEC.loader.exec_module(coverage)

RUNS, RESAMPLES = 200, 100
SLACK = 4 * math.sqrt(0.95 * 0.05 / RUNS)  # four standard errors of the simulation itself


@pytest.mark.parametrize("name", [name for name in coverage.SETTINGS if "300 pairs" not in name])
def test_intervals_cover(name: str) -> None:
    assert coverage.coverage(coverage.SETTINGS[name], RUNS, seed=1, resamples=RESAMPLES) == pytest.approx(
        0.95, abs=SLACK
    )


def test_an_interval_that_is_too_narrow_is_seen() -> None:
    setting = coverage.SETTINGS["wilson, 300 tasks, rate 0.5"]

    def narrow(draw, resamples):
        low, high, truth = setting(draw, resamples)
        middle = (low + high) / 2
        return middle + (low - middle) / 2, middle + (high - middle) / 2, truth

    assert coverage.coverage(narrow, RUNS, seed=1, resamples=0) < 0.95 - SLACK


def test_the_script_writes_its_table(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "benchmarks/coverage.py",
        "--runs",
        "20",
        "--resamples",
        "20",
        "--json",
        str(tmp_path / "c"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert "| setting |" in done.stdout, done.stderr
    assert json.loads((tmp_path / "c").read_text()).keys() == coverage.SETTINGS.keys()
