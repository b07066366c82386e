"""Where the reward of a search rose and the checker was wrong: what training pays for, looked at with the true labels.

The checker's labels make the reward (`rewards/search.py`); here each is set beside the label that the task knows, and
the reward is computed once more with these. Pure: groups in, plain JSON-able data out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from gruppo.data.rounds import plain
from gruppo.evaluation.search_rounds import Pairs, continuation, means_of, paired_gain
from gruppo.search_state import Continuation, Label, Strategy, Verdict, to_json
from gruppo.teams.search.truth import labels_of
from gruppo.types import Episode, Group, Reward, Task

MAX_SHOWN = 10
UNKNOWN = (
    "No task knows the true labels of its documents (extra_info.documents), so whether the checker was right can't be"
    " told."
)
Rewards = Mapping[str, tuple[Reward, float]]
"""The parts of the reward "search" under the names of their scores, each with its whole weight."""


@dataclass(frozen=True)
class Paid:
    """An attempt, and what it is compared with: by the checker's labels, and by the true ones."""

    task: Task
    episode: Episode
    reward: float
    true_reward: float
    before: float
    true_before: float


@dataclass(frozen=True)
class Case:
    """A wrong verdict of an attempt whose reward rose."""

    state: str
    group: str
    attempt: int
    clues: tuple[str, ...]
    document: str
    said: Label
    true: Label
    before: float
    reward: float
    true_before: float
    true_reward: float


def audit_pair(before: Sequence[Group], after: Sequence[Group], rewards: Rewards) -> dict[str, Any]:
    """Two evaluations of the same states: each attempt after, against the mean of its state's attempts before."""
    earlier = {group.task.id: list(_scored(group, rewards)) for group in before}
    paid = []
    for group in after:
        if known := earlier.get(group.task.id):
            base, true_base = fmean(own[1] for own in known), fmean(own[2] for own in known)
            paid += [
                Paid(group.task, episode, reward, true, base, true_base)
                for episode, reward, true in _scored(group, rewards)
            ]
    return _audit(paid, [*before, *after])


def audit_training(groups: Sequence[Group], rewards: Rewards) -> dict[str, Any]:
    """The groups of a training run: each attempt above its group's mean, which training makes likelier, against it."""
    paid = []
    for group in groups:
        scored = list(_scored(group, rewards))
        if scored:
            base, true_base = fmean(own[1] for own in scored), fmean(own[2] for own in scored)
            paid += [
                Paid(group.task, episode, reward, true, base, true_base)
                for episode, reward, true in scored
                if reward > base
            ]
    return _audit(paid, groups)


def _audit(paid: Sequence[Paid], groups: Sequence[Group]) -> dict[str, Any]:
    """The report. `confusion` counts all verdicts: said -> true -> number. `gain` is the mean rise over questions
    `by_checker` and `by_truth`; its `excess` is what was paid for wrong labels."""
    known = [group for group in groups if labels_of(group.task)]
    report: dict[str, Any] = {"states": len(groups), "unknown": len(groups) - len(known)}
    if not known:
        return report | {"cases": [], "confusion": {}, "wrong": 0, "sentence": UNKNOWN}
    confusion: dict[str, dict[str, int]] = {}
    for group in known:
        for episode in group.episodes:
            for verdict, true in _verdicts(group.task, episode):
                row = confusion.setdefault(verdict.label, {})
                row[true] = row.get(true, 0) + 1
    gains: dict[str, list[tuple[float, float]]] = {}
    for each in paid:
        pair = each.true_reward - each.true_before, each.reward - each.before
        gains.setdefault(plain(each.task.question), []).append(pair)
    gain = _gain(means_of(gains))
    cases = sorted(_cases(paid), key=lambda case: (case.said != Label.IMPORTANT, case.true_reward - case.reward))
    wrong = sum(count for said, row in confusion.items() for true, count in row.items() if said != true)
    return report | {
        "cases": [asdict(case) for case in cases],
        "confusion": confusion,
        "verdicts": sum(sum(row.values()) for row in confusion.values()),
        "wrong": wrong,
        "gain": gain,
        "sentence": _sentence(gain),
    }


def _gain(by_question: Pairs) -> dict[str, Any]:
    found = paired_gain([by_question])
    names = {"n": "n", "before": "by_truth", "after": "by_checker", "gain": "excess", "gain_ci95": "excess_ci95"}
    return {name: found[key] for key, name in names.items() if key in found}


def _scored(group: Group, rewards: Rewards) -> Iterator[tuple[Episode, float, float]]:
    """Each attempt that has a reward, with it and with the one by the true labels; none where these are not known."""
    if not labels_of(group.task):
        return
    for episode in group.episodes:
        if not episode.outcome.is_infrastructure and episode.reward is not None:
            yield episode, episode.reward, true_reward(group.task, episode, rewards)


