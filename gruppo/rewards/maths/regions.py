"""Sets of real numbers as answers write them (intervals, unions, inequalities), brought to one form and compared.

It knows one variable. Only real intervals are regions; tuples and lists are compared by `equivalence.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from gruppo.rewards.maths.arithmetic import numeric, symbols
from gruppo.rewards.maths.expressions import Collection, Node, Number, Operation, Relation, Symbol, leaves, parts
from gruppo.rewards.maths.values import same_value

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
_LEAST, _GREATEST = Operation("neg", (Symbol("oo"),)), Symbol("oo")


class NoRegion(ValueError):
    """The answer is no set of real numbers, or none that is known here."""


@dataclass(frozen=True)
class Piece:
    """An interval; `low` and `high` are the values of its ends, the nodes how they are written."""

    low: float
    high: float
    has_low: bool
    has_high: bool
    low_node: Node
    high_node: Node

    @property
    def is_empty(self) -> bool:
        return self.low > self.high or (self.low == self.high and not (self.has_low and self.has_high))


def is_region(node: Node) -> bool:
    """Whether it can only be a region: half-open, with an infinite end, a union, or an inequality."""
    if isinstance(node, Relation):
        named = [side for side in node.sides if symbols(side)]
        is_one = len(named) == 1 and (is_label(named[0]) or len(symbols(named[0])) == 1)
        return is_one and set(node.signs) <= _FLIPPED.keys()
    if not isinstance(node, Collection):
        return False
    if node.kind in ("(]", "[)", "∪", "\\"):
        return True
    if node.kind in ("list", "or"):
        return bool(node.items) and all(is_region(item) for item in node.items)
    return node.kind in ("()", "[]") and Symbol("oo") in leaves(node)


def same_region(ours: Node, theirs: Node) -> bool:
    """Whether both are the same set. Raises NoRegion if one is none."""
    left, right = region(ours), region(theirs)
    return len(left) == len(right) and all(
        mine.has_low == other.has_low
        and mine.has_high == other.has_high
        and _same_end(mine.low, other.low, mine.low_node, other.low_node)
        and _same_end(mine.high, other.high, mine.high_node, other.high_node)
        for mine, other in zip(left, right, strict=True)
    )


def _same_end(low: float, other: float, node: Node, other_node: Node) -> bool:
    if math.isinf(low) or math.isinf(other):
        return low == other
    return bool(same_value(node, other_node))


def region(node: Node) -> list[Piece]:
    """Its pieces in order, apart from one another. Raises NoRegion."""
    if isinstance(node, Relation):
        return _joined(_inequalities(node))
    if not isinstance(node, Collection):
        raise NoRegion
    if node.kind == "∪" or (node.kind == "or" and is_region(node)):
        return _joined([piece for item in node.items for piece in region(item)])
    if node.kind == "\\":
        holes = [hole for item in node.items[1:] for hole in region(item)]
        return _intersection(region(node.items[0]), _complement(holes))
    if node.kind == "list" and is_region(node):
        common = region(node.items[0])
        for item in node.items[1:]:
            common = _intersection(common, region(item))
        return common or _joined([piece for item in node.items for piece in region(item)])
    if node.kind == "{}":
        return _joined([_piece(item, item, True, True) for item in node.items])
    if len(node.items) == 2 and node.kind in ("()", "[]", "(]", "[)"):
        return _joined([_piece(node.items[0], node.items[1], node.kind[0] == "[", node.kind[1] == "]")])
    raise NoRegion


def _piece(low: Node, high: Node, has_low: bool, has_high: bool) -> Piece:
    return Piece(_end(low), _end(high), has_low, has_high, low, high)


def _end(node: Node) -> float:
    if node == Symbol("oo"):
        return math.inf
    if isinstance(node, Operation) and node.name == "neg" and node.operands[0] == Symbol("oo"):
        return -math.inf
    try:
        value = numeric(node, {})
    except (ArithmeticError, ValueError, TypeError, KeyError) as error:
        raise NoRegion from error
    if value.imag or not math.isfinite(value.real):
        raise NoRegion
    return value.real


def _inequalities(relation: Relation) -> list[Piece]:
    pieces = [_piece(_LEAST, _GREATEST, False, False)]
    for sign, left, right in zip(relation.signs, relation.sides, relation.sides[1:], strict=False):
        pieces = _intersection(pieces, _inequality(sign, left, right))
    return pieces


def _inequality(sign: str, left: Node, right: Node) -> list[Piece]:
    """Of two sides that differ by a linear function of one variable, or one of which is a label, as f(x) is."""
    if sign not in _FLIPPED:
        raise NoRegion
    if symbols(right) and not symbols(left):
        left, right, sign = right, left, _FLIPPED[sign]
    if symbols(right) or not symbols(left):
        raise NoRegion
    bound, is_flipped = (right, False) if is_label(left) else _solve(left, right)
    sign = _FLIPPED[sign] if is_flipped else sign
    if sign == "!=":
        return _complement([_piece(bound, bound, True, True)])
    low, high = (_LEAST, bound) if sign in ("<", "<=") else (bound, _GREATEST)
    return [_piece(low, high, sign == ">=", sign == "<=")]


def is_label(node: Node) -> bool:
    """Whether a side of an equation names what the other side is: "x", "f(x)", "AB", "(x, y)"; without any number."""
    if isinstance(node, Collection):
        return node.kind in ("()", "ratio") and all(isinstance(item, Symbol) for item in node.items)
    if isinstance(node, Operation) and node.name not in ("*", "inv", "abs"):
        return False
    return all(isinstance(leaf, Symbol) for leaf in leaves(node)) and all(is_label(part) for part in parts(node))


def _solve(left: Node, right: Node) -> tuple[Node, bool]:
    """Where a linear function of the left's variable reaches the right side, and whether it falls."""
    names = symbols(left)
    if len(names) != 1:
        raise NoRegion
    try:
        at = [numeric(left, {next(iter(names)): complex(x)}).real - numeric(right, {}).real for x in (0, 1, 2, 5)]
    except (ArithmeticError, ValueError, TypeError, KeyError) as error:
        raise NoRegion from error
    slope = at[1] - at[0]
    if not slope or any(abs(at[0] + slope * x - at[place]) > 1e-9 for place, x in ((2, 2), (3, 5))):
        raise NoRegion
    return Number(Fraction(-at[0] / slope).limit_denominator(10**6)), slope < 0


