"""The pipeline: its gates, what it plays again and what not, killed anywhere, and what it leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Command, refused
from one_layer import one_layer
from small_run import quiet

from gruppo.cli import main
from gruppo.errors import GateError
from gruppo.pipeline.play import play_pipeline
from gruppo.pipeline.recipe import Recipe, read_recipe, run_config
from gruppo.pipeline.results import FILE, read_results
from gruppo.pipeline.steps import STEPS, inputs_of, read_tasks, standings
from gruppo.stages import train
from gruppo.store import Run, fingerprint

NOISE = """
def noise(task, episodes):
    return [(e.attempt + sum(sum(turn.action_ids) for turn in e.turns) % 97) / 97 for e in episodes]
"""
RECIPE = """
eval.modes = ["greedy"]
rewards = { exact = 1.0, "reward.py:noise" = 0.1 }
sft = { demonstrations = 4, steps = 2, batch_size = 4 }
[model]
base = "base"
threads = 1
[policies]
planner = { rank = 4, learning_rate = 4e-3, target_modules = ["q_proj"] }
[roles]
planner = { policy = "planner", max_tokens = 8 }
executor = { temperature = 0.0, max_tokens = 8 }
verifier = { temperature = 0.0, max_tokens = 3 }
writer = { temperature = 0.0, max_tokens = 4 }
[team.solver]
prompts = "compact"
max_steps = 2
[tasks]
families = ["compute", "compute-lookup"]
num_train = 6
num_test = 4
[train]
steps = 2
tasks_per_step = 2
attempts = 4
"""
THRESHOLD = "pipeline.sft_accuracy_threshold"
LEARNING_RATE = "policies.planner.learning_rate"


@dataclass(frozen=True)
class Played:
    """A pipeline that was played in `folder`, and the gate that stopped it before it went on."""

    folder: Path
    stopped: str
    before: dict[str, Any]  # training_results.json when it was stopped


def put_files(folder: Path) -> Path:
    """A recipe, its reward, and its base: a layer of the embedded one, which solves nothing."""
    shutil.copytree(one_layer(), folder / "base")
    (folder / "reward.py").write_text(NOISE)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder / "recipe.toml"


def recipe_of(**changes: str) -> Recipe:
    """The recipe in the current folder."""
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return read_recipe(Path("recipe.toml"), {THRESHOLD: "0", **keys})


def stand(out: Path, recipe: Recipe) -> dict[str, str]:
    """Step -> why it would play; the steps that are up to date are left out."""
    found = standings(out, inputs_of(recipe, read_tasks(recipe)), read_results(out))
    return {standing.step: standing.reason for standing in found if standing.reason}


def what_is_in(out: Path) -> dict[str, str]:
    """SHA-256 of the weights, and of the results without their seconds and episode times."""
    weights = {str(file.relative_to(out)): fingerprint(file) for file in out.rglob("*.safetensors")}
    results = json.loads((out / FILE).read_text())
    return weights | {step: fingerprint(timeless(entry)) for step, entry in results["steps"].items()}


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(own) for key, own in value.items() if not key.startswith("seconds")}
    return value


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Stopped by the gate once, then with a lower one played to its end."""
    folder, threads, before = tmp_path_factory.mktemp("pipeline"), torch.get_num_threads(), Path.cwd()
    put_files(folder)
    os.chdir(folder)
    with pytest.raises(GateError) as stopped:
        play_pipeline(recipe_of(**{THRESHOLD: "0.9"}), Path("out"), quiet())
    results = json.loads((folder / "out" / FILE).read_text())
    play_pipeline(recipe_of(), Path("out"), quiet())
    os.chdir(before)
    yield Played(folder, str(stopped.value), results)
    torch.set_num_threads(threads)


