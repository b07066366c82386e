"""A place in a text that moves on as the text is read, and how deep the reading is. It knows no notation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gruppo.rewards.maths.expressions import Unreadable

MAX_DEPTH = 24  # brackets, powers and signs in one another


class Scanner:
    """Patterns and words are taken at `place`; words are looked for after white space."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = self.depth = 0

    def space(self) -> None:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.place)
        if match:
            self.place = match.end()
        return match

    def starts(self, *words: str) -> bool:
        self.space()
        return self.text.startswith(words, self.place)

    def skip(self, word: str) -> bool:
        if self.starts(word):
            self.place += len(word)
            return True
        return False

    def expect(self, word: str) -> None:
        if not self.skip(word):
            raise self.unreadable()

    def unreadable(self) -> Unreadable:
        return Unreadable(f"can't read {self.text[self.place : self.place + 20]!r}")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH}")
        yield
        self.depth -= 1
