"""The python tool: real processes, real limits. What it says, what becomes of the code, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sandbox_tools import children_of, is_alive, is_tidy, make, num_resting, run, wait_until, zygote_of

from gruppo.errors import ToolError
from gruppo.tools.cgroup import make_group, remove_group
from gruppo.tools.python import PythonTool
from gruppo.tools.sandbox import USERS
from gruppo.types import ToolResult

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)


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
        ("import sys\nsys.exit(3)", "the process ended with exit status 3"),
        ("import sys\nsys.exit('why')", "SystemExit: why (line 2)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (line 1)"),
        ("import os\nos.kill(os.getpid(), 9)", "the process died with SIGKILL"),
        ("import os\nos.kill(os.getpid(), 36)", "the process died with signal 36"),
        ("import os\nos.abort()", "the process died with SIGABRT"),
        ("import resource\nresource.setrlimit(0, (0, 12))\nwhile True: pass", "stopped: more than 11 s of CPU time"),
        ("import ctypes\nctypes.string_at(0)", "the process died with SIGSEGV"),
        ("print('x' * 200_000_000)", "printed more than 128 MB"),
        ("while True: print('x' * 1000)", "printed more than 128 MB"),
        ("x = bytearray(10**10)", "MemoryError (line 1)"),
        ("x = [0]\nwhile True: x += x", "MemoryError (line 2)"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "E"),
    ],
)
def test_deaths_floods_and_bombs_are_told(python: PythonTool, code: str, error: str) -> None:
    result = run(python, code)
    assert (result.ok, result.error.startswith(error), len(result.output) <= 3500) == (False, True, True), result
    assert run(python, "print(1)").ok


def test_one_process_may_start_no_other() -> None:
    alone = PythonTool(processes=1, concurrent=1)
    for code in ("import os\nos.fork()", "import subprocess\nsubprocess.run(['true'])"):
        assert run(alone, code).error.startswith("PermissionError")
    threads = "import threading\nthread = threading.Thread(target=print, args=(1,))\nthread.start()\nthread.join()"
    assert run(alone, threads).error.startswith(("", "RuntimeError: can't start new thread"))
    alone.close()


def test_code_may_run_a_few_processes(python: PythonTool) -> None:
    code = "import subprocess\nprint(subprocess.run(['echo', 'there'], capture_output=True, text=True).stdout)"
    assert "there" in run(python, code).output
    code = "import subprocess\nsubprocess.run(['sleep', '9'], timeout=.1)"
    assert run(python, code).error.startswith("TimeoutExpired")
    if python.level == "namespaces":
        code = "import multiprocessing\nwith multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))"
        assert run(python, code).output == "[1, 2]\n"
        code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import json; print(1)'])"
        assert run(python, code).output == "1\n"


@pytest.mark.parametrize("neighbour", ["namespaces", "landlock"])
def test_what_another_tool_runs_takes_nothing_from_the_limit_on_processes(python: PythonTool, neighbour: str) -> None:
    beside = make(neighbour, concurrent=20, seconds=30)
    busy = "import os, time\nfor _ in range(12):\n    if not os.fork(): break\ntime.sleep(30) #"
    callers = [threading.Thread(target=pytest.raises, args=(ToolError, run, beside, busy + name)) for name in "abcd"]
    for caller in callers:
        caller.start()
    try:
        wait_until(lambda: len(children_of(zygote_of(beside))) > 60)
        code = "import subprocess\nprint(subprocess.run(['echo', 'there'], capture_output=True, text=True).stdout)"
        assert "there" in run(python, code).output
    finally:
        beside.close()
        for caller in callers:
            caller.join()


def test_users_of_the_code_are_nobody_elses() -> None:
    num_slots = 1 << 16
    assert USERS.start > 0x6FFFFFFF, "up to here systemd gives them to containers"
    assert USERS.stop + num_slots <= 0x7FFE0000, "from here on, to the owners of foreign images"


def test_the_world_is_empty(python: PythonTool) -> None:
    os.environ["GRUPPO_TEST_SECRET"] = "secret"
    code = "import os, sys\nprint(dict(os.environ), sys.stdin.read() == '', os.listdir('.'))"
    assert run(python, code).output == "{} True []\n"
    code = "import os\nopen = [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')]\n"
    assert "socket" not in run(python, code + "print([os.readlink(f'/proc/self/fd/{fd}') for fd in open])").output


def test_the_work_folder_is_removed_whatever_is_in_it(python: PythonTool) -> None:
    code = """
