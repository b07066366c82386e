"""math-verify in worker processes of our own, which end when they hang: the last resort for what we can't read.

It is only asked about mathematics in LaTeX, parsed by its own grammar; its expression parser, which evaluates, is not
used. Works from any thread and after a fork. What is bounded is the time of the processor, by a timer whose signal ends
the worker whatever it is doing; so a busy machine makes no answer wrong.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from importlib.util import find_spec
from typing import Any

from gruppo import child
from gruppo.errors import GruppoError

CPU_SECONDS = 2.0  # of one pair: an answer that takes longer hangs
WALL_SECONDS = 30.0  # for one pair: a machine that takes longer without computing is too busy
START_SECONDS = 60.0  # for a worker to import math-verify
MAX_WORKERS = 2
MAX_MEMORY = 2 * 2**30  # bytes
MISSING = "needs math-verify, which is not installed: pip install 'gruppo[math]'"


class MathWorkerError(GruppoError):
    """No worker process could be started: the pair has no score."""


class Worker:
    """One process that compares one pair at a time, by JSON lines."""

    def __init__(self) -> None:
        try:
            self.process, self.connection = child.start("from gruppo.rewards.maths.worker import serve; serve()")
        except OSError as error:
            raise MathWorkerError(f"the process of math-verify can't be started: {error}") from error
        self.is_ready = False
        self._received = bytearray()

    def get_ready(self) -> None:
        if not self.is_ready:
            if self._receive(time.monotonic() + START_SECONDS) is None:
                raise MathWorkerError("the process of math-verify does not come up")
            self.is_ready = True

    def compare(self, prediction: str, gold: str) -> str:
        """ "equal", "different", "unreadable", or "timed out" or "died", with " on gold" if it was the gold answer.

        Raises MathWorkerError if the machine is too busy, or the process was gone before.
        """
        deadline = time.monotonic() + WALL_SECONDS
        try:
            self.connection.settimeout(WALL_SECONDS)
            self.connection.sendall(json.dumps([prediction, gold]).encode() + b"\n")
        except OSError as error:
            raise MathWorkerError(f"the process of math-verify can't be reached: {error}") from error
        for stage in (" on gold", ""):
            reply = self._receive(deadline)
            if reply is None and time.monotonic() >= deadline:
                raise MathWorkerError(f"math-verify did not get to it in {WALL_SECONDS:g} s: the machine is too busy")
            if reply is None:
                return ("timed out" if self.process.wait() == -signal.SIGPROF else "died") + stage
            if reply != "gold":
                return reply
        raise AssertionError("one reply for the gold answer, one for the pair")

    def _receive(self, deadline: float) -> str | None:
        """One reply; None if there is none by the deadline, or ever."""
        while b"\n" not in self._received:
            try:
                self.connection.settimeout(max(deadline - time.monotonic(), 0.001))
                chunk = self.connection.recv(1 << 12)
            except OSError:  # also a time-out
                return None
            if not chunk:
                return None
            self._received += chunk
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        return str(json.loads(line))

    def close(self) -> None:
        child.end(self.process, self.connection)


class Pool:
    """At most MAX_WORKERS processes, started when needed; one that hung or died is replaced at once."""

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(MAX_WORKERS)
        self.lock = threading.Lock()
        self.idle: list[Worker] = []

    def compare(self, prediction: str, gold: str) -> str:
        with self.slots:
            worker = self._take()
            is_whole = False
            try:
                worker.get_ready()
                found = worker.compare(prediction, gold)
                is_whole = found in ("equal", "different", "unreadable")
            finally:
                if not is_whole:
                    worker.close()
            if not is_whole:
                worker = Worker()  # it imports while others go on
            with self.lock:
                self.idle.append(worker)
            return found

    def _take(self) -> Worker:
        """The one that has been idle the longest, so that one that was just started has time to import."""
        with self.lock:
            if not self.idle:
                self.idle += [Worker() for _ in range(2)]
            return self.idle.pop(0)

    def close(self) -> None:
        with self.lock:
            while self.idle:
                self.idle.pop().close()


_pool = Pool()


def compare(prediction: str, gold: str) -> str:
    """What `Worker.compare` says, or MISSING. Raises MathWorkerError."""
    if find_spec("math_verify") is None:
        return MISSING
    return _pool.compare(prediction, gold)


def close() -> None:
    """End the processes; a later comparison starts new ones."""
    _pool.close()


def _forget() -> None:
    """In a forked child: the workers belong to the parent."""
    global _pool
    _pool = Pool()


atexit.register(close)
os.register_at_fork(after_in_child=_forget)


def serve() -> None:
    """The worker's side: answer pairs until the other side hangs up."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from math_verify import LatexExtractionConfig, parse, verify

    connection = socket.socket(fileno=int(sys.argv[1]))

    def send(reply: str) -> None:
        connection.sendall(json.dumps(reply).encode() + b"\n")

    def trees(text: str) -> list[Any]:
        return parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)

    send("ready")
    with connection.makefile("r", encoding="utf-8") as requests:
        for line in requests:
            prediction, gold = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # then the system ends this process
            try:
                theirs = trees(gold)
                send("gold")
                ours = trees(prediction)
                is_equal = bool(ours and theirs) and verify(theirs, ours, timeout_seconds=None)
                send("equal" if is_equal else "different" if ours and theirs else "unreadable")
            except (Exception, SystemExit):  # sympy may raise anything, RecursionError and MemoryError too
                send("unreadable")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
