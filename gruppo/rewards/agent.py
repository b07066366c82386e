"""The reward of an agent in four dimensions: completion, tool accuracy, brevity, format.

Each dimension is a reward function and so a named score; weighted, they add up to at most 1. All but completion are
paid only for a right answer: added up freely, a wrong answer given at once would earn 0.30 by being brief and tidy, and
0.49 with one valid call, more than long work that nearly gets there. How single calls of a lost episode went is what
the turn reward `tool_ok` is for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pydantic import Field

from gruppo.config import Config
from gruppo.rewards.terms import VIOLATION, Grading, is_right, num_violations
from gruppo.types import Episode, Reward, Task


class AgentConfig(Config):
    """The four dimensions and their weights."""

    completion: float = Field(0.5, gt=0)
    """The weight of a right answer; give it at least half of the sum."""
    tool_accuracy: float = Field(0.2, ge=0)
    """The weight of the share of valid tool calls."""
    brevity: float = Field(0.15, ge=0)
    """The weight of needing few steps."""
    format: float = Field(0.15, ge=0)
    """The weight of turns that can be read."""
    max_steps: int = Field(20, ge=1)
    """Steps at which nothing is left of brevity; a step is a turn of the role that acted most."""
    partial: float = Field(0.0, ge=0, lt=1)
    """The completion of a wrong answer that shares all words with the gold answer, in proportion if it shares some. An
    answer that lists everything is paid too, so it is 0 unless you ask for it."""


def agent(correct: Grading, config: AgentConfig) -> dict[str, tuple[Reward, float]]:
    """Dimension -> its reward function, in [0, 1], and its weight.

    An answer that is right earns at least the weight of completion, one that is not at most `partial` of it: no wrong
    answer outranks a right one, and none outranks another by how it was given. An episode without calls has made no
    wrong one: its tool accuracy is 1, so that a needless call pays nothing.
    """

    def completion(task: Task, episode: Episode) -> float | None:
        right = is_right(correct, task, episode)
        if right is None:
            return None
        return 1.0 if right else config.partial * overlap(episode.answer or "", task.result)

    def gated(dimension: Callable[[Episode], float]) -> Callable[[Task, Episode], float | None]:
        def score(task: Task, episode: Episode) -> float | None:
            right = is_right(correct, task, episode)
            return None if right is None else dimension(episode) * right

        return score

    dimensions: Mapping[str, Callable[[Task, Episode], float | None]] = {
        "completion": completion,
        "tool_accuracy": gated(tool_accuracy),
        "brevity": gated(lambda episode: max(0.0, 1 - num_rounds(episode) / config.max_steps)),
        "format": gated(lambda episode: max(0.0, 1 - VIOLATION * num_violations(episode))),
    }
    weights = config.model_dump()
    return {name: (_of_group(dimension), weights[name]) for name, dimension in dimensions.items()}


def tool_accuracy(episode: Episode) -> float:
    """The share of tool calls that went well."""
    calls = [event.result.ok for event in episode.events]
    return sum(calls) / len(calls) if calls else 1.0


def num_rounds(episode: Episode) -> int:
    """Steps taken: the turns of the role that acted most, so that a team of four is not four times as slow."""
    return max(Counter(turn.role for turn in episode.turns).values(), default=0)


def overlap(answer: str, gold: str) -> float:
    """F1 of the words of an answer against the nearest gold answer, in [0, 1]."""
    return max(_f1(_words(answer), _words(alternative)) for alternative in gold.split("; "))


def _f1(ours: Counter[str], theirs: Counter[str]) -> float:
    shared = (ours & theirs).total()
    return 2 * shared / (ours.total() + theirs.total()) if shared else 0.0


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.casefold()))


def _of_group(dimension: Callable[[Task, Episode], float | None]) -> Reward:
    def score(task: Task, episodes: Sequence[Episode]) -> list[float | None]:
        return [dimension(task, episode) for episode in episodes]

    return score
