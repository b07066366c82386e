"""Reads the numeral at a place of a text: grouped, spaced, European, repeating, mixed, in another base; exactly.

It recognises how people and models write one number; `reader.py` reads what numbers are put together to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gruppo.rewards.maths.expressions import Node, Number, Operation, Unreadable

MAX_DIGITS = 1_000  # of a number
MAX_EXPONENT = 1_000  # of scientific notation

_NUMBER = re.compile(
    r"(?P<repeating>[0-9]*\.[0-9]*\\(?:overline|bar|dot)\s*\{?[0-9]+\}?)"
    r"|(?P<european>[0-9]{1,3}(?:\.[0-9]{3}){2,}(?:,[0-9]+)?(?![0-9.])|[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{1,2}(?![0-9,]))"
    r"|(?P<spaced>[0-9]{1,3}(?:[ '][0-9]{3})+(?:\.[0-9]+)?(?![0-9/]))"
    r"|(?P<plain>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:\.(?![0-9A-Za-z\\]))?)"
)
_GROUPED = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3})(?:\.[0-9]+)?(?![0-9]|,[0-9])")
_DECIMAL_COMMA = re.compile(r"[0-9]+,[0-9]+(?![0-9,])")
_MIXED = re.compile(r"\s+([0-9]{1,9})\s*/\s*([0-9]{1,9})(?![0-9.])")
_MIXED_LATEX = re.compile(r"\s*\\[dtc]?frac\s*(?:\{\s*([0-9]{1,9})\s*\}|([0-9]))\s*(?:\{\s*([0-9]{1,9})\s*\}|([0-9]))")
_BASE = re.compile(r"_\s*(?:\{\s*([0-9]{1,2})\s*\}|([0-9]{1,2}))")


@dataclass(frozen=True)
class Reading:
    """What a notation that means several things is taken for."""

    comma: str = "separator"  # or "thousands" or "decimal"
    letters_are_units: bool = True  # "5 m" is five metres, not five times m


def numeral_at(text: str, place: int, reading: Reading) -> tuple[Node, int]:
    """The number that begins at `place`, and where it ends. Raises Unreadable."""
    pattern = {"thousands": _GROUPED, "decimal": _DECIMAL_COMMA}.get(reading.comma)
    if pattern and (match := pattern.match(text, place)):
        return decimal(match[0].replace(",", "." if pattern is _DECIMAL_COMMA else "")), match.end()
    match = _NUMBER.match(text, place)
    if match is None:
        raise Unreadable(f"can't read {text[place : place + 20]!r}")
    digits, end = match[0], match.end()
    if len(digits) > MAX_DIGITS:
        raise Unreadable(f"more than {MAX_DIGITS} digits")
    if match["repeating"]:
        return repeating(digits), end
    if match["european"]:
        return decimal(digits.replace(".", "").replace(",", ".")), end
    if match["spaced"]:
        return decimal(digits.replace(" ", "").replace("'", "")), end
    if not digits.isdigit():
        return decimal(digits.rstrip(".")), end
    if base := _BASE.match(text, end):
        return based(digits, int(base[1] or base[2])), base.end()
    for mixed in (_MIXED, _MIXED_LATEX):
        if found := mixed.match(text, end):
            over, under = (int(group) for group in found.groups() if group)
            if 0 < over < under:
                return Number(int(digits) + Fraction(over, under)), found.end()
    return Number(Fraction(int(digits))), end


def decimal(digits: str) -> Number:
    """A decimal numeral, perhaps with an exponent; its error is one unit of its last place."""
    if len(digits) > MAX_DIGITS:
        raise Unreadable(f"more than {MAX_DIGITS} digits")
    mantissa, _, exponent = digits.casefold().partition("e")
    if len(exponent) > 5 or abs(int(exponent or 0)) > MAX_EXPONENT:
        raise Unreadable("a number too large or too small")
    places = len(mantissa.partition(".")[2])
    error = Fraction(10) ** (int(exponent or 0) - places) if places else Fraction(0)
    return Number(Fraction(mantissa) * Fraction(10) ** int(exponent or 0), error)


def repeating(text: str) -> Number:
    r"""0.1\overline{6}, exactly."""
    whole, _, rest = re.sub(r"\\(?:overline|bar|dot)\s*\{?", ",", text).rstrip("}").partition(".")
    fixed, _, period = rest.partition(",")
    shift = Fraction(10) ** len(fixed)
    return Number(Fraction(int(whole or 0)) + (int(fixed or 0) + Fraction(int(period), 10 ** len(period) - 1)) / shift)


def based(digits: str, base: int) -> Node:
    if not 2 <= base <= 10 or any(int(digit) >= base for digit in digits):
        raise Unreadable(f"{digits} is no number in base {base}")
    return Operation("base", (Number(Fraction(int(digits))), Number(Fraction(base))))
