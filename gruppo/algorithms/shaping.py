"""Shaping: what is added to or taken from a reward before episodes are compared. Pure numbers; it judges no answer.

Lengths are trained tokens only: what tools and other agents wrote is not charged to a policy. Whether a group has
anything to learn from is decided on the rewards before shaping. Otherwise, divided by the std of a group that is right
throughout, any penalty becomes an update of full size, whatever its coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

AGENT_WEIGHTS: Mapping[str, float] = {"completion": 0.5, "tools": 0.2, "efficiency": 0.15, "format": 0.15}
"""What an agent's episode is worth: above all whether the task was completed, which can't be won by form."""


def soft_overlong(length: int, max_length: int, cache: int) -> float:
    """0 up to max_length - cache tokens, then linearly down to -1 at max_length and beyond. Source: DAPO, 2503.14476.

    Raises ValueError unless 0 < cache <= max_length.
    """
    if not 0 < cache <= max_length:
        raise ValueError(f"the overlong cache must be within 1 and max_length ({max_length}), not {cache}")
    return max(-1.0, min(0.0, (max_length - cache - length) / cache))


def length_penalty(rewards_G: Sequence[float], lengths_G: Sequence[int], coefficient: float) -> list[float]:
    """r - coefficient (mean reward) (length / longest) over a group: the better it is, the more length costs.

    Source: prime-rl's length penalty.
    """
    if not any(lengths_G):
        return list(rewards_G)
    slope = coefficient * fmean(rewards_G) / max(lengths_G)
    return [reward - slope * length for reward, length in zip(rewards_G, lengths_G, strict=True)]


def excess_length_penalty(reward: float, length: int, target: int, coefficient: float = 0.001) -> float:
    """reward - coefficient (tokens beyond `target`) for correct answers; others (reward <= 0) keep theirs.

    Source: the Hello-Agents course, chapter 11. Departs from it: not below 0, so that no correct answer is worth less
    than a wrong one.
    """
    if reward <= 0:
        return reward
    return max(0.0, reward - coefficient * max(0, length - target))


def step_bonus(reward: float, num_steps: int, bonus: float = 0.1, max_steps: int = 5) -> float:
    """reward + bonus for each step shown. Source: the Hello-Agents course, chapter 11.

    Departs from it: no more than `max_steps` are paid for, or idle steps would pay best.
    """
    return reward + bonus * min(num_steps, max_steps)


def weighted_sum(parts: Mapping[str, float | None], weights: Mapping[str, float] = AGENT_WEIGHTS) -> float | None:
    """The sum of weight times part. A part that is None adds nothing; if all are, so is the sum: no score, not 0.

    Raises ValueError for a part without a weight or a weight without a part, or a part that isn't finite.
    """
    if odd := parts.keys() ^ weights.keys():
        raise ValueError(f"parts and weights must have the same names; only one of them has {sorted(odd)}")
    known = {name: part for name, part in parts.items() if part is not None}
    if broken := [f"{name}={part}" for name, part in known.items() if not math.isfinite(part)]:
        raise ValueError(f"parts of a reward must be finite or None, not {', '.join(broken)}")
    return math.fsum(weights[name] * part for name, part in known.items()) if known else None
