"""Metrics by name over evaluated tasks: how right, how far off, how long, how well formed, what it cost.

Every task is in the denominator: one without an episode, with fewer attempts than the others, or that the
infrastructure failed, counts as wrong. What can't be computed is None with the reason, never 0. Rates are fractions.
`metrics` has the summaries and comparisons of whole evaluations; nothing here knows systems or seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from statistics import fmean, median
from typing import Any

from gruppo.config import suggest
from gruppo.errors import ConfigError
from gruppo.evaluation.metrics import Success, solved
from gruppo.evaluation.statistics import pass_at_k, wilson, wilson_of_tasks
from gruppo.rewards.agent import num_rounds
from gruppo.rewards.answers import alternatives, answer_of
from gruppo.rewards.extraction import extract, marked
from gruppo.rewards.maths.arithmetic import Inexact, TooLarge, exact
from gruppo.rewards.terms import num_steps, num_violations
from gruppo.tool_calls import parse_tool_calls
from gruppo.types import Episode, Group, StopReason, Task

DIFFICULTIES = ("1-2", "3-4", "5+")
_LONGEST_ANSWER = 200  # characters of a bare answer; a longer one is a text that should mark its answer
_ANNOTATION = re.compile(r"<<[^<>\n]+>>")
_SENTENCE = re.compile(r"\n|(?<=[.!?])\s")


@dataclass(frozen=True)
class Measure:
    """One figure. `n` is what it is taken over, `value` None where there is nothing to take it from, by `reason`."""

    value: float | None
    n: int
    ci95: tuple[float, float] | None = None
    reason: str = ""


@dataclass(frozen=True)
class Items:
    """What is measured: one group per task, `attempts` owed by each, the k of accuracy@k, and who counts as solved."""

    groups: Sequence[Group]
    attempts: int
    k: int
    success: Success

    @property
    def episodes(self) -> list[Episode]:
        """All there are."""
        return [episode for group in self.groups for episode in group.episodes]

    @property
    def sound(self) -> list[Episode]:
        """Those that the infrastructure did not fail."""
        return [episode for episode in self.episodes if not episode.outcome.is_infrastructure]

    def num_solved(self, group: Group) -> int:
        """How many of a task's attempts solved it; anything but a clear yes is a no."""
        return sum(not e.outcome.is_infrastructure and self.success(e) is True for e in group.episodes)


def all_items(tasks: Iterable[Task], groups: Iterable[Group]) -> list[Group]:
    """One group per task, in the order of the tasks; a task that was not played gets an empty one.

    Raises ValueError for a task that comes twice, or a group of a task that is not among them.
    """
    found: dict[str, Group] = {}
    for group in groups:
        if group.task.id in found:
            raise ValueError(f"task id {group.task.id!r} comes more than once; put attempts in one group")
        found[group.task.id] = group
    items = [found.pop(task.id, Group(task.id, task, [])) for task in tasks]
    if found:
        raise ValueError(f"{len(found)} groups are of other tasks, as {min(found)!r}")
    return items


def measure(
    groups: Sequence[Group],
    names: Sequence[str] = (),
    k: int = 1,
    attempts: int | None = None,
    success: Success = solved,
) -> dict[str, Measure]:
    """Name -> measure, of `names` or of all in MEASURES. `attempts`: those owed by each task; None: the most there are.

    Raises ConfigError for an unknown name or k < 1, ValueError for a task with more attempts than owed.
    """
    for name in names:
        if name not in MEASURES:
            raise ConfigError(f"metrics: no metric {name!r}{suggest(name, MEASURES)}")
    if k < 1:
        raise ConfigError(f"k = {k}: accuracy@k needs k >= 1")
    most = max((len(group.episodes) for group in groups), default=0)
    if attempts is not None and most > attempts:
        raise ValueError(f"a task has {most} attempts where {attempts} are owed")
    items = Items(groups, attempts or max(1, most), k, success)
    return {name: MEASURES[name](items) for name in names or MEASURES}


