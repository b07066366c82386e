"""Text of scripts without blanks (Chinese, Japanese, Korean, Thai and their like) as pairs of neighbouring characters.

The usual way to search such text without a dictionary (Lucene's CJKBigramFilter does it). Other words stay whole.
"""

from __future__ import annotations

import re

from gruppo.words import UNSPACED, folded, words

_RUN = re.compile(f"[{UNSPACED}]+")


def indexed(text: str) -> str:
    """The text as it is indexed: every pair of a run, and its last character, so that each one begins some word."""
    if text.isascii():
        return text
    return _RUN.sub(lambda match: f" {' '.join((*_pairs(match[0]), match[0][-1]))} ", folded(text))


def asked(text: str) -> list[str]:
    """The words that are searched for: every pair of a run; a character alone stands for what begins with it."""
    return [part for word in words(text) for part in ((_pairs(word) if _RUN.fullmatch(word) else []) or [word])]


def is_character(word: str) -> bool:
    """Whether a word is one such character."""
    return len(word) == 1 and _RUN.fullmatch(word) is not None


def runs(text: str) -> list[str]:
    """The runs of such characters in a text."""
    return _RUN.findall(folded(text))


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]
