"""Playing held-out tasks: the same rollout as in training, at a fixed temperature, once per task or more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gruppo.config import suggest
from gruppo.data.base import TaskSet
from gruppo.errors import ConfigError
from gruppo.rollout import Rollout, collect_side_by_side
from gruppo.types import Group

MODES: Mapping[str, float] = {"greedy": 0.0, "sampled": 1.0}
"""Name -> temperature of the roles that a policy plays."""


def check_mode(mode: str) -> None:
    """Raises ConfigError with the nearest name for one that is none."""
    if mode not in MODES:
        raise ConfigError(f"mode {mode!r}: no such mode{suggest(mode, MODES)}")


def evaluate(rollout: Rollout, tasks: TaskSet, modes: Sequence[str], attempts: int = 1) -> dict[str, list[Group]]:
    """Mode -> one scored group per task. Draws depend on the task alone, so that evaluations compare task by task."""
    for mode in modes:
        check_mode(mode)
    rollouts = {f"eval-{mode}": rollout.at_temperature(MODES[mode]) for mode in modes}
    return dict(zip(modes, collect_side_by_side(rollouts, tasks, attempts, seed=0).values(), strict=True))
