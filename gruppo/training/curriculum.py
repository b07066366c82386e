"""Which tasks a step plays: all alike, or more of the families that there is most to learn from.

What a family is worth is measured, not set: its share of successes in the steps before. That is in the metrics of the
run, so a resumed run deals the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from gruppo.algorithms.curriculum import learnability, prioritised, probability_mixed
from gruppo.data.base import TaskSet, draw, family_of
from gruppo.types import Task

MEMORY = 0.5  # of a family's success rate, when a step has shown a new one

Kind = Literal["none", "signal", "learnability", "failures"]

WEIGHTS: Mapping[Kind, Callable[[Sequence[float], int], list[float]]] = {
    "signal": lambda rates, attempts: [probability_mixed(rate, attempts) for rate in rates],
    "learnability": lambda rates, attempts: [learnability(rate) for rate in rates],
    "failures": lambda rates, attempts: prioritised(rates),
}
"""Success rates of families and the size of a group -> what each family is worth."""


class Curriculum:
    """Deals the tasks of each step; told of the steps before through `observe`."""

    def __init__(self, kind: Kind, tasks: TaskSet, attempts: int, done: Iterable[Mapping[str, Any]] = ()) -> None:
        """`done` are the records of the steps before, in their order."""
        self._tasks, self._attempts = tasks, attempts
        self._families: dict[str, list[Task]] = {}
        self._kind = kind
        for task in tasks if kind != "none" else ():
            self._families.setdefault(family_of(task), []).append(task)
        self._rates: dict[str, float] = {}
        for record in done:
            self.observe(record)

    def observe(self, record: Mapping[str, Any]) -> None:
        """A step has ended: `success_of/<family>` of its record counts, for the families that were played."""
        for family in self._families:
            rate = record.get(f"success_of/{family}")
            if rate is not None:
                before = self._rates.get(family, rate)
                self._rates[family] = MEMORY * before + (1 - MEMORY) * rate

    def batch(self, step: int, size: int, seed: int) -> list[Task]:
        """The `size` tasks of a step: a function of the arguments and of what was observed."""
        if not self._families:
            return self._tasks.batch(step, size, seed)
        rates = [self._rate(family) for family in self._families]
        counts = dealt(size, WEIGHTS[self._kind](rates, self._attempts))
        drawn = [draw(own, step, size, f"{family} {seed}") for family, own in self._families.items()]
        chosen = [task for own, count in zip(drawn, counts, strict=True) for task in own[:count]]
        return draw(chosen, 0, size, f"order {step} of {seed}")  # who takes only some must not take one family's

    def _rate(self, family: str) -> float:
        """The success rate of a family; a half of one that is not known yet.

        No rate counts as nearer to 0 or 1 than one attempt of a group: a few groups can't tell it, and a family that
        never came again could be forgotten unseen.
        """
        least = 1 / self._attempts
        return min(max(self._rates.get(family, 0.5), least), 1 - least)


def dealt(size: int, weights: Sequence[float]) -> list[int]:
    """`size` in whole shares that are as near to the weights' proportions as can be; the largest remainders round up.

    No weight may be negative, and one must be positive.
    """
    total = sum(weights)
    exact = [size * weight / total for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: shares[place] - exact[place])
    for place in by_remainder[: size - sum(shares)]:
        shares[place] += 1
    return shares
