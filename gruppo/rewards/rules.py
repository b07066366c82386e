"""Rewards by rule, and how a group gets its scores from any set of reward functions.

A reward function only sees episodes that the agent, not the infrastructure, ended. It says nothing about advantages.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from numbers import Real

from gruppo.errors import EngineError, RewardError, UserError
from gruppo.types import Episode, Group, Outcome, Reward, Score, Task

NO_VERDICT = "no verdict: "  # how the reason of a score begins whose judge, not whose agent, failed

_NUMBER = re.compile(r"[+-]?([0-9]+|[0-9]{1,3}(,[0-9]{3})+)?(\.[0-9]*)?(e[+-]?[0-9]{1,3}|/[0-9]+)?")
_ARTICLE = re.compile(r"(a|an|the) ")
# NFKC would make "10²" the number 102.
_BEFORE_NFKC = str.maketrans({"−": "-"} | {digit: f"^{value}" for value, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})


def exact(task: Task, episodes: Sequence[Episode]) -> list[float]:
    """1.0 where the answer equals a gold answer (alternatives are separated by "; "), else 0.0; no answer is 0.0.

    Equal means the same text after normalisation (NFKC, case, white space, trailing period, leading article), or the
    same number, compared exactly: "1,234" is 1234.0 and "1/2" is 0.5, but 0.333 is not 1/3.
    """
    return [float(episode.answer is not None and is_equal(episode.answer, task.result)) for episode in episodes]


def is_equal(prediction: str, gold: str) -> bool:
    """Whether a prediction is one of the gold answers, compared as `exact` says."""
    alternatives = (alternative for alternative in gold.split("; ") if alternative.strip())
    return _canonical(prediction) in map(_canonical, alternatives)


def number_of(text: str) -> Fraction | None:
    """The number that a whole text is, as `exact` reads it; None if it is none."""
    value = _canonical(text)
    return value if isinstance(value, Fraction) else None


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


def is_async(function: Reward) -> bool:
    """Whether a reward function has to be awaited: `async def`, or an object whose `__call__` is."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def ask(functions: Mapping[str, tuple[Reward, float]], group: Group, seconds: float) -> dict[str, object]:
    """Name -> what each asynchronous function returned for the group, or the exception that it ended with.

    They run side by side on the running loop; one that takes longer than `seconds` ends with a TimeoutError.
    """
    scorable = _scorable(group)
    names = [name for name, (function, _) in functions.items() if scorable and is_async(function)]

    async def call(name: str) -> object:
        async with asyncio.timeout(seconds):
            values = functions[name][0](group.task, scorable)
            return await values if inspect.isawaitable(values) else values

    return dict(zip(names, await asyncio.gather(*map(call, names), return_exceptions=True), strict=True))


def score_group(
    functions: Mapping[str, tuple[Reward, float]], group: Group, asked: Mapping[str, object] | None = None
) -> None:
    """Fill `scores` and `reward` of the group's episodes from `functions` (name -> function and weight).

    The reward is the weighted sum of the values there are; an episode without any (weight 0 does not count) is
    unscorable (None). Episodes that the infrastructure ended are not shown to the functions: they get a Score that says
    so, and no reward. `asked` is what `ask` found of the asynchronous functions.

    A function may give a `Score` in place of a number: its reason is kept with its value, and one without a value says
    that the judge failed: the episode is `judge_failed` and has no reward. The same happens when an asynchronous
    function runs out of time or its engine fails.

    Raises:
        RewardError: a function that broke its contract (wrong count, inf, not a number), with its name and the task.
    """
    scorable = _scorable(group)
    for episode in group.episodes:
        reason = str(episode.outcome) if episode.outcome.is_infrastructure else ""
        episode.scores = {name: Score(None, reason) for name in functions}
    for name, (function, weight) in functions.items():
        for episode, score in zip(scorable, _scores(name, function, group.task, scorable, asked or {}), strict=True):
            episode.scores[name] = score
            if weight and score.reason.startswith(NO_VERDICT):
                episode.outcome, episode.error = Outcome.judge_failed, f"reward {name!r}: {score.reason}"
    for episode in group.episodes:
        values = {name: score.value for name, score in episode.scores.items() if score.value is not None}
        counts = any(functions[name][1] for name in values) and not episode.outcome.is_infrastructure
        episode.reward = sum(functions[name][1] * value for name, value in values.items()) if counts else None


def _scorable(group: Group) -> list[Episode]:
    return [episode for episode in group.episodes if not episode.outcome.is_infrastructure]


def _scores(
    name: str, function: Reward, task: Task, episodes: list[Episode], asked: Mapping[str, object]
) -> list[Score]:
    if not episodes:
        return []
    try:
        values = asked[name] if name in asked else function(task, episodes)
        if isinstance(values, Exception):
            raise values
    except UserError:  # a key that is missing, a contract that is broken: no run should go on without noticing
        raise
    except (TimeoutError, EngineError) as error:
        reason = " ".join(f"{NO_VERDICT}{str(error) or 'it took too long'}".split())
        return [Score(None, reason)] * len(episodes)
    except Exception as error:  # foreign code may raise anything; one task's failure must not end the run
        reason = " ".join(f"raised {type(error).__name__}: {error}".split())
        return [Score(None, reason)] * len(episodes)
    if inspect.iscoroutine(values):
        values.close()  # nobody will await it
        raise RewardError(
            f"reward {name!r} returned a coroutine: define it with async def, and a rollout will await it"
        )
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
    if isinstance(value, Score):
        if value.value is None:
            return Score(None, value.reason if value.reason.startswith(NO_VERDICT) else f"{NO_VERDICT}{value.reason}")
        return replace(_score(name, task, value.value), reason=value.reason)
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
