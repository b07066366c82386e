"""Rewards for turns: what one action was worth, whatever became of the episode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gruppo.errors import RewardError, UserError
from gruppo.types import Episode, Group, Task, TurnReward


def parsed(task: Task, episode: Episode) -> list[float]:
    """1 for a turn that could be read, 0 for one that could not."""
    return [float(not turn.error) for turn in episode.turns]


def tool_ok(task: Task, episode: Episode) -> list[float | None]:
    """For a turn that called tools, the share of its calls that went well; None for one that called none."""
    calls: dict[int, list[bool]] = {}
    for event in episode.events:
        calls.setdefault(event.turn, []).append(event.result.ok)
    return [sum(calls[place]) / len(calls[place]) if place in calls else None for place in range(len(episode.turns))]


def score_turns(functions: Mapping[str, tuple[TurnReward, float]], group: Group) -> None:
    """Fill `turn_rewards` of the group's episodes: the weighted sum of the values there are, else None.

    Episodes that the infrastructure ended are left out. Raises RewardError for a function that breaks its contract.
    """
    for episode in group.episodes:
        if not functions or episode.outcome.is_infrastructure:
            continue
        columns = [
            (weight, _values(name, function, group.task, episode)) for name, (function, weight) in functions.items()
        ]
        for place in range(len(episode.turns)):
            given = [(weight, values[place]) for weight, values in columns]
            known = [weight * value for weight, value in given if value is not None]
            episode.turn_rewards.append(sum(known) if known else None)


def _values(name: str, function: TurnReward, task: Task, episode: Episode) -> Sequence[float | None]:
    try:
        values = list(function(task, episode))
    except UserError:
        raise
    except Exception as error:  # foreign code may raise anything
        raise RewardError(f"turn reward {name!r} raised {type(error).__name__}: {error} (task {task.id!r})") from error
    if len(values) != len(episode.turns):
        raise RewardError(
            f"turn reward {name!r} returned {len(values)} values for the {len(episode.turns)} turns of an episode"
        )
    for value in values:
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            raise RewardError(f"turn reward {name!r} returned {value!r}: expected a finite number or None")
    return values


TURN_REWARDS: Mapping[str, TurnReward] = {"parsed": parsed, "tool_ok": tool_ok}
