"""Which sentences of the world a question rests on: the true labels of a deep search's documents.

IMPORTANT is what a step of the gold plan finds, RELEVANT another sentence that names a step's subject; the rest is not
in the labels. The ids are those of `World.passages`, which the search index has too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from gruppo.data.base import TaskSet
from gruppo.data.world.encyclopedia import World
from gruppo.search_state import Label
from gruppo.types import Task
from gruppo.words import words


def with_labels(tasks: TaskSet, world: World) -> TaskSet:
    """The tasks with `extra_info.documents`: the id of a sentence -> its label."""
    passages = world.passages
    ids = {sentence: id for id, _, sentence in passages}
    spoken = {id: f" {' '.join(words(sentence))} " for id, _, sentence in passages}

    @cache
    def naming(subject: str) -> tuple[str, ...]:
        name = f" {' '.join(words(subject))} "  # as whole words: year 14 is not named by year 144
        return tuple(id for id, sentence in spoken.items() if name in sentence)

    def labels(task: Task) -> Mapping[str, str]:
        steps = [step for step in task.extra_info["plan"] if step["tool"] == "wikipedia"]
        subjects = [step["sub_goal"].partition(" of ")[2] for step in steps]
        found = {id: Label.RELEVANT.value for subject in subjects for id in naming(subject)}
        return found | {ids[step["result"]]: Label.IMPORTANT.value for step in steps}

    return TaskSet(
        [replace(task, extra_info={**task.extra_info, "documents": labels(task)}) for task in tasks], tasks.name
    )
