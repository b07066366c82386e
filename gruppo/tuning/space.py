"""The search space: which keys of a run's config are tried with which values. Knows no search method."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, model_validator

from gruppo.config import Config


class Parameter(Config):
    """What is tried for one key of the run's config: one of `choice`, or a number from `low` to `high`."""

    keys: list[str] = []
    """The keys that get the value, as ["policies.planner.learning_rate", "policies.executor.learning_rate"]; empty: the
    parameter's own name is the key."""
    choice: list[Any] = []
    """Values; a table of keys, such as {rank = 8, alpha = 16}, sets several at once."""
    low: float | None = None
    """The least value of a range,"""
    high: float | None = None
    """and the greatest."""
    log: bool = False
    """Whether factors matter in the range, not differences: for learning rates."""
    integer: bool = False
    """Whether the range has whole numbers only."""
    points: int = Field(3, ge=2)
    """How many values of the range a grid tries."""

    @model_validator(mode="after")
    def _is_a_choice_or_a_range(self) -> Parameter:
        bounds = {self.low, self.high} - {None}
        if self.choice:
            if bounds or self.log or self.integer:
                raise ValueError("a choice has no low, high, log or integer; leave them out, or the choice")
            if len({json.dumps(value) for value in self.choice}) < len(self.choice):
                raise ValueError("choice: the same value twice; name each once")
            return self
        if self.low is None or self.high is None:
            raise ValueError("expected a choice, or low and high")
        if not self.low < self.high:
            raise ValueError(f"low = {self.low:g} is not below high = {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low:g}: with log = true it has to be above 0")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError(f"low = {self.low:g}, high = {self.high:g}: with integer = true both are whole numbers")
        return self

    def grid(self) -> list[Any]:
        """The values that a grid tries: the choice, or `points` of the range, evenly apart and both ends among them."""
        if self.choice:
            return self.choice
        assert self.low is not None and self.high is not None, "validated"
        shares = [index / (self.points - 1) for index in range(self.points)]
        if self.log:
            values = [math.exp(math.log(self.low) * (1 - share) + math.log(self.high) * share) for share in shares]
        else:
            values = [self.low * (1 - share) + self.high * share for share in shares]
        values[0], values[-1] = self.low, self.high
        return list(dict.fromkeys(map(round, values))) if self.integer else [float(f"{value:.12g}") for value in values]


def grid(space: Mapping[str, Parameter]) -> Iterator[dict[str, Any]]:
    """Every combination of the parameters' grids; the last parameter changes first."""
    for values in itertools.product(*(parameter.grid() for parameter in space.values())):
        yield dict(zip(space, values, strict=True))


def settings(space: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as nested tables of a run's config."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        for key in space[name].keys or [name]:
            *tables, last = key.split(".")
            table = found
            for part in tables:
                table = table.setdefault(part, {})
            own = table.get(last)
            table[last] = {**own, **value} if isinstance(own, dict) and isinstance(value, dict) else value
    return found
