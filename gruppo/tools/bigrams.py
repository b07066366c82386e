"""Chinese, Japanese and Korean text as pairs of neighbouring characters, since no blanks part its words.

The usual way to search such text without a dictionary (Lucene's CJKBigramFilter does it). Other text stays as it is.
"""

from __future__ import annotations

import re
import unicodedata

# Ideographs with their extensions, kana, hangul syllables.
_LETTER = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LETTER += "\u3041-\u3096\u30a1-\u30fa\u30fc\uac00-\ud7a3"
_RUN = re.compile(f"[{_LETTER}]+")
_WIDE = re.compile(f"[{_LETTER}\uff01-\uffdc]")


def indexed(text: str) -> str:
    """The text as it is indexed: every pair of a run, and its last character, so that each one begins some word."""
    if not _WIDE.search(text):
        return text
    return _RUN.sub(lambda match: f" {' '.join((*_pairs(match[0]), match[0][-1]))} ", _narrow(text))


def asked(text: str) -> str:
    """The text as it is searched for: every pair of a run; a character alone stands for what begins with it."""
    if not _WIDE.search(text):
        return text
    return _RUN.sub(lambda match: f" {' '.join(_pairs(match[0])) or match[0]} ", _narrow(text))


def is_character(word: str) -> bool:
    """Whether a word is one such character."""
    return _RUN.fullmatch(word) is not None and len(word) == 1


def runs(text: str) -> list[str]:
    """The runs of such characters in a text."""
    return _RUN.findall(text)


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]


def _narrow(text: str) -> str:
    """Full-width letters and digits, and half-width kana, as the usual ones."""
    return unicodedata.normalize("NFKC", text)