def _joined(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in sorted((piece for piece in pieces if not piece.is_empty), key=lambda one: (one.low, not one.has_low)):
        last = joined[-1] if joined else None
        if last and (piece.low < last.high or (piece.low == last.high and (piece.has_low or last.has_high))):
            ahead = piece if (piece.high, piece.has_high) > (last.high, last.has_high) else last
            joined[-1] = Piece(last.low, ahead.high, last.has_low, ahead.has_high, last.low_node, ahead.high_node)
        else:
            joined.append(piece)
    return joined


def _intersection(ours: list[Piece], theirs: list[Piece]) -> list[Piece]:
    found = []
    for mine in ours:
        for other in theirs:
            lower = max(mine, other, key=lambda one: (one.low, not one.has_low))
            upper = min(mine, other, key=lambda one: (one.high, one.has_high))
            found.append(Piece(lower.low, upper.high, lower.has_low, upper.has_high, lower.low_node, upper.high_node))
    return _joined(found)


def _complement(pieces: list[Piece]) -> list[Piece]:
    rest = [_piece(_LEAST, _GREATEST, False, False)]
    for piece in pieces:
        sides = [
            Piece(-math.inf, piece.low, False, not piece.has_low, _LEAST, piece.low_node),
            Piece(piece.high, math.inf, not piece.has_high, False, piece.high_node, _GREATEST),
        ]
        rest = _intersection(rest, sides)
    return rest
