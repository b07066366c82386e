"""Credit: from the rewards of groups to an advantage per turn, role by role.

Statistics are taken before anything is split into rows. By default a role's episodes of one task are compared, one
value per episode in which it acted, so that the number of its turns never weighs them; other keys compare turns with
turns of the same number, or with turns that saw the very same prompt. No torch, no tokens.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import Field

from gruppo.algorithms.advantages import (
    ADVANTAGES,
    GROUP_RELATIVE,
    AdvantageSettings,
    GroupReturns,
    has_signal,
    moving_average,
)
from gruppo.algorithms.returns import discounted_outcome, rewards_to_go
from gruppo.algorithms.shaping import soft_overlong
from gruppo.config import Config
from gruppo.types import Credit, Episode, Group, Outcome, Task

Averages = Mapping[str, Mapping[str, float]]
"""Role -> task family -> the moving average of the role's shaped rewards; 0 where there is none."""


class CreditConfig(Config):
    """Who is paid for what."""

    team: dict[str, float] = {}
    """Role -> weight of the team's reward in its own; 1 where none is given."""
    own: dict[str, float] = {}
    """Role -> weight of the mean of its own turns' rewards; 0 where none is given."""
    turn_rewards: dict[str, float] = {}
    """Reward function for turns -> weight: "parsed", "tool_ok", or your own: "file.py:name"."""
    outcome: Literal["broadcast", "discounted", "to_go"] = "broadcast"
    """What a turn is judged by: its episode's reward; that reward discounted by the turns still to come; or the sum of
    the turn rewards from here on, and the episode's."""
    discount: float = Field(0.95, gt=0, le=1)
    """Per turn of the same role, for "discounted" and "to_go"."""
    compare: Literal["task", "turn", "state", "task+state"] = "task"
    """With what: the role's episodes of the task; its turns of the same number; its turns that saw the same prompt; or
    the sum of the first and the last, as GiGPO."""
    state_weight: float = Field(1.0, ge=0)
    """Weight of the second part of "task+state"."""
    min_group: int = Field(2, ge=2)
    """Fewer scored episodes than this give a group no baseline."""
    alternate: int = Field(0, ge=0)
    """Steps that one policy learns before the next one's turn; 0: all learn at every step."""


@dataclass(frozen=True)
class Terms:
    """What the algorithm and the run say of rewards before they are compared."""

    truncated: Literal["mask", "zero", "soft_overlong", "none"] = "none"
    max_length: int = 0  # tokens of a role in an episode, for "soft_overlong"
    cache: int = 0
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    greedy: Mapping[str, float] = field(default_factory=dict)  # group -> the reward of its greedy episode
    penalties: Mapping[Hashable, float] = field(default_factory=dict)  # (group, attempt, role) -> what is taken off
    averages: Averages = field(default_factory=dict)  # as the step begins

    def shaped(self, episode: Episode, role: str, reward: float) -> float:
        """The reward of `role` after what being cut off or overlong costs."""
        if self.truncated == "zero" and is_truncated(episode):
            return 0.0
        reward -= self.penalties.get((episode.group_id, episode.attempt, role), 0.0)
        if self.truncated == "soft_overlong":
            return reward + soft_overlong(episode.num_tokens.get(role, 0), self.max_length, self.cache)
        return reward


TRUNCATED = frozenset({Outcome.max_tokens, Outcome.context_overflow})


def is_truncated(episode: Episode) -> bool:
    """Whether the harness cut the episode off for its length."""
    return episode.outcome in TRUNCATED


@dataclass(frozen=True)
class Judged:
    """Turns of one episode that are judged together, by one return."""

    group: Group
    episode: Episode
    places: Sequence[int]
    return_: float

    @property
    def num_tokens(self) -> int:
        """Their sampled tokens."""
        return sum(len(self.episode.turns[place].action_ids) for place in self.places)


def assign(
    groups: Sequence[Group],
    roles: Sequence[str],
    config: CreditConfig,
    advantage: str,
    settings: AdvantageSettings,
    terms: Terms,
) -> dict[str, float]:
    """Fill every episode's `credits` for `roles`; returns counts for the metrics.

    Turns of other roles, of episodes that can't be scored, and of groups without a signal get no advantage.
    """
    counts = {"groups/too_small": 0.0, "groups/flat": 0.0, "episodes/masked": 0.0}
    for episode in (episode for group in groups for episode in group.episodes):
        assert episode.reward is None or math.isfinite(episode.reward), f"{episode.group_id}: rewards must be finite"
        episode.credits = [Credit() for _ in episode.turns]
    parts = (
        [("task", 1.0), ("state", config.state_weight)] if config.compare == "task+state" else [(config.compare, 1.0)]
    )
    for role in roles:
        _pay(groups, role, config, terms)
        for compare, weight in parts:
            judged = [one for group in groups for one in _judged(group, role, compare)]
            for one, value in _advantages(judged, compare, advantage, settings, terms, config.min_group, counts):
                for place in one.places:
                    credit = one.episode.credits[place]
                    total = (credit.advantage or 0.0) + weight * value
                    one.episode.credits[place] = replace(credit, advantage=total)
    if terms.truncated == "mask":
        counts["episodes/masked"] = float(sum(map(_mask, (e for group in groups for e in group.episodes))))
    return counts


