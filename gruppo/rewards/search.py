"""What a set of search clues is paid: one function for each thing that counts, so that each is seen on its own.

They read the `Continuation` that a search from a kept state answers with, and believe its labels: whether the checker
was right is `evaluation/search_audit.py`'s part. A document found before is in none of the verdicts, so it never pays
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic import Field

from gruppo.config import Config
from gruppo.errors import ConfigError, RewardError
from gruppo.rewards.rules import NO_VERDICT, is_equal
from gruppo.search_state import Continuation, Label, Round, Strategy, continuation_of
from gruppo.types import Episode, Reward, Score, Task

Part = Callable[[Task, Continuation], float]
CHECKER = "checker:"  # how the error of a round begins whose checker said nothing that can be read


class SearchRewardConfig(Config):
    """What each thing weighs. The weights are ours; a document counts when no round before had found it."""

    important: float = 1.0
    """Of each new IMPORTANT document."""
    relevant: float = 0.1
    """Of each new RELEVANT document."""
    irrelevant: float = 0.0
    """Of each new IRRELEVANT document."""
    duplicates: float = -0.02
    """Of each document that was found before."""
    faults: float = -0.1
    """Of each clue that was not searched for: empty, of stop words, too long, repeated, too many."""
    clues: float = -0.02
    """Of each clue that was written."""
    unreadable: float = -0.5
    """Of an attempt without a clue that could be read."""
    later: float = 0.0
    """Of each new IMPORTANT document of a later round; needs team.search.replay."""
    discount: float = Field(0.8, ge=0, le=1)
    """What a document of a later round is worth of that, per round of delay."""
    answer: float = 0.0
    """Of the right answer at the end of the run; needs team.search.replay."""


def search(config: SearchRewardConfig, is_replayed: bool) -> Mapping[str, tuple[Reward, float]]:
    """Part -> its function, which counts, and its weight.

    "found" weighs nothing: 1.0 for an attempt that found an IMPORTANT document, which is what success means here.
    Raises ConfigError for a weight of what only a replayed search has.
    """
    for key, weight in {"later": config.later, "answer": config.answer}.items():
        if weight and not is_replayed:
            raise ConfigError(
                f"reward.search.{key} = {weight:g}: only a replayed search has it; set team.search.replay = true"
            )
    counts: dict[str, tuple[Part, float]] = {
        "found": (lambda task, played: float(_new(played.rounds[0], Label.IMPORTANT) > 0), 0.0),
        "important": (lambda task, played: _new(played.rounds[0], Label.IMPORTANT), config.important),
        "relevant": (lambda task, played: _new(played.rounds[0], Label.RELEVANT), config.relevant),
        "irrelevant": (lambda task, played: _new(played.rounds[0], Label.IRRELEVANT), config.irrelevant),
        "unchecked": (lambda task, played: _new(played.rounds[0], Label.UNCHECKED), 0.0),
        "duplicates": (lambda task, played: duplicates(played.rounds[0]), config.duplicates),
        "faults": (lambda task, played: len(played.rounds[0].faults), config.faults),
        "clues": (lambda task, played: len(played.rounds[0].clues), config.clues),
        "unreadable": (lambda task, played: float(not played.rounds[0].clues), config.unreadable),
    }
    if is_replayed:
        counts["later"] = (lambda task, played: _later(played, config.discount), config.later)
        counts["answer"] = (lambda task, played: float(is_equal(played.answer or "", task.result)), config.answer)
    return {name: (counting(part, name == "later"), weight) for name, (part, weight) in counts.items()}


def counting(part: Part, with_later: bool = False) -> Reward:
    """A reward function out of a part of the first round, or of those after it too. Where the checker's word could not
    be read, or did not fit its context, there is no score: the clues are not to blame. Raises RewardError for an answer
    that is no continuation."""

    def count(task: Task, episodes: Sequence[Episode]) -> list[Score | float]:
        return [_score(part, task, episode, with_later) for episode in episodes]

    return count


def _score(part: Part, task: Task, episode: Episode, with_later: bool) -> Score | float:
    if episode.answer is None:
        if episode.error.startswith(CHECKER):  # what was found did not fit its prompt
            return Score(None, f"{NO_VERDICT}{episode.error}")
        return part(task, Continuation((Round(0),)))  # cut off by the context before a clue was written
    try:
        played = continuation_of(episode.answer)
    except ValueError as error:
        raise RewardError(
            f'reward "search" is for team.program = "search_from_state"; the answer is no continuation: {error}'
        ) from None
    for each in played.rounds if with_later else played.rounds[:1]:
        if each.strategy == Strategy.SEARCH and each.error.startswith(CHECKER):
            return Score(None, f"{NO_VERDICT}{each.error}")
    return part(task, played)


def duplicates(first: Round) -> int:
    """Documents of a round that were found in a round before."""
    return len(set(first.hits) - {verdict.document for verdict in first.verdicts})


def _new(first: Round, label: Label) -> int:
    return sum(verdict.label == label for verdict in first.verdicts)


def _later(played: Continuation, discount: float) -> float:
    later = enumerate(played.rounds[1:], 1)
    return sum(
        discount**delay * _new(each, Label.IMPORTANT) for delay, each in later if each.strategy == Strategy.SEARCH
    )
