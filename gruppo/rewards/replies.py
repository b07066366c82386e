"""A judge's replies, kept by what was asked: in memory, and in a JSON Lines file of a folder if one is given.

Only replies that held a verdict belong here. A line that a killed writer left half done is passed over; several
processes may append to one file, and each sees what was there when it began.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from gruppo.errors import ConfigError

FILE_NAME = "judge.jsonl"


class Replies:
    """Key -> reply. Raises ConfigError for a folder that can't be used."""

    def __init__(self, folder: str = "") -> None:
        self._replies: dict[str, str] = {}
        self._path = Path(folder) / FILE_NAME if folder else None
        if self._path:
            self._open(self._path)

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, key: str) -> str | None:
        """The reply to what was asked before."""
        return self._replies.get(key)

    def keep(self, key: str, reply: str) -> None:
        """Remember a reply, on disk as one appended line."""
        self._replies[key] = reply
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "reply": reply}) + "\n")

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+", encoding="utf-8", errors="replace") as file:
                file.seek(0)
                lines = file.read().split("\n")
                if lines[-1]:  # torn: the next line must not go on where it broke off
                    file.write("\n")
        except OSError as error:
            raise ConfigError(f"judge.cache = {str(path.parent)!r}: {error.strerror}; name a folder") from error
        for line in lines:
            try:
                row = json.loads(line)
                self._replies[str(row["key"])] = str(row["reply"])
            except (ValueError, TypeError, LookupError):  # torn, or not ours
                continue


def key_of(*parts: Any) -> str:
    """SHA-256 (hex) of JSON-able parts: the same in every process."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
