"""How texts of any script are compared: width, case and accents apart, and which characters are words of their own.

The search index and the check for leaks compare by it. It stems nothing and knows no dictionary.
"""

from __future__ import annotations

import re
import unicodedata

# Of scripts without blanks between words: ideographs, kana, hangul; Thai, Lao, Burmese and Khmer with their marks.
_IDEOGRAPHS = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_SYLLABLES = "\u3041-\u3096\u30a1-\u30fa\u30fc\uac00-\ud7a3"
_SOUTH_EAST = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u1780-\u17d3"
UNSPACED = f"{_IDEOGRAPHS}{_SYLLABLES}{_SOUTH_EAST}"
"""The inside of a character class of regular expressions."""

# Vowel signs of Indic scripts are part of a word; accents, Hebrew points, Arabic vowels, stretches, joiners are not.
_SIGNS = "".join(chr(at) for at in range(0x0900, 0x1D00) if unicodedata.category(chr(at)) in ("Mn", "Mc"))
_ACCENTS = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u0610-\u061a\u0640\u064b-\u065f\u0670\u200c\u200d\xad]"
)
_SPACED = f"[^\\W_{UNSPACED}](?:[^\\W_{UNSPACED}]|[{_SIGNS}])*"
_WORD = re.compile(f"{_SPACED}|[{UNSPACED}]+")
_NAME = re.compile(f"{_SPACED}|[{UNSPACED}]")


def folded(text: str) -> str:
    """The text as it is compared: full width is usual width, and there are neither capitals nor accents."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold())))


def words(text: str) -> list[str]:
    """The words of any text, folded: letters and digits only; a run of a script without blanks is one word."""
    return _WORD.findall(folded(text))


def letters(text: str) -> list[str]:
    """The same, each character of a script without blanks for itself, so that a name is found within a run."""
    return _NAME.findall(folded(text))
