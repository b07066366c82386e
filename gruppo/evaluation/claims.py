"""What a text claims to have calculated: "12 * 12 = 154", "the square of 12 is 154", and whether it is so.

Arithmetic with plain numbers only, computed exactly; whatever could be algebra, a rounding or another unit is not
judged. Pure, bounded, and no text is evaluated as code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from gruppo.rewards.maths.quantities import measure

MAX_CHARACTERS = 20_000  # of a text that is read
MAX_EXPONENT = 64
MAX_DIGITS = 30  # of a number; what has more is an identifier

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,30})(?:\.[0-9]{1,30})?"
_NUMBER = rf"[$€£]?{_DIGITS}"
_NO_UNIT = (
    r"and|or|of|is|are|was|equals?|makes|gives|times|plus|minus|divided|multiplied|mod|squared|cubed|remainder|x|to"
)
_UNIT = rf"(?:[ ]?(?:%|(?!(?:{_NO_UNIT})\b)[A-Za-z]{{2,15}}\b)(?:[ ](?!(?:{_NO_UNIT})\b)[A-Za-z]{{2,15}}\b)?)?"
_OPERATOR = (
    r"[ \t]*(?:\*\*|[-+*/×÷·^−]|(?<=[0-9 )])x(?=[0-9 ($])|\\times|\\div|\\cdot"
    r"|\b(?:times|plus|minus|divided by|multiplied by)\b)[ \t]*"
)
_TERM = rf"(?:\([ \t]*){{0,4}}[-−]?{_NUMBER}{_UNIT}(?:[ \t]*\)){{0,4}}"
_EXPRESSION = re.compile(rf"{_TERM}(?:{_OPERATOR}{_TERM}){{1,12}}")
_SQUARE = re.compile(rf"\b(?:square of (?P<a>{_NUMBER})|(?P<b>{_NUMBER})(?: squared|²))", re.IGNORECASE)
_OF_TWO = re.compile(
    rf"\b(?P<name>sum|product|difference) (?:of|between) (?P<a>{_NUMBER}){_UNIT} and (?P<b>{_NUMBER}){_UNIT}",
    re.IGNORECASE,
)
_EQUALS = re.compile(
    rf"[ \t]*(?:={{1,2}}|≈|\b(?:is|equals|makes|gives)\b)\s*(?:about\s|approximately\s)?(?P<stated>-?{_NUMBER})"
)
_BULLET = re.compile(r"(?:^|\n)[ \t]*[-*+•][ \t]+$")
_NOT_BEFORE = re.compile(
    r"(?:[-+*/×÷·^√(\[{−\\]|\b(?:mod|of|log|root|factor|sqrt|than|[A-Za-z0-9]))[ \t]*$|[\w][.,]$|[A-Za-z_]$"
)
_NOT_BEFORE_WORDS = re.compile(r"(?:[-+*/×÷·^√(]|\b(?:plus|minus|times|and|by|of))[ \t]*$|[A-Za-z_.,]$")
_NOT_BEHIND = re.compile(
    r"[A-Za-z0-9^/²³]|\s*(?:remainder|r\.? ?[0-9]|mod\b|[a-z]\b(?!\s+(?:and|or))|hundred|thousand|[mbt]r?illion|%)"
)
_GOES_ON = re.compile(rf"{_UNIT}{_OPERATOR}")
_TOKEN = re.compile(rf"{_NUMBER}|\*\*|[-+*/^()]")
_WORDS = {
    "×": "*", "·": "*", "÷": "/", "−": "-", "\\times": "*", "\\cdot": "*", "\\div": "/", "multiplied by": "*",
    "divided by": "/", "times": "*", "plus": "+", "minus": "-", "**": "^",
}  # fmt: skip
_WORD = re.compile("|".join(map(re.escape, sorted(_WORDS, key=len, reverse=True))))


@dataclass(frozen=True)
class Claim:
    """A stated calculation: `quote` as it stands in the text, from `start`; its operands, its value, what is stated."""

    quote: str
    start: int
    operands: tuple[Fraction, ...]
    value: Fraction
    stated: Fraction
    holds: bool


def claims_in(text: str) -> list[Claim]:
    """The claims of a text in their order."""
    text = text[:MAX_CHARACTERS]
    return sorted([*_written(text), *_worded(text)], key=lambda claim: claim.start)


def false_claim(text: str) -> Claim | None:
    """The first claim that does not hold and is not put right later in the text."""
    found = claims_in(text)
    right = {(tuple(sorted(claim.operands)), claim.value): claim.start for claim in found if claim.holds}
    wrong = [claim for claim in found if not claim.holds]
    return next((c for c in wrong if right.get((tuple(sorted(c.operands)), c.value), -1) < c.start), None)


def numbers_in(text: str) -> list[Fraction]:
    """Every number written with digits, signs left out."""
    return [_fraction(match) for match in re.findall(rf"(?<![A-Za-z0-9.]){_DIGITS}", text[:MAX_CHARACTERS])]


def _written(text: str) -> Iterator[Claim]:
    for match in _EXPRESSION.finditer(text):
        equals, before = _EQUALS.match(text, match.end()), text[max(0, match.start() - 12) : match.start()]
        if equals is None or _NOT_BEFORE.search(before) and not _BULLET.search(before):
            continue
        if _other_units(match[0], text[equals.end() : equals.end() + 20]):
            continue
        values = _values(match[0])
        if values is None:
            continue
        stated, behind = _fraction(equals["stated"]), text[equals.end() :][:40]
        others = [stated]
        if _GOES_ON.match(behind):  # "2 * 3 = 6 * 4 = 24" says 6, or the value of what follows
            onward = _EXPRESSION.match(text, equals.start("stated"))
            others += (onward and _values(onward[0])) or []
        elif _NOT_BEHIND.match(behind):
            continue
        is_divided = bool(re.search(r"[/÷]|divided|\\div", match[0]))
        holds = any(_near(value, other, equals["stated"], is_divided) for value in values for other in others)
        operands = tuple(map(_fraction, re.findall(_DIGITS, match[0])))
        yield Claim(text[match.start() : equals.end()], match.start(), operands, values[0], stated, holds)


def _worded(text: str) -> Iterator[Claim]:
    for match in [*_SQUARE.finditer(text), *_OF_TWO.finditer(text)]:
        equals = _EQUALS.match(text, match.end())
        before = text[max(0, match.start() - 12) : match.start()]
        if equals is None or _NOT_BEHIND.match(text[equals.end() :][:40]) or _NOT_BEFORE_WORDS.search(before):
            continue
        found = match.groupdict()
        operands = tuple(_fraction(found[name]) for name in ("a", "b") if found.get(name))
        if "name" in found:
            a, b = operands
            value = {"sum": a + b, "product": a * b, "difference": abs(a - b)}[found["name"].lower()]
        else:
            value = operands[0] ** 2
        stated = _fraction(equals["stated"])
        holds = _near(value, stated, equals["stated"], False)
        yield Claim(text[match.start() : equals.end()], match.start(), operands, value, stated, holds)


def _fraction(number: str) -> Fraction:
    return Fraction(re.sub(r"[$€£,\s]", "", number))


def _near(value: Fraction, stated: Fraction, written: str, is_divided: bool) -> bool:
    """Equal, or rounded to the digits that are written; of a division, also cut off there."""
    digits = len(written.rpartition(".")[2]) if "." in written else 0
    place = Fraction(1, 10**digits)
    distance = abs(value - stated)
    return distance * 2 <= place if not is_divided else distance < place


def _other_units(expression: str, behind: str) -> bool:
    """Whether the result is in another unit of the same kind than a term: 5 * 60 seconds = 5 minutes."""
    result = re.match(r"\s?([A-Za-z]{1,15})\b", behind)
    known = measure(result[1]) if result else None
    if known is None:
        return False
    terms = (measure(word) for word in re.findall(r"[0-9]\s?([A-Za-z]{1,15})\b", expression))
    return any(term is not None and term[0] == known[0] and term[1] != known[1] for term in terms)


def _values(expression: str) -> list[Fraction] | None:
    """What an expression may come to, a percentage being a hundredth or itself; None if it is not read."""
    plain = _WORD.sub(lambda match: _WORDS[match[0]], expression)
    plain = re.sub(r"(?<=[0-9\s)])x(?=[0-9\s($])", "*", plain)
    is_percent = "%" in plain
    if is_percent and re.search(r"[-+]", plain):
        return None  # "50 - 20%" takes a part of the 50
    found = []
    for text in [plain, re.sub(rf"({_DIGITS})\s?%", r"(\1/100)", plain)][: 1 + is_percent]:
        try:
            found.append(evaluate(_TOKEN.findall(text)))
        except (ValueError, ZeroDivisionError):
            return None
    return found


def evaluate(tokens: list[str]) -> Fraction:
    """The value of numbers, + - * / ^ and brackets. Raises ValueError for what is no expression or is too large."""
    value, rest = _sum(tokens, 0)
    if rest != len(tokens):
        raise ValueError(f"unexpected {tokens[rest]!r}")
    return value


def _sum(tokens: list[str], place: int) -> tuple[Fraction, int]:
    value, place = _product(tokens, place)
    while place < len(tokens) and tokens[place] in "+-":
        other, after = _product(tokens, place + 1)
        value, place = (value + other if tokens[place] == "+" else value - other), after
    return value, place


def _product(tokens: list[str], place: int) -> tuple[Fraction, int]:
    value, place = _power(tokens, place)
    while place < len(tokens) and tokens[place] in "*/":
        other, after = _power(tokens, place + 1)
        value, place = (value * other if tokens[place] == "*" else value / other), after
    return value, place


def _power(tokens: list[str], place: int) -> tuple[Fraction, int]:
    if place < len(tokens) and tokens[place] == "-":
        value, place = _power(tokens, place + 1)
        return -value, place
    value, place = _atom(tokens, place)
    if place < len(tokens) and tokens[place] in ("^", "**"):
        exponent, place = _power(tokens, place + 1)
        if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
            raise ValueError("the exponent is no small whole number")
        value = value ** int(exponent)
    return value, place


def _atom(tokens: list[str], place: int) -> tuple[Fraction, int]:
    if place >= len(tokens):
        raise ValueError("an expression that ends early")
    if tokens[place] == "(":
        value, place = _sum(tokens, place + 1)
        if place >= len(tokens) or tokens[place] != ")":
            raise ValueError("an open bracket")
        return value, place + 1
    return _fraction(tokens[place]), place + 1
