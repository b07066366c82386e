"""How well an executor searches: attempts at kept states, measured; two teams on the same states, compared.

Groups of `search_from_state` episodes in, plain JSON-able data out; plays nothing and reads no file. An attempt is
judged by the round of its own clues, also where the search is replayed to its end. Whole searches are the part of
`search_runs.py`, whether the checker was right that of `search_audit.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gruppo.data.rounds import RoundState, plain, round_state_of
from gruppo.evaluation.statistics import crossed_gain, paired_bootstrap
from gruppo.search_state import Continuation, Label, Round, continuation_of
from gruppo.types import Episode, Group

Pairs = Mapping[str, tuple[float, float]]
"""Question -> its value before and after."""
MEASURES = ("reward", "important_rate", "recall")
"""What every comparison holds, besides the recall by round."""


@dataclass(frozen=True)
class Worth:
    """The IMPORTANT documents of a question, and whether its task knows them or they are pooled."""

    important: frozenset[str]
    is_true: bool


@dataclass(frozen=True)
class Attempt:
    """A set of clues, what came of it, and its reward, None where there is none."""

    reward: float | None
    played: Continuation

    @property
    def new(self) -> frozenset[str]:
        """The documents that its clues found and no round before had."""
        return frozenset(verdict.document for verdict in self.played.rounds[0].verdicts)


@dataclass(frozen=True)
class Tried:
    """A state with its attempts; those that the infrastructure failed are only counted."""

    id: str
    state: RoundState
    attempts: tuple[Attempt, ...]
    infrastructure: int

    @property
    def question(self) -> str:
        """The question as it is compared with others."""
        return plain(self.state.question)


def tried(groups: Sequence[Group]) -> list[Tried]:
    """The groups read. Raises DataError for a task that is no state of a search, ValueError for one that comes twice,
    and for an answer that is no continuation."""
    found = []
    for group in groups:
        sound = [episode for episode in group.episodes if not episode.outcome.is_infrastructure]
        attempts = tuple(Attempt(episode.reward, continuation(episode)) for episode in sound)
        state = round_state_of(group.task)
        found.append(Tried(group.task.id, state, attempts, len(group.episodes) - len(sound)))
    if len({each.id for each in found}) != len(found):
        raise ValueError("a state comes more than once; put its attempts in one group")
    return found


def continuation(episode: Episode) -> Continuation:
    """What an attempt played; one that was cut off before its clues found nothing. Raises ValueError for an answer that
    is no continuation."""
    return Continuation((Round(0),)) if episode.answer is None else continuation_of(episode.answer)


def worths_of(groups: Iterable[Tried]) -> dict[str, Worth]:
    """The IMPORTANT documents of each question: those that its tasks know, else the pool, as in TREC's pooling: all
    that the checker called IMPORTANT in the states, the rounds on disk and the attempts that are given."""
    known: dict[str, set[str]] = {}
    pools: dict[str, set[str]] = {}
    for each in groups:
        if each.state.labels:
            known.setdefault(each.question, set()).update(_important(each.state.labels))
        pool = pools.setdefault(each.question, set())
        pool |= _important(each.state.verdicts)
        pool |= {document.id for document in each.state.state.documents if document.label == Label.IMPORTANT}
        for attempt in each.attempts:
            pool |= said_important(attempt.played.rounds)
    return {
        question: Worth(frozenset(known.get(question, pool)), question in known) for question, pool in pools.items()
    }


def said_important(rounds: Iterable[Round]) -> set[str]:
    """The documents that a checker called IMPORTANT in some of the rounds."""
    verdicts = (verdict for each in rounds for verdict in (*each.verdicts, *each.raised))
    return {verdict.document for verdict in verdicts if verdict.label == Label.IMPORTANT}


def _important(labels: Mapping[str, str]) -> set[str]:
    return {document for document, label in labels.items() if label == Label.IMPORTANT}


def source_of(worths: Iterable[Worth]) -> str:
    """Who says what is IMPORTANT: "truth", "pool", or both, of different questions."""
    return " and ".join(sorted({"truth" if worth.is_true else "pool" for worth in worths}, reverse=True))


def measure(groups: Sequence[Group], worths: Mapping[str, Worth] | None = None) -> dict[str, Any]:
    """One evaluation. `worths` are those of all evaluations that it is set beside; None: its own.

    `reward`, `important_rate` (the share of attempts with at least one new IMPORTANT document) and `recall` are means
    over states of the mean over attempts. Recall is the share of the question's IMPORTANT documents not yet found in
    the state that an attempt found; states with none left have no recall and are counted as `complete`. `precision` is
    the share of IMPORTANT ones among all new documents. `labels` says who calls a document IMPORTANT. What can't be
    computed is left out; attempts that the `infrastructure` failed are counted and are in no figure.
    """
    states = tried(groups)
    worths = worths_of(states) if worths is None else worths
    found = {"labels": source_of(worths[state.question] for state in states), **_figures(states, worths)}
    by_question: dict[str, list[Tried]] = {}
    for state in states:
        by_question.setdefault(state.question, []).append(state)
    found["questions"] = len(by_question)
    found["by_question"] = {own[0].state.question: _figures(own, worths) for own in by_question.values()}
    return found


def _figures(states: Sequence[Tried], worths: Mapping[str, Worth]) -> dict[str, Any]:
    values = [values_of(state, worths[state.question]) for state in states]
    attempts = [(worths[state.question], attempt) for state in states for attempt in state.attempts]
    found: dict[str, Any] = {
        "states": len(states),
        "attempts": len(attempts),
        "infrastructure": sum(state.infrastructure for state in states),
        "unscored": sum(attempt.reward is None for _, attempt in attempts),
        "complete": sum(not _left(state, worths[state.question]) for state in states),
    }
    for name in MEASURES:
        if own := [each[name] for each in values if name in each]:
            found[name] = fmean(own)
    if num_new := sum(len(attempt.new) for _, attempt in attempts):
        found["precision"] = sum(len(attempt.new & worth.important) for worth, attempt in attempts) / num_new
    by_round: dict[int, list[float]] = {}
    for state, own_values in zip(states, values, strict=True):
        if "recall" in own_values:
            by_round.setdefault(state.state.number, []).append(own_values["recall"])
    found["recall_by_round"] = {
        str(number): {"n": len(recalls), "recall": fmean(recalls)} for number, recalls in sorted(by_round.items())
    }
    return found


def values_of(state: Tried, worth: Worth) -> dict[str, float]:
    """The measures of a state, each a mean over its attempts; those that can't be computed are left out."""
    values: dict[str, float] = {}
    if rewards := [attempt.reward for attempt in state.attempts if attempt.reward is not None]:
        values["reward"] = fmean(rewards)
    if state.attempts:
        values["important_rate"] = fmean(bool(attempt.new & worth.important) for attempt in state.attempts)
        if left := _left(state, worth):
            values["recall"] = fmean(len(attempt.new & left) / len(left) for attempt in state.attempts)
    return values


