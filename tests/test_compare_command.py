"""`gruppo compare` as a person uses it: runs of several seeds, and the mistakes one can make with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import Command, refused

from gruppo.store import Run
from gruppo.types import Episode, Group, Sampling, StopReason, Task, Turn

TASKS = [Task(f"t{number}", f"What is {number} + 1?", str(number + 1)) for number in range(4)]


def played(rights: Sequence[bool], tasks: Sequence[Task] = TASKS) -> list[Group]:
    groups = []
    for task, is_right in zip(tasks, rights, strict=True):
        answer = task.result if is_right else "99"
        turn = Turn("agent", None, 0, "p", (), (), (), Sampling(), StopReason.stop, f"It is {answer}.")
        groups.append(
            Group(task.id, task, [Episode(task.id, task.id, 0, 0, [turn], answer=answer, reward=float(is_right))])
        )
    return groups


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The folder of two runs, the second without demonstrations, and of one that was not evaluated."""
    for seed in range(2):
        with Run.create(tmp_path / f"seed{seed}", f"seed = {seed}\n") as run:
            run.write_episodes("eval-base-greedy", played([True, False, False, False]))
            run.write_episodes("eval-final-greedy", played([True, True, bool(seed), False]))
            if not seed:
                run.write_episodes("eval-sft-greedy", played([True, True, False, False]))
    Run.create(tmp_path / "bare", "seed = 5\n").close()
    return tmp_path


def test_runs_are_compared_at_the_stages_that_all_have(gruppo: Command, runs: Path) -> None:
    ended = gruppo("compare", "seed0", "seed1", "--page", "pages/comparison.html")
    assert ended.code == 0 and "before training" in ended.out and "after demonstrations" not in ended.out
    assert "after GRPO" in (runs / "pages" / "comparison.html").read_text()
    found = json.loads(gruppo("compare", "seed0", "seed1", "--json").out)
    assert found["seeds"] == 2 and [system["name"] for system in found["systems"]] == ["before training", "after GRPO"]
    assert [system["measures"]["accuracy"]["value"] for system in found["systems"]] == [0.25, 0.625]
    assert "after demonstrations" in gruppo("compare", "seed0").out


def test_mistakes_in_the_command(gruppo: Command, runs: Path) -> None:
    refused(gruppo("compare", "seed0", "seed1", "--mode", "gredy"), "mode 'gredy': no such mode: did you mean greedy?")
    refused(gruppo("mistakes", "seed0", "--mode", "gredy"), "mode 'gredy': no such mode: did you mean greedy?")
    refused(gruppo("compare", "seed0", "seed1", "--mode", "sampled"), "no sampled evaluation that all runs have")
    refused(gruppo("compare", "seed0", "bare"), "no greedy evaluation that all runs have: train with eval.stages")
    refused(gruppo("compare", "seed0", "seed0"), "seed0: a second run with seed 0; compare runs with different seeds")
    refused(gruppo("compare", "seed0", "nothing"), "nothing is not a run folder")
    for page, why in (("seed0", "Is a directory"), ("seed0/config.toml/page.html", "File exists")):
        refused(gruppo("compare", "seed0", "--page", page), f"{page}: can't be written: {why}")
    with Run.create(runs / "other", "seed = 7\n") as run:
        run.write_episodes("eval-base-greedy", played([True], [Task("u", "Who?", "Ann")]))
    refused(gruppo("compare", "seed0", "other"), "the runs can't be compared: ")
    (runs / "seed1" / "config.toml").write_text("seed = \n")
    refused(gruppo("compare", "seed0", "seed1"), "seed1/config.toml: not a TOML file")
