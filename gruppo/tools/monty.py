"""The sandbox level "monty": pydantic-monty, an interpreter of a part of Python that has no operating system at all.

For calculator-type code, on any platform, by explicit choice: no `yield`, few modules, no files. Its workers are
processes of their own; the clock that ends them and the cap on what they print are ours. It starts nothing until asked.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gruppo.errors import ToolError
from gruppo.tools.sandbox import Limits, Reply

MAX_PRINTED = 16 << 20  # bytes
GRACE_SECONDS = 1.0  # for the interpreter to stop by itself, before its worker is killed


class Monty:
    """A pool of workers, as `sandbox.Zygote` a source of conversations. Raises ToolError if it can't be had here."""

    level = "monty"

    def __init__(self, level: str, limits: Limits) -> None:
        try:
            import pydantic_monty
        except ImportError:
            raise ToolError("pydantic-monty is not installed: pip install 'gruppo[monty]'") from None
        self.library: Any = pydantic_monty
        self.limits = limits
        seconds = limits.seconds + GRACE_SECONDS
        most = limits.concurrent if not limits.stateful else 4096  # a session holds a worker to its end
        self.threads = ThreadPoolExecutor(limits.concurrent, thread_name_prefix="monty")
        self.pool = pydantic_monty.Monty(
            min_processes=1, max_processes=most, request_timeout=seconds, checkout_timeout=60.0
        )
        try:
            self.pool.__enter__()
            reply = self.open().run("print(1 + 1)")
        except Exception as error:  # a missing binary, a platform without one: whatever it is, this level is not there
            raise ToolError(f"can't be started: {error}") from error
        if reply.head != b"2\n":
            self.close()
            raise ToolError(f"a first call failed: {reply.error or reply.head!r}")
        self.isolation = f"monty {importlib.metadata.version('pydantic-monty')} (no operating system)"

    def open(self) -> MontyConversation:
        """A session, or a single call."""
        return MontyConversation(self)

    def is_alive(self) -> bool:
        return True  # a worker that dies is replaced

    def end(self) -> None:
        self.close()

    def close(self) -> None:
        self.threads.shutdown(wait=True)
        self.pool.__exit__(None, None, None)


class MontyConversation:
    """One worker for as long as the conversation lasts; a single call gives it back at once."""

    def __init__(self, monty: Monty) -> None:
        self.monty = monty
        self.session: Any = None
        self.lock = threading.Lock()  # a call that was given up may still be running when the conversation is closed

    async def ask(self, code: bytes) -> Reply | None:
        """Run one piece of code; the session lives on unless the interpreter had to be stopped."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.monty.threads, self.run, code.decode(errors="replace"))

    def run(self, code: str) -> Reply:
        """As `ask`, blocking."""
        library, limits = self.monty.library, self.monty.limits
        printed = library.CollectStreams(max_bytes=MAX_PRINTED)
        reason, error = "end" if limits.stateful else "exit", ""
        with self.lock:
            try:
                if self.session is None:
                    self.session = self._check_out()
                self.session.feed_run(code, print_callback=printed)
            except library.MontyCrashedError as crash:
                reason, error = ("timeout" if crash.timed_out else "exit"), str(crash)
            except library.MontyRuntimeError as raised:
                lines = [frame.line for frame in raised.traceback()]
                error = raised.display("type-msg") + (f" (line {lines[-1]})" if lines else "")
                if error.startswith(("TimeoutError: feed time limit", "TimeoutError: sleep limit")):
                    reason = "timeout"
                elif error.startswith("MemoryError: memory limit"):
                    error = f"MemoryError: more than {limits.memory_mb} MB"
            except library.MontyError as wrong:
                error = str(wrong)
            except TimeoutError as full:
                raise ToolError(f"no worker of monty was free: {full}") from full
            if reason != "end":
                self._check_in()
        output = "".join(text for _, text in printed.output).encode()
        return Reply(reason, status=1 if error else 0, error=error, num_bytes=len(output), head=output)

    def _check_out(self) -> Any:
        limits = self.monty.limits
        session = self.monty.pool.checkout(
            limits={
                "max_feed_duration_secs": limits.seconds,
                "max_total_sleep_secs": limits.seconds,
                "max_memory": limits.memory_mb << 20,
            },
            os_policy={"random_start": {"seed": 0}},  # the same code gives the same output, in every attempt
        )
        session.__enter__()
        return session

    def _check_in(self) -> None:
        if self.session is not None:
            self.session.__exit__(None, None, None)
            self.session = None

    def close(self) -> None:
        """Give the worker back; one that still runs is ended by its clock first."""
        if self.lock.acquire(blocking=False):
            self._check_in()
            self.lock.release()
        else:
            self.monty.threads.submit(self._close_later)

    def _close_later(self) -> None:
        with self.lock:
            self._check_in()
