"""Groups of episodes to plain numbers: one evaluation, two evaluations compared, one training step.

Pure: reads no file and draws nothing. No key ever holds NaN: what has nothing to be computed from is left out.
Rates are fractions in [0, 1]. What agents did (turns, tokens, tools) is counted over the episodes that the
infrastructure did not fail; those it failed are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, pstdev
from typing import Any

from gruppo.evaluation.hacking import JUDGED, MATCHED, hacking_metrics
from gruppo.evaluation.statistics import mcnemar, paired_bootstrap, wilson_of_tasks
from gruppo.types import Episode, Group, Task, ToolEvent, Turn

Success = Callable[[Episode], bool | None]
"""Did the episode solve its task? None: nobody can say."""


def solved(episode: Episode) -> bool | None:
    """True where the score by answer matching, else the judge's, else the reward is 1; None where it has no value."""
    score = next((episode.scores[name] for name in (*MATCHED, JUDGED) if name in episode.scores), None)
    value = score.value if score else episode.reward
    return None if value is None else value == 1.0


def summarise(groups: Sequence[Group], family: Callable[[Task], str], success: Success = solved) -> dict[str, Any]:
    """One evaluation in plain JSON-able data.

    `n` counts tasks. `success` is the mean over tasks of each task's share of solved episodes, `ci95` its Wilson
    interval, attempts at one task taken together. An episode that the infrastructure failed (`infrastructure`), or
    that nobody could judge, or a task without episode (`missing`), counts as **not** solved; where there are any,
    `success_scorable` gives the rate over the judged ones alone. `turns`, `tool_calls` and `action_tokens` are means
    per episode; `tool_calls_ok` and `turns_parsed` are shares. `outcomes` are counts. `by_family`, `by_steps`
    (`extra_info["steps"]`) and `by_wording` (`extra_info["wording"]`) map a part of the tasks to its own `n`,
    `success`, `ci95`.
    """
    episodes = _episodes(groups)
    failed = len(episodes) - len(_sound(episodes))
    unjudged = len(_sound(episodes)) - len(_verdicts(episodes, success))
    summary: dict[str, Any] = {
        **_rate(groups, success),
        "episodes": len(episodes),
        "missing": unjudged + sum(not group.episodes for group in groups),
        "infrastructure": failed,
    }
    if summary["missing"] or failed:
        summary |= _scorable(groups, success)
    summary |= _behaviour(episodes)
    parts = {
        "outcomes": dict(sorted(Counter(str(e.outcome) for e in episodes).items(), key=lambda item: -item[1])),
        "by_family": _by(groups, family, success),
        "by_steps": _by(groups, lambda task: task.extra_info.get("steps"), success),
        "by_wording": _by(groups, lambda task: task.extra_info.get("wording"), success),
    }
    return summary | {name: part for name, part in parts.items() if part}


def compare(
    before: Sequence[Group], after: Sequence[Group], success: Success = solved, seed: int = 0
) -> dict[str, Any]:
    """Two evaluations of the same tasks, paired task by task.

    `gain` is the mean over tasks of the difference in success, `gain_ci95` its bootstrap interval over tasks; `fixed`
    and `broken` count the tasks that got better and worse, `p_value` is McNemar's exact one of these. Raises
    ValueError if the task ids differ or repeat.
    """
    earlier, later = success_by_task(before, success), success_by_task(after, success)
    if earlier.keys() != later.keys():
        odd = sorted(earlier.keys() ^ later.keys())
        raise ValueError(f"can't pair evaluations of different tasks: {len(odd)} ids are in only one, as {odd[0]!r}")
    differences = [later[task_id] - rate for task_id, rate in earlier.items()]
    comparison: dict[str, Any] = {
        "n": len(differences),
        "fixed": sum(difference > 0 for difference in differences),
        "broken": sum(difference < 0 for difference in differences),
    }
    if differences:
        gain, low, high = paired_bootstrap(differences, seed)
        comparison |= {"gain": gain, "gain_ci95": [low, high]}
        comparison["p_value"] = mcnemar(comparison["fixed"], comparison["broken"])
    return comparison


def rollout_metrics(
    groups: Sequence[Group], success: Success = solved, family: Callable[[Task], str] | None = None
) -> dict[str, float]:
    """One training step's rollouts as flat numbers for the metrics record.

    `reward/std` is over all scored episodes, `reward/group_std` the mean spread within a group: what the baseline has
    to work with. `reward_of/<role>` is the mean reward of its turns, where turns have one.
    `success`, and `success_of/<family>` where `family` tells it, is over judged episodes.
    `turns/mean` and `turns/<role>` are per episode, `tokens/<role>` action tokens per turn of that role;
    `outcomes/<name>` are fractions of all episodes; `unscorable` counts those without reward, infrastructure included.
    `score/<name>` is the mean of one reward function, where there are several; `hacking.py` has the signs of cheating.
    """
    episodes = _episodes(groups)
    metrics = {
        "episodes": float(len(episodes)),
        "unscorable": float(sum(episode.reward is None for episode in episodes)),
        "infrastructure": float(sum(episode.outcome.is_infrastructure for episode in episodes)),
        "retries": float(sum(episode.retries for episode in episodes)),
    }
    metrics |= _rewards(groups)
    if verdicts := _verdicts(episodes, success):
        metrics["success"] = fmean(verdicts)
    if family is not None:
        for name in sorted({family(group.task) for group in groups}):
            own = [episode for group in groups if family(group.task) == name for episode in group.episodes]
            if verdicts := _verdicts(own, success):
                metrics[f"success_of/{name}"] = fmean(verdicts)
    for outcome, count in Counter(str(episode.outcome) for episode in episodes).items():
        metrics[f"outcomes/{outcome}"] = count / len(episodes)
    behaviour = _behaviour(episodes)
    if "turns" in behaviour:
        metrics["turns/mean"] = behaviour["turns"]
    metrics |= {key: behaviour[key] for key in ("tool_calls_ok", "turns_parsed") if key in behaviour}
    return metrics | _per_role(_sound(episodes)) | hacking_metrics(groups)


