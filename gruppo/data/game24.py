"""Game of 24: rows, and the reward that checks an expression, since four numbers make 24 in more ways than one.

Schemas: AgentFlow's benchmark (question, a list of four numbers; answer, a list of solutions; 300 rows), nlile/24-game
on the hub (numbers, solutions, solvable), and the table of Tree of Thoughts (Puzzles, as "1 1 4 6"; arXiv 2305.10601).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from gruppo.data.answer_text import answers_of
from gruppo.data.tables import Row, first_of, shown
from gruppo.errors import DataError
from gruppo.types import Episode, Task

QUESTION = (
    "Write an expression that equals 24 with the numbers {numbers}, each exactly once, the operations +, -, * and /, "
    "and parentheses."
)
MAX_CHARACTERS = 200

_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")", "{": "(", "}": ")"})
_TEX = re.compile(r"\\(?:times|cdot)")


def read_game24(row: Row, index: int) -> Task | str:
    """The task of a row. Its result is a solution, "" where none is published: use the reward `game24`."""
    if row.get("solvable") is False:
        return "has no solution"
    value = first_of(row, ("numbers", "question", "Puzzles", "puzzle"))
    texts = re.findall(r"[0-9]+", value) if isinstance(value, str) else answers_of(value)
    if len(texts) != 4 or not all(text.isdigit() for text in texts):
        raise DataError(f"expected four numbers, not {shown(value)}")
    numbers = [int(text) for text in texts]
    solutions = answers_of(first_of(row, ("solutions", "answer"), needed=False))
    extra = {"ground_truth": "24", "idx": index, "numbers": numbers, "solutions": solutions}
    question = QUESTION.format(numbers=", ".join(texts))
    return Task(str(index), question, solutions[0] if solutions else "", source="gameof24", extra_info=extra)


def game24(task: Task, episodes: Sequence[Episode]) -> list[float]:
    """A reward: 1.0 where the answer is an expression of the task's numbers, each once, that equals 24; else 0.0."""
    numbers = sorted(task.extra_info["numbers"])
    return [float(makes_24(episode.answer or "", numbers)) for episode in episodes]


def makes_24(expression: str, numbers: Sequence[int]) -> bool:
    """Whether an expression, perhaps followed by "= 24", uses exactly these numbers and equals 24."""
    text = _TEX.sub("*", expression.strip().strip("$").strip()).translate(_SIGNS)
    left, equals, right = text.partition("=")
    if len(text) > MAX_CHARACTERS or (equals and right.strip() != "24"):
        return False
    tokens = _TOKEN.findall(left)
    if _TOKEN.sub("", left).strip() or sorted(int(token) for token in tokens if token.isdigit()) != sorted(numbers):
        return False
    try:
        value, rest = _sum(tokens)
    except (ZeroDivisionError, ValueError):
        return False
    return not rest and value == 24


def _sum(tokens: list[str]) -> tuple[Fraction, list[str]]:
    value, rest = _product(tokens)
    while rest and rest[0] in "+-":
        term, after = _product(rest[1:])
        value, rest = (value + term if rest[0] == "+" else value - term), after
    return value, rest


def _product(tokens: list[str]) -> tuple[Fraction, list[str]]:
    value, rest = _factor(tokens)
    while rest and rest[0] in "*/":
        factor, after = _factor(rest[1:])
        value, rest = (value * factor if rest[0] == "*" else value / factor), after
    return value, rest


def _factor(tokens: list[str]) -> tuple[Fraction, list[str]]:
    if tokens and tokens[0].isdigit():
        return Fraction(int(tokens[0])), tokens[1:]
    if tokens and tokens[0] == "(":
        value, rest = _sum(tokens[1:])
        if rest[:1] == [")"]:
            return value, rest[1:]
    raise ValueError("not an expression")
