"""The instruction to give the final answer in tags, in a question exactly once, or not at all.

Published copies of the same problem come with an instruction, without one, and with one glued to the last word.
"""

from __future__ import annotations

import re

ANSWER_INSTRUCTION = "Write the final answer between <answer> and </answer>, and nothing after it."

_END_OF_SENTENCE = re.compile(r"[.?!](?![0-9])|\n|\\[\])](?=\s*[A-Z])|\$(?=\s+[A-Z])")


def without_instruction(question: str) -> str:
    """The question without closing sentences that say how to mark the answer (tags or a box), and without blanks."""
    bare = question.strip()
    while "answer" in bare.casefold():
        ends = [match.end() for match in _END_OF_SENTENCE.finditer(bare.rstrip(" \n\t.?!"))]
        start = ends[-1] if ends else 0
        if start == 0 or not _is_about_marking(bare[start:].casefold()):
            break
        bare = bare[:start].rstrip()
    return bare


def with_instruction(question: str) -> str:
    """The question with our instruction, once, whatever one it had."""
    return f"{without_instruction(question)}\n\n{ANSWER_INSTRUCTION}"


def _is_about_marking(sentence: str) -> bool:
    return "<answer>" in sentence or "</answer>" in sentence or ("\\boxed" in sentence and "answer" in sentence)
