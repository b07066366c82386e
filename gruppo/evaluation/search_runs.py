"""Whole searches, from the question to the answer: what each played run came to, measured; two sides compared.

Runs as plain data in, plain JSON-able data out; plays nothing and reads no file. What is IMPORTANT is told as in
`search_rounds.py`, which measures single rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pydantic

from gruppo.data.rounds import plain
from gruppo.evaluation.search_rounds import Worth, columns, gain_lines, means_of, of_seeds, paired_gain, source_of
from gruppo.types import Outcome

MEASURES = ("right", "documents", "important", "rounds", "tokens")


@dataclass(frozen=True)
class Played:
    """One run of a whole search. `run` is the n of its run_n on disk, `attempt` counts from 1 for each task.

    `right` is the reward "exact" (None: the task has no gold answer, or the infrastructure failed the run). `searches`
    are the new documents of each SEARCH round, `said` those that the checker called IMPORTANT in some round, `true`
    those that the task's own labels call so (None: it has none). `tokens` and `turns` are by role.
    """

    task: str
    question: str
    attempt: int
    run: int
    outcome: Outcome
    answer: str | None = None
    right: pydantic.FiniteFloat | None = None
    rounds: int = 0
    searches: tuple[tuple[str, ...], ...] = ()
    said: tuple[str, ...] = ()
    true: tuple[str, ...] | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    turns: Mapping[str, int] = field(default_factory=dict)
    seconds: pydantic.FiniteFloat = 0.0
    error: str = ""

    @property
    def is_sound(self) -> bool:
        """False where the infrastructure failed it: counted, and in no figure."""
        return not self.outcome.is_infrastructure

    @property
    def key(self) -> tuple[str, int]:
        """Tells it from the other runs of a side."""
        return self.task, self.attempt


def worths_of(runs: Iterable[Played]) -> dict[str, Worth]:
    """The IMPORTANT documents of each question: by its task's labels, else all that were called so in the runs."""
    known: dict[str, set[str]] = {}
    pools: dict[str, set[str]] = {}
    for run in runs:
        pools.setdefault(plain(run.question), set()).update(run.said)
        if run.true is not None:
            known.setdefault(plain(run.question), set()).update(run.true)
    return {
        question: Worth(frozenset(known.get(question, pool)), question in known) for question, pool in pools.items()
    }


def recall_after(run: Played, important: frozenset[str], number: int) -> float:
    """The share of the IMPORTANT documents that the first `number` SEARCH rounds found; a run that ended earlier keeps
    what it had."""
    found = {document for documents in run.searches[:number] for document in documents}
    return len(found & important) / len(important)


def measure(runs: Sequence[Played], worths: Mapping[str, Worth] | None = None) -> dict[str, Any]:
    """One side, its questions weighing alike: `right`, `documents` found and IMPORTANT ones among them, `rounds`,
    `tokens` (and by role), `recall` after each SEARCH round, `outcomes`. `worths` are those of all runs that it is set
    beside; None: its own. Runs that the `infrastructure` failed are counted, and are in no figure; a question without
    IMPORTANT documents has no recall, and is counted as `without_important`.
    """
    worths = worths_of(runs) if worths is None else worths
    sound = [run for run in runs if run.is_sound]
    questions = {plain(run.question) for run in runs}
    found: dict[str, Any] = {
        "labels": source_of(worths[question] for question in questions),
        "questions": len(questions),
        "runs": len(sound),
        "infrastructure": len(runs) - len(sound),
        "without_important": sum(not worths[question].important for question in questions),
        "outcomes": dict(Counter(str(run.outcome) for run in runs).most_common()),
    }
    for name in MEASURES:
        if own := _by_question(sound, worths, name):
            found[name] = fmean(own.values())
    recalls = {number: _by_question(sound, worths, "recall", number) for number in _numbers(sound)}
    found["recall"] = {str(number): fmean(own.values()) for number, own in recalls.items() if own}
    roles = sorted({role for run in sound for role in run.tokens})
    found["tokens_by_role"] = {role: fmean(run.tokens.get(role, 0) for run in sound) for role in roles}
    found["seconds"] = sum(run.seconds for run in runs)
    return found


