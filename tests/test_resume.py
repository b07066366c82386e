"""Killed anywhere, resumed exactly; and what a checkpoint would have to lack for these tests to notice."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from one_layer import one_layer

from gruppo.cli import main
from gruppo.config import load
from gruppo.log import Log
from gruppo.run import RunConfig
from gruppo.stages import train
from gruppo.store import Run

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from kill_resume import QUICKSTART, SMALL, can_resume, differences, ending_of  # noqa: E402

SMALLER = SMALL | {
    "model.base": one_layer(),
    "rewards": f'{{"{Path(__file__).with_name("small_run.py")}:noise" = 1.0}}',  # a layer alone solves nothing
    "train.tasks_per_step": "2",
    "train.curriculum": "none",
}
HALF_WAY = 2


@pytest.mark.slow
@pytest.mark.timeout(300)  # seven processes that import torch, on a machine that may be busy
def test_three_kills_end_as_the_run_that_was_not_killed(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "kill_resume.py")]
    options = ["--kills", "3", "--seed", "1", "--again", "0", "--parallel", "2", "--json", str(tmp_path / "found.json")]
    ended = subprocess.run([*program, *options], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["kills"], found["identical"]) == (3, 3)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A smaller run with every checkpoint kept, without its evaluations."""
    threads = torch.get_num_threads()
    out = tmp_path_factory.mktemp("reference") / "run"
    changes = {"train.save_every": "1", "train.keep_last": "99", "train.steps": "4", "eval.stages": "false"}
    train(load(RunConfig, [QUICKSTART], SMALLER | changes), out, False, Log())
    yield out
    torch.set_num_threads(threads)


def live(out: Path, resume: bool) -> None:
    """The life of a process: the small run on the command line, or going on with it."""
    os.setsid()  # so that what it starts is killed with it
    anew = ["--config", str(QUICKSTART), *(word for key, value in SMALLER.items() for word in (f"--{key}", value))]
    sys.argv = ["gruppo", "train", "--out", str(out), *(["--resume"] if resume else anew)]
    main()


def is_under_way(process: multiprocessing.process.BaseProcess, out: Path, steps: int) -> bool:
    """Whether the run's folder is locked by a process and has the metrics of so many steps."""
    lock, metrics = out / "run.lock", out / "metrics.jsonl"
    is_owned = lock.exists() and lock.read_text().startswith(f"process {process.pid} on")
    return is_owned and (metrics.read_bytes().count(b"\n") if metrics.exists() else 0) >= steps


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(reference: Path, tmp_path: Path) -> None:
    """As above, in forks of this process, which has imported everything; and with evaluations, which change nothing."""
    out, moments = tmp_path / "run", random.Random(1)
    for steps in (0, 2, 5, None):  # before the cold start is over; before a policy has learnt; around a checkpoint
        process = multiprocessing.get_context("fork").Process(target=live, args=(out, can_resume(out)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads at a fork
            process.start()
        if steps is not None:
            while process.is_alive() and not is_under_way(process, out, steps):
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.2))
            if process.is_alive():
                os.killpg(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == (0 if steps is None else -signal.SIGKILL), "its words are above"
    assert not differences(ending_of(reference), ending_of(out))


def lose_nothing(folder: Path, state: dict[str, Any]) -> None:
    pass


def lose_the_moments(folder: Path, state: dict[str, Any]) -> None:
    (folder / "optimizer-planner.safetensors").unlink()


def lose_the_versions(folder: Path, state: dict[str, Any]) -> None:
    state["versions"] = dict.fromkeys(state["versions"], 0)


def take_older_weights(folder: Path, state: dict[str, Any]) -> None:
    name = "policies/planner/adapter_model.safetensors"
    shutil.copy(folder.parent / "checkpoints" / f"step-{HALF_WAY - 1:06d}" / name, folder / name)


LOSSES: dict[Callable[[Path, dict[str, Any]], None], set[str]] = {
    lose_nothing: set(),
    lose_the_moments: {"policies/planner/adapter_model.safetensors", "optimizer-planner.safetensors"},
    lose_the_versions: {"state.json"},
    take_older_weights: {"policies/planner/adapter_model.safetensors"},
}


def resume(reference: Path, out: Path, step: int, lose: Callable[[Path, dict[str, Any]], None]) -> list[str]:
    """Go on from a copy of the half-way checkpoint, saved as that of `step`; returns what ends differently."""
    shutil.copytree(reference, out)
    checkpoint, part = Run.open(out).checkpoint(HALF_WAY), out / "part"
    shutil.copytree(checkpoint.path, part)
    for name in ("state.json", "manifest.json"):  # sealed anew: what goes missing afterwards is known by the manifest
        (part / name).unlink()
    state = {**checkpoint.state, "step": step}
    lose(part, state)
    with Run.resume(out) as run:
        run.save_checkpoint(step, lambda folder: copy_tree(part, folder), state)
    train(load(RunConfig, [out / "config.toml"]), out, True, Log())
    return differences(ending_of(reference), ending_of(out))


def copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


FAST = (lose_nothing, lose_the_moments)


@pytest.mark.parametrize(
    ("lose", "expected"),
    [
        pytest.param(lose, expected, id=lose.__name__, marks=[] if lose in FAST else pytest.mark.slow)
        for lose, expected in LOSSES.items()
    ],
)
def test_a_part_that_is_not_restored_is_noticed(
    reference: Path, tmp_path: Path, lose: Callable[[Path, dict[str, Any]], None], expected: set[str]
) -> None:
    found = resume(reference, tmp_path / "run", HALF_WAY, lose)
    assert expected <= set(found) if expected else not found


def test_a_lost_data_position_is_noticed(reference: Path, tmp_path: Path) -> None:
    assert resume(reference, tmp_path / "run", HALF_WAY - 1, lose_nothing)


def test_every_tensor_that_is_saved_is_compared(reference: Path) -> None:
    """So that a part that is saved one day, and not restored, can't slip through."""
    checkpoint = Run.open(reference).latest_checkpoint()
    assert checkpoint is not None
    files = {str(path.relative_to(checkpoint.path)) for path in checkpoint.path.rglob("*") if path.is_file()}
    described = {name for name in files if name.endswith(("adapter_config.json", "README.md"))}
    assert files - described - {"manifest.json"} == ending_of(reference).files.keys()
    assert {f"optimizer-{name}.safetensors" for name in ("planner", "executor", "verifier")} <= files
