"""Teams: the programs that turn one task into one episode."""

from __future__ import annotations

from gruppo.teams.search import Search
from gruppo.teams.solo import Solo
from gruppo.teams.solver import Solver

TEAMS = {"solver": Solver, "solo": Solo, "search": Search}
