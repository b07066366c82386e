"""The python tool runs the same code, asked for by several callers at one moment, once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gruppo.errors import ToolError
from gruppo.tools.python import PythonTool
from gruppo.types import ToolResult

NOW = {"code": "import time\nprint(time.time_ns())"}
SLOW = {"code": "import time\ntime.sleep(0.5)\nprint(time.time_ns())"}


@pytest.fixture(scope="module")
def python() -> Iterator[PythonTool]:
    tool = PythonTool(once=True)
    yield tool
    tool.close()


async def at_once(python: PythonTool, *codes: dict[str, str]) -> list[ToolResult]:
    return await asyncio.gather(*(python.call(code) for code in codes))


def test_the_same_code_is_run_once_at_a_time(python: PythonTool) -> None:
    other = {"code": NOW["code"] + "\n"}
    one, two, three = asyncio.run(at_once(python, NOW, NOW, other))
    assert one.ok and one == two and one != three
    later, again = asyncio.run(at_once(python, NOW, NOW))
    assert later == again != one, "nothing is kept"


def test_without_it_each_call_has_a_run_of_its_own() -> None:
    tool = PythonTool()
    one, two = asyncio.run(at_once(tool, NOW, NOW))
    tool.close()
    assert one.ok and two.ok and one != two


def test_sessions_are_never_shared() -> None:
    tool = PythonTool(once=True, stateful=True)
    one, two = asyncio.run(at_once(tool, NOW, NOW))
    tool.close()
    assert one.ok and two.ok and one != two


def test_who_gives_up_takes_nothing_from_the_others(python: PythonTool) -> None:
    async def give_up() -> ToolResult:
        first = asyncio.create_task(python.call(SLOW))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(python.call(SLOW))
        await asyncio.sleep(0.05)
        first.cancel()
        return await second

    assert asyncio.run(give_up()).ok


def test_what_fails_fails_for_all_and_then_is_forgotten() -> None:
    tool = PythonTool(once=True)
    tool.close()

    async def ask() -> list[ToolResult | BaseException]:
        return await asyncio.gather(tool.call(NOW), tool.call(NOW), return_exceptions=True)

    for _ in range(2):
        assert [type(error) for error in asyncio.run(ask())] == [ToolError, ToolError]
