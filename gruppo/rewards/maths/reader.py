"""Reads one answer, LaTeX or as typed, into a tree of `expressions.py`.

A parser of our own: it knows the notations of answers, not of mathematics, and raises `Unreadable` for the rest. It
computes nothing, evaluates no text as code, and is bounded: length, nesting and digits are limited before it recurses.
"""

from __future__ import annotations

import re
from fractions import Fraction

from gruppo.rewards.maths.expressions import (
    CONSTANTS,
    FUNCTIONS,
    GREEK,
    Collection,
    Node,
    Number,
    Operation,
    Relation,
    Symbol,
    Unreadable,
    bracketed,
    is_quantity,
    product,
)
from gruppo.rewards.maths.numerals import Reading, numeral_at
from gruppo.rewards.maths.quantities import CURRENCIES, KNOWN, NOT_UNITS, SCALES
from gruppo.rewards.maths.scanner import Scanner

MAX_LENGTH = 2_000  # characters of an expression

_INDEX = re.compile(r"\s*_\s*(?:\{([^{}]{1,20})\}|([A-Za-z0-9]))|('+)")
_SIGN = re.compile(
    r"\\(?:leqslant|leq|le|geqslant|geq|ge|neq|ne|lt|gt|in|approx|simeq)(?![A-Za-z])|<=|>=|!=|==|:=|=|<|>"
)
_SIGNS = {
    r"\leq": "<=", r"\le": "<=", r"\leqslant": "<=", r"\geq": ">=", r"\ge": ">=", r"\geqslant": ">=", r"\neq": "!=",
    r"\ne": "!=", r"\lt": "<", r"\gt": ">", r"\in": "∈", r"\approx": "≈", r"\simeq": "≈", "==": "=", ":=": "=",
}  # fmt: skip
_SEPARATOR = re.compile(
    r"\s*(?:[,;]\s*(?:(?:and|or)(?![A-Za-z]))?|(?:and|or)(?![A-Za-z])|\\(?:land|wedge|lor|vee)(?![A-Za-z]))\s*"
)
_TIMES = re.compile(r"\s*(?:\*(?!\*)|\\(?:cdot|times|ast)(?![A-Za-z]))")
_OVER = re.compile(r"\s*(?:/|\\div(?![A-Za-z]))")
_POWER = re.compile(r"\s*(?:\^|\*\*)\s*")
_PLUS_MINUS = re.compile(r"\s*(?:\\(pm|mp)(?![A-Za-z])|\+/-)")
_UNIT = re.compile(
    r"\s*(?:/\s*)?((?:square |cubic |sq\.? )?([A-Za-z]+)(?:\s*\^\s*\{?-?[1-3]\}?| squared| cubed)?)(?![A-Za-z(])\.?"
)
_WORD = re.compile("[A-Za-z]+")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|[{}|])")
_MATRIX = re.compile(r"\{([pbBvV]?matrix|array|smallmatrix)\*?\}\s*(?:\{[clr| ]*\})?")
_CLOSING = {"(": ")", "[": "]", r"\{": r"\}", "{": "}", r"\langle": r"\rangle", r"\lbrace": r"\rbrace"}
_LETTER_UNITS = frozenset("mgshlLJNWA")


def read(text: str, reading: Reading) -> Node:
    """The tree of a tidied answer. Raises Unreadable."""
    if len(text) > MAX_LENGTH:
        raise Unreadable(f"longer than {MAX_LENGTH} characters")
    reader = Reader(text, reading)
    node = reader.collection()
    reader.space()
    if reader.place < len(text):
        raise reader.unreadable()
    return node


