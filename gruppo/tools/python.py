"""The python tool: runs code that a model wrote, in a separate process without network, and returns what it printed.

This side starts the zygote (`python_zygote.py`, where the walls are), hands it one connection per call and words the
answers. Every call ends within its wall time, with everything it started killed and its work folder removed. The code
sees the standard library only. Linux only; not a defence against bugs in the kernel.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gruppo.errors import ToolError
from gruppo.tools.base import MAX_OUTPUT, Slots, signal_name
from gruppo.tools.schema import check_arguments, cut
from gruppo.types import ToolResult

MAX_CODE = 1 << 20  # bytes
MAX_FILE = 8 << 20  # bytes, of the output too
GRACE_SECONDS = 20.0  # beyond a call's own limit, until the sandbox itself counts as hung


class PythonTool:
    """`python(code)`: the standard output of the code, at most `max_output` characters, cut in the middle.

    Limits per call: `seconds` of wall time and of CPU time, `memory_mb` of address space, 8 MB printed or per file,
    `processes` (above 1 a limit that the kernel counts per user, so about). `concurrent` calls run at once. The same
    code gives the same output: `random` and hashing are seeded. `isolation` says in words which walls stand.

    Raises ToolError if the sandbox can't be started, or if the network can't be shut and `allow_network` is false.
    """

    name = "python"
    description = (
        "Run Python code in a fresh process and return what it prints. Only the standard library is available;"
        " there is no network, and nothing is kept between calls."
    )
    schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "a complete Python program; print the result"}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def __init__(
        self,
        *,
        seconds: float = 5.0,
        memory_mb: int = 512,
        max_output: int = MAX_OUTPUT,
        processes: int = 1,
        concurrent: int = max(4, 2 * (os.cpu_count() or 1)),
        allow_network: bool = False,
    ) -> None:
        self.max_output = max_output
        self._settings = {
            "seconds": seconds, "memory_mb": memory_mb, "processes": processes, "concurrent": concurrent,
            "allow_network": allow_network, "file_bytes": MAX_FILE,
        }  # fmt: skip
        self._slots = Slots(concurrent)
        self._zygotes: list[Zygote] = []  # the last is in use; one that died still owns the folders of its calls
        weakref.finalize(self, close_all, self._zygotes)
        self.isolation = self._start()

    def _start(self) -> str:
        """Start a zygote, which tries its own walls, and return them in words."""
        zygote = Zygote(self._settings)
        self._zygotes.append(zygote)
        try:
            walls, header, output = zygote.hello()
            if not header["started"] or header["status"]:
                instead = "; allow_network=True does without seccomp" if "seccomp" in header["error"] else ""
                raise ToolError(f"the sandbox of the python tool can't be built here: {header['error']}{instead}")
            if output != "closed" and not self._settings["allow_network"]:
                raise ToolError("the network of the python tool can't be shut; allow_network=True runs it all the same")
        except ToolError:
            self._zygotes.pop().close()
            raise
        words = ["process", "no network (seccomp)" if output == "closed" else "open network"]
        words += ["own files (landlock)"] if walls["landlock"] else []
        words += ["own user"] if walls["root"] else []
        return ", ".join(words)

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Run `arguments["code"]`. Raises ToolError if the sandbox has died and can't be started again."""
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        code = arguments["code"].encode(errors="replace")
        if len(code) > MAX_CODE:
            return ToolResult(False, error=f"the code has {len(code)} bytes, expected at most {MAX_CODE}")
        async with self._slots.here():
            reply = await self._zygote().ask(code) or await self._zygote().ask(code)
            if not reply:
                raise ToolError("the sandbox of the python tool died, and so did the one that replaced it")
        header, _, output = reply.partition(b"\n")
        return self._result(json.loads(header), output)

    def _zygote(self) -> Zygote:
        """The one in use, or another if it is dead."""
        if not self._zygotes:
            raise ToolError("the python tool is closed")
        if self._zygotes[-1].process.poll() is not None:
            self._zygotes[-1].end()
            self._start()
        return self._zygotes[-1]

    def _result(self, header: Mapping[str, Any], printed: bytes) -> ToolResult:
        output = cut(printed.decode(errors="replace"), self.max_output)
        status, seconds = header["status"], self._settings["seconds"]
        if header["timed_out"]:
            return ToolResult(False, output, f"timed out after {seconds:g} s", timed_out=True)
        if not header["started"]:
            raise ToolError(f"the sandbox of the python tool could not confine a call: {header['error']}")
        if len(printed) >= MAX_FILE:
            error = f"printed more than {MAX_FILE >> 20} MB"
        elif status == -signal.SIGXCPU:
            error = f"stopped: more than {int(seconds) + 1} s of CPU time"
        elif status < 0:
            error = f"the process died with {signal_name(-status)}"
        elif status > 0:
            error = header["error"] or f"the process ended with exit status {status}"
        else:
            error = "" if output.strip() else "no output: print the result"
        return ToolResult(not error, output, cut(error, self.max_output))

    def close(self) -> None:
        """End the zygote; calls in flight fail."""
        close_all(self._zygotes)


