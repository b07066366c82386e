"""The ladder of the sandbox: which level starts, what is said when none may, and that no probe gets out of one."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from escape_probes import CLOCK, ESCAPED, LIMITS, PROBES, RESOURCES, World

from gruppo.errors import ConfigError, ToolError
from gruppo.tools import isolation
from gruppo.tools.isolation import LEVELS, Standing, standings
from gruppo.tools.python import PythonTool
from gruppo.tools.sandbox import Limits, Zygote
from gruppo.types import ToolResult

if sys.platform != "linux" or platform.machine() != "x86_64":
    pytest.skip("the probes know the system calls of Linux on x86_64", allow_module_level=True)

CONFINED = ("namespaces", "landlock", "monty")
UNPRIVILEGED = {"unlinked files"}  # what gets through at the level "landlock": resources


@pytest.fixture(scope="module")
def found() -> dict[str, Standing]:
    return {standing.level: standing for standing in standings()}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture(scope="module", params=CONFINED)
def confined(request: pytest.FixtureRequest, found: dict[str, Standing]) -> Iterator[PythonTool]:
    if not found[request.param].holds:
        pytest.skip(f"{request.param}: {found[request.param].words}")
    made = PythonTool(level=request.param, **LIMITS)
    yield made
    made.close()


@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe not in CLOCK])
def test_no_probe_gets_out(confined: PythonTool, world: World, probe: str) -> None:
    got_out, result = world.try_out(confined, probe)
    if confined.level == "landlock" and probe in UNPRIVILEGED:
        return
    assert not got_out, result


def test_no_probe_outlives_its_time(confined: PythonTool, world: World) -> None:
    async def all_at_once() -> list[ToolResult]:
        return await asyncio.gather(*(confined.call({"code": world.fill(probe)}) for probe in CLOCK))

    started = time.monotonic()
    results = asyncio.run(all_at_once())
    assert not any(ESCAPED in result.output for result in results)
    assert time.monotonic() - started < 5 + LIMITS["seconds"] * len(CLOCK) / LIMITS["concurrent"]


def test_what_may_get_through_is_resources() -> None:
    assert len(UNPRIVILEGED) <= 3 and UNPRIVILEGED <= RESOURCES.keys()


def test_a_level_without_walls_lets_probes_through(world: World) -> None:
    """So the probes are able to tell."""
    python = PythonTool(level="process", min_level="process", **LIMITS)
    for probe in (
        "list the folder of the answer key",
        "write outside",
        "TCP to a loopback service",
        "symbolic link to the key",
    ):
        assert world.try_out(python, probe)[0], probe
    python.close()


def test_auto_takes_the_best_that_holds(found: dict[str, Standing]) -> None:
    best = next((level for level in ("namespaces", "landlock") if found[level].holds), None)
    if best is None:
        with pytest.raises(ConfigError, match="no sandbox for the python tool"):
            PythonTool()
        return
    python = PythonTool()
    assert python.level == best and python.isolation == found[best].words
    python.close()


def test_auto_never_takes_what_has_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")  # where no zygote can be
    for min_level in LEVELS:
        with pytest.raises(ConfigError, match="no sandbox for the python tool") as raised:
            PythonTool(min_level=min_level)
        assert "'monty' runs calculator-type code on any machine" in str(raised.value)
    assert [standing.level for standing in standings() if standing.holds] in ([], ["monty"])


def test_a_level_below_the_least_is_refused_in_one_line() -> None:
    for level, min_level in (("process", "monty"), ("monty", "landlock"), ("landlock", "namespaces")):
        with pytest.raises(ConfigError) as raised:
            PythonTool(level=level, min_level=min_level)
        assert str(raised.value) == (
            f"tools.level = {level!r} is below tools.min_level = {min_level!r}: set tools.min_level = {level!r} as well"
        )
    with pytest.raises(ConfigError, match="tools.level = 'docker': no such level; use one of auto, process"):
        PythonTool(level="docker")


def test_the_config_reaches_the_tool() -> None:
    from gruppo.run import RunConfig
    from gruppo.toolbox import ToolsConfig, make_python  # slow to import, and needed nowhere else here

    assert RunConfig().tools == ToolsConfig()
    with pytest.raises(ConfigError, match="below tools.min_level"):
        make_python(ToolsConfig(level="process"))
    with pytest.raises(ConfigError, match="python_work_dir = 'out': a session's files stay with it"):
        make_python(ToolsConfig(python_stateful=True, python_work_dir="out"))
    given = ToolsConfig(
        level="process", min_level="process", python_seconds=2.0, python_memory_mb=99, python_disk_mb=7,
        python_processes=3, python_stateful=True, python_idle_seconds=9.0, python_concurrent=7,
    )  # fmt: skip
    python = make_python(given)
    own = python.limits
    assert (own.seconds, own.memory_mb, own.disk_mb, own.processes) == (2.0, 99, 7, 3)
    assert (own.stateful, own.idle_seconds, own.concurrent, python.level) == (True, 9.0, 7, "process")
    python.close()


def test_a_level_is_tried_by_running_code_that_must_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zygote that claims walls which do not stand is found out: here one that is told another level."""
    started = subprocess.Popen

    def unconfined(command: list[str], **options: object) -> object:
        return started([word.replace('"level": "landlock"', '"level": "process"') for word in command], **options)

    monkeypatch.setattr(subprocess, "Popen", unconfined)
    with pytest.raises(ToolError, match="a first call got through to: network"):
        Zygote("landlock", Limits(concurrent=1))


def test_a_broken_zygote_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ToolError, match="did not start: exit status 1"):
        Zygote("landlock", Limits(concurrent=1))
    assert list(tmp_path.iterdir()) == []


def test_every_level_can_be_started_by_name(found: dict[str, Standing]) -> None:
    assert list(found) == list(reversed(LEVELS)) and found.keys() == isolation.STARTS.keys()
    assert all(standing.words for standing in found.values())


def test_doctor_shows_the_ladder() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gruppo.cli", "doctor"]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert all(level in done.stdout for level in LEVELS)
    assert f"Python {platform.python_version()}" in done.stdout and "torch" in done.stdout
    assert "| torch\n" not in done.stderr


def test_the_documentation_has_every_probe_and_claims_what_is_tested() -> None:
    text = (Path(__file__).parents[1] / "docs" / "safety.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.endswith((" X |", " . |"))]
    assert [row[0] for row in rows] == list(PROBES)
    through = {level: {row[0] for row in rows if row[column] == "X"} for column, level in enumerate(CONFINED, 1)}
    assert through == {"namespaces": set(), "landlock": UNPRIVILEGED, "monty": set()}
