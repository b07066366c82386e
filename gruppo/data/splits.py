"""Which rows are meant: `train`, `train[:1000]`, `train[10%:20%]`, `test[-5:]`, as the `datasets` library writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gruppo.errors import DataError

_REFERENCE = re.compile(r"(?P<place>[^\[\]]{2,}?)(?::(?P<split>[\w.-]+))?(?P<range>\[[^\[\]]*\])?", re.DOTALL)
_RANGE = re.compile(r"\[\s*(?:(-?[0-9]+)\s*(%?))?\s*:\s*(?:(-?[0-9]+)\s*(%?))?\s*\]")


@dataclass(frozen=True)
class Bound:
    """A place in a table: a row, or a percentage of all rows; from the end if negative."""

    number: int
    is_percent: bool

    def of(self, num_rows: int) -> int:
        """The row it stands for; percentages are rounded to the nearest row."""
        number = round(num_rows * self.number / 100) if self.is_percent else self.number
        return min(max(number + num_rows if self.number < 0 else number, 0), num_rows)


@dataclass(frozen=True)
class Range:
    """Rows from `start` to before `stop`; None: from the first, to the last."""

    start: Bound | None = None
    stop: Bound | None = None

    def rows(self, num_rows: int) -> range:
        """The rows that are meant of a table of `num_rows`."""
        start = self.start.of(num_rows) if self.start else 0
        stop = self.stop.of(num_rows) if self.stop else num_rows
        return range(start, max(start, stop))

    @property
    def is_all(self) -> bool:
        return self.start is None and self.stop is None


@dataclass(frozen=True)
class Reference:
    """A data set, one of its splits ("" for the usual one) and which rows of it."""

    place: str
    split: str = ""
    rows: Range = Range()


def reference(text: str) -> Reference:
    """What "gsm8k:train[:1000]", "tasks.jsonl[10%:20%]" or "folder:test" means.

    Raises DataError for a range that can't be read.
    """
    found = _REFERENCE.fullmatch(text.strip())
    if not found:
        raise DataError(f"{text!r}: expected a name or a file, then :split, then [from:to], as in gsm8k:train[:1000]")
    return Reference(found["place"], found["split"] or "", _range(text, found["range"]) if found["range"] else Range())


def _range(text: str, brackets: str) -> Range:
    found = _RANGE.fullmatch(brackets)
    if not found:
        raise DataError(f"{text!r}: expected rows as [:1000], [500:], [10%:20%] or [-100:], not {brackets}")
    start, stop = (Bound(int(found[n]), found[n + 1] == "%") if found[n] else None for n in (1, 3))
    for bound in (start, stop):
        if bound and bound.is_percent and abs(bound.number) > 100:
            raise DataError(f"{text!r}: {bound.number}% is not between -100% and 100%")
    return Range(start, stop)
