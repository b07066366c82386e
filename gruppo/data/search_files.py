"""The folders of deep searches: `{question}/run_{n}/meta.json`, and `round_000.json` and so on, one file per round.

A file has its name only when it is whole. What is in one is `search_state.py`'s part; which rounds are worth training
on, `rounds.py`'s.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gruppo.errors import StoreError
from gruppo.search_state import Checkpoint, Meta, Round, RoundEntry, State, to_json

META = "meta.json"
_RUN = "run_"
_MAX_NAME_BYTES = 80


def folder_name(question: str) -> str:
    """A folder name for any text: its letters and digits, as far as they fit, and a digest that tells it from others.

    At most 97 bytes; no separator, no leading dot, nothing that a file system or a shell reads as something else.
    """
    head = "".join(letter if letter.isalnum() else " " for letter in question[: 2 * _MAX_NAME_BYTES])
    head = "-".join(head.split()).encode("utf-8", "ignore")[:_MAX_NAME_BYTES].decode("utf-8", "ignore").rstrip("-")
    digest = hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{head}-{digest}" if head else digest


def run_folders(folder: Path) -> list[Path]:
    """The runs of a question's folder, in the order of their numbers."""
    runs = [path for path in folder.glob(f"{_RUN}*") if path.name.removeprefix(_RUN).isdecimal() and path.is_dir()]
    return sorted(runs, key=lambda path: int(path.name.removeprefix(_RUN)))


class RunFiles:
    """The folder of one run, written as it is played: after a kill it holds the rounds up to then."""

    def __init__(self, folder: Path, meta: Meta) -> None:
        self.folder, self._meta = folder, meta

    @classmethod
    def create(cls, root: Path, meta: Meta) -> RunFiles:
        """The next run of the question of `meta`, whoever else begins one at the same moment; it gets the number that
        is free. Raises StoreError."""
        parent = root / folder_name(meta.question)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            number = _take_number(parent)
        except OSError as error:
            raise StoreError(f"{parent}: can't be written to: {error.strerror}") from None
        files = cls(parent / f"{_RUN}{number}", replace(meta, run=number))
        files._write_meta()
        return files

    def write(self, round_: Round, state: State) -> None:
        """A round and the state after it."""
        name = f"round_{round_.number:03d}.json"
        self._write(name, to_json(Checkpoint(round_, state)))
        entry = RoundEntry(round_.number, round_.strategy, name, len(round_.clues))
        self._meta = replace(self._meta, rounds=(*self._meta.rounds, entry))
        self._write_meta()

    def end(self, outcome: str, answer: str | None = None, error: str = "") -> None:
        """How the run ended."""
        self._meta = replace(self._meta, outcome=outcome, answer=answer, error=error)
        self._write_meta()

    def _write_meta(self) -> None:
        self._write(META, to_json(self._meta))

    def _write(self, name: str, text: str) -> None:
        temporary = self.folder / f".{name}.writing"
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self.folder / name)
        except OSError as error:
            raise StoreError(f"{self.folder / name}: can't be written: {error.strerror}") from None


def _take_number(parent: Path) -> int:
    """The folder of the next number is this run's: making it is what takes it."""
    taken = run_folders(parent)
    first = int(taken[-1].name.removeprefix(_RUN)) + 1 if taken else 1
    return next(number for number in itertools.count(first) if _made(parent / f"{_RUN}{number}"))


def _made(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def question_folders(root: Path) -> Iterator[Path]:
    """The folders below `root` that may be those of questions, in the order of their names."""
    yield from sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
