"""How the requests of many episodes become calls to engines: all together in lockstep, or as soon as an engine is free.

It plays no episode and knows no team. A call that fails is repeated request by request, so that none fails another.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gruppo.errors import EngineError, GruppoError, boundary
from gruppo.types import Completion, Engine, Request

Key = tuple[int, int, int]  # (group, attempt, submission): the order of a lockstep batch


class RestingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while nobody runs it, and with it every deadline."""

    _rested = 0.0
    _stopped: float | None = None

    def time(self) -> float:
        return super().time() - self._rested

    def run_forever(self) -> None:
        if self._stopped is not None:
            self._rested += time.monotonic() - self._stopped
        try:
            super().run_forever()
        finally:
            self._stopped = time.monotonic()


class Deadline:
    """The seconds that an episode may take; its clock rests while one of its requests waits to go to an engine.

    `async with` it: the block raises TimeoutError when they are used up.
    """

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds
        self._waiting, self._since = 0, 0.0
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_at(self._end, self._ring)

    async def __aexit__(self, *error: Any) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(*error)

    def rest(self) -> None:
        """A request begins to wait."""
        if not self._waiting:
            self._since = self._loop.time()
        self._waiting += 1

    def run(self) -> None:
        """A request waits no longer."""
        self._waiting -= 1
        if not self._waiting:
            self._end += self._loop.time() - self._since

    def _ring(self) -> None:
        now = self._loop.time()
        end = self._end + (now - self._since if self._waiting else 0.0)
        if end <= now:
            self._timeout.reschedule(now)
        else:  # it has rested; one timer set anew is cheaper than one per request
            self._timer = self._loop.call_at(end, self._ring)


@dataclass(eq=False, slots=True)
class Waiting:
    """A request on its way into a call."""

    key: Key
    engine: str
    request: Request
    answer: asyncio.Future[Completion]
    deadline: Deadline
    is_sent: bool = False


class Dispatch:
    """What both modes have in common: how a request waits, and how a call is made of several and answered."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._calls: set[asyncio.Task[None]] = set()

    def enter(self) -> None:
        """An episode begins."""

    def leave(self) -> None:
        """An episode ended."""

    async def submit(self, key: Key, engine: str, request: Request, deadline: Deadline) -> Completion:
        """The completion of this request. The deadline rests until the request goes to its engine."""
        waiting = Waiting(key, engine, request, asyncio.get_running_loop().create_future(), deadline)
        deadline.rest()
        self._put(waiting)
        try:
            return await waiting.answer
        finally:
            if not waiting.is_sent:  # given up
                deadline.run()
                self._take_back(waiting)

    def _put(self, waiting: Waiting) -> None:
        raise NotImplementedError

    def _take_back(self, waiting: Waiting) -> None:
        raise NotImplementedError

    def _send(self, name: str, batch: Sequence[Waiting]) -> asyncio.Task[None]:
        """Start a call; nothing of the batch waits any longer."""
        for waiting in batch:
            waiting.is_sent = True
            waiting.deadline.run()
        call = asyncio.ensure_future(self._call(name, batch))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    async def _call(self, name: str, batch: Sequence[Waiting]) -> None:
        """Give each request its answer, or the reason why there is none."""
        try:
            with boundary(EngineError, f"engine {name!r}"):
                answers = await self._engines[name].generate([waiting.request for waiting in batch])
                if len(answers) != len(batch):
                    raise ValueError(f"{len(answers)} completions for {len(batch)} requests")
        except GruppoError as error:
            if isinstance(error, EngineError) and len(batch) > 1:  # one request must not fail its siblings
                await asyncio.gather(*(self._call(name, [waiting]) for waiting in batch))
                return
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            return
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)


class Lockstep(Dispatch):
    """Waits until every live episode asks for something, then sends everything, in the order of the keys."""

    def __init__(self, engines: Mapping[str, Engine], max_batch: int) -> None:
        super().__init__(engines)
        self._max_batch = max_batch
        self._live = 0
        self._waiting: dict[Key, Waiting] = {}

    def enter(self) -> None:
        """An episode begins: nothing goes out before it asks or leaves."""
        self._live += 1

    def leave(self) -> None:
        self._live -= 1
        self._check_soon()

    def _put(self, waiting: Waiting) -> None:
        self._waiting[waiting.key] = waiting
        self._check_soon()

    def _take_back(self, waiting: Waiting) -> None:
        self._waiting.pop(waiting.key, None)

    def _check_soon(self) -> None:
        # Not at once: episodes that are ready to run have yet to enter, or to ask.
        asyncio.get_running_loop().call_soon(self._send_if_all_wait)

    def _send_if_all_wait(self) -> None:
        if not self._waiting or len({key[:2] for key in self._waiting}) < self._live:
            return
        everything = [self._waiting.pop(key) for key in sorted(self._waiting)]
        for name in sorted({waiting.engine for waiting in everything}):
            for batch in batches([waiting for waiting in everything if waiting.engine == name], self._max_batch):
                self._send(name, batch)


class FreeRunning(Dispatch):
    """Sends what waits for an engine as soon as the engine is free; engines don't wait for one another.

    An engine is free when fewer than its `calls` are under way (1 where none are given). One that takes several calls
    at once is a server that batches by itself: it gets every request as a call of its own.
    """

    def __init__(self, engines: Mapping[str, Engine], max_batch: int, calls: Mapping[str, int]) -> None:
        super().__init__(engines)
        self._max_batch, self._max_calls = max_batch, calls
        self._under_way: Counter[str] = Counter()
        self._queues: dict[str, deque[Waiting]] = defaultdict(deque)

    def _put(self, waiting: Waiting) -> None:
        queue = self._queues[waiting.engine]
        queue.append(waiting)
        if len(queue) == 1:  # not at once: episodes that are ready to run have yet to ask
            asyncio.get_running_loop().call_soon(self._send_if_free, waiting.engine)

    def _take_back(self, waiting: Waiting) -> None:
        self._queues[waiting.engine].remove(waiting)

    def _send_if_free(self, name: str) -> None:
        queue, max_calls = self._queues[name], self._max_calls.get(name, 1)
        size = 1 if max_calls > 1 else self._max_batch
        while queue and self._under_way[name] < max_calls:
            self._under_way[name] += 1
            batch = [queue.popleft() for _ in range(min(size, len(queue)))]
            self._send(name, batch).add_done_callback(lambda _: self._is_done(name))

    def _is_done(self, name: str) -> None:
        self._under_way[name] -= 1
        self._send_if_free(name)


def batches(waiting: Sequence[Waiting], size: int) -> Iterator[Sequence[Waiting]]:
    """In order, cut into pieces of at most `size`."""
    return (waiting[start : start + size] for start in range(0, len(waiting), size))
