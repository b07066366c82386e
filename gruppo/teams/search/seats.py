"""Who plays a seat of the search team: the agent of that role, or the rule that stands in where the config has none.

Each function asks once and hands back what was said, or why it can't be used. It changes no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gruppo.search_state import Document, State, Strategy, Verdict
from gruppo.search_tables import one_line, tables
from gruppo.teams.base import Action, Cast
from gruppo.teams.search import rules, truth
from gruppo.teams.search.config import SearchConfig
from gruppo.teams.search.replies import (
    Extraction,
    Plan,
    read_clues,
    read_extraction,
    read_plan,
    read_verdicts,
)
from gruppo.types import Task


@dataclass(frozen=True)
class Seats:
    """The seats of one attempt at one task."""

    task: Task
    cast: Cast
    config: SearchConfig

    def fields(self, state: State, number: int, sub_goal: str = "") -> Mapping[str, object]:
        """What a prompt may show: the same for a live round and for a state that was kept."""
        return prompt_fields(state, number, self.config.max_rounds, sub_goal)

    @property
    def is_compact(self) -> bool:
        return self.config.prompts == "compact"

    async def plan(self, state: State, number: int) -> Action[Plan]:
        """What the round does."""
        if "planner" not in self.cast:
            return Action("", rules.plan(state) if number < self.config.max_rounds else Plan(Strategy.ANSWER))
        read = partial(read_plan, compact=self.is_compact)
        return await self.cast["planner"].act(read, **self.fields(state, number))

    async def clues(self, state: State, number: int, sub_goal: str) -> Action[tuple[str, ...]]:
        """The search clues of `clue_turns` turns of the executor; an error where none of them could be read."""
        if "executor" not in self.cast:
            return Action("", rules.clues(state, sub_goal))
        read = partial(read_clues, compact=self.is_compact)
        fields = self.fields(state, number, sub_goal)
        said = [await self.cast["executor"].act(read, **fields) for _ in range(self.config.clue_turns)]
        written = tuple(clue for action in said for clue in action.value or ())
        return Action(said[-1].text, written or None, "" if written else said[-1].error)

    async def check(
        self, state: State, number: int, sub_goal: str, documents: Sequence[Document]
    ) -> Action[tuple[Verdict, ...]]:
        """The labels of documents, by the checker's word or by a rule; an error beside labels is of those left out."""
        if not documents:
            return Action("", ())
        if "checker" in self.cast:
            apart = [[document] for document in documents] if self.config.check_alone else [documents]
            said = [await self._checked(state, number, sub_goal, some) for some in apart]
            read = [action.value for action in said if action.value is not None]
            verdicts = tuple(verdict for some in read for verdict in some) if read else None
            text, error = said[-1].text, next((action.error for action in said if action.error), "")
        elif self.config.checker == "truth":
            verdicts, text, error = truth.check(self.task, documents), "", ""
        else:
            verdicts, text, error = rules.check(sub_goal, documents), "", ""
        if verdicts and self.config.wrong_labels:
            verdicts = truth.erring(verdicts, state.question, self.config.wrong_labels)
        return Action(text, verdicts, error)

    async def _checked(
        self, state: State, number: int, sub_goal: str, documents: Sequence[Document]
    ) -> Action[tuple[Verdict, ...]]:
        rows = (
            f"{at}. {one_line(document.title, 100)} | {one_line(document.text, self.config.tables.cell)}"
            for at, document in enumerate(documents, 1)
        )
        fields = {**self.fields(state, number, sub_goal), "candidates": "\n".join(rows)}
        return await self.cast["checker"].act(partial(read_verdicts, documents=documents), **fields)

    async def extract(self, state: State, number: int, sub_goal: str, text: str) -> Action[Extraction]:
        """What a document that was read tells of entities and targets."""
        if "entity_manager" not in self.cast:
            return Action("", rules.extract(state.targets, sub_goal, text))
        fields = {**self.fields(state, number, sub_goal), "text": one_line(text, self.config.tables.note)}
        return await self.cast["entity_manager"].act(read_extraction, **fields)

    async def answer(self, state: State, number: int) -> Action[str]:
        """The answer that the tables give."""
        if "writer" not in self.cast:
            return Action("", rules.answer(state))
        return await self.cast["writer"].act(str.strip, **self.fields(state, number))


def prompt_fields(state: State, number: int, max_rounds: int, sub_goal: str = "") -> Mapping[str, object]:
    """The fields of every prompt of round `number`, given the state before it."""
    return {
        "question": one_line(state.question, 2000),
        "sub_goal": sub_goal,
        "round": number,
        "max_rounds": max_rounds,
        "last": state.last or "nothing",
        **tables(state),
    }
