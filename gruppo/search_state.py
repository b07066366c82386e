"""What a deep search knows at a moment, and what one of its rounds did: plain data that comes back equal from JSON.

A state holds five tables; how they grow and read as text is `search_tables.py`'s part, who fills them the team's, and
where they are kept `data/search_files.py`'s. Nothing here is changed in place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pydantic

SCHEMA = "gruppo.search/1"


class Strategy(StrEnum):
    """What a round does."""

    SEARCH = "SEARCH"  # clues are written and searched for; new documents are checked
    READ = "READ"  # documents are read; entities and their facts are noted, targets get their values
    VERIFY = "VERIFY"  # the documents that values rest on are checked again
    ANSWER = "ANSWER"  # the last round


class Label(StrEnum):
    """What a document is worth for the question."""

    IMPORTANT = "IMPORTANT"  # the answer, or a step to it, rests on it
    RELEVANT = "RELEVANT"  # about the same things, and not needed
    IRRELEVANT = "IRRELEVANT"
    UNCHECKED = "UNCHECKED"  # nobody has said; never the same as IRRELEVANT


class Fault(StrEnum):
    """Why a clue was not searched for."""

    empty = "empty"
    too_long = "too long"
    stop_words = "only stop words"
    repeated = "repeated"
    too_many = "too many"


@dataclass(frozen=True)
class Target:
    """Something to be found out. "#2" in the text stands for the value of the second target; no value: still open."""

    text: str
    value: str = ""
    document: str = ""


@dataclass(frozen=True)
class Fact:
    """A fact of an entity, and the id of the document that says it."""

    text: str
    document: str


@dataclass(frozen=True)
class Entity:
    """Someone or something that documents tell of."""

    name: str
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Document:
    """A document that was found, with the piece of its text that was shown, and the round that found it."""

    id: str
    title: str
    text: str
    label: Label
    reason: str
    round: int
    is_read: bool = False


@dataclass(frozen=True)
class Note:
    """What was read in a document."""

    document: str
    text: str


@dataclass(frozen=True)
class State:
    """What is known of a question between two rounds: the tables, and the ids of all documents ever found.

    `idle` counts the last rounds that brought nothing on: a SEARCH without an IMPORTANT document, a READ without a
    value. `last` says in a line what went wrong in the last round.
    """

    question: str
    targets: tuple[Target, ...] = ()
    entities: tuple[Entity, ...] = ()
    documents: tuple[Document, ...] = ()
    context: tuple[Note, ...] = ()
    found: tuple[str, ...] = ()
    is_verified: bool = False
    idle: int = 0
    last: str = ""


@dataclass(frozen=True)
class FaultyClue:
    """A clue that was not searched for; `clue` is cut to a readable length."""

    clue: str
    fault: Fault


@dataclass(frozen=True)
class Verdict:
    """What the checker said of a document."""

    document: str
    label: Label
    reason: str


@dataclass(frozen=True)
class Round:
    """What one round did. No strategy: the start (number 0), or a plan that could not be read.

    `clues` are those written, faulty ones included, each cut to a readable length; `hits` the ids found for them, best
    first; `verdicts` are about documents not found before (in a VERIFY: those that values rest on), `raised` about
    those that are worth more for this sub-goal than for an earlier one.
    """

    number: int
    strategy: Strategy | None = None
    sub_goal: str = ""
    clues: tuple[str, ...] = ()
    faults: tuple[FaultyClue, ...] = ()
    hits: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    raised: tuple[Verdict, ...] = ()
    read: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A round, and the state after it: what a round's file holds."""

    round: Round
    state: State
    schema: Literal["gruppo.search/1"] = "gruppo.search/1"


@dataclass(frozen=True)
class Continuation:
    """What was played from a state on: its SEARCH round, and, where it is replayed to the end of the run, the rounds
    after it with the answer."""

    rounds: tuple[Round, ...]
    answer: str | None = None


@dataclass(frozen=True)
class RoundEntry:
    """A round as the list of a run names it."""

    number: int
    strategy: Strategy | None
    file: str
    num_clues: int


@dataclass(frozen=True)
class Meta:
    """A run: the question, its rounds, and how it ended; the outcome is empty while it is played.

    `result` and `labels` are what the task knows: the gold answer, and the true label of each document that has one.
    """

    question: str
    run: int = 0
    rounds: tuple[RoundEntry, ...] = ()
    outcome: str = ""
    answer: str | None = None
    error: str = ""
    task: str = ""
    result: str = ""
    labels: Mapping[str, Label] = field(default_factory=dict)
    schema: Literal["gruppo.search/1"] = "gruppo.search/1"


_CHECKPOINT: pydantic.TypeAdapter[Checkpoint] = pydantic.TypeAdapter(Checkpoint)
_META: pydantic.TypeAdapter[Meta] = pydantic.TypeAdapter(Meta)
_STATE: pydantic.TypeAdapter[State] = pydantic.TypeAdapter(State)
_CONTINUATION: pydantic.TypeAdapter[Continuation] = pydantic.TypeAdapter(Continuation)
_WITH_SCHEMA = (_CHECKPOINT, _META)


def to_json(value: Checkpoint | Meta | State | Continuation) -> str:
    """The value as JSON text; half a surrogate pair, which no file can hold, becomes "?"."""
    adapters: dict[type, pydantic.TypeAdapter[Any]] = {
        Checkpoint: _CHECKPOINT,
        Meta: _META,
        State: _STATE,
        Continuation: _CONTINUATION,
    }
    text = json.dumps(adapters[type(value)].dump_python(value, mode="json"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode("utf-8")


def checkpoint_of(text: str | bytes) -> Checkpoint:
    """The checkpoint in a round's file. Raises ValueError in one line for anything else."""
    return _read(_CHECKPOINT, text)


def meta_of(text: str | bytes) -> Meta:
    """The run in a `meta.json`. Raises ValueError in one line for anything else."""
    return _read(_META, text)


def state_of(text: str | bytes) -> State:
    """A state alone. Raises ValueError in one line for anything else."""
    return _read(_STATE, text)


def continuation_of(text: str | bytes) -> Continuation:
    """What was played from a state on. Raises ValueError in one line for anything else."""
    return _read(_CONTINUATION, text)


def first_fault(error: pydantic.ValidationError) -> str:
    """What is wrong first, and where, in a line."""
    first = error.errors(include_url=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def _read(adapter: pydantic.TypeAdapter[Any], text: str | bytes) -> Any:
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(text)
        if isinstance(value, dict) and adapter in _WITH_SCHEMA and value.get("schema") != SCHEMA:
            raise ValueError(f"schema {value.get('schema')!r}, expected {SCHEMA!r}")
        return adapter.validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        raise ValueError(first_fault(error)) from None
    except RecursionError:
        raise ValueError("nested too deep") from None
