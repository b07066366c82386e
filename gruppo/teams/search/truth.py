"""The checker that knows: labels by the gold plan of the embedded world, or by those that a task file gives.

It can be made to err on purpose, the same way each time, to see what training makes of a wrong checker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gruppo.errors import TeamError
from gruppo.search_state import Document, Label, Verdict
from gruppo.teams.base import seed_of
from gruppo.types import Task

LABELS = (Label.IMPORTANT, Label.RELEVANT, Label.IRRELEVANT)


def check(task: Task, documents: Iterable[Document]) -> tuple[Verdict, ...]:
    """The true label of each document. Raises TeamError for a task that does not tell."""
    info = task.extra_info
    if isinstance(given := info.get("documents"), Mapping):
        return tuple(_given(given, document) for document in documents)
    if not (plan := info.get("plan")):
        raise TeamError(
            f"task {task.id!r} has neither extra_info.documents nor a gold plan, so no document's label is known: set"
            ' team.search.checker = "words", or give the team a checker'
        )
    return tuple(_of_plan(plan, document) for document in documents)


def _given(given: Mapping[str, Any], document: Document) -> Verdict:
    label = str(given.get(document.id, Label.IRRELEVANT))
    if label not in LABELS:
        raise TeamError(f"extra_info.documents: no label {label[:40]!r}: use {', '.join(LABELS)}")
    return Verdict(document.id, Label(label), "as the task says")


def _of_plan(plan: Iterable[Mapping[str, str]], document: Document) -> Verdict:
    """IMPORTANT is what a step finds, RELEVANT what tells something else of a step's subject."""
    lookups = [step for step in plan if step["tool"] == "wikipedia"]
    for step in lookups:
        if document.text == step["result"]:
            return Verdict(document.id, Label.IMPORTANT, f"tells the {step['sub_goal']}")
    for step in lookups:
        subject = step["sub_goal"].partition(" of ")[2]
        if subject.casefold() in document.text.casefold():
            return Verdict(document.id, Label.RELEVANT, f"tells of {subject}")
    return Verdict(document.id, Label.IRRELEVANT, "tells of something else")


def erring(verdicts: Iterable[Verdict], question: str, share: float) -> tuple[Verdict, ...]:
    """The verdicts, a share of them wrong: which ones follows from the question and the document alone."""
    found = []
    for verdict in verdicts:
        draw = seed_of("wrong label", question, verdict.document)
        if verdict.label in LABELS and draw % 1_000_003 < share * 1_000_003:
            others = [label for label in LABELS if label != verdict.label]
            verdict = Verdict(verdict.document, others[draw // 1_000_003 % 2], verdict.reason)
        found.append(verdict)
    return tuple(found)
