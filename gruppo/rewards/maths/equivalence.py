"""Whether two answers that were read are the same: relations, collections, values. Pure and bounded.

`answers.py` decides what is read and what happens to what can't be; here are only trees. None means undecided.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from gruppo.rewards.maths.arithmetic import has_signs, signed, symbols
from gruppo.rewards.maths.expressions import Collection, Node, Operation, Relation, Symbol, parts
from gruppo.rewards.maths.regions import NoRegion, is_label, is_region, same_region
from gruppo.rewards.maths.values import same_value, values_at_points

MAX_UNORDERED = 64  # items that are matched in any order
_UNORDERED = frozenset({"list", "or", "{}"})
_ORDERED = frozenset({"()", "[]", "ratio", "list"})
_MIRRORED = {">": "<", ">=": "<="}


def same(ours: Node, theirs: Node) -> bool | None:
    """Whether a predicted answer is the gold answer `theirs`."""
    if ours == theirs:
        return True
    ours, theirs = expanded(ours), expanded(theirs)
    if is_region(ours) or is_region(theirs):
        try:
            return same_region(_unnamed(ours), _unnamed(theirs))
        except NoRegion:
            if not (isinstance(ours, Relation) and isinstance(theirs, Relation)):
                return False
    if isinstance(ours, Relation) and isinstance(theirs, Relation):
        return same_relation(ours, theirs)
    if isinstance(ours, Relation) or isinstance(theirs, Relation):
        return any_of(same(mine, other) for mine in claims(ours) for other in claims(theirs))
    if isinstance(ours, Collection) or isinstance(theirs, Collection):
        return same_collection(ours, theirs)
    return same_value(ours, theirs)


def any_of(verdicts: Iterable[bool | None]) -> bool | None:
    """True if one is, else undecided if one is, else False."""
    found = set(verdicts)
    return True if True in found else None if None in found else False


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is, else undecided if one is, else True."""
    found = set(verdicts)
    return False if False in found else None if None in found else True


def expanded(node: Node) -> Node:
    """With "± 3" as "3 or -3", and without repetition of what a set or an "or" has twice."""
    if isinstance(node, Relation) and has_signs(node):
        if node.signs == ("=",) and is_label(node.sides[0]):
            return expanded(node.sides[1])
        return Collection("or", (signed(node, True), signed(node, False)))
    if isinstance(node, Collection) and node.kind in _UNORDERED:
        items: list[Node] = []
        for item in node.items:
            whole = expanded(item) if has_signs(item) else item
            items += whole.items if isinstance(whole, Collection) and whole.kind == "or" else [whole]
        if node.kind != "list":
            items = _distinct(items)
        return items[0] if len(items) == 1 and node.kind == "or" else Collection(node.kind, tuple(items))
    if isinstance(node, Operation) and has_signs(node):
        return expanded(Collection("or", (signed(node, True), signed(node, False))))
    return node


def _distinct(items: list[Node]) -> list[Node]:
    found: list[Node] = []
    for item in items[:MAX_UNORDERED]:
        if not any(same(item, other) for other in found):
            found.append(item)
    return found + items[MAX_UNORDERED:]


def _unnamed(node: Node) -> Node:
    """What "x ∈ S" and "D = (0, 1]" say of the set."""
    if isinstance(node, Relation) and node.signs in (("∈",), ("=",)) and is_label(node.sides[0]):
        return node.sides[1]
    return node


def claims(node: Node) -> tuple[Node, ...]:
    """What an answer says the value is: the last side of "x = ...", the exact one and its rounding in "x = a ≈ b".

    Nothing for an equation that names no value, as in "2x + z = 1": its right side is no answer.
    """
    if not isinstance(node, Relation):
        return (node,)
    if not set(node.signs) <= {"=", "≈", "∈"}:
        return ()
    sides = list(node.sides)
    named = is_label(sides[0])
    if not named and symbols(node):
        return ()
    signs = list(node.signs)
    if "≈" not in signs:
        return (sides[-1],)
    exact_side = sides[signs.index("≈")]
    if signs[0] == "≈" and named:
        return (sides[-1],)
    rounded = list(values_at_points(exact_side, sides[-1], []))
    is_rounding = bool(rounded) and abs(rounded[0][0] - rounded[0][1]) <= 0.01 * abs(rounded[0][0])
    return (exact_side, sides[-1]) if is_rounding else (exact_side,)


