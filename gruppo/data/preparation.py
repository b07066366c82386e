"""From published data sets to one training file: unified columns, concatenated, shuffled, numbered, with counts.

Rows are read one after another, without the columns that are not needed; what is held in memory are the unified
columns, as Arrow. These are the columns of AgentFlow's files (arXiv 2510.05592): id (0 to N-1), question, chain,
result, source, extra_info {ground_truth, idx}, idx being the row in the set it is from. The order is that of
`datasets.Dataset.shuffle(seed)`, numpy's PCG64 permutation: the same seed gives the same file on every machine.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gruppo.data.answer_text import normalised
from gruppo.data.selection import Place, Reading, files_of, readings
from gruppo.data.sources import SOURCES, Source
from gruppo.data.splits import Reference, reference
from gruppo.errors import DataError
from gruppo.types import Task

if TYPE_CHECKING:
    import pyarrow

TRAINING_FILE = Path("train", "combined_train.parquet")
VALIDATION_FILE = Path("val", "{name}.parquet")
ROWS_AT_ONCE = 5000
Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """What was written: the file, its rows, how many of each source, and the SHA-256 of the rows."""

    path: Path
    num_rows: int
    by_source: dict[str, int]
    fingerprint: str


def prepare(
    sources: Sequence[str], out: Path, place: Place, say: Say, validation: str = "", unique: bool = False
) -> list[Prepared]:
    """Write the training file of `sources`, in their order before the shuffle, and the validation file if one is named.

    `say` gets a line with a count after every stage. `unique` leaves out a question that came up before. Rows that a
    reader leaves out, and broken ones, are counted by reason, not written. Raises DataError where files are not there,
    before anything is read, and where a source gives no rows.
    """
    if not sources:
        raise DataError(f"nothing to prepare: name data sets, of {', '.join(SOURCES)}, or files")
    for text in [*sources, *([validation] if validation else [])]:
        _check_there(reference(text), place)
    written = [_written(sources, out / TRAINING_FILE, place, say, unique)]
    if validation:
        name = reference(validation).place
        path = out / str(VALIDATION_FILE).format(name=name if name in SOURCES else Path(name).stem)
        written.append(_written([validation], path, place, say, False))
    return written


def _check_there(meant: Reference, place: Place) -> None:
    if meant.place in SOURCES:
        files_of(meant, place)
    else:
        next(readings(meant.place, place), None)


def _written(sources: Sequence[str], path: Path, place: Place, say: Say, unique: bool) -> Prepared:
    import pyarrow

    tables = []
    seen: set[bytes] | None = set() if unique else None
    for text in sources:
        counts: Counter[str] = Counter()
        batches = list(_batches(_kept(readings(text, place), counts, seen)))
        table = pyarrow.Table.from_batches(batches) if batches else None
        left_out = "".join(f", {count:,} left out ({reason})" for reason, count in sorted(counts.items()))
        num_rows = table.num_rows if table else 0
        say(f"{text}: {num_rows:,} rows{left_out}{_expected(reference(text), num_rows + sum(counts.values()))}")
        if table is None:
            raise DataError(f"{text}: not one sound row{left_out}")
        tables.append(table)
    combined = pyarrow.concat_tables(tables, promote_options="permissive")
    del tables
    say(f"concatenated: {combined.num_rows:,} rows")
    shuffled = combined.take(pyarrow.array(order(combined.num_rows, place.seed)))
    del combined
    say(f"shuffled (seed {place.seed}): {shuffled.num_rows:,} rows")
    ids = pyarrow.array(range(shuffled.num_rows), pyarrow.int64())
    numbered = shuffled.add_column(0, "id", ids)
    say(f"numbered: ids 0 to {numbered.num_rows - 1:,}")
    fingerprint = _write(numbered, path)
    by_source = Counter(numbered["source"].to_pylist())
    say(f"written: {path}, {numbered.num_rows:,} rows ({_shares(by_source)}), rows' sha256 {fingerprint[:16]}")
    return Prepared(path, numbered.num_rows, dict(by_source), fingerprint)


def _kept(rows: Iterable[Reading], counts: Counter[str], seen: set[bytes] | None) -> Iterator[Task]:
    """The tasks of sound rows; `counts` gets the reasons of the others."""
    for reading in rows:
        if reading.task is None:
            counts[_reason(reading)] += 1
            continue
        if seen is not None:
            key = hashlib.blake2b(normalised(reading.task.question).encode(), digest_size=16).digest()
            if key in seen:
                counts["a question that came up before"] += 1
                continue
            seen.add(key)
        yield reading.task


def _reason(reading: Reading) -> str:
    """Why a row is left out, without the row's own place, so that reasons can be counted."""
    return str(reading.fault).rpartition(f"row {reading.number}: ")[2]


def _batches(tasks: Iterable[Task]) -> Iterator[pyarrow.RecordBatch]:
    """The unified columns of tasks, so many rows at a time."""
    rows: list[dict[str, Any]] = []
    for task in tasks:
        rows.append(_unified(task))
        if len(rows) == ROWS_AT_ONCE:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _unified(task: Task) -> dict[str, Any]:
    extra = {"ground_truth": task.result, "idx": task.extra_info.get("idx")}
    for name in ("original_problem", "choices"):
        if name in task.extra_info:
            extra[name] = task.extra_info[name]
    return {
        "question": task.question,
        "chain": task.chain,
        "result": task.result,
        "source": task.source,
        "extra_info": extra,
    }


def _batch(rows: list[dict[str, Any]]) -> pyarrow.RecordBatch:
    import pyarrow

    text = pyarrow.string()
    extra = [("ground_truth", text), ("idx", pyarrow.int64())]
    extra += [("original_problem", text)] if any("original_problem" in row["extra_info"] for row in rows) else []
    extra += [("choices", pyarrow.list_(text))] if any("choices" in row["extra_info"] for row in rows) else []
    fields = [("question", text), ("chain", text), ("result", text), ("source", text)]
    return pyarrow.RecordBatch.from_pylist(rows, pyarrow.schema([*fields, ("extra_info", pyarrow.struct(extra))]))


def order(num_rows: int, seed: int) -> list[int]:
    """The row that stands at each place after the shuffle; the order of `datasets.Dataset.shuffle(seed)`."""
    import numpy  # transformers brings it along

    return [int(row) for row in numpy.random.default_rng(seed).permutation(num_rows)]


def _write(table: pyarrow.Table, path: Path) -> str:
    """Write all of a table or nothing; the SHA-256 of its rows."""
    from pyarrow import parquet

    unfinished = path.with_suffix(".unfinished")
    digest = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with parquet.ParquetWriter(unfinished, table.schema, compression="zstd") as writer:
            for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
                writer.write_batch(batch, row_group_size=ROWS_AT_ONCE)
                for row in batch.to_pylist():
                    digest.update(repr(list(row.values())).encode())
        os.replace(unfinished, path)
    except OSError as error:
        raise DataError(f"{path}: can't be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return digest.hexdigest()


def _expected(meant: Reference, num_rows: int) -> str:
    """What to say where a whole split has not as many rows as were published."""
    source: Source | None = SOURCES.get(meant.place)
    if source is None or not meant.rows.is_all:
        return ""
    published = source.num_rows.get(meant.split or next(iter(source.files)))
    return f"; {published:,} were published" if published not in (None, num_rows) else ""


def _shares(by_source: Counter[str]) -> str:
    return ", ".join(f"{name or 'no source'} {count:,}" for name, count in sorted(by_source.items()))
