"""The tables of a deep search: how they grow, within bounds, and how they read as text.

All of it is pure: a state in, another one out. A cell is one line, so no document can write rows of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from pydantic import Field

from gruppo.config import Config
from gruppo.search_state import Document, Entity, Fact, Label, Note, State, Target, Verdict

ORDER = (Label.IMPORTANT, Label.RELEVANT, Label.UNCHECKED, Label.IRRELEVANT)
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # of terminals, of directions
_REFERENCE = re.compile(r"#(\d{1,3})(?!\d)")


class TableLimits(Config):
    """The most that each table holds; what goes first when one is full is in docs/search.md."""

    targets: int = Field(12, ge=1)
    """Rows of the target table; further targets are not taken."""
    entities: int = Field(30, ge=1)
    """Rows of the entity table; the oldest goes first."""
    facts: int = Field(8, ge=1)
    """Facts of an entity; the oldest goes first."""
    documents: int = Field(30, ge=1)
    """Rows of the document table; the least worth goes first, then the oldest. Its id stays known as found."""
    context: int = Field(10, ge=1)
    """Rows of the context table; the oldest goes first."""
    cell: int = Field(300, ge=16)
    """Characters of a cell."""
    note: int = Field(1500, ge=16)
    """Characters of a row of the context table."""


def one_line(text: str, limit: int) -> str:
    """The text on one line, its end left out if it is longer than `limit` characters; control characters are blanks."""
    line = " ".join(_CONTROLS.sub(" ", text[: 8 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def with_targets(state: State, texts: Iterable[str], limits: TableLimits) -> State:
    """Further targets; one that is there already is not taken again."""
    known = {target.text for target in state.targets}
    lines = dict.fromkeys(one_line(text, limits.cell) for text in islice(texts, 10 * limits.targets))
    new = [Target(line) for line in lines if line and line not in known]
    targets = (*state.targets, *new)[: limits.targets]
    return replace(state, targets=targets, is_verified=state.is_verified and targets == state.targets)


def with_value(state: State, number: int, value: str, document: str, limits: TableLimits) -> State:
    """The target of this number, counted from 1, with its value, or open again for an empty one. Odd numbers: as it
    was."""
    if not 1 <= number <= len(state.targets):
        return state
    value = one_line(value, limits.cell)
    target = replace(state.targets[number - 1], value=value, document=document if value else "")
    targets = (*state.targets[: number - 1], target, *state.targets[number:])
    return replace(state, targets=targets, is_verified=False)


def resolved(target: Target, targets: Sequence[Target]) -> str | None:
    """The target's text with the values of others in place of "#2"; None while one of these has none."""
    numbers = [int(number) for number in _REFERENCE.findall(target.text)]
    known = {number: targets[number - 1].value for number in numbers if 1 <= number <= len(targets)}
    if not all(known.values()):
        return None
    return _REFERENCE.sub(lambda match: known.get(int(match[1]), match[0]), target.text)


def with_documents(
    state: State, documents: Iterable[Document], verdicts: Iterable[Verdict], limits: TableLimits
) -> State:
    """Documents that were found, with what was said of them; those found before keep the row they have, if any."""
    known, given = set(state.found), {verdict.document: verdict for verdict in verdicts}
    new = [_bounded(document, given.get(document.id), limits) for document in documents if document.id not in known]
    kept = (*state.documents, *new)
    if len(kept) > limits.documents:
        worth = sorted(range(len(kept)), key=lambda at: (ORDER.index(kept[at].label), -at))
        staying = set(worth[: limits.documents])
        kept = tuple(document for at, document in enumerate(kept) if at in staying)
    return replace(state, documents=kept, found=(*state.found, *(document.id for document in new)))


def _bounded(document: Document, verdict: Verdict | None, limits: TableLimits) -> Document:
    title, text = one_line(document.title, limits.cell), one_line(document.text, limits.cell)
    document = replace(document, title=title, text=text)
    return _labelled(document, verdict, limits) if verdict else document


def _labelled(document: Document, verdict: Verdict, limits: TableLimits) -> Document:
    return replace(document, label=verdict.label, reason=one_line(verdict.reason, limits.cell))


def relabelled(state: State, verdicts: Iterable[Verdict], limits: TableLimits) -> State:
    """Documents with the labels that they were given anew."""
    given = {verdict.document: verdict for verdict in verdicts}
    documents = (_labelled(each, given[each.id], limits) if each.id in given else each for each in state.documents)
    return replace(state, documents=tuple(documents))


def with_note(state: State, note: Note, limits: TableLimits) -> State:
    """What was read in a document, which from now on is a read one."""
    note = Note(note.document, one_line(note.text, limits.note))
    others = tuple(other for other in state.context if other.document != note.document)
    documents = tuple(replace(each, is_read=each.is_read or each.id == note.document) for each in state.documents)
    return replace(state, context=(*others, note)[-limits.context :], documents=documents)


def with_fact(state: State, name: str, fact: Fact, limits: TableLimits) -> State:
    """An entity's further fact; an entity is one name, whatever its case."""
    name, fact = one_line(name, limits.cell), Fact(one_line(fact.text, limits.cell), fact.document)
    if not name:
        return state
    key = name.casefold()
    old = next((entity for entity in state.entities if entity.name.casefold() == key), Entity(name))
    if any(other.text == fact.text for other in old.facts):
        return state
    new = replace(old, facts=(*old.facts, fact)[-limits.facts :]) if fact.text else old
    if old in state.entities:
        return replace(state, entities=tuple(new if entity is old else entity for entity in state.entities))
    return replace(state, entities=(*state.entities, new)[-limits.entities :])


def tables(state: State) -> Mapping[str, str]:
    """The tables as text, by the names that prompts use: the same state, the same text."""
    return {
        "targets": _rows(_target_row(number, target) for number, target in enumerate(state.targets, 1)),
        "entities": _rows(map(_entity_row, state.entities)),
        "documents": _rows(map(_document_row, in_order(state.documents))),
        "context": _rows(f"{_source(note.document)} {note.text}" for note in state.context),
    }


def in_order(documents: Sequence[Document]) -> list[Document]:
    """Those worth most first, then in the order in which they were found."""
    return sorted(documents, key=lambda document: ORDER.index(document.label))


def _rows(rows: Iterable[str]) -> str:
    return "\n".join(rows) or "none"


def _source(document: str) -> str:
    return f"[{one_line(document, 200)}]"


def _target_row(number: int, target: Target) -> str:
    source = f" {_source(target.document)}" if target.document else ""
    return f"{number}. {target.text} = {target.value or '?'}{source}"


def _entity_row(entity: Entity) -> str:
    return f"{entity.name}: {'; '.join(f'{fact.text} {_source(fact.document)}' for fact in entity.facts)}"


def _document_row(document: Document) -> str:
    read = ", read" if document.is_read else ""
    reason = f" ({document.reason})" if document.reason else ""
    return f"{_source(document.id)} {document.label}{read}: {document.title} | {document.text}{reason}"
