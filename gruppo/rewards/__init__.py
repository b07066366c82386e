"""Reward functions by name. Each follows the `Reward` protocol of `gruppo.types`; a judge is given its engine."""

from __future__ import annotations

from gruppo.rewards.answers import answers
from gruppo.rewards.rules import exact
from gruppo.types import Reward

REWARDS: dict[str, Reward] = {"exact": exact, "answers": answers}
