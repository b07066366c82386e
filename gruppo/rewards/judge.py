"""The judge: a language model that says what an answer is worth, through an engine that it is given.

It asks with care (quoted texts, a cache, a budget, a rate, retries, deadlines) and reads with suspicion; what it can't
get a verdict for has no value, never 0. Which words are a verdict is `verdicts.py`'s part, how texts are quoted
`quoting.py`'s.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from string import ascii_uppercase
from typing import Literal, TypeVar

from pydantic import Field

from gruppo.config import Config
from gruppo.errors import EngineError, boundary
from gruppo.rewards.quoting import ask_about, shorten
from gruppo.rewards.replies import Replies, key_of
from gruppo.rewards.rules import NO_VERDICT
from gruppo.rewards.terms import Grading
from gruppo.rewards.verdicts import read_choice, read_grade, read_ranking, read_verdict
from gruppo.types import Engine, Episode, Message, Request, Sampling, Score, StopReason, Task

T = TypeVar("T")

BINARY = """You grade an answer to a question against a reference answer. It is correct if it means the same as the
reference: as a number, a formula, a name or an option, whatever its wording and notation; several reference answers,
separated by ";", are alternatives. An answer that hedges, lists several candidates or adds a contradiction is wrong.
{criteria}Reply with one JSON object: {{"reason": "one sentence", "correct": true or false}}"""

GRADED = """You grade an answer to a question with a whole number from 0 (worthless) to {highest} (perfect). A reference
answer, if it is not empty, says what is right.
{criteria}Reply with one JSON object: {{"reason": "one sentence", "score": a number from 0 to {highest}}}"""

RANKING = """You rank answers to one question from best to worst. A reference answer, if it is not empty, says what is
right; what is right is better than what is wrong, whatever its style or length. Their order here means nothing.
{criteria}Reply with one JSON object that names every answer once, equals in one list, as for three answers
{{"reason": "one sentence", "ranking": [["B"], ["A", "C"]]}}"""

PAIRWISE = """You compare two answers, A and B, to one question. A reference answer, if it is not empty, says what is
right. Their order here means nothing.
{criteria}Reply with one JSON object: {{"reason": "one sentence", "winner": "A" or "B" or "tie"}}"""

REMINDER: Message = {"role": "user", "content": "Reply with the JSON object that was asked for, and nothing else."}
MAX_SHOWN = 80  # characters of a reply in a reason


class JudgeConfig(Config):
    """The judge of the reward "judge": who it is, what it is asked, and how much it may cost."""

    engine: str = ""
    """Which entry of [engines] judges; "local" can't."""
    mode: Literal["binary", "graded", "ranking"] = "binary"
    """"binary": right or wrong, 1 or 0. "graded": a grade, as a share of `highest`. "ranking": the answers of a group
    are ranked in one call, from 1 for the best to 0 for the worst."""
    criteria: str = ""
    """What to look for, in the judge's words; added to its instructions."""
    highest: int = Field(10, ge=1)
    """The best grade; for "graded"."""
    temperature: float = Field(0.0, ge=0)
    """Of sampling; 0 is greedy."""
    max_tokens: int = Field(1024, ge=1)
    """Longest reply, reasoning included; one that is cut off is no verdict."""
    max_characters: int = Field(8000, ge=100)
    """Longest text that the judge is shown; of a longer one the middle is left out."""
    seed: int = 0
    """Of the judge's draws and of the order of the answers that it ranks."""
    max_concurrency: int = Field(16, ge=1)
    """Verdicts asked for at once."""
    max_seconds: float = Field(120.0, gt=0)
    """How long one call may take."""
    retries: int = Field(2, ge=0)
    """How often the judge is asked again after a failed call or a reply without a verdict."""
    backoff_seconds: float = Field(1.0, gt=0)
    """The longest wait after a first failed call; it doubles with each, and the wait is drawn at random below it."""
    max_calls: int | None = Field(None, ge=0)
    """Calls that the process may make; after that there are no verdicts but those in the cache."""
    calls_per_minute: float | None = Field(None, gt=0)
    """The rate at which calls are made."""
    cache: str = ""
    """A folder for replies, which are asked for once; empty: they are kept in memory."""
    fallback: bool = False
    """Whether the answer is compared with the reference instead where there is no verdict; else the episode is
    judge_failed."""


