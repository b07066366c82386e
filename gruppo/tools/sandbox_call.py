"""One call, seen from its supervisor: what the code prints and reports, when it has to end, and that nothing is left.

Imported by `python_zygote.py`, which runs outside the package: the standard library only. It judges nothing:
`python.py` words what it says.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import time
from typing import Any

from sandbox_census import descendants
from sandbox_child import END, STARTED, perform
from sandbox_seat import Seat

KEPT = 1 << 18  # bytes of output, from its beginning and from its end
MAX_PRINTED = 1 << 27
TICK = 0.05  # seconds between two looks at what no wall of the kernel bounds


class Call:
    """A child that runs code, with all that it starts: what it prints and reports, and how it ends."""

    def __init__(self, seat: Seat, code: bytes, connection: socket.socket) -> None:
        self.seat, self.report = seat, b""
        self.head, self.tail, self.printed = b"", b"", 0
        self.killed = seat.num_killed()
        seat.open()
        theirs, self.orders = os.pipe()
        self.output, output = os.pipe()
        self.ear, report = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            perform(seat, code, theirs, output, report)
        for descriptor in (theirs, output, report):
            os.close(descriptor)
        for descriptor in (self.orders, self.output, self.ear):
            os.set_blocking(descriptor, False)
        self.ended = os.pidfd_open(self.child)
        self.connection = connection.fileno()
        self.events = select.poll()
        for descriptor in (self.ended, self.output, self.ear):
            self.events.register(descriptor, select.POLLIN)
        self.events.register(connection, 0)  # hang-up only

    def next(self, code: bytes) -> None:
        """Give a session its next piece of code. Raises OSError if it does not take it."""
        self.report, self.head, self.tail, self.printed = STARTED, b"", b"", 0
        self.signal(signal.SIGCONT)
        if len(code) > 60_000:
            fcntl.fcntl(self.orders, fcntl.F_SETPIPE_SZ, 1 << 20)
        if os.write(self.orders, struct.pack(">I", len(code)) + code) < len(code) + 4:
            raise BlockingIOError("the session does not listen")

    def attend(self) -> str:
        """Wait until the code has ended ("exit", in a session "end"), or has to be: the reason, or "hangup"."""
        deadline = time.monotonic() + self.seat.settings["seconds"]
        look = time.monotonic() + TICK
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(self.events.poll(min(left, TICK) * 1000))
            for descriptor in {self.output, self.ear} & ready.keys():
                self.listen(descriptor)
            if self.connection in ready:
                return "hangup"
            if self.ended in ready:
                return "exit"
            if self.seat.settings["stateful"] and self.report.endswith(END):
                return "end"
            if self.printed > MAX_PRINTED:
                return "printed"
            if time.monotonic() > look:
                if excess := self.seat.excess():
                    return excess
                look = time.monotonic() + TICK
        return "timeout"

    def listen(self, descriptor: int) -> bool:
        """Take what there is to read, once. False if there is nothing (more)."""
        try:
            chunk = os.read(descriptor, 1 << 18)
        except BlockingIOError:
            return False
        if not chunk:
            self.events.unregister(descriptor)
        elif descriptor == self.ear:
            self.report = (self.report + chunk)[:8_192]
        else:
            self.printed += len(chunk)
            room = KEPT - len(self.head)
            self.head += chunk[:room]
            self.tail = (self.tail + chunk[room:])[-KEPT:]
        return bool(chunk)

    def drain(self) -> None:
        for descriptor in (self.output, self.ear):
            try:
                while self.listen(descriptor):
                    pass
            except KeyError:  # it was at its end before
                continue

    def signal(self, number: int) -> None:
        """Send a signal to all that the call has started."""
        # in namespaces, -1 is all but the first process there, which is us
        for pid in ["-1"] if self.seat.is_apart else descendants(self.seat.proc):
            try:
                os.kill(int(pid), number)
            except ProcessLookupError:  # it has ended, or there is none
                continue

    def end(self) -> int:
        """Kill all that the call has started and return the child's wait status. Orphans become ours."""
        status = 0
        while True:
            self.signal(signal.SIGKILL)
            try:
                process, ended = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            status = ended if process == self.child else status
        self.drain()
        for descriptor in (self.orders, self.output, self.ear, self.ended):
            os.close(descriptor)
        return os.waitstatus_to_exitcode(status)

    def reply(self, reason: str, status: int, files: list[tuple[str, bytes]]) -> bytes:
        """The frame that answers: sizes, a JSON header, what was printed, the files."""
        if reason == "exit" and self.seat.num_killed() > self.killed:
            reason = "memory"
        header = {
            "started": self.report.startswith(STARTED),
            "reason": reason,
            "status": status,
            "error": self.report.removeprefix(STARTED).removesuffix(END).decode(errors="replace"),
            "printed": self.printed,
            "shown": [len(self.head), len(self.tail)],
            "files": [(name, len(content)) for name, content in files],
        }
        return frame(header, self.head + self.tail + b"".join(content for _, content in files))


def frame(header: dict[str, Any], body: bytes) -> bytes:
    head = json.dumps(header).encode()
    return struct.pack(">II", len(head), len(body)) + head + body


def refusal(error: Exception) -> bytes:
    """The frame that answers where no call can be."""
    header = {
        "started": False,
        "reason": "exit",
        "status": 1,
        "error": f"{type(error).__name__}: {error}",
        "printed": 0,
    }
    return frame({**header, "shown": [0, 0], "files": []}, b"")


def kept_files(seat: Seat) -> list[tuple[str, bytes]]:
    """Name and content of the plain files in the work folder, if the caller wants them; links are not followed."""
    found: list[tuple[str, bytes]] = []
    left = seat.disk if seat.settings["keep_files"] else 0
    for folder, _, names in os.walk(seat.work) if left else ():
        for name in sorted(names):
            try:
                descriptor = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:  # a link, or locked
                continue
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size <= left:
                    found.append((os.path.relpath(f"{folder}/{name}", seat.work), file.read(left)))
                    left -= len(found[-1][1])
    return found
