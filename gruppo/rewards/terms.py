"""Terms of a reward: being right, and what is added or taken away for how. Their weighted sum is the table [rewards].

Each is a reward function of its own, so each is a named score of the episode. What is paid for style (brevity, steps)
is paid only where the answer is right, and is bounded, so that no style outweighs being right. Accuracy plus the
penalty is 0.7 for a right answer 300 tokens too long, accuracy plus the bonus 1.3 for one in three steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from pydantic import Field

from gruppo.config import Config
from gruppo.rewards.rules import number_of
from gruppo.types import Episode, Outcome, Reward, Task

Grading = Callable[[str, str], bool | None]
"""(prediction, gold) -> whether the prediction is right; None: nobody can say."""

VIOLATION = 0.2  # what a turn that could not be read costs of `format`

_STEP = re.compile(
    r"^[\s>*_#-]*(?:step|schritt|步骤|第)\s*(?P<number>[0-9]{1,3})\s*步?\s*[:.)：、-]?[*_]*(?P<text>.*)$",
    re.IGNORECASE | re.MULTILINE,
)


class ToleranceConfig(Config):
    """When a number is near enough."""

    within: float = Field(0.01, ge=0)
    """An answer closer to the result than this counts as right; equal numbers always do."""
    near: float = Field(0.0, ge=0)
    """One closer than this is paid `near_reward`; 0: none is."""
    near_reward: float = Field(0.5, ge=0, le=1)
    """What a near answer is paid."""


class LengthPenaltyConfig(Config):
    """What a long answer costs, where it is right."""

    target: int = Field(200, ge=0)
    """Tokens that an episode may sample for nothing."""
    per_token: float = Field(0.001, gt=0)
    """The penalty for each token above."""
    most: float = Field(0.5, gt=0)
    """The largest penalty; above 1, a right answer may be worth less than a wrong one."""


class StepBonusConfig(Config):
    """What visible steps are worth, where the answer is right."""

    per_step: float = Field(0.1, gt=0)
    """The bonus for each."""
    most: float = Field(0.5, gt=0)
    """The largest bonus."""


def accuracy(correct: Grading) -> Reward:
    """1 where the answer is right, 0 where it is wrong or missing, None where `correct` can't say."""

    def score(task: Task, episodes: Sequence[Episode]) -> list[float | None]:
        return [_as_number(is_right(correct, task, episode)) for episode in episodes]

    return score


def tolerance(correct: Grading, config: ToleranceConfig) -> Reward:
    """As `accuracy`, but a number near the result is right too, and one not far from it is paid in part.

    Numbers are compared exactly: 72.01 is 0.01 away from 72, and so not closer than 0.01.
    """

    def grade(prediction: str, gold: str) -> float | None:
        number = number_of(prediction)
        golds = [known for part in gold.split("; ") if (known := number_of(part)) is not None]
        if number is not None and golds:
            distance = min(abs(number - known) for known in golds)
            if not distance or distance < _exactly(config.within):
                return 1.0
            if distance < _exactly(config.near):
                return config.near_reward
        return _as_number(correct(prediction, gold))

    def score(task: Task, episodes: Sequence[Episode]) -> list[float | None]:
        return [0.0 if episode.answer is None else grade(episode.answer, task.result) for episode in episodes]

    return score


def length_penalty(correct: Grading, config: LengthPenaltyConfig) -> Reward:
    """-per_token for each sampled token beyond the target, at most -`most`; 0 unless the answer is right.

    Tokens are those of all turns whose engine shows them.
    """

    def score(task: Task, episodes: Sequence[Episode]) -> list[float]:
        over = [max(0, sum(episode.num_tokens.values()) - config.target) for episode in episodes]
        return [
            -min(config.most, config.per_token * tokens) if is_right(correct, task, episode) else 0.0
            for tokens, episode in zip(over, episodes, strict=True)
        ]

    return score


def step_bonus(correct: Grading, config: StepBonusConfig) -> Reward:
    """per_step for each step that the text shows, at most `most`; 0 unless the answer is right."""

    def score(task: Task, episodes: Sequence[Episode]) -> list[float]:
        return [
            min(config.most, config.per_step * num_steps(text_of(episode))) if is_right(correct, task, episode) else 0.0
            for episode in episodes
        ]

    return score


def well_formed(task: Task, episodes: Sequence[Episode]) -> list[float]:
    """1, less 0.2 for each turn that could not be read, at least 0; 0 without an answer."""
    return [
        0.0 if episode.answer is None else max(0.0, 1 - VIOLATION * num_violations(episode)) for episode in episodes
    ]


def is_right(correct: Grading, task: Task, episode: Episode) -> bool | None:
    """Whether the episode's answer is right; none is wrong."""
    return False if episode.answer is None else correct(episode.answer, task.result)


def num_steps(text: str) -> int:
    """Steps "Step 1: ...", "Step 2: ..." at line starts, counted as long as they go on by one and say something new."""
    said: set[str] = set()
    for match in _STEP.finditer(text):
        content = " ".join(re.findall(r"\w+", match["text"].casefold()))
        if content and int(match["number"]) == len(said) + 1:
            said.add(content)
    return len(said)


def num_violations(episode: Episode) -> int:
    """Turns that could not be read; an episode that ended for its format has at least one."""
    return max(sum(bool(turn.error) for turn in episode.turns), int(episode.outcome == Outcome.wrong_format))


def text_of(episode: Episode) -> str:
    """All that the team said, one turn below the other; its answer if it said nothing."""
    return "\n".join(turn.text for turn in episode.turns) if episode.turns else episode.answer or ""


def _as_number(is_right: bool | None) -> float | None:
    return None if is_right is None else float(is_right)


def _exactly(number: float) -> Fraction:
    return Fraction(str(number))