class NoVerdict(Exception):
    """Why the judge has not said anything that counts."""


class _Unreadable(NoVerdict):
    """It answered, and its reply holds no verdict: asked again, it may."""


class Judge:
    """An asynchronous reward function: one `Score` per episode, in [0, 1] or without a value.

    An episode without an answer is worth 0 and is not shown. Equal answers of a group are judged once. The reason of a
    score says "fallback: ..." where answer matching stood in, and "disagrees: ..." where it says otherwise; `counts`
    holds how often, and the calls made, cached replies and missing verdicts. `model` names the judge in the cache.
    """

    def __init__(self, engine: Engine, model: str, config: JudgeConfig, correct: Grading) -> None:
        self.config, self.counts = config, Counter[str]()
        self._engine, self._model, self._correct = engine, model, correct
        self._sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)
        self._replies = Replies(config.cache)
        self._next_call = 0.0
        # One per event loop: a semaphore belongs to the loop that first waited on it.
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._slots = weakref.WeakKeyDictionary()

    async def __call__(self, task: Task, episodes: Sequence[Episode]) -> list[Score | None]:
        answers = [(episode.answer or "").strip() for episode in episodes]
        unique = [answer for answer in dict.fromkeys(answers) if answer]
        if self.config.mode == "ranking":
            return await self._rank(task, answers, unique)
        scores = dict(zip(unique, await asyncio.gather(*(self.score(task, answer) for answer in unique)), strict=True))
        return [scores[answer] if answer else Score(0.0, "no answer") for answer in answers]

    async def score(self, task: Task, answer: str) -> Score:
        """The judge's word on one answer, else what the config says should stand in for it."""
        is_right = await asyncio.to_thread(self._correct, answer, task.result)  # it may take its time
        try:
            value = await self.value(task, answer)
        except NoVerdict as problem:
            self.counts["no verdict"] += 1
            if not self.config.fallback or is_right is None:
                return Score(None, f"{NO_VERDICT}{problem}")
            self.counts["fallback"] += 1
            return Score(float(is_right), f"fallback: {problem}")
        if is_right is None or (value >= 0.5) is is_right:
            return Score(value)
        self.counts["disagrees"] += 1
        return Score(value, f"disagrees: by answer matching it is {'right' if is_right else 'wrong'}")

    async def value(self, task: Task, answer: str) -> float:
        """The bare verdict on one answer, in [0, 1]. Raises NoVerdict."""
        texts = {"question": task.question, "reference": task.result, "answer": answer}
        if self.config.mode == "graded":
            read = partial(read_grade, highest=self.config.highest, candidate=answer)
            return await self.ask(task, GRADED, texts, read) / self.config.highest
        return float(await self.ask(task, BINARY, texts, partial(read_verdict, candidate=answer)))

    async def prefer(self, task: Task, first: str, second: str) -> str:
        """Which of two answers, shown in this order, is better: "A", "B" or "tie". Raises NoVerdict."""
        texts = {"question": task.question, "reference": task.result, "answer A": first, "answer B": second}
        return await self.ask(task, PAIRWISE, texts, partial(read_choice, labels=["A", "B"]))

    async def _rank(self, task: Task, answers: Sequence[str], unique: Sequence[str]) -> list[Score | None]:
        labels = [f"{ascii_uppercase[place % 26]}{place // 26 or ''}" for place in range(len(unique))]
        shuffled = sorted(unique)  # the order depends on what is ranked, not on who came first
        random.Random(key_of(self.config.seed, task.question, shuffled)).shuffle(shuffled)
        texts = {"question": task.question, "reference": task.result}
        texts |= {f"answer {label}": answer for label, answer in zip(labels, shuffled, strict=True)}
        tiers = [labels]
        if len(unique) > 1:
            try:
                tiers = await self.ask(task, RANKING, texts, partial(read_ranking, labels=labels))
            except NoVerdict as problem:
                self.counts["no verdict"] += 1
                return [Score(None, f"{NO_VERDICT}{problem}")] * len(answers)
        tier_of = {label: place for place, tier in enumerate(tiers) for label in tier}
        places = {answer: tier_of[label] for label, answer in zip(labels, shuffled, strict=True)}
        values = rank_rewards([places.get(answer) for answer in answers])
        return [None if value is None else Score(value) for value in values]

    async def ask(self, task: Task, instructions: str, texts: dict[str, str], read: Callable[[str], T | None]) -> T:
        """What `read` finds in the reply to any question about `texts`, {criteria} in the `instructions` filled in.

        Raises NoVerdict once the tries, or the budget, are used up.
        """
        import tenacity

        criteria = f"{self.config.criteria.strip()}\n" if self.config.criteria.strip() else ""
        instructions = instructions.format(criteria=criteria, highest=self.config.highest)
        messages = ask_about(instructions, texts, self.config.max_characters)
        key = key_of(self._model, messages, self.config.temperature, self.config.max_tokens, self.config.seed)
        if (known := self._replies.get(key)) is not None and (found := read(known)) is not None:
            self.counts["cached"] += 1
            return found
        jitter = tenacity.wait_random_exponential(multiplier=self.config.backoff_seconds, max=60)

        def wait(state: tenacity.RetryCallState) -> float:
            assert state.outcome
            return jitter(state) if isinstance(state.outcome.exception(), EngineError) else 0.0

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((_Unreadable, EngineError)),
            stop=tenacity.stop_after_attempt(self.config.retries + 1),
            wait=wait,
            sleep=asyncio.sleep,
            reraise=True,
        )
        slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.config.max_concurrency))
        try:
            async with slots:
                async for attempt in retrying:
                    with attempt:
                        number = attempt.retry_state.attempt_number
                        reply = await self._call(task, [*messages, *([REMINDER] if number > 1 else [])], number)
                        if (found := read(reply)) is None:
                            raise _Unreadable(f"can't read the reply {shorten(reply.strip(), MAX_SHOWN)!r}")
        except EngineError as error:
            raise NoVerdict(str(error)) from None
        assert found is not None, "the last try raises"
        self._replies.keep(key, reply)
        return found

    async def _call(self, task: Task, messages: Sequence[Message], number: int) -> str:
        """One reply, paid for. Raises NoVerdict, EngineError."""
        config = self.config
        if config.max_calls is not None and self.counts["calls"] >= config.max_calls:
            raise NoVerdict(f"the budget of {config.max_calls} calls is used up (judge.max_calls)")
        self.counts["calls"] += 1
        if config.calls_per_minute:
            now = time.monotonic()
            start = max(now, self._next_call)
            self._next_call = start + 60 / config.calls_per_minute
            await asyncio.sleep(start - now)
        request = Request(messages, self._sampling, config.seed + number - 1, context=(task.id, 0, "judge", number - 1))
        try:
            async with asyncio.timeout(config.max_seconds):
                with boundary(EngineError, "the judge's engine"):
                    (done,) = await self._engine.generate([request])
        except TimeoutError:
            raise EngineError(f"the judge gave no answer within {config.max_seconds:g} s") from None
        if done.stop_reason == StopReason.context_overflow:
            raise NoVerdict("the prompt does not fit the judge")
        if done.stop_reason == StopReason.length:
            raise _Unreadable(f"the reply was cut off at {config.max_tokens} tokens (judge.max_tokens)")
        return done.text


def rank_rewards(places: Sequence[int | None]) -> list[float | None]:
    """Places, 0 the best, to rewards from 1 for the best to 0 for the worst; who ties shares what the tie is worth.

    A reward is the share of the others that are worse, a tie counting half. None among the places, no answer, is worse
    than any and worth 0; one on its own has no reward.
    """
    if len(places) == 1:
        return [None]
    worst = max((place for place in places if place is not None), default=0) + 1
    known = [worst if place is None else place for place in places]
    beaten = [sum((other > own) + (other == own) / 2 for other in known) - 0.5 for own in known]
    return [0.0 if place is None else won / (len(places) - 1) for place, won in zip(places, beaten, strict=True)]