class Zygote:
    """One running `python_zygote.py`: its process, the socket on which it is handed connections, its folder."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if sys.platform != "linux":
            raise ToolError(f"the python tool needs Linux (seccomp, prctl), not {sys.platform}")
        self.seconds = settings["seconds"] + GRACE_SECONDS
        self.base = tempfile.mkdtemp(prefix="gruppo-python-")
        os.chmod(self.base, 0o711)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = str(Path(__file__).with_name("python_zygote.py"))
        clean = ["-s", "-P", "-S", "-B", "-X", "utf8"]  # -I but for the seed of hashing, the only variable it is given
        try:
            self.process = subprocess.Popen(
                [sys.executable, *clean, script, str(theirs.fileno()), json.dumps({**settings, "base": self.base})],
                cwd="/",
                env={"PYTHONHASHSEED": "0"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self.control.close()
            shutil.rmtree(self.base, ignore_errors=True)
            raise ToolError(f"the sandbox of the python tool can't be started: {error}") from error
        finally:
            theirs.close()

    def hello(self) -> tuple[dict[str, Any], dict[str, Any], str]:
        """What the zygote says once it is up: its walls, and the header and output of its attempt to open a socket."""
        self.control.settimeout(GRACE_SECONDS)
        try:
            message = self.control.recv(1 << 16)
        except OSError as error:
            raise ToolError(f"the sandbox of the python tool did not start: {error}") from error
        if not message:
            raise ToolError(f"the sandbox of the python tool did not start: exit status {self.process.wait()}")
        walls, header, *output = message.decode().splitlines()
        return json.loads(walls), json.loads(header), "\n".join(output)

    async def ask(self, code: bytes) -> bytes:
        """One call over a connection of its own. Empty if it was lost: then this zygote has been ended.

        Raises ToolError if there is no answer in time.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        reply = bytearray()
        with ours:
            try:
                with theirs:
                    socket.send_fds(self.control, [b"x"], [theirs.fileno()])
                async with asyncio.timeout(self.seconds):
                    await loop.sock_sendall(ours, code)
                    ours.shutdown(socket.SHUT_WR)
                    while chunk := await loop.sock_recv(ours, 1 << 18):
                        reply += chunk
            except TimeoutError:
                self.end()
                raise ToolError(f"the sandbox of the python tool did not answer within {self.seconds:g} s") from None
            except OSError:
                reply.clear()
        if not reply:
            self.end()
        return bytes(reply)

    def end(self) -> None:
        """Kill the zygote. Calls that its supervisors are answering go on to their end."""
        self.control.close()
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.control.close()  # the zygote waits for its calls, removes its folder and ends
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.end()
        shutil.rmtree(self.base, ignore_errors=True)


def close_all(zygotes: list[Zygote]) -> None:
    while zygotes:
        zygotes.pop().close()
