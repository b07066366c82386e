"""The executor's training ground: a SEARCH round played from a state that was kept, and what came of it.

Every attempt at a task begins in the same state, with the same index and the same frozen seats, so what differs between
the attempts of a group is the clues. What they are paid is `rewards/search.py`'s part.
"""

from __future__ import annotations

from gruppo.data.rounds import round_state_of
from gruppo.search_state import Continuation, Round, State, Strategy, to_json
from gruppo.teams.base import Cast, Ended
from gruppo.teams.search.config import SearchConfig
from gruppo.teams.search.replies import Plan
from gruppo.teams.search.seats import Seats
from gruppo.teams.search.strategies import play_round
from gruppo.teams.search.team import ROLES, play_on, prompts_of, require_tools
from gruppo.teams.search.truth import of_originals
from gruppo.types import Outcome, Task


class SearchFromState:
    """The search team in the state that a task holds (`data/rounds.py`): one round of clues, or, with `replay`, that
    round and those after it to the end of the run."""

    roles = ROLES

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        self.prompts = prompts_of(config)

    async def play(self, task: Task, cast: Cast) -> str:
        """The `Continuation`, as JSON. Raises DataError for a task that is no state of a search."""
        require_tools(cast)
        task = of_originals(task, cast.tools)
        start = round_state_of(task)
        seats = Seats(task, cast, self.config)
        state, first = await play_round(seats, start.state, start.number, Plan(Strategy.SEARCH, start.sub_goal))
        rounds, answer = [first], None
        if not first.clues:
            cast.outcome = Outcome.wrong_format
        elif self.config.replay:

            def record(played: Round, after: State) -> None:
                rounds.append(played)

            try:
                answer = await play_on(seats, state, start.number + 1, record)
            except Ended as ended:  # a later prompt that does not fit takes nothing away from this round's clues
                cast.outcome = ended.outcome
        return to_json(Continuation(tuple(rounds), answer))