def measure_parts(
    groups: Sequence[Group], names: Sequence[str], part: Callable[[Task], str | None], k: int = 1
) -> dict[str, dict[str, Measure]]:
    """Part of the tasks -> its measures, as by `difficulty` or by family; tasks that are of no part are left out."""
    attempts = max((len(group.episodes) for group in groups), default=0) or None
    parts: dict[str, list[Group]] = {}
    for group in groups:
        if (label := part(group.task)) is not None:
            parts.setdefault(label, []).append(group)
    return {label: measure(parts[label], names, k, attempts) for label in sorted(parts)}


def plain(measures: Mapping[str, Measure]) -> dict[str, Any]:
    """The measures as JSON-able data, what they lack left out."""
    return {
        name: {key: value for key, value in _listed(one).items() if key in ("value", "n") or value}
        for name, one in measures.items()
    }


def _listed(one: Measure) -> dict[str, Any]:
    return asdict(one) | {"ci95": list(one.ci95 or ())}


def difficulty(task: Task) -> str | None:
    """How hard a task is, by the steps of its reference: "1-2", "3-4" or "5+"; None where it has none."""
    steps = reference_steps(task)
    if not steps:
        return None
    return DIFFICULTIES[0] if steps <= 2 else DIFFICULTIES[1] if steps <= 4 else DIFFICULTIES[2]


def reference_steps(task: Task) -> int | None:
    """Steps of the reference solution: `extra_info["steps"]`, else those of its plan, else those of `chain`."""
    steps, plan = task.extra_info.get("steps"), task.extra_info.get("plan")
    if isinstance(steps, int) and not isinstance(steps, bool):
        return steps
    if isinstance(steps or plan, list):
        return len(steps or plan)  # type: ignore[arg-type]
    return written_steps(task.chain) if task.chain.strip() else None


def written_steps(text: str) -> int:
    """Steps that a solution shows: marked ones ("Step 1: ..."), else annotated calculations (<<2*3=6>>), else its
    sentences that compute; the final answer's line is none."""
    if found := num_steps(text) or len(_ANNOTATION.findall(text)):
        return found
    sentences = [line for line in _SENTENCE.split(text) if line.strip() and "####" not in line]
    return sum("=" in line for line in sentences) or len(sentences)


def number_in(text: str, is_prediction: bool) -> Fraction | None:
    """The number that an answer is, marked in a text or alone; None if it is none."""
    found = extract(text) if is_prediction else marked(text)
    for candidate in found.candidates if found else (text,):
        for tree in answer_of(candidate, is_prediction).trees:
            try:
                return exact(tree).value
            except (Inexact, TooLarge, ZeroDivisionError):
                continue
    return None


def _accuracy(items: Items) -> Measure:
    if not items.groups:
        return _nothing("no tasks")
    rates = [items.num_solved(group) / items.attempts for group in items.groups]
    return Measure(fmean(rates), len(rates), wilson_of_tasks(rates, items.attempts))


def _accuracy_at_k(items: Items) -> Measure:
    if not items.groups:
        return _nothing("no tasks")
    if items.k > items.attempts:
        said = f"accuracy@{items.k} needs {items.k} attempts at each task, not {items.attempts}"
        return Measure(None, len(items.groups), reason=said)
    rates = [pass_at_k(items.attempts, items.num_solved(group), items.k) for group in items.groups]
    return Measure(fmean(rates), len(rates), wilson(min(sum(rates), len(rates)), len(rates)))


def _distances(items: Items) -> list[float]:
    """How far each numeric answer is from the nearest gold number."""
    found = []
    for group in items.groups:
        gold = group.task.result
        golds = [number for part in alternatives(gold) or [gold] if (number := number_in(part, False)) is not None]
        for episode in group.episodes if golds else ():
            if not episode.outcome.is_infrastructure and (answer := number_in(episode.answer or "", True)) is not None:
                try:
                    found.append(float(min(abs(answer - number) for number in golds)))
                except OverflowError:  # no number that a mean could hold
                    continue
    return found


