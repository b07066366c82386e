"""Whether two expressions are worth the same: exactly where both are rational, else by their values at fixed points.

A pure, bounded computation. None means that it can't be decided here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction

from gruppo.rewards.maths.arithmetic import Exact, Inexact, TooLarge, exact, numeric, symbols
from gruppo.rewards.maths.expressions import Node, Number, Operation, Symbol, parts
from gruppo.rewards.maths.quantities import measure

TOLERANCE = Fraction(1, 100_000)
"""How far apart, relatively, a decimal and the number that it is rounded from may be."""

_NOISE = 1e-9  # relative: what floating point adds to a value that is computed
_ALMOST_ZERO = 1e-14
_NOISY_DIGITS = 14  # of a decimal that shows such noise, as 0.30000000000000004 does
_NUM_POINTS = 7
_GOLDEN = (math.sqrt(5) - 1) / 2
_UNDEFINED = (ArithmeticError, ValueError, TypeError, KeyError)


def same_value(prediction: Node, gold: Node) -> bool | None:
    """Whether two expressions are the same number or the same function, their units and percent signs considered.

    A gold answer in another base is to be given in it: its digits, the base itself may be left out.
    """
    if isinstance(gold, Operation) and gold.name == "base":
        return prediction in (gold, gold.operands[0])
    ours, our_unit = quantity(prediction)
    theirs, their_unit = quantity(gold)
    if our_unit and their_unit and (scale := proportion(our_unit, their_unit)) != 1:
        if not scale:
            return False
        ours = Operation("*", (ours, Number(scale)))
    verdicts = [same_number(*pair) for pair in percents(ours, theirs)]
    return True if True in verdicts else None if None in verdicts else False


def quantity(node: Node) -> tuple[Node, str]:
    """The value and its unit, "" if there is none."""
    if isinstance(node, Operation) and node.name == "unit":
        value, inner = quantity(node.operands[0])
        return value, inner or node.detail
    if isinstance(node, Operation) and node.name == "neg":
        value, unit = quantity(node.operands[0])
        return Operation("neg", (value,)), unit
    return node, ""


def proportion(ours: str, theirs: str) -> Fraction:
    """How many of their units one of ours is; 1 if either is unknown, 0 if they don't measure the same."""
    our_parts, their_parts = (re.split(r"\s*/\s*|\s*\bper\b\s*", unit.casefold()) for unit in (ours, theirs))
    if len(our_parts) != len(their_parts):
        return Fraction(1)
    scale = Fraction(1)
    for place, (our, their) in enumerate(zip(our_parts, their_parts, strict=True)):
        known, other = measure(our), measure(their)
        if known and other:
            if known[0] != other[0]:
                return Fraction(0)
            scale *= (known[1] / other[1]) ** (-1 if place else 1)
    return scale


def percents(ours: Node, theirs: Node) -> Iterator[tuple[Node, Node]]:
    """The pairs to compare: 35% is 35% and, where the other side has no percent sign, also 35 and 0.35."""
    signs = [isinstance(node, Operation) and node.name == "%" for node in (ours, theirs)]
    yield ours, theirs
    if signs[0] != signs[1]:
        yield parts(ours)[0] if signs[0] else ours, parts(theirs)[0] if signs[1] else theirs


def same_number(ours: Node, theirs: Node) -> bool | None:
    """Whether two expressions without units are equal."""
    signs = infinite(ours), infinite(theirs)
    if any(signs):
        return signs[0] == signs[1]
    left, right = as_exact(ours), as_exact(theirs)
    if left and right:
        return close(left, right)
    names = sorted(symbols(ours) | symbols(theirs))
    pairs = list(values_at_points(ours, theirs, names))
    if not names:
        return bool(pairs) and near(*pairs[0], left or right) if pairs else None
    if len(pairs) < 3:
        return None
    return all(near(*pair) for pair in pairs)


def infinite(node: Node) -> int:
    """1 or -1 for infinity with its sign, else 0."""
    if isinstance(node, Operation) and node.name == "neg":
        return -infinite(node.operands[0])
    return int(node == Symbol("oo"))


def as_exact(node: Node) -> Exact | None:
    try:
        return exact(node)
    except (Inexact, TooLarge, ZeroDivisionError):
        return None


def close(ours: Exact, theirs: Exact) -> bool:
    """Equal; or one is a decimal that the other one rounds to (its last place open), and the two within TOLERANCE."""
    difference = abs(ours.value - theirs.value)
    if not difference:
        return True
    error = max(ours.error, theirs.error)
    scale = max(abs(ours.value), abs(theirs.value))
    if not error or difference > TOLERANCE * scale:
        return False
    finest = min(number.error for number in (ours, theirs) if number.error)
    is_noise = finest * 10 ** (_NOISY_DIGITS - 1) <= scale and difference * 10**9 <= scale
    return difference < error or is_noise


def near(ours: complex, theirs: complex, decimal: Exact | None = None) -> bool:
    """The same but for the noise of floating point; or rounded to `decimal`, which is one of the two."""
    difference, scale = abs(ours - theirs), max(abs(ours), abs(theirs))
    if difference <= max(_NOISE * scale, _ALMOST_ZERO):
        return True
    return decimal is not None and difference < decimal.error and difference <= TOLERANCE * scale


def values_at_points(ours: Node, theirs: Node, names: list[str]) -> Iterator[tuple[complex, complex]]:
    """Values of both where both have one; a point with negatives counts only if both are real there, or neither is."""
    for number in range(_NUM_POINTS if names else 1):
        point = {name: point_of(place, number) for place, name in enumerate(names)}
        try:
            left, right = numeric(ours, point), numeric(theirs, point)
        except _UNDEFINED:
            continue
        if not (math.isfinite(abs(left)) and math.isfinite(abs(right))):
            continue
        are_real = [abs(value.imag) <= _NOISE * abs(value) for value in (left, right)]
        if number < 4 or are_real[0] == are_real[1]:
            yield left, right


def point_of(place: int, number: int) -> complex:
    """Between 0.5 and 2.5; the last three points have negative coordinates."""
    value = 0.5 + 2 * ((place + 1) * (number + 2) * _GOLDEN + 0.37 * number) % 2
    is_negative = number == 4 or (number > 4 and (place + number) % 2 == 1)
    return complex(-value if is_negative else value)
