"""`gruppo search check`: a line for each finding, and an exit code that tells whether there is a problem."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Command, Ended, refused
from kept_states import search_world

CONFIG = """
[model]
threads = 1
[policies.executor]
rank = 4
[roles.executor]
policy = "executor"
max_tokens = 14
temperature = 1.5
[team]
program = "search"
[team.search]
prompts = "compact"
checker = "truth"
[tools]
names = ["documents"]
corpus = "world:train"
[tasks.rounds]
min_clues_per_round = 1
[train]
attempts = 8
"""
DOWN = """
[engines.server]
base_url = "http://127.0.0.1:9/v1"
model = "m"
max_retries = 0
[roles.checker]
engine = "server"
"""


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The searches of eight questions, by rules."""
    folder = tmp_path_factory.mktemp("searches")
    search_world(folder, "train", 8, ["lookup", "lookup-lookup"])
    yield folder


def checked(gruppo: Command, searches: Path, *words: str, text: str = CONFIG) -> tuple[Ended, list[tuple[bool, str]]]:
    """The command in an empty folder, and its findings."""
    shutil.copytree(searches, "searches", dirs_exist_ok=True)
    Path("config.toml").write_text(text)
    before = sorted(str(path) for path in Path().rglob("*"))
    rounds = [] if "--rounds" in words else ["--rounds", "searches"]
    ended = gruppo("search", "check", "-c", "config.toml", *rounds, *words)
    assert sorted(str(path) for path in Path().rglob("*")) == before, "nothing is written"
    lines = ended.out.splitlines()
    assert all(line.split()[0] in ("ok", "problem") for line in lines), ended
    return ended, [(line.split()[0] == "ok", " ".join(line.split()[1:])) for line in lines]


def told(found: list[tuple[bool, str]], start: str) -> tuple[bool, str]:
    """The one finding that begins so."""
    (one,) = [each for each in found if each[1].startswith(start)]
    return one


def test_a_good_config_is_ok_line_by_line(gruppo: Command, searches: Path) -> None:
    ended, found = checked(gruppo, searches)
    assert ended.code == 0 and all(is_ok for is_ok, _ in found), ended
    assert "8 questions" in told(found, "searches: ")[1]
    assert "states to train on" in found[1][1] and told(found, "model tiny: ")[0]
    assert told(found, "policy executor: ")[1].endswith("parameters learn")
    assert "fit into" in told(found, "the executor's longest prompt has ")[1]
    attempts = [text for _, text in found if text.startswith("attempt ")]
    assert len(attempts) == 4 and all("reward" in text and "clues: " in text for text in attempts)
    assert "this group teaches" in told(found, "rewards from ")[1]
    again = json.loads(gruppo("search", "check", "-c", "config.toml", "--rounds", "searches", "--json").out)
    texts = [text for _, text in found]
    assert [row["text"] for row in again if row["text"].startswith("attempt ")] == attempts
    assert [row["ok"] for row in again] == [True] * len(texts)


def test_damaged_states_are_problems_and_the_rest_is_checked(gruppo: Command, searches: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(searches, tmp_path / "damaged")
    file = sorted(damaged.glob("*/run_1/round_000.json"))[0]
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    ended, found = checked(gruppo, searches, "--rounds", str(damaged))
    assert ended.code == 1 and not told(found, "skipped: ")[0] and told(found, "rewards from ")[0]
    assert [text for is_ok, text in found if not is_ok] == [told(found, "skipped: ")[1]]


def test_prompts_that_do_not_fit_are_counted(gruppo: Command, searches: Path) -> None:
    _, found = checked(gruppo, searches)
    context = int(told(found, "the executor's longest")[1].rpartition(" ")[2])
    ended, found = checked(gruppo, searches, "--roles.executor.max_tokens", str(context - 5))
    is_ok, text = told(found, "the executor's longest prompt has ")
    assert ended.code == 1 and not is_ok and "don't fit into" in text and "lower" in text
    assert "context_overflow" in told(found, "attempt 1: ")[1]


def test_a_corpus_that_the_states_are_not_of_is_a_problem(gruppo: Command, searches: Path, tmp_path: Path) -> None:
    ended, found = checked(gruppo, searches, "--tools.corpus", "world:test")
    assert ended.code == 1 and not found[-1][0] and "documents that the training states name" in found[-1][1]
    search_world(tmp_path / "held_out", "test", 2, ["lookup"])
    for stages in ("true", "false"):
        words = ("--evaluation", str(tmp_path / "held_out"), "--eval.stages", stages)
        is_ok, text = told(checked(gruppo, searches, *words)[1], "tools.corpus = 'world:train': has none of the ")
        assert is_ok == (stages == "false") and "the evaluation states name" in text and "gruppo search eval" in text


def test_a_checker_that_is_down_is_a_problem_of_each_attempt(gruppo: Command, searches: Path) -> None:
    ended, found = checked(gruppo, searches, text=CONFIG + DOWN)
    assert ended.code == 1 and "engine_failed" in told(found, "attempt 1: ")[1]
    assert told(found, "0 rewards, and no two differ") == (
        False,
        "0 rewards, and no two differ: this group teaches nothing",
    )


def test_one_reward_for_all_teaches_nothing(gruppo: Command, searches: Path) -> None:
    ended, found = checked(gruppo, searches, "--reward.search.important", "0.0", "--roles.executor.max_tokens", "1")
    assert ended.code == 1 and found[-1] == (False, "4 rewards, and no two differ: this group teaches nothing")


def test_what_was_checked_is_trained_merged_and_takes_its_seat(gruppo: Command, searches: Path) -> None:
    checked(gruppo, searches)
    small = ["--train.steps", "2", "--train.attempts", "4", "--eval.stages", "false", "--train.keep_last", "5"]
    small += ["--train.save_every", "1", "--train.tasks_per_step", "2"]
    assert gruppo("search", "train", "--rounds", "searches", "-c", "config.toml", "--out", "run", *small).code == 0
    merged = gruppo("search", "merge", "run", "--step", "2")
    assert merged.code == 0 and merged.out == "step 2: run/merged/tiny-grpo-step2\n"
    words = ["--engines.trained.folder", "run/merged/tiny-grpo-step2", "--roles.executor.engine", "trained"]
    words += ["--roles.executor.max_tokens", "14", "--team.search.prompts", "compact", "--json"]
    ended = gruppo("search", "What is the mayor of Tugrou?", "--corpus", "world:train", *words)
    found = json.loads(ended.out)
    assert found["outcome"] == "completed" and found["rounds"][1]["num_clues"] == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rounds", "nowhere"], "nowhere: no folder of searches"),
        (["--model.base", "nowhere"], "model.base = 'nowhere': no such folder"),
        (["--tasks.rounds.evaluation_share", "0.0"], "0 to evaluate on"),
        (["--roles.executor.trained", "false"], "no role is trained"),
        (["--sft.steps", "5"], "sft.steps = 5: kept states have no gold plan"),
        (["--reward.search.later", "1.0"], "only a replayed search has it"),
    ],
)
def test_what_is_wrong_is_a_line_and_exit_code_1(
    gruppo: Command, searches: Path, words: list[str], expected: str
) -> None:
    ended, found = checked(gruppo, searches, *words)
    assert ended.code == 1 and any(expected in text and not is_ok for is_ok, text in found), ended


def test_a_config_that_can_t_be_read_is_refused(gruppo: Command) -> None:
    refused(gruppo("search", "check", "-c", "nowhere.toml"), "nowhere.toml: no such file")
    refused(gruppo("search", "check", "--tasks.rond", "x"), "unknown key tasks.rond")
