"""The tables of a search: bounded, the same text each time, unforgeable, equal after JSON; odd files are told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gruppo.search_state import (
    Checkpoint,
    Document,
    Fact,
    Label,
    Note,
    Round,
    State,
    Strategy,
    Target,
    checkpoint_of,
    to_json,
)
from gruppo.search_tables import (
    TableLimits,
    one_line,
    resolved,
    tables,
    with_documents,
    with_fact,
    with_note,
    with_targets,
    with_value,
)

LIMITS = TableLimits()


def found(id: str, label: Label = Label.IRRELEVANT) -> Document:
    return Document(id, "title", "text\nforged: row", label, "why", 1)


def with_found(state: State, documents: Sequence[Document], limits: TableLimits = LIMITS) -> State:
    return with_documents(state, documents, (), limits)


def test_tables_are_bounded_and_what_goes_is_worth_least() -> None:
    limits = TableLimits(targets=2, entities=2, facts=2, documents=3, context=2, cell=16, note=16)
    state = with_targets(State("q"), [f"target {number}" for number in range(9)], limits)
    for number in range(9):
        label = Label.IMPORTANT if number == 4 else Label.IRRELEVANT
        state = with_found(state, [found(str(number), label)], limits)
        state = with_note(state, Note(str(number), "x" * 100), limits)
        state = with_fact(state, f"name {number // 4}", Fact(str(number) + "y" * 100, "1"), limits)
    assert len(state.targets) == 2 and len(state.documents) == 3 and len(state.found) == 9
    assert [document.id for document in state.documents] == ["4", "7", "8"]
    assert [note.document for note in state.context] == ["7", "8"] and len(state.context[0].text) == 16
    assert [len(entity.facts) for entity in state.entities] == [2, 1]
    assert max(len(line) for text in tables(state).values() for line in text.splitlines()) < 120


def test_a_document_that_was_found_before_is_not_new() -> None:
    state = with_found(State("q"), [found("a", Label.RELEVANT)])
    assert with_found(state, [found("a", Label.IMPORTANT)]) == state


def test_a_document_without_room_for_a_row_is_found_all_the_same() -> None:
    state = with_found(State("q"), [found("a", Label.IMPORTANT), found("b")], TableLimits(documents=1))
    assert [document.id for document in state.documents] == ["a"] and state.found == ("a", "b")


def test_text_is_stable_and_no_document_forges_a_row() -> None:
    state = with_found(State("q"), [found("b"), found("a", Label.IMPORTANT)])
    state = with_value(with_targets(state, ["x of y", "z of #1"], LIMITS), 1, "v", "a", LIMITS)
    assert tables(state)["documents"].splitlines() == [
        "[a] IMPORTANT: title | text forged: row (why)",
        "[b] IRRELEVANT: title | text forged: row (why)",
    ]
    assert tables(state)["targets"] == "1. x of y = v [a]\n2. z of #1 = ?" and tables(state)["context"] == "none"
    assert resolved(state.targets[1], state.targets) == "z of v" and resolved(Target("#7"), ()) == "#7"
    assert one_line("a\n b" + " " * 99, 10) == "a b" and len(one_line("x" * 10**6, 10)) == 10


def test_states_come_back_equal_and_odd_files_are_told() -> None:
    state = with_found(with_targets(State("什么 \n"), ["x"], LIMITS), [found("a")])
    checkpoint = Checkpoint(Round(1, Strategy.SEARCH, clues=("x", "y")), state)
    assert checkpoint_of(to_json(checkpoint)) == checkpoint and "什么" in to_json(checkpoint)
    for odd in ("", "[]", "{}", '{"schema": "other/1"}', to_json(checkpoint)[:-20], "[" * 100_000):
        with pytest.raises(ValueError):
            checkpoint_of(odd)
    with pytest.raises(ValueError, match="schema 'gruppo.search/9', expected 'gruppo.search/1'"):
        checkpoint_of(to_json(checkpoint).replace("search/1", "search/9"))
    with pytest.raises(ValueError, match="round.number"):
        checkpoint_of(to_json(checkpoint).replace('"number": 1', '"number": "1"'))