import os
os.mkdir('locked'); open('locked/file', 'w').close(); os.chmod('locked', 0)
os.symlink('/', 'root'); os.mkfifo('fifo')
for _ in range(40): os.mkdir('deep' * 50); os.chdir('deep' * 50)  # beyond the longest path
print(1)
"""
    children = num_resting(python)
    assert run(python, code).ok
    assert is_tidy(python, children)


def test_the_wall_time_is_kept_and_the_process_is_dead(brief: PythonTool) -> None:
    children = num_resting(brief)
    for code in ("import time\nprint('é', flush=True)\ntime.sleep(60)", "print('é', flush=True)\nwhile True: pass"):
        started = time.monotonic()
        result = run(brief, code)
        assert result == ToolResult(False, "é\n", "timed out after 1 s", timed_out=True)
        assert time.monotonic() - started < 4
    assert is_tidy(brief, children)


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
    children = num_resting(brief)
    result = run(brief, FORK_BOMB)
    assert result.timed_out and 0 < len(result.output.split()) < 40
    assert is_tidy(brief, children)
    assert run(brief, "print(1)").ok


def test_a_cancelled_call_is_killed(python: PythonTool) -> None:
    children = num_resting(python)

    async def cancel() -> None:
        task = asyncio.create_task(python.call({"code": "import time\ntime.sleep(60)"}))
        while len(children_of(zygote_of(python))) == children:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    wait_until(lambda: is_tidy(python, children))


def test_calls_at_once_and_in_successive_loops(python: PythonTool) -> None:
    async def all_at_once() -> list[ToolResult]:
        return await asyncio.gather(*(python.call({"code": f"print({number})"}) for number in range(8)))

    zygote = zygote_of(python)
    for _ in range(2):
        assert [result.output for result in asyncio.run(all_at_once())] == [f"{number}\n" for number in range(8)]
    assert zygote_of(python) == zygote


@pytest.mark.parametrize("level", ["namespaces", "landlock"])
def test_a_killed_zygote_is_replaced(level: str) -> None:
    python = make(level, concurrent=2)
    for kill in (os.kill, os.killpg):  # the zygote alone; with its supervisors
        pid = zygote_of(python)
        below = children_of(pid)
        kill(pid, signal.SIGKILL)
        assert run(python, "print(1)").ok
        if kill is os.killpg:
            assert zygote_of(python) != pid
            wait_until(lambda below=below: not any(map(is_alive, below)))
    python.close()


@pytest.mark.parametrize("level", ["namespaces", "landlock", "process"])
def test_closing_leaves_nothing(level: str) -> None:
    python = make(level, min_level="process", concurrent=2, seconds=30)
    sandbox: Any = python._sandboxes[-1]
    num_resting(python)
    pids = [sandbox.process.pid, *children_of(sandbox.process.pid)]
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(20)"
    caller = threading.Thread(target=lambda: pytest.raises(ToolError, run, python, code))
    caller.start()
    wait_until(lambda: len(children_of(sandbox.process.pid)) + 1 == len(pids) + 2)
    pids = [sandbox.process.pid, *children_of(sandbox.process.pid)]
    python.close()  # with a call in flight
    caller.join()
    wait_until(lambda: not any(map(is_alive, pids)))
    assert not os.path.exists(sandbox.base) and not os.path.exists(sandbox.group or "/nowhere")
    with pytest.raises(ToolError, match="closed"):
        run(python, "print(1)")


def test_a_group_of_a_dead_process_is_swept_up() -> None:
    if not (group := make_group(None)):
        pytest.skip("no memory group can be made here")
    stale = Path(group).with_name("gruppo-999999999-00")
    os.rename(group, stale)
    remove_group(make_group(None))
    assert not stale.exists()


def test_nothing_of_a_call_reaches_the_next(python: PythonTool) -> None:
    poison = """
import builtins, json, sys
for name in ('json.py', 'random.py', 'sitecustomize.py', 'x.pth'):
    open(name, 'w').write('raise SystemExit')
builtins.print = json.dumps = None
sys.modules['math'] = None
"""
    run(python, poison)
    assert run(python, "import json, math, os\nprint(json.dumps(math.pi > 3), os.listdir())").output == "true []\n"


def test_a_work_folder_is_for_single_calls() -> None:
    with pytest.raises(ValueError, match="work_dir"):
        PythonTool(stateful=True, work_dir="out")
