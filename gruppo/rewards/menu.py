"""The reward functions of a run, from the tables [rewards], [reward] and [judge].

[rewards] says which functions there are and what each weighs; their sum is the reward, and each stays a named score.
The other two hold their settings. It scores nothing and makes no engine: a judge is given one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

from pydantic import field_validator

from gruppo.config import Config, load_object, suggest
from gruppo.errors import ConfigError
from gruppo.rewards.agent import AgentConfig, agent
from gruppo.rewards.answers import grade
from gruppo.rewards.functions import Style, by_source, of_completions, takes_completions, within
from gruppo.rewards.judge import Judge, JudgeConfig
from gruppo.rewards.rules import is_equal
from gruppo.rewards.search import SearchRewardConfig, search
from gruppo.rewards.terms import (
    Grading,
    LengthPenaltyConfig,
    StepBonusConfig,
    ToleranceConfig,
    accuracy,
    length_penalty,
    step_bonus,
    tolerance,
    well_formed,
)
from gruppo.types import Engine, Reward


class RewardConfig(Config):
    """Settings of the reward functions that [rewards] names."""

    grading: Literal["exact", "answers", "completion"] = "exact"
    """How answers are compared, by all functions but "exact" and "answers": as those do, or, "completion", as "answers"
    does, of the whole text or of the answer in it: what its last marker marks, else its last value."""
    tolerance: ToleranceConfig = ToleranceConfig()
    length_penalty: LengthPenaltyConfig = LengthPenaltyConfig()
    step_bonus: StepBonusConfig = StepBonusConfig()
    agent: AgentConfig = AgentConfig()
    search: SearchRewardConfig = SearchRewardConfig()
    by_source: dict[str, str] = {}
    """Data set (a task's source) -> reward function, for "by_source"; "*" is for all others."""
    ranges: dict[str, list[float]] = {}
    """Reward function -> [lowest, highest]; a value outside ends the run."""
    completions: Literal["text", "messages"] = "text"
    """What functions of the form fn(completions, **columns) get where their annotation does not say it."""

    @field_validator("ranges")
    @classmethod
    def _check_ranges(cls, ranges: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, bounds in ranges.items():
            if len(bounds) != 2 or not bounds[0] <= bounds[1]:
                raise ValueError(f"{name!r}: expected [lowest, highest]")
        return ranges


GRADINGS: Mapping[str, Grading] = {
    "exact": is_equal,
    "answers": lambda prediction, gold: grade(prediction, gold, "answer").correct,
    "completion": lambda prediction, gold: (
        grade(prediction, gold, "answer").correct or grade(prediction, gold, "completion").correct
    ),
}

_GRADED = frozenset({"accuracy", "tolerance", "length_penalty", "step_bonus", "agent", "judge"})
_DYNAMIC = ("accuracy", "tolerance", "length_penalty", "step_bonus", "format", "agent", "search", "judge", "by_source")
_OF_PARTS = ("agent", "search")


def make_rewards(
    weights: Mapping[str, float],
    plain: Mapping[str, Reward],
    reward: RewardConfig,
    judge: JudgeConfig,
    engine: Callable[[str], tuple[Engine, str]],
    is_replayed: bool = False,
) -> dict[str, tuple[Reward, float]]:
    """Name -> function and weight, for the rollout. `plain` are the functions without settings, by name.

    `engine` gives the judge's engine, and the name of its model, by its name; `is_replayed` says whether searches from
    a kept state go on to the end of the run. Raises ConfigError for a function that
    can't be found and for a setting that nothing uses.
    """
    correct = lru_cache(maxsize=10_000)(GRADINGS[reward.grading])
    asked: dict[str, Judge] = {}  # one judge, however often it is named: one cache, one budget

    def find(name: str) -> Reward:
        if name == "judge":
            asked.setdefault(name, make_judge(judge, engine, correct))
            return asked[name]
        made: dict[str, Callable[[], Reward]] = {
            "accuracy": lambda: accuracy(correct),
            "tolerance": lambda: tolerance(correct, reward.tolerance),
            "length_penalty": lambda: length_penalty(correct, reward.length_penalty),
            "step_bonus": lambda: step_bonus(correct, reward.step_bonus),
            "format": lambda: well_formed,
            "by_source": lambda: by_source({source: find(chosen) for source, chosen in reward.by_source.items()}),
        }
        return (
            made[name]() if name in made else plain[name] if name in plain else _load(name, plain, reward.completions)
        )

    _refuse_unused({*weights, *(reward.by_source.values() if "by_source" in weights else ())}, reward, judge)
    found: dict[str, tuple[Reward, float]] = {}
    for name, weight in weights.items():
        if name in _OF_PARTS:
            parts = agent(correct, reward.agent) if name == "agent" else search(reward.search, is_replayed)
            found |= {f"{name}/{part}": (own, weight * share) for part, (own, share) in parts.items()}
        else:
            found[name] = (find(name), weight)
    for name, (low, high) in reward.ranges.items():
        if name not in found:
            raise ConfigError(f"reward.ranges.{name}: no such reward in [rewards]{suggest(name, found)}")
        found[name] = (within(found[name][0], low, high, name), found[name][1])
    return found


def check_names(names: Iterable[str], plain: Mapping[str, Reward]) -> None:
    """Raises ConfigError for a function that is neither built in nor said to be the user's own."""
    known = (*plain, *_DYNAMIC)
    for name in names:
        if ":" not in name and name not in known:
            raise ConfigError(f"rewards.{name}: no such reward{suggest(name, known)}; your own is 'file.py:name'")


def _load(name: str, plain: Mapping[str, Reward], style: Style) -> Reward:
    """The user's function. Raises ConfigError if there is none."""
    check_names([name], plain)
    function = load_object(name)
    if not callable(function):
        raise ConfigError(f"rewards.{name}: expected a function, got {type(function).__name__}")
    return of_completions(function, style) if takes_completions(function) else function


def make_judge(config: JudgeConfig, engine: Callable[[str], tuple[Engine, str]], correct: Grading) -> Judge:
    """The judge that [judge] describes. Raises ConfigError for settings that don't go together."""
    if not config.engine:
        raise ConfigError('judge.engine is missing: the reward "judge" asks an entry of [engines]; name it there')
    if config.mode == "ranking" and config.fallback:
        raise ConfigError("judge.fallback: answer matching can't rank; set it to false, or use another judge.mode")
    if config.mode != "graded" and config.highest != JudgeConfig().highest:
        raise ConfigError(f'judge.highest = {config.highest}: only judge.mode = "graded" has grades; leave it out')
    return Judge(*engine(config.engine), config, correct)


def _refuse_unused(used: set[str], reward: RewardConfig, judge: JudgeConfig) -> None:
    """Raises ConfigError for a setting whose function [rewards] does not name."""
    tables: dict[str, Any] = {name: value for name, value in reward if isinstance(value, Config)}
    for name, table in (tables | {"by_source": reward.by_source}).items():
        if name not in used and table not in ({}, type(table)()):
            raise ConfigError(
                f"reward.{name}: no function of [rewards] uses it; add {name} = 1.0 there, or leave it out"
            )
    if "judge" not in used and judge != JudgeConfig():
        raise ConfigError("judge: no function of [rewards] uses it; add judge = 1.0 there, or leave it out")
    if "by_source" in used and not reward.by_source:
        raise ConfigError('reward.by_source is empty: give it data set = "reward function"')
    for name in _OF_PARTS:
        if name in reward.by_source.values():
            raise ConfigError(f'reward.by_source: "{name}" is several functions; give it a weight in [rewards]')
    if "by_source" in reward.by_source.values():
        raise ConfigError('reward.by_source: "by_source" can\'t be its own function')
    if reward.grading != "exact" and not used & _GRADED:
        raise ConfigError(
            f"reward.grading = {reward.grading!r}: only {', '.join(sorted(_GRADED))} use it; leave it out"
        )
    if reward.completions != "text" and not any(":" in name for name in used):
        raise ConfigError(
            f"reward.completions = {reward.completions!r}: no function of [rewards] is your own; leave it out"
        )
