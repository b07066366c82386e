"""The ground of kept states: whether the documents that they name can be found where they are to be played.

Over another corpus nothing of theirs can be found, before a training as after it, and every figure is nought.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gruppo.data.rounds import RoundState
from gruppo.errors import ConfigError
from gruppo.tools.documents import SEARCH, SearchTool
from gruppo.types import Tool


def require_ground(whose: str, states: Iterable[RoundState], tools: Mapping[str, Tool], corpus: str) -> None:
    """Raises ConfigError if the search tool has none of the documents that the states name as labelled, seen or found.

    States that name none may be played anywhere."""
    named = {
        id for state in states for id in (*state.labels, *state.verdicts, *(own.id for own in state.state.documents))
    }
    tool = tools.get(SEARCH)
    if named and isinstance(tool, SearchTool) and not any(id in tool.orchestrator.index for id in named):
        raise ConfigError(
            f"tools.corpus = {corpus!r}: has none of the {len(named)} documents that {whose} name; give the corpus that"
            " they were searched in"
        )
