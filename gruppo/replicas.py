"""Replicas: forked copies of this process that compute beside it, so that small models use every core.

Threads inside one small matrix product gain next to nothing; whole processes gain their number. A replica starts as a
copy of everything here; it sees later changes only through shared memory and through the `state` that goes ahead of
each job. It knows no models: hosts are whatever objects the jobs run on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

from gruppo.errors import EngineError, GruppoError

CAN_FORK = sys.platform == "linux"  # elsewhere the system's own numeric libraries do not survive a fork


@dataclass(frozen=True)
class _Replica:
    process: ForkProcess
    connection: Connection


class Replicas:
    """`num` processes, this one among them. Where they can't be forked, all shares are computed here: same results."""

    def __init__(
        self, num: int, state: Callable[[], Any] = lambda: None, adopt: Callable[[Any], None] = lambda state: None
    ) -> None:
        self.num = num
        self._state, self._adopt = state, adopt
        self._is_busy = False
        self._hosts: list[Any] = []
        self._endings: list[Callable[[], None]] = []
        self._replicas: list[_Replica] = []

    @property
    def free(self) -> int:
        """How many processes a job would have now: `num`, but inside a job its own alone."""
        return 1 if self._is_busy else self.num

    def add(self, host: Any, at_end: Callable[[], None] = lambda: None) -> None:
        """An object that jobs run on; each replica calls `at_end` when it ends.

        Replicas already running do not know it: they are started anew when needed.
        """
        self.stop()
        self._hosts.append(host)
        self._endings.append(at_end)

    def start(self) -> None:
        """Fork, if not done yet. What the jobs need must be there by now."""
        if not CAN_FORK or self._replicas:
            return
        context = multiprocessing.get_context("fork")
        for _ in range(1, self.num):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve, args=(theirs,), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads at a fork: a replica touches none of them
                process.start()
            theirs.close()
            self._replicas.append(_Replica(process, ours))

    def stop(self) -> None:
        """End the replicas; the next job forks new ones, as everything then is."""
        for replica in self._replicas:
            replica.connection.close()
            replica.process.join()
        self._replicas = []

    def map(self, job: Callable[..., Any], host: Any, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`job(host, *share)` for each of at most `free` shares, side by side; the results in their order.

        `job` is a function that can be imported. Raises what a job raised, EngineError for a replica that died.
        """
        assert len(shares) <= self.free
        if len(shares) > 1:
            self.start()
        place = next(place for place, own in enumerate(self._hosts) if own is host)
        helped = list(zip(self._replicas, shares[1:], strict=False))
        state = self._state() if helped else None
        for replica, share in helped:
            self._send(replica, (state, place, job, share))
        was_busy, self._is_busy = self._is_busy, True
        try:
            outcomes = [_outcome(job, host, share) for share in (shares[:1] if helped else shares)]
        finally:
            self._is_busy = was_busy
        outcomes += [self._receive(replica) for replica, _ in helped]  # all of them, or the next answers would be late
        for outcome in outcomes:
            if isinstance(outcome, _Failed):
                raise outcome.error
        return outcomes

    def _send(self, replica: _Replica, message: Any) -> None:
        try:
            replica.connection.send(message)
        except BrokenPipeError:
            pass  # it is dead: `_receive` says so

    def _receive(self, replica: _Replica) -> Any:
        try:
            return replica.connection.recv()
        except (EOFError, OSError):  # OSError: it was closed below, after another one's death
            replica.process.join()
            self.stop()
            code = replica.process.exitcode
            return _Failed(EngineError(f"a replica died (exit code {code}); if memory is short, lower model.processes"))

    def _serve(self, connection: Connection) -> None:
        """The life of a replica: jobs until the other end closes."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides what an interrupt ends
        # What was open at the fork belongs to the first process: locks, pipes of tools, the other replicas' ends.
        os.closerange(3, connection.fileno())
        os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        self._is_busy, self._replicas = True, []
        try:
            while True:
                state, place, job, share = connection.recv()
                self._adopt(state)
                outcome = _outcome(job, self._hosts[place], share)
                if isinstance(outcome, _Failed) and not isinstance(outcome.error, GruppoError):
                    outcome = _Failed(RuntimeError(f"{type(outcome.error).__name__}: {outcome.error}"))  # can travel
                connection.send(outcome)
        except (EOFError, ConnectionError):  # the other end is gone
            for at_end in self._endings:
                at_end()


@dataclass(frozen=True)
class _Failed:
    error: Exception


def _outcome(job: Callable[..., Any], host: Any, share: tuple[Any, ...]) -> Any:
    try:
        return job(host, *share)
    except Exception as error:  # it is raised in the first process, once every share is done
        return _Failed(error)
