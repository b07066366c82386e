"""The host side of the sandbox: starts a zygote (`python_zygote.py`), talks with it, and leaves nothing of it behind.

A conversation is one connection: one call, or all calls of one session. It knows frames and processes, not what the
agent is told (`python.py`) nor which level to choose (`isolation.py`). Linux only.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gruppo.errors import ToolError
from gruppo.tools.cgroup import make_group, remove_group

GRACE_SECONDS = 20.0  # beyond a call's own limit, until the sandbox itself counts as hung
USERS = range(0x70000000, 0x7FFD0000)  # numbers that systems give to nobody: whom the code runs as if we are root

PROBE = b"""
import socket
def is_open(attempt):
    try:
        return attempt() or True
    except OSError:
        return False
print("open:", *(name for name, attempt in (
    ("network", lambda: socket.socket().close()),
    ("files", lambda: open(MARKER).close()),
    ("processes", lambda: open(f"/proc/{PARENT}/environ").close()),
) if is_open(attempt)))
"""


@dataclass(frozen=True)
class Limits:
    """What a call, or a session, may use: `seconds` of wall time per call (and about that of CPU time per process),
    `memory_mb` in all and of address space per process, `disk_mb` in its work folder, `processes` (with threads).

    `concurrent` calls run at once; a session without a call for `idle_seconds` is ended.
    """

    seconds: float = 5.0
    memory_mb: int = 512
    disk_mb: int = 64
    processes: int = 16
    concurrent: int = max(4, 2 * (os.cpu_count() or 1))
    stateful: bool = False
    idle_seconds: float = 600.0
    keep_files: bool = False


@dataclass(frozen=True)
class Reply:
    """What became of one piece of code.

    `reason`: "exit" (the process has ended, with `status`), "end" (the code has, its session goes on), or why it was
    ended: "timeout", "printed", "memory", "disk", "idle", "deaf". `head` and `tail` are the first and the last of
    `num_bytes` printed ones, all of them if nothing is left out; `started`: the walls stood.
    """

    reason: str
    started: bool = True
    status: int = 0
    error: str = ""
    num_bytes: int = 0
    head: bytes = b""
    tail: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)


def read_reply(header: Mapping[str, Any], body: bytes) -> Reply:
    """The reply of a frame."""
    head, tail = header["shown"]
    files: dict[str, bytes] = {}
    start = head + tail
    for name, size in header["files"]:
        files[name] = body[start : start + size]
        start += size
    return Reply(
        header["reason"],
        header["started"],
        header["status"],
        header["error"],
        header["printed"],
        body[:head],
        body[head : head + tail],
        files,
    )


class Conversation:
    """A connection to one supervisor: pieces of code go there, replies come back."""

    def __init__(self, zygote: Zygote) -> None:
        self.zygote = zygote
        self.connection, theirs = socket.socketpair()
        zygote.conversations.add(self)
        with theirs:
            try:
                socket.send_fds(zygote.control, [b"x"], [theirs.fileno()])
            except OSError:  # the zygote is dead: what is asked finds no answer
                pass

    def ask_now(self, code: bytes) -> Reply | None:
        """As `ask`, blocking."""
        self.connection.settimeout(self.zygote.seconds)
        data = bytearray()
        try:
            self.connection.sendall(struct.pack(">I", len(code)) + code)
            while len(data) < 8 or len(data) < 8 + sum(struct.unpack(">II", data[:8])):
                if not (chunk := self.connection.recv(1 << 18)):
                    return None
                data += chunk
        except OSError:
            return None
        return self._read(data)

    async def ask(self, code: bytes) -> Reply | None:
        """Run one piece of code. None if the connection was lost, with it whatever was to answer.

        Raises ToolError, having ended the zygote, if there is no answer in time.
        """
        loop = asyncio.get_running_loop()
        self.connection.setblocking(False)
        data = bytearray()
        try:
            async with asyncio.timeout(self.zygote.seconds):
                try:
                    await loop.sock_sendall(self.connection, struct.pack(">I", len(code)) + code)
                except ConnectionError:  # it has hung up; its last words may still be there to read
                    pass
                while len(data) < 8 or len(data) < 8 + sum(struct.unpack(">II", data[:8])):
                    if not (chunk := await loop.sock_recv(self.connection, 1 << 18)):
                        return None
                    data += chunk
        except TimeoutError:
            self.zygote.end()
            seconds = self.zygote.seconds
            raise ToolError(f"the sandbox of the python tool did not answer within {seconds:g} s") from None
        except OSError:
            return None
        return self._read(data)

    def _read(self, data: bytearray) -> Reply:
        size, _ = struct.unpack(">II", data[:8])
        return read_reply(json.loads(data[8 : 8 + size]), bytes(data[8 + size :]))

    def hang_up(self) -> None:
        """Whatever still runs at the other end is killed; who waits for it learns that it is lost."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end was first
            pass

    def close(self) -> None:
        """Hang up for good."""
        self.connection.close()


