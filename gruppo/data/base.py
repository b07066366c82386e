"""`TaskSet`: an ordered collection of tasks that knows its fingerprint and the tasks of each training step.

It reads no files and holds no position: what step 17 trains on follows from the step number and the seed alone, so a
resumed run needs nothing but these.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, overload

from gruppo.errors import DataError
from gruppo.types import Task

T = TypeVar("T")


class TaskSet(Sequence[Task]):
    """An immutable sequence of at least one task with unique ids; `name` says in messages where they are from.

    Raises DataError if there are no tasks, or if two share an id (rows counted from 1).
    """

    def __init__(self, tasks: Iterable[Task], name: str = "tasks") -> None:
        self.name = name
        self._tasks = tuple(tasks)
        if not self._tasks:
            raise DataError(f"{name}: no tasks; at least one is needed")
        rows: dict[str, int] = {}
        for row, task in enumerate(self._tasks, start=1):
            first = rows.setdefault(task.id, row)
            if first != row:
                raise DataError(f"{name}: rows {first} and {row} have the same id {task.id!r}; ids must be unique")

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskSet: ...
    def __getitem__(self, index: int | slice) -> Task | TaskSet:
        return TaskSet(self._tasks[index], self.name) if isinstance(index, slice) else self._tasks[index]

    def __repr__(self) -> str:
        return f"TaskSet({self.name!r}, {len(self)} tasks)"

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the rows in their order; the name does not count."""
        digest = hashlib.sha256()
        for task in self._tasks:
            row = vars(task) | {"extra_info": dict(task.extra_info)}
            digest.update(json.dumps(row, sort_keys=True, separators=(",", ":"), default=str).encode("ascii") + b"\n")
        return digest.hexdigest()

    def shuffle(self, seed: int) -> TaskSet:
        """The same tasks in an order that depends only on their number and `seed`."""
        return TaskSet((self._tasks[index] for index in _permutation(len(self), f"shuffle {seed}")), self.name)

    def concat(self, *others: TaskSet) -> TaskSet:
        """These tasks, then those of `others`. Raises DataError where an id comes up twice."""
        sets = (self, *others)
        return TaskSet((task for tasks in sets for task in tasks), " + ".join(tasks.name for tasks in sets))

    def batch(self, step: int, size: int, seed: int) -> list[Task]:
        """The `size` tasks of training step `step` (from 0): each epoch has its own order and holds every task once.

        A batch may straddle epochs, and only then can a task be in it twice. Raises ValueError for a negative step or
        a size below 1.
        """
        return draw(self._tasks, step, size, seed)


def family_of(task: Task) -> str:
    """The family that the task file gives, else its source."""
    return str(task.extra_info.get("family") or task.source or "all")


def draw(items: Sequence[T], step: int, size: int, seed: object) -> list[T]:
    """The `size` items of `step` (from 0), epoch by epoch, each epoch in its own order; a function of its arguments."""
    if step < 0 or size < 1:
        raise ValueError(f"step = {step}, size = {size}: expected step >= 0 and size >= 1")
    drawn: list[T] = []
    while len(drawn) < size:
        epoch, start = divmod(step * size + len(drawn), len(items))
        order = _permutation(len(items), f"epoch {epoch} of {seed}")
        drawn += [items[index] for index in order[start : start + size - len(drawn)]]
    return drawn


def _permutation(length: int, seed: str) -> list[int]:
    # A string is seeded through SHA-512, so that neighbouring seeds and epochs have unrelated orders.
    return random.Random(seed).sample(range(length), length)
