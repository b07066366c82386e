"""The python tool: real processes, real limits. What untrusted code may do, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gruppo.errors import ToolError
from gruppo.tools.python import PythonTool
from gruppo.types import ToolResult

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)


@pytest.fixture(scope="module")
def python() -> Iterator[PythonTool]:
    made = PythonTool(seconds=10)
    yield made
    made.close()


@pytest.fixture(scope="module")
def brief() -> Iterator[PythonTool]:
    """With a short wall time, and room for a few processes."""
    made = PythonTool(seconds=1, processes=8)
    yield made
    made.close()


def run(python: PythonTool, code: str) -> ToolResult:
    return asyncio.run(python.call({"code": code}))


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def folder_of(python: PythonTool) -> Path:
    return Path(python._zygotes[-1].base)


def test_output_and_errors(python: PythonTool) -> None:
    assert run(python, "print(1+1)") == ToolResult(True, "2\n")
    assert run(python, "print('é 😀', chr(0xd800))") == ToolResult(True, "é 😀 \\ud800\n")
    assert run(python, "1+1") == ToolResult(False, error="no output: print the result")
    assert run(python, "print(1)\n1/0") == ToolResult(False, "1\n", "ZeroDivisionError: division by zero (line 2)")
    assert run(python, "print(").error == "SyntaxError: '(' was never closed (<code>, line 1)"
    assert run(python, "def f(): f()\nf()").error.startswith("RecursionError: maximum recursion depth exceeded")
    assert run(python, "\0").error.startswith(("SyntaxError", "ValueError"))
    assert run(python, "print(input())").error.startswith("EOFError")
    assert run(python, "print(1)\nexit()") == ToolResult(True, "1\n")
    assert asyncio.run(python.call({"code": 3})).error == "argument 'code' is 3, expected a string"
    assert "cut: 10001 characters" in run(python, "print('x' * 10000)").output
    assert run(python, "#" * (1 << 20) + "#").error.startswith("the code has 1048577 bytes")


def test_a_program_is_complete(python: PythonTool) -> None:
    assert run(python, "if __name__ == '__main__': print('main')").output == "main\n"
    threads = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('late'))).start()"
    assert run(python, threads).output == "late\n"
    classes = "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\nprint(A())"
    assert run(python, classes).output == "A(x=1)\n"
    assert run(
        python, "import json.tool, sqlite3, encodings.latin_1, asyncio\nasyncio.run(asyncio.sleep(0))\nprint(1)"
    ).ok
    assert run(python, "open('a', 'w').write('b')\nprint(open('a').read())").output == "b\n"


def test_the_same_code_gives_the_same_output(python: PythonTool) -> None:
    code = "import random\nprint(random.random(), {'a', 'b', 'c', 'd'})"
    other = PythonTool()
    assert run(python, code) == run(python, code) == run(other, code)
    other.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os\nos._exit(3)", "the process ended with exit status 3"),
        ("import os\nos.kill(os.getpid(), 9)", "the process died with SIGKILL"),
        ("import os\nos.kill(os.getpid(), 36)", "the process died with signal 36"),
        ("import resource\nresource.setrlimit(0, (0, 12))\nwhile True: pass", "stopped: more than 11 s of CPU time"),
        ("import ctypes\nctypes.string_at(0)", "the process died with SIGSEGV"),
        ("print('x' * 200_000_000)", "printed more than 8 MB"),
        ("while True: print('x' * 1000)", "printed more than 8 MB"),
        ("x = bytearray(10**10)", "MemoryError (line 1)"),
        ("x = [0]\nwhile True: x += x", "MemoryError (line 2)"),
    ],
)
def test_deaths_floods_and_bombs_are_told(python: PythonTool, code: str, error: str) -> None:
    result = run(python, code)
    assert (result.ok, result.error, len(result.output) <= 3500) == (False, error, True)
    assert run(python, "print(1)").ok


@pytest.mark.parametrize(
    "code",
    [
        "import socket\nsocket.socket()",
        "import socket\nsocket.socketpair(type=socket.SOCK_DGRAM)",
        "import os\nos.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.kill(-1, 9)",
        "import os\nos.setuid(0) if os.getuid() else os.kill(1, 9)",
        "import resource, os\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.unshare(0x10000000): raise PermissionError(ctypes.get_errno())",
    ],
)
def test_what_reaches_out_is_refused(python: PythonTool, code: str) -> None:
    assert run(python, code).error.startswith("PermissionError")


def test_the_world_is_empty(python: PythonTool) -> None:
    os.environ["GRUPPO_TEST_SECRET"] = "secret"
    code = "import os, sys\nprint(dict(os.environ), sys.stdin.read() == '', os.listdir('.'))"
    assert run(python, code).output == "{} True []\n"
    code = "import os\nopen = [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')]\n"
    assert "socket" not in run(python, code + "print([os.readlink(f'/proc/self/fd/{fd}') for fd in open])").output


def test_files_outside_are_out_of_reach(python: PythonTool, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o666)
    if "landlock" not in python.isolation:
        pytest.skip("this kernel has no Landlock")
    for code in (f"print(open({str(secret)!r}).read())", f"open({str(secret)!r}, 'w')", "open('/tmp/gruppo-x', 'w')",
                 "import os\nprint(os.listdir('..'))", "open('/proc/self/environ')"):  # fmt: skip
        assert run(python, code).error.startswith("PermissionError"), code
    assert secret.read_text() == "secret"


def test_the_work_folder_is_removed_whatever_is_in_it(python: PythonTool) -> None:
    code = """
