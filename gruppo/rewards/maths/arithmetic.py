"""What an expression comes to: exactly, as a fraction, where that is cheap; else as a number at given points.

Every computation is bounded: powers, factorials and series beyond the limits raise `TooLarge` before they are begun.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from gruppo.rewards.maths.expressions import Collection, Node, Number, Operation, Relation, Symbol, parts

MAX_BITS = 20_000  # of a numerator or denominator
MAX_FACTORIAL = 500
MAX_TERMS = 1_000  # of a series
CONSTANTS = {"pi": math.pi, "e": math.e, "i": 1j}


class TooLarge(ArithmeticError):
    """A number that is not computed."""


class Inexact(ArithmeticError):
    """No fraction, or none that is found cheaply."""


@dataclass(frozen=True)
class Exact:
    """A fraction, and by how much the decimals that it came from leave it open (one unit of their last place)."""

    value: Fraction
    error: Fraction = Fraction(0)


def exact(node: Node) -> Exact:
    """Raises Inexact, TooLarge, or ZeroDivisionError."""
    if isinstance(node, Number):
        return Exact(node.value, node.error)
    if isinstance(node, Operation) and node.name in ("sum", "prod"):
        bounds(node)
    if not isinstance(node, Operation) or node.name not in _EXACT:
        raise Inexact
    found = _EXACT[node.name](*[exact(operand) for operand in node.operands])
    if max(found.value.numerator.bit_length(), found.value.denominator.bit_length()) > MAX_BITS:
        raise TooLarge
    return found


def _add(*terms: Exact) -> Exact:
    return Exact(sum((term.value for term in terms), Fraction(0)), sum((term.error for term in terms), Fraction(0)))


def _multiply(*factors: Exact) -> Exact:
    product = factors[0]
    for factor in factors[1:]:
        error = abs(product.value) * factor.error + abs(factor.value) * product.error
        product = Exact(product.value * factor.value, error)
        if product.value.numerator.bit_length() > MAX_BITS:
            raise TooLarge
    return product


def _invert(number: Exact) -> Exact:
    return Exact(1 / number.value, number.error / number.value**2)


def _power(base: Exact, exponent: Exact) -> Exact:
    if exponent.value.denominator != 1:
        return _power(
            _root(base, Exact(Fraction(exponent.value.denominator))), Exact(Fraction(exponent.value.numerator))
        )
    times = exponent.value.numerator
    if abs(base.value) not in (0, 1):
        bits = max(base.value.numerator.bit_length(), base.value.denominator.bit_length())
        if abs(times) * bits > MAX_BITS:
            raise TooLarge
    elif base.value == -1:
        times %= 2
    elif base.value == 1:
        times = min(times, 1)
    elif times == 0:
        raise Inexact  # 0^0
    elif times > 0:
        times = 1
    value = base.value**times
    return Exact(value, abs(times * value / base.value) * base.error if base.error and base.value else Fraction(0))


def _root(radicand: Exact, degree: Exact) -> Exact:
    times = degree.value
    if times.denominator != 1 or not 2 <= times <= 10 or radicand.value < 0 or radicand.error:
        raise Inexact
    return Exact(Fraction(*[_whole_root(part, int(times)) for part in radicand.value.as_integer_ratio()]))


def _whole_root(number: int, degree: int) -> int:
    if degree == 2:
        root = math.isqrt(number)
    else:
        if number.bit_length() > 1_000:
            raise Inexact
        root = round(number ** (1 / degree))
    if root**degree != number:
        raise Inexact
    return root


def _factorial(number: Exact) -> Exact:
    if number.value.denominator != 1 or number.value < 0:
        raise Inexact
    if number.value > MAX_FACTORIAL:
        raise TooLarge
    return Exact(Fraction(math.factorial(int(number.value))))


def _binomial(number: Exact, chosen: Exact) -> Exact:
    if number.value.denominator != 1 or chosen.value.denominator != 1 or chosen.value < 0 or number.value < 0:
        raise Inexact
    if min(chosen.value, abs(number.value - chosen.value)) * number.value.numerator.bit_length() > MAX_BITS:
        raise TooLarge
    return Exact(Fraction(math.comb(int(number.value), int(chosen.value))))


_EXACT: dict[str, Callable[..., Exact]] = {
    "+": _add,
    "*": _multiply,
    "inv": _invert,
    "neg": lambda number: Exact(-number.value, number.error),
    "^": _power,
    "root": _root,
    "!": _factorial,
    "binom": _binomial,
    "unit": lambda number: number,
    "%": lambda number: Exact(number.value / 100, number.error / 100),
    "abs": lambda number: Exact(abs(number.value), number.error),
    "floor": lambda number: Exact(Fraction(math.floor(number.value))),
    "ceil": lambda number: Exact(Fraction(math.ceil(number.value))),
    "base": lambda digits, base: Exact(Fraction(int(str(digits.value), int(base.value)))),
}


def numeric(node: Node, point: Mapping[str, complex]) -> complex:
    """The value where the variables are as `point` says.

    Raises ArithmeticError, ValueError or TypeError where it has none, and for what is no expression.
    """
    if isinstance(node, Number):
        return _plain(node.value)
    if isinstance(node, Symbol):
        if node.name == "oo":
            raise Inexact
        return point[node.name] if node.name in point else CONSTANTS[node.name]
    if not isinstance(node, Operation):
        raise Inexact
    if node.name in ("sum", "prod"):
        return _series(node, point)
    if node.name == "unit" and node.detail.startswith("deg"):
        return numeric(node.operands[0], point) * math.pi / 180
    values = [numeric(operand, point) for operand in node.operands]
    if node.name not in _NUMERIC:
        raise Inexact
    return _NUMERIC[node.name](*values)


def _plain(value: Fraction) -> complex:
    return complex(value.numerator / value.denominator)  # raises OverflowError beyond what a float holds


def bounds(series: Operation) -> range:
    """The index of a sum or product. Raises Inexact if it is not between two numbers, TooLarge for too many terms."""
    first, last = exact(series.operands[1]).value, exact(series.operands[2]).value
    if first.denominator != 1 or last.denominator != 1:
        raise Inexact
    if last - first > MAX_TERMS:
        raise TooLarge
    return range(int(first), int(last) + 1)


def _series(node: Operation, point: Mapping[str, complex]) -> complex:
    index, body = node.operands[0], node.operands[3]
    if not isinstance(index, Symbol):
        raise Inexact
    values = [numeric(body, {**point, index.name: complex(k)}) for k in bounds(node)]
    return sum(values) if node.name == "sum" else math.prod(values)


def _real(number: complex) -> float:
    if abs(number.imag) > 1e-9:
        raise Inexact
    return number.real


def _fact(number: complex) -> complex:
    if abs(number) > 150:
        raise TooLarge
    return complex(math.gamma(_real(number) + 1))


_NUMERIC: dict[str, Callable[..., complex]] = {
    "+": lambda *terms: sum(terms),
    "*": lambda *factors: math.prod(factors),
    "inv": lambda number: 1 / number,
    "neg": lambda number: 0 - number,  # not -number: the root of -4-0j is -2j
    "^": lambda base, exponent: base**exponent,
    "root": lambda radicand, degree: cmath.sqrt(radicand) if degree == 2 else radicand ** (1 / degree),
    "!": _fact,
    "binom": lambda n, k: _fact(n) / (_fact(k) * _fact(n - k)),
    "%": lambda number: number / 100,
    "abs": lambda number: complex(abs(number)),
    "floor": lambda number: complex(math.floor(_real(number))),
    "ceil": lambda number: complex(math.ceil(_real(number))),
    "exp": cmath.exp,
    "ln": cmath.log,
    "lg": cmath.log10,
    "log": lambda number, base=math.e: cmath.log(number) / cmath.log(base),
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "sec": lambda number: 1 / cmath.cos(number),
    "csc": lambda number: 1 / cmath.sin(number),
    "cot": lambda number: 1 / cmath.tan(number),
    "asin": cmath.asin,
    "acos": cmath.acos,
    "atan": cmath.atan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "tanh": cmath.tanh,
    "unit": lambda number: number,
}


def symbols(node: Node) -> set[str]:
    """The names of the variables in it; constants, and the index of a series, are none."""
    if isinstance(node, Symbol):
        return set() if node.name in CONSTANTS or node.name == "oo" else {node.name}
    found = set[str]().union(*[symbols(part) for part in parts(node)])
    if isinstance(node, Operation) and node.name in ("sum", "prod"):
        found -= symbols(node.operands[0])
    return found


def has_signs(node: Node) -> bool:
    """Whether there is a ± in it."""
    return (isinstance(node, Operation) and node.name in ("±", "∓")) or any(has_signs(part) for part in parts(node))


def signed(node: Node, upper: bool) -> Node:
    """The node with each ± as +, and each ∓ as -, or the other way round."""
    if isinstance(node, Operation):
        operands = tuple(signed(operand, upper) for operand in node.operands)
        if node.name in ("±", "∓"):
            return operands[0] if (node.name == "±") == upper else Operation("neg", operands)
        return Operation(node.name, operands, node.detail)
    if isinstance(node, Relation):
        return Relation(node.signs, tuple(signed(side, upper) for side in node.sides))
    if isinstance(node, Collection):
        return Collection(node.kind, tuple(signed(item, upper) for item in node.items))
    return node
