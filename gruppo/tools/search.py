"""Full-text search over a folder or file of documents: BM25 by SQLite's FTS5, no server and no network.

It ranks passages as they are given; it does not split documents, stem words or learn.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gruppo.errors import DataError

MAX_TERMS = 256  # of a query, the first distinct ones


@dataclass(frozen=True)
class Passage:
    """One searchable piece of text; the id is unique within its index."""

    id: str
    title: str
    text: str


class BM25Index:
    """Passages ranked by BM25 over title and text, words compared without case and accents.

    In memory, or kept in the file `path` (replaced as a whole once it is complete). Raises DataError for a repeated id.
    """

    def __init__(self, passages: Iterable[Passage], path: str | Path | None = None) -> None:
        building = f"{path}.building" if path else ":memory:"
        if path:
            Path(building).unlink(missing_ok=True)
        self._database = sqlite3.connect(building)
        tokens = "tokenize='unicode61 remove_diacritics 2'"
        with self._database:
            self._database.execute(f"CREATE VIRTUAL TABLE passages USING fts5(id UNINDEXED, title, text, {tokens})")
            self._database.executemany("INSERT INTO passages VALUES (?, ?, ?)", rows(passages))
        if path:
            self._database.close()
            os.replace(building, path)
            self._database = sqlite3.connect(path)
        self._remember()

    @classmethod
    def open(cls, path: str | Path) -> BM25Index:
        """An index that was built into a file. Raises DataError if there is none."""
        index = cls.__new__(cls)
        try:
            index._database = sqlite3.connect(f"file:{Path(path).resolve().as_posix()}?mode=ro", uri=True)
            index._database.execute("SELECT id FROM passages LIMIT 1")
        except sqlite3.Error as error:
            raise DataError(f"{path}: not a search index ({error})") from error
        index._remember()
        return index

    @classmethod
    def from_folder(cls, folder: str | Path, path: str | Path | None = None) -> BM25Index:
        """One passage per .txt or .md file below the folder: its relative path, name and content."""
        files = sorted(file for file in Path(folder).rglob("*") if file.suffix in (".txt", ".md") and file.is_file())
        if not files:
            raise DataError(f"{folder}: no .txt or .md file to search in")
        return cls((read_file(file, Path(folder)) for file in files), path)

    @classmethod
    def from_jsonl(cls, file: str | Path, path: str | Path | None = None) -> BM25Index:
        """One passage per line, an object with the strings `id`, `title` and `text`."""
        return cls(read_jsonl(Path(file)), path)

    def __len__(self) -> int:
        return self._database.execute("SELECT count(*) FROM passages").fetchone()[0]

    def search(self, query: str, k: int = 1) -> list[Passage]:
        """The `k` best passages that hold any word of the query, best first, equals in the order of their ids."""
        return [passage for passage, _ in self.scored(query, k)]

    def scored(self, query: str, k: int = 1) -> list[tuple[Passage, float]]:
        """As `search`, each with its BM25 score, which is above 0."""
        words = terms(query)
        return list(self._best(tuple(words), k)) if words and k >= 1 else []

    def titled(self, title: str) -> list[Passage]:
        """All passages of that very title, in the order of their ids."""
        words = " ".join(f'"{word}"' for word in terms(title))
        clause, values = ("passages MATCH ? AND ", (f"title : ({words})",)) if words else ("", ())
        found = self._database.execute(
            f"SELECT id, title, text FROM passages WHERE {clause}title = ? ORDER BY id", (*values, title)
        )
        return [Passage(*row) for row in found]

    def _remember(self) -> None:
        # The index never changes, and the attempts of a group ask the same things: a repeated search costs nothing.
        self._best = lru_cache(maxsize=65_536)(self._rank)

    def _rank(self, words: tuple[str, ...], k: int) -> tuple[tuple[Passage, float], ...]:
        found = self._database.execute(
            "SELECT id, title, text, -bm25(passages) FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), id"
            " LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), k),
        )
        return tuple((Passage(*row[:3]), row[3]) for row in found)

    def close(self) -> None:
        self._database.close()


def terms(query: str) -> list[str]:
    """The distinct words of any string, in lower case: letters and digits only, so nothing of FTS5's syntax is left."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFC", query).lower())
    return list(dict.fromkeys(words))[:MAX_TERMS]


def rows(passages: Iterable[Passage]) -> Iterator[tuple[str, str, str]]:
    seen: set[str] = set()
    for passage in passages:
        if passage.id in seen:
            raise DataError(f"passage id {passage.id!r} is not unique")
        seen.add(passage.id)
        yield passage.id, passage.title, passage.text


def read_file(file: Path, folder: Path) -> Passage:
    try:
        return Passage(file.relative_to(folder).as_posix(), file.stem, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from error


def read_jsonl(file: Path) -> Iterator[Passage]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{file}:{number}: not JSON ({error})") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("id", "title", "text")):
            raise DataError(
                f"{file}:{number}: expected an object with the strings id, title and text, not {line[:200]}"
            )
        yield Passage(row["id"], row["title"], row["text"])