def _pay(groups: Sequence[Group], role: str, config: CreditConfig, terms: Terms) -> None:
    """Give each turn of `role` its shaped reward and its return."""
    for group in groups:
        for episode in group.episodes:
            own = [place for place, turn in enumerate(episode.turns) if turn.role == role]
            if not own or episode.reward is None:
                continue
            turn_rewards = [_turn_reward(episode, place) for place in own]
            given = [reward for reward in turn_rewards if reward is not None]
            mean = sum(given) / len(given) if given else 0.0
            team = config.team.get(role, 1.0) * episode.reward
            shaped = terms.shaped(episode, role, team + config.own.get(role, 0.0) * mean)
            returns = _returns(config, shaped, [reward or 0.0 for reward in turn_rewards])
            for place, return_ in zip(own, returns, strict=True):
                episode.credits[place] = Credit(shaped, return_)


def _turn_reward(episode: Episode, place: int) -> float | None:
    return episode.turn_rewards[place] if episode.turn_rewards else None


def _returns(config: CreditConfig, shaped: float, turn_rewards: Sequence[float]) -> list[float]:
    if config.outcome == "discounted":
        return discounted_outcome(len(turn_rewards), config.discount, shaped)
    if config.outcome == "to_go":
        return rewards_to_go([*turn_rewards[:-1], turn_rewards[-1] + shaped], config.discount)
    return [shaped] * len(turn_rewards)


def _judged(group: Group, role: str, compare: str) -> Iterator[Judged]:
    """What of a group is compared: a role's episodes as wholes, or its turns one by one."""
    for episode in group.episodes:
        own = [place for place, turn in enumerate(episode.turns) if turn.role == role]
        returns = {place: episode.credits[place].return_ for place in own}
        known = {place: return_ for place, return_ in returns.items() if return_ is not None}
        shaped = episode.credits[own[0]].shaped if own else None
        if shaped is not None and compare == "task":
            yield Judged(group, episode, own, shaped)
        elif known:
            yield from (Judged(group, episode, [place], return_) for place, return_ in known.items())


def _key(one: Judged, compare: str) -> Hashable:
    if compare == "task":
        return one.group.id
    turn = one.episode.turns[one.places[0]]
    if compare == "state":
        return one.group.id, turn.prompt_ids
    return one.group.id, sum(earlier.role == turn.role for earlier in one.episode.turns[: one.places[0]])


def _advantages(
    judged: Sequence[Judged],
    compare: str,
    advantage: str,
    settings: AdvantageSettings,
    terms: Terms,
    min_group: int,
    counts: dict[str, float],
) -> list[tuple[Judged, float]]:
    """The advantage of each, those left out whose group is too small or, for a relative estimator, has no signal."""
    by_key: dict[Hashable, list[Judged]] = {}
    for one in judged:
        by_key.setdefault(_key(one, compare), []).append(one)
    relative = advantage in GROUP_RELATIVE
    kept: list[list[Judged]] = []
    for own in by_key.values():
        if relative and len(own) < min_group:
            counts["groups/too_small"] += 1
        elif relative and not has_signal([one.return_ for one in own]):
            counts["groups/flat"] += 1
        else:
            kept.append(own)
    if not kept:
        return []
    returns = [_group_returns(own, terms) for own in kept]
    values = ADVANTAGES[advantage](returns, settings)
    pairs = zip(kept, values, strict=True)
    return [pair for own, of_group in pairs for pair in zip(own, of_group, strict=True)]


def _group_returns(own: Sequence[Judged], terms: Terms) -> GroupReturns:
    group, role = own[0].group, own[0].episode.turns[own[0].places[0]].role
    scores = {
        name: (weight, [one.episode.scores[name].value for one in own])
        for name, weight in terms.reward_weights.items()
        if all(name in one.episode.scores for one in own)
    }
    returns = [one.return_ for one in own]
    average = terms.averages.get(role, {}).get(_family(group.task), 0.0)
    lengths = [one.num_tokens for one in own]
    return GroupReturns(group.id, returns, lengths, scores, terms.greedy.get(group.id), average)


def _family(task: Task) -> str:
    return str(task.extra_info.get("family", ""))


def _mask(episode: Episode) -> bool:
    """Take a truncated episode out of the loss; its reward stays in the statistics. Whether there was one."""
    if not is_truncated(episode):
        return False
    episode.credits = [replace(credit, advantage=None) for credit in episode.credits]
    return True


# After the comparison ------------------------------------------------------------------------------------------------


def followed(groups: Sequence[Group], roles: Sequence[str], averages: Averages, decay: float) -> Averages:
    """The averages after an `assign` of these groups: those of `roles` have seen its shaped rewards, in their order."""
    found = {role: dict(own) for role, own in averages.items()}
    for role in roles:
        own = found.setdefault(role, {})
        for group in groups:
            family = _family(group.task)
            rewards = [one.return_ for one in _judged(group, role, "task")]
            own[family] = moving_average(own.get(family, 0.0), rewards, decay)
    return found


def leave_out_stale(groups: Sequence[Group], versions: Mapping[str, int], limit: int) -> dict[str, float]:
    """Take the advantage from turns whose policy was more than `limit` optimizer steps behind `versions`.

    Their rewards stay in the statistics. Returns the rows lost by policy, for the metrics; a limit of -1 looks at none.
    """
    if limit < 0:
        return {}
    lost = dict.fromkeys(versions, 0.0)
    for episode in (episode for group in groups for episode in group.episodes):
        for place, (turn, credit) in enumerate(zip(episode.turns, episode.credits, strict=True)):
            if turn.policy is None or credit.advantage is None or versions[turn.policy] - turn.version <= limit:
                continue
            lost[turn.policy] += bool(turn.action_ids)
            episode.credits[place] = replace(credit, advantage=None)
    return {f"rows/stale/{policy}": count for policy, count in lost.items()}
