"""Teams: the programs that turn one task into one episode."""

from __future__ import annotations

from gruppo.teams.search import Search, SearchFromState
from gruppo.teams.solo import Solo
from gruppo.teams.solver import Solver

TEAMS = {"solver": Solver, "solo": Solo, "search": Search, "search_from_state": SearchFromState}
