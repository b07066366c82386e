"""One task set out of several, by weight."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gruppo.data.base import TaskSet
from gruppo.errors import DataError


def mix(sets: Mapping[str, TaskSet], weights: Mapping[str, float], seed: int, count: int | None = None) -> TaskSet:
    """`count` tasks, of each set as many as its weight says, none twice, shuffled by `seed`.

    Without `count`, or where a set has too few for it: as many as the shares allow. An id is led by its set's name.
    Raises DataError for weights that are not positive, and where not even one task of each set fits.
    """
    for name, weight in weights.items():
        if not weight > 0 or weight == float("inf"):
            raise DataError(f"weight of {name} = {weight}: expected a positive number")
    total = sum(weights.values())
    shares = [weights[name] / total for name in sets]
    sizes = [len(tasks) for tasks in sets.values()]
    # A hair above, so that what is a whole number but for rounding counts as one.
    most = min(int(size / share + 1e-9) for size, share in zip(sizes, shares, strict=True))
    counts = apportioned(min(most, most if count is None else count), shares)
    while any(count > size for count, size in zip(counts, sizes, strict=True)):
        most -= 1  # the remainders went to a set that is used up
        counts = apportioned(most, shares)
    if not all(counts):
        name = list(sets)[counts.index(0)]
        raise DataError(f"{sum(counts)} tasks by these weights hold none of {name}; take more tasks or another weight")
    mixed = [
        replace(task, id=f"{name}/{task.id}")
        for (name, tasks), count in zip(sets.items(), counts, strict=True)
        for task in tasks.shuffle(seed)[:count]
    ]
    random.Random(f"mix {seed}").shuffle(mixed)
    return TaskSet(mixed, " + ".join(sets))


def apportioned(count: int, shares: Sequence[float]) -> list[int]:
    """`count` parted by shares that sum to 1: largest remainders, the earlier first."""
    parts = [int(count * share + 1e-9) for share in shares]
    remainders = [count * share - part for share, part in zip(shares, parts, strict=True)]
    for place in sorted(range(len(parts)), key=lambda place: -remainders[place])[: count - sum(parts)]:
        parts[place] += 1
    return parts
