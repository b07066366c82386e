"""What the roles of the search team say, and how each is read. A reader returns a value or raises ValueError.

Readers never guess: an odd strategy or a label that is none is a wrong format; a document that a checker leaves out is
unchecked, not irrelevant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gruppo.bounded_json import parse_json
from gruppo.search_state import Document, Label, Strategy, Verdict

MAX_CLUES = 32  # that are read out of one reply
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)、])\s+")


@dataclass(frozen=True)
class Plan:
    """The planner's choice: what the round does, for which sub-goal, and targets to add."""

    strategy: Strategy
    sub_goal: str = ""
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Extraction:
    """What the entity manager took from a document: (entity, fact) pairs, and (target's number, value) pairs."""

    facts: tuple[tuple[str, str], ...] = ()
    values: tuple[tuple[int, str], ...] = ()


def read_plan(text: str, compact: bool) -> Plan:
    """ "STRATEGY: sub-goal" when compact, else JSON with strategy, sub_goal and targets."""
    if compact:
        name, _, goal = text.strip().partition(":")
        return Plan(_strategy(name), _goal(_strategy(name), goal))
    fields = parse_json(text, {"strategy": str}, {"sub_goal": "", "targets": []})
    strategy = _strategy(fields["strategy"])
    return Plan(strategy, _goal(strategy, fields["sub_goal"]), tuple(_texts(fields["targets"], "targets")))


def _strategy(name: str) -> Strategy:
    try:
        return Strategy(name.strip().strip("*`'\"").upper())
    except ValueError:
        raise ValueError(f"no strategy {name.strip()[:40]!r}: use one of {', '.join(Strategy)}") from None


def _goal(strategy: Strategy, goal: str) -> str:
    goal = " ".join(goal.split())
    if strategy == Strategy.SEARCH and not goal:
        raise ValueError("a SEARCH needs a sub-goal")
    return goal


def read_clues(text: str, compact: bool) -> tuple[str, ...]:
    """The clues, one per line when compact, else the JSON's list `clues`. At least one, not all of them blank."""
    if compact:
        clues = [_BULLET.sub("", line).strip() for line in text.strip().splitlines()]
    else:
        clues = [clue.strip() for clue in _texts(parse_json(text, {"clues": list})["clues"], "clues")]
    if not any(clues):
        raise ValueError("no clue was written")
    return tuple(clues[:MAX_CLUES])


def read_verdicts(text: str, documents: Sequence[Document]) -> tuple[Verdict, ...]:
    """The checker's labels of documents that are numbered from 1; what it leaves out gets none."""
    rows = parse_json(text, {"documents": list})["documents"]
    found: dict[int, Verdict] = {}
    for row in rows:
        number, label, reason = _verdict(row, len(documents))
        if found.setdefault(number, Verdict(documents[number - 1].id, label, reason)).label != label:
            raise ValueError(f"document {number} has two labels")
    return tuple(found[number] for number in sorted(found))


def _verdict(row: Any, size: int) -> tuple[int, Label, str]:
    if not isinstance(row, dict) or type(row.get("number")) is not int or not 1 <= row["number"] <= size:
        raise ValueError(f"each document needs its number, from 1 to {size}")
    label = str(row.get("label", "")).strip().upper()
    if label not in (Label.IMPORTANT, Label.RELEVANT, Label.IRRELEVANT):
        raise ValueError(f"no label {label[:40]!r}: use IMPORTANT, RELEVANT or IRRELEVANT")
    return row["number"], Label(label), " ".join(str(row.get("reason", "")).split())


def read_extraction(text: str) -> Extraction:
    """The entity manager's JSON: `facts`, objects with entity and fact; `values`, objects with target and value."""
    fields = parse_json(text, {"facts": list}, {"values": []})
    facts = [_pair(row, "entity", "fact", str) for row in fields["facts"]]
    values = [_pair(row, "target", "value", int) for row in fields["values"]]
    return Extraction(tuple(facts), tuple(values))


def _pair(row: Any, key: str, other: str, kind: type) -> tuple[Any, str]:
    if not isinstance(row, dict) or type(row.get(key)) is not kind or not isinstance(row.get(other), str):
        raise ValueError(f"expected objects with {key} ({kind.__name__}) and {other} (text)")
    return row[key], row[other]


def _texts(values: Sequence[Any], name: str) -> list[str]:
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} must be a list of texts")
    return list(values)