import os
os.mkdir('locked'); open('locked/file', 'w').close(); os.chmod('locked', 0)
os.symlink('/', 'root'); os.mkfifo('fifo')
for _ in range(40): os.mkdir('deep' * 50); os.chdir('deep' * 50)  # beyond the longest path
print(1)
"""
    assert run(python, code).ok
    assert list(folder_of(python).iterdir()) == []


def test_the_wall_time_is_kept_and_the_process_is_dead(brief: PythonTool) -> None:
    for code in ("import time\nprint('é', flush=True)\ntime.sleep(60)", "print('é', flush=True)\nwhile True: pass"):
        started = time.monotonic()
        result = run(brief, code)
        assert result == ToolResult(False, "é\n", "timed out after 1 s", timed_out=True)
        assert time.monotonic() - started < 4
    assert list(folder_of(brief).iterdir()) == []


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        {then}
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(.2)
"""


def test_a_daemon_does_not_outlive_the_call(brief: PythonTool) -> None:
    result = run(brief, DAEMON.format(then=""))
    assert result.ok and not is_alive(int(result.output))


FORK_BOMB = """
import os
while True:
    try:
        if os.fork() == 0:
            print(os.getpid(), flush=True)
    except OSError:
        pass
"""


def test_a_fork_bomb_is_bounded_and_ends(brief: PythonTool) -> None:
    result = run(brief, FORK_BOMB)
    pids = result.output.split()
    assert result.timed_out and 0 < len(pids) < 40
    assert not any(is_alive(int(pid)) for pid in pids)
    assert run(brief, "print(1)").ok


def test_a_cancelled_call_is_killed(python: PythonTool) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(python.call({"code": "import time\ntime.sleep(60)"}))
        while not list(folder_of(python).iterdir()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        deadline = time.monotonic() + 5
        while list(folder_of(python).iterdir()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    asyncio.run(cancel())


def test_calls_at_once_and_in_successive_loops(python: PythonTool) -> None:
    async def all_at_once() -> list[ToolResult]:
        return await asyncio.gather(*(python.call({"code": f"print({number})"}) for number in range(8)))

    zygote = python._zygotes[-1].process.pid
    for _ in range(2):
        assert [result.output for result in asyncio.run(all_at_once())] == [f"{number}\n" for number in range(8)]
    assert python._zygotes[-1].process.pid == zygote


def test_a_killed_zygote_is_replaced() -> None:
    python = PythonTool()
    for kill in (os.kill, os.killpg):  # the zygote alone; with its supervisors
        pid = python._zygotes[-1].process.pid
        kill(pid, signal.SIGKILL)
        assert run(python, "print(1)").ok
        if kill is os.killpg:
            assert python._zygotes[-1].process.pid != pid
    python.close()


def test_closing_leaves_nothing() -> None:
    python = PythonTool()
    pid, folder = python._zygotes[-1].process.pid, folder_of(python)
    python.close()
    assert not is_alive(pid) and not folder.exists()
    with pytest.raises(ToolError, match="closed"):
        run(python, "print(1)")


def test_the_network_is_open_only_if_allowed(python: PythonTool) -> None:
    assert python.isolation.startswith("process, no network (seccomp)")
    allowed: Any = PythonTool(allow_network=True)
    assert allowed.isolation.startswith("process, open network")
    assert run(allowed, "import socket\nsocket.socket()\nprint(1)").ok
    allowed.close()


def test_walls_that_can_not_be_built_are_an_error() -> None:
    with pytest.raises(ToolError, match="can't be built here"):
        PythonTool(memory_mb=1)
