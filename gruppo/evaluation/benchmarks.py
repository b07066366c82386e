"""The ten benchmarks of the AgentFlow table (arXiv 2510.05592): played item by item, resumed, graded, counted.

One line per item in a file of JSON lines, on disk before the next is waited for. Every item is in the denominator, the
missing and the failed too. Plays nothing itself: it is given a function that does; reads no data set.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO, Literal

from gruppo.config import suggest
from gruppo.data.base import TaskSet
from gruppo.errors import ConfigError, StoreError
from gruppo.evaluation.scoring import SCORINGS
from gruppo.evaluation.statistics import wilson
from gruppo.evaluation.wording import interval, percent
from gruppo.rewards.agent import num_rounds
from gruppo.types import Episode, Group, Outcome, Task

Play = Callable[[Sequence[Task]], Iterable[Group]]
"""Tasks -> the group of each as it ends, in any order, as `Rollout.stream` gives them."""
Record = dict[str, Any]

MAX_STEPS, MAX_SECONDS, TEMPERATURE = 10, 300.0, 0.0  # of one item, as in the table
AGAIN = frozenset({Outcome.engine_failed, Outcome.tool_failed, Outcome.judge_failed, Outcome.team_failed})
"""Outcomes that are played again when a benchmark is resumed; running out of time is no fault of the harness here."""


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: its name in tables, the column it is averaged in, how an item is graded, how many there are."""

    title: str
    group: Literal["search", "agentic", "math", "science"]
    scoring: Literal["free", "choice", "expression"]
    num_items: int


BENCHMARKS: Mapping[str, Benchmark] = {
    "bamboogle": Benchmark("Bamboogle", "search", "free", 125),
    "2wiki": Benchmark("2Wiki", "search", "free", 200),
    "hotpotqa": Benchmark("HotpotQA", "search", "free", 100),
    "musique": Benchmark("MuSiQue", "search", "free", 200),
    "gaia": Benchmark("GAIA", "agentic", "free", 127),
    "aime24": Benchmark("AIME24", "math", "free", 30),
    "amc23": Benchmark("AMC23", "math", "free", 40),
    "gameof24": Benchmark("GameOf24", "math", "expression", 300),
    "gpqa": Benchmark("GPQA", "science", "choice", 300),
    "medqa": Benchmark("MedQA", "science", "choice", 300),
}


def benchmark_of(name: str) -> Benchmark:
    """The benchmark of a name. Raises ConfigError with the nearest name."""
    if name not in BENCHMARKS:
        raise ConfigError(f"{name!r}: no such benchmark{suggest(name, BENCHMARKS)}")
    return BENCHMARKS[name]