@pytest.fixture
def out(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all of it, as the current folder; the pipeline's own."""
    shutil.copytree(played.folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("out")


# Gates ---------------------------------------------------------------------------------------------------------------


def test_a_gate_that_fails_ends_the_pipeline_and_says_what_which_value_and_what_instead(played: Played) -> None:
    for part in (
        "sft-eval: accuracy after SFT is 0.",
        "n 4)",
        f"below {THRESHOLD} = 0.9",
        "GRPO was not started",
        "lower",
    ):
        assert part in played.stopped
    steps = played.before["steps"]
    assert [(step, entry["status"]) for step, entry in steps.items()] == [
        ("prepare", "done"),
        ("base", "done"),
        ("sft", "done"),
        ("sft-eval", "gate failed"),
    ]
    assert steps["sft-eval"]["message"] in played.stopped
    after = json.loads((played.folder / "out" / FILE).read_text())["steps"]
    assert {**after, "sft-eval": None}.items() >= {**steps, "sft-eval": None}.items(), "nothing was played again"
    assert after["sft-eval"] == {**steps["sft-eval"], "status": "done", "message": ""}


def test_a_gate_is_judged_anew_without_playing(gruppo: Command, out: Path) -> None:
    before = (out / FILE).stat().st_mtime_ns
    ended = gruppo("pipeline", "run", "recipe.toml", "--out", "out", f"--{THRESHOLD}=0.9")
    assert ended.code == 1 and ended.line.startswith("failed: out, sft-eval: accuracy after SFT is 0.")
    assert (out / FILE).stat().st_mtime_ns > before
    ended = gruppo("pipeline", "plan", "recipe.toml", "--out", "out", f"--{THRESHOLD}=0.9", "--json")
    lines = {line["step"]: line for line in json.loads(ended.out)["lines"]}
    assert lines["sft-eval"]["reason"].startswith("up to date, but its gate fails") and not lines["sft-eval"]["plays"]


def test_tasks_that_are_not_accepted_are_not_trained_on(gruppo: Command, out: Path) -> None:
    ended = gruppo(
        "pipeline", "run", "recipe.toml", "--out", "bad", f"--{THRESHOLD}=0", "--pipeline.limits.unscorable=0"
    )
    assert ended.code == 1 and "prepare: unscorable: 3, at most 0 were accepted" in ended.line
    assert not (Path("bad") / "sft").exists()


# What is played again ------------------------------------------------------------------------------------------------


def test_it_leaves_what_one_run_leaves_bit_by_bit(out: Path) -> None:
    train(run_config(recipe_of()), Path("run"), False, quiet())
    checkpoint = Run.open("run").latest_checkpoint()
    assert checkpoint is not None
    name = "planner/adapter_model.safetensors"
    weights = [
        (path / name).read_bytes() for path in (checkpoint.path / "policies", out / "models/grpo", out / "models/sft")
    ]
    assert weights[0] == weights[1] != weights[2]
    for stage in ("base", "sft", "final"):
        ours, its = (Run.open(path).read_episodes(f"eval-{stage}-greedy") for path in (out / "evaluation", "run"))
        assert [[e.turns for e in g.episodes] for g in timeless_turns(ours)] == [
            [e.turns for e in g.episodes] for g in timeless_turns(its)
        ]
    report = json.loads((out / "grpo" / "report.json").read_text())
    assert report["after"] == json.loads(Path("run/report.json").read_text())["after"]


def timeless_turns(groups: Any) -> Any:
    for turn in (turn for group in groups for episode in group.episodes for turn in episode.turns):
        object.__setattr__(turn, "seconds", 0.0)
    return groups


def test_the_results_say_what_was_measured(out: Path) -> None:
    results = json.loads((out / FILE).read_text())
    assert list(results["steps"]) == list(STEPS) and results["seed"] == 0
    for entry in results["steps"].values():
        assert entry["status"] == "done" and entry["seconds"] >= 0 and len(entry["fingerprint"]) == 64
        assert all((out / path).exists() for path in entry["paths"].values())
    measured = {step: entry["metrics"] for step, entry in results["steps"].items()}
    assert measured["prepare"]["rows"] == {"train": 6, "test": 4}
    assert measured["sft"]["steps"] == 2 and measured["grpo"]["steps"] == 2 and measured["grpo"]["episodes"] == 16
    for step in ("base", "sft-eval", "grpo-eval"):
        low, high = measured[step]["greedy"]["ci95"]
        assert low <= measured[step]["greedy"]["success"] <= high and measured[step]["greedy"]["n"] == 4
    assert len(measured["grpo-eval"]["gain over base"]["gain_ci95"]) == 2
    again = measured["save"]["played again"]
    assert again.keys() == {"models/sft/planner", "models/grpo/planner"} and all(
        one["same"] == one["tokens"] > 0 for one in again.values()
    )


def test_an_interrupted_pipeline_says_once_how_to_go_on(gruppo: Command, tmp_path: Path) -> None:
    put_files(tmp_path)
    (tmp_path / "reward.py").write_text(
        "import os, signal\n\ndef noise(task, episodes):\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    ended = gruppo("pipeline", "run", "recipe.toml", "--out", "out")
    assert ended.code == 130 and ended.err.endswith("\nstopped; the same command goes on\n"), ended


def test_again_it_plays_nothing(gruppo: Command, out: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*.*") if file.name != "pipeline.lock"}
    ended = gruppo("pipeline", "run", "recipe.toml", "--out", "out", f"--{THRESHOLD}=0")
    assert ended.code == 0 and ended.err.count("up to date") == len(STEPS)
    assert "after GRPO against before training: gain" in ended.out and "results: out/training_results.json" in ended.out
    assert {file: file.stat().st_mtime_ns for file in before} == before
    table = (out / "comparison.md").read_text()
    assert "| after demonstrations |" in table and "- after GRPO against after demonstrations: gain" in table


FROM_GRPO = ["grpo", "grpo-eval", "save"]
FROM_SFT = ["sft", "sft-eval", *FROM_GRPO]
EVALUATIONS = ["base", "sft-eval", "grpo-eval", "save"]
CHANGES: dict[str, tuple[str, list[str]]] = {
    LEARNING_RATE: ("0.003", FROM_GRPO),
    "train.steps": ("3", FROM_GRPO),
    "algorithm.kl_coefficient": ("0.1", FROM_GRPO),
    "roles.planner.trained": ("false", FROM_GRPO),
    "sft.learning_rate": ("0.003", FROM_SFT),
    "tasks.num_test": ("5", ["prepare", *EVALUATIONS]),
    "tasks.num_train": ("7", ["prepare", *FROM_SFT]),
    "eval.attempts": ("2", EVALUATIONS),
    "policies.planner.rank": ("8", ["base", *FROM_SFT]),
    "seed": ("1", ["base", *FROM_SFT]),
    "pipeline.save": ("merged", ["save"]),
    "pipeline.limits.overlap": ("9", ["prepare"]),
    "pipeline.sft_accuracy_threshold": ("0", []),
    "title": ("another", []),
    "monitors": ('["log"]', []),
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_change_concerns_a_step_and_what_follows_it(out: Path, key: str) -> None:
    value, expected = CHANGES[key]
    found = stand(out, recipe_of(**{key: value}))
    assert list(found) == expected
    if expected:
        first = "base" if key == "seed" else expected[0] if not key.startswith("tasks") else "prepare"
        assert (key in found[first]) != key.startswith("tasks") and ("tasks" in found[first]) == key.startswith("tasks")
    assert all(found[step].startswith(("follows", "changed: ")) for step in expected)


def test_a_changed_file_counts_by_its_content(out: Path) -> None:
    assert not stand(out, recipe_of())
    os.utime("reward.py")
    assert not stand(out, recipe_of())
    Path("reward.py").write_text(NOISE + "\n")
    found = stand(out, recipe_of())
    assert list(found) == ["base", "sft-eval", *FROM_GRPO] and found["grpo"] == "changed: file reward.py"
    Path("base/generation_config.json").write_text("{}")
    assert stand(out, recipe_of())["sft"] == "changed: folder base"


def test_what_is_gone_is_made_again(out: Path) -> None:
    shutil.rmtree(out / "models" / "grpo")
    assert stand(out, recipe_of()) == {"save": "models/grpo is gone"}
    shutil.rmtree(out / "grpo")
    assert list(stand(out, recipe_of())) == FROM_GRPO


@pytest.mark.slow
def test_a_changed_learning_rate_plays_grpo_and_leaves_sft_alone(gruppo: Command, out: Path) -> None:
    before, sft = what_is_in(out), {file: file.stat().st_mtime_ns for file in (out / "sft").rglob("*")}
    words = ["recipe.toml", "--out", "out", f"--{THRESHOLD}=0", f"--{LEARNING_RATE}=0.003", "--pipeline.save", "merged"]
    ended = gruppo("pipeline", "plan", *words)
    assert ended.code == 0 and "to play: 20 episodes" in ended.out and "MB of memory" in ended.out
    assert f"grpo       plays: changed: {LEARNING_RATE} (0.004 to 0.003) (16 episodes, at most" in ended.out
    assert "save       plays: changed: pipeline.save (adapters to merged)" in ended.out
    assert gruppo("pipeline", "run", *words).code == 0
    after = what_is_in(out)
    assert sft == {file: file.stat().st_mtime_ns for file in (out / "sft").rglob("*")}
    assert {step for step in STEPS if before[step] != after[step]} == {"grpo", "grpo-eval", "save"}
    assert (out / "models" / "grpo" / "planner" / "model.safetensors").exists()
    again = json.loads((out / FILE).read_text())["steps"]["save"]["metrics"]["played again"]
    assert all(one["same"] == one["tokens"] > 0 for one in again.values()), "merged, they play the same"


# Kills and seeds -----------------------------------------------------------------------------------------------------


def live(words: list[str]) -> None:
    """The life of a process."""
    os.setsid()  # so that what it starts is killed with it
    sys.argv = ["gruppo", *words]
    main()


def run_in_a_process(words: list[str], kill: Callable[[], bool] | None = None, after: float = 0.0) -> int | None:
    """Exit code of the command line in a fork of this process; killed some seconds after `kill` has come true."""
    process = multiprocessing.get_context("fork").Process(target=live, args=(words,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads at a fork
        process.start()
    while kill and process.is_alive() and not kill():
        time.sleep(0.002)
    if kill:
        time.sleep(after)
    if kill and process.is_alive() and process.pid:
        os.killpg(process.pid, signal.SIGKILL)
    process.join(100)
    return process.exitcode


def is_playing(step: str) -> bool:
    results = read_results(Path("killed"))
    return results is not None and step in results.steps


@pytest.mark.slow  # a process for each step
def test_killed_in_every_step_it_ends_as_one_that_was_not(out: Path) -> None:
    moments, words = random.Random(2), ["pipeline", "run", "recipe.toml", "--out", "killed", f"--{THRESHOLD}=0"]
    kills = 0
    for step in STEPS:
        code = run_in_a_process(words, lambda step=step: is_playing(step), moments.uniform(0, 0.2))
        assert code in (0, -signal.SIGKILL)
        kills += code == -signal.SIGKILL
    assert kills >= 5
    assert run_in_a_process(words) == 0
    assert what_is_in(Path("killed")) == what_is_in(out)


@pytest.mark.slow
def test_several_seeds_end_in_one_table(gruppo: Command, out: Path) -> None:
    (Path("all")).mkdir()
    out.rename("all/seed-0")
    words = ["recipe.toml", "--out", "all", f"--{THRESHOLD}=0", "--seeds", "0", "1", "--train.steps=2"]
    ended = gruppo("pipeline", "plan", *words, "--json")
    assert [sum(line["plays"] for line in one["lines"]) for one in json.loads(ended.out)] == [0, len(STEPS) - 1 + 1]
    ended = gruppo("pipeline", "run", *words)
    assert ended.code == 0, ended
    assert "seed-1/training_results.json" in ended.out and ended.err.count("up to date") == len(STEPS)
    found = json.loads(Path("all/comparison.json").read_text())
    assert (found["seeds"], found["n"], len(found["systems"])) == (2, 4, 3)
    table = Path("all/comparison.md").read_text().splitlines()
    assert table[0].startswith("|  | accuracy (95 % interval) | seed 0 | seed 1 | between seeds |")
    assert len({line.count("|") for line in table[:5]}) == 1 and "2 seeds" in table[-1]


# Mistakes ------------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_pipelines_is_left_alone(gruppo: Command, out: Path) -> None:
    whole = (out / FILE).read_text()
    outside = json.loads(whole)
    outside["steps"]["sft"]["paths"]["run"] = "../base"
    spoiled = json.loads(whole)
    del spoiled["steps"]["sft-eval"]["metrics"]["greedy"]
    for text, expected in (
        ("{", "training_results.json is damaged, or not a pipeline's"),
        (
            '{"status": "success", "accuracy": "45.00%"}',
            "damaged, or not a pipeline's (schema_version: Field required)",
        ),
        (whole.replace('"schema_version": 1', '"schema_version": 2'), "schema_version: Input should be 1"),
        (whole.replace('"done"', '"finished"', 1), "steps.prepare.status"),
        (json.dumps(outside), "'../base' is not inside the pipeline's folder"),
        (json.dumps(spoiled), "the metrics of sft-eval are damaged: KeyError: 'greedy'"),
    ):
        (out / FILE).write_text(text)
        refused(gruppo("pipeline", "run", "recipe.toml", "--out", "out", f"--{THRESHOLD}=0"), expected)
        assert (out / FILE).read_text() == text
    (out / FILE).unlink()
    refused(gruppo("pipeline", "run", "recipe.toml", "--out", "out"), "but no training_results.json knows of it")
    assert (out / "sft" / "config.toml").exists()
