"""What `gruppo grade` does: JSON lines of predictions in, the same lines with `correct` and `reason` out.

It decides nothing about answers; `answers.py` does.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gruppo.config import missing_file
from gruppo.errors import DataError, UserError
from gruppo.rewards.answers import MODES, Verdict, grade
from gruppo.rewards.maths import worker

Row = dict[str, Any]


def grade_file(file: Path, out: Path | None = None) -> Counter[str]:
    """Write each line of `file`, graded, to `out` (None: standard output), and count what became of them.

    A line has `prediction` (null: there is none), `gold` (text, a number, or a list of alternatives) and `mode`
    (default "completion"); other keys are kept. `correct` is null where there is no score.

    Raises:
        DataError: names the file and the line; nothing has been written then.
        UserError: `out` can't be written.
    """
    rows, counts = list(read_rows(file)), Counter[str]()  # all of them first: `out` may be `file`
    try:
        with out.open("w", encoding="utf-8") if out else nullcontext(sys.stdout) as lines:
            for row in rows:
                verdict = grade(row["prediction"] or "", text_of(row["gold"]), row.get("mode", "completion"))
                counts[_name(verdict)] += 1
                graded = row | {"correct": verdict.correct, "reason": verdict.reason}
                lines.write(json.dumps(graded) + "\n")
    except OSError as error:
        raise UserError(f"{out}: can't be written: {error.strerror or error}") from error
    return counts


def summary(counts: Counter[str]) -> str:
    """The counts on one line, and what to install if something was missing."""
    listed = ", ".join(f"{number} {name}" for name, number in counts.items()) or "none"
    missing = "; those without score: " + worker.MISSING if counts["needs math-verify"] else ""
    return f"{sum(counts.values())} lines: {listed}{missing}"


def _name(verdict: Verdict) -> str:
    if verdict.reason == worker.MISSING:
        return "needs math-verify"
    return {True: "right", False: "wrong", None: "no score"}[verdict.correct]


def text_of(gold: Any) -> str:
    """A gold answer, alternatives joined."""
    return "; ".join(map(str, gold)) if isinstance(gold, list) else str(gold)


def read_rows(file: Path) -> Iterator[Row]:
    """The lines of a file of predictions. Raises DataError, which names the file and the line."""
    if not file.is_file():
        raise DataError(f"{file}: a folder, not a file" if file.is_dir() else missing_file(file))
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: byte {error.start} is not UTF-8 text") from error
    except OSError as error:
        raise DataError(f"{file}: can't be read: {error.strerror or error}") from error
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 may stand in a string
        if line.strip():
            yield _row(f"{file}: line {number}", line)


def _row(where: str, line: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with prediction and gold, not {type(row).__name__}")
    for key in ("prediction", "gold"):
        if key not in row:
            raise DataError(f"{where}: no {key!r}; each line has prediction, gold and perhaps mode")
    if not isinstance(row["prediction"], str | None):
        raise DataError(f"{where}: prediction is {row['prediction']!r:.80}; expected text, or null for none")
    if not _is_gold(row["gold"]) and not (isinstance(row["gold"], list) and all(map(_is_gold, row["gold"]))):
        raise DataError(f"{where}: gold is {row['gold']!r:.80}; expected text, a number, or a list of them")
    mode = row.get("mode", "completion")
    if mode not in MODES:
        raise DataError(f"{where}: mode is {mode!r:.80}; choose one of {', '.join(MODES)}")
    return row


def _is_gold(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
