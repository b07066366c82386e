"""`gruppo data list | show | prepare | check`, and the keys of [tasks] that name data sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Ended
from test_data_prepare import write_sets
from test_data_sets import put

from gruppo.config import load
from gruppo.errors import ConfigError, DataError
from gruppo.run import RunConfig, make_tasks

Command = Callable[..., Ended]


def test_prepare_and_list(gruppo: Command, tmp_path: Path) -> None:
    write_sets(tmp_path)
    ended = gruppo("data", "prepare", "nq", "deepmath", "--out", str(tmp_path / "out"), "--folder", str(tmp_path))
    assert ended.code == 0 and "concatenated: 11 rows" in ended.out and "aime24.parquet, 3 rows" in ended.out
    assert (tmp_path / "out" / "val" / "aime24.parquet").is_file()
    ended = gruppo("data", "prepare", "gsm8k", "--folder", str(tmp_path))
    assert ended.code == 2 and ended.line.startswith(
        f"error: gsm8k: no {tmp_path}/gsm8k/main/train-*.parquet; put the file"
    )
    ended = gruppo("data", "list", "--folder", str(tmp_path))
    assert ended.code == 0 and "gsm8k" in ended.out and "79,168" in ended.out


def test_show(gruppo: Command, tmp_path: Path) -> None:
    own = str(put(tmp_path / "own.jsonl", [{"question": "q", "result": "r", "chain": "c"}] * 1))
    keys = {"task": "id", "sft": "completion", "rl": "ground_truth"}
    for view, key in keys.items():
        ended = gruppo("data", "show", own, "--view", view)
        assert ended.code == 0 and key in json.loads(ended.out)
    assert gruppo("data", "show", own, "--view", "dpo").code == 2


def test_check(gruppo: Command, tmp_path: Path) -> None:
    own = str(put(tmp_path / "own.jsonl", [{"problem": "What is it?", "result": "1"}] * 2))
    mapped = ["data", "check", own, "--columns.question", "problem"]
    assert gruppo(*mapped).code == 0
    ended = gruppo(*mapped, "--limits.duplicate", "0", "--model", "tiny", "--context", "3", "--limits.too_long", "1")
    assert ended.code == 1
    assert ended.line == ("failed: duplicate: 1, at most 0 were accepted; too_long: 2, at most 1 were accepted")
    ended = gruppo(*mapped, "--json", "--against", own, "--limits.duplicates", "0")
    assert ended.code == 2 and "did you mean limits.duplicate?" in ended.line
    none = gruppo("data", "check", f"{own}[5:2]", *mapped[3:], "--limits.duplicate", "0")
    assert none.code == 2 and none.line == f"error: {own}[5:2]: no rows to look at"
    ended = gruppo(*mapped, "--json")
    assert json.loads(ended.out)["counts"]["duplicate"] == 1


def test_tasks_of_a_run(tmp_path: Path) -> None:
    write_sets(tmp_path)
    own = str(put(tmp_path / "own.jsonl", [{"question": f"q{n}", "result": n} for n in range(9)]))
    folder = {"tasks.folder": str(tmp_path)}

    def tasks(**given: str) -> list[str]:
        keys = {f"tasks.{key.replace('__', '.')}": value for key, value in given.items()}
        return [task.question for task in make_tasks(load(RunConfig, [], folder | keys), "train")]

    assert tasks(train="nq:train[:2]") == ["who 0?", "who 1?"] and len(tasks(train=own, num_train="4")) == 4
    assert len(tasks(train="mix", mix=json.dumps({}).replace("{}", f'{{"{own}" = 1.0, "deepmath" = 1.0}}'))) == 10
    with pytest.raises(DataError, match="gsm8k: no .*put the file"):
        tasks(train="gsm8k")
    for given, expected in [
        ({"train": "mix"}, "which is empty"), ({"mix": '{"nq" = 1.0}'}, "nothing takes it"),
        ({"gym": "{lcm = {min_value = 2}}"}, "tasks.gym.lcm: no tasks are taken from it"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=expected):
            tasks(**given)
