"""`gruppo search run | eval | compare | audit` on a run that really trained, and one line for what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest
from command_line import Command, refused
from kept_states import search_world
from rich.console import Console

from gruppo.config import load
from gruppo.data.world import world_of
from gruppo.log import Log
from gruppo.run import RunConfig
from gruppo.searching import assessing
from gruppo.stages import train

CONFIG = """
seed = 1
[model]
threads = 1
[policies.executor]
rank = 4
learning_rate = 1e-2
[roles.executor]
policy = "executor"
max_tokens = 14
[team]
program = "search_from_state"
[team.search]
prompts = "compact"
checker = "truth"
wrong_labels = 0.3
[tools]
names = ["documents"]
corpus = "world"
[tasks]
train = "rounds"
test = "rounds"
num_test = 8
[tasks.rounds]
min_clues_per_round = 1
folder = "{root}/train"
evaluation_folder = "{root}/validation"
[rewards]
search = 1.0
[train]
steps = 2
tasks_per_step = 2
attempts = 4
[sft]
steps = 0
[eval]
stages = false
"""
WHOLE = """
[model]
threads = 1
[policies.executor]
rank = 4
[roles.executor]
policy = "executor"
max_tokens = 14
[team]
program = "search"
[team.search]
prompts = "compact"
checker = "truth"
max_rounds = 5
[tools]
names = ["documents"]
corpus = "world:test"
[tasks]
families = ["lookup"]
num_test = 2
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, in states of searches that rules played."""
    root = tmp_path_factory.mktemp("trained")
    for split in ("train", "validation"):
        search_world(root / split, split, 4, ["lookup-lookup"])
    (root / "config.toml").write_text(CONFIG.replace("{root}", str(root)))
    train(load(RunConfig, [root / "config.toml"]), root / "run", False, Log(Console(quiet=True)))
    return root / "run"


@pytest.fixture(scope="module")
def seeds(trained: Path) -> list[Path]:
    """The same training with two seeds."""
    config = load(
        RunConfig, [trained.parent / "config.toml"], {"seed": "2", "model.threads": "2", "monitor.name": "second"}
    )
    train(config, trained.parent / "another", False, Log(Console(quiet=True)))
    return [trained, trained.parent / "another"]


def test_before_and_after_are_measured_compared_and_audited(gruppo: Command, trained: Path, tmp_path: Path) -> None:
    ended = gruppo("search", "eval", str(trained), "--mode", "sampled", "--attempts", "2", "--out", "details.json")
    assert ended.code == 0 and "recall, round 1" in ended.out and "baseline and step 2" in ended.out
    assert "the best and the worst" in ended.out and "labels" in ended.out
    found = json.loads((tmp_path / "details.json").read_text())
    assert list(found["sides"]) == ["baseline", "step 2"] and found["comparison"]["labels"] == "truth"
    assert found["comparison"]["reward"]["n"] == 4 == len(found["questions"]) and found["comparison"]["unpaired"] == 0
    before, after = (found["attempts"][side] for side in found["sides"])
    assert len(before) == len(after) == 6 and all(len(state["attempts"]) == 2 for state in before)
    tries = [attempt for state in after for attempt in state["attempts"]]
    assert all(attempt["clues"] for attempt in tries if attempt["reward"] > -0.5)
    gain = fmean(row["rewards"][1] - row["rewards"][0] for row in found["questions"])
    assert found["comparison"]["reward"]["gain"] == pytest.approx(gain)
    assert found["audit"]["wrong"] > 0 and found["audit"]["gain"]["by_checker"] == pytest.approx(gain)


def test_one_side_alone_is_the_same_as_beside_the_other(gruppo: Command, trained: Path) -> None:
    both = assessing.evaluate(trained, ["baseline", 2], log=Log(Console(quiet=True)))
    for flags, side in ((["--baseline"], "baseline"), (["--checkpoint", "2"], "step 2")):
        ended = gruppo("search", "eval", str(trained), *flags, "--json")
        alone = json.loads(ended.out)
        assert list(alone["sides"]) == [side] and "comparison" not in alone and "attempts" not in alone
        assert alone["sides"][side]["reward"] == both["sides"][side]["reward"]
    assert "important rate" in gruppo("search", "eval", str(trained), "--baseline").out


def test_several_seeds_are_compared_over_questions_and_seeds(
    gruppo: Command, seeds: list[Path], tmp_path: Path
) -> None:
    words = ["search", "eval", *map(str, seeds), "--mode", "sampled", "--out", "details.json"]
    ended = gruppo(*words, "--team.search.wrong_labels", "0")
    assert ended.code == 0 and "2 seeds, 6 states of 4 questions, sampled" in ended.out and "gain by seed" in ended.out
    found = json.loads((tmp_path / "details.json").read_text())
    gain = found["comparison"]["reward"]
    assert [run["seed"] for run in found["runs"]] == [1, 2] and found["comparison"]["seeds"] == 2 and gain["n"] == 4
    for run, by_seed in zip(found["runs"], gain["by_seed"], strict=True):
        assert by_seed == pytest.approx(fmean(row["gain"] for row in run["questions"]))
        assert [len(states) for states in run["attempts"].values()] == [6, 6] and run["audit"]["wrong"] == 0
    assert gain["gain"] == pytest.approx(fmean(gain["by_seed"])) and len(gain["gain_ci95"]) == 2

    ended = gruppo("search", "eval", *map(str, seeds), "--checkpoint", "2", "--json")
    alone = json.loads(ended.out)
    assert [list(run["sides"]) for run in alone["runs"]] == [["step 2"]] * 2 and "comparison" not in alone
    assert "attempts" not in alone["runs"][0]
    lines = gruppo("search", "eval", *map(str, seeds), "--checkpoint", "2").out.splitlines()
    assert lines[1] == "by seed:" and lines[2].split() == ["1", "2"] and lines[3].startswith("reward ")


def test_runs_that_are_no_seeds_of_one_training_are_refused(gruppo: Command, seeds: list[Path], tmp_path: Path) -> None:
    one, other = seeds
    refused(gruppo("search", "eval", str(one), str(one)), "a second run with seed 1")
    refused(gruppo("search", "eval", str(one), "--tools.corpus", "world", str(other)), "unexpected argument")
    refused(gruppo("search", "eval", "--tools.corpus", "world", str(one)), "--tools.corpus: name the runs before")
    refused(gruppo("search", "eval", str(one), "nowhere"), "nowhere is not a run folder")
    odd, fewer = tmp_path / "odd", tmp_path / "fewer"
    shutil.copytree(other, odd)
    shutil.copytree(one.parent / "validation", fewer)
    shutil.rmtree(min(fewer.iterdir()))
    config = (odd / "config.toml").read_text()
    for old, new, said in [
        ("tasks_per_step = 2", "tasks_per_step = 1", "odd: has another train.tasks_per_step than"),
        ("num_test = 8", "num_test = 2", "odd: has another tasks.num_test than"),
        (f'"{one.parent}/validation"', f'"{fewer}"', "odd: is evaluated on other states than"),
    ]:
        assert old in config
        (odd / "config.toml").write_text(config.replace(old, new))
        refused(gruppo("search", "eval", str(one), str(odd)), said)
    (odd / "config.toml").write_text(config)
    weights = next(max((odd / "checkpoints").iterdir()).rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    ended = gruppo("search", "eval", str(one), str(odd))
    refused(ended, "odd")
    assert ended.err.count("\n") == 1, "before the first is played"
    shutil.rmtree(max((odd / "checkpoints").iterdir()))
    refused(gruppo("search", "eval", str(one), str(odd)), "another newest checkpoint")
    ended = gruppo("search", "eval", str(one), str(odd), "--checkpoint", "2")
    refused(ended, "odd has none of this step; it has 0")
    assert ended.err.count("\n") == 1, "before the first is played"


def test_true_labels_follow_the_copies_of_other_documents(gruppo: Command, trained: Path, tmp_path: Path) -> None:
    passages = world_of(0).passages
    rows = [{"id": prefix + id, "title": title, "text": text} for id, title, text in passages for prefix in ("", "!")]
    (tmp_path / "copies.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["--tools.corpus", "copies.jsonl", "--team.search.wrong_labels", "0"]
    found = json.loads(gruppo("search", "eval", str(trained), "--json", *words).out)
    assert found["audit"]["verdicts"] > 0 == found["audit"]["wrong"]
    assert found["audit"]["confusion"]["IMPORTANT"]["IMPORTANT"] > 0


def test_what_training_paid_for_is_audited(gruppo: Command, trained: Path) -> None:
    report = json.loads(gruppo("search", "audit", str(trained), "--json").out)
    assert report["states"] == 4 and report["unknown"] == 0 and 0 < report["wrong"] < report["verdicts"]
    assert all(case["said"] != case["true"] and case["reward"] > case["before"] for case in report["cases"])
    assert "verdicts are wrong" in gruppo("search", "audit", str(trained)).out


def test_the_trained_executor_plays_whole_searches(gruppo: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "whole.toml").write_text(WHOLE)
    ended = gruppo("search", "run", "-c", "whole.toml", "--out", "before")
    assert ended.code == 0 and "tokens of executor" in ended.out and "before/results.jsonl" in ended.err
    words = ["search", "run", "-c", "whole.toml", "--out", "after", "--start_from", str(trained), "--json"]
    found = json.loads(gruppo(*words).out)
    assert found["runs"] == 2 and found["labels"] == "truth" and found["tokens_by_role"]["executor"] > 0
    assert json.loads(gruppo(*words).out) == found, "played once"
    ended = gruppo("search", "compare", "--before", "before", "--after", "after")
    assert ended.code == 0 and "recall after SEARCH 1" in ended.out
    refused(gruppo("search", "run", "-c", "whole.toml", "--out", "after"), "another config")


def test_what_is_wrong_is_one_line(gruppo: Command, trained: Path, tmp_path: Path) -> None:
    refused(gruppo("search", "eval", "nowhere"), "is not a run folder")
    refused(gruppo("search", "eval", str(trained), "--checkpoint", "7", "--out", "new.json"), "it has 0, 2")
    assert not (tmp_path / "new.json").exists()
    refused(gruppo("search", "eval", str(trained), "--mode", "gready"), "did you mean greedy?")
    elsewhere = ["--tools.corpus", "world:test"]  # where nothing of the states' can be found
    refused(gruppo("search", "eval", str(trained), *elsewhere), "tools.corpus = 'world:test': has none of the ")
    refused(gruppo("search", "audit", "nowhere"), "is not a run folder")
    refused(gruppo("search", "compare", "--before", "a", "--after", "b"), "gruppo search run writes it")
    refused(gruppo("search", "run", "--out", "x", "--split", "test"), 'whole searches are played by "search"')
    refused(gruppo("search", "run", "-c", str(trained / "config.toml"), "--out", "x"), "search_from_state")
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    shutil.rmtree(other / "checkpoints")
    shutil.rmtree(other / "episodes")
    refused(gruppo("search", "eval", str(other)), "no checkpoint yet; --baseline")
    refused(gruppo("search", "audit", str(other)), "no training episodes yet")
    config = other / "config.toml"
    config.write_text(config.read_text().replace("search = 1.0", "exact = 1.0"))
    refused(gruppo("search", "audit", str(other)), '[rewards] has no "search"')
    config.write_text('[team]\nprogram = "solo"\n')
    refused(gruppo("search", "eval", str(other)), 'team.program = "solo"')
    refused(gruppo("search", "eval", str(trained), "--baseline", "--out", str(other / "config.toml" / "x")), "--out")
    ended = gruppo("search", "eval", str(trained), "--out", ".")
    assert ended.code == 2 and ended.err == "error: --out .: can't be written: Is a directory\n", "before it plays"
