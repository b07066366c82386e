"""Sessions of the python tool: the calls of one episode share variables, and end with it; how that is told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sandbox_tools import children_of, make, num_resting, run, wait_until, zygote_of

from gruppo.errors import ToolError
from gruppo.rewards import REWARDS
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.teams.base import Cast, Prompt
from gruppo.tools.python import LOST, PythonTool
from gruppo.types import CallContext, Outcome, Task, ToolResult

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)


@pytest.fixture(scope="module", params=["namespaces", "landlock", "monty"])
def stateful(request: pytest.FixtureRequest) -> Iterator[PythonTool]:
    made = make(request.param, seconds=1, concurrent=2, stateful=True)
    yield made
    made.close()


class Episodes:
    """Contexts of calls, and the ends of their episodes."""

    def __init__(self) -> None:
        self.ends: dict[str, list[Any]] = {}

    def context(self, name: str) -> CallContext:
        return CallContext("task", name, "solver", 0, None, self.ends.setdefault(name, []).append)

    def end(self, name: str) -> None:
        for ending in self.ends.pop(name):
            ending()


@pytest.fixture
def say(stateful: PythonTool) -> Iterator[Any]:
    """`say(code, episode)`: a call of the episode "a" unless said otherwise."""
    episodes = Episodes()

    def call(code: str, name: str = "a") -> ToolResult:
        return asyncio.run(stateful.call({"code": code}, episodes.context(name)))

    call.end = episodes.end  # type: ignore[attr-defined]
    yield call
    for name in list(episodes.ends):
        episodes.end(name)


def test_variables_survive_within_an_episode_only(stateful: PythonTool, say: Any) -> None:
    assert say("x = 20\ndef double(n): return 2 * n") == ToolResult(True, "")
    assert say("print(double(x) + 2)").output == "42\n"
    assert "NameError" in say("print(x)", "b").error
    assert say("1 / 0").error.startswith("ZeroDivisionError") and say("print(x)").ok
    say.end("a")
    assert "NameError" in say("print(x)").error
    assert "kept from call to call" in stateful.description


@pytest.mark.parametrize("code", ["while True: pass", "import os\nos._exit(0)", "import ctypes\nctypes.string_at(0)"])
def test_a_lost_session_is_told_and_begun_anew(stateful: PythonTool, say: Any, code: str) -> None:
    if stateful.level == "monty" and "import" in code:
        pytest.skip("monty has nothing to die of")
    say("x = 1")
    result = say(code)
    assert not result.ok and result.error.endswith(LOST)
    assert result.timed_out == ("while" in code)
    assert "NameError" in say("print(x)").error
    assert say("print(2)").output == "2\n"


def test_a_session_is_confined_and_rests_between_calls(stateful: PythonTool, say: Any) -> None:
    if stateful.level == "monty":
        pytest.skip("it has no threads and no files")
    count = "import threading\nn = 0\ndef count():\n    global n\n    while True: n += 1\n"
    assert say(count + "threading.Thread(target=count, daemon=True).start()").ok
    assert say("before = n\nopen('kept', 'w').write('x')").ok
    time.sleep(0.3)
    first = int(say("print(n - before)").output)
    assert first < 5_000_000 and int(say("print(len(open('kept').read()))").output) == 1
    assert say("import socket\nsocket.socket()").error.startswith("PermissionError")
    assert say("open('/etc/shadow')").error.startswith(("PermissionError", "FileNotFoundError"))
    assert say("import sys\nsys.exit(3)").error == "the process ended with exit status 3"
    assert say("print(before >= 0, '#' * 70_000 == " + repr("#" * 70_000) + ")").output == "True True\n"


def test_more_sessions_than_slots_in_the_order_of_their_calls(stateful: PythonTool) -> None:
    episodes = Episodes()
    names = [f"{number}" for number in range(9)]

    async def play() -> list[ToolResult]:
        contexts = [episodes.context(name) for name in names]
        calls = [stateful.call({"code": f"x = {name!r}"}, at) for name, at in zip(names, contexts, strict=True)]
        await asyncio.gather(*calls)
        calls = [stateful.call({"code": f"x += '{step}'\nprint(x)"}, at) for at in contexts for step in "ab"]
        return await asyncio.gather(*calls)

    results = asyncio.run(play())
    assert [result.output for result in results] == [f"{name}{end}\n" for name in names for end in ("a", "ab")]
    for name in names:
        episodes.end(name)
    if stateful.level != "monty":
        wait_until(lambda: len(children_of(zygote_of(stateful))) <= 4)  # all sessions' processes have ended


def test_an_idle_session_is_ended_and_that_is_told() -> None:
    python = PythonTool(stateful=True, idle_seconds=0.2, concurrent=1)
    assert run(python, "x = 1").ok
    time.sleep(0.8)
    assert run(python, "print(x)").error == f"there was no call for 0.2 s; {LOST}"
    assert "NameError" in run(python, "print(x)").error
    python.close()


def test_a_session_dies_with_its_sandbox_as_our_fault() -> None:
    python = PythonTool(level="landlock", stateful=True, concurrent=1)
    assert run(python, "x = 1").ok
    for pid in [zygote_of(python), *children_of(zygote_of(python))]:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ToolError, match="and with it a session"):
        run(python, "print(x)")
    assert run(python, "print(2)").ok
    python.close()


class Counter:
    """A team of nobody: two calls of the tool in each attempt, the second of which sees the variables of the first."""

    roles = ()
    prompts: dict[str, Prompt] = {}

    async def play(self, task: Task, cast: Cast) -> str | None:
        await cast.call("python", {"code": f"x = {task.result!r}\nseen = 'y' in vars()"})
        told = await cast.call("python", {"code": "y = 1\nprint(x, seen)"})
        if task.id == "hangs":
            await cast.call("python", {"code": "import time\ntime.sleep(60)"})
        return told.output.split()[0] if told.output.endswith("False\n") else None


def test_a_session_ends_with_its_episode() -> None:
    python = PythonTool(stateful=True, concurrent=2, seconds=30)
    children = num_resting(python)
    rollout = Rollout(Counter(), {}, {}, {"python": python}, {"exact": (REWARDS["exact"], 1.0)}, RolloutConfig())
    tasks = [Task(str(number), "?", str(number)) for number in range(3)]
    for _ in range(2):  # the same tasks again are other episodes
        for group in rollout.collect(tasks, attempts=3, seed=0, label="train"):
            assert [episode.answer for episode in group.episodes] == [group.task.result] * 3, group
    hung = Rollout(
        Counter(), {}, {}, {"python": python}, {"exact": (REWARDS["exact"], 1.0)}, RolloutConfig(max_seconds=1.0)
    )
    (group,) = hung.collect([Task("hangs", "?", "7")], attempts=2, seed=0, label="late")
    assert {episode.outcome for episode in group.episodes} == {Outcome.timeout}
    assert not python._sessions
    wait_until(lambda: len(children_of(zygote_of(python))) == children)
    python.close()
