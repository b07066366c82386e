"""What a round does once its plan is known: a state in; the state after it and the round's record out.

What a role said that can't be read becomes the round's error, which the planner is shown. What the infrastructure did
wrong is raised, and then there is no round: a checker that is down labels nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gruppo.errors import ToolError
from gruppo.search_state import (
    Document,
    Fact,
    Fault,
    FaultyClue,
    Label,
    Note,
    Round,
    State,
    Strategy,
    Verdict,
)
from gruppo.search_tables import (
    ORDER,
    one_line,
    relabelled,
    resolved,
    with_documents,
    with_fact,
    with_note,
    with_targets,
    with_value,
)
from gruppo.teams.search import rules
from gruppo.teams.search.replies import Plan
from gruppo.teams.search.seats import Seats
from gruppo.tools.documents import READ, SEARCH

MAX_KEPT = 200  # characters of a clue in the records
Played = tuple[State, Round]


async def play_round(seats: Seats, state: State, number: int, plan: Plan) -> Played:
    """The round of any strategy but ANSWER."""
    play = {Strategy.SEARCH: search_round, Strategy.READ: read_round, Strategy.VERIFY: verify_round}[plan.strategy]
    state, played = await play(seats, state, number, plan.sub_goal)
    state = with_targets(state, plan.targets, seats.config.tables)
    return replace(state, last=one_line(played.error, seats.config.tables.cell)), played


async def search_round(seats: Seats, state: State, number: int, sub_goal: str) -> Played:
    """Clues, the documents they find, and labels for those not found before."""
    action = await seats.clues(state, number, sub_goal)
    played = Round(number, Strategy.SEARCH, sub_goal)
    if action.value is None:
        return replace(state, idle=state.idle + 1), replace(played, error=f"executor: {action.error}")
    return await run_clues(seats, state, played, action.value)


async def run_clues(seats: Seats, state: State, played: Round, clues: Sequence[str]) -> Played:
    """What a set of clues finds in the state before a round: what an executor is paid for follows from the round."""
    limits = seats.config.tables
    found = await _called(seats, SEARCH, {"clues": list(clues)})
    hits = tuple(hit["id"] for hit in found["hits"])
    new = [_document(hit, played.number) for hit in found["hits"] if hit["id"] not in state.found]
    old = [each for each in state.documents if each.id in hits and each.label != Label.IMPORTANT]
    checked = await seats.check(state, played.number, played.sub_goal, [*new, *old])
    given = {verdict.document: verdict for verdict in checked.value or ()}
    verdicts = [given.get(document.id, Verdict(document.id, Label.UNCHECKED, "")) for document in new]
    raised = [given[each.id] for each in old if each.id in given and _is_more(given[each.id].label, each.label)]
    state = relabelled(with_documents(state, new, verdicts, limits), raised, limits)
    has_found = any(verdict.label == Label.IMPORTANT for verdict in (*verdicts, *raised))
    return replace(state, idle=0 if has_found else state.idle + 1), replace(
        played,
        clues=tuple(one_line(clue, MAX_KEPT) for clue in clues),
        faults=tuple(FaultyClue(fault["clue"], Fault(fault["fault"])) for fault in found["faults"]),
        hits=hits,
        verdicts=tuple(verdicts),
        raised=tuple(raised),
        error=f"checker: {checked.error}" if checked.error else _nothing(hits, bool(new or raised)),
    )


def _is_more(label: Label, than: Label) -> bool:
    return than == Label.UNCHECKED or ORDER.index(label) < ORDER.index(than)


def _document(hit: dict[str, Any], number: int) -> Document:
    return Document(hit["id"], hit["title"], hit["text"], Label.UNCHECKED, "", number)


def _nothing(hits: Sequence[str], has_news: bool) -> str:
    """What the planner is told of a search that brought nothing new."""
    if has_news:
        return ""
    return "the search found only what was found before" if hits else "the search found nothing"


async def read_round(seats: Seats, state: State, number: int, sub_goal: str) -> Played:
    """The best unread documents: their texts into the context table, entities and values into theirs."""
    limits = seats.config.tables
    goal = sub_goal or rules.open_target(state) or state.question
    chosen = next((documents for documents in rules.readable(state, goal) if documents), [])[: seats.config.max_reads]
    read, errors = [], [] if chosen else ["there is nothing to read: no unread IMPORTANT or RELEVANT document"]
    values = [target.value for target in state.targets]
    for document in chosen:
        result = await seats.cast.call(READ, {"id": document.id, "about": goal})
        text = result.output if result.ok else document.text
        state = with_note(state, Note(document.id, text), limits)
        read.append(document.id)
        action = await seats.extract(state, number, goal, text)
        if action.value is None:
            errors.append(f"entity_manager: {action.error}")
            continue
        for name, fact in action.value.facts:
            state = with_fact(state, name, Fact(fact, document.id), limits)
        for target, value in action.value.values:
            state = with_value(state, target, value, document.id, limits)
    is_idle = values == [target.value for target in state.targets]
    state = replace(state, idle=state.idle + 1 if is_idle else 0)
    return state, Round(number, Strategy.READ, sub_goal, read=tuple(read), error="; ".join(errors))


async def verify_round(seats: Seats, state: State, number: int, sub_goal: str) -> Played:
    """The documents that values rest on are checked again; a target whose document does not hold is open again."""
    known = {document.id: document for document in state.documents}
    verdicts: list[Verdict] = []
    errors = []
    for at, target in enumerate(state.targets, 1):
        if not target.value or target.document not in known:
            continue
        goal = resolved(target, state.targets) or target.text
        action = await seats.check(state, number, goal, [known[target.document]])
        if action.value is None:
            errors.append(f"checker: {action.error}")
            continue
        verdicts += action.value
        state = relabelled(state, action.value, seats.config.tables)
        if any(verdict.label == Label.IRRELEVANT for verdict in action.value):
            state = with_value(state, at, "", "", seats.config.tables)
    holds = bool(state.targets) and all(target.value for target in state.targets)
    state = replace(state, is_verified=holds and not errors)
    return state, Round(
        number, Strategy.VERIFY, sub_goal, verdicts=tuple(verdicts), error="; ".join(dict.fromkeys(errors))
    )


async def _called(seats: Seats, tool: str, arguments: dict[str, Any]) -> Any:
    """What a tool of ours answers, as JSON. Raises ToolError if it does not."""
    result = await seats.cast.call(tool, arguments)
    if not result.ok:
        raise ToolError(f"tool {tool!r}: {result.error}")
    return json.loads(result.output)
