"""How far a judge can be trusted: against answers whose worth is known, and against itself with the order swapped.

It changes no verdict and no reward. Replies go through the judge's own cache, budget and rate.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gruppo.rewards.judge import Judge, NoVerdict
from gruppo.types import Task


@dataclass(frozen=True)
class Labelled:
    """An answer to a task, and whether it is known to be right."""

    task: Task
    answer: str
    correct: bool


@dataclass(frozen=True)
class Calibration:
    """A judge against known answers; rates are None where there is nothing to compute them from.

    `confusion` counts (known, judged), True for right; answers without a verdict are in `num_missing` alone. `kappa` is
    Cohen's: the agreement beyond what two who judge at random with these shares would have; 0 is chance, 1 perfect.
    """

    confusion: dict[tuple[bool, bool], int]
    num_missing: int
    agreement: float | None
    kappa: float | None


@dataclass(frozen=True)
class SwapAgreement:
    """A judge against itself on pairs shown in both orders.

    `agreement` is the share of pairs where it prefers the same answer (or none) both times; `first` is the share of its
    decided choices that fell on the answer shown first: 0.5 without a bias of position.
    """

    num_pairs: int
    num_missing: int
    agreement: float | None
    first: float | None


async def calibrate(judge: Judge, labelled: Sequence[Labelled]) -> Calibration:
    """Ask the judge about answers whose worth is known, without any fallback; a grade of half or more is "right"."""

    async def ask(case: Labelled) -> bool | None:
        try:
            return await judge.value(case.task, case.answer) >= 0.5
        except NoVerdict:
            return None

    judged = await asyncio.gather(*map(ask, labelled))
    pairs = [(case.correct, said) for case, said in zip(labelled, judged, strict=True) if said is not None]
    confusion = {(known, said): 0 for known in (True, False) for said in (True, False)} | Counter(pairs)
    return Calibration(confusion, len(labelled) - len(pairs), *agreement_of(confusion))


def agreement_of(confusion: dict[tuple[bool, bool], int]) -> tuple[float | None, float | None]:
    """Agreement and Cohen's kappa (Educational and Psychological Measurement 20, 1960) of a 2 x 2 confusion.

    Kappa is None where both always say the same one thing: chance alone would agree as well.
    """
    total = sum(confusion.values())
    if not total:
        return None, None
    agreement = (confusion[True, True] + confusion[False, False]) / total
    known = (confusion[True, True] + confusion[True, False]) / total
    judged = (confusion[True, True] + confusion[False, True]) / total
    chance = known * judged + (1 - known) * (1 - judged)
    return agreement, None if chance == 1 else (agreement - chance) / (1 - chance)


async def swap_agreement(judge: Judge, pairs: Sequence[tuple[Task, str, str]]) -> SwapAgreement:
    """Ask the judge to compare two answers, in both orders."""

    async def ask(task: Task, first: str, second: str) -> tuple[str, str] | None:
        try:
            return await judge.prefer(task, first, second), await judge.prefer(task, second, first)
        except NoVerdict:
            return None

    asked = await asyncio.gather(*(ask(*pair) for pair in pairs))
    both = [choices for choices in asked if choices is not None]
    same = {("A", "B"), ("B", "A"), ("tie", "tie")}
    decided = [choice for choices in both for choice in choices if choice != "tie"]
    return SwapAgreement(
        num_pairs=len(pairs),
        num_missing=len(pairs) - len(both),
        agreement=sum(choices in same for choices in both) / len(both) if both else None,
        first=decided.count("A") / len(decided) if decided else None,
    )
