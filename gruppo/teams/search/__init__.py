"""Deep search: a question, a corpus, and rounds of SEARCH, READ, VERIFY and ANSWER over five tables."""

from __future__ import annotations

from gruppo.teams.search.config import SearchConfig
from gruppo.teams.search.from_state import SearchFromState
from gruppo.teams.search.team import Search

__all__ = ["Search", "SearchConfig", "SearchFromState"]