class Reader(Scanner):
    """Recursive descent; each method reads one level of precedence from `place` on."""

    def __init__(self, text: str, reading: Reading) -> None:
        super().__init__(text)
        self.reading = reading
        self.in_bars = False

    def collection(self) -> Node:
        """Items between commas, semicolons, "and", "or"; a single one is itself."""
        with self.deeper():
            items, kind = [self.relation()], "list"
            while separator := self.take(_SEPARATOR):
                if any(word in separator[0] for word in ("or", "vee")):
                    kind = "or"
                items.append(self.relation())
        return items[0] if len(items) == 1 else Collection(kind, tuple(items))

    def relation(self) -> Node:
        sides, signs = [self.union()], []
        self.space()
        while sign := self.take(_SIGN):
            signs.append(_SIGNS.get(sign[0], sign[0]))
            sides.append(self.union())
            self.space()
        return Relation(tuple(signs), tuple(sides)) if signs else sides[0]

    def union(self) -> Node:
        node = self.ratio()
        while self.starts(r"\cup", r"\setminus", r"\backslash"):
            kind = "∪" if self.take(_COMMAND)[0] == r"\cup" else "\\"  # type: ignore[index]
            node = Collection(kind, (node, self.ratio()))
        return node

    def ratio(self) -> Node:
        items = [self.sum()]
        while self.starts(":") and not self.starts(":="):
            self.skip(":")
            items.append(self.sum())
        return items[0] if len(items) == 1 else Collection("ratio", tuple(items))

    def sum(self) -> Node:
        terms: list[Node] = []
        while True:
            self.space()
            if sign := self.take(_PLUS_MINUS):
                terms.append(Operation("∓" if sign[1] == "mp" else "±", (self.term(),)))
            elif self.starts("+", "-") or not terms:
                negative = self.starts("-")
                if self.starts("+", "-"):
                    self.place += 1
                term = self.term()
                terms.append(Operation("neg", (term,)) if negative else term)
            else:
                return terms[0] if len(terms) == 1 else Operation("+", tuple(terms))

    def term(self) -> Node:
        factors = [self.factor()]
        while True:
            if self.take(_TIMES):
                factors.append(self.factor())
            elif (unit := self.unit(factors)) is not None:
                return unit
            elif self.take(_OVER):
                factors.append(Operation("inv", (self.factor(),)))
            elif self.starts_factor():
                factors.append(self.factor())
            else:
                return product(factors)

    def starts_factor(self) -> bool:
        """Whether what follows multiplies without a sign: "2x", "3(x+1)"; never a second number."""
        self.space()
        character = self.text[self.place : self.place + 1]
        if character == "\\":
            command = _COMMAND.match(self.text, self.place)
            name = command[0][1:] if command else ""
            return name in _STARTING or name in FUNCTIONS or name in GREEK or name in CONSTANTS
        if character == "|":
            return not self.in_bars
        return character in ("(", "{") or (character.isalpha() and not _SEPARATOR.match(self.text, self.place))

    def factor(self) -> Node:
        with self.deeper():
            if self.starts("-", "+"):
                negative = self.starts("-")
                self.place += 1
                return Operation("neg", (self.factor(),)) if negative else self.factor()
            node = self.postfix()
            if self.take(_POWER):
                node = Operation("^", (node, self.group() if self.starts("{") else self.factor()))
            return node

    def postfix(self) -> Node:
        node = self.atom()
        self.space()
        if self.starts("!") and not self.starts("!=", "!!"):
            self.place += 1
            node = Operation("!", (node,))
        if self.skip("%"):
            node = Operation("%", (node,))
        if (sign := self.text[self.place : self.place + 1]) in CURRENCIES:
            self.place += 1
            node = Operation("unit", (node,), CURRENCIES[sign])
        return node

    def unit(self, factors: list[Node]) -> Node | None:
        """What the factors so far come to with the unit or scale word that follows; None if none does."""
        if not _UNIT.match(self.text, self.place):
            return None
        value, words = product(factors), list[str]()
        while match := _UNIT.match(self.text, self.place):
            if not self.is_unit(match, is_quantity(value), bool(words)):
                break
            self.place = match.end()
            words.append(match[0].strip().rstrip("."))
        if not words:
            return None
        scales = [SCALES[word.casefold()] for word in words if word.casefold() in SCALES]
        if scales:
            value = Operation("*", (value, *[Number(Fraction(scale)) for scale in scales]))
        unit = " ".join(word for word in words if word.casefold() not in SCALES)
        return Operation("unit", (value,), unit) if unit else value

    def is_unit(self, match: re.Match[str], after_quantity: bool, after_word: bool) -> bool:
        """Whether a word after a value is a unit, and not a variable, a function or a word that changes the value."""
        word = match[2]
        if word in ("and", "or") or word in CONSTANTS or word in GREEK:
            return False
        if word in FUNCTIONS:
            return word == "sec" and not self.text[match.end() :].strip()
        is_apart = match[0][0].isspace() or self.text[match.start() - 1].isspace() or "/" in match[0]
        if len(word) == 1 and not after_word:
            return self.reading.letters_are_units and word in _LETTER_UNITS and (is_apart or "^" in match[0])
        if word.casefold() in NOT_UNITS:
            raise self.unreadable()
        if word.casefold() in KNOWN:
            return self.reading.letters_are_units or len(word) > 3
        if not after_quantity:
            return False
        is_word = (
            len(word) > 3 or word in ("of", "per") or (len(word) == 3 and word.islower() and set("aeou") & set(word))
        )
        return after_word or (is_apart and bool(is_word))

    def atom(self) -> Node:
        self.space()
        character = self.text[self.place : self.place + 1]
        if character.isdigit() or character == ".":
            return self.number()
        if character == "\\":
            return self.command()
        if character in ("(", "[", "{"):
            return self.bracket(character)
        if character == "|":
            self.place += 1
            return self.fence("|", "abs")
        if character in CURRENCIES:
            self.place += 1
            return Operation("unit", (self.factor(),), CURRENCIES[character])
        if character.isalpha():
            return self.word()
        raise self.unreadable()

    def number(self) -> Node:
        node, self.place = numeral_at(self.text, self.place, self.reading)
        return node

    def bracket(self, opening: str) -> Node:
        self.expect(opening)
        in_bars, self.in_bars = self.in_bars, False
        closings = (_CLOSING[opening],) if opening not in ("(", "[") else (")", "]")
        content = None if self.starts(*closings) else self.collection()
        closing = next((word for word in closings if self.starts(word)), closings[0])
        self.expect(closing)
        self.in_bars = in_bars
        return bracketed(opening, closing, content)

    def fence(self, closing: str, function: str) -> Node:
        """Between bars, or the like, that have been opened."""
        in_bars, self.in_bars = self.in_bars, True
        node = self.sum()
        self.expect(closing)
        self.in_bars = in_bars
        return Operation(function, (node,))

    def word(self) -> Node:
        run = _WORD.match(self.text, self.place)
        if run is None:  # a letter of another alphabet
            raise self.unreadable()
        name = run[0]
        function = next((known for known in _BY_LENGTH if name.startswith(known) and len(name) - len(known) <= 1), None)
        if function and (name == function or function not in ("abs", "log", "ln", "exp", "lg")):
            self.place += len(function)
            return self.function(function)
        if name in CONSTANTS or name in GREEK:
            self.place = run.end()
            return Symbol(CONSTANTS.get(name, name))
        if name in ("Matrix", "array"):  # as sympy and numpy print them
            self.place = run.end()
            return self.atom()
        if len(name) > 3 and not (name.isupper() and len(name) == 4):
            raise self.unreadable()
        self.place += 1
        return self.symbol("i" if name == "I" else name[0])

    def symbol(self, name: str) -> Symbol:
        while index := self.take(_INDEX):
            name += index[3] or "_" + (index[1] or index[2]).replace(" ", "")
        return Symbol(name)

    def command(self) -> Node:
        match = self.take(_COMMAND)
        if match is None:
            raise self.unreadable()
        name = match[0][1:]
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            return Operation("*", (self.argument(), Operation("inv", (self.argument(),))))
        if name in ("binom", "dbinom", "tbinom"):
            return Operation("binom", (self.argument(), self.argument()))
        if name in FUNCTIONS:
            return self.function(name)
        if name in CONSTANTS or name in GREEK:
            return self.symbol(CONSTANTS.get(name, name))
        if match[0] in _CLOSING:
            self.place = match.start()
            return self.bracket(match[0])
        if name in _FENCES:
            return self.fence(*_FENCES[name])
        if name == "begin":
            return self.matrix()
        if name == "mathbb" and self.skip("{R}"):
            return Collection("()", (Operation("neg", (Symbol("oo"),)), Symbol("oo")))
        if name in ("emptyset", "varnothing"):
            return Collection("{}", ())
        if name in ("sum", "prod"):
            return self.series(name)
        self.place = match.start()
        raise self.unreadable()

    def group(self) -> Node:
        self.expect("{")
        node = self.sum()
        self.expect("}")
        return node

    def argument(self) -> Node:
        """What LaTeX takes as an argument: a group, else one digit, letter or command; a bracket as people mean it."""
        with self.deeper():
            if self.starts("{"):
                return self.group()
            if self.starts("("):
                return self.bracket("(")
            character = self.text[self.place : self.place + 1]
            if character.isascii() and character.isdigit():
                self.place += 1
                return Number(Fraction(character))
            if character == "\\":
                return self.command()
            if character.isalpha():
                self.place += 1
                return Symbol(character)
            raise self.unreadable()

    def function(self, name: str) -> Node:
        if name == "sqrt":
            degree: Node = Number(Fraction(2))
            if self.skip("["):
                degree = self.sum()
                self.expect("]")
            is_numeral = self.starts(*"0123456789")
            return Operation("root", (self.number() if is_numeral else self.argument(), degree))
        base = power = None
        for _ in range(2):
            if base is None and self.skip("_"):
                base = self.argument()
            elif power is None and self.take(_POWER):
                power = self.group() if self.starts("{") else self.argument()
        if power == Operation("neg", (Number(Fraction(1)),)):
            name, power = f"a{name}", None
        operands = (self.operand(),) if base is None else (self.operand(), base)
        node = Operation(name.replace("arc", "a"), operands)
        return node if power is None else Operation("^", (node, power))

    def operand(self) -> Node:
        """Of a function: a bracket, else the product of the simple factors that follow."""
        with self.deeper():
            if self.starts("(", "{"):
                return self.bracket("(") if self.starts("(") else self.group()
            factors = [self.factor()]
            while self.starts_factor() and not self.starts("(", "degrees", *_FUNCTION_STARTS):
                factors.append(self.factor())
            return Operation("unit", (product(factors),), "degrees") if self.skip("degrees") else product(factors)

    def series(self, name: str) -> Node:
        """A sum or product over an index with two bounds."""
        self.expect("_")
        self.expect("{")
        self.space()
        index = self.word()
        self.expect("=")
        low = self.sum()
        self.expect("}")
        self.expect("^")
        high = self.group() if self.starts("{") else self.argument()
        return Operation(name, (index, low, high, self.term()))

    def matrix(self) -> Node:
        match = self.take(_MATRIX)
        if match is None or match[1] in ("vmatrix", "Vmatrix"):
            raise self.unreadable()
        rows: list[list[Node]] = [[]]
        with self.deeper():
            while not self.skip(rf"\end{{{match[1]}}}"):
                rows[-1].append(self.sum())
                if self.skip(r"\\"):
                    rows.append([])
                else:
                    self.skip("&")
        return Collection("matrix", tuple(Collection("row", tuple(row)) for row in rows if row))


_FENCES = {
    "lvert": (r"\rvert", "abs"),
    "|": (r"\|", "abs"),
    "lfloor": (r"\rfloor", "floor"),
    "lceil": (r"\rceil", "ceil"),
}
_STARTING = {"frac", "dfrac", "tfrac", "cfrac", "binom", "sum", "prod", *(_FENCES.keys() - {"|"})}
_BY_LENGTH = sorted(FUNCTIONS, key=len, reverse=True)
_FUNCTION_STARTS = tuple([rf"\{name}" for name in FUNCTIONS if name != "sqrt"] + [n for n in FUNCTIONS if n != "sqrt"])
