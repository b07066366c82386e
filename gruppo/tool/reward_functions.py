"""Reward functions `fn(completions, ground_truth=[...]) -> list[float]`, to call by hand or to give as custom_reward.

They are the terms of `gruppo.rewards.terms` on one text each; what is trained by reward_type uses those directly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gruppo.errors import RewardError
from gruppo.rewards.answers import grade
from gruppo.rewards.extraction import extract
from gruppo.rewards.rules import number_of
from gruppo.rewards.terms import LengthPenaltyConfig, StepBonusConfig, length_penalty, step_bonus
from gruppo.types import Episode, Reward, Sampling, StopReason, Task, Turn

RewardFunction = Callable[..., list[float]]

_TOKEN = re.compile(r"\w+|[^\w\s]")


class MathRewardFunction:
    """1 for a right answer, 0 for any other. Numbers that are nearer than `tolerance` to the truth are right too."""

    def __init__(self, tolerance: float = 1e-4) -> None:
        self.tolerance = tolerance

    def extract_answer(self, text: str) -> str | None:
        """What the last marker marks ("Final Answer:", "####", a box), else the last value; None if there is none.

        Of an equation its right side.
        """
        found = extract(text)
        return found.candidates[-1].rpartition("=")[2].strip() if found else None

    def compare_answers(self, prediction: str, truth: str) -> bool:
        """Whether two answers are equal: 72.0 is 72, 1,234 is 1234, \\frac12 is 0.5."""
        if grade(prediction, truth, "answer").correct:
            return True
        numbers = number_of(prediction), number_of(truth)
        return None not in numbers and abs(numbers[0] - numbers[1]) < Fraction(str(self.tolerance))  # type: ignore[operator]

    def __call__(self, completions: Sequence[str], **columns: Any) -> list[float]:
        """A reward for each completion; `ground_truth` has an answer for each."""
        return [float(self.is_right(*pair)) for pair in _with_truth(completions, columns)]

    def is_right(self, completion: str, truth: str) -> bool:
        """Whether the answer of a text is right."""
        answer = self.extract_answer(completion)
        return answer is not None and self.compare_answers(answer, truth)


class AccuracyReward(MathRewardFunction):
    """1 for a right answer, 0 for any other."""


class LengthPenaltyReward:
    """What `base` pays, less `penalty_weight` for each token of a right answer beyond `max_length`, at most 0.5.

    Tokens are `completion_ids` where they are given, as in a run; else words and signs.
    """

    def __init__(
        self, base: RewardFunction | None = None, max_length: int = 1024, penalty_weight: float = 0.001
    ) -> None:
        self.base = base or AccuracyReward()
        self.config = LengthPenaltyConfig(target=max_length, per_token=penalty_weight)

    def __call__(self, completions: Sequence[str], **columns: Any) -> list[float]:
        """As MathRewardFunction."""
        return _plus(self.base, length_penalty(_compare, self.config), completions, columns)


class StepReward:
    """What `base` pays, and `step_bonus` for each step of a right answer ("Step 1: ..."), at most 0.5."""

    def __init__(self, base: RewardFunction | None = None, step_bonus: float = 0.1) -> None:
        self.base = base or AccuracyReward()
        self.config = StepBonusConfig(per_step=step_bonus)

    def __call__(self, completions: Sequence[str], **columns: Any) -> list[float]:
        """As MathRewardFunction."""
        return _plus(self.base, step_bonus(_compare, self.config), completions, columns)


class CombinedReward:
    """The weighted sum of any such functions."""

    def __init__(self, components: Sequence[tuple[RewardFunction, float]]) -> None:
        self.components = list(components)

    def __call__(self, completions: Sequence[str], **columns: Any) -> list[float]:
        """As MathRewardFunction."""
        parts = [[weight * value for value in function(completions, **columns)] for function, weight in self.components]
        return [sum(values) for values in zip(*parts, strict=True)]


def create_accuracy_reward(tolerance: float = 1e-4) -> AccuracyReward:
    """An AccuracyReward."""
    return AccuracyReward(tolerance)


def create_length_penalty_reward(
    base: RewardFunction | None = None, max_length: int = 1024, penalty_weight: float = 0.001
) -> LengthPenaltyReward:
    """A LengthPenaltyReward."""
    return LengthPenaltyReward(base, max_length, penalty_weight)


def create_step_reward(base: RewardFunction | None = None, step_bonus: float = 0.1) -> StepReward:
    """A StepReward."""
    return StepReward(base, step_bonus)


def create_combined_reward(components: Sequence[tuple[RewardFunction, float]]) -> CombinedReward:
    """A CombinedReward of functions and their weights."""
    return CombinedReward(components)


def _compare(prediction: str, truth: str) -> bool:
    return MathRewardFunction().compare_answers(prediction, truth)


def _plus(base: RewardFunction, term: Reward, completions: Sequence[str], columns: Mapping[str, Any]) -> list[float]:
    """The base's rewards with those of a term added."""
    lengths = columns.get("completion_ids") or [_TOKEN.findall(completion) for completion in completions]
    rewards = base(completions, **columns)
    for number, (completion, truth) in enumerate(_with_truth(completions, columns)):
        values = term(Task("", "", truth), [_episode(completion, len(lengths[number]))])
        rewards[number] += values[0]  # type: ignore[index,operator]
    return rewards


def _with_truth(completions: Sequence[str], columns: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    truths = columns.get("ground_truth")
    if not isinstance(truths, Sequence) or isinstance(truths, str) or len(truths) != len(completions):
        raise RewardError(f"ground_truth: expected a list with an answer for each of {len(completions)} completions")
    return ((completion, str(truth)) for completion, truth in zip(completions, truths, strict=True))


def _episode(completion: str, num_tokens: int) -> Episode:
    """One text as an episode of one turn of so many tokens."""
    ids, logprobs = tuple(range(num_tokens)), (0.0,) * num_tokens
    turn = Turn("agent", None, 0, "", (), ids, logprobs, Sampling(), StopReason.stop, completion)
    return Episode("", "", 0, 0, [turn], answer=MathRewardFunction().extract_answer(completion))