def _left(state: Tried, worth: Worth) -> frozenset[str]:
    return worth.important - set(state.state.state.found)


def compare(before: Sequence[Sequence[Group]], after: Sequence[Sequence[Group]], seed: int = 0) -> dict[str, Any]:
    """Two sides on the same states, each with one evaluation per training seed; a single one stands beside each of the
    other side's.

    Values are paired state by state and averaged within a question, whose states are not independent: the intervals
    are over questions, as `paired_gain` says. `unpaired` counts states without a sound attempt on either side.
    Raises ValueError for sides that can't be paired.
    """
    sides = tuple([tried(groups) for groups in side] for side in (before, after))
    pairs = list(of_seeds(*sides))
    worths = worths_of(state for side in sides for evaluation in side for state in evaluation)
    first = {state.id for state in sides[0][0]}
    for evaluation in (evaluation for side in sides for evaluation in side):
        if odd := sorted({state.id for state in evaluation} ^ first):
            raise ValueError(f"can't pair evaluations of different states: {len(odd)} are in only one, as {odd[0]!r}")
    found: dict[str, Any] = {
        "labels": source_of(worths.values()),
        "seeds": len(pairs),
        "states": len(first),
        "unpaired": sum(
            not (earlier.attempts and later.attempts) for pair in pairs for earlier, later in _by_state(*pair)
        ),
    }

    def gain(name: str, number: int | None = None) -> dict[str, Any]:
        return paired_gain([_pairs(*pair, worths, name, number) for pair in pairs], seed)

    found |= {name: gain(name) for name in MEASURES}
    by_round = {str(number): gain("recall", number) for number in sorted({each.state.number for each in sides[0][0]})}
    found["recall_by_round"] = {number: own for number, own in by_round.items() if own["n"]}
    return found


