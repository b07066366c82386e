"""The deep-search team: round after round a planner searches, reads, verifies, and at last has the answer written.

Every seat is an agent if the config has its role, and a rule if not. The state is new for every attempt. With
`checkpoints` set, each round is on disk before the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gruppo.data.search_files import RunFiles
from gruppo.errors import TeamError
from gruppo.search_state import Meta, Round, State, Strategy
from gruppo.search_tables import one_line, with_targets
from gruppo.teams.base import Cast, Prompt
from gruppo.teams.prompt_files import read_prompts
from gruppo.teams.search import rules
from gruppo.teams.search.config import SearchConfig
from gruppo.teams.search.seats import Seats, prompt_fields
from gruppo.teams.search.strategies import play_round
from gruppo.teams.search.truth import labels_of, of_originals
from gruppo.tools.documents import READ, SEARCH
from gruppo.types import Outcome, Task

ROLES = ("planner", "executor", "checker", "entity_manager", "writer")
FIELDS = (*prompt_fields(State(""), 1, 1), "candidates", "text")
Record = Callable[[Round, State], None]
SIZES = {"compact": "search_compact.toml", "full": "search_full.toml"}


class Search:
    """The team of `ROLES`, each of which may be left out; it needs the tools of `tools.names = ["documents"]`."""

    roles = ROLES

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        self.prompts = prompts_of(config)

    async def play(self, task: Task, cast: Cast) -> str | None:
        """One attempt at one task: the answer, or None with the outcome set on the cast."""
        require_tools(cast)
        task = of_originals(task, cast.tools)
        question = task.question
        record: Record = _unrecorded
        if self.config.checkpoints:
            meta = Meta(question, task=task.id, result=task.result, labels=labels_of(task))
            files = RunFiles.create(Path(self.config.checkpoints), meta)
            cast.at_end(lambda episode: files.end(episode.outcome, episode.answer, one_line(episode.error, 500)))
            record = files.write
        state = with_targets(State(question), rules.targets_of(question), self.config.tables)
        record(Round(0), state)
        return await play_on(Seats(task, cast, self.config), state, 1, record)


def prompts_of(config: SearchConfig) -> dict[str, Prompt]:
    """The prompts of the roles, in the words that the config chooses."""
    return read_prompts("team.search.prompts", config.prompts, SIZES, ROLES, FIELDS)


def require_tools(cast: Cast) -> None:
    """Raises TeamError if the cast can't search."""
    if missing := {SEARCH, READ} - set(cast.tools):
        raise TeamError(f'the search team has no tool {min(missing)!r}: set tools.names = ["documents"]')


async def play_on(seats: Seats, state: State, first: int, record: Record) -> str | None:
    """The rounds from number `first` on, each recorded, and the answer; None with the outcome set on the cast."""
    config, is_planned, number = seats.config, first > 1, first
    for number in range(first, config.max_rounds + 1):
        action = await seats.plan(state, number)
        if action.value is None:
            error = one_line(f"planner: {action.error}", config.tables.cell)
            state, played = replace(state, last=error), Round(number, error=error)
        elif action.value.strategy == Strategy.ANSWER:
            record(Round(number, Strategy.ANSWER), state)
            break
        else:
            is_planned = True
            state, played = await play_round(seats, state, number, action.value)
        record(played, state)
    else:
        seats.cast.outcome = Outcome.max_turns if is_planned else Outcome.wrong_format
    answer = await seats.answer(state, number)
    if answer.error:
        seats.cast.outcome = Outcome.max_tokens
    return answer.value or None


def _unrecorded(played: Round, state: State) -> None:
    """Where no checkpoints are kept."""
