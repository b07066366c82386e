"""The tasks that a reference means: a known data set, a generator of reasoning-gym, a file or a folder, or a mixture.

"gsm8k", "nq:train[:1000]", "gym:gsm_symbolic", "tasks.jsonl[10%:20%]", "folder:test". Where a known set's files are not
there and the user did not ask for a download, one line says what to put where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from gruppo.data.answer_text import normalised
from gruppo.data.base import TaskSet
from gruppo.data.files import numbered_rows, task_of
from gruppo.data.gym import gym_tasks
from gruppo.data.hub import fetch
from gruppo.data.mixing import mix
from gruppo.data.sources import SOURCES, find_files, rows_in, source_of, usual_split, where_to_put
from gruppo.data.splits import Reference, reference
from gruppo.data.tables import Row
from gruppo.errors import DataError
from gruppo.types import Task

GYM = "gym:"


@dataclass(frozen=True)
class Place:
    """Where known data sets are kept, and what may be done to have them. `columns` are those of the user's own files;
    `gym` are the settings of generators, by name."""

    folder: Path = Path("data")
    download: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    gym: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Reading:
    """A row that was read: its number in the file, from 1, and its task, or the fault with it (an error, or why the
    reader leaves such rows out)."""

    number: int
    task: Task | None = None
    fault: DataError | str | None = None


def tasks_of(text: str, place: Place, split: str = "", count: int | None = None) -> TaskSet:
    """The tasks that `text` means, at most `count`; `split` is "train", "validation" or "test" of a generator.

    Rows that a known set's reader leaves out (no public answer, a file needed) are skipped; a broken row is an error.
    Raises DataError.
    """
    if text.startswith(GYM):
        return _of_gym(text, place, split or "train", count)
    kept = (_sound(text, reading) for reading in readings(text, place))
    return TaskSet(islice((task for task in kept if task is not None), count), text)


def mixture(weights: Mapping[str, float], place: Place, split: str, count: int | None = None) -> TaskSet:
    """The tasks of several references, mixed by weight. A generator gives as many as are asked for."""
    sets = {text: tasks_of(text, place, split, count if text.startswith(GYM) else None) for text in weights}
    return mix(sets, weights, place.seed, count)


def readings_of(text: str, place: Place, count: int) -> Iterator[Reading]:
    """As `readings`, also of a generator: its first `count` training tasks."""
    if not text.startswith(GYM):
        return readings(text, place)
    return (Reading(number, task) for number, task in enumerate(tasks_of(text, place, "train", count), 1))


def readings(text: str, place: Place) -> Iterator[Reading]:
    """Every row that `text` means, read one after another, faults included. Raises DataError where no rows are."""
    meant = reference(text)
    if meant.place in SOURCES:
        return _of_source(meant, place)
    return _of_file(meant, place)


def files_of(meant: Reference, place: Place) -> list[Path]:
    """The files of a known set, fetched if that was asked for. Raises DataError that says what to put where."""
    split = meant.split or usual_split(meant.place)
    if place.download:
        return fetch(meant.place, split, place.folder)
    files = find_files(meant.place, split, place.folder)
    if not files and not meant.split:
        files = find_files(meant.place, "benchmark", place.folder)
    if not files:
        raise DataError(where_to_put(meant.place, split, place.folder))
    return files


def _of_source(meant: Reference, place: Place) -> Iterator[Reading]:
    source, files = source_of(meant.place), files_of(meant, place)
    seen: set[int] = set()
    for index, row in _chosen(meant, lambda: enumerate(rows_in(meant.place, files))):
        try:
            read = source.read(row, index)
        except DataError as error:
            yield Reading(index + 1, fault=error)
            continue
        if isinstance(read, Task) and source.repeats:
            key = hash(normalised(read.question))
            read = "a repetition" if key in seen else read
            seen.add(key)
        yield Reading(index + 1, read) if isinstance(read, Task) else Reading(index + 1, fault=read)


def _of_file(meant: Reference, place: Place) -> Iterator[Reading]:
    if not Path(meant.place).exists() and not Path(meant.place).suffix:
        source_of(meant.place)  # a name and no file: say which names there are
    for number, row in _chosen(meant, lambda: numbered_rows(meant.place, place.columns, meant.split)):
        try:
            yield Reading(number, task_of(f"{meant.place}: row {number}", number, row, place.columns))
        except DataError as error:
            yield Reading(number, fault=error)


def _chosen(meant: Reference, rows: Any) -> Iterator[tuple[int, Row]]:
    """The rows in the reference's range. They are counted first if that is needed to know which they are."""
    if meant.rows.is_all:
        yield from rows()
        return
    bounds = [bound for bound in (meant.rows.start, meant.rows.stop) if bound]
    is_counted = any(bound.is_percent or bound.number < 0 for bound in bounds)
    most = sum(1 for _ in rows()) if is_counted else max(bound.number for bound in bounds) if meant.rows.stop else 2**62
    wanted = meant.rows.rows(most)
    yield from islice(rows(), wanted.start, wanted.stop)


def _sound(text: str, reading: Reading) -> Task | None:
    if isinstance(reading.fault, DataError):
        message = str(reading.fault)
        raise DataError(message if ": row " in message else f"{text}: row {reading.number}: {message}")
    return reading.task


def _of_gym(text: str, place: Place, split: str, count: int | None) -> TaskSet:
    name, _, brackets = text.removeprefix(GYM).partition("[")
    if brackets:
        raise DataError(f"{text!r}: a generator has no end to count from; set how many tasks are taken instead")
    if count is None:
        raise DataError(f"{text!r}: a generator goes on for ever; say how many tasks are taken")
    return gym_tasks(name, split, count, place.seed, place.gym.get(name, {}))
