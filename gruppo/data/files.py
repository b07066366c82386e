"""Tasks from a file of the user's: JSON lines, JSON, CSV or Parquet.

The columns are `id, question, chain, result, source, extra_info`; only `question` and `result` are needed. Columns of
other names are kept in `extra_info`. Nothing is downloaded, and no row is repaired or left out.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from gruppo.config import missing_file, suggest
from gruppo.data.base import TaskSet
from gruppo.errors import DataError
from gruppo.types import Task

Row = dict[str, Any]

COLUMNS = tuple(field.name for field in fields(Task))


def read_tasks(path: str | Path, columns: Mapping[str, str] | None = None) -> TaskSet:
    """The tasks of a .jsonl, .json (a list of objects), .csv (with a header) or .parquet file, in its order.

    `columns` maps a column of ours to its name in the file, as in `{"result": "final_answer"}`. An `id` that is not
    given is the row number, counted from 1. A `result` may be text, a number or a list of them, joined by "; ".

    Raises:
        DataError: one line that names the file, the row, the column, and what is expected instead.
    """
    path, columns = Path(path), columns or {}
    for column in columns:
        if column not in COLUMNS:
            raise DataError(f"columns: {column!r} is not a column of a task{suggest(column, COLUMNS)}")
    if not path.is_file():
        raise DataError(f"{path}: a folder, not a file" if path.is_dir() else missing_file(path))
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise DataError(f"{path}: unknown kind of file {suffix!r}{suggest(suffix, _READERS)}")
    try:
        rows = _READERS[suffix](path)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8 text") from error
    return TaskSet(
        (_task(f"{path}: row {number}", number, row, columns) for number, row in enumerate(rows, 1)), str(path)
    )


def _read_jsonl(path: Path) -> list[Row]:
    lines = path.read_text(encoding="utf-8-sig").rstrip().split("\n")
    if lines == [""]:
        return []
    return [
        _object(f"{path}: row {number}", _json(f"{path}: row {number}", line)) for number, line in enumerate(lines, 1)
    ]


def _read_json(path: Path) -> list[Row]:
    rows = _json(str(path), path.read_text(encoding="utf-8-sig"))
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, not {type(rows).__name__}")
    return [_object(f"{path}: row {number}", row) for number, row in enumerate(rows, 1)]


def _read_csv(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
            if twice := {name for name in header if header.count(name) > 1}:
                raise DataError(f"{path}: column {min(twice)!r} is in the header twice")
            rows = [values for values in reader if values]
        except csv.Error as error:
            raise DataError(f"{path}: line {reader.line_num} is not CSV: {error}") from error
    for number, values in enumerate(rows, 1):
        if len(values) != len(header):
            raise DataError(f"{path}: row {number} has {len(values)} values for {len(header)} columns")
    return [dict(zip(header, values, strict=True)) for values in rows]


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a Parquet file: {' '.join(str(error).split())}") from error


_READERS = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}


def _json(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON: {error}") from error


def _object(place: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected an object with {', '.join(COLUMNS)}, not {_shown(value)}")
    return value


def _task(place: str, number: int, row: Row, columns: Mapping[str, str]) -> Task:
    named = {column: columns.get(column, column) for column in COLUMNS}
    for column, name in named.items():
        needed = column in ("question", "result") or column in columns
        if needed and name not in row:
            raise DataError(f"{place}: no column {name!r}{suggest(name, map(str, row))}")
    value = {column: row.get(name) for column, name in named.items()}
    where = {column: f"{place}: column {name!r}" for column, name in named.items()}
    others = {name: other for name, other in row.items() if name not in named.values()}
    identity = value["id"]
    return Task(
        id=str(number)
        if identity in (None, "")
        else _text(where["id"], str(identity) if _is_int(identity) else identity),
        question=_filled(where["question"], _text(where["question"], value["question"])),
        result=_filled(where["result"], _answers(where["result"], value["result"])),
        chain=_text(where["chain"], value["chain"]),
        source=_text(where["source"], value["source"]),
        extra_info=others | _extra(where["extra_info"], value["extra_info"]),
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(where: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: expected text, not {_shown(value)}")
    if value != value.encode("utf-8", "replace").decode():
        raise DataError(f"{where}: holds half a character (a lone surrogate), which no tokenizer takes")
    return value


def _filled(where: str, text: str) -> str:
    if not text.strip():
        raise DataError(f"{where} is empty; every task needs one")
    return text


def _answers(where: str, value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_filled(where, _answers(where, answer)) for answer in value)
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if is_number and value == value:  # NaN, which is how tables write "missing", is not
        return str(value)
    if value is None or isinstance(value, str):
        return _text(where, value)
    raise DataError(f"{where}: expected text, a number or a list of them, not {_shown(value)}")


def _extra(where: str, value: Any) -> Row:
    if value in (None, ""):
        return {}
    if isinstance(value, str):  # a table in one cell
        value = _json(where, value)
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
