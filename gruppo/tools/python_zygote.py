"""The sandbox side of the python tool: one clean interpreter that forks a confined child for each piece of code.

A script of its own, started by `python.py`, importing nothing of ours. Three generations: the zygote warms up and keeps
a few supervisors; a supervisor takes one call at a time, forks the child that runs the code, waits with a deadline,
kills whatever the code started, and answers; the child puts up its own walls. `python.py` words the answer.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import importlib
import json
import os
import platform
import random
import resource
import select
import signal
import socket
import stat
import struct
import sys
import types
from typing import Any, NoReturn

UID = 65534  # whom the code runs as if we are root
LIBC = ctypes.CDLL(None, use_errno=True)
PRCTL, SYSCALL = LIBC.prctl, LIBC.syscall
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
EPERM, ENOSYS = 1, 38
SELF = 0x7FFFFFFE
STARTED = b"\1"  # the first byte of a report: the walls stand; what goes wrong from here on is the code's own doing
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

# Refused system calls, (x86_64, aarch64); -1: the architecture has none.
NETWORK = {"socket": (41, 198), "connect": (42, 203)}
REFUSED = {
    "ptrace": (101, 117), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "bpf": (321, 280), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "io_uring_setup": (425, 425), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
}  # fmt: skip
PROCESSES = {"fork": (57, -1), "vfork": (58, -1)}
CLONE, CLONE3, CLONE_THREAD = (56, 220), (435, 435), 0x10000
KILL, TGKILL, PRLIMIT64, SOCKETPAIR = (62, 129), (234, 131), (302, 261), (53, 199)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

PROBE = b"""
import socket
try:
    socket.create_connection(("127.0.0.1", 9), timeout=1)
except PermissionError:
    print("closed")
except OSError:
    print("open")
