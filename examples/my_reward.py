"""A reward: a task and its group's episodes in, one finite number per episode out, or None: can't be scored."""

from collections.abc import Sequence

from gruppo.types import Episode, Task


def brief(task: Task, episodes: Sequence[Episode]) -> list[float]:
    """1 for an answer at the first try, less for each further call of a tool; 0 without an answer."""
    return [0.0 if episode.answer is None else 1 / max(1, len(episode.events)) for episode in episodes]
