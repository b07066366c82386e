"""The ten benchmarks of the AgentFlow table (arXiv 2510.05592): played item by item, resumed, graded, counted.

Every item is in the denominator, the missing and the failed too. Plays nothing itself: it is given a function that
does; reads no data set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import pydantic

from gruppo.config import suggest
from gruppo.data.base import TaskSet
from gruppo.errors import ConfigError
from gruppo.evaluation.ledger import open_ledger
from gruppo.evaluation.scoring import SCORINGS, Graded
from gruppo.evaluation.statistics import wilson
from gruppo.evaluation.wording import interval, percent
from gruppo.log import Log
from gruppo.rewards.agent import num_rounds
from gruppo.types import Episode, Group, Outcome, Task

Play = Callable[[Sequence[Task]], Iterable[Group]]
"""Tasks -> the group of each as it ends, in any order, as `Rollout.stream` gives them."""
SCHEMA = "gruppo.bench/1"
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


@dataclass(frozen=True)
class Item:
    """How a task was played: a line of the file. `read` is what the grading took for the answer; `tools` are each
    tool's calls, and those that went well."""

    id: str
    correct: bool
    read: str
    reason: str
    answer: str | None
    outcome: Outcome
    error: str
    steps: int
    seconds: pydantic.FiniteFloat
    tokens: int
    tools: Mapping[str, tuple[int, int]]

    @property
    def key(self) -> str:
        """Tells it from the others."""
        return self.id


def benchmark_of(name: str) -> Benchmark:
    """The benchmark of a name. Raises ConfigError with the nearest name."""
    if name not in BENCHMARKS:
        raise ConfigError(f"{name!r}: no such benchmark{suggest(name, BENCHMARKS)}")
    return BENCHMARKS[name]


def run_benchmark(
    name: str, tasks: TaskSet, play: Play, path: Path, settings: Mapping[str, Any], log: Log
) -> dict[str, Any]:
    """Play the items that `path` does not have yet, and return the summary of all.

    `settings` is what else the results depend on (model, checkpoint, limits), in JSON-able data; a file of others is
    refused. Items that the harness failed are played once more at the end, and whenever it is called again. Killed at
    any moment, at most the items in the air are lost.

    Raises:
        ConfigError: an unknown benchmark.
        StoreError: a file of something else, with a broken line, that another process writes, or that can't be written.
    """
    benchmark = benchmark_of(name)
    header = {"schema": SCHEMA, "benchmark": name, "n": len(tasks), "tasks": tasks.fingerprint, **settings}
    with open_ledger(path, header, Item) as ledger:
        for _ in range(2):
            left = [task for task in tasks if (item := ledger.lines.get(task.id)) is None or item.outcome in AGAIN]
            with log.progress(benchmark.title, len(tasks), len(tasks) - len(left), "item") as bar:
                for group in play(left) if left else ():
                    ledger.append(_graded(group.task, group.episodes[0], SCORINGS[benchmark.scoring]))
                    bar.advance(num_episodes=1)
    return summarise_items(name, tasks, ledger.lines)


def summarise_items(name: str, tasks: Iterable[Task], items: Mapping[str, Item]) -> dict[str, Any]:
    """What the items, by task id, say of all the tasks, in plain JSON-able data.

    `accuracy` is over all tasks: one without an item is `missing` and wrong, one that the harness failed is
    `infrastructure` and wrong. Times, steps and tokens are means over the items that were played; `one_step_rate` is
    the share that took a single step; of a tool there are its calls, their share of all, and the share that went well.
    """
    ids = [task.id for task in tasks]
    found = {id_: items[id_] for id_ in ids if id_ in items}
    correct = sum(item.correct for item in found.values())
    summary: dict[str, Any] = {
        "benchmark": name,
        "n": len(ids),
        "correct": correct,
        "accuracy": correct / len(ids),
        "ci95": list(wilson(correct, len(ids))),
        "missing": len(ids) - len(found),
        "infrastructure": sum(item.outcome.is_infrastructure for item in found.values()),
        "unreadable": sum(not item.read for item in found.values()),
        "outcomes": dict(Counter(str(item.outcome) for item in found.values()).most_common()),
        "wrong_ids": [id_ for id_ in ids if not (id_ in found and found[id_].correct)],
    }
    if found:
        summary["steps"] = {
            "average": fmean(item.steps for item in found.values()),
            "one_step_rate": fmean(item.steps == 1 for item in found.values()),
            "average_seconds": fmean(item.seconds for item in found.values()),
            "average_tokens": fmean(item.tokens for item in found.values()),
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


def _graded(task: Task, episode: Episode, scoring: Callable[[Task, Episode], Graded]) -> Item:
    graded = scoring(task, episode)
    tools: dict[str, tuple[int, int]] = {}
    for event in episode.events:
        calls, good = tools.get(event.tool, (0, 0))
        tools[event.tool] = (calls + 1, good + event.result.ok)
    return Item(
        id=task.id,
        # What the harness failed is wrong, whatever it left behind.
        correct=graded.correct and not episode.outcome.is_infrastructure,
        read=graded.read[:500],
        reason=graded.reason,
        answer=episode.answer,
        outcome=episode.outcome,
        error=episode.error,
        steps=num_rounds(episode),
        seconds=round(episode.seconds, 3),
        tokens=sum(episode.num_tokens.values()),
        tools=tools,
    )


def _tools(items: Iterable[Item]) -> dict[str, dict[str, float]]:
    calls, good = Counter[str](), Counter[str]()
    for item in items:
        for tool, (number, ok) in item.tools.items():
            calls[tool] += number
            good[tool] += ok
    return {
        tool: {"calls": number, "share": number / calls.total(), "ok": good[tool] / number}
        for tool, number in calls.most_common()
    }
