"""`gruppo bench` as a person uses it: a trained run on small files of the ten schemas, killed and gone on with."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_line import QUICKSTART, SMALL, Command, refused
from one_layer import one_layer
from test_data_sets import BENCHMARKS as FILES
from test_data_sets import put

from gruppo.assess import at_temperature, bench_config
from gruppo.cli import main
from gruppo.config import load
from gruppo.evaluation.benchmarks import BENCHMARKS, SCHEMA, Item
from gruppo.evaluation.ledger import read_ledger
from gruppo.log import Log
from gruppo.run import RunConfig, assemble
from gruppo.stages import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of one step."""
    threads, out = torch.get_num_threads(), tmp_path_factory.mktemp("trained") / "run"
    train(load(RunConfig, [QUICKSTART], SMALL | {"model.base": one_layer(), "model.processes": "1"}), out, False, Log())
    yield out
    torch.set_num_threads(threads)


@pytest.fixture
def trained(gruppo: Command, run: Path, tmp_path: Path) -> Path:
    """The folder we are in, with the run and a file for each benchmark."""
    shutil.copytree(run, tmp_path / "run")
    for name, (rows, _) in FILES.items():
        if name in BENCHMARKS:
            put(tmp_path / "data" / name / "data.json", rows)
    return tmp_path


def test_all_ten_with_a_trained_run(gruppo: Command, trained: Path) -> None:
    ended = gruppo("bench", "--run", "run", "--json")
    assert ended.code == 0, ended
    found = {one["benchmark"]: one for one in json.loads(ended.out)}
    assert list(found) == list(BENCHMARKS)
    for name, one in found.items():
        header, items = read_ledger(trained / "bench" / f"{name}.jsonl", SCHEMA, Item)
        assert one["n"] == header["n"] == len(items) == len(FILES[name][0]) and one["missing"] == 0
        assert one["accuracy"] == sum(item.correct for item in items.values()) / one["n"]
        assert all(1 <= item.steps <= 10 for item in items.values())
    before = {path: path.read_bytes() for path in (trained / "bench").iterdir()}
    again = gruppo("bench", "--run", "run")
    assert {path: path.read_bytes() for path in (trained / "bench").iterdir()} == before, "nothing is left"
    lines = again.out.splitlines()
    assert len(lines) == 1 + 10 + 3 and "1 of 200" in again.out and "mean of search" in again.out
    # The same file is not gone on with by another team, such as the one that has not learnt.
    words = ["bench", "--config", str(QUICKSTART), "--model.base", one_layer(), "--task", "aime24"]
    refused(gruppo(*words), "holds results with another config")


def test_the_limits_are_the_tables_whatever_the_run_had(gruppo: Command, trained: Path) -> None:
    config = bench_config([], trained / "run", {})
    assert (config.team.solver.max_steps, config.team.solo.max_turns, config.rollout.max_seconds) == (10, 10, 300.0)
    assert (config.rollout.retries, config.rollout.mode, config.rollout.max_concurrent) == (0, "async", 20)
    assert bench_config([], trained / "run", {"rollout.max_seconds": "5"}).rollout.max_seconds == 5
    assembly = assemble(config)
    assembly.close()
    assert {role.sampling.temperature for role in at_temperature(assembly.rollout, 0.0).roles.values()} == {0.0}


def live(words: list[str]) -> None:
    """The life of a process of its own, forked from this one, which has imported everything."""
    os.setsid()  # so that what it starts is killed with it
    sys.argv = ["gruppo", *words]
    main()


def test_killed_it_goes_on_where_it_was(gruppo: Command, trained: Path) -> None:
    rows = [
        {"query": f"Who made film {number}?", "image": None, "answer": "Ann", "pid": number} for number in range(16)
    ]
    put(trained / "data" / "2wiki" / "data.json", rows)
    words = ["bench", "--run", "run", "--task", "2wiki", "--rollout.max_concurrent", "2"]
    path = trained / "bench" / "2wiki.jsonl"
    process = multiprocessing.get_context("fork").Process(target=live, args=(words,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads at a fork
        process.start()
    while process.is_alive() and not (path.exists() and path.read_bytes().count(b"\n") >= 4):
        time.sleep(0.002)
    os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL, "its words are above"
    kept = path.read_bytes().splitlines()[:4]
    (found,) = json.loads(gruppo(*words, "--json").out)
    lines = path.read_bytes().splitlines()
    assert (found["n"], found["missing"], len(lines)) == (16, 0, 17) and lines[:4] == kept
    assert {json.loads(line)["id"] for line in lines[1:]} == {str(number) for number in range(16)}


def test_rewards_of_the_run_do_not_judge_a_benchmark(gruppo: Command, trained: Path) -> None:
    (trained / "own.py").write_text("def fails(task, episodes):\n    raise ValueError('not my task')\n")
    ended = gruppo("bench", "--run", "run", "--task", "amc23", "--rewards", '{"own.py:fails" = 1.0}', "--json")
    assert ended.code == 0 and json.loads(ended.out)[0]["n"] == 1, ended


def test_mistakes_in_the_command(gruppo: Command, trained: Path) -> None:
    refused(gruppo("bench", "--task", "aime24"), "nobody plays: name a run (--run) or a config with [roles] (--config)")
    refused(gruppo("bench", "--run", "run", "--task", "aime"), "did you mean aime24?")
    refused(gruppo("bench", "--run", "nothing"), "nothing is not a run folder")
    warm = ["--roles.planner.temperature", "1.0"]
    refused(gruppo("bench", "--run", "run", "--task", "gpqa", *warm), "is played at temperature 0; leave it out")
    out = ["--task", "gpqa", "--out", "run/config.toml"]
    refused(gruppo("bench", "--run", "run", *out), "run/config.toml/gpqa.jsonl: can't be written: File exists")
    refused(
        gruppo("bench", "--run", "run", "--task", "gpqa", "--data", "elsewhere"),
        "gpqa: put the file test/gpqa/data/data.json of AgentFlow's repository at elsewhere/gpqa/data.json",
    )
    for folder in (trained / "run" / "checkpoints").iterdir():
        folder.rename(trained / folder.name)
    refused(gruppo("bench", "--run", "run", "--task", "aime24"), "run: the run has no checkpoint yet")
