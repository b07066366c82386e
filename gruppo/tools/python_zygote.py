"""The sandbox side of the python tool: one clean interpreter that forks a confined child for each piece of code.

A script of its own, started by `sandbox.py`, importing nothing of the package but the walls beside it. Three
generations: the zygote warms up, enters its world and keeps a few supervisors; a supervisor holds one conversation at a
time, forks the child that runs the code, waits with a deadline, kills whatever the code started, and answers; the child
puts up its own walls. `python.py` words the answers.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # last: nothing of ours may hide the standard library
import sandbox_namespaces as namespaces  # noqa: E402
import sandbox_walls as walls  # noqa: E402
from sandbox_call import Call, kept_files, refusal  # noqa: E402
from sandbox_census import children  # noqa: E402
from sandbox_seat import Seat, World  # noqa: E402

sys.path.pop()

CONVERSATION_ENDED = 3
WARM = (
    "collections",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "re",
    "statistics",
)


def main() -> None:
    control, settings = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    os.environ.clear()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    walls.PRCTL(walls.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.executable = os.path.realpath(sys.executable)
    for name in WARM:
        importlib.import_module(name)
    try:
        world = World(settings)
    except OSError as error:
        control.sendall(str(error).encode())
        return
    exec(compile("", "<code>", "exec"), {})  # the first compilation in a process costs 2 ms more
    sys.stdout = open(1, "w", errors="backslashreplace", closefd=False)
    gc.collect()
    gc.freeze()  # a collection in a child does not copy our pages
    control.sendall(b"ready")
    keep_supervisors(control, settings, world)


def keep_supervisors(control: socket.socket, settings: dict[str, Any], world: World) -> None:
    """Always have some that wait for a call, until one of them has seen the end; then wait for those that answer."""
    is_apart = settings["level"] == "namespaces"
    look, taken = os.pipe()
    os.set_blocking(look, False)
    events = select.poll()
    events.register(look, select.POLLIN)
    seats: dict[int, tuple[int, int]] = {}  # descriptor of a supervisor -> its process, its slot
    busy: set[int] = set()  # slots with a session
    status = 1
    while status != 0:
        while len(seats) - len(busy) < settings["concurrent"]:
            slot = min(set(range(len(seats) + 1)) - {slot for _, slot in seats.values()})
            process = namespaces.fork_into_own(world.proc) if is_apart else os.fork()
            if process == 0:
                supervise(control, settings, slot, world, taken)
            descriptor = os.pidfd_open(process)
            events.register(descriptor, select.POLLIN)
            seats[descriptor] = (process, slot)
        ready = dict(events.poll())
        if look in ready:
            busy |= {slot for (slot,) in struct.iter_unpack("H", os.read(look, 4096))}
        for descriptor in ready.keys() & seats.keys():
            process, slot = seats.pop(descriptor)
            events.unregister(descriptor)
            os.close(descriptor)
            busy.discard(slot)
            status = os.waitpid(process, 0)[1]
            if status and not is_apart:
                end_strays(world.proc, {process for process, _ in seats.values()})
    for process, _ in seats.values():
        os.waitpid(process, 0)


def end_strays(proc: int, supervisors: set[int]) -> None:
    """Kill what a supervisor that was killed has left to us."""
    while strays := set(map(int, children(proc, "self"))) - supervisors:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def supervise(control: socket.socket, settings: dict[str, Any], slot: int, world: World, taken: int) -> NoReturn:
    """Answer calls, one at a time, each on its own connection, until the other end of `control` is gone."""
    walls.PRCTL(walls.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        seat: Seat | Exception = Seat(settings, slot, world)
    except Exception as error:  # told to who asks first; a supervisor that just died would be replaced, again and again
        seat = error
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            os._exit(0)
        if settings["stateful"]:
            os.write(taken, struct.pack("H", slot))
        with socket.socket(fileno=descriptors[0]) as connection:
            try:
                if isinstance(seat, Exception):
                    connection.sendall(refusal(seat))
                else:
                    converse(connection, seat)
            except (EOFError, TimeoutError, ConnectionError):  # the caller is gone
                pass
        if settings["stateful"] or isinstance(seat, Exception):
            os._exit(CONVERSATION_ENDED)


def converse(connection: socket.socket, seat: Seat) -> None:
    """Answer one call, or all calls of one session until it is lost, is idle for too long, or the caller hangs up."""
    connection.settimeout(10)
    call = Call(seat, receive(connection), connection)
    reason = "hangup"
    try:
        while (reason := call.attend()) == "end":
            call.drain()
            call.signal(signal.SIGSTOP)  # nothing runs between two calls
            connection.sendall(call.reply("end", 0, []))
            connection.settimeout(seat.settings["idle_seconds"])
            call.next(receive(connection))
    except TimeoutError:
        reason = "idle"
    except EOFError:  # the caller has hung up
        reason = "hangup"
    except BlockingIOError:
        reason = "deaf"
    finally:
        status = call.end()
        files = kept_files(seat)
        seat.clear()
    connection.settimeout(10)
    connection.sendall(call.reply(reason, status, files))


def receive(connection: socket.socket) -> bytes:
    """One piece of code. Raises EOFError if the caller has hung up, TimeoutError if it is silent."""
    data = b""
    size = 4
    while len(data) < size:
        chunk = connection.recv(1 << 18)
        if not chunk:
            raise EOFError
        data += chunk
        if len(data) >= 4:
            size = 4 + struct.unpack(">I", data[:4])[0]
    return data[4:size]


if __name__ == "__main__":
    main()
