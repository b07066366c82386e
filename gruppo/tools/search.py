"""Full-text search over a folder or file of documents: BM25 by SQLite's FTS5, no server and no network.

It ranks passages as they are given; it does not split documents, stem words or learn. SQLite itself maps the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from gruppo.errors import DataError
from gruppo.tools.bigrams import asked, indexed, is_character

MAX_TERMS = 256  # of a query, the first distinct ones
MAX_RESULTS = 10_000
LARGE, COMMON = 10_000, 0.05  # passages from which on words in more than this share of them are common
MAPPED_BYTES = 2**31 - 2**16  # SQLite's own limit; what is beyond it is read
VERSION = 4  # of the file
SEAL_BYTES, BLOCK_BYTES, NUM_BLOCKS = 32, 4096, 256  # of a file's seal, and how much of the file it is made of


@dataclass(frozen=True)
class Passage:
    """One searchable piece of text; the id is unique within its index."""

    id: str
    title: str
    text: str


class BM25Index:
    """Passages ranked by BM25 over title and text, words compared without case and accents, Chinese by bigrams.

    In memory, or kept in the file `path` (replaced as a whole once it is complete) and read from it memory-mapped. In a
    large index, a query's common words are left out while it has others. Raises DataError for a repeated id.
    """

    def __init__(self, passages: Iterable[Passage], path: str | Path | None = None) -> None:
        building = f"{path}.building-{os.getpid()}" if path else ":memory:"
        try:
            self._database = sqlite3.connect(building)
            if not path:
                self._database.execute("PRAGMA temp_store = MEMORY")  # sorting, too: no disk is needed that may be full
            build(self._database, passages)
            if path:
                self._database.close()
                seal(building, Path(path).stem)
                os.replace(building, path)
                self._database = mapped(path)
        except (OSError, sqlite3.OperationalError) as error:
            raise DataError(f"{path or 'in memory'}: the index can't be written: {error}") from error
        finally:
            if path:
                Path(building).unlink(missing_ok=True)
        self._remember()

    @classmethod
    def open(cls, path: str | Path) -> BM25Index:
        """An index that was built into a file. Raises DataError if there is none, or if it is not as it was written."""
        index = cls.__new__(cls)
        try:
            require_seal(path)
            index._database = mapped(path)
            index._remember()
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"{path}: not a search index ({error})") from error
        return index

    @classmethod
    def from_folder(cls, folder: str | Path, path: str | Path | None = None) -> BM25Index:
        """One passage per .txt or .md file below the folder: its relative path, name and content."""
        return cls((read_file(file, Path(folder)) for file in files_of(Path(folder))), path)

    @classmethod
    def from_jsonl(cls, file: str | Path, path: str | Path | None = None) -> BM25Index:
        """One passage per line, an object with the strings `id`, `title` and `text`."""
        return cls(read_jsonl(Path(file)), path)

    @classmethod
    def kept(cls, corpus: str | Path, folder: str | Path) -> BM25Index:
        """The index of a folder of texts or a .jsonl, kept in `folder` and made anew when a file of theirs changed."""
        corpus, folder = Path(corpus), Path(folder)
        is_jsonl = corpus.suffix == ".jsonl"
        path = folder / f"{fingerprint(corpus, [corpus] if is_jsonl else files_of(corpus))}.index"
        if path.is_file():
            try:
                return cls.open(path)
            except DataError:
                pass  # cut, damaged or of other files: it is made anew
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{folder}: the index can't be written: {error.strerror}") from error
        return (cls.from_jsonl if is_jsonl else cls.from_folder)(corpus, path)

    def __len__(self) -> int:
        return self._database.execute("SELECT count(*) FROM passages").fetchone()[0]

    def __getitem__(self, id: str) -> Passage:
        """The passage of this id. Raises KeyError."""
        found = self._database.execute("SELECT id, title, text FROM passages WHERE id = ?", (clean(id),)).fetchone()
        if found is None:
            raise KeyError(id)
        return Passage(*found)

    def __contains__(self, id: str) -> bool:
        return bool(self._database.execute("SELECT 1 FROM passages WHERE id = ?", (clean(id),)).fetchone())

    def search(self, query: str, k: int = 1) -> list[Passage]:
        """The `k` best passages that hold any word of the query, best first, equals in the order of their ids."""
        return [passage for passage, _ in self.scored(query, k)]

    def scored(self, query: str, k: int = 1) -> list[tuple[Passage, float]]:
        """As `search`, each with its BM25 score, which is above 0."""
        words = self._telling(terms(query))
        return list(self._best(tuple(words), k)) if words and k >= 1 else []

    def original(self, passage: Passage) -> Passage:
        """Of all passages with the same text (white space apart) the one whose id comes first."""
        return self[self._copies[passage.id]] if passage.id in self._copies else passage

    def original_id(self, id: str) -> str:
        """As `original`, of an id alone; one that no passage has is returned as it is."""
        return self._copies.get(clean(id), id)

    def titled(self, title: str) -> list[Passage]:
        """All passages of that very title, in the order of their ids."""
        words = " ".join(map(quoted, terms(title)))
        clause = "number IN (SELECT rowid FROM words WHERE words MATCH ?) AND" if words else ""
        found = self._database.execute(
            f"SELECT id, title, text FROM passages WHERE {clause} title = ? ORDER BY number",
            (f"title : ({words})", clean(title)) if words else (clean(title),),
        )
        return [Passage(*row) for row in found]

    def _telling(self, words: list[str]) -> list[str]:
        """The words less the common ones, of which one is left if there is nothing else."""
        return [word for word in words if word not in self._common] or sorted(words, key=self._common.get)[:1]  # type: ignore[arg-type]

    def _remember(self) -> None:
        # The index never changes, and the attempts of a group ask the same things: a repeated search costs nothing.
        self._best = lru_cache(maxsize=65_536)(self._rank)
        self._copies = dict(self._database.execute("SELECT id, original FROM copies"))
        self._common = dict(self._database.execute("SELECT term, count FROM common"))

    def _rank(self, words: tuple[str, ...], k: int) -> tuple[tuple[Passage, float], ...]:
        found = self._database.execute(
            "SELECT id, title, text, -cost FROM (SELECT rowid AS number, bm25(words) AS cost FROM words"
            " WHERE words MATCH ? ORDER BY cost, number LIMIT ?) JOIN passages USING (number) ORDER BY cost, number",
            (" OR ".join(map(quoted, words)), min(k, MAX_RESULTS)),
        )
        return tuple((Passage(*row[:3]), row[3]) for row in found)

    def close(self) -> None:
        self._database.close()


def build(database: sqlite3.Connection, passages: Iterable[Passage]) -> None:
    """Fill an empty database: the passages in the order of their ids, which of them are copies, their words, and which
    of these are common."""
    database.create_function("indexed", 1, indexed, deterministic=True)
    with database:
        database.execute("CREATE TEMP TABLE staged(id TEXT PRIMARY KEY, title, text) WITHOUT ROWID")
        database.executemany("INSERT INTO staged VALUES (?, ?, ?)", rows(passages))
        database.execute("CREATE TABLE passages(number INTEGER PRIMARY KEY, id TEXT UNIQUE, title TEXT, text TEXT)")
        database.execute("INSERT INTO passages(id, title, text) SELECT * FROM staged ORDER BY id")
        tokens = "tokenize=\"unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'\""  # marks are parts of words
        database.execute(f"CREATE VIRTUAL TABLE words USING fts5(title, text, content='', {tokens})")
        database.execute(
            "INSERT INTO words(rowid, title, text) SELECT number, indexed(title), indexed(text) FROM passages"
        )
        database.create_function("plain", 2, lambda title, text: " ".join((text or title).split()), deterministic=True)
        database.execute("CREATE TABLE copies(id TEXT PRIMARY KEY, original TEXT)")
        database.execute(
            "INSERT INTO copies SELECT id, first FROM (SELECT id, first_value(id) OVER"
            " (PARTITION BY plain(title, text) ORDER BY number) AS first FROM passages) WHERE id <> first"
        )
        database.execute("CREATE TABLE common(term TEXT PRIMARY KEY, count INTEGER)")
        (size,) = database.execute("SELECT count(*) FROM passages").fetchone()
        if size >= LARGE:
            database.execute("INSERT INTO words(words) VALUES ('optimize')")
            database.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, words, row)")
            database.execute("INSERT INTO common SELECT term, doc FROM vocabulary WHERE doc > ?", (COMMON * size,))
            database.execute("DROP TABLE temp.vocabulary")
    database.execute("DROP TABLE staged")


def mapped(path: str | Path) -> sqlite3.Connection:
    """A complete index file, read through a memory map, never locked and never written."""
    database = sqlite3.connect(f"file:{quote(str(Path(path).resolve()))}?mode=ro&immutable=1", uri=True)
    try:
        database.execute(f"PRAGMA mmap_size = {MAPPED_BYTES}")
        database.execute("SELECT term FROM common LIMIT 1")
        database.execute("SELECT rowid FROM words LIMIT 1")
        database.execute("SELECT id FROM copies LIMIT 1")
    except sqlite3.Error:
        database.close()
        raise
    return database


def seal(path: str | Path, name: str) -> None:
    """Write a digest at the end of a complete file, where SQLite does not look; `name` is the stem it will have."""
    with open(path, "r+b") as file:
        digest = digest_of(file, os.path.getsize(path), name)
        file.seek(0, os.SEEK_END)
        file.write(digest)


def require_seal(path: str | Path) -> None:
    """Raises DataError for a file that is cut, longer, renamed, or in some places other than it was written; a large
    file is not read as a whole, so what is torn within a place that is not looked at comes to light in a search."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size - SEAL_BYTES
        digest = digest_of(file, size, Path(path).stem)
        file.seek(max(0, size))
        if file.read() != digest:
            raise DataError(f"{path}: not a search index, or cut, damaged, renamed or of another version; remove it")


