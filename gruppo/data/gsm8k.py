"""Rows of GSM8K, and of anyone's table of worked solutions that end in `#### answer`.

Schema (Cobbe et al., arXiv 2110.14168; openai/gsm8k on the hub, and train.jsonl of the authors' repository): `question`
and `answer`, the working with its calculator marks `<<48/2=24>>`, then "#### 72". 7,473 rows for training, 1,319 for
testing; 79 and 14 of the answers have thousands separators.
"""

from __future__ import annotations

import re

from gruppo.data.answer_text import plain_number
from gruppo.data.tables import Row, text_in
from gruppo.errors import DataError
from gruppo.types import Task

_MARK = re.compile(r"(?<!#)####(?!#)")
_CALCULATION = re.compile(r"<<[^<>\n]*>>")


def read_gsm8k(row: Row, index: int) -> Task:
    """The task of a row; `chain` is the working as it stands. Raises DataError if no `####` marks an answer."""
    answer = text_in(row, ("answer", "solution"))
    chain, gold = split_answer(answer)
    extra = {"ground_truth": gold, "idx": index, "full_answer": answer.strip()}
    return Task(str(index), text_in(row, ("question", "problem")), gold, chain, "gsm8k", extra)


def split_answer(answer: str) -> tuple[str, str]:
    """The working and the final answer, which stands after the last `####` that something follows.

    A number is given without separators, currency and closing point; any other answer as it is.
    """
    marks = list(_MARK.finditer(answer))
    ends = [*[match.start() for match in marks[1:]], len(answer)][: len(marks)]
    for mark, end in reversed(list(zip(marks, ends, strict=True))):
        if found := answer[mark.end() : end].strip():
            gold = found.splitlines()[0].strip()
            return answer[: mark.start()].rstrip(), plain_number(gold) or gold
    raise DataError("no '####' with an answer after it")


def without_calculations(chain: str) -> str:
    """The working without its calculator marks."""
    return _CALCULATION.sub("", chain)