def true_reward(task: Task, episode: Episode, rewards: Rewards) -> float:
    """The reward that the attempt would have had, had the checker said the true labels of the documents it found.

    What the team did later, in a search that is replayed, stays as it was. The episode has a reward.
    """
    assert episode.reward is not None, "only what was paid can be paid otherwise"
    played = continuation(episode)
    corrected = with_labels(played, labels_of(task))
    if corrected == played:
        return episode.reward
    as_true = replace(episode, answer=to_json(corrected))
    return episode.reward + sum(
        weight * _change(function, task, episode, as_true) for function, weight in rewards.values()
    )


def _change(function: Reward, task: Task, *episodes: Episode) -> float:
    values = function(task, episodes)
    assert isinstance(values, Sequence), "the parts of a search's reward are plain functions"
    old, new = (value if isinstance(value, float | int) else 0.0 for value in values)
    return new - old


def with_labels(played: Continuation, labels: Mapping[str, Label]) -> Continuation:
    """The same rounds with true verdicts; a document that is not named is IRRELEVANT."""

    def corrected(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
        return tuple(replace(own, label=labels.get(own.document, Label.IRRELEVANT)) for own in verdicts)

    return replace(played, rounds=tuple(replace(each, verdicts=corrected(each.verdicts)) for each in played.rounds))


def _verdicts(task: Task, episode: Episode) -> Iterator[tuple[Verdict, Label]]:
    """What the checker said of new documents, with the true labels; what it said nothing of is no verdict."""
    if episode.outcome.is_infrastructure:
        return
    labels = labels_of(task)
    for played in continuation(episode).rounds:
        for verdict in played.verdicts if played.strategy == Strategy.SEARCH else ():
            if verdict.label != Label.UNCHECKED:
                yield verdict, labels.get(verdict.document, Label.IRRELEVANT)


def _cases(paid: Sequence[Paid]) -> Iterator[Case]:
    for each in paid:
        if each.reward <= each.before:
            continue
        clues = continuation(each.episode).rounds[0].clues
        for verdict, true in _verdicts(each.task, each.episode):
            if verdict.label != true:
                where = each.task.id, each.episode.group_id, each.episode.attempt, clues, verdict.document
                yield Case(*where, verdict.label, true, each.before, each.reward, each.true_before, each.true_reward)


def _sentence(gain: Mapping[str, Any]) -> str:
    if not gain["n"]:
        return "Nothing rose, so there is nothing to look into."
    by_checker, by_truth = f"{gain['by_checker']:+.3f}", f"{gain['by_truth']:+.3f}"
    said = f"By the checker's labels the reward changes by {by_checker}, by the true ones by {by_truth}"
    if "excess_ci95" not in gain:
        return f"{said}: a single question tells no more."
    low, high = gain["excess_ci95"]
    if low <= 0:
        return f"{said}: no clear difference."
    return (
        f"{said}: {gain['excess']:.3f} (95% interval {low:.3f} to {high:.3f}, {gain['n']} questions) is paid for"
        " wrong labels, not for better clues."
    )


def audit_text(report: Mapping[str, Any]) -> str:
    """The report for a terminal: its sentence, its counts and its first cases."""
    lines = [report["sentence"]]
    if report["confusion"]:
        told = " (said, true):" if report["wrong"] else ""
        lines.append(f"{report['wrong']} of {report['verdicts']} verdicts are wrong{told}")
        lines += [
            f"  {said} is {true}: {count}"
            for said, row in sorted(report["confusion"].items())
            for true, count in sorted(row.items())
            if said != true
        ]
    by_document: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for case in report["cases"]:
        by_document.setdefault((case["state"], case["document"]), []).append(case)
    if by_document:
        lines.append(f"{len(report['cases'])} wrong verdicts where the reward rose, of {len(by_document)} documents:")
    for case, *more in list(by_document.values())[:MAX_SHOWN]:
        rise = f"reward {case['before']:.2f} to {case['reward']:.2f}, by the true labels {case['true_before']:.2f} to"
        lines.append(f"  {case['state']}: [{case['document']}] is {case['true']}, not {case['said']};")
        lines.append(f"    {rise} {case['true_reward']:.2f}; clues: {' | '.join(case['clues'])}")
        lines += [f"    and so in {len(more)} other attempts"] if more else []
    if len(by_document) > MAX_SHOWN:
        lines.append(f"  and {len(by_document) - MAX_SHOWN} other documents")
    return "\n".join(lines)
