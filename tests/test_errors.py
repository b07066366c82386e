"""What the person at the keyboard can mend: each mistake is one clear line and exit code 2, and nothing is written."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import QUICKSTART, SMALL, Command, Ended, refused, training
from one_layer import one_layer
from safetensors.torch import load_file, save_file

from gruppo.config import load
from gruppo.errors import UserError
from gruppo.log import Log
from gruppo.run import RunConfig
from gruppo.stages import report_of, train
from gruppo.store import Run
from gruppo.training.model import TINY

# The config ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"trian__steps": "3"}, "unknown key trian"),
        ({"train__step": "3"}, "unknown key train.step = 3: did you mean train.steps?"),
        ({"algorithm__clip_hihg": "0.3"}, "did you mean algorithm.clip_high?"),
        ({"roles__planner__polcy": "planner"}, "did you mean roles.planner.policy?"),
        ({"train__steps": "many"}, 'train.steps = "many": expected a valid integer'),
        ({"train__attempts": "1"}, "train.attempts = 1: expected greater than or equal to 2"),
        ({"algorithm__loss": "ppo_clop"}, "did you mean ppo_clip?"),
        ({"roles__planer__policy": "planner"}, "unknown role roles.planer: did you mean planner?"),
        ({"roles__planner__policy": "planer"}, "no such policy: did you mean planner?"),
        ({"roles__writer__engine": "lokal"}, "no such engine: did you mean local?"),
        ({"team__program": "solvr"}, "no such team: did you mean solver?"),
        ({"team__program": "no_team.py:Team"}, "no_team.py: no such file"),
        ({"team__solver__prompts": "compcat"}, "team.solver.prompts = 'compcat': no such file"),
        ({"tools__names": '["pyton"]'}, "no tool 'pyton': did you mean python?"),
        ({"tools__names": '["no_tools.py:search"]'}, "no_tools.py: no such file"),
        ({"tools__corpus": "no_folder"}, "tools.corpus: no_folder: no such file"),
        ({"tools__corpus": "no_file.jsonl"}, "no_file.jsonl"),
        ({"rewards": "{exakt = 1.0}"}, "did you mean exact?"),
        ({"rewards": '{"no_reward.py:short" = 1.0}'}, "no_reward.py: no such file"),
        ({"tasks__families": '["compute", "compute-lokup"]'}, "did you mean compute-lookup?"),
        ({"tasks__families": "[]"}, "tasks.families"),
        ({"sft__steps": "2", "sft__families": '["lokup"]'}, "did you mean lookup?"),
        ({"eval__modes": '["gredy"]'}, "did you mean greedy?"),
        ({"roles__planner__top_p": "0.9"}, "roles.planner: a trained role samples with top_p = 1 and temperature > 0"),
        (
            {"roles__planner__temperature": "0"},
            "roles.planner: a trained role samples with top_p = 1 and temperature > 0",
        ),
        ({"policies__planner__full": "true"}, "policies.planner.full = true: a fully trained model is the only policy"),
        ({"policies__planner__target_modules": '["q_prj"]'}, "q_prj"),
        ({"policies__plannner__rank": "4"}, "plannner"),
        ({"model__device": "quda"}, "model.device"),
        ({"start_from": "nothing"}, "start_from: nothing is not a run folder"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_a_mistake_in_the_config(gruppo: Command, tmp_path: Path, changes: dict[str, str], expected: str) -> None:
    refused(gruppo(*training(**changes)), expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--config", "quikstart.toml"], "quikstart.toml: no such file"),
        (["train"], "no role is trained: give one a policy"),
        (["config", "--train.steps", "3", "--train.steps", "4"], "--train.steps is given twice"),
        (["config", "steps"], "unexpected argument 'steps'"),
        (["config", "--rewards.acuracy", "1.0"], "rewards.acuracy: no such reward: did you mean accuracy?"),
        (["config", "--rewards.lenght_penalty", "1.0"], "did you mean length_penalty?"),
        (["config", "--rewards.nothing_like_it", "1.0"], "no such reward: known are accuracy, agent, answers, "),
        (["config", "--credit.turn_rewards.tol_ok", "1.0"], "did you mean tool_ok?"),
        (["config", "--team.program", "solvr"], "no such team: did you mean solver?"),
        (["config", "--roles.planer.engine", "local"], "unknown role roles.planer: did you mean planner?"),
        (["config", "--roles.planner.policy", "x"], "roles.planner.policy = 'x': no such policy"),
        (["train", "--resume", "--out", "nothing"], "nothing is not a run folder"),
        (["eval", "nothing"], "nothing is not a run folder"),
        (["report", "nothing"], "nothing is not a run folder: it has no config.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_a_command(gruppo: Command, tmp_path: Path, words: list[str], expected: str) -> None:
    refused(gruppo(*words), expected)
    assert not list(tmp_path.iterdir())


def test_a_run_that_has_not_ended_has_no_report_yet(gruppo: Command, tmp_path: Path) -> None:
    Run.create("begun", "").close()
    refused(
        gruppo("report", "begun"), "begun has not ended, so there is no report yet: go on with gruppo train --resume"
    )
    with pytest.raises(UserError, match="has not ended"):
        report_of(tmp_path / "begun", [])
    assert not (tmp_path / "begun" / "report.html").exists()


def test_the_nearest_config_file_is_named(gruppo: Command, tmp_path: Path) -> None:
    (tmp_path / "quickstart.toml").write_text("")
    refused(gruppo("train", "--config", "quikstart.toml"), "no such file: did you mean quickstart.toml?")


def test_a_config_that_is_not_toml(gruppo: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("[train\nsteps = 3")
    refused(gruppo("train", "--config", "broken.toml"), "broken.toml: not a TOML file")


# Task files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "rows", "expected"),
    [
        ("train", [{"question": "6 times 7"}], "tasks.jsonl: row 1: no column 'result'"),
        ("train", [{"question": "6 times 7", "result": ""}], "tasks.jsonl: row 1: column 'result' is empty"),
        ("train", [{"id": "a", "question": "6 times 7", "result": 42}] * 2, "rows 1 and 2 have the same id 'a'"),
        ("train", [], "tasks.jsonl: no tasks; at least one is needed"),
        ("validation", [], "tasks.jsonl: no tasks; at least one is needed"),
        ("test", [], "tasks.jsonl: no tasks; at least one is needed"),
    ],
    ids=["no answer", "empty answer", "same id", "no rows", "no rows to validate", "no rows to test"],
)
def test_a_mistake_in_a_task_file(
    gruppo: Command, tmp_path: Path, split: str, rows: list[dict[str, object]], expected: str
) -> None:
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {f"tasks__{split}": "tasks.jsonl", "eval__stages": "true", "train__eval_every": "1"}
    refused(gruppo(*training(**changes)), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]


def test_a_task_file_that_is_not_there(gruppo: Command, tmp_path: Path) -> None:
    refused(gruppo(*training(tasks__train="tasks.jsonl")), "tasks.jsonl: no such file")
    assert not list(tmp_path.iterdir())


def test_tasks_without_gold_plans_can_not_be_demonstrated(gruppo: Command, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"question": "6 times 7", "result": 42}) + "\n")
    changes = {"tasks__train": "tasks.jsonl", "sft__steps": "2", "sft__families": "[]"}
    refused(gruppo(*training(**changes)), "has no gold plan in extra_info.plan")


# The model -----------------------------------------------------------------------------------------------------------


def test_a_folder_without_a_model(gruppo: Command, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    refused(gruppo(*training(model__base="model")), "model.base = 'model': the folder has no config.json")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_with_a_model_of_an_unknown_kind(gruppo: Command, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen99"}')
    refused(gruppo(*training(model__base="model")), "model.base = 'model'")


def test_a_hub_id_reaches_for_nothing(gruppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(host: str, *arguments: object, **options: object) -> None:
        raise AssertionError(f"reached for {host}")

    monkeypatch.setattr(socket, "getaddrinfo", reach)
    refused(
        gruppo(*training(model__base="nobody/nothing")), "model.base = 'nobody/nothing': no such folder, nor cached"
    )
    assert not Path("run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("variables", "allow"), [({}, "false"), ({"HF_HUB_OFFLINE": "1"}, "true")])
def test_a_hub_id_reaches_for_nothing_unless_it_may(tmp_path: Path, variables: dict[str, str], allow: str) -> None:
    """In a process of its own: the libraries read these variables as they are imported, and ask once per process."""
    words = training(str(tmp_path / "run"), model__base="nobody/nothing", model__allow_download=allow)
    command = [sys.executable, "-c", WITHOUT_NETWORK, *words]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert "reached for" not in done.stderr
    refused(
        Ended(done.returncode, done.stdout, done.stderr), "model.base = 'nobody/nothing': no such folder, nor cached"
    )
    assert not (tmp_path / "run").exists()


WITHOUT_NETWORK = """
import os, socket, sys

