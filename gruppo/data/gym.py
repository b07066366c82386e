"""Tasks without end from reasoning-gym's generators, and the reward that is their own scorer.

A task is a generator's name, its settings and a seed, so it is made anew where it is scored. reasoning-gym runs in a
process of its own (`gym_worker.py`), which is ended when it hangs. It is not imported here.

Source: Stojanovski et al., arXiv 2505.24760; package reasoning-gym 0.1.25. Departure: its endless wrapper moves the
seed on by 1 every 500 tasks, and most generators draw task i with seed + i, so that its tasks come up again and again.
Here every task of every split has a seed of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gruppo.config import suggest
from gruppo.data.base import TaskSet
from gruppo.data.gym_process import GymProcess, shared
from gruppo.errors import DataError
from gruppo.types import Episode, Score, Task

SPLITS = ("train", "validation", "test")
TASKS_PER_SPLIT = 1_000_000
TASKS_AT_ONCE = 100  # made by one instance of a generator: a few generators depend on how many it is to make
MAX_SEED = 2**32 // (len(SPLITS) * TASKS_PER_SPLIT) - 1  # a few generators take no larger ones


def gym_names() -> list[str]:
    """The generators there are. Raises DataError if reasoning-gym is not installed."""
    return [str(name) for name in shared().ask({"do": "names"})]


def gym_tasks(
    name: str, split: str, count: int, seed: int = 0, settings: Mapping[str, Any] | None = None, start: int = 0
) -> TaskSet:
    """`count` tasks of the generator `name`, from task `start` on; those of two splits or seeds never share a seed.

    `settings` are the generator's own (its difficulty). Five generators publish no answer, since many are right: their
    tasks' result is empty, and only the reward `gym` (`gym_score`) can tell.
    Raises DataError for a generator, a split or a setting that there isn't.
    """
    if split not in SPLITS:
        raise DataError(f"gym:{name}: no split {split!r}{suggest(split, SPLITS)}")
    if not 0 <= seed <= MAX_SEED:
        raise DataError(f"gym:{name}: seed {seed}: expected 0 to {MAX_SEED}")
    if start < 0 or start + count > TASKS_PER_SPLIT:
        raise DataError(f"gym:{name}: tasks {start} to {start + count}: a split has {TASKS_PER_SPLIT:,}")
    process = shared()
    names = process.ask({"do": "names"})
    if name not in names:
        raise DataError(f"gym:{name}: no such generator{suggest(name, names)}")
    own = dict(settings or {})
    if reserved := {"seed", "size"} & own.keys():
        raise DataError(f"gym:{name}: {min(reserved)} is no setting of a generator; it follows from the task")
    return TaskSet(_made(process, name, own, (seed * len(SPLITS) + SPLITS.index(split)), range(start, start + count)))


def _made(process: GymProcess, name: str, settings: dict[str, Any], block: int, wanted: range) -> Iterator[Task]:
    first = block * TASKS_PER_SPLIT
    for begin in range(wanted.start - wanted.start % TASKS_AT_ONCE, wanted.stop, TASKS_AT_ONCE):
        indices = range(max(begin, wanted.start) - begin, min(begin + TASKS_AT_ONCE, wanted.stop) - begin)
        recipe = {"name": name, "settings": settings, "seed": first + begin, "size": TASKS_AT_ONCE}
        made = process.ask({"do": "make", **recipe, "start": indices.start, "stop": indices.stop})
        for index, entry in zip(indices, made, strict=True):
            extra = {"family": name, "gym": {**recipe, "index": index}}
            number = first + begin + index
            yield Task(f"{name}-{number}", entry["question"], entry["answer"] or "", "", "reasoning_gym", extra)


def gym_score(task: Task, episodes: Sequence[Episode]) -> list[Score]:
    """The reward of a task's generator for each answer, from 0 to 1; no answer is 0.

    No score, with the reason, where the scorer takes longer than its time or ends; and for tasks of other sources.
    """
    recipe = task.extra_info.get("gym")
    if not isinstance(recipe, Mapping):
        return [Score(None, "not a task of reasoning-gym")] * len(episodes)
    return [_scored(task, dict(recipe), episode.answer) for episode in episodes]


def _scored(task: Task, recipe: dict[str, Any], answer: str | None) -> Score:
    if answer is None:
        return Score(0.0, "wrong: no answer")
    found = shared().ask({"do": "score", **recipe, "answer": answer, "question": task.question}, may_fail=True)
    if isinstance(found, str):
        return Score(None, found)
    if not isinstance(found, int | float) or not math.isfinite(found):
        return Score(None, f"the scorer of {recipe['name']} gave {found!r}")
    return Score(float(found))
