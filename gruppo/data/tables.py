"""Rows of tables, one after another: JSON lines, JSON, CSV, Parquet, Arrow, and folders of them. And cells of a row.

Rows are given as they are read, so that a large file is never in memory as a whole (JSON, which is one value, is). What
a row means is not known here.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gruppo.config import missing_file, suggest
from gruppo.data.answer_text import is_nothing
from gruppo.errors import DataError

Row = dict[str, Any]
ROWS_AT_ONCE = 1000  # of Parquet


class MissingColumn(DataError):
    """A row without a column that it needs."""


class EmptyCell(DataError):
    """A row with nothing in a column that it needs."""


def rows_of(path: Path, columns: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a file in its order; of Parquet and Arrow only `columns`, if given, which saves reading the others.

    Raises DataError, one line, while reading: what is wrong, in which row (counted from 1).
    """
    if not path.is_file():
        raise DataError(f"{path}: a folder, not a file" if path.is_dir() else missing_file(path))
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise DataError(f"{path}: unknown kind of file {suffix!r}{suggest(suffix, _READERS)}")
    try:
        yield from _READERS[suffix](path, columns)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror or error}") from error


def files_in(folder: Path, split: str = "") -> list[Path]:
    """The files of one split of a folder: one that `datasets` saved, or one with a file (or more) per split.

    Without `split` that is the only one, or "train". Raises DataError that names the splits there are.
    """
    saved = folder / "dataset_dict.json"
    splits = _saved_splits(saved) if saved.is_file() else _file_splits(folder)
    if not split:
        split = "train" if "train" in splits or len(splits) != 1 else next(iter(splits))
    if not splits:
        raise DataError(f"{folder}: no {', '.join(_READERS)} in it, and no data set saved by `datasets`")
    if split not in splits:
        raise DataError(f"{folder}: no split {split!r}{suggest(split, splits)}")
    return splits[split]


def _saved_splits(path: Path) -> dict[str, list[Path]]:
    names = parsed(str(path), path.read_text(encoding="utf-8"))["splits"]
    return {name: saved_files(path.parent / name) for name in names}


def saved_files(folder: Path) -> list[Path]:
    """The files of a data set that `save_to_disk` wrote, in their order, as its state.json names them."""
    path = folder / "state.json"
    state = parsed(str(path), path.read_text(encoding="utf-8"))
    if state.get("_indices_data_files"):
        raise DataError(f"{folder}: saved with an index beside it; save it again after flatten_indices()")
    return [folder / entry["filename"] for entry in state["_data_files"]]


def _file_splits(folder: Path) -> dict[str, list[Path]]:
    """Split -> its files: the name before "-00000-of-…" says which split a file is of."""
    if (folder / "state.json").is_file():
        return {"train": saved_files(folder)}
    splits: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in _READERS and path.is_file() and path.name not in _NOT_DATA:
            splits.setdefault(path.name.split(".")[0].split("-0")[0], []).append(path)
    return splits


_NOT_DATA = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})


# ---- kinds of files --------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[str]:
    """The lines with their ends. UTF-8, a mark at the beginning left out."""
    offset = 0
    with path.open("rb") as file:
        for line in file:
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: byte {offset + error.start} is not UTF-8 text") from error
            yield text.removeprefix("\ufeff") if offset == 0 else text
            offset += len(line)


def _read_jsonl(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    blank = 0  # rows; at the end they are no rows
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            blank = blank or number
            continue
        number = blank or number
        yield _object(f"{path}: row {number}", parsed(f"{path}: row {number}", "" if blank else line))


def _read_json(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    rows = parsed(str(path), "".join(_lines(path)))
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, not {type(rows).__name__}")
    for number, row in enumerate(rows, 1):
        yield _object(f"{path}: row {number}", row)


def _read_csv(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    reader = csv.reader(_lines(path), strict=True)
    try:
        header = next(reader, [])
        if twice := {name for name in header if header.count(name) > 1}:
            raise DataError(f"{path}: column {min(twice)!r} is in the header twice")
        for number, values in enumerate((values for values in reader if values), 1):
            if len(values) != len(header):
                raise DataError(f"{path}: row {number} has {len(values)} values for {len(header)} columns")
            yield dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num} is not CSV: {error}") from error


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            wanted = [name for name in columns if name in file.schema_arrow.names] if columns else None
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=wanted):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a Parquet file: {' '.join(str(error).split())}") from error


def _read_arrow(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """As `datasets` saves: a stream of record batches."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as batches:
            for batch in batches:
                wanted = [name for name in columns if name in batch.schema.names]
                yield from (batch.select(wanted) if wanted else batch).to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not an Arrow file: {' '.join(str(error).split())}") from error


_READERS = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}


def parsed(place: str, text: str) -> Any:
    """The value of JSON text; `place` leads the message of the DataError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON: {error}") from error


def _object(place: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected an object with named columns, not {shown(value)}")
    return value


# ---- cells -----------------------------------------------------------------------------------------------------------


def first_of(row: Mapping[str, Any], names: Sequence[str], needed: bool = True) -> Any:
    """The first of these columns that holds something, else None.

    Raises MissingColumn if one is needed and the row has none of them.
    """
    for name in names:
        if name in row and not is_nothing(row[name]):
            return row[name]
    if needed and not any(name in row for name in names):
        raise MissingColumn(f"no column {names[0]!r}{suggest(names[0], map(str, row))}")
    return None


def text_in(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """The text of the first of these columns that holds something, without blanks around it.

    Raises MissingColumn, EmptyCell, or DataError for what is no text.
    """
    value = first_of(row, names)
    name = next(name for name in names if name in row)
    if value is None:
        raise EmptyCell(f"column {name!r} is empty; every task needs one")
    return text_of(f"column {name!r}", value).strip()


def text_of(where: str, value: Any) -> str:
    """A text as it is, None as ""; raises DataError for anything else, and for text that is not valid Unicode."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: expected text, not {shown(value)}")
    if not value.isascii() and value != value.encode("utf-8", "replace").decode():
        raise DataError(f"{where}: holds half a character (a lone surrogate), which no tokenizer takes")
    return value


def shown(value: Any) -> str:
    """A value in a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
