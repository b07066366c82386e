"""Benchmarks through a real rollout with scripts: every item counts, one line each, and a killed one goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gruppo.data.base import TaskSet
from gruppo.engines.scripted import ScriptedEngine
from gruppo.errors import ConfigError, EngineError, StoreError
from gruppo.evaluation.benchmarks import BENCHMARKS, bench_table, read_records, run_benchmark, summarise_items
from gruppo.evaluation.statistics import wilson
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.teams import Solo
from gruppo.teams.base import Role
from gruppo.teams.solo import SoloConfig
from gruppo.tools.base import tool
from gruppo.types import Group, Request, Sampling, Task

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


def test_the_ten_of_the_table() -> None:
    assert {name: one.num_items for name, one in BENCHMARKS.items()} == {
        "bamboogle": 125, "2wiki": 200, "hotpotqa": 100, "musique": 200, "gaia": 127, "aime24": 30, "amc23": 40,
        "gameof24": 300, "gpqa": 300, "medqa": 300,
    }  # fmt: skip
    assert [one.group for one in BENCHMARKS.values()] == ["search"] * 4 + ["agentic"] + ["math"] * 3 + ["science"] * 2
    with pytest.raises(ConfigError, match="did you mean gpqa"):
        run_benchmark("gpqaa", TASKS, Player(), Path("never"), {})


def test_a_whole_benchmark_is_played_and_counted(tmp_path: Path) -> None:
    seen: list[bool] = []
    found = run_benchmark(
        "gpqa", TASKS, Player(), tmp_path / "o" / "gpqa.jsonl", SETTINGS, lambda r: seen.append(r["correct"])
    )
    assert (found["n"], found["correct"], found["accuracy"], found["missing"]) == (8, 8, 1.0, 0)
    assert found["ci95"] == list(wilson(8, 8)) and seen == [True] * 8
    assert found["tools"] == {"look": {"calls": 1, "share": 1.0, "ok": 1.0}}
    assert found["steps"]["average"] == pytest.approx(9 / 8) and found["steps"]["one_step_rate"] == pytest.approx(7 / 8)
    header, records = read_records(tmp_path / "o" / "gpqa.jsonl")
    assert header["settings"] == SETTINGS and list(records) == [task.id for task in TASKS]
    json.dumps(found, allow_nan=False)


def test_denominators_are_all_items() -> None:
    records = {
        "q0": {
            "correct": True,
            "read": "A",
            "outcome": "completed",
            "steps": 1,
            "seconds": 1.0,
            "tokens": 5,
            "tools": {},
        },
        "q1": {
            "correct": False,
            "read": "",
            "outcome": "timeout",
            "steps": 2,
            "seconds": 3.0,
            "tokens": 5,
            "tools": {},
        },
    }
    found = summarise_items("gpqa", TASKS, records)
    assert (found["accuracy"], found["missing"], found["infrastructure"], found["unreadable"]) == (1 / 8, 6, 1, 1)
    assert found["wrong_ids"] == [f"q{n}" for n in range(1, 8)] and found["steps"]["average_seconds"] == 2.0
    assert summarise_items("gpqa", TASKS, {})["accuracy"] == 0.0
    table = bench_table([found, {**found, "benchmark": "medqa"}])
    assert "8 of 300" in table and "mean of science" in table and "12.5%" in table


def test_going_on_plays_only_what_is_left_and_half_a_line_again(tmp_path: Path) -> None:
    path = tmp_path / "gpqa.jsonl"
    whole = run_benchmark("gpqa", TASKS, Player(), path, SETTINGS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:20])
    player = Player()
    again = run_benchmark("gpqa", TASKS, player, path, SETTINGS)
    assert player.asked == [["q4", "q5", "q6", "q7"]]
    times = ("steps",)
    assert {k: v for k, v in again.items() if k not in times} == {k: v for k, v in whole.items() if k not in times}
    last = Player()
    run_benchmark("gpqa", TASKS, last, path, SETTINGS)
    assert last.asked == [] and len(path.read_bytes().splitlines()) == 9


def test_what_the_harness_failed_is_wrong_and_played_again_but_not_what_ran_out_of_time(tmp_path: Path) -> None:
    def down(request: Request) -> str:
        if request.context[0] in ("q1", "q2"):
            raise EngineError("the server is down")
        return right(request)

    path, twice = tmp_path / "gpqa.jsonl", Player(down)
    found = run_benchmark("gpqa", TASKS, twice, path, SETTINGS)
    assert (found["correct"], found["infrastructure"], found["missing"]) == (6, 2, 0)
    assert twice.asked == [[task.id for task in TASKS], ["q1", "q2"]], "those once more at the end"
    lines = path.read_text().splitlines(keepends=True)
    late = [line.replace('"engine_failed"', '"timeout"') if '"id": "q1"' in line else line for line in lines]
    path.write_text("".join(late))
    player = Player()
    found = run_benchmark("gpqa", TASKS, player, path, SETTINGS)
    assert player.asked == [["q2"]] and (found["correct"], found["infrastructure"]) == (7, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: run_benchmark("gpqa", TASKS, Player(), path, {"max_steps": 3}), "another settings"),
        (lambda path: run_benchmark("medqa", TASKS, Player(), path, SETTINGS), "another benchmark"),
        (lambda path: run_benchmark("gpqa", TASKS[:3], Player(), path, SETTINGS), "another tasks"),
    ],
)
def test_results_of_something_else_are_not_mixed(tmp_path: Path, change, said: str) -> None:
    path = tmp_path / "gpqa.jsonl"
    run_benchmark("gpqa", TASKS, Player(), path, SETTINGS)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=said):
        change(path)
    assert path.read_bytes() == before


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gpqa.jsonl"
    run_benchmark("gpqa", TASKS, Player(), path, SETTINGS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{oops\n" + b"".join(lines[2:]))
    with pytest.raises(StoreError, match="line 2 is not JSON"):
        run_benchmark("gpqa", TASKS, Player(), path, SETTINGS)
    path.write_bytes(b'{"some": "other file"}\n')
    with pytest.raises(StoreError, match="no header"):
        run_benchmark("gpqa", TASKS, Player(), path, SETTINGS)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_evaluation_benchmarks import SETTINGS, TASKS, Player
from gruppo.evaluation.benchmarks import run_benchmark
count = 0
def on_item(record):
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
run_benchmark("gpqa", TASKS, Player(), Path(sys.argv[1]), SETTINGS, on_item)
"""


def test_killed_after_an_item_it_goes_on_behind_it(tmp_path: Path) -> None:
    path, here = tmp_path / "gpqa.jsonl", Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": str(here.parent)}
    command = [sys.executable, "-c", KILLED, str(path), str(here)]
    assert subprocess.run(command, env=environment, timeout=100).returncode == -signal.SIGKILL
    assert len(read_records(path)[1]) == 3
    player = Player()
    assert run_benchmark("gpqa", TASKS, player, path, SETTINGS)["correct"] == 8
    assert player.asked == [[f"q{n}" for n in range(3, 8)]]


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "gpqa.jsonl"

    def meanwhile(tasks: Sequence[Task]) -> Iterator[Group]:
        with pytest.raises(StoreError, match="another process"):
            run_benchmark("gpqa", TASKS, Player(), path, SETTINGS)
        return Player()(tasks)

    assert run_benchmark("gpqa", TASKS, meanwhile, path, SETTINGS)["correct"] == 8
