"""Advantages: from the rewards of one group to one number per episode. No torch, no tokens, no turns.

Statistics are per episode, over one group, before anything is split into rows, so the number of turns never weighs
them; a role's group holds the episodes in which it acted. An episode that can't be scored (None) is left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from gruppo.types import Group

EPSILON = 1e-6
TOLERANCE = 1e-6  # rewards closer than this (relative) are equal: their float residue must not become a signal

Advantage = Callable[[Sequence[float]], list[float]]


def has_signal(rewards_G: Sequence[float]) -> bool:
    """Whether the rewards differ by more than rounding."""
    if len(rewards_G) < 2:
        return False
    return max(rewards_G) - min(rewards_G) > TOLERANCE * max(1.0, *map(abs, rewards_G))


def grpo(rewards_G: Sequence[float], epsilon: float = EPSILON) -> list[float]:
    """(r - mean) / (std + epsilon), std with ddof 1. Source: arXiv 2402.03300.

    Departs from the paper: exactly 0 for all where the rewards are equal up to rounding or the group has one member.
    """
    if not has_signal(rewards_G):
        return [0.0] * len(rewards_G)
    mean, std = statistics.fmean(rewards_G), statistics.stdev(rewards_G)
    return [(reward - mean) / (std + epsilon) for reward in rewards_G]


def centred(rewards_G: Sequence[float]) -> list[float]:
    """r - mean, without division by the std (Dr. GRPO). Source: arXiv 2503.20783."""
    if not has_signal(rewards_G):
        return [0.0] * len(rewards_G)
    mean = statistics.fmean(rewards_G)
    return [reward - mean for reward in rewards_G]


def role_advantages(groups: Sequence[Group], role: str, advantage: Advantage) -> dict[tuple[str, int], float]:
    """(group id, attempt) -> advantage of `role`, for the groups that hold a signal for it.

    Only episodes in which the role acted and whose reward for it is known take part; other groups are absent.
    """
    found: dict[tuple[str, int], float] = {}
    for group in groups:
        acted = [episode for episode in group.episodes if any(turn.role == role for turn in episode.turns)]
        scored = [(episode, episode.reward_of(role)) for episode in acted]
        kept = [(episode, reward) for episode, reward in scored if reward is not None]
        rewards_G = [reward for _, reward in kept]
        assert all(map(math.isfinite, rewards_G)), f"group {group.id}: rewards must be finite"
        if has_signal(rewards_G):
            for (episode, _), value in zip(kept, advantage(rewards_G), strict=True):
                found[group.id, episode.attempt] = value
    return found
