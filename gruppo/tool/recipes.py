"""What a run rewards: from the tool's reward types, stored and registered names to the tables [rewards] and [reward].

The terms themselves are those of `gruppo.rewards`; here is only which of them, with which weights and settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gruppo.config import suggest
from gruppo.errors import ConfigError
from gruppo.rewards.functions import of_completions, takes_completions
from gruppo.rewards.terms import LengthPenaltyConfig, StepBonusConfig
from gruppo.tool.parameters import ComponentParameters, CreateRewardParameters, RewardParameters
from gruppo.types import Reward

CUSTOM = "custom_reward"

TERMS: Mapping[str, str] = {"accuracy": "accuracy", "length_penalty": "length_penalty", "step": "step_bonus"}
"""Reward type -> the function of [rewards] that is this term."""
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "accuracy": {"tolerance": "tolerance.within"},
    "length_penalty": {"target_length": "length_penalty.target", "penalty_weight": "length_penalty.per_token"},
    "step": {"step_bonus": "step_bonus.per_step"},
}
"""Reward type -> its own settings, each with the key of [reward] that it sets."""
DESCRIPTIONS: Mapping[str, str] = {
    "accuracy": "1 for a right answer, 0 for any other",
    "length_penalty": "less penalty_weight for each token of a right answer beyond target_length",
    "step": 'and step_bonus for each "Step n:" of a right answer',
}


@dataclass(frozen=True)
class Recipe:
    """Weights of reward functions by name, settings by their key in [reward], and functions that are not built in."""

    weights: Mapping[str, float]
    settings: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Reward] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, Any]:
        """Config key -> value. Accuracy is always looked at, if only with weight 0, so that success is known."""
        graded = {"accuracy": 0.0} | dict(self.weights)
        nested = {f"reward.{key}": value for key, value in self.settings.items()}
        return {"rewards": graded, "reward.grading": "completion", **nested}


def components_of(kind: str, own: RewardParameters) -> list[ComponentParameters]:
    """The terms of a reward type with their weights: accuracy alone, with a term for style, or as they are listed.

    Raises ConfigError for a setting that the type does not use.
    """
    given = own.model_dump(exclude_none=True, exclude_defaults=True, exclude={"reward_type", "name"})
    if kind == "combined":
        if not own.components:
            raise ConfigError('components: reward_type "combined" needs some, as [{"type": "accuracy", "weight": 1.0}]')
        if idle := given.keys() - {"components"}:
            raise ConfigError(
                f'{min(idle)}: of reward_type "combined" each of the components has its own; put it there'
            )
        return own.components
    if own.components:
        raise ConfigError(f'components: only reward_type "combined" has some, not {kind!r}')
    kinds = ["accuracy"] if kind == "accuracy" else ["accuracy", kind]
    for name in given:
        if not any(_takes(one, name) for one in kinds):
            raise ConfigError(f"{name} = {given[name]!r}: reward_type {kind!r} does not use it; leave it out")
    return [
        ComponentParameters.model_validate(
            {"type": one} | {name: value for name, value in given.items() if _takes(one, name)}
        )
        for one in kinds
    ]


def recipe_of(components: Sequence[ComponentParameters]) -> Recipe:
    """The weighted sum of terms. Raises ConfigError for a term that comes twice, or a setting that is not its own."""
    weights: dict[str, float] = {}
    settings: dict[str, Any] = {}
    for number, one in enumerate(components):
        place, name = f"components.{number}", TERMS[one.type]
        given = one.model_dump(exclude_none=True, exclude={"type", "weight"})
        if {"target_length", "max_length"} <= given.keys():
            raise ConfigError(f"{place}: target_length and max_length are two names of one thing; give one")
        for setting, value in given.items():
            if not _takes(one.type, setting):
                raise ConfigError(f"{place}.{setting} = {value!r}: {one.type!r} does not use it; leave it out")
            settings[SETTINGS[one.type][_one_name(setting)]] = value
        if one.type == "accuracy" and one.tolerance:
            name = "tolerance"
        if name in weights:
            raise ConfigError(f"{place}.type = {one.type!r}: comes twice; add the weights up")
        weights[name] = one.weight
    return Recipe(weights, settings)


def described(components: Sequence[ComponentParameters]) -> str:
    """The terms in words."""
    return ", ".join((f"{one.weight:g} × " if one.weight != 1 else "") + DESCRIPTIONS[one.type] for one in components)


def resolved(components: Sequence[ComponentParameters]) -> dict[str, Any]:
    """The settings that hold, defaults filled in."""
    defaults: dict[str, Any] = {
        "tolerance.within": 0.0,
        "length_penalty.target": LengthPenaltyConfig().target,
        "length_penalty.per_token": LengthPenaltyConfig().per_token,
        "step_bonus.per_step": StepBonusConfig().per_step,
    }
    values = defaults | dict(recipe_of(components).settings)
    return {setting: values[key] for one in components for setting, key in SETTINGS[one.type].items()}


def plain_function(function: Callable[..., Any], name: str) -> Reward:
    """A user's function as ours, whichever of the two signatures it has. Raises ConfigError if it is none."""
    if not callable(function):
        raise ConfigError(f"{name}: expected a function fn(completions, **columns), not {type(function).__name__}")
    return of_completions(function) if takes_completions(function) else function


class Rewards:
    """What a tool knows by name: created rewards and registered functions."""

    def __init__(self) -> None:
        self.created: dict[str, CreateRewardParameters] = {}
        self.registered: dict[str, Reward] = {}

    def choose(self, kind: str, own: RewardParameters, dataset: str, custom: Callable[..., Any] | None) -> Recipe:
        """The function that is given, else the type or name that is, else the data set's own, else accuracy.

        Raises ConfigError for a name that stands for nothing.
        """
        has_settings = own != RewardParameters()
        name = CUSTOM if custom else kind or (dataset if dataset in self.registered else "accuracy")
        if custom and (kind or has_settings):
            raise ConfigError("custom_reward: it is the whole reward; leave reward_type and reward_config out")
        if custom:
            return Recipe({CUSTOM: 1.0}, functions={CUSTOM: plain_function(custom, CUSTOM)})
        if name in self.registered:
            if has_settings:
                raise ConfigError(f"reward_config: the function {name!r} has no settings here; leave it out")
            return Recipe({name: 1.0}, functions={name: self.registered[name]})
        is_type = name in (*TERMS, "combined")
        if name in self.created and not (is_type and has_settings):
            stored = self.created[name]
            if has_settings:
                raise ConfigError(f"reward_config: {name!r} was created with its settings; leave it out")
            return recipe_of(components_of(stored.reward_type, stored))
        if not is_type:
            known = [*TERMS, "combined", *self.created, *self.registered]
            raise ConfigError(f"reward_type = {name!r}: no such reward{suggest(name, known)}")
        return recipe_of(components_of(name, own))


def _takes(kind: str, setting: str) -> bool:
    return _one_name(setting) in SETTINGS[kind]


def _one_name(setting: str) -> str:
    return "target_length" if setting == "max_length" else setting
