"""Rewards by rule, and how a group gets its scores from any set of reward functions.

A reward function only sees episodes that the agent, not the infrastructure, ended. It says nothing about advantages.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction
from numbers import Real

from gruppo.errors import RewardError, UserError
from gruppo.types import Episode, Group, Reward, Score, Task

_NUMBER = re.compile(r"[+-]?([0-9]+|[0-9]{1,3}(,[0-9]{3})+)?(\.[0-9]*)?(e[+-]?[0-9]{1,3}|/[0-9]+)?")
_ARTICLE = re.compile(r"(a|an|the) ")
# NFKC would make "10²" the number 102.
_BEFORE_NFKC = str.maketrans({"−": "-"} | {digit: f"^{value}" for value, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})


def exact(task: Task, episodes: Sequence[Episode]) -> list[float]:
    """1.0 where the answer equals a gold answer (alternatives are separated by "; "), else 0.0; no answer is 0.0.

    Equal means the same text after normalisation (NFKC, case, white space, trailing period, leading article), or the
    same number, compared exactly: "1,234" is 1234.0 and "1/2" is 0.5, but 0.333 is not 1/3.
    """
    gold = {_canonical(alternative) for alternative in task.result.split("; ") if alternative.strip()}
    return [float(episode.answer is not None and _canonical(episode.answer) in gold) for episode in episodes]


def _canonical(text: str) -> str | Fraction:
    """The number that `text` is, else its normal form. What normalisation would empty stays as it was."""
    plain = " ".join(unicodedata.normalize("NFKC", text.translate(_BEFORE_NFKC)).casefold().split())
    bare = _ARTICLE.sub("", plain.removesuffix(".").rstrip(), count=1) or plain
    number = _number(bare)
    return bare if number is None else number


def _number(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text)
    if match is None or not any(character.isdigit() for character in text):
        return None
    try:
        return Fraction(text.replace(",", ""))
    except (ValueError, ZeroDivisionError):  # "1.5/2", "e5", "1/0", or more digits than Python reads
        return None


def score_group(functions: Mapping[str, tuple[Reward, float]], group: Group) -> None:
    """Fill `scores` and `reward` of the group's episodes from `functions` (name -> function and weight).

    The reward is the weighted sum of the values there are; an episode without any is unscorable (None). Episodes that
    the infrastructure ended are not shown to the functions: they get a Score that says so, and no reward.

    Raises:
        RewardError: a function that broke its contract (wrong count, inf, not a number), with its name and the task.
    """
    scorable = [episode for episode in group.episodes if not episode.outcome.is_infrastructure]
    for episode in group.episodes:
        reason = str(episode.outcome) if episode.outcome.is_infrastructure else ""
        episode.scores = {name: Score(None, reason) for name in functions}
    for name, (function, _) in functions.items():
        for episode, score in zip(scorable, _scores(name, function, group.task, scorable), strict=True):
            episode.scores[name] = score
    for episode in group.episodes:
        values = {name: score.value for name, score in episode.scores.items() if score.value is not None}
        episode.reward = sum(functions[name][1] * value for name, value in values.items()) if values else None


def _scores(name: str, function: Reward, task: Task, episodes: list[Episode]) -> list[Score]:
    if not episodes:
        return []
    try:
        values = function(task, episodes)
    except UserError:  # a key that is missing, a contract that is broken: no run should go on without noticing
        raise
    except Exception as error:  # foreign code may raise anything; one task's failure must not end the run
        reason = " ".join(f"raised {type(error).__name__}: {error}".split())
        return [Score(None, reason)] * len(episodes)
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise RewardError(
            f"reward {name!r} returned {type(values).__name__} for task {task.id!r}: "
            f"expected a list of {len(episodes)} numbers"
        )
    if len(values) != len(episodes):
        raise RewardError(
            f"reward {name!r} returned {len(values)} scores for {len(episodes)} episodes of task {task.id!r}"
        )
    return [_score(name, task, value) for value in values]


def _score(name: str, task: Task, value: object) -> Score:
    if value is None:
        return Score(None, "returned None")
    wrong = f"reward {name!r} returned {value!r} for task {task.id!r}: expected a finite number, or None for no score"
    if not isinstance(value, Real):
        raise RewardError(wrong)
    try:
        number = float(value)
    except OverflowError as error:
        raise RewardError(wrong) from error
    if math.isinf(number):
        raise RewardError(wrong)
    return Score(None, "returned NaN") if math.isnan(number) else Score(number)