def reach(host, *arguments, **options):
    sys.stderr.write(f"reached for {host}\\n")
    os._exit(3)

socket.getaddrinfo = reach
from gruppo.cli import main
main()
"""


# The run folder ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base of the user's and a run of one step on it."""
    folder = tmp_path_factory.mktemp("played")
    shutil.copytree(one_layer(), folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(load(RunConfig, [QUICKSTART], SMALL | {"model.base": "model"}), Path("run"), False, Log())
    return folder


@pytest.fixture
def finished(played: Path, tmp_path: Path) -> Path:
    """A copy of that run, in the folder that commands are called in."""
    return shutil.copytree(played, tmp_path, dirs_exist_ok=True) / "run"


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the lock, which says who looked last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_finished_run_is_not_touched_by_mistakes(gruppo: Command, finished: Path) -> None:
    before = contents(finished)
    refused(gruppo(*training(model__base="model")), "run holds a run; pass --resume or another --out")
    resume = ["train", "--resume", "--out", "run"]
    refused(gruppo(*resume, "--train.attempts", "4"), "--train.attempts: a resumed run goes on with its own config")
    refused(gruppo(*resume, "--train.steps", "9"), "--train.steps: a resumed run goes on with its own config")
    refused(gruppo(*resume, "--seed", "9"), "--seed: a resumed run goes on with its own config")
    refused(gruppo(*resume, "--config", str(QUICKSTART)), "--config: a resumed run goes on with its own config")
    refused(gruppo("eval", "run", "--mode", "gredy"), "did you mean greedy?")
    refused(gruppo("eval", "run", "--step", "7"), "step-000007 is missing or damaged")
    with Run.resume(finished):
        refused(gruppo(*resume), f"run is in use by process {os.getpid()} on ")
    assert contents(finished) == before


def test_a_checkpoint_of_another_base_is_refused(gruppo: Command, finished: Path) -> None:
    weights = finished.parent / "model" / "model.safetensors"
    tensors = load_file(weights)
    name = min(tensors)
    save_file(tensors | {name: tensors[name] + 1e-3}, weights, metadata={"format": "pt"})
    before = contents(finished)
    for words in (["train", "--resume", "--out", "run"], ["eval", "run"]):
        refused(gruppo(*words), "was trained on another base than model.base = 'model'")
    assert contents(finished) == before


def test_an_interrupted_command_says_how_to_go_on(gruppo: Command, tmp_path: Path) -> None:
    interrupt = "import os, signal\n\ndef stop(task, episodes):\n    os.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "own.py").write_text(interrupt)
    ended = gruppo("check", "env", "--limit", "1", "--rewards", '{"own.py:stop" = 1.0}')
    assert (ended.code, ended.line) == (130, "stopped; a run goes on with --resume")


@pytest.mark.parametrize(
    "words",
    [["train", "--config"], ["report"], ["search", "eval"], ["search", "q", "--corpus"], ["data", "check"], ["grade"]],
)
def test_a_name_that_no_file_can_have_is_one_line(gruppo: Command, words: list[str]) -> None:
    ended = gruppo(*words, "x" * 300)
    refused(ended, os.strerror(errno.ENAMETOOLONG))
    assert ended.err.count("\n") == 1 and len(ended.err) < 200


def test_a_full_disk_is_named_and_the_run_goes_on_once_there_is_room(gruppo: Command, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # an adapter has more bytes
    try:
        refused(gruppo(*training()), "no space left on run/checkpoints while writing step-000000")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    assert gruppo("train", "--resume", "--out", "run").code == 0
    assert Run.open("run").list_checkpoints() == [0, 1]