def _numbers(runs: Iterable[Played]) -> range:
    return range(1, 1 + max((len(run.searches) for run in runs), default=0))


def _by_question(runs: Iterable[Played], worths: Mapping[str, Worth], name: str, number: int = 0) -> dict[str, float]:
    """Question -> the mean of a measure over its runs that have it."""
    values: dict[str, list[float]] = {}
    for run in runs:
        value = _value(run, worths[plain(run.question)].important, name, number)
        if value is not None:
            values.setdefault(plain(run.question), []).append(value)
    return {question: fmean(own) for question, own in values.items()}


def _value(run: Played, important: frozenset[str], name: str, number: int) -> float | None:
    documents = {document for own in run.searches for document in own}
    match name:
        case "right":
            return run.right
        case "documents":
            return len(documents)
        case "important":
            return len(documents & important)
        case "rounds":
            return run.rounds
        case "tokens":
            return sum(run.tokens.values())
        case _:
            return recall_after(run, important, number) if important else None


def compare(before: Sequence[Sequence[Played]], after: Sequence[Sequence[Played]], seed: int = 0) -> dict[str, Any]:
    """Two sides on the same questions, each with one entry per training seed; a single one stands beside each of the
    other side's. Every measure and `recall` after each SEARCH round as a `paired_gain` over questions; `sides` has
    what each side does alone. Raises ValueError for sides without a question in common.
    """
    pairs = list(of_seeds(before, after))
    runs = [run for side in (before, after) for entry in side for run in entry]
    worths = worths_of(runs)
    sides = {
        name: {plain(run.question) for entry in side for run in entry}
        for name, side in (("before", before), ("after", after))
    }
    if not sides["before"] & sides["after"]:
        raise ValueError("the two sides have no question in common")
    found: dict[str, Any] = {
        "labels": source_of(worths.values()),
        "seeds": len(pairs),
        "unpaired": len(sides["before"] ^ sides["after"]),
        "infrastructure": sum(not run.is_sound for run in runs),
    }

    def gain(name: str, number: int = 0) -> dict[str, Any]:
        rows = []
        for pair in pairs:
            old, new = (_by_question(filter(_is_sound, side), worths, name, number) for side in pair)
            rows.append(means_of({question: [(old[question], new[question])] for question in old if question in new}))
        return paired_gain(rows, seed)

    found |= {name: gain(name) for name in MEASURES}
    found["recall"] = {str(number): gain("recall", number) for number in _numbers(runs)}
    found["sides"] = {
        name: [measure(entry, worths) for entry in side] for name, side in (("before", before), ("after", after))
    }
    return found


def _is_sound(run: Played) -> bool:
    return run.is_sound


def measure_text(found: Mapping[str, Any]) -> str:
    """One side for a terminal."""
    names = [name for name in MEASURES if name in found]
    rows = [[name, f"{found[name]:.3f}"] for name in names]
    rows += [[f"recall after SEARCH {number}", f"{recall:.3f}"] for number, recall in found["recall"].items()]
    rows += [[f"tokens of {role}", f"{tokens:.1f}"] for role, tokens in found["tokens_by_role"].items()]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in found["outcomes"].items())
    said = f"{found['questions']} questions, runs: {outcomes}; IMPORTANT by {found['labels'] or 'nobody'}"
    return "\n".join([said, *columns(rows)] if rows else [said])


def compare_text(found: Mapping[str, Any]) -> str:
    """A comparison for a terminal."""
    gains = {name: found[name] for name in MEASURES}
    gains |= {f"recall after SEARCH {number}": gain for number, gain in found["recall"].items()}
    said = f"{found['seeds']} seed{'s' if found['seeds'] > 1 else ''}; IMPORTANT by {found['labels'] or 'nobody'}"
    counts = {
        "questions on one side only": found["unpaired"],
        "runs that the infrastructure failed": found["infrastructure"],
    }
    said += "".join(f"; {count} {what}" for what, count in counts.items() if count)
    return "\n".join([said, *gain_lines(gains)])
