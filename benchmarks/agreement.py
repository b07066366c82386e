"""Where our grading differs from math-verify on its own test inputs: `python benchmarks/agreement.py CHECKOUT`.

CHECKOUT is a checkout of math-verify's repository; the inputs and what they should give are read from its tests. The
differences, with the reasons for ours, are listed in docs/rewards.md.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from gruppo.rewards.answers import grade

MODULES = ("all", "boxed", "numina_cases", "open_thoughts", "strict", "yujianll")
MAX_SHOWN = 120


def pairs_of(checkout: Path) -> Iterator[tuple[str, str, str, bool]]:
    """(test, gold answer, prediction, whether they are equal) of each parametrised test."""
    sys.path.insert(0, str(checkout))
    for name in MODULES:
        for test, function in vars(importlib.import_module(f"tests.test_{name}")).items():
            for mark in vars(function).get("pytestmark", ()) if callable(function) else ():
                for gold, prediction, *rest in mark.args[1]:
                    expected = next(value for value in rest if value in (0, 1) and not isinstance(value, bool))
                    yield test, gold, prediction, bool(expected)


def shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else "..." + text[-MAX_SHOWN:])


def main() -> None:
    total = differences = 0
    for test, gold, prediction, expected in pairs_of(Path(sys.argv[1])):
        total += 1
        verdict = grade(prediction, gold)
        if bool(verdict.correct) != expected:
            differences += 1
            print(f"{test}: gold {shown(gold)}, prediction {shown(prediction)}")
            print(f"    expected {expected}, ours {verdict.correct}: {verdict.reason}")
    print(f"{total} pairs, {differences} differences")


if __name__ == "__main__":
    main()
