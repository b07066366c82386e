"""Tasks from a file or a folder of the user's: JSON lines, JSON, CSV, Parquet, or what `datasets` saved.

The columns are `id, question, chain, result, source, extra_info`; only `question` and `result` are needed. Columns of
other names are kept in `extra_info`. Nothing is downloaded, and no row is repaired or left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from gruppo.config import missing_file, suggest
from gruppo.data.answer_text import SEPARATOR, number_text
from gruppo.data.base import TaskSet
from gruppo.data.tables import EmptyCell, MissingColumn, Row, files_in, parsed, rows_of, shown, text_of
from gruppo.errors import DataError
from gruppo.types import Task

COLUMNS = tuple(field.name for field in fields(Task))


def read_tasks(path: str | Path, columns: Mapping[str, str] | None = None, split: str = "") -> TaskSet:
    """The tasks of a .jsonl, .json (a list of objects), .csv (with a header) or .parquet file, in its order.

    Or those of a folder: a data set that `datasets` saved, or files named after their split. `columns` maps a column of
    ours to its name in the file, as in `{"result": "final_answer"}`. An `id` that is not given is the row number,
    counted from 1. A `result` may be text, a number or a list of them, joined by "; ".

    Raises:
        DataError: one line that names the file, the row, the column, and what is expected instead.
    """
    columns = columns or {}
    return TaskSet(
        (task_of(f"{path}: row {number}", number, row, columns) for number, row in numbered_rows(path, columns, split)),
        str(path),
    )


def numbered_rows(
    path: str | Path, columns: Mapping[str, str] | None = None, split: str = ""
) -> Iterator[tuple[int, Row]]:
    """The rows of a file or of a split of a folder, counted from 1. Raises DataError as `read_tasks` does."""
    path = Path(path)
    for column in columns or {}:
        if column not in COLUMNS:
            raise DataError(f"columns: {column!r} is not a column of a task{suggest(column, COLUMNS)}")
    if not path.exists():
        raise DataError(missing_file(path))
    if split and not path.is_dir():
        raise DataError(f"{path}: a file has no split {split!r}; leave it out, as in {path}[:100]")
    files = files_in(path, split) if path.is_dir() else [path]
    return enumerate((row for file in files for row in rows_of(file)), 1)


def task_of(place: str, number: int, row: Row, columns: Mapping[str, str]) -> Task:
    """The task of a row; `place` leads every message."""
    named = {column: columns.get(column, column) for column in COLUMNS}
    for column, name in named.items():
        needed = column in ("question", "result") or column in columns
        if needed and name not in row:
            raise MissingColumn(f"{place}: no column {name!r}{suggest(name, map(str, row))}")
    value = {column: row.get(name) for column, name in named.items()}
    where = {column: f"{place}: column {name!r}" for column, name in named.items()}
    others = {name: other for name, other in row.items() if name not in named.values()}
    identity = value["id"]
    return Task(
        id=str(number)
        if identity in (None, "")
        else text_of(where["id"], str(identity) if _is_int(identity) else identity),
        question=_filled(where["question"], text_of(where["question"], value["question"])),
        result=_filled(where["result"], _answers(where["result"], value["result"])),
        chain=text_of(where["chain"], value["chain"]),
        source=text_of(where["source"], value["source"]),
        extra_info=others | _extra(where["extra_info"], value["extra_info"]),
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _filled(where: str, text: str) -> str:
    if not text.strip():
        raise EmptyCell(f"{where} is empty; every task needs one")
    return text


def _answers(where: str, value: Any) -> str:
    if isinstance(value, list):
        return SEPARATOR.join(_filled(where, _answers(where, answer)) for answer in value)
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if is_number and value - value == 0:  # not NaN, which is how tables write "missing", and not infinite
        return number_text(value)
    if value is None or isinstance(value, str):
        return text_of(where, value)
    raise DataError(f"{where}: expected text, a number or a list of them, not {shown(value)}")


def _extra(where: str, value: Any) -> Row:
    if value in (None, ""):
        return {}
    if isinstance(value, str):  # a table in one cell
        value = parsed(where, value)
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, not {shown(value)}")
    return value
