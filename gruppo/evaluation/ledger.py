"""A ledger: results as lines of JSON, each on disk before the next is waited for, from which a killed call goes on.

Its first line is the header: the schema, and what else the results depend on. The others are dataclasses of one kind,
and of those with the same key the last counts. What they mean, and what is left to do, is not its part.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pydantic

from gruppo.errors import StoreError
from gruppo.search_state import first_fault

Header = Mapping[str, Any]
_MAX_SHOWN = 30


class Line(Protocol):
    """A result: a dataclass that JSON can hold."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def key(self) -> Hashable:
        """Tells it from the others of a ledger."""


SomeLine = TypeVar("SomeLine", bound=Line)


@dataclass(frozen=True)
class Ledger(Generic[SomeLine]):
    """What is in a file that this process writes; made by `open_ledger`."""

    lines: dict[Any, SomeLine]
    """The last of each key."""
    _file: FileIO

    def append(self, line: SomeLine) -> None:
        """Add a result, which is on disk when this returns. Half a surrogate pair, which no file can hold, becomes "?".

        Raises StoreError for a full disk."""
        _write(self._file, asdict(line))
        self.lines[line.key] = line


@contextmanager
def open_ledger(path: Path, header: Header, kind: type[SomeLine]) -> Iterator[Ledger[SomeLine]]:
    """The ledger in `path`, begun if there is none and locked; what a kill left of its last line is cut away.

    Raises StoreError, and leaves the file as it is, if that has another header or a broken line, if another process
    writes it, or if it can't be written.
    """
    header = json.loads(_encoded(header))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = FileIO(path, "a+")  # without a buffer, which would be written once more when a full disk has refused it
    except OSError as error:
        raise StoreError(f"{path}: can't be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"{path}: another process writes it; wait for it, or give another --out") from None
        file.seek(0)
        content = file.readall()
        is_new = b"\n" not in content and _encoded(header).startswith(content)
        own, lines = (header, {}) if is_new else _parse(path, content, header["schema"], kind)
        if odd := [key for key in {**header, **own} if own.get(key) != header.get(key)]:
            there, here = (_brief(each.get(odd[0])) for each in (own, header))
            raise StoreError(f"{path}: holds results with another {odd[0]}: {there}, not {here}; give another --out")
        file.truncate(content.rfind(b"\n") + 1)
        if is_new:
            _write(file, header)
        yield Ledger(lines, file)


def read_ledger(path: Path, schema: str, kind: type[SomeLine]) -> tuple[Header, dict[Any, SomeLine]]:
    """A ledger's header and the last of its lines of each key, while another process may write it; half a line at its
    end is left out. Raises StoreError for a missing file, one of another schema, or a broken line."""
    try:
        return _parse(path, path.read_bytes(), schema, kind)
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror}") from None


def _parse(path: Path, content: bytes, schema: str, kind: type[SomeLine]) -> tuple[Header, dict[Any, SomeLine]]:
    first, *others = content.split(b"\n")[:-1] or [b""]
    try:
        header = json.loads(first)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("schema") != schema:
        raise StoreError(f"{path}: its first line is no header of {schema}")
    adapter, lines = pydantic.TypeAdapter(kind), {}
    for number, text in enumerate(others, 2):
        try:
            line = adapter.validate_json(text, strict=True)
        except pydantic.ValidationError as error:
            what = f"line {number}: {first_fault(error)}"
            raise StoreError(f"{path}: {what}; remove it, and its result is made again") from None
        lines[line.key] = line
    return header, lines


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _write(file: FileIO, value: object) -> None:
    left = _encoded(value)
    try:
        while left:
            left = left[file.write(left) :]
        os.fsync(file)
    except OSError as error:
        raise StoreError(f"{file.name}: can't be written: {error.strerror}; the same command goes on later") from None


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
