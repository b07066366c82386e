"""`gruppo search train`: the executor learns from kept states, the rest stays as it was, and a killed run goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Command, refused
from kept_states import search_world
from one_layer import one_layer
from safetensors.torch import load_file

from gruppo.config import load
from gruppo.errors import ConfigError, DataError, RewardError
from gruppo.rewards.search import SearchRewardConfig, search
from gruppo.run import RunConfig
from gruppo.search_state import continuation_of
from gruppo.searching.training import config_of
from gruppo.store import Run
from gruppo.types import Episode, Task

CONFIG = f"""
[model]
base = "{one_layer()}"
threads = 1
[policies.executor]
rank = 4
learning_rate = 1e-2
[roles.executor]
max_tokens = 10
[tools]
corpus = "world"
documents_per_clue = 1
[team.search]
prompts = "compact"
checker = "truth"
[tasks]
num_test = 4
[tasks.rounds]
min_clues_per_round = 1
[train]
steps = 2
tasks_per_step = 2
attempts = 3
save_every = 1
[eval]
modes = ["greedy"]
"""


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Searches by rules over each split's own sentences, and the config of a training on them."""
    root = tmp_path_factory.mktemp("searches")
    for split, count in (("train", 6), ("validation", 3)):
        search_world(root / split, split, count, ["lookup", "lookup-lookup"])
    (root / "config.toml").write_text(CONFIG)
    return root


def options(searches: Path) -> list[str]:
    sides = ["--rounds", str(searches / "train"), "--evaluation", str(searches / "validation")]
    return ["search", "train", *sides, "-c", str(searches / "config.toml")]


def test_the_executor_alone_learns_and_a_killed_run_goes_on(gruppo: Command, searches: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = gruppo(*options(searches), "--out", str(out))
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out[: ended.out.rindex("report:")])
    assert summary["roles"]["executor"]["changed"] and summary["base_unchanged"] and summary["n"] == 4
    assert set(summary["by_family"]["final"]) <= {"round 1", "round 3"}
    assert "9 states to train on, 4 to evaluate on" in ended.err
    with Run.open(out) as run:
        (first, *_), config = run.read_episodes("grpo-000001"), load(RunConfig, [out / "config.toml"])
    played = [continuation_of(episode.answer or "") for episode in first.episodes]
    assert [len(each.rounds) for each in played] == [1] * 3
    assert {each.rounds[0].sub_goal for each in played} == {first.task.extra_info["sub_goal"]}
    assert set(first.episodes[0].scores) >= {"search/important", "search/found", "search/faults"}
    assert config.rewards == {"search": 1.0} and config.team.program == "search_from_state"
    adapter = Path("policies", "executor", "adapter_model.safetensors")
    (last,) = (each for each in (out / "checkpoints").iterdir() if each.name.endswith("2"))
    weights = load_file(last / adapter)
    shutil.rmtree(last)
    (out / "facts.json").unlink()
    assert gruppo("search", "train", "--resume", "--out", str(out)).code == 0
    again = load_file(last / adapter)
    assert all((again[name] == tensor).all() for name, tensor in weights.items())


def test_epochs_say_how_often_a_state_is_taken(searches: Path) -> None:
    files = [searches / "config.toml"]
    assert config_of(searches / "train", None, files, {"tasks.rounds.evaluation_share": "0"}, 4).train.steps == 18
    assert config_of(searches / "train", searches / "validation", files, {}, 1).train.steps == 5
    with pytest.raises(ConfigError, match=r"--epochs 2: --train.steps says how long"):
        config_of(searches / "train", None, files, {"train.steps": "3"}, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--roles.planner.policy", "executor"], "trains the executor alone"),
        (["--team.program", "search"], "--team.program: `gruppo search train` sets it"),
        (["--rounds", "nowhere"], "nowhere: no folder of searches"),
        (["--resume"], "give --out alone"),
        (["--reward.search.later", "1.0"], "set team.search.replay = true"),
        (["--roles.executor.temperature", "0"], "a trained role samples with"),
    ],
)
def test_what_can_t_be_trained_is_one_line(
    gruppo: Command, searches: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    refused(gruppo(*options(searches), "--out", str(tmp_path / "run"), *words), message)


def test_an_empty_folder_of_searches_says_what_was_left_out(searches: Path, tmp_path: Path) -> None:
    (tmp_path / "stranger").mkdir()
    with pytest.raises(DataError, match="no state to train on.*not the folder of a question"):
        config_of(tmp_path, None, [searches / "config.toml"], {}, 1)


def test_the_reward_of_searches_is_for_searches() -> None:
    """A team that answers in words is told so, not paid nothing."""
    important, weight = search(SearchRewardConfig(), False)["important"]
    episode = Episode("t", "g", 0, 0, answer="Morla")
    with pytest.raises(RewardError, match='for team.program = "search_from_state"'):
        important(Task("t", "q", "Morla"), [episode])
    assert weight == 1.0
