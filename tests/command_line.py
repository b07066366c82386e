"""The command line as the tests call it: in this process, so that torch is imported once for all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from one_layer import one_layer

from gruppo.cli import QUICKSTART, main
from gruppo.store import Run
from gruppo.types import Group

SMALL = {
    "model.threads": "1",
    "tasks.num_train": "10",
    "tasks.num_validation": "2",
    "tasks.num_test": "2",
    "train.steps": "1",
    "train.tasks_per_step": "2",
    "train.attempts": "2",
    "sft.steps": "0",
    "eval.stages": "false",
}


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The last line on standard error: progress may stand above it."""
        return self.err.rstrip("\n").rpartition("\n")[2]


Command = Callable[..., Ended]


@pytest.fixture
def gruppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Call the command line with words, in an empty folder."""
    import torch  # slow, and conftest.py imports this file also where tests are only handed out

    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def call(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["gruppo", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, captured.err)

    yield call
    torch.set_num_threads(threads)


def training(out: str = "run", **changes: str) -> list[str]:
    """The words that train the smallest quickstart; `changes` are keys with "__" for the dots."""
    keys = SMALL | {"model.base": one_layer()} | {key.replace("__", "."): value for key, value in changes.items()}
    flags = [word for key, value in keys.items() for word in (f"--{key}", value)]
    return ["train", "--config", str(QUICKSTART), "--out", out, *flags]


def refused(ended: Ended, expected: str) -> None:
    """One line that says `expected`, exit code 2, nothing on standard output."""
    assert ended.code == 2 and ended.line.startswith("error: "), ended
    assert expected in ended.line, ended.line
    assert "Traceback" not in ended.err and not ended.out


def groups_of(out: Path | str, name: str = "grpo-000001") -> list[Group]:
    return Run.open(out).read_episodes(name)
