"""What is wrong with a data set before anyone trains on it: a report, and whether the user's limits are kept.

Rows are read and looked at, never repaired or left out. Whether an answer is right is not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pydantic import Field

from gruppo.config import Config
from gruppo.data.answer_text import ROUTES, answer_type, normalised
from gruppo.data.non_questions import not_a_question
from gruppo.data.overlap import key_of, near_repetitions, repetitions, shared_passages
from gruppo.data.selection import Reading
from gruppo.data.tables import EmptyCell, MissingColumn
from gruppo.errors import DataError
from gruppo.types import Task

SHOWN = 3  # examples of each kind in the text
BUCKETS = 8

KINDS = {
    "missing": "rows without a column that is needed",
    "empty": "rows with nothing in a column that is needed",
    "malformed": "rows that can't be read",
    "left_out": "rows that the reader leaves out",
    "not_a_question": "questions that are none",
    "duplicate": "questions that came up before",
    "conflicting": "questions that came up before with another answer",
    "near_duplicate": "questions nearly as one before",
    "overlap": "rows that share thirteen words in a row, or all, with an evaluation question",
    "too_long": "rows that do not fit the model's context",
    "control": "rows that hold the text of a control token",
    "unscorable": "answers that no rule can compare",
}


class LimitsConfig(Config):
    """How many of each kind are accepted; what is not set is reported only."""

    missing: int | None = Field(None, ge=0)
    """Rows without a column that is needed."""
    empty: int | None = Field(None, ge=0)
    """Rows with nothing in a column that is needed."""
    malformed: int | None = Field(None, ge=0)
    """Rows that can't be read."""
    left_out: int | None = Field(None, ge=0)
    """Rows that the reader leaves out: no public answer, a file needed."""
    not_a_question: int | None = Field(None, ge=0)
    """Refusals, placeholders, addresses."""
    duplicate: int | None = Field(None, ge=0)
    """Questions that came up before."""
    conflicting: int | None = Field(None, ge=0)
    """Questions that came up before with another answer."""
    near_duplicate: int | None = Field(None, ge=0)
    """Questions nearly as one before."""
    overlap: int | None = Field(None, ge=0)
    """Rows that share thirteen words in a row with an evaluation question."""
    too_long: int | None = Field(None, ge=0)
    """Rows that do not fit the model's context."""
    control: int | None = Field(None, ge=0)
    """Rows that hold the text of a control token."""
    unscorable: int | None = Field(None, ge=0)
    """Answers that are words: a rule for numbers gives everyone 0."""
    constant_share: float | None = Field(None, gt=0, le=1)
    """The share of rows that the commonest answer gets right."""


class CheckConfig(Config):
    """What may be set for a check."""

    columns: dict[str, str] = {}
    """Our column -> its name in the file."""
    num_tasks: int = Field(1000, ge=1)
    """Tasks taken of a generator."""
    limits: LimitsConfig = LimitsConfig()


@dataclass(frozen=True)
class Finding:
    """One row (from 1) of a kind, and what about it."""

    row: int
    words: str


