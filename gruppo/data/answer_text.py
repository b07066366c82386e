"""What an answer column holds, as text: lists, arrays, numbers, nothing. And what kind of answer a text is.

Every reader of a data set goes through here, so that 3.0, "3" and ["3"] are one answer everywhere. It compares nothing:
whether an answer is right is the business of the rewards.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

from gruppo.errors import DataError

NO_ANSWER = frozenset({"", "nan", "none", "null", "n/a", "<na>", "nat"})
SEPARATOR = "; "

_MINUS = re.compile("[\u2212\u2012\u2013\ufe63\uff0d]")
_GROUPED = re.compile(r"[0-9]{1,3}(?:[,\u2009\u202f\u00a0 '][0-9]{3})+|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}")
_CURRENCY = "$€£¥"
_NUMBER = re.compile(r"([+-]?)([0-9]+)(\.[0-9]*)?|([+-]?)(\.[0-9]+)")


def answers_of(value: Any, in_list: bool = False) -> list[str]:
    """The answers in a cell: text, a number, a list, tuple, set or array of them, nested or not; none if it is empty.

    NaN and None, which is how tables write "missing", are no answer, nor is blank text. A text that is a JSON list of
    texts is a list. Raises DataError for anything else.
    """
    if is_nothing(value):
        return []
    if _is_array(value):
        return answers_of(value.tolist(), in_list)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [answer for item in items for answer in answers_of(item, True)]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        listed = None if in_list else _json_list(value)
        return answers_of(listed) if listed is not None else [value.strip()]
    if isinstance(value, bool):
        return [str(value)]
    if isinstance(value, int | float | Decimal | Fraction):
        return [number_text(value)]
    if isinstance(value, date):
        return [value.isoformat()]
    shown = repr(value)
    raise DataError(f"expected an answer (text, a number or a list of them), not {shown[:60]}")


def joined(value: Any) -> str:
    """All answers of a cell in one text, "" for none."""
    return SEPARATOR.join(answers_of(value))


def is_nothing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN (of any library), or blank text. An empty list is one without answers."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    if isinstance(value, float | Decimal):
        return math.isnan(value)
    return _library(value) in ("pandas", "numpy") and str(value).casefold() in NO_ANSWER


def number_text(number: int | float | Decimal | Fraction) -> str:
    """A number as one writes it: a whole one without a point, never in scientific notation. Raises DataError if it is
    infinite."""
    if isinstance(number, Fraction):
        return str(number)
    if isinstance(number, int):
        return str(number)
    if math.isinf(number):
        raise DataError(f"expected an answer, not the number {number}")
    if number == int(number):
        return str(int(number))
    return format(Decimal(repr(number)) if isinstance(number, float) else number, "f")


def plain_number(text: str) -> str | None:
    """A number in digits without its thousands separators, currency sign, percent sign and closing point, or None.

    "$2,125.00" is "2125.00", "-7." is "-7" (with the minus sign of typography too), "1 000" is "1000", "073" is "73".
    """
    bare = _MINUS.sub("-", text.strip()).removesuffix(".").strip()
    sign = bare[:1] if bare[:1] in "+-" else ""
    bare = bare.removeprefix(sign).strip().strip(_CURRENCY).strip()
    if not sign and bare[:1] in ("-", "+"):  # after the currency
        sign, bare = bare[0], bare[1:].strip()
    if bare[:1] in ("-", "+"):
        return None
    bare = bare.removesuffix(r"\%").removesuffix("%").strip()
    whole, point, decimals = bare.partition(".")
    if _GROUPED.fullmatch(whole):
        whole = re.sub(r"[^0-9]", "", whole)
    match = _NUMBER.fullmatch(whole + point + decimals) if (whole + decimals).isascii() else None
    if not match:
        return None
    digits = (whole.lstrip("0") or "0") + (f".{decimals}" if decimals else "")
    return ("-" if sign == "-" else "") + digits


def _json_list(text: str) -> list[Any] | None:
    """The list that a text writes out, as tables keep lists in one cell: `["a", "b"]`, but not the interval [1, 2]."""
    if not (text.lstrip().startswith('["') and text.rstrip().endswith("]")):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list) and all(isinstance(item, str | None) for item in value) else None


def _is_array(value: Any) -> bool:
    return _library(value) in ("numpy", "torch") and "tolist" in dir(value)


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


# ---- kinds of answers ------------------------------------------------------------------------------------------------

ROUTES = {
    "number": "rule",
    "boolean": "rule",
    "choice": "rule",
    "list": "rule",
    "equation": "rule",
    "expression": "rule",
    "text": "judge or exact text",
    "none": "no score",
}
"""Kind of answer -> who can tell whether a prediction equals it. Rules for numbers give 0 to every text."""

_WRAPPED = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|boxed|operatorname)\s*\{([^{}]*)\}|\$")
_DEGREES = re.compile(r"(?<=[0-9])\s*(?:\^\s*\{?\\circ\}?|°)$")
_BOOLEAN = frozenset({"yes", "no", "true", "false"})
_CHOICE = re.compile(r"\(?([A-Z])\)?[.:)]?")
_UNIT = re.compile(r"(?:\\ |[°%]|[^\W\d_]+)(?:\s?[^\W\d_]+|[/^·²³]\S*)?")
_QUANTITY = re.compile(
    r"[+-]?[\d.,]*\d[\d.,]*(?:\s*(?:[/:]|(?:\\times|\*|×)\s*10\s*\^?)\s*\{?[+-]?\d+\}?)?|[+-]?\d+e[+-]?\d+"
)
_FRACTION = re.compile(r"[+-]?\s*\\[dt]?frac\s*(?:\{\s*-?\d+\s*\}|\d)\s*(?:\{\s*-?\d+\s*\}|\d)")
_BRACKETED = re.compile(r"(?:\\left)?\s*(?:[\[(]|\\\{|\\langle)(.*)(?:[\])]|\\\}|\\rangle)")
_RELATION = re.compile(r"(?<![<>!:=])=(?!=)|\\equiv|\\cong|\\sim|≡")
_COMMAND = re.compile(r"\\[A-Za-z]+\*?")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FUNCTION = re.compile(
    r"(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|arcsin|arccos|arctan|pi|mod|gcd|lcm|max|min|det|inf)"
)
_MATHEMATICAL = re.compile(
    r"[\^_*/+<>|=∞π√±×÷∪∩]|\\[A-Za-z]+|\d[A-Za-z]|[A-Za-z]\(|[A-Za-z0-9)]!|[A-Za-z0-9]\s-\s?[A-Za-z0-9]"
)


def answer_type(text: str) -> str:
    """One of ROUTES: by the form of a gold answer. Alternatives ("a; b") are of one kind, or text."""
    bare = unicodedata.normalize("NFKC", _MINUS.sub("-", text)).strip()
    bare = _DEGREES.sub("", _WRAPPED.sub(lambda match: match[1] or "", bare).strip())
    if bare.casefold() in NO_ANSWER:
        return "none"
    if SEPARATOR in bare and not _BRACKETED.fullmatch(bare):
        kinds = {answer_type(part) for part in bare.split(SEPARATOR)} - {"none"}
        return kinds.pop() if len(kinds) == 1 else "text"
    if bare.rstrip(".!").casefold() in _BOOLEAN:
        return "boolean"
    if _CHOICE.fullmatch(bare):
        return "choice"
    return _type_of_value(bare)


def _type_of_value(bare: str) -> str:
    if plain_number(bare) is not None or _FRACTION.fullmatch(bare) or _QUANTITY.fullmatch(bare):
        return "number"
    if _is_prose(bare):
        return "number" if _has_unit(bare) else "text"
    bracketed = _BRACKETED.fullmatch(bare)
    if bracketed and "," in bracketed[1]:
        return "list"
    if _RELATION.search(bare):
        return "equation"
    if len(bare.split(",")) > 1 and all(part.strip() for part in bare.split(",")):
        return "list"
    is_symbol = len(bare) == 1 or _FUNCTION.fullmatch(bare)
    return "expression" if is_symbol or bracketed or _MATHEMATICAL.search(bare) else "text"


def _is_prose(bare: str) -> bool:
    """Whether there are words that are no names of functions."""
    return any(not _FUNCTION.fullmatch(word) for word in _words(_COMMAND.sub(" ", bare)))


def _has_unit(bare: str) -> bool:
    number = re.match(r"[$€£¥]?\s*[+-]?[\d.,]*\d", bare)
    return bool(number and _UNIT.fullmatch(bare[number.end() :].strip().rstrip(".")) and ":" not in bare)


def _words(text: str) -> Iterator[str]:
    """Words, but for one that is glued to others by mathematics: the factors of `abc^2` are no word."""
    for match in _WORD.finditer(text):
        before, after = text[max(match.start() - 1, 0) : match.start()], text[match.end() : match.end() + 1]
        if before not in tuple("0123456789^_{") and after not in tuple("^_(0123456789"):
            yield match[0]


def normalised(text: str) -> str:
    """A text as duplicates are found: one Unicode form, no case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
