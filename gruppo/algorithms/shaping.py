"""Shaping: what is taken from a reward for length before episodes are compared. Pure numbers; it judges no answer.

What single episodes are paid or charged for their style is a reward function's: `rewards/terms.py`.

Lengths are trained tokens only: what tools and other agents wrote is not charged to a policy. Whether a group has
anything to learn from is decided on the rewards before shaping. Otherwise, divided by the std of a group that is right
throughout, any penalty becomes an update of full size, whatever its coefficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


def soft_overlong(length: int, max_length: int, cache: int) -> float:
    """0 up to max_length - cache tokens, then linearly down to -1 at max_length and beyond. Source: DAPO, 2503.14476.

    Raises ValueError unless 0 < cache <= max_length.
    """
    if not 0 < cache <= max_length:
        raise ValueError(f"the overlong cache must be within 1 and max_length ({max_length}), not {cache}")
    return max(-1.0, min(0.0, (max_length - cache - length) / cache))


def group_length_penalty(rewards_G: Sequence[float], lengths_G: Sequence[int], coefficient: float) -> list[float]:
    """r - coefficient (mean reward) (length / longest) over a group: the better it is, the more length costs.

    Source: prime-rl's length penalty.
    """
    if not any(lengths_G):
        return list(rewards_G)
    slope = coefficient * fmean(rewards_G) / max(lengths_G)
    return [reward - slope * length for reward, length in zip(rewards_G, lengths_G, strict=True)]