@dataclass
class Quality:
    """What was found. `lengths` are (from, to, rows) in `unit`; `context` is the most that fits, None if not known."""

    name: str
    num_rows: int = 0
    findings: dict[str, list[Finding]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    answer_types: dict[str, int] = field(default_factory=dict)
    constant: tuple[str, float] = ("", 0.0)
    num_unique: int = 0
    lengths: list[tuple[int, int, int]] = field(default_factory=list)
    longest: int = 0
    unit: str = "characters"
    context: int | None = None

    def failures(self, limits: LimitsConfig) -> list[str]:
        """A line for each limit that is passed; none: the data set is accepted."""
        lines = [
            f"{kind}: {len(found):,}, at most {limit:,} were accepted"
            for kind, found in self.findings.items()
            if (limit := vars(limits)[kind]) is not None and len(found) > limit
        ]
        most = limits.constant_share
        if most is not None and self.constant[1] > most:
            lines.append(
                f"constant_share: {self.constant[1]:.3f} by always {self.constant[0]!r}, at most {most} was accepted"
            )
        return lines

    def text(self) -> str:
        """The report as lines."""
        lines = [f"{self.name}: {self.num_rows:,} rows, {self.num_unique:,} different questions"]
        for kind, found in self.findings.items():
            if found:
                lines.append(f"  {kind}: {len(found):,} {KINDS[kind]}")
                lines += [f"    row {one.row}: {one.words}" for one in found[:SHOWN]]
        clean = [kind for kind, found in self.findings.items() if not found]
        lines.append(f"  none: {', '.join(clean)}")
        total = max(1, sum(self.answer_types.values()))
        for kind, number in sorted(self.answer_types.items(), key=lambda item: -item[1]):
            lines.append(f"  answers, {kind}: {number:,} ({number / total:.1%}), compared by {ROUTES[kind]}")
        if self.constant[1]:
            lines.append(f"  always answering {self.constant[0]!r} would be right in {self.constant[1]:.1%}")
        widest = max((number for *_, number in self.lengths), default=1)
        for start, stop, number in self.lengths:
            lines.append(f"  {start:>7,} to {stop:>7,} {self.unit} {'#' * bar_length(number, widest)} {number:,}")
        if self.context is not None:
            lines.append(f"  longest {self.longest:,} {self.unit}, of {self.context:,} that fit")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return vars(self) | {
            "findings": {kind: [vars(one) for one in found] for kind, found in self.findings.items()},
            "counts": {kind: len(found) for kind, found in self.findings.items()},
        }


def bar_length(count: int, widest: int, width: int = 30) -> int:
    """The length of a bar, at least 1 where there is anything."""
    return -(-count * width // widest)


@dataclass(frozen=True)
class Measure:
    """How long a text is, and how much fits; `controls` are the strings of control tokens."""

    length: Callable[[str], int] = len
    unit: str = "characters"
    context: int | None = None
    controls: tuple[str, ...] = ()


def check(
    rows: Iterable[Reading], name: str, evaluation: Sequence[Task] = (), measure: Measure | None = None
) -> Quality:
    """Look at all rows; at `evaluation` for what they share with it."""
    found, measure = Quality(name), measure or Measure()
    numbers: list[int] = []
    tasks: list[Task] = []
    for reading in rows:
        found.num_rows += 1
        if reading.task is None:
            found.findings[_kind_of(reading.fault)].append(Finding(reading.number, str(reading.fault)))
        else:
            numbers.append(reading.number)
            tasks.append(reading.task)
    questions = [task.question for task in tasks]
    _look_at_each(found, numbers, tasks, measure)
    found.num_unique = len({key_of(question) for question in questions})
    for first, again in repetitions(questions):
        finding = Finding(numbers[again], f"as row {numbers[first]}: {_shown(questions[again])}")
        found.findings["duplicate"].append(finding)
        if normalised(tasks[first].result) != normalised(tasks[again].result):
            words = f"{tasks[again].result!r}, in row {numbers[first]} {tasks[first].result!r}"
            found.findings["conflicting"].append(Finding(numbers[again], words))
    for before, after in near_repetitions(questions):
        words = f"nearly row {numbers[before]}: {_shown(questions[after])}"
        found.findings["near_duplicate"].append(Finding(numbers[after], words))
    for row, other, passage in shared_passages(questions, [task.question for task in evaluation]):
        words = f"with evaluation task {evaluation[other].id}: {_shown(passage)}"
        found.findings["overlap"].append(Finding(numbers[row], words))
    return found


def _look_at_each(found: Quality, numbers: Sequence[int], tasks: Sequence[Task], measure: Measure) -> None:
    kinds: Counter[str] = Counter()
    results: Counter[str] = Counter()
    lengths: list[int] = []
    for number, task in zip(numbers, tasks, strict=True):
        kind = answer_type(task.result)
        kinds[kind] += 1
        results[normalised(task.result)] += 1
        if not ROUTES[kind].startswith("rule"):
            found.findings["unscorable"].append(Finding(number, f"{kind}: {_shown(task.result)}"))
        if fault := not_a_question(task.question):
            found.findings["not_a_question"].append(Finding(number, f"{fault}: {_shown(task.question)}"))
        lengths.append(measure.length(task.question))
        if measure.context is not None and lengths[-1] > measure.context:
            found.findings["too_long"].append(Finding(number, f"{lengths[-1]:,} {measure.unit}"))
        if control := next((text for text in measure.controls if text in task.question), None):
            found.findings["control"].append(Finding(number, control))
    found.answer_types = dict(kinds)
    if results:
        answer, most = max(results.items(), key=lambda item: item[1])
        found.constant = (answer, most / len(tasks))
    found.lengths, found.longest = histogram(lengths), max(lengths, default=0)
    found.unit, found.context = measure.unit, measure.context


def histogram(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """(from, to, how many), `to` not included, in equal steps of a round size; empty ones at the ends left out."""
    if not lengths:
        return []
    powers = (10**power for power in count())
    step = next(step for power in powers for step in (power, 2 * power, 5 * power) if step * BUCKETS > max(lengths))
    counts = Counter(length // step for length in lengths)
    return [(place * step, (place + 1) * step, counts[place]) for place in range(min(counts), max(counts) + 1)]


def _kind_of(fault: DataError | str | None) -> str:
    if isinstance(fault, MissingColumn):
        return "missing"
    if isinstance(fault, EmptyCell) or fault == "no answer":
        return "empty"
    return "malformed" if isinstance(fault, DataError) else "left_out"


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:79]}…"