def _by_state(before: Sequence[Tried], after: Sequence[Tried]) -> Iterator[tuple[Tried, Tried]]:
    later = {state.id: state for state in after}
    return ((state, later[state.id]) for state in before)


def _pairs(
    before: Sequence[Tried], after: Sequence[Tried], worths: Mapping[str, Worth], name: str, number: int | None
) -> Pairs:
    """Question -> the means of a measure over its states (of one round, or all) that have it on both sides."""
    found: dict[str, list[tuple[float, float]]] = {}
    for earlier, later in _by_state(before, after):
        if number not in (None, earlier.state.number):
            continue
        old, new = (values_of(side, worths[earlier.question]).get(name) for side in (earlier, later))
        if old is not None and new is not None:
            found.setdefault(earlier.question, []).append((old, new))
    return means_of(found)


def means_of(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> Pairs:
    """The mean of each question's pairs."""
    return {question: (fmean(a for a, _ in own), fmean(b for _, b in own)) for question, own in pairs.items()}


def of_seeds(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The two sides seed by seed, a single one beside each of the other's. Raises ValueError for other numbers."""
    if not before or not after or (len(before) != len(after) and 1 not in (len(before), len(after))):
        raise ValueError(
            f"{len(before)} before, {len(after)} after: give one of each per training seed, or a single one on a side"
        )
    seeds = max(len(before), len(after))
    for seed in range(seeds):
        yield before[seed % len(before)], after[seed % len(after)]


def paired_gain(rows: Sequence[Pairs], seed: int = 0) -> dict[str, Any]:
    """The gain over the questions that every row (one per training seed) has: `before`, `after`, `gain`, `gain_ci95`.

    The interval is a bootstrap over questions; with several seeds that of `crossed_gain`, seeds and questions both
    being samples. A single question has a gain and no interval. `n` counts questions; 0: there is nothing else.
    """
    questions = sorted(question for question in rows[0] if all(question in row for row in rows))
    found: dict[str, Any] = {"n": len(questions), "seeds": len(rows)}
    if not questions:
        return found
    differences = [[row[question][1] - row[question][0] for question in questions] for row in rows]
    found["before"], found["after"] = (
        fmean(row[question][side] for row in rows for question in questions) for side in (0, 1)
    )
    found["gain"] = fmean(map(fmean, differences))
    if len(rows) > 1:
        found["by_seed"] = [fmean(row) for row in differences]
    if len(questions) > 1:
        gain = crossed_gain(differences)[:3] if len(rows) > 1 else paired_bootstrap(differences[0], seed)
        found["gain_ci95"] = list(gain[1:])
    return found


def gain_lines(gains: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Gains by name as the lines of a table; names without anything to compare are left out."""
    rows = [["", "before", "after", "gain", "95 % interval", "questions"]]
    for name, gain in gains.items():
        if gain["n"]:
            bounds = " to ".join(f"{bound:+.3f}" for bound in gain["gain_ci95"]) if "gain_ci95" in gain else "none"
            figures = f"{gain['before']:.3f}", f"{gain['after']:.3f}", f"{gain['gain']:+.3f}"
            rows.append([name, *figures, bounds, str(gain["n"])])
    return columns(rows)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def named_gains(comparison: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The gains of a comparison under the names that people read."""
    by_round = comparison["recall_by_round"].items()
    return {
        **{name.replace("_", " "): comparison[name] for name in MEASURES},
        **{f"recall, round {number}": gain for number, gain in by_round},
    }