def run_benchmark(
    name: str,
    tasks: TaskSet,
    play: Play,
    path: Path,
    settings: Mapping[str, Any],
    on_item: Callable[[Record], None] = lambda record: None,
) -> dict[str, Any]:
    """Play the items that `path` does not have yet, and return the summary of all.

    `settings` is what else the results depend on (model, checkpoint, limits), in JSON-able data; the file begins with
    it, and a file with others is refused. Items that the harness failed are played once more at the end, and whenever
    it is called again; of an item's lines the last counts. Killed at any moment, at most the items in the air are lost.

    Raises:
        ConfigError: an unknown benchmark.
        StoreError: a file of something else, one with a broken line, or one that another process writes.
    """
    scoring = SCORINGS[benchmark_of(name).scoring]
    header = {"benchmark": name, "tasks": tasks.fingerprint, "n": len(tasks), "settings": dict(settings)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        _lock(file, path)
        records = _begin(file, path, header)
        for group in _twice(play, tasks, records):
            for episode in group.episodes[:1]:
                graded = scoring(group.task, episode)
                # What the harness failed is wrong, whatever it left behind.
                is_right = graded.correct and not episode.outcome.is_infrastructure
                record = {"correct": is_right, "read": graded.read[:500], "reason": graded.reason, **_facts(episode)}
                records[group.task.id] = record
                _append(file, {"id": group.task.id, **record})
                on_item(record)
    return summarise_items(name, tasks, records)


def _twice(play: Play, tasks: Iterable[Task], records: Mapping[str, Record]) -> Iterator[Group]:
    """The items without a record, and those that the harness failed; then again those."""
    for _ in range(2):
        if left := [task for task in tasks if records.get(task.id, {}).get("outcome") in (None, *AGAIN)]:
            yield from play(left)


def read_records(path: Path) -> tuple[Record, dict[str, Record]]:
    """A file's header and its records by task id, the last of each; a half line at its end is left out.

    Raises StoreError for a missing file or a broken line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror}") from error
    return _parse(content[: content.rfind(b"\n") + 1], path)


def summarise_items(name: str, tasks: Iterable[Task], records: Mapping[str, Record]) -> dict[str, Any]:
    """What the records say of all the tasks, in plain JSON-able data.

    `accuracy` is over all tasks: one without a record is `missing` and wrong, one that the harness failed is
    `infrastructure` and wrong. Times, steps and tokens are means over the items that were played; `one_step_rate` is
    the share that took a single step; of a tool there are its calls, their share of all, and the share that went well.
    """
    ids = [task.id for task in tasks]
    found = {id_: records[id_] for id_ in ids if id_ in records}
    correct = sum(record["correct"] for record in found.values())
    summary: dict[str, Any] = {
        "benchmark": name,
        "n": len(ids),
        "correct": correct,
        "accuracy": correct / len(ids),
        "ci95": list(wilson(correct, len(ids))),
        "missing": len(ids) - len(found),
        "infrastructure": sum(Outcome(record["outcome"]).is_infrastructure for record in found.values()),
        "unreadable": sum(not record["read"] for record in found.values()),
        "outcomes": dict(Counter(record["outcome"] for record in found.values()).most_common()),
        "wrong_ids": [id_ for id_ in ids if not (id_ in found and found[id_]["correct"])],
    }
    if found:
        summary["steps"] = {
            "average": fmean(record["steps"] for record in found.values()),
            "one_step_rate": fmean(record["steps"] == 1 for record in found.values()),
            "average_seconds": fmean(record["seconds"] for record in found.values()),
            "average_tokens": fmean(record["tokens"] for record in found.values()),
        }
    return summary | {"tools": _tools(found.values())}


def bench_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """A line per benchmark and one per group of them, for a terminal."""
    rows = [["benchmark", "items", "correct", "accuracy", "95 % interval", "missing", "failed", "steps", "s/item"]]
    for summary in summaries:
        benchmark, steps = BENCHMARKS[summary["benchmark"]], summary.get("steps", {})
        rows.append(
            [
                benchmark.title,
                str(summary["n"]) + (f" of {benchmark.num_items}" if summary["n"] != benchmark.num_items else ""),
                str(summary["correct"]),
                percent(summary["accuracy"]),
                interval(summary["ci95"]),
                *(str(summary[key]) for key in ("missing", "infrastructure")),
                *(f"{steps[key]:.1f}" if steps else "" for key in ("average", "average_seconds")),
            ]
        )
    for group in dict.fromkeys(benchmark.group for benchmark in BENCHMARKS.values()):
        own = [s["accuracy"] for s in summaries if BENCHMARKS[s["benchmark"]].group == group]
        if len(own) > 1:
            rows.append([f"mean of {group}", "", "", percent(fmean(own)), *[""] * 5])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _facts(episode: Episode) -> Record:
    tools: dict[str, list[int]] = {}
    for event in episode.events:
        counts = tools.setdefault(event.tool, [0, 0])
        counts[0] += 1
        counts[1] += event.result.ok
    return {
        "answer": episode.answer,
        "outcome": str(episode.outcome),
        "error": episode.error,
        "steps": num_rounds(episode),
        "seconds": round(episode.seconds, 3),
        "tokens": sum(episode.num_tokens.values()),
        "tools": tools,
    }


def _tools(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    calls, good = Counter[str](), Counter[str]()
    for record in records:
        for tool, (number, ok) in record["tools"].items():
            calls[tool] += number
            good[tool] += ok
    return {
        tool: {"calls": number, "share": number / calls.total(), "ok": good[tool] / number}
        for tool, number in calls.most_common()
    }


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StoreError(f"{path}: another process writes it; wait for it, or give another --out") from error


def _begin(file: BinaryIO, path: Path, header: Record) -> dict[str, Record]:
    """The records there are, the file cut after its last whole line; its first line is the header."""
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    file.truncate(whole)
    if not whole:
        _append(file, header)
        return {}
    own, records = _parse(content[:whole], path)
    if own != json.loads(json.dumps(header)):
        odd = next((key for key in header if own.get(key) != json.loads(json.dumps(header[key]))), "header")
        raise StoreError(f"{path}: holds results with another {odd}: {_brief(own.get(odd))}; give another --out")
    return records


def _parse(content: bytes, path: Path) -> tuple[Record, dict[str, Record]]:
    lines: list[Record] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise StoreError(f"{path}: line {number} is not JSON: remove it, and its item is played again") from error
    if not lines or "benchmark" not in lines[0]:
        raise StoreError(f"{path}: its first line is no header of a benchmark")
    return lines[0], {line.pop("id"): line for line in lines[1:]}


def _append(file: BinaryIO, record: Record) -> None:
    file.write(json.dumps(record, ensure_ascii=True, default=str).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
