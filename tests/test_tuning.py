"""Tuning: the search space, and studies of real runs: resumed, cut short, failed, and killed outright."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, refused
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from gruppo.config import dump, load
from gruppo.errors import ConfigError
from gruppo.evaluation.statistics import wilson
from gruppo.tuning import results
from gruppo.tuning.results import Result
from gruppo.tuning.space import Parameter, grid, settings
from gruppo.tuning.study import Study, StudyConfig, check, resume, tune

pytest.importorskip("optuna")

ROOT = Path(__file__).parents[1]
SMALL = """
title = "small"
[model]
base = "tiny"
threads = 1
[policies.agent]
rank = 4
learning_rate = 1e-3
[roles.agent]
policy = "agent"
max_tokens = 4
[team]
program = "solo"
[team.solo]
max_turns = 1
[rewards]
"REWARD:longer" = 1.0
[tasks]
num_train = 4
num_validation = 10
families = ["compute"]
[sft]
steps = 0
[eval]
stages = false
modes = ["greedy"]
[train]
steps = 2
tasks_per_step = 2
attempts = 2
eval_every = 2
"""
REWARD = """
def longer(task, episodes):
    return [float(sum(sum(turn.action_ids) for turn in episode.turns) % 97) for episode in episodes]
"""


def study_of(tmp_path: Path, **keys: Any) -> StudyConfig:
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "small.toml").write_text(SMALL.replace("REWARD", str(tmp_path / "reward.py")))
    given_ = {"configs": [str(tmp_path / "small.toml")], "method": "grid"} | keys
    return StudyConfig.model_validate(given_)


def parameter(**keys: Any) -> Parameter:
    return Parameter.model_validate(keys)


# ---- the space -------------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination_with_both_ends() -> None:
    space = {"rate": parameter(low=1e-6, high=1e-4, log=True), "rank": parameter(choice=[8, 16])}
    assert [tuple(values.values()) for values in grid(space)] == [
        (1e-6, 8), (1e-6, 16), (1e-5, 8), (1e-5, 16), (1e-4, 8), (1e-4, 16),
    ]  # fmt: skip
    assert parameter(low=1, high=4, integer=True, points=9).grid() == [1, 2, 3, 4]
    assert parameter(low=0.0, high=1.0, points=5).grid() == [0, 0.25, 0.5, 0.75, 1]


@example_settings(max_examples=50)
@given(st.floats(1e-8, 1e3), st.floats(1.001, 1e6), st.integers(2, 20), st.booleans())
def test_a_grid_rises_from_low_to_high(low: float, factor: float, points: int, log: bool) -> None:
    values = parameter(low=low, high=low * factor, log=log, points=points).grid()
    assert len(values) == points and values == sorted(set(values))
    assert values[0] == pytest.approx(low) and values[-1] == pytest.approx(low * factor)


def test_one_parameter_may_set_several_keys_and_tables() -> None:
    space = {
        "rate": parameter(keys=["policies.a.learning_rate", "policies.b.learning_rate"], choice=[1e-3]),
        "adapter": parameter(keys=["policies.a"], choice=[{"rank": 8, "alpha": 16}]),
        "train.attempts": parameter(choice=[4]),
    }
    found = settings(space, next(grid(space)))
    assert found == {
        "policies": {"a": {"learning_rate": 1e-3, "rank": 8, "alpha": 16}, "b": {"learning_rate": 1e-3}},
        "train": {"attempts": 4},
    }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "expected a choice, or low and high"),
        ({"low": 1.0}, "expected a choice, or low and high"),
        ({"low": 2.0, "high": 1.0}, "low = 2 is not below high = 1"),
        ({"low": 0.0, "high": 1.0, "log": True}, "has to be above 0"),
        ({"low": 0.5, "high": 2.0, "integer": True}, "both are whole numbers"),
        ({"choice": [1, 2], "low": 1.0}, "a choice has no low"),
        ({"choice": [1, 1]}, "the same value twice"),
    ],
)
def test_what_is_no_range_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parameter(**keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"space": {"policies.agent.rnk": {"choice": [1]}}}, "unknown key policies.agent.rnk = 1: did you mean"),
        ({"space": {"train.steps": {"choice": [2, "many"]}}}, r'train.steps = "many": .*the study.s space'),
        ({"space": {"seed": {"choice": [0]}}, "run": {"train": {"eval_every": 0}}}, "evaluates nothing in train.steps"),
        ({"space": {"seed": {"choice": [0]}}, "configs": ["gone.toml"]}, "gone.toml: no such file"),
    ],
)
def test_a_study_that_can_not_be_played_is_refused_before_it_starts(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(study_of(tmp_path, **keys))


def test_a_grid_takes_no_number_of_trials(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a grid plays each of its combinations"):
        study_of(tmp_path, trials=5, space={"seed": {"choice": [0]}})


@pytest.mark.parametrize("path", sorted((ROOT / "examples/tuning").glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_can_be_played(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load(StudyConfig, [path])
    check(config)
    assert config.num_trials == (12 if config.method == "grid" else 20)


# ---- results ---------------------------------------------------------------------------------------------------------

DONE = [
    Result(0, "done", {"rate": 1e-5}, value=0.5, interval=wilson(50, 100), n=100, step=9, curve=((1, 0.2), (2, 0.4))),
    Result(1, "done", {"rate": 1e-4}, value=0.55, interval=wilson(55, 100), n=100, step=9, curve=((1, 0.3), (2, 0.5))),
    Result(2, "failed", {"rate": 1e-3}, reason="exit code 1: failed: <no> memory"),
    Result(3, "done", {"rate": 1e-6}, value=0.1, interval=wilson(10, 100), n=100, step=9),
    Result(4, "pruned", {"rate": 1e-7}, reason="worse than the median at step 3"),
]


def test_the_best_is_named_with_those_that_chance_may_tell_apart() -> None:
    found = results.summary(DONE, "eval/success", maximize=True)
    assert found["best"]["number"] == 1 and found["as_good"] == [0]
    assert found["counts"] == {"done": 3, "pruned": 1, "failed": 1}
    assert "trial 1: eval/success 0.55 (95% interval" in results.verdict(found)
    assert results.summary(DONE, "eval/success", maximize=False)["best"]["number"] == 3
    assert results.verdict(results.summary(DONE[2:3], "x", maximize=True)).startswith("No trial was done")


def test_the_page_shows_every_trial_and_escapes_what_it_shows() -> None:
    page = results.page("a <study>", results.summary(DONE, "eval/success", True), DONE, "reward/mean")
    assert "a &lt;study&gt;" in page and "&lt;no&gt; memory" in page and "<no>" not in page
    for part in ("trial 3", "55.0%", "worse than the median", "reward/mean", "<svg", "1e-07"):
        assert part in page, part


def test_the_objective_is_the_last_value_with_its_interval() -> None:
    records = [
        {"step": 2, "eval/success": 0.9, "eval/n": 10},
        {"step": 4, "eval/success": 0.4, "eval/n": 10},
        {"step": 5},
    ]
    assert results.measured(records, "eval/success") == {"value": 0.4, "step": 4, "n": 10, "interval": wilson(4, 10)}
    assert results.measured(records, "reward/mean") == {}
    assert results.measured([{"step": 1, "reward/mean": 2.0}], "reward/mean") == {"value": 2.0, "step": 1}


# ---- studies ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials run the code of this repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_study_records_a_failed_trial_and_resumes_without_playing_again(tmp_path: Path) -> None:
    said: list[str] = []
    # Each setting is possible, but not two attempts in groups of three.
    config = study_of(
        tmp_path, space={"train.attempts": {"choice": [2, 3]}}, workers=2, run={"credit": {"min_group": 3}}
    )
    found = tune(config, tmp_path / "study", said.append)
    failed, done = found["trials"]
    assert failed["state"] == "failed" and failed["reason"].startswith("exit code 2: error: train.attempts = 2")
    assert done["state"] == "done" and done["n"] == 10 and done["step"] == 2 and done["seconds"] > 0
    assert done["interval"] == pytest.approx(wilson(10 * done["value"], 10)) and found["best"]["number"] == 1
    assert (tmp_path / "study/trials/0001/config.toml").exists() and "<svg" in (
        tmp_path / "study/results.html"
    ).read_text()

    before = (tmp_path / "study/trials/0001/report.json").stat().st_mtime_ns
    again = resume(tmp_path / "study", {}, said.append)
    assert again == found and (tmp_path / "study/trials/0001/report.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="holds a study"):
        tune(config, tmp_path / "study", said.append)
    with pytest.raises(ConfigError, match="--seed: a resumed study goes on"):
        resume(tmp_path / "study", {"seed": "1"}, said.append)


def drawn(config: StudyConfig, out: Path, count: int) -> list[dict[str, Any]]:
    """The settings of the next trials, each told 0.5 without being played."""
    (out / "trials").mkdir(parents=True, exist_ok=True)
    study = Study(config, out, print)
    found = []
    for _ in range(count):
        chosen = study.choose()
        assert chosen is not None
        own, lock = chosen
        with lock:
            found.append(dict(own.params))
            study.study.tell(own, 0.5)
    return found


@pytest.mark.parametrize("method", [pytest.param("random", marks=pytest.mark.slow), "bayesian"])
def test_draws_depend_on_the_seed_and_go_on_where_they_were(tmp_path: Path, method: str) -> None:
    space = {"rate": {"low": 1e-6, "high": 1e-4, "log": True}, "rank": {"choice": [8, 16]}}
    config = study_of(tmp_path, method=method, space=space, trials=4)
    whole = drawn(config, tmp_path / "whole", 4)
    assert [*drawn(config, tmp_path / "parts", 1), *drawn(config, tmp_path / "parts", 3)] == whole
    assert len({str(values) for values in whole}) == 4 and all(1e-6 <= values["rate"] <= 1e-4 for values in whole)
    other = config.model_copy(update={"seed": 1})
    assert drawn(other, tmp_path / "other", 4) != whole
    assert Study(config, tmp_path / "whole", print).choose() is None


def test_processes_share_a_grid_and_take_up_what_a_dead_one_left(tmp_path: Path) -> None:
    config = study_of(tmp_path, space={"rank": {"choice": [4, 8, 16]}})
    (tmp_path / "study/trials").mkdir(parents=True)
    first, second = (Study(config, tmp_path / "study", print) for _ in range(2))
    (one, one_lock), (two, two_lock) = first.choose() or (), second.choose() or ()
    assert (one.number, two.number) == (0, 1)
    one_lock.close()  # as the end of its process does
    third = Study(config, tmp_path / "study", print)
    taken = [chosen for _ in range(3) if (chosen := third.choose())]
    assert [own.number for own, _ in taken] == [0, 2]  # the second is still at work on 1
    assert [own.params["rank"] for own, _ in taken] == ["4", "16"]
    for lock in (two_lock, *(lock for _, lock in taken)):
        lock.close()


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_study_that_was_killed_goes_on_with_the_run_it_was_in(tmp_path: Path) -> None:
    space = {"seed": {"choice": [0, 1]}}
    run = {"train": {"steps": 6, "eval_every": 6, "save_every": 1}}
    config = study_of(tmp_path, space=space, run=run)
    (tmp_path / "study.toml").write_text("")
    code = (
        "import sys; from pathlib import Path; from gruppo.config import load;"
        "from gruppo.tuning.study import StudyConfig, tune;"
        "tune(load(StudyConfig, [sys.argv[1]]), Path(sys.argv[2]), print)"
    )
    (tmp_path / "study.toml").write_text(dump(config))
    words = [sys.executable, "-c", code, str(tmp_path / "study.toml"), str(tmp_path / "study")]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    metrics = tmp_path / "study/trials/0000/metrics.jsonl"
    deadline = time.monotonic() + 80
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)  # the study; its run, in a session of its own, lives on
    process.wait()
    found = resume(tmp_path / "study", {}, print)
    assert [one["state"] for one in found["trials"]] == ["done", "done"]
    for trial in ("0000", "0001"):
        lines = (tmp_path / f"study/trials/{trial}/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_run_that_falls_behind_ends_early(tmp_path: Path) -> None:
    # "reward/mean" is what the reward is multiplied with; the third run has the least.
    space = {"rewards": {"choice": [{f"{tmp_path / 'reward.py'}:longer": weight} for weight in (9.0, 5.0, 0.1)]}}
    config = study_of(
        tmp_path,
        space=space,
        metric="reward/mean",
        prune_metric="reward/mean",
        prune_after_trials=2,
        prune_after_steps=1,
        run={"train": {"steps": 8, "eval_every": 0}},
    )
    (tmp_path / "small.toml").write_text(SMALL.replace('"REWARD:longer" = 1.0', ""))
    found = tune(config, tmp_path / "study", print)
    assert [one["state"] for one in found["trials"]] == ["done", "done", "pruned"]
    assert "worse than the median" in found["trials"][2]["reason"] and found["best"]["number"] == 0
    assert "failed" not in (tmp_path / "study/trials/0002.log").read_text()


def test_the_command_asks_for_a_study(gruppo: Command, tmp_path: Path) -> None:
    refused(gruppo("tune"), "--config: name the study")
    refused(gruppo("tune", "--resume", "--out", str(tmp_path)), "holds no study to resume")
    refused(gruppo("tune", "--resume", "-c", "study.toml"), "a resumed study goes on with its own config")
    (tmp_path / "study.toml").write_text('configs = ["a.toml"]\n[space.attempts]\nchoise = [2]\n')
    refused(gruppo("tune", "-c", "study.toml"), "did you mean space.attempts.choice")