class Zygote:
    """One running `python_zygote.py`: its process, the socket on which it is handed connections, its folder, its group.

    Raises ToolError, having left nothing behind, if the walls of `level` can't be built or do not hold here.
    """

    def __init__(self, level: str, limits: Limits) -> None:
        if sys.platform != "linux":
            raise ToolError(f"needs Linux, not {sys.platform}")
        self.level, self.seconds = level, limits.seconds + GRACE_SECONDS
        self.conversations: weakref.WeakSet[Conversation] = weakref.WeakSet()
        self.base = tempfile.mkdtemp(prefix="gruppo-python-")
        os.chmod(self.base, 0o711)
        # The kernel counts what a user runs, wherever: the zygotes of a machine must not share theirs.
        user = random.SystemRandom().choice(USERS) if os.getuid() == 0 else None
        self.group = make_group(user if level == "namespaces" else None)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = json.dumps({**asdict(limits), "level": level, "base": self.base, "group": self.group, "user": user})
        script = str(Path(__file__).with_name("python_zygote.py"))
        clean = ["-s", "-P", "-S", "-B", "-X", "utf8"]  # -I but for the seed of hashing, the only variable it is given
        try:
            self.process = subprocess.Popen(
                [sys.executable, *clean, script, str(theirs.fileno()), settings],
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
            self._remove()
            raise ToolError(f"can't be started: {error}") from error
        finally:
            theirs.close()
        try:
            self._try_out()
        except ToolError:
            self.close()
            raise
        self.isolation = ", ".join(self._words(user))

    def _try_out(self) -> None:
        """Wait until it is up, then run code that tries what the walls forbid. Raises ToolError saying why."""
        self.control.settimeout(GRACE_SECONDS)
        try:
            said = self.control.recv(1 << 16).decode()
        except OSError as error:
            raise ToolError(f"did not start: {error}") from error
        if said != "ready":
            raise ToolError(said or f"did not start: exit status {self.process.wait()}")
        with open(f"{self.base}/marker", "w") as marker:
            os.fchmod(marker.fileno(), 0o644)
        names = f"MARKER, PARENT = {marker.name!r}, {os.getpid()}\n".encode()
        conversation = self.open()
        reply = conversation.ask_now(names + PROBE)
        conversation.close()
        if reply is None or not reply.started or reply.error or not reply.head.startswith(b"open:"):
            why = reply and (reply.error or f"{reply.reason}, status {reply.status}")
            raise ToolError(f"a first call failed: {why or 'the sandbox died'}")
        found = reply.head.decode().removeprefix("open:").split()
        if found and self.level != "process":
            raise ToolError(f"a first call got through to: {', '.join(found)}")

    def _words(self, user: int | None) -> list[str]:
        words = {
            "namespaces": ["namespaces (own files, processes and network)", "seccomp"],
            "landlock": ["landlock (own files)", "seccomp (no network)"],
            "process": ["process (open network, open files)"],
        }[self.level]
        return [*words, *["own user"] * (user is not None), "memory group" if self.group else "memory watched"]

    def open(self) -> Conversation:
        """A session, or a single call."""
        return Conversation(self)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Kill the zygote. Calls that its supervisors are answering go on to their end, unless they live in it."""
        self.control.close()
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, its calls in flight, and all that they started."""
        for conversation in list(self.conversations):
            conversation.hang_up()
        self.control.close()  # the zygote waits for its supervisors and ends
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.end()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.base, ignore_errors=True)
        remove_group(self.group)
