"""The last value in a text that marks no answer: a number, a fraction, a formula, or the alternatives it ends with.

Pure and linear. What is read generously here would reward guessing: "42 or 43" is one answer, which is neither.
"""

from __future__ import annotations

import re

from gruppo.rewards.maths.expressions import FUNCTIONS
from gruppo.rewards.maths.notation import unmarked
from gruppo.rewards.maths.quantities import KNOWN, SCALES

MAX_WHOLE = 200  # characters of a text that is an answer as a whole

_DELIMITER = re.compile(r"\\[()\[\]]|\$\$|(?<!\\)\$")
_OPENING = {r"\(": r"\)", r"\[": r"\]", "$$": "$$", "$": "$"}
_TOKEN = re.compile(r"\S+")
_NUMBER = re.compile(r"(?<![A-Za-z0-9_])\.?[0-9]")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[a-z]*\*?\}(?:\{[clr|]*\})?|\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3,}")
_RUN = re.compile(r"[A-Za-z]{2,}")
_OPERATOR = re.compile(r"[-+*/=^<>≈×÷·±:]|\\(?:times|cdot|div|pm|mp|approx|cup|le|ge|leq|geq)|or|and|&")
_ENDS_OPEN = re.compile(r"[-+*/=^<>≈×÷·±]$")
_STARTS_OPEN = re.compile(r"^(?:[*/=^<>≈×÷·±]|[-+]$)")
_NEGATION = frozenset("not never neither nor except without cannot".split())
_FILLERS = frozenset("be equal to a the exactly is really".split())
_LISTING = frozenset("are be either both = : roots solutions values is".split())
_OR = re.compile(r"\bor\b")
_SENTENCE = re.compile(r"[.!?;]\s|\n")
MAX_TOKENS = 200  # of one expression or list
MAX_BETWEEN = 80  # characters between two alternatives


def last_value(text: str) -> str:
    """The value, "" if there is none."""
    whole = text.strip()
    if whole and "\n" not in whole and len(whole) <= MAX_WHOLE and (is_bare(whole) or not re.search("[0-9]", whole)):
        return whole
    last_line = whole.rpartition("\n")[2].strip()
    if last_line and len(last_line) <= MAX_WHOLE and is_bare(last_line) and re.search(r"[0-9]|\\[A-Za-z]", last_line):
        return last_line
    tokens = [(match.start(), match.end()) for match in _TOKEN.finditer(text)]
    place = next((place for place in reversed(range(len(tokens))) if is_value(text[slice(*tokens[place])])), None)
    if place is None:
        return ""
    start, end = formula_around(text, *tokens[place]) or tokens[place]
    while place > 0 and tokens[place][0] > start:
        place -= 1
    first = extended(text, tokens, place) if (start, end) == tokens[place] else place
    if is_negated(text, tokens, first):
        return ""
    start = min(start, tokens[first][0])
    end = with_unit(text, end)
    start = alternative_before(text, tokens, first) or start
    return unmarked(text[start:end])


def is_negated(text: str, tokens: list[tuple[int, int]], first: int) -> bool:
    """Whether the words before say that it is not this: "not 5", "can't be equal to 5"."""
    for place in range(first - 1, -1, -1):
        word = unmarked(text[slice(*tokens[place])]).casefold().replace("’", "'")
        if word not in _FILLERS:
            return word in _NEGATION or word.endswith("n't")
    return False


def is_bare(line: str) -> bool:
    """Whether a line is mathematics without words."""
    words = _RUN.findall(_COMMAND.sub("", line))
    return all(word in FUNCTIONS or word in ("and", "or", "pi") or len(word) == 2 and word.isupper() for word in words)


def is_value(token: str) -> bool:
    """Whether it has a number that is no part of a name."""
    plain = _COMMAND.sub("", token)
    return bool(_NUMBER.search(plain)) and not re.search(r"[A-Za-z]{2,}-?[0-9]|[0-9]-[A-Za-z]{2,}", plain)


def formula_around(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The formula between delimiters that the token overlaps, if it is one: dollars may be money."""
    opened: re.Match[str] | None = None
    for match in _DELIMITER.finditer(text):
        if opened is None:
            opened = match if match[0] in _OPENING else None
        elif match[0] == _OPENING[opened[0]]:
            if (
                opened.start() < end
                and match.end() > start
                and _is_formula(text[opened.end() : match.start()], opened[0])
            ):
                return opened.start(), match.end()
            is_money = opened[0] == "$" and not _is_formula(text[opened.end() : match.start()], "$")
            opened = match if is_money else None
        if opened is None and match.start() > end:
            break
    return None


def _is_formula(content: str, delimiter: str) -> bool:
    if delimiter != "$":
        return True
    is_tight = bool(content) and not content[0].isspace() and not content[-1].isspace()
    return (is_tight or "\\" in content) and is_bare(content)


def extended(text: str, tokens: list[tuple[int, int]], place: int) -> int:
    """The first token of the expression or list that ends at `place`."""
    first = place
    while first and place - first < MAX_TOKENS:
        current, before = (text[slice(*tokens[index])] for index in (first, first - 1))
        bare = unmarked(before)
        is_number = is_value(before) and not _WORD.search(_COMMAND.sub("", before))
        if _OPERATOR.fullmatch(bare) or _OPERATOR.fullmatch(before):
            operand = text[slice(*tokens[first - 2])] if first > 1 else ""
            if not is_value(operand) and not (before == "=" and len(operand) == 1 and operand.isalpha()):
                break
            first -= 2
        elif _ENDS_OPEN.search(before) and is_number or _STARTS_OPEN.match(current) and is_number:
            first -= 1
        elif is_number and re.fullmatch("[0-9]+", before) and re.match(r"[0-9]+/[0-9]+|[0-9]{3}\b", current):
            first -= 1  # "2 1/4", "12 500"
        elif is_number and before.endswith((",", ";")) and _is_list(text, tokens, first - 1):
            first -= 1
        else:
            break
    return first


def with_unit(text: str, end: int) -> int:
    """The end of the unit or scale that follows a value, as in "2 million dollars"; else the value's own."""
    for _ in range(2):
        following = _TOKEN.search(text, end) if text[end : end + 1].isspace() else None
        word = unmarked(following[0]).casefold() if following else ""
        if following is None or len(word) < 2 or word not in SCALES and word not in KNOWN:
            break
        end = following.start() + len(following[0].rstrip(".,;:!?*"))
    return end


def _is_list(text: str, tokens: list[tuple[int, int]], place: int) -> bool:
    """Whether "2," goes on a list: before it stands another such number, or a word as "are"."""
    if not place:
        return True
    before = text[slice(*tokens[place - 1])]
    return before.casefold() in _LISTING or before.endswith(("=", ":")) or (is_value(before) and before.endswith(","))


def alternative_before(text: str, tokens: list[tuple[int, int]], first: int) -> int | None:
    """Where the first of alternatives begins, as in "42 apples or 43 apples"; None if there is only one."""
    end = tokens[first][0]
    window = text[max(0, end - MAX_BETWEEN) : end]
    sentence = _SENTENCE.split(window)[-1]
    number = re.search(r"[0-9]", sentence)
    if number is None or not _OR.search(sentence, number.end()):
        return None
    return end - len(sentence) + number.start()
