"""How far a judge can be trusted: against answers whose worth is known, and against itself with the order swapped.

It changes no verdict and no reward. Replies go through the judge's own cache, budget and rate.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gruppo.errors import DataError, UserError
from gruppo.rewards.answers import grade
from gruppo.rewards.grade import read_rows, text_of
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

    `confusion` counts (known, judged), True for right; answers without a verdict are in `num_missing` alone, and
    `reason` is why the first of them has none. `kappa` is Cohen's: the agreement beyond what two who judge at random
    with these shares would have; 0 is chance, 1 perfect.
    """

    confusion: dict[tuple[bool, bool], int]
    num_missing: int
    agreement: float | None
    kappa: float | None
    reason: str = ""


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

    async def ask(case: Labelled) -> bool | NoVerdict:
        try:
            return await judge.value(case.task, case.answer) >= 0.5
        except NoVerdict as problem:
            return problem

    judged = await asyncio.gather(*map(ask, labelled))
    pairs = [(case.correct, said) for case, said in zip(labelled, judged, strict=True) if isinstance(said, bool)]
    missing = [str(said) for said in judged if isinstance(said, NoVerdict)]
    confusion = {(known, said): 0 for known in (True, False) for said in (True, False)} | Counter(pairs)
    return Calibration(confusion, len(missing), *agreement_of(confusion), reason="".join(missing[:1]))


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


# ---- gruppo judge calibrate -----------------------------------------------------------------------------------------


def examine(judge: Judge, file: Path) -> dict[str, Any]:
    """Both figures for the answers in a file of JSON lines, as plain values.

    A line is one of `gruppo grade` with a `question`; without `correct`, or where that is null, answer matching says
    what the answer is worth, and a line for which it can't is left out. Neighbouring answers to one question are pairs.

    Raises:
        DataError: a line that does not fit, or no line whose worth is known.
        UserError: the judge gave no verdict at all.
    """
    labelled, num_left_out = read_labelled(file)
    by_task: dict[tuple[str, str], list[Labelled]] = {}
    for case in labelled:
        by_task.setdefault((case.task.question, case.task.result), []).append(case)
    pairs = [
        (one.task, one.answer, other.answer)
        for cases in by_task.values()
        for one, other in pairwise(cases)
        if one.answer != other.answer
    ]

    async def ask() -> tuple[Calibration, SwapAgreement]:
        return await calibrate(judge, labelled), await swap_agreement(judge, pairs)

    found, swapped = asyncio.run(ask())
    if found.num_missing == len(labelled):
        raise UserError(f"the judge gave no verdict on any of {len(labelled)} answers: {found.reason}")
    confusion = {f"{_word(known)} judged {_word(said)}": n for (known, said), n in found.confusion.items()}
    return {
        "answers": {"n": len(labelled), "left_out": num_left_out, "no_verdict": found.num_missing, **confusion},
        "agreement": found.agreement,
        "kappa": found.kappa,
        "pairs": {"n": swapped.num_pairs, "no_verdict": swapped.num_missing},
        "swap_agreement": swapped.agreement,
        "first_preferred": swapped.first,
    }


def table_of(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What `examine` found, for people."""
    counts = [(f"answers, {name}" if name != "n" else "answers", str(n)) for name, n in found["answers"].items()]
    counts += [("pairs" if name == "n" else "pairs, no_verdict", str(n)) for name, n in found["pairs"].items()]
    rates = {
        "agreement": "agreement with what is known",
        "kappa": "Cohen's kappa (0: chance, 1: perfect)",
        "swap_agreement": "the same choice in both orders",
        "first_preferred": "choices of the answer shown first (0.5: no bias)",
    }
    return counts + [(words, "-" if found[name] is None else f"{found[name]:.3f}") for name, words in rates.items()]


def read_labelled(file: Path) -> tuple[list[Labelled], int]:
    """The answers whose worth is known, and how many lines have none of these. Raises DataError."""
    labelled, num_left_out = [], 0
    for number, row in enumerate(read_rows(file), 1):
        question, correct = row.get("question"), row.get("correct")
        if not isinstance(question, str) or not question.strip():
            raise DataError(f"{file}: answer {number}: no question; each line has question, gold and prediction")
        if not isinstance(correct, bool | None):
            raise DataError(f"{file}: answer {number}: correct is {correct!r:.80}; expected true, false or null")
        answer, gold = (row["prediction"] or "").strip(), text_of(row["gold"])
        known = grade(answer, gold, row.get("mode", "completion")).correct if correct is None else correct
        if known is None or not answer:  # a judge is not asked about no answer
            num_left_out += 1
        else:
            labelled.append(Labelled(Task(str(number), question, gold), answer, known))
    if not labelled:
        raise DataError(f"{file}: no answer of known worth; give each line correct = true or false")
    return labelled, num_left_out


def _word(is_right: bool) -> str:
    return "right" if is_right else "wrong"
