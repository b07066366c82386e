"""Benchmarks through a real rollout with scripts: every item counts, one line each, and a killed one goes on."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gruppo.data.base import TaskSet
from gruppo.engines.scripted import ScriptedEngine
from gruppo.errors import ConfigError, EngineError, StoreError
from gruppo.evaluation.benchmarks import BENCHMARKS, SCHEMA, Item, bench_table, run_benchmark, summarise_items
from gruppo.evaluation.ledger import read_ledger
from gruppo.evaluation.statistics import wilson
from gruppo.log import Log
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.teams import Solo
from gruppo.teams.base import Role
from gruppo.teams.solo import SoloConfig
from gruppo.tools.base import tool
from gruppo.types import Group, Outcome, Request, Sampling, Task

CITIES = ["Paris", "London", "Rome", "Oslo"]
TASKS = TaskSet([Task(f"q{n}", f"Which is {n}?", "ABCD"[n % 4], extra_info={"choices": CITIES}) for n in range(8)])
SETTINGS = {"max_steps": 10, "temperature": 0.0}


@tool(name="look", in_process=True)
def look(at: str) -> str:
    """Look at something."""
    if not at:
        raise ValueError("nothing to look at")
    return at


def right(request: Request) -> str:
    number = int(request.context[0].removeprefix("q"))
    if number == 3 and request.context[3] == 0:
        return '<tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call>'
    return f"Answer: ({'ABCD'[number % 4]})"


class Player:
    """Plays with a rollout and remembers what it was given."""

    def __init__(self, reply=right) -> None:
        role = Role("agent", Solo(SoloConfig()).prompts["agent"], Sampling(temperature=0.0), "script")
        engines = {"script": ScriptedEngine(reply)}
        team = Solo(SoloConfig(max_turns=4))
        self.rollout = Rollout(team, {"agent": role}, engines, {"look": look}, {}, RolloutConfig(retries=0))
        self.asked: list[list[str]] = []

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Group]:
        self.asked.append([task.id for task in tasks])
        return self.rollout.stream(tasks, 1, 0, "bench")


def bench(play: Player, path: Path, tasks: TaskSet = TASKS, name: str = "gpqa", **settings: object) -> dict[str, Any]:
    return run_benchmark(name, tasks, play, path, SETTINGS | settings, Log(Console(quiet=True)))


def test_the_ten_of_the_table() -> None:
    assert {name: one.num_items for name, one in BENCHMARKS.items()} == {
        "bamboogle": 125, "2wiki": 200, "hotpotqa": 100, "musique": 200, "gaia": 127, "aime24": 30, "amc23": 40,
        "gameof24": 300, "gpqa": 300, "medqa": 300,
    }  # fmt: skip
    assert [one.group for one in BENCHMARKS.values()] == ["search"] * 4 + ["agentic"] + ["math"] * 3 + ["science"] * 2
    with pytest.raises(ConfigError, match="did you mean gpqa"):
        bench(Player(), Path("never"), name="gpqaa")


def test_a_whole_benchmark_is_played_and_counted(tmp_path: Path) -> None:
    screen, path = io.StringIO(), tmp_path / "o" / "gpqa.jsonl"
    found = run_benchmark("gpqa", TASKS, Player(), path, SETTINGS, Log(Console(file=screen), 0.0))
    assert (found["n"], found["correct"], found["accuracy"], found["missing"]) == (8, 8, 1.0, 0)
    assert found["ci95"] == list(wilson(8, 8))
    shown = screen.getvalue().splitlines()
    assert len(shown) == 8 and shown[-1].startswith("GPQA: item 8/8 · ") and shown[-1].endswith("0:00:00 left")
    assert found["tools"] == {"look": {"calls": 1, "share": 1.0, "ok": 1.0}}
    assert found["steps"]["average"] == pytest.approx(9 / 8) and found["steps"]["one_step_rate"] == pytest.approx(7 / 8)
    header, items = read_ledger(path, SCHEMA, Item)
    assert header.items() >= SETTINGS.items() and list(items) == [task.id for task in TASKS]
    json.dumps(found, allow_nan=False)


def test_denominators_are_all_items() -> None:
    right = Item("q0", True, "A", "", "A", Outcome.completed, "", 1, 1.0, 5, {})
    late = replace(right, id="q1", correct=False, read="", outcome=Outcome.timeout, steps=2, seconds=3.0)
    items = {item.id: item for item in (right, late)}
    found = summarise_items("gpqa", TASKS, items)
    assert (found["accuracy"], found["missing"], found["infrastructure"], found["unreadable"]) == (1 / 8, 6, 1, 1)
    assert found["wrong_ids"] == [f"q{n}" for n in range(1, 8)] and found["steps"]["average_seconds"] == 2.0
    assert summarise_items("gpqa", TASKS, {})["accuracy"] == 0.0
    table = bench_table([found, {**found, "benchmark": "medqa"}])
    assert "8 of 300" in table and "mean of science" in table and "12.5%" in table


def test_going_on_plays_only_what_is_left(tmp_path: Path) -> None:
    path, last = tmp_path / "gpqa.jsonl", Player()
    bench(Player(), path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:20])
    screen = io.StringIO()
    player = Player()
    run_benchmark("gpqa", TASKS, player, path, SETTINGS, Log(Console(file=screen), 0.0))
    assert player.asked == [["q4", "q5", "q6", "q7"]] and screen.getvalue().startswith("GPQA: item 5/8 · ")
    bench(last, path)
    assert last.asked == [] and len(path.read_bytes().splitlines()) == 9


@given(st.integers(0))
def test_cut_at_any_byte_the_summary_is_the_same(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "gpqa.jsonl"
    whole = bench(Player(), path)
    path.write_bytes(path.read_bytes()[: at % path.stat().st_size])
    again = bench(Player(), path)
    for found in (whole, again):
        del found["steps"]["average_seconds"]
    assert again == whole


def test_what_the_harness_failed_is_wrong_and_played_again_but_not_what_ran_out_of_time(tmp_path: Path) -> None:
    def down(request: Request) -> str:
        if request.context[0] in ("q1", "q2"):
            raise EngineError("the server is down")
        return right(request)

    path, twice = tmp_path / "gpqa.jsonl", Player(down)
    found = bench(twice, path)
    assert (found["correct"], found["infrastructure"], found["missing"]) == (6, 2, 0)
    assert twice.asked == [[task.id for task in TASKS], ["q1", "q2"]], "those once more at the end"
    lines = path.read_text().splitlines(keepends=True)
    late = [line.replace('"engine_failed"', '"timeout"') if '"id": "q1"' in line else line for line in lines]
    path.write_text("".join(late))
    player = Player()
    found = bench(player, path)
    assert player.asked == [["q2"]] and (found["correct"], found["infrastructure"]) == (7, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_steps": 3}, "another max_steps: 10, not 3"),
        ({"name": "medqa"}, 'another benchmark: "gpqa", not "medqa"'),
        ({"tasks": TASKS[:3]}, "another n: 8, not 3"),
    ],
)
def test_results_of_something_else_are_not_mixed(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    bench(Player(), tmp_path / "gpqa.jsonl")
    with pytest.raises(StoreError, match=said):
        bench(Player(), tmp_path / "gpqa.jsonl", **change)


KILLED = """
import itertools, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_evaluation_benchmarks import Player, bench
def play(tasks):
    yield from itertools.islice(Player()(tasks), 3)
    os.kill(os.getpid(), signal.SIGKILL)
bench(play, Path(sys.argv[1]))
"""


def test_killed_after_an_item_it_goes_on_behind_it(tmp_path: Path) -> None:
    path, here = tmp_path / "gpqa.jsonl", Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": str(here.parent)}
    command = [sys.executable, "-c", KILLED, str(path), str(here)]
    assert subprocess.run(command, env=environment, timeout=100).returncode == -signal.SIGKILL
    assert len(read_ledger(path, SCHEMA, Item)[1]) == 3
    player = Player()
    assert bench(player, path)["correct"] == 8
    assert player.asked == [[f"q{n}" for n in range(3, 8)]]


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "gpqa.jsonl"

    def meanwhile(tasks: Sequence[Task]) -> Iterator[Group]:
        with pytest.raises(StoreError, match="another process"):
            bench(Player(), path)
        return Player()(tasks)

    assert bench(meanwhile, path)["correct"] == 8
