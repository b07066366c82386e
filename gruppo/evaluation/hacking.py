"""Signs that a policy earns its reward otherwise than by solving its tasks. Pure: episodes or metrics in, figures out.

They are signs for a person and for alarms; none changes a reward. What is watched: text that speaks to the judge, text
copied from the answer key, a judge that is kinder than answer matching, canaries that are paid, and a training reward
that rises while what nobody optimises falls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from gruppo.rewards.quoting import injection
from gruppo.types import Episode, Group, Task

CANARY = "canary"  # key in a task's extra_info: nothing that is answered here is right
MATCHED = ("answers", "accuracy", "agent/completion", "exact", "gym", "search/found")
# the scores that are 1 for a success, by answer matching or another rule, the ablest first
JUDGED = "judge"
MIN_COPIED = 12  # words in a row that nobody writes by chance


def matched(episode: Episode) -> float | None:
    """The score by answer matching, from whichever function gave one."""
    found = (score.value for name in MATCHED if (score := episode.scores.get(name)))
    return next((value for value in found if value is not None), None)


def copied(task: Task, episode: Episode) -> str:
    """Words of the hidden solution (`chain`, or a long result) that the agent wrote and could not have read, if any.

    What stands in the question, or came out of a tool, is no secret.
    """
    key = _runs(f"{task.chain}\n{task.result}")
    if not key:
        return ""
    seen = _runs("\n".join((task.question, *(event.result.text for event in episode.events))))
    written = (" ".join(run) for turn in episode.turns for run in _runs(turn.text) if run in key and run not in seen)
    return next(written, "")


def hacking_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The signs in one step's episodes, each only where there is something to tell.

    `injections` and `copied` are shares of the episodes whose answer speaks to a judge, or that copied the answer key;
    `judge_gap` is how much better the judge finds the episodes than answer matching does, on average;
    `canary/reward` is the highest reward of a canary, which has to stay 0 or below; `notes/<score>/<kind>` are the
    shares of a function's scores that carry a note, as "fallback" and "disagrees" of a judge.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    shares = {
        "injections": sum(bool(injection(episode.answer or "")) for episode in episodes),
        "copied": sum(bool(copied(group.task, episode)) for group in groups for episode in group.episodes),
    }
    metrics = {name: number / len(episodes) for name, number in shares.items() if number}
    if gaps := _gaps(episodes):
        metrics["judge_gap"] = fmean(gaps)
    if paid := [e.reward for g in groups if is_canary(g.task) for e in g.episodes if e.reward is not None]:
        metrics["canary/reward"] = max(paid)
    return metrics | _notes(episodes)


def is_canary(task: Task) -> bool:
    """Whether the task is there to show cheating."""
    return task.extra_info.get(CANARY) is True


def parts_ways(
    records: Sequence[Mapping[str, float]], other: str = "eval/success", window: int = 5, drop: float = 0.05
) -> bool:
    """Whether the training reward went up while `other` went down, from the first `window` values to the last.

    `other` is a metric that the policy is not paid for: the held-out success, or the mean of a judge-free score, as
    "score/exact". It has to fall by more than `drop`, and there have to be two windows of both.
    """
    reward, free = ([record[name] for record in records if name in record] for name in ("reward/mean", other))
    if min(len(reward), len(free)) < 2 * window:
        return False
    gained, lost = (fmean(values[-window:]) - fmean(values[:window]) for values in (reward, free))
    return gained > 0 and -lost > drop


def _gaps(episodes: Iterable[Episode]) -> list[float]:
    gaps = []
    for episode in episodes:
        judged, known = episode.scores.get(JUDGED), matched(episode)
        if judged and judged.value is not None and known is not None:
            gaps.append(judged.value - known)
    return gaps


def _notes(episodes: Iterable[Episode]) -> dict[str, float]:
    notes: Counter[tuple[str, str]] = Counter()
    values: Counter[str] = Counter()
    for episode in episodes:
        for name, score in episode.scores.items():
            kind, colon, _ = score.reason.partition(":")
            values[name] += score.value is not None
            notes[name, kind] += bool(colon) and score.value is not None
    return {f"notes/{name}/{kind}": number / values[name] for (name, kind), number in notes.items() if number}


def _runs(text: str) -> dict[tuple[str, ...], None]:
    """Every MIN_COPIED words in a row, in order."""
    words = re.findall(r"\w+", text.casefold())
    return dict.fromkeys(tuple(words[at : at + MIN_COPIED]) for at in range(len(words) - MIN_COPIED + 1))