"""


def seccomp_program(processes: int, network: bool) -> bytes:
    """The BPF filter: refused calls, and a few allowed on one value of an argument. SELF stands for the process."""
    column, audit = MACHINES[platform.machine()]
    refused = {**REFUSED, **({} if network else NETWORK), **(PROCESSES if processes < 2 else {})}
    only_if = [  # (call, argument, mask, value): signals to oneself, limits of oneself, no datagrams to named sockets
        (KILL, 0, 0xFFFFFFFF, SELF),
        (TGKILL, 0, 0xFFFFFFFF, SELF),
        (PRLIMIT64, 0, 0xFFFFFFFF, 0),
        (SOCKETPAIR, 1, 0xF, socket.SOCK_STREAM),
    ]
    if processes < 2:
        only_if.append((CLONE, 0, CLONE_THREAD, CLONE_THREAD))
    load, jump_equal, jump_less, mask_with, give = 0x20, 0x15, 0x35, 0x54, 0x06
    allow, refuse = (give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | EPERM)
    program = [(load, 0, 0, 4), (jump_equal, 1, 0, audit), refuse, (load, 0, 0, 0)]
    if column == 0:
        program += [(jump_less, 0, 1, 0x40000000), refuse]  # the x32 numbers
    program += [(jump_equal, 0, 1, CLONE3[column]), (give, 0, 0, 0x00050000 | ENOSYS)]  # the C library then uses clone
    for numbers in refused.values():
        if numbers[column] >= 0:
            program += [(jump_equal, 0, 1, numbers[column]), refuse]
    for numbers, argument, mask, value in only_if:
        program += [(jump_equal, 0, 5, numbers[column]), (load, 0, 0, 16 + 8 * argument), (mask_with, 0, 0, mask)]
        program += [(jump_equal, 0, 1, value), allow, refuse]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*program, allow])


def install_seccomp(program: bytes) -> None:
    program = program.replace(struct.pack("I", SELF), struct.pack("I", os.getpid()))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value)
    check(PRCTL(PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")


def check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def landlock_version() -> int:
    """0 where the kernel has no Landlock."""
    return max(0, SYSCALL(444, None, ctypes.c_size_t(0), 1))


def install_landlock(version: int, readable: list[int], work: int) -> None:
    """Files: all rights in the work folder, reading (and running) in `readable`, nothing anywhere else."""
    everything = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}.get(version, 0xFFFF)
    run, write, read, list_folder = 1, 2, 4, 8
    ruleset = check(SYSCALL(444, struct.pack("Q", everything), ctypes.c_size_t(8), 0), "landlock")
    for place in [*readable, work]:
        is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
        rights = everything if place == work else run | read | list_folder if is_folder else read | write
        check(SYSCALL(445, ruleset, 1, struct.pack("=Qi", rights, place), 0), "landlock rule")
    check(SYSCALL(446, ruleset, 0), "landlock")


def confine(settings: dict[str, Any], work: str, readable: list[int], output: int) -> None:
    """Give up, for good, everything the code does not need. Raises OSError if one of the walls can't be put up."""
    os.setsid()
    os.chdir(work)
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (output, 1), (null, 2)):
        os.dup2(source, target)
    work_folder = os.open(".", os.O_PATH)
    user = UID if os.getuid() == 0 else os.getuid()
    limit(resource.RLIMIT_CPU, int(settings["seconds"]) + 2)
    limit(resource.RLIMIT_AS, settings["memory_mb"] << 20)
    limit(resource.RLIMIT_FSIZE, settings["file_bytes"])
    limit(resource.RLIMIT_NOFILE, 64)
    limit(resource.RLIMIT_CORE, 0)
    if settings["processes"] > 1 or not settings["program"]:
        limit(resource.RLIMIT_NPROC, tasks_of(user) + settings["processes"])  # counts all that the user runs
    if os.getuid() == 0:
        os.chown(".", UID, UID)
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    PRCTL(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if version := landlock_version():
        install_landlock(version, readable, work_folder)
    if settings["program"]:
        install_seccomp(settings["program"])


def limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    soft = value - 1 if what == resource.RLIMIT_CPU else value  # SIGXCPU tells what happened, SIGKILL would not
    resource.setrlimit(what, (soft, value))


def tasks_of(user: int) -> int:
    total = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == user:
                total += len(os.listdir(f"/proc/{process}/task"))
        except OSError:  # it ended meanwhile
            continue
    return total


def execute(code: bytes) -> None:
    """Run the code as the program `__main__`, and wait for its threads as an interpreter does."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv[:] = [""]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    random.seed(0)  # the same code gives the same output, in every attempt and after a resume
    try:
        exec(compile(code, "<code>", "exec"), vars(module))
        if threading := sys.modules.get("threading"):  # not imported here: it makes each fork dearer
            for thread in set(threading.enumerate()) - {threading.main_thread()}:
                if not thread.daemon:
                    thread.join()
    finally:
        sys.stdout.flush()


def describe(error: BaseException) -> str:
    """The last lines of the traceback and the line of the code; nothing for a plain `exit()`."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return ""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    line, trace = 0, error.__traceback__
    while trace:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == "<code>" else line
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}".rstrip(": ") + (f" (line {line})" if line else "")


def perform(code: bytes, confinement: tuple[dict[str, Any], str, list[int], int], report: int) -> NoReturn:
    status = 1
    try:
        confine(*confinement)
        os.write(report, STARTED)
        execute(code)
        status = 0
    except BaseException as error:  # whatever it is, it is the answer
        text = describe(error)
        status = 1 if text else 0
        os.write(report, text[:2_000].encode(errors="replace"))
    finally:
        os._exit(status)


def kill_tree(child: int) -> int:
    """Kill all that the call started and return the child's wait status. We are their reaper: orphans become ours."""
    status = 0
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for pid in children.read().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            process, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        status = ended if process == child else status


def wipe(folder: str) -> None:
    """Remove a tree however deep or locked: what a folder holds is moved up first, so paths stay short."""
    os.chmod(folder, 0o700)
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for inner in list(os.scandir(entry.path)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)
                os.rename(inner.path, f"{folder}/{os.urandom(8).hex()}")
            os.rmdir(entry.path)
    os.rmdir(folder)