def same_relation(ours: Relation, theirs: Relation) -> bool | None:
    """Equations and inequalities whose sides' differences are proportional; or the same name for the same value."""
    if _named(ours) and _named(theirs):
        mine, other = ours.sides[0], theirs.sides[0]
        if mine == other or _is_function(mine) and other == Symbol("y") or _is_function(other) and mine == Symbol("y"):
            return any_of(same(one, two) for one in claims(ours) for two in claims(theirs))
    if len(ours.signs) != len(theirs.signs):
        return False
    if len(ours.signs) > 1:
        if ours.signs != theirs.signs:
            ours = Relation(tuple(_MIRRORED.get(sign, sign) for sign in reversed(ours.signs)), ours.sides[::-1])
        pairs = zip(ours.sides, theirs.sides, strict=True)
        return ours.signs == theirs.signs and all_of(same(mine, other) for mine, other in pairs)
    sides = [side for relation in (ours, theirs) for side in relation.sides]
    if any(isinstance(side, Collection) for side in sides):
        pairs = zip(ours.sides, theirs.sides, strict=True)
        return ours.signs == theirs.signs and all_of(same(mine, other) for mine, other in pairs)
    return _proportional(ours, theirs)


def _named(relation: Relation) -> bool:
    return set(relation.signs) <= {"=", "≈"} and is_label(relation.sides[0])


def _is_function(label: Node) -> bool:
    """ "f(x)", as it is read."""
    return isinstance(label, Operation) and label.name == "*" and label.operands[0] in [Symbol(name) for name in "fgh"]


def _proportional(ours: Relation, theirs: Relation) -> bool | None:
    (our_sign, our_difference), (their_sign, their_difference) = _difference(ours), _difference(theirs)
    if our_sign != their_sign:
        return False
    names = sorted(symbols(our_difference) | symbols(their_difference))
    pairs = [pair for pair in values_at_points(our_difference, their_difference, names) if min(map(abs, pair)) > 1e-9]
    if len(pairs) < 3 or not names:
        return None
    ratios = [left / right for left, right in pairs]
    if any(abs(one - two) > 1e-8 * abs(one) for one, two in pairwise(ratios)):
        return False
    return our_sign in ("=", "!=", "≈") or ratios[0].real > 0


def _difference(relation: Relation) -> tuple[str, Node]:
    """The relation as `difference sign 0`, the sign one of = != < <= ≈ ∈."""
    left, right = relation.sides
    sign = relation.signs[0]
    if sign in _MIRRORED:
        sign, left, right = _MIRRORED[sign], right, left
    return sign, Operation("+", (left, Operation("neg", (right,))))


def same_collection(ours: Node, theirs: Node) -> bool | None:
    """Tuples, sets, lists, unions, matrices; one of the two may be a single value."""
    ours, theirs = as_vector(ours, theirs), as_vector(theirs, ours)
    if not isinstance(ours, Collection) or not isinstance(theirs, Collection):
        whole, single = (ours, theirs) if isinstance(ours, Collection) else (theirs, ours)
        assert isinstance(whole, Collection)
        if any(isinstance(part, Collection) for part in parts(single)):
            return None  # a sum of matrices, say
        is_single = len(whole.items) == 1 and whole.kind in ("list", "or", "{}", "[]")
        return same(whole.items[0], single) if is_single else False
    kinds = {ours.kind, theirs.kind}
    if kinds <= _UNORDERED and all(isinstance(item, Collection) for item in ours.items + theirs.items):
        ours, theirs = (Collection(each.kind, tuple(_distinct(list(each.items)))) for each in (ours, theirs))
    if len(ours.items) != len(theirs.items):
        return False
    if kinds <= _UNORDERED and not (kinds == {"list"} and _is_labelled(ours, theirs)):
        return same_items(ours, theirs) or same_unordered(ours, theirs)
    if len(kinds) == 1 or (kinds <= _ORDERED and "list" in kinds):
        return same_items(ours, theirs)
    return False


def as_vector(node: Node, other: Node) -> Node:
    """A matrix of one row or column as a tuple, beside a tuple."""
    is_beside = isinstance(other, Collection) and other.kind in ("()", "[]", "list")
    if not (isinstance(node, Collection) and node.kind == "matrix" and is_beside):
        return node
    rows = [row.items for row in node.items if isinstance(row, Collection)]
    assert isinstance(other, Collection)
    if len(rows) == 1:
        return Collection(other.kind, rows[0])
    return Collection(other.kind, tuple(row[0] for row in rows)) if {len(row) for row in rows} == {1} else node


def _is_labelled(ours: Collection, theirs: Collection) -> bool:
    """Whether one list gives its items different names and the other one gives none: then their order counts."""
    names = [[item.sides[0] for item in each.items if isinstance(item, Relation)] for each in (ours, theirs)]
    given = names[0] or names[1]
    return not (names[0] and names[1]) and len(set(given)) == len(given) > 1


def same_items(ours: Collection, theirs: Collection) -> bool | None:
    """One by one, in order."""
    return all_of(same(mine, other) for mine, other in zip(ours.items, theirs.items, strict=True))


def same_unordered(ours: Collection, theirs: Collection) -> bool:
    """Each item of one with an item of the other, in any order."""
    if len(ours.items) > MAX_UNORDERED:
        return False
    rest = list(theirs.items)
    for mine in ours.items:
        place = next((place for place, other in enumerate(rest) if same(mine, other)), None)
        if place is None:
            return False
        del rest[place]
    return True