def digest_of(file: BinaryIO, size: int, name: str) -> bytes:
    """Of the first `size` bytes: how many they are, whose, and at most NUM_BLOCKS blocks of them, first and last
    included."""
    digest = hashlib.blake2b(f"{VERSION} {size} {name}".encode("utf-8", "replace"), digest_size=SEAL_BYTES)
    last = max(0, size - 1) // BLOCK_BYTES
    for number in sorted({last * number // (NUM_BLOCKS - 1) for number in range(NUM_BLOCKS)}):
        file.seek(number * BLOCK_BYTES)
        digest.update(file.read(min(BLOCK_BYTES, max(0, size - number * BLOCK_BYTES))))
    return digest.digest()


def terms(query: str) -> list[str]:
    """The distinct words of any string, folded: letters and digits only, so nothing of FTS5's syntax is left."""
    return list(dict.fromkeys(asked(query)))[:MAX_TERMS]


def quoted(word: str) -> str:
    """A word as FTS5 takes it; a character of a script that is indexed by pairs stands for all that begins with it."""
    return f'"{word}"*' if is_character(word) else f'"{word}"'


def fingerprint(corpus: Path, files: Iterable[Path]) -> str:
    """A digest of the names, sizes and times of files."""
    try:
        facts = [(file.relative_to(corpus).as_posix(), file.stat()) for file in files]
    except OSError as error:
        raise DataError(f"{corpus}: {error.strerror}") from error
    listed = [(VERSION, str(corpus.resolve())), *((name, stat.st_size, stat.st_mtime_ns) for name, stat in facts)]
    return hashlib.blake2b(json.dumps(listed).encode(), digest_size=12).hexdigest()


def files_of(folder: Path) -> list[Path]:
    """The .txt and .md files below a folder. Raises DataError if there is none, or no such folder."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no folder of .txt and .md files, and no .jsonl of passages")
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".txt", ".md") and file.is_file())
    if not files:
        raise DataError(f"{folder}: no .txt or .md file to search in")
    return files


def clean(text: str) -> str:
    """The text as a database can hold it: half a surrogate pair becomes "?"."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def rows(passages: Iterable[Passage]) -> Iterator[tuple[str, str, str]]:
    seen: set[str] = set()
    for passage in passages:
        id = clean(passage.id)
        if id in seen:
            raise DataError(f"passage id {passage.id!r} is not unique")
        seen.add(id)
        yield id, clean(passage.title), clean(passage.text)


def read_file(file: Path, folder: Path) -> Passage:
    try:
        return Passage(file.relative_to(folder).as_posix(), file.stem, file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from error


def read_jsonl(file: Path) -> Iterator[Passage]:
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from error
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file}:{number}: not JSON ({error})") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("id", "title", "text")):
            raise DataError(
                f"{file}:{number}: expected an object with the strings id, title and text, not {line[:200]}"
            )
        if (first := seen.setdefault(row["id"], number)) != number:
            raise DataError(f"{file}:{number}: passage id {row['id']!r} is not unique: line {first} has it too")
        yield Passage(row["id"], row["title"], row["text"])
