"""What an answer can be: a small tree of numbers, symbols, operations, collections and relations.

Plain data; `reader.py` makes such trees from text, `arithmetic.py` computes with them, `equivalence.py` compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Number:
    """A literal, exactly; `error` is one unit of the last place of a decimal, 0 for an integer."""

    value: Fraction
    error: Fraction = Fraction(0)


@dataclass(frozen=True)
class Symbol:
    """A variable, or one of the constants "pi", "e", "i", "oo"."""

    name: str


@dataclass(frozen=True)
class Operation:
    """`name` is + * ^ neg inv root ! % ± ∓ base unit sum prod, or a function; `detail` is the unit's text."""

    name: str
    operands: tuple[Node, ...]
    detail: str = ""


@dataclass(frozen=True)
class Collection:
    """`kind`: its brackets "()", "[]", "(]", "[)", "{}"; "list" and "or" without any; "ratio", "∪", "\\"; "matrix",
    whose items are "row"s."""

    kind: str
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Relation:
    """`sides[0] signs[0] sides[1] ...`; the signs are = < <= > >= != ≈ ∈."""

    signs: tuple[str, ...]
    sides: tuple[Node, ...]


class Unreadable(ValueError):
    """The text is no notation that is known here."""


Node = Number | Symbol | Operation | Collection | Relation

FUNCTIONS = frozenset(
    "sin cos tan sec csc cot arcsin arccos arctan asin acos atan sinh cosh tanh ln log lg exp sqrt abs floor"
    " ceil".split()
)
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon"
    " phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar".split()
)
CONSTANTS = {"pi": "pi", "Pi": "pi", "infty": "oo", "infinity": "oo", "Infinity": "oo", "inf": "oo", "oo": "oo"}


def parts(node: Node) -> tuple[Node, ...]:
    """What a node is put together from."""
    if isinstance(node, Relation):
        return node.sides
    if isinstance(node, Collection):
        return node.items
    return node.operands if isinstance(node, Operation) else ()


def leaves(node: Node) -> list[Node]:
    """Its numbers and symbols."""
    found: list[Node] = []
    waiting = [node]
    while waiting:
        node = waiting.pop()
        waiting += parts(node)
        if isinstance(node, Number | Symbol):
            found.append(node)
    return found


def is_quantity(node: Node) -> bool:
    """Whether it is made of numbers and pi alone."""
    found = leaves(node)
    return any(isinstance(leaf, Number) for leaf in found) and all(
        leaf == Symbol("pi") for leaf in found if isinstance(leaf, Symbol)
    )


def product(factors: list[Node]) -> Node:
    return factors[0] if len(factors) == 1 else Operation("*", tuple(factors))


def bracketed(opening: str, closing: str, content: Node | None) -> Node:
    """What brackets make of their content: a group, a tuple, an interval, a set, the rows of a matrix."""
    kind = {r"\langle": "()", r"\{": "{}", r"\lbrace": "{}", "{": "{}"}.get(opening, opening + closing)
    if content is None:
        return Collection(kind, ())
    is_alone = not (isinstance(content, Collection) and content.kind in ("list", "or"))
    if opening == "{" and not is_alone:
        return content  # LaTeX does not show it
    is_group = opening == "{" or kind == "()" and opening == "("
    if isinstance(content, Collection) and (content.kind == "matrix" or is_group and content.kind == "or"):
        return content
    if is_alone:
        return content if is_group else Collection(kind, (content,))
    items = parts(content)
    rows = [item for item in items if isinstance(item, Collection) and item.kind == "[]"]
    if kind == "[]" and len(rows) == len(items):
        return Collection("matrix", tuple(Collection("row", row.items) for row in rows))
    return Collection(kind, items)
