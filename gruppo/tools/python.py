"""The python tool: runs code that a model wrote, confined, and returns what it printed.

This side words what the agent is told and keeps the sessions; `isolation.py` chooses the sandbox, which ends every call
within its wall time, with everything it started killed and its files gone. The code sees the standard library only. Not
a defence against bugs in the kernel.
"""

from __future__ import annotations

import asyncio
import signal
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gruppo.errors import ToolError
from gruppo.tools import isolation
from gruppo.tools.base import MAX_OUTPUT, Slots, signal_name
from gruppo.tools.monty import Monty, MontyConversation
from gruppo.tools.sandbox import Conversation, Limits, Reply, Zygote
from gruppo.tools.schema import check_arguments, coerced, cut
from gruppo.types import CallContext, ToolResult

MAX_CODE = 1 << 19  # bytes
LOST = "the session was lost; its variables are gone"


@dataclass
class Session:
    """The conversation of one episode; its calls run one after another, in their order."""

    conversation: Conversation | MontyConversation
    turn: asyncio.Lock


class PythonTool:
    """`python(code)`: the standard output of the code, at most `max_output` characters, cut in the middle.

    `limits` are those of `sandbox.Limits`. The same code gives the same output: `random` and hashing are seeded. With
    `stateful`, the calls of one episode share a session: variables and files stay. With `once`, the same code asked for
    by several callers at the same moment is run once for all of them. `work_dir` is a folder, resolved once, into which
    the plain files are copied that a call leaves. `level` and `isolation` say which walls stand.

    Raises ConfigError if no sandbox of at least `min_level` holds here.
    """

    name = "python"
    schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "a complete Python program; print the result"}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def __init__(
        self,
        *,
        level: str = "auto",
        min_level: str = "monty",
        max_output: int = MAX_OUTPUT,
        work_dir: str | Path | None = None,
        once: bool = False,
        **limits: Any,
    ) -> None:
        self.max_output = max_output
        self.work_dir = Path(work_dir).resolve() if work_dir else None
        self.limits = Limits(**limits, keep_files=work_dir is not None)
        if self.limits.stateful and work_dir:
            raise ValueError("work_dir copies the files of single calls; leave it out, or stateful")
        self._once = once and not self.limits.stateful
        self._running: dict[bytes, asyncio.Task[ToolResult]] = {}
        self._slots = Slots(self.limits.concurrent)
        self._sessions: dict[str, Session] = {}
        sandbox = isolation.start(level, min_level, self.limits)
        self._sandboxes = [sandbox]  # the last is in use; one that died may still own the folders of its calls
        weakref.finalize(self, close_all, self._sandboxes)
        self.level, self.isolation = sandbox.level, sandbox.isolation
        self.description = describe(sandbox.level, self.limits.stateful)

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Run `arguments["code"]`, in the session of the context's episode if the tool is stateful.

        Raises ToolError if the sandbox has died and can't be started again, or took a session with it.
        """
        arguments = coerced(arguments, self.schema)
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        code = arguments["code"].encode(errors="replace")
        if len(code) > MAX_CODE:
            return ToolResult(False, error=f"the code has {len(code)} bytes, expected at most {MAX_CODE}")
        if self.limits.stateful:
            return await self._call_in_session(code, context)
        return await (self._with_others(code) if self._once else self._run(code))

    async def _with_others(self, code: bytes) -> ToolResult:
        """The result of whoever runs this code now. A caller that gives up does not end it for the others."""
        if code not in self._running:
            self._running[code] = asyncio.create_task(self._run(code))
            self._running[code].add_done_callback(lambda _: self._running.pop(code))
        return await asyncio.shield(self._running[code])

    async def _run(self, code: bytes) -> ToolResult:
        async with self._slots.here():
            for _ in range(2):
                conversation = self._sandbox().open()
                try:
                    reply = await conversation.ask(code)
                finally:
                    conversation.close()
                if reply:
                    self._keep(reply)
                    return self._result(reply)
                await self._let_die()
        raise ToolError("the sandbox of the python tool died, and so did the one that replaced it")

    async def _call_in_session(self, code: bytes, context: CallContext | None) -> ToolResult:
        key = context.episode if context else ""
        if key not in self._sessions:
            self._sessions[key] = Session(self._sandbox().open(), asyncio.Lock())
            if context:
                context.at_end(partial(self.end_session, key))
        session = self._sessions[key]
        reply = None
        async with session.turn:
            if self._sessions.get(key) is not session:  # an earlier one of several calls at once has lost it
                return ToolResult(False, error=LOST)
            try:
                async with self._slots.here():
                    reply = await session.conversation.ask(code)
            finally:
                if reply is None or reply.reason != "end":
                    self.end_session(key)
        if reply is None:
            await self._let_die()
            raise ToolError("the sandbox of the python tool died, and with it a session")
        result = self._result(reply)
        if reply.reason == "end":
            return result
        why = result.error or f"the process ended with exit status {reply.status}"
        return replace(result, ok=False, error=f"{why}; {LOST}")

    def end_session(self, key: str) -> None:
        """End an episode's session, whatever runs in it; nothing if there is none."""
        if session := self._sessions.pop(key, None):
            session.conversation.close()

    def _sandbox(self) -> Zygote | Monty:
        """The one in use, or another of the same level if it is dead."""
        if not self._sandboxes:
            raise ToolError("the python tool is closed")
        if not self._sandboxes[-1].is_alive():
            self._sandboxes[-1].end()
            self._sandboxes.append(isolation.STARTS[self.level](self.level, self.limits))
        return self._sandboxes[-1]

    async def _let_die(self) -> None:
        """A sandbox that lost a call may be dying, and still look alive for a moment."""
        for _ in range(20):
            if not self._sandboxes or not self._sandboxes[-1].is_alive():
                return
            await asyncio.sleep(0.01)

    def _result(self, reply: Reply) -> ToolResult:
        limits = self.limits
        output = shown(reply, self.max_output)
        if reply.reason == "timeout":
            return ToolResult(False, output, f"timed out after {limits.seconds:g} s", timed_out=True)
        if not reply.started:
            raise ToolError(f"the sandbox of the python tool could not confine a call: {reply.error}")
        stopped = {
            "printed": f"printed more than {reply.num_bytes >> 20} MB",
            "memory": f"stopped: more than {limits.memory_mb} MB of memory in all",
            "disk": f"stopped: more than {limits.disk_mb} MB of files",
            "idle": f"there was no call for {limits.idle_seconds:g} s",
            "deaf": "the session did not take the code",
        }
        if reply.reason in stopped:
            error = stopped[reply.reason]
        elif reply.status == -signal.SIGXCPU:
            error = f"stopped: more than {int(limits.seconds) + 1} s of CPU time"
        elif reply.status < 0:
            error = f"the process died with {signal_name(-reply.status)}"
        elif reply.status > 0 and not reply.error:
            error = f"the process ended with exit status {reply.status}"
        else:
            is_silent = not output.strip() and not limits.stateful
            error = reply.error or ("no output: print the result" if is_silent else "")
        return ToolResult(not error, output, cut(error, self.max_output))

    def _keep(self, reply: Reply) -> None:
        """Copy what the call left into the work folder. Names come from inside: none may lead out."""
        for name, content in reply.files.items():
            assert self.work_dir is not None, "files come only if they are asked for"
            path = self.work_dir.joinpath(name)
            if not path.resolve().is_relative_to(self.work_dir):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def close(self) -> None:
        """End the sandbox; calls in flight fail."""
        for key in list(self._sessions):
            self.end_session(key)
        close_all(self._sandboxes)


def describe(level: str, stateful: bool) -> str:
    """What the model is told."""
    if level == "monty":
        what = (
            "Run code in a part of Python and return what it prints: expressions, functions, math, re, json, datetime;"
            " no yield, no files, few other modules."
        )
    else:
        what = "Run Python code and return what it prints. Only the standard library is available."
    kept = "variables are kept from call to call" if stateful else "nothing is kept between calls"
    return f"{what} There is no network, and {kept}."


def shown(reply: Reply, limit: int) -> str:
    """What was printed, in at most `limit` characters: the beginning and the end of a longer text."""
    head, tail = (part.decode(errors="replace") for part in (reply.head, reply.tail))
    if len(reply.head) + len(reply.tail) == reply.num_bytes:
        return cut((reply.head + reply.tail).decode(errors="replace"), limit)
    marker = f"\n... [cut: {reply.num_bytes} bytes in all] ...\n"
    kept = max(0, limit - len(marker))
    return (head[: (kept + 1) // 2] + marker + tail[len(tail) - kept // 2 :])[:limit]


def close_all(sandboxes: list[Zygote | Monty]) -> None:
    while sandboxes:
        sandboxes.pop().close()