def _rate(groups: Sequence[Group], success: Success) -> dict[str, Any]:
    rates = [_task_rate(group, success) for group in groups]
    if not rates:
        return {"n": 0}
    sizes = {len(group.episodes) for group in groups}
    attempts = max(sizes | {1}) if len(sizes) == 1 else 1  # tasks of unequal size count as one trial each
    return {"n": len(rates), "success": fmean(rates), "ci95": list(wilson_of_tasks(rates, attempts))}


def _task_rate(group: Group, success: Success) -> float:
    """The share of a task's episodes that solved it; anything but a clear yes is a no, so failures can't flatter."""
    solved_ones = [not e.outcome.is_infrastructure and success(e) is True for e in group.episodes]
    return fmean(solved_ones) if solved_ones else 0.0


def _verdicts(episodes: Iterable[Episode], success: Success) -> list[bool]:
    return [verdict for episode in _sound(episodes) if (verdict := success(episode)) is not None]


def _scorable(groups: Iterable[Group], success: Success) -> dict[str, float]:
    rates = [fmean(verdicts) for group in groups if (verdicts := _verdicts(group.episodes, success))]
    return {"success_scorable": fmean(rates)} if rates else {}


def success_by_task(groups: Sequence[Group], success: Success = solved) -> dict[str, float]:
    """Task id -> the share of its episodes that solved it. Raises ValueError if an id repeats."""
    rates = {group.task.id: _task_rate(group, success) for group in groups}
    if len(rates) != len(groups):
        repeated = Counter(group.task.id for group in groups).most_common(1)[0][0]
        raise ValueError(
            f"can't pair evaluations: task id {repeated!r} comes more than once; put attempts in one group"
        )
    return rates


def _by(groups: Sequence[Group], part: Callable[[Task], Any], success: Success) -> dict[str, dict[str, Any]]:
    """The rate of each part, parts in the order of their values (numbers as numbers); tasks that have none are out."""
    parts: dict[Any, list[Group]] = {}
    for group in groups:
        if (name := part(group.task)) is not None:
            parts.setdefault(name, []).append(group)
    ordered = sorted(parts, key=lambda name: (0, name, "") if isinstance(name, int | float) else (1, 0, str(name)))
    return {str(name): _rate(parts[name], success) for name in ordered}


def _behaviour(episodes: Sequence[Episode]) -> dict[str, float]:
    """What the agents did: means per episode, and how much of it was well formed."""
    sound = _sound(episodes)
    if not sound:
        return {}
    turns, events = list(_turns(sound)), list(_events(sound))
    behaviour = {
        "turns": len(turns) / len(sound),
        "tool_calls": len(events) / len(sound),
        "action_tokens": sum(len(turn.action_ids) for turn in turns) / len(sound),
    }
    if events:
        behaviour["tool_calls_ok"] = fmean(event.result.ok for event in events)
    if turns:
        behaviour["turns_parsed"] = fmean(not turn.error for turn in turns)
    return behaviour


def _rewards(groups: Sequence[Group]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    scored = [[e.reward for e in group.episodes if e.reward is not None] for group in groups]
    if rewards := [reward for group in scored for reward in group]:
        metrics["reward/mean"], metrics["reward/std"] = fmean(rewards), pstdev(rewards)
        metrics["reward/group_std"] = fmean(pstdev(group) for group in scored if group)
    own: dict[str, list[float]] = {}
    for episode in _episodes(groups):
        for turn, reward in zip(episode.turns, episode.turn_rewards, strict=False):
            if reward is not None:
                own.setdefault(turn.role, []).append(reward)
    metrics |= {f"reward_of/{role}": fmean(values) for role, values in own.items()}
    scores: dict[str, list[float]] = {}
    for episode in _episodes(groups):
        for name, score in episode.scores.items():
            scores.setdefault(name, []).extend([] if score.value is None else [score.value])
    return metrics | {f"score/{name}": fmean(values) for name, values in scores.items() if values and len(scores) > 1}


def _per_role(episodes: Sequence[Episode]) -> dict[str, float]:
    turns: dict[str, list[Turn]] = {}
    for turn in _turns(episodes):
        turns.setdefault(turn.role, []).append(turn)
    metrics: dict[str, float] = {}
    for role, own in turns.items():
        metrics[f"turns/{role}"] = len(own) / len(episodes)
        metrics[f"tokens/{role}"] = fmean(len(turn.action_ids) for turn in own)
    return metrics


def _episodes(groups: Iterable[Group]) -> list[Episode]:
    return [episode for group in groups for episode in group.episodes]


def _sound(episodes: Iterable[Episode]) -> list[Episode]:
    return [episode for episode in episodes if not episode.outcome.is_infrastructure]


def _turns(episodes: Iterable[Episode]) -> Iterator[Turn]:
    return (turn for episode in episodes for turn in episode.turns)


def _events(episodes: Iterable[Episode]) -> Iterator[ToolEvent]:
    return (event for episode in episodes for event in episode.events)