def answer(code: bytes, settings: dict[str, Any], readable: list[int], sockets: tuple[socket.socket, ...]) -> bytes:
    """Run one piece of code to its end, its deadline or the caller's hanging up: a JSON line, then its output."""
    work = f"{settings['base']}/{os.urandom(8).hex()}"
    os.mkdir(work, 0o700)
    output = os.memfd_create("output")
    report, report_end = os.pipe()
    child = os.fork()
    if child == 0:
        for ours in sockets:
            ours.close()
        perform(code, (settings, work, readable, output), report_end)
    ended = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    for connection in sockets[1:]:
        waiting.register(connection, 0)  # hang-up only
    timed_out = not waiting.poll(settings["seconds"] * 1000)
    status = kill_tree(child)
    try:
        wipe(work)
    except OSError:  # what is left goes when the tool is closed
        pass
    os.close(report_end)
    said = os.read(report, 4_096)
    printed = os.pread(output, min(os.fstat(output).st_size, settings["file_bytes"]), 0)
    for descriptor in (output, report, ended):
        os.close(descriptor)
    header = {
        "started": said.startswith(STARTED),
        "timed_out": timed_out,
        "status": os.waitstatus_to_exitcode(status),
        "error": said.removeprefix(STARTED).decode(errors="replace"),
    }
    return json.dumps(header).encode() + b"\n" + printed


def supervise(control: socket.socket, settings: dict[str, Any], readable: list[int]) -> None:
    """Answer calls, one at a time, each on its own connection, until the other end of `control` is gone."""
    PRCTL(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            connection.settimeout(10)
            code = b""
            try:
                while chunk := connection.recv(1 << 16):
                    code += chunk
                connection.sendall(answer(code, settings, readable, (control, connection)))
            except (TimeoutError, ConnectionError):  # the caller is gone
                continue


def open_library() -> list[int]:
    """Open what the code may read. The standard library's own path may be closed to it (a Python in the home of root),
    so from here on it is imported through the open folders."""
    folders = {path: os.open(path, os.O_PATH) for path in sys.path if os.path.isdir(path)}
    sys.path[:] = [f"/proc/self/fd/{folder}" for folder in folders.values()]
    for module in list(sys.modules.values()):
        for path in vars(module).get("__path__", ()):
            library = os.path.dirname(path)
            if library in folders:
                vars(module)["__path__"] = [f"/proc/self/fd/{folders[library]}/{os.path.basename(path)}"]
    system = ("/usr", "/lib", "/lib64", "/dev/null", "/dev/urandom")
    return [*folders.values(), *(os.open(path, os.O_PATH) for path in system if os.path.exists(path))]


def main() -> None:
    control, settings = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    os.environ.clear()
    PRCTL(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    readable = open_library()
    for name in WARM:
        importlib.import_module(name)
    exec(compile("", "<code>", "exec"), {})  # the first compilation in a process costs 2 ms more
    sys.stdout = open(1, "w", errors="backslashreplace", closefd=False)
    gc.collect()
    gc.freeze()  # a collection in a child does not copy our pages
    known = platform.machine() in MACHINES
    settings["program"] = seccomp_program(settings["processes"], settings["allow_network"]) if known else b""
    hello = answer(PROBE, settings, readable, ())
    if settings["allow_network"] and not json.loads(hello.splitlines()[0])["started"]:
        settings["program"] = b""  # this kernel has no seccomp
        hello = answer(PROBE, settings, readable, ())
    walls = {"landlock": landlock_version(), "root": os.getuid() == 0}
    control.sendall(json.dumps(walls).encode() + b"\n" + hello)
    supervisors, status = 0, 1
    while status != 0:  # 0: it has seen the end; otherwise it was killed, and is replaced
        while supervisors < settings["concurrent"]:
            if os.fork() == 0:
                supervise(control, settings, readable)
                os._exit(0)
            supervisors += 1
        _, status = os.wait()
        supervisors -= 1
    for _ in range(supervisors):
        os.wait()
    wipe(settings["base"])


if __name__ == "__main__":
    main()
