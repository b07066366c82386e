"""Rows of multiple choice: GPQA and MedQA. The question ends with the lettered choices; the result is a letter.

Schemas:

- Idavidrein/gpqa on the hub (arXiv 2311.12022): Question, Correct Answer, Incorrect Answer 1, 2 and 3, Record ID,
  Subdomain, Explanation and many more. The right one comes first, so the order is drawn, by the question's own text.
- GBaker/MedQA-USMLE-4-options and the authors' files (arXiv 2009.13081): question, answer (a text), options {A: text},
  answer_idx (a letter), meta_info.
- AgentFlow's benchmark files: question, choices or options as "A. text", answer (the text, with or without its letter),
  answer_idx (a number). Some of its questions end with the options already, some twice.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from string import ascii_uppercase
from typing import Any

from gruppo.data.answer_text import is_nothing, joined
from gruppo.data.instruction import without_instruction
from gruppo.data.tables import Row, first_of, text_in
from gruppo.errors import DataError
from gruppo.types import Task

_LABEL = re.compile(r"\s*\(?([A-Z])[.):]\s+")
_HEADING = re.compile(r"\n\s*(?:choices|options|answer choices)\s*:\s*\Z", re.IGNORECASE)
_WRONG = tuple(f"Incorrect Answer {number}" for number in (1, 2, 3))


def read_gpqa(row: Row, index: int) -> Task:
    """The task of a row of GPQA. Choices that are not lettered yet get an order that depends on the question alone."""
    if "Correct Answer" not in row:
        return _lettered_row(row, index, "gpqa")
    question = text_in(row, ("Question",))
    right = text_in(row, ("Correct Answer",))
    choices = [right, *(text_in(row, (column,)) for column in _WRONG)]
    random.Random(question).shuffle(choices)
    task = _task(index, question, choices, choices.index(right), "gpqa")
    topic = row.get("Subdomain")
    kept = {} if is_nothing(topic) else {"topic": topic}
    return replace(task, extra_info={**task.extra_info, **kept})


def read_medqa(row: Row, index: int) -> Task:
    """The task of a row of MedQA."""
    return _lettered_row(row, index, "medqa")


def _lettered_row(row: Row, index: int, source: str) -> Task:
    question = without_instruction(text_in(row, ("question", "query")))
    choices = _choices(first_of(row, ("options", "choices")))
    while shorter := _without_choices(question, choices):
        question = shorter
    return _task(index, question, choices, _right(row, choices), source)


def _task(index: int, question: str, choices: list[str], right: int, source: str) -> Task:
    lines = [f"{letter}. {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False)]
    extra = {"ground_truth": ascii_uppercase[right], "idx": index, "choices": choices, "answer_text": choices[right]}
    return Task(str(index), "\n".join([question, "", *lines]), ascii_uppercase[right], source=source, extra_info=extra)


def _choices(value: Any) -> list[str]:
    """The texts of the choices in their order, without letters."""
    if isinstance(value, Mapping):
        found = [joined(value[letter]) for letter in sorted(value) if not is_nothing(value[letter])]
        letters = [letter for letter in sorted(value) if not is_nothing(value[letter])]
        if letters != list(ascii_uppercase[: len(letters)]):
            raise DataError(f"the letters of the options are {letters}, not {list(ascii_uppercase[: len(letters)])}")
        return _some(found)
    listed = value.tolist() if "tolist" in dir(value) else value
    if not isinstance(listed, list | tuple):
        raise DataError(f"expected a list of options, or a table by letter, not {str(value)[:60]!r}")
    found = [joined([option]) for option in listed]
    labels = [_LABEL.match(option) for option in found]
    if [label[1] for label in labels if label] == list(ascii_uppercase[: len(found)]):
        found = [option[label.end() :] for option, label in zip(found, labels, strict=True) if label]
    return _some(found)


def _some(choices: list[str]) -> list[str]:
    if len(choices) < 2 or len(choices) > len(ascii_uppercase) or not all(choices):
        raise DataError(f"expected 2 to 26 options with a text each, not {len(choices)}: {str(choices)[:60]}")
    return choices


def _right(row: Row, choices: list[str]) -> int:
    """Which choice is right: by its number or letter, which the text has to agree with, else by its text."""
    given, text = row.get("answer_idx"), joined(row.get("answer"))
    label = _LABEL.match(text)
    bare = text[label.end() :] if label and text not in choices else text
    by_text = [place for place, choice in enumerate(choices) if choice == bare]
    if is_nothing(given):
        if not by_text and len(text) == 1 and text in ascii_uppercase[: len(choices)]:
            by_text = [ascii_uppercase.index(text)]
        if not by_text:
            raise DataError(f"the answer {text[:60]!r} is none of the options")
        return by_text[0]
    name = str(given).strip().removesuffix(".0")
    place = int(name) if name.isdecimal() else ascii_uppercase.find(name) if len(name) == 1 else -1
    if not 0 <= place < len(choices):
        raise DataError(f"answer_idx = {given!r}: there are {len(choices)} options")
    if by_text and place not in by_text:
        raise DataError(f"answer_idx = {given!r}, but the answer {text[:60]!r} is option {ascii_uppercase[by_text[0]]}")
    return place


def _without_choices(question: str, choices: list[str]) -> str:
    """The question without the block of lettered choices at its end, "" if there is none."""
    for pattern in ("{}. {}", "({}) {}", "{}) {}", "{}: {}"):
        lines = [pattern.format(letter, choice) for letter, choice in zip(ascii_uppercase, choices, strict=False)]
        block = "\n".join(lines)
        if question.endswith(block) and len(question) > len(block):
            return _HEADING.sub("", question[: -len(block)].rstrip(" ") or "").rstrip()
    return ""
