"""States of searches and attempts at them, made by hand: who wants to know what a figure is needs no search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gruppo.data.rounds import RoundState
from gruppo.search_state import Continuation, Label, Round, State, Strategy, Verdict, to_json
from gruppo.types import Episode, Group, Outcome

I, R, X = Label.IMPORTANT, Label.RELEVANT, Label.IRRELEVANT
Said = Mapping[str, Label]


def a_state(question: str = "q", number: int = 1, found: Sequence[str] = (), labels: Said | None = None) -> RoundState:
    known = {document: label.value for document, label in (labels or {}).items()}
    return RoundState(question, 1, number, "goal", State(question, found=tuple(found)), ("a", "b"), {}, known)


def attempt(reward: float | None, **said: Label) -> Episode:
    """What the clues found, as the checker labels it."""
    verdicts = tuple(Verdict(document, label, "") for document, label in said.items())
    first = Round(1, Strategy.SEARCH, "goal", ("clue",), hits=tuple(said), verdicts=verdicts)
    return Episode("", "", 0, 0, answer=to_json(Continuation((first,))), reward=reward)


def failed() -> Episode:
    return Episode("", "", 0, 0, outcome=Outcome.engine_failed)


def a_group(state: RoundState, *episodes: Episode) -> Group:
    task = state.to_task()
    for number, episode in enumerate(episodes):
        episode.task_id, episode.group_id, episode.attempt = task.id, task.id, number
    return Group(task.id, task, list(episodes))
