"""Rows of open-domain question sets: Natural Questions, HotpotQA, 2WikiMultiHopQA, MuSiQue, Bamboogle, GAIA.

Schemas:

- RUC-NLPIR/FlashRAG_datasets on the hub (arXiv 2405.13576), one folder per set: id, question, golden_answers, metadata.
  golden_answers is a list of texts, but single numbers and texts were met. Natural Questions: 79,168 rows for training.
- The originals: HotpotQA (_id or id, question, answer), 2WikiMultiHopQA (_id, question, answer), MuSiQue (id, question,
  answer, answer_aliases, answerable), Bamboogle (Question, Answer).
- gaia-benchmark/GAIA (arXiv 2311.12983): task_id, Question, Level, Final answer, file_name, file_path, Annotator
  Metadata; as Parquet since October 2025, as metadata.jsonl before.
- AgentFlow's benchmark files: pid, query or question, answer.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from gruppo.data.answer_text import SEPARATOR, answers_of, is_nothing, normalised
from gruppo.data.instruction import without_instruction
from gruppo.data.tables import Row, first_of, text_in
from gruppo.types import Task

QUESTIONS = ("question", "Question", "query")
ANSWERS = ("golden_answers", "answer", "Answer", "Final answer", "final_answer", "answers")
IDS = ("id", "_id", "task_id", "pid", "ID")

_ASKS = re.compile(r"[?？؟][\"'”’»)\]\s]*\Z")


def read_question(row: Row, index: int, source: str, mark: bool = False) -> Task | str:
    """The task of a row, or why it is left out. All accepted answers are joined by "; ".

    `mark` adds a question mark where the question has none.
    """
    question = without_instruction(text_in(row, QUESTIONS))
    answers = answers_of(first_of(row, ANSWERS))
    seen = {normalised(answer) for answer in answers}
    answers += [alias for alias in answers_of(row.get("answer_aliases")) if normalised(alias) not in seen]
    if row.get("answerable") is False:
        return "not answerable"
    if not answers:
        return "no answer"
    result = SEPARATOR.join(answers)
    own = first_of(row, IDS, needed=False)
    extra = {"ground_truth": result, "idx": index} | ({} if is_nothing(own) else {"original_id": str(own)})
    return Task(str(index), asked(question) if mark else question, result, source=source, extra_info=extra)


def asked(question: str) -> str:
    """The question with a question mark at its end, once."""
    bare = question.strip()
    return bare if not bare or _ASKS.search(bare) else f"{bare}?"


def read_gaia(row: Row, index: int) -> Task | str:
    """The task of a row of GAIA that is text alone; those with a file to read, or a secret answer, are left out."""
    if not is_nothing(row.get("file_name")):
        return "needs a file"
    answers = answers_of(first_of(row, ANSWERS))
    if answers == ["?"]:
        return "its answer is not public"
    task = read_question(row, index, "gaia")
    level = str(row.get("Level"))
    if isinstance(task, Task) and level.isdecimal():
        return replace(task, extra_info={**task.extra_info, "difficulty": int(level)})
    return task


read_nq = partial(read_question, source="nq", mark=True)
read_hotpotqa = partial(read_question, source="hotpotqa")
read_2wiki = partial(read_question, source="2wiki")
read_musique = partial(read_question, source="musique")
read_bamboogle = partial(read_question, source="bamboogle")
