"""The process that runs the code: it gives up what the code does not need, then becomes the code's `__main__`.

Imported by `python_zygote.py`, which runs outside the package: the standard library only. Everything in here is within
the code's reach; what it reports is believed of itself alone.
"""

from __future__ import annotations

import builtins
import os
import random
import resource
import signal
import struct
import sys
import types
from typing import Any, NoReturn

import sandbox_walls as walls
from sandbox_census import tasks_of
from sandbox_seat import Seat

STARTED = b"\1"  # the first byte of a report: the walls stand; what goes wrong from here on is the code's own doing
END = b"\0"  # the last one, in a session: this piece of code has come to its end


def confine(seat: Seat, descriptors: list[int], output: int) -> None:
    """Give up, for good, everything the code does not need. Raises OSError if one of the walls can't be put up."""
    settings = seat.settings
    os.setsid()
    os.chdir(seat.work)
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (output, 1), (null, 2)):
        os.dup2(source, target)
    if seat.members >= 0:
        os.write(seat.members, b"0")
    others = 1 if seat.is_apart else 0 if seat.user is not None else tasks_of(os.getuid())
    if not settings["stateful"]:  # a session's calls are held to their wall time
        walls.limit(resource.RLIMIT_CPU, int(settings["seconds"]) + 2)
    walls.limit(resource.RLIMIT_AS, settings["memory_mb"] << 20)
    walls.limit(resource.RLIMIT_FSIZE, seat.disk)
    walls.limit(resource.RLIMIT_NOFILE, 64)
    walls.limit(resource.RLIMIT_CORE, 0)
    walls.limit(resource.RLIMIT_NPROC, others + settings["processes"])  # the kernel counts all that the user runs
    if seat.user is not None:
        walls.become(seat.user)
    if seat.is_apart:
        walls.drop_capabilities()
    walls.PRCTL(walls.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    walls.PRCTL(walls.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if seat.ruleset is not None:
        walls.install_landlock(seat.ruleset)
    last = 2
    for descriptor in [*sorted([*descriptors, *seat.folders]), 1 << 16]:
        os.closerange(last + 1, descriptor)
        last = descriptor
    if seat.program is not None:
        walls.install_seccomp(seat.program)


def new_program() -> dict[str, Any]:
    """The namespace of a fresh `__main__`."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv[:] = [""]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    random.seed(0)  # the same code gives the same output, in every attempt and after a resume
    return vars(module)


def execute(code: bytes, program: dict[str, Any]) -> str:
    """Run the code, and wait for its threads as an interpreter does. What went wrong, or nothing."""
    try:
        try:
            exec(compile(code, "<code>", "exec"), program)
            if threading := sys.modules.get("threading"):  # not imported here: it makes each fork dearer
                for thread in set(threading.enumerate()) - {threading.main_thread()}:
                    if not thread.daemon:
                        thread.join()
        finally:
            sys.stdout.flush()
    except BaseException as error:  # whatever it is, it is the answer
        return describe(error)
    return ""


def describe(error: BaseException) -> str:
    """The last lines of the traceback and the line of the code; nothing for a plain `exit()`."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return f"the process ended with exit status {error.code & 0xFF}" if error.code else ""
    line, trace = 0, error.__traceback__
    while trace:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == "<code>" else line
        trace = trace.tb_next
    try:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
    except BaseException:  # its own __str__ is code too
        return type(error).__name__
    return text + (f" (line {line})" if line and not isinstance(error, SyntaxError) else "")


def encode(text: str) -> bytes:
    return text[:2_000].replace("\0", "\\0").encode(errors="replace")


def perform(seat: Seat, code: bytes, orders: int, output: int, report: int) -> NoReturn:
    """The child: run the code, and in a session each further piece that comes."""
    own = os.getpid()
    try:
        confine(seat, [orders, report], output)
        os.write(report, STARTED)
        program = new_program()
        while True:
            text = execute(code, program)
            if os.getpid() != own:  # a fork of the code's has come to its end
                os._exit(1 if text else 0)
            os.write(report, encode(text))
            if not seat.settings["stateful"]:
                os._exit(1 if text else 0)
            os.write(report, END)
            code = read_exactly(orders, struct.unpack(">I", read_exactly(orders, 4))[0])
    except BaseException as error:  # whatever it is, it is the answer
        os.write(report, encode(describe(error)))
    finally:
        os._exit(1)


def read_exactly(descriptor: int, size: int) -> bytes:
    """Raises EOFError if the other side has hung up."""
    data = b""
    while len(data) < size:
        chunk = os.read(descriptor, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return data
