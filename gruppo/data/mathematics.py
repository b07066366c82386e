"""Rows of mathematics sets with short answers: DeepMath-103K, DAPO-Math-17k, AIME 2024, AMC 2023.

Schemas, as on the hub:

- zwhe99/DeepMath-103K: question, final_answer, difficulty, topic, r1_solution_1, r1_solution_2, r1_solution_3 (103,022
  rows; arXiv 2504.11456). The solutions are not read. 18 in 100 answers are Yes, No, True or False.
- BytedTsinghua-SIA/DAPO-Math-17k and AIME-2024: data_source, prompt [{role, content}], ability,
  reward_model {ground_truth, style}, extra_info {index} (arXiv 2503.14476). Each prompt is there about 100 times.
- Maxwell-Jia/AIME_2024: ID ("2024-I-12"), Problem, Solution, Answer; HuggingFaceH4/aime_2024: id, problem, solution,
  answer, url, year; AgentFlow's benchmark: pid, question, answer, with an instruction glued to the question.
- math-ai/amc23 and AgentFlow's benchmark: id or pid, question, answer (a number, sometimes 27.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gruppo.data.answer_text import is_nothing, joined, plain_number
from gruppo.data.instruction import with_instruction, without_instruction
from gruppo.data.tables import Row, first_of, text_in
from gruppo.errors import DataError
from gruppo.types import Task

AIME_2024 = {
    "I": (204, 25, 809, 116, 104, 294, 540, 197, 480, 113, 371, 385, 110, 104, 721),
    "II": (73, 236, 45, 33, 80, 55, 699, 127, 902, 468, 601, 23, 321, 211, 315),
}
"""The official answers, compared with the Art of Problem Solving's answer keys and with the 30 of AgentFlow's file; the
former had 384 for I-12 until 4 February 2024, and copies of it still do."""

_AIME_ID = re.compile(r"2024[^0-9]*?[_ -](II|I)[_ -](?:Problems/Problem_)?0*([0-9]{1,2})", re.IGNORECASE)
_DAPO_BEFORE = re.compile(r"\ASolve the following math problem step by step\.[^\n]*\n+")
_DAPO_AFTER = re.compile(r"\n+Remember to put your answer on its own line after \"Answer:\"\.?\s*\Z")


def read_deepmath(row: Row, index: int) -> Task | str:
    """The task of a row of DeepMath; its source is "mathhard", as its users call it."""
    question = text_in(row, ("question", "Problem"))
    answer = first_of(row, ("final_answer", "Answer"))
    result = joined(answer)
    if not result:
        return "no answer"
    extra = {"ground_truth": result, "idx": index}
    return Task(str(index), question, result, source="mathhard", extra_info=extra | _kept(row, ("difficulty", "topic")))


def read_dapo(row: Row, index: int) -> Task | str:
    """The task of a row of DAPO-Math-17k: the problem without the instruction around it."""
    prompt = first_of(row, ("prompt", "problem", "question"))
    problem = without_instruction(_DAPO_AFTER.sub("", _DAPO_BEFORE.sub("", _content(prompt))))
    if not problem:
        raise DataError("column 'prompt' is empty; every task needs one")
    reward = row.get("reward_model")
    gold = reward.get("ground_truth") if isinstance(reward, Mapping) else first_of(row, ("answer", "ground_truth"))
    result = _number_or_text(gold)
    if not result:
        return "no answer"
    given = row.get("extra_info")
    own = given.get("index") if isinstance(given, Mapping) else None
    extra = {"ground_truth": result, "idx": index} | ({} if own is None else {"index": own})
    return Task(str(index), problem, result, source=str(row.get("data_source") or "math_dapo"), extra_info=extra)


def read_aime(row: Row, index: int) -> Task:
    """The task of a row of AIME 2024: the problem with our instruction once, the answer without leading zeros.

    Where the row says which problem it is, its answer is the official one; a published one that differs is kept as
    `published_answer` in extra_info.
    """
    if "prompt" in row:
        task = read_dapo(row, index)
        if isinstance(task, str):
            raise DataError(task)
        problem, published, name = task.question, task.result, None
    else:
        problem = without_instruction(text_in(row, ("Problem", "problem", "question", "query")))
        published, name = _number_or_text(first_of(row, ("Answer", "answer"))), aime_name(row)
    if not problem:
        raise DataError("column 'Problem' is empty; every task needs one")
    result = official_answer(name) if name else published
    if not result:
        raise DataError("column 'Answer' is empty; every task needs one")
    extra: dict[str, Any] = {"ground_truth": result, "idx": index, "original_problem": problem}
    if name:
        extra["problem"] = name
    if published and published != result:
        extra["published_answer"] = published
    return Task(str(index), with_instruction(problem), result, source="aime2024", extra_info=extra)


def aime_name(row: Row) -> str | None:
    """Which problem of AIME 2024 a row is, as "2024-I-12", by its ID or its address; None if neither is there."""
    for column in ("ID", "id", "url", "problem_idx"):
        match = _AIME_ID.search(str(row.get(column, "")))
        if match and 1 <= int(match[2]) <= 15:
            return f"2024-{match[1].upper()}-{int(match[2])}"
    return None


def official_answer(name: str) -> str:
    """The official answer to "2024-I-12": "385"."""
    _, contest, number = name.split("-")
    return str(AIME_2024[contest][int(number) - 1])


def read_amc(row: Row, index: int) -> Task | str:
    """The task of a row of AMC 2023."""
    question = without_instruction(text_in(row, ("question", "problem", "query")))
    result = _number_or_text(row.get("answer"))
    if not result:
        return "no answer"
    extra = {"ground_truth": result, "idx": index}
    return Task(str(index), question, result, source="amc23", extra_info=extra)


def _number_or_text(value: Any) -> str:
    text = joined(value)
    return plain_number(text) or text


def _content(prompt: Any) -> str:
    """The text of the last message of a chat, or the text itself."""
    if isinstance(prompt, str):
        return prompt.strip()
    messages = prompt.tolist() if "tolist" in dir(prompt) else prompt
    if isinstance(messages, Sequence) and messages and isinstance(messages[-1], Mapping):
        return str(messages[-1].get("content") or "").strip()
    raise DataError(f"column 'prompt': expected text or a list of messages, not {str(prompt)[:60]!r}")


def _kept(row: Row, columns: Sequence[str]) -> Row:
    return {column: row[column] for column in columns if not is_nothing(row.get(column))}
