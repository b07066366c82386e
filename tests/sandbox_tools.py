"""What the tests of the python tool share: a tool at each level, one call, what is there of its processes and files."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gruppo.errors import ConfigError
from gruppo.tools.python import PythonTool
from gruppo.types import ToolResult


def make(level: str, **limits: Any) -> PythonTool:
    """The tool at a level; skips where that does not hold."""
    try:
        return PythonTool(level=level, **limits)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def python(request: pytest.FixtureRequest) -> Iterator[PythonTool]:
    made = make(request.param, seconds=10, concurrent=4)
    yield made
    made.close()


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def brief(request: pytest.FixtureRequest) -> Iterator[PythonTool]:
    """With a short wall time."""
    made = make(request.param, seconds=1, concurrent=2)
    yield made
    made.close()


def run(python: PythonTool, code: str) -> ToolResult:
    return asyncio.run(python.call({"code": code}))


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def zygote_of(python: PythonTool) -> int:
    return python._sandboxes[-1].process.pid


def children_of(pid: int) -> list[int]:
    """All processes below one, through all namespaces."""
    try:
        tasks = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:  # it has ended
        return []
    own = [int(child) for task in tasks for child in task.split()]
    return own + [below for child in own for below in children_of(child)]


def num_resting(python: PythonTool) -> int:
    """How many processes there are once those that tried the walls at the start have gone."""
    before, number = -1, len(children_of(zygote_of(python)))
    while number != before:
        time.sleep(0.3)
        before, number = number, len(children_of(zygote_of(python)))
    return number


def is_tidy(python: PythonTool, children: int) -> bool:
    """Whether all that is there is what was there before the call."""
    base = Path(python._sandboxes[-1].base)
    files = [file for folder in base.iterdir() if folder.is_dir() for file in folder.iterdir()]
    return not files and len(children_of(zygote_of(python))) == children


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
