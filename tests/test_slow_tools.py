"""Many episodes with a slow tool in real processes: they wait side by side; quick and computing tools need few."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gruppo.engines.scripted import ScriptedEngine, by_role
from gruppo.errors import ConfigError
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.teams.base import Role
from gruppo.teams.solo import Solo, SoloConfig
from gruppo.toolbox import ToolsConfig, find_tools
from gruppo.tools.base import CORES, FunctionTool
from gruppo.types import Sampling, Task

TOOLS = '''
import threading, time
from gruppo.tools import tool

@tool(seconds=60)
def nap(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "rested"

@tool(seconds=60)
def burn(seconds: float) -> str:
    """Compute."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return "done"

@tool(workers=3)
def add(a: int) -> int:
    """Add."""
    return a + 1
'''
SECONDS = 0.5
NUM_EPISODES = 64
NUM_CALLS = 3


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tools") / "slow.py"
    path.write_text(TOOLS)
    return path


@pytest.fixture(scope="module")
def tools(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("slow_tools", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for value in vars(module).values():
        if isinstance(value, FunctionTool):
            value.close()


@pytest.mark.parametrize("mode", ["lockstep", "async"])
def test_episodes_with_a_slow_tool_take_as_long_as_the_tool(tools: Any, mode: str) -> None:
    team = Solo(SoloConfig())
    call = f'<tool_call>{{"name": "nap", "arguments": {{"seconds": {SECONDS}}}}}</tool_call>'
    role = Role("agent", team.prompts["agent"], Sampling(), "script")
    script = ScriptedEngine(by_role({"agent": [call] * NUM_CALLS + ["Answer: done"]}))
    config = RolloutConfig(mode=mode, retries=0)
    rollout = Rollout(team, {"agent": role}, {"script": script}, {"nap": tools.nap}, {}, config)
    started = time.monotonic()
    groups = rollout.collect([Task(str(number), "?", "") for number in range(NUM_EPISODES)], 1, 0, "test")
    seconds = time.monotonic() - started
    events = [event for group in groups for event in group.episodes[0].events]
    assert [event.result.output for event in events] == ["rested"] * NUM_EPISODES * NUM_CALLS
    assert seconds < NUM_EPISODES * NUM_CALLS * SECONDS / 4, "the start of the processes included"
    last = [event.seconds for event in events if event.turn == NUM_CALLS - 1]
    assert max(last) < SECONDS * NUM_EPISODES / 8, "by now there is a process for each"


def test_quick_and_computing_tools_start_few_processes(tools: Any) -> None:
    async def all_at_once(tool: FunctionTool, number: int, **arguments: float) -> None:
        results = await asyncio.gather(*(tool.call(arguments) for _ in range(number)))
        assert all(result.ok for result in results), results

    asyncio.run(all_at_once(tools.add, 64, a=1))
    assert len(tools.add._idle) <= 3 and not tools.add._busy
    if sys.platform == "linux":
        asyncio.run(all_at_once(tools.burn, 4 * CORES, seconds=0.3))
        assert len(tools.burn._idle) <= CORES + 2, "a start may be seen as a wait"


def test_the_config_says_how_many_processes_own_tools_may_have(file: Path) -> None:
    def found(**changes: Any) -> list[int]:
        config = ToolsConfig(**changes)
        return [tool.workers for name in ("nap", "add") for tool in find_tools(f"{file}:{name}", config, {}, 0)]

    assert found() == [64, 3]
    assert found(workers=8) == [8, 8]
    with pytest.raises(ConfigError, match="no tool 'nap'"):
        find_tools("nap", ToolsConfig(workers=8), {}, 0)