def _numerical_error(summary: Callable[[Sequence[float]], float]) -> Callable[[Items], Measure]:
    def take(items: Items) -> Measure:
        found, owed = _distances(items), len(items.groups) * items.attempts
        if not found:
            return _nothing("no answer is a number beside a number")
        said = "" if len(found) == owed else f"{owed - len(found)} of {owed} answers are missing or no number"
        return Measure(summary(found), len(found), reason=said)

    return take


def _mean(value: Callable[[Episode], float], needs_tokens: bool = False) -> Callable[[Items], Measure]:
    """The mean over the episodes that the infrastructure did not fail."""

    def take(items: Items) -> Measure:
        if not items.sound:
            return _nothing("no episode")
        if needs_tokens and not any(map(_sampled, items.sound)):
            return _nothing("the engine shows no tokens")
        return Measure(fmean(map(value, items.sound)), len(items.sound))

    return take


def _format_correctness(items: Items) -> Measure:
    if not items.groups:
        return _nothing("no tasks")
    rates = [sum(map(is_well_formed, group.episodes)) / items.attempts for group in items.groups]
    return Measure(fmean(rates), len(rates), wilson_of_tasks(rates, items.attempts))


def _tool_call_validity(items: Items) -> Measure:
    good = sum(event.result.ok for episode in items.sound for event in episode.events)
    calls = sum(len(episode.events) for episode in items.sound)
    broken = [turn for episode in items.sound for turn in episode.turns if turn.error]
    calls += sum(len(parse_tool_calls(turn.text)[1]) for turn in broken)
    return Measure(good / calls, calls, wilson(good, calls)) if calls else _nothing("no tool was called")


def _per_task(value: Callable[[Episode], float], what: str) -> Callable[[Items], Measure]:
    """What a task cost, all its attempts together, those that failed too."""

    def take(items: Items) -> Measure:
        total = sum(map(value, items.episodes))
        if not items.groups or not total:
            return _nothing(f"no {what} were recorded")
        return Measure(total / len(items.groups), len(items.groups))

    return take


def is_well_formed(episode: Episode) -> bool:
    """There is an answer, every turn could be read, the last was not cut off, and a long one marks its answer."""
    if not (episode.answer or "").strip() or episode.outcome.is_infrastructure or num_violations(episode):
        return False
    if not episode.turns:
        return True
    last, answer = episode.turns[-1], (episode.answer or "").strip()
    if last.stop_reason == StopReason.length:
        return False
    found = extract(last.text)
    is_bare = "\n" not in answer and len(answer) <= _LONGEST_ANSWER
    return is_bare or found is not None and found.marker != "last value"


def steps_taken(episode: Episode) -> int:
    """Rounds of an episode of several turns, else the steps that its one text shows."""
    return num_rounds(episode) if len(episode.turns) > 1 else written_steps("".join(t.text for t in episode.turns))


def _sampled(episode: Episode) -> int:
    return sum(episode.num_tokens.values())


def _paid(episode: Episode) -> int:
    return sum(len(turn.prompt_ids) + len(turn.action_ids) for turn in episode.turns)


def _nothing(reason: str) -> Measure:
    return Measure(None, 0, reason=reason)


MEASURES: Mapping[str, Callable[[Items], Measure]] = {
    "accuracy": _accuracy,
    "accuracy_at_k": _accuracy_at_k,
    "mean_numerical_error": _numerical_error(fmean),
    "median_numerical_error": _numerical_error(median),
    "average_length": _mean(_sampled, needs_tokens=True),
    "average_steps": _mean(steps_taken),
    "average_turns": _mean(lambda episode: len(episode.turns)),
    "format_correctness": _format_correctness,
    "tool_call_validity": _tool_call_validity,
    "seconds_per_task": _per_task(lambda episode: episode.seconds, "seconds"),
    "tokens_per_task": _per_task(_paid, "tokens"),
}
"""Name -> metric. Length is sampled tokens per episode; tokens per task are all that were read and sampled for it."""
