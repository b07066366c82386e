"""A tool is a typed Python function with a docstring; this module makes it safe to call with what a model wrote.

A plain function runs in a worker process that is killed, with its children, when it hangs, and replaced when it died;
`in_process=True` is for trusted ones: an async function runs on the event loop, any other in a thread, which can't be
killed. It does not confine what a function does: `python.py` does, for code.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import importlib.util
import inspect
import json
import os
import signal
import socket
import sys
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from gruppo import child
from gruppo.errors import ToolError
from gruppo.tools.schema import check_arguments, coerced, cut, schema_of
from gruppo.types import CallContext, ToolResult

MAX_OUTPUT = 3_500
CORES = os.cpu_count() or 1
LOOK_SECONDS = 0.02  # until a call that waits for a process looks again whether another one may start
START_SECONDS = 60.0  # for a worker to import the tool's module and what that imports


@dataclass
class Slots:
    """A bound on calls at once that holds across successive event loops (the training loop runs one per step)."""

    count: int
    _loop: asyncio.AbstractEventLoop | None = None
    _semaphore: asyncio.Semaphore | None = None

    def here(self) -> asyncio.Semaphore:
        """The semaphore of the running loop."""
        loop = asyncio.get_running_loop()
        if self._semaphore is None or loop is not self._loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self.count)
        return self._semaphore


def result_of(value: Any, limit: int) -> ToolResult:
    """What a function returned, as text: strings as they are, other values as JSON where they have one."""
    if isinstance(value, ToolResult):
        return ToolResult(value.ok, cut(value.output, limit), cut(value.error, limit), value.timed_out)
    if not isinstance(value, str):
        try:
            value = "" if value is None else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            value = str(value)
    return ToolResult(True, cut(value, limit))


def failure(error: BaseException, limit: int) -> ToolResult:
    return ToolResult(False, error=cut(f"{type(error).__name__}: {error}".rstrip(": "), limit))


@dataclass(eq=False)
class FunctionTool:
    """A function as a `Tool`: checked arguments, a deadline of `seconds`, an output of at most `max_output` characters.

    At most `workers` calls run at once, each in its own process (in a thread of its own with `in_process`); these start
    when needed and are reused. Those that wait (for a server, for a clock) don't hold others up; for those that compute
    no more processes are started than there are cores. An async function that is in process has no bound.
    """

    function: Callable[..., Any]
    name: str
    description: str
    schema: Mapping[str, Any]
    seconds: float = 10.0
    max_output: int = MAX_OUTPUT
    in_process: bool = False
    workers: int = 64
    _idle: list[Worker] = field(default_factory=list, init=False, repr=False)
    _busy: set[Worker] = field(default_factory=set, init=False, repr=False)
    _location: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._slots, self._line = Slots(self.workers), Slots(1)
        self._freed: asyncio.Future[None] | None = None
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix=f"tool-{self.name}")
        if not self.in_process:
            self._location = locate(self.function)
            weakref.finalize(self, close_all, self._idle)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The plain function."""
        return self.function(*arguments, **keywords)

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Run it with arguments as a model wrote them. Raises ToolError only if no worker process can be started."""
        arguments = coerced(arguments, self.schema)
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        if self.in_process and inspect.iscoroutinefunction(self.function):
            return await self._call_here(self.function(**arguments))
        if self.in_process:  # not on the event loop, where every other episode would wait for it
            async with self._slots.here():
                loop, call = asyncio.get_running_loop(), (self.function, arguments, self.max_output)
                return await self._call_here(loop.run_in_executor(self._threads, perform, *call))
        worker = await self._worker()
        try:
            return await worker.call(arguments, self.seconds, self.max_output)
        finally:
            self._give_back(worker)

    async def _call_here(self, running: Awaitable[Any]) -> ToolResult:
        deadline = asyncio.timeout(self.seconds)
        try:
            async with deadline:
                value = await running
            return result_of(value, self.max_output)
        except Exception as error:  # a tool does not throw at the agent
            return timed_out(self.seconds) if deadline.expired() else failure(error, self.max_output)

    async def _worker(self) -> Worker:
        """One that is idle, else another one, if there may be more and a core is free for it."""
        async with self._line.here():  # calls wait in line; the first one looks
            while not (worker := self._idle_worker()):
                if len(self._busy) < self.workers and sum(other.computes for other in self._busy) < CORES:
                    worker = Worker(self.name, self._location)
                    break
                self._freed = asyncio.get_running_loop().create_future()
                await asyncio.wait([self._freed], timeout=LOOK_SECONDS)
            self._busy.add(worker)
            return worker

    def _idle_worker(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.close()  # it died between two calls
        return None

    def _give_back(self, worker: Worker) -> None:
        self._busy.discard(worker)
        if worker.busy:  # no clean answer: hung, dead, or the caller was cancelled
            worker.close()
        else:
            self._idle.append(worker)
        if self._freed and not self._freed.done():
            self._freed.set_result(None)

    def close(self) -> None:
        """End the worker processes; a later call starts new ones."""
        close_all(self._idle)


def tool(function: Callable[..., Any] | None = None, /, *, name: str = "", **options: Any) -> Any:
    """Make a typed, documented function a `FunctionTool`: `@tool`, or `@tool(seconds=2, in_process=True)`.

    Options: `name`, `seconds`, `max_output` (characters), `in_process`, `workers`. Raises ValueError if a model could
    not be told how to call it, or if a worker process could not find it. The worker imports the function's file anew:
    a script that defines tools keeps its own work under `if __name__ == "__main__"`.
    """
    if function is None:
        return lambda decorated: tool(decorated, name=name, **options)
    description, schema = schema_of(function)
    return FunctionTool(function, name or function.__name__, description, schema, **options)


class Worker:
    """One process that answers one call at a time, by JSON lines. `busy` until a call has been answered in full."""

    def __init__(self, tool_name: str, location: Mapping[str, str]) -> None:
        self.tool_name = tool_name
        self.busy = False
        self.is_ready = False
        program = "from gruppo.tools.base import serve; serve()"
        try:
            self.process, self.connection = child.start(program, json.dumps(location))
        except OSError as error:
            raise ToolError(f"the process of tool {tool_name!r} can't be started: {error}") from error
        self.connection.setblocking(False)

    async def call(self, arguments: Mapping[str, Any], seconds: float, max_output: int) -> ToolResult:
        """The function's result, or what became of the process. Raises ToolError if it did not come up."""
        self.busy = True
        if not self.is_ready:
            await self._get_ready()
        try:
            async with asyncio.timeout(seconds):
                reply = await self._exchange({"arguments": arguments, "seconds": seconds, "max_output": max_output})
        except TimeoutError:
            return timed_out(seconds)
        if reply is None:
            return ToolResult(False, error=f"the process of tool {self.tool_name!r} died with {self.close()}")
        self.busy = False
        return ToolResult(**reply)

    @property
    def computes(self) -> bool:
        """Whether it is not waiting for anything at this moment, as far as the system tells (Linux)."""
        try:
            with open(f"/proc/{self.process.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in ("R", "D")
        except OSError:
            return False

    async def _get_ready(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                hello = await self._exchange(None)
        except TimeoutError:
            hello = {"error": f"not ready after {START_SECONDS:g} s"}
        if hello is None or hello["error"]:
            why = hello["error"] if hello else self.close()
            raise ToolError(f"the process of tool {self.tool_name!r} can't be started: {why}")
        self.is_ready = True

    async def _exchange(self, request: Any) -> Any:
        """Send a request (None: nothing) and wait for one reply; None if the process has ended."""
        loop = asyncio.get_running_loop()
        reply = bytearray()
        try:
            if request is not None:
                await loop.sock_sendall(self.connection, json.dumps(request).encode() + b"\n")
            while not reply.endswith(b"\n"):
                chunk = await loop.sock_recv(self.connection, 1 << 16)
                if not chunk:
                    return None
                reply += chunk
        except ConnectionError:
            return None
        return json.loads(reply)

    def close(self) -> str:
        """Kill the process and its children; says how it ended. A process that had ended keeps its own status."""
        status = child.end(self.process, self.connection)
        return f"exit status {status}" if status >= 0 else signal_name(-status)


def signal_name(number: int) -> str:
    return {known.value: known.name for known in signal.Signals}.get(number, f"signal {number}")  # not all have names


def close_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().close()


def timed_out(seconds: float) -> ToolResult:
    return ToolResult(False, error=f"timed out after {seconds:g} s", timed_out=True)


def serve() -> None:
    """The worker's side: find the function, say so, answer calls until the other side hangs up."""
    connection = socket.socket(fileno=int(sys.argv[1]))

    def send(reply: dict[str, Any]) -> None:
        connection.sendall(json.dumps(reply).encode() + b"\n")

    try:
        function = find(json.loads(sys.argv[2]))
    except BaseException as error:  # importing a file runs it: it may raise anything, or exit
        send({"error": f"{type(error).__name__}: {error}"})
        return
    send({"error": ""})
    with connection.makefile("r", encoding="utf-8") as requests:
        for line in requests:
            request = json.loads(line)
            faulthandler.dump_traceback_later(
                request["seconds"] + 5, exit=True
            )  # if nobody is left to kill a hung call
            send(asdict(perform(function, request["arguments"], request["max_output"])))
            faulthandler.cancel_dump_traceback_later()


def perform(function: Callable[..., Any], arguments: Mapping[str, Any], max_output: int) -> ToolResult:
    async def wait_for(value: Any) -> Any:
        return await value

    try:
        value = function(**arguments)
        return result_of(asyncio.run(wait_for(value)) if inspect.isawaitable(value) else value, max_output)
    except (Exception, SystemExit) as error:  # a tool does not throw at the agent
        return failure(error, max_output)


def locate(function: Callable[..., Any]) -> dict[str, str]:
    """Where a new process finds the function: module, source file, qualified name."""
    file = inspect.getsourcefile(function) or ""
    if "<" in function.__qualname__ or not os.path.isfile(file):
        raise ValueError(
            f"tool {function.__qualname__!r} can't be found by a worker process: define it at the top level of a .py"
            " file, or use in_process=True"
        )
    return {"module": function.__module__, "file": os.path.abspath(file), "qualname": function.__qualname__}


def find(location: Mapping[str, str]) -> Callable[..., Any]:
    """The function at a `locate` result: by import where the name leads to that file, else by loading the file."""
    module = None
    if location["module"] != "__main__":
        try:
            spec = importlib.util.find_spec(location["module"])
        except (ImportError, ValueError):  # the name was given by whoever loaded the file
            spec = None
        if spec and spec.origin and os.path.abspath(spec.origin) == location["file"]:
            module = importlib.import_module(location["module"])
    if module is None:
        spec = importlib.util.spec_from_file_location("gruppo_tool_file", location["file"])
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    found: Any = module
    for part in location["qualname"].split("."):
        found = vars(found)[part]
    return found.function if isinstance(found, FunctionTool) else found
