"""The checker that knows: the labels in a task's `extra_info.documents`, which the embedded world's tasks bring along.

It can be made to err on purpose, the same way each time, to see what training makes of a wrong checker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gruppo.errors import TeamError
from gruppo.search_state import Document, Label, Verdict
from gruppo.search_tables import ORDER
from gruppo.teams.base import seed_of
from gruppo.tools.documents import SEARCH, SearchTool
from gruppo.types import Task, Tool

LABELS = (Label.IMPORTANT, Label.RELEVANT, Label.IRRELEVANT)


def labels_of(task: Task) -> Mapping[str, Label]:
    """Document id -> its true label, as far as the task tells. Raises TeamError for a label that is none."""
    given = task.extra_info.get("documents")
    if not isinstance(given, Mapping):
        return {}
    if wrong := [label for label in given.values() if label not in LABELS]:
        raise TeamError(f"extra_info.documents: no label {str(wrong[0])[:40]!r}: use {', '.join(LABELS)}")
    return {str(document): Label(label) for document, label in given.items()}


def of_originals(task: Task, tools: Mapping[str, Tool]) -> Task:
    """The task, each label with the document that the searches of `tools` find for it: a copy is never found, and what
    stands in its place has the strongest label of them all. Raises TeamError as `labels_of`."""
    tool, labels = tools.get(SEARCH), labels_of(task)
    if not labels or not isinstance(tool, SearchTool):
        return task
    moved: dict[str, Label] = {}
    for document, label in labels.items():
        original = tool.orchestrator.index.original_id(document)
        moved[original] = min(label, moved.get(original, label), key=ORDER.index)
    return replace(task, extra_info={**task.extra_info, "documents": moved})


def check(task: Task, documents: Iterable[Document]) -> tuple[Verdict, ...]:
    """The true label of each document; one that the task does not name is IRRELEVANT. Raises TeamError for a task that
    names none."""
    if not (labels := labels_of(task)):
        raise TeamError(
            f"task {task.id!r} has no extra_info.documents, so no document's label is known: set team.search.checker ="
            ' "words", or give the team a checker'
        )
    reasons = {True: "as the task says", False: "the task does not name it"}
    return tuple(
        Verdict(each.id, labels.get(each.id, Label.IRRELEVANT), reasons[each.id in labels]) for each in documents
    )


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
