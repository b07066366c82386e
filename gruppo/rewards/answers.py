"""Is an answer right? Extraction, then equality with the gold answer, and the reward `answers` that says 1 or 0.

What is cheap is decided here, in this process; only mathematics that we can't read goes to math-verify, in a process
that can be killed. No text is ever evaluated as code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from gruppo.rewards.extraction import extract, marked, without_thoughts
from gruppo.rewards.maths import worker
from gruppo.rewards.maths.arithmetic import Exact, Inexact, TooLarge, exact
from gruppo.rewards.maths.equivalence import same
from gruppo.rewards.maths.expressions import CONSTANTS, FUNCTIONS, GREEK, Node, Operation, Unreadable
from gruppo.rewards.maths.notation import canonical, labelled, tidy
from gruppo.rewards.maths.numerals import Reading
from gruppo.rewards.maths.reader import read
from gruppo.rewards.maths.values import close
from gruppo.types import Episode, Task

MODES = ("completion", "answer")
MAX_CHARACTERS = 20_000  # of an answer
MAX_GOLD = 200  # characters; a longer one is a solution, whose answer is looked for
MAX_FOREIGN = 1_000  # characters that are given to math-verify

_PLAIN = re.compile(r"\s*([+-]?[0-9]{1,300}(?:\.([0-9]{1,300}))?)\.?\s*")
_GROUPED = re.compile(r"[0-9],[0-9]{2,3}(?![0-9])")
_DECIMAL_COMMA = re.compile(r"[^,]*(?:(?<![0-9])0,[0-9]+|[0-9],(?:[0-9]{1,2}|[0-9]{4,}))(?![0-9])[^,]*")
_LONG_DECIMAL_COMMA = re.compile(r"[^,]*(?:(?<![0-9])0,[0-9]{2,}|[0-9],(?:[0-9]{2}|[0-9]{4,}))(?![0-9])[^,]*")
_TUPLE = re.compile(r"[\[(]|\\\{|\\langle")
_UNIT_LETTERS = re.compile(r"[0-9)}]\s*/?\s*[A-Za-z]")
_MATHEMATICAL = re.compile(r"[=+*/^\\<>_|(]|[0-9][A-Za-z]|[A-Za-z][0-9]")
_COMMAND = re.compile(r"\\[A-Za-z]+(?:\{[a-z]*(?:matrix|array|cases)\*?\})?")
_PROSE = re.compile(r"[A-Za-z]{4,}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{1,2}/[0-9]{1,2}/[0-9]{2,4}")
_NO_GOLD = frozenset({"", "nan", "null", "n/a", "[]"})


@dataclass(frozen=True)
class Verdict:
    """`correct` is None where there is no score: the gold answer or the machine is at fault, not the prediction."""

    correct: bool | None
    reason: str


@dataclass(frozen=True)
class Answer:
    """A tidied answer with the trees that it can be read as; none, and the reason, if it is not read."""

    text: str
    trees: tuple[Node, ...] = ()
    problem: str = ""


def answers(task: Task, episodes: Sequence[Episode]) -> list[float | None]:
    """1.0 where the answer is equal to the task's result, else 0.0; no answer is 0.0; None where there is no score."""
    verdicts = [grade(episode.answer or "", task.result, "answer") for episode in episodes]
    return [None if verdict.correct is None else float(verdict.correct) for verdict in verdicts]


def grade(prediction: str, gold: str, mode: str = "completion") -> Verdict:
    """Whether a prediction is right. `mode` "completion": the answer is looked for in it; "answer": it is the answer.

    A box, "####" or answer tags are looked for in any case, in the gold answer too.
    """
    assert mode in MODES, mode
    known = marked(gold) or (extract(gold) if len(gold) > MAX_GOLD else None)
    gold = known.candidates[0] if known else gold
    found = extract(prediction) if mode == "completion" else marked(without_thoughts(prediction))
    if found is None and mode == "completion":
        return Verdict(None if is_missing(tidy(gold)) else False, _no_gold(gold) or "no answer found")
    first = None
    for candidate in found.candidates if found else (prediction,):
        verdict = equal(candidate, gold)
        if verdict.correct:
            return verdict
        first = first or verdict
    assert first
    return first


def equal(prediction: str, gold: str) -> Verdict:
    """Compare two bare answers. Alternatives in `gold` are parted by ";"; one of them, or all of them, is right."""
    numbers = plain_number(prediction), plain_number(gold)
    if numbers[0] and numbers[1]:
        is_same = close(numbers[0], numbers[1])
        return Verdict(is_same, "same number" if is_same else "different numbers")
    if len(gold) > MAX_CHARACTERS:
        return Verdict(None, f"the gold answer is longer than {MAX_CHARACTERS} characters")
    if len(prediction) > MAX_CHARACTERS:
        return Verdict(False, f"the answer is longer than {MAX_CHARACTERS} characters")
    ours = answer_of(prediction, True)
    verdicts: list[Verdict] = []
    for alternative in (gold, *alternatives(gold)):
        verdicts.append(compare(ours, answer_of(alternative, False)))
        if verdicts[-1].correct:
            return verdicts[-1]
    return next((verdict for verdict in verdicts if verdict.correct is None), verdicts[-1])


def plain_number(text: str) -> Exact | None:
    """What most answers are: digits, perhaps with a sign and a point."""
    match = _PLAIN.fullmatch(text) if len(text) < 400 else None
    if not match:
        return None
    return Exact(Fraction(match[1]), Fraction(1, 10 ** len(match[2])) if match[2] else Fraction(0))


def alternatives(gold: str) -> list[str]:
    """The answers between semicolons outside of brackets; none if there is only one."""
    if ";" not in gold:
        return []
    found, depth, start = [], 0, 0
    for place, character in enumerate(gold):
        depth += (character in "([{") - (character in ")]}")
        if character == ";" and depth <= 0 and gold[place - 1 : place] != "\\":
            found.append(gold[start:place])
            start = place + 1
    return [part for part in [*found, gold[start:]] if part.strip()] if found else []


def is_missing(tidied: str) -> bool:
    return tidied.casefold() in _NO_GOLD


def _no_gold(gold: str) -> str:
    return "the gold answer is empty" if is_missing(tidy(gold)) else ""


def answer_of(text: str, is_prediction: bool) -> Answer:
    """The answer with all that it can be read as."""
    tidied = tidy(text)
    trees, problem = [], ""
    if is_words(tidied):
        return Answer(tidied, (), "words")
    for reading in readings(tidied, is_prediction):
        try:
            tree = read(tidied, reading)
        except Unreadable as error:
            problem = problem or str(error)
        else:
            if tree not in trees:
                trees.append(tree)
    return Answer(tidied, tuple(trees), "" if trees else problem)


def is_words(text: str) -> bool:
    """Letters alone, and not just products of variables: "no" is no product of n and o, "xy" is one of x and y."""
    if _DATE.fullmatch(text):
        return True
    words = text.split() if re.fullmatch("[A-Za-z ]+", text) else []
    return any(len(word) > 1 and set("aeiouAEIOU") & set(word) and not is_known(word) for word in words)


def is_known(word: str) -> bool:
    return word in FUNCTIONS or word in GREEK or word in CONSTANTS or word in ("and", "or")


def readings(text: str, is_prediction: bool) -> Iterator[Reading]:
    """What commas and letters may mean: "1,234" is a number or a pair, "(1,234)" a pair; "3,5" is 3.5 if predicted.

    Of a gold answer only "3,14", with more digits, may be a decimal: "3,5" are two numbers.
    """
    commas = ["separator"]
    if "," in text:
        if _GROUPED.search(text) and (", " in text or not _TUPLE.search(text)):
            commas.insert(0, "thousands")
        decimal_comma = _DECIMAL_COMMA if is_prediction else _LONG_DECIMAL_COMMA
        if decimal_comma.fullmatch(text) and not _TUPLE.search(text):
            commas.append("decimal")
    for comma in commas:
        yield Reading(comma)
        if _UNIT_LETTERS.search(text):
            yield Reading(comma, letters_are_units=False)


def compare(ours: Answer, theirs: Answer) -> Verdict:
    """One answer with one gold answer."""
    if is_missing(theirs.text):
        return Verdict(None, "the gold answer is empty")
    if not ours.text:
        return Verdict(False, "the answer is empty")
    if same_text(ours.text, theirs.text):
        return Verdict(True, "same text")
    option = same_option(ours.text, theirs.text)
    if option is not None:
        return option
    found = [same(mine, other) for mine, other in product(ours.trees, theirs.trees)]
    if True in found:
        return Verdict(True, "same value")
    if found and None not in found:
        return Verdict(False, "different values")
    if any(is_too_large(tree) for tree in ours.trees):
        return Verdict(False, "the answer is too large a number")
    if is_mathematics(ours.text) and is_mathematics(theirs.text) and "\\" in ours.text + theirs.text:
        return ask_math_verify(ours.text, theirs.text)
    return Verdict(False, f"different text ({ours.problem})" if ours.problem else "different text")


def same_text(ours: str, theirs: str) -> bool:
    """The same words, whatever their case and article; formulas letter by letter."""
    if ours == theirs or ours.replace(" ", "") == theirs.replace(" ", "") and "\\" in ours:
        return True
    if _MATHEMATICAL.search(ours) and _MATHEMATICAL.search(theirs) and not _PROSE.search(_COMMAND.sub("", ours)):
        left, right = canonical(ours), canonical(theirs)
        return left == right and (left != ours.casefold() or right != theirs.casefold())
    return canonical(ours) == canonical(theirs)


def same_option(ours: str, theirs: str) -> Verdict | None:
    """Of a choice, "(B) 42" is "B" and is 42; None where no letter is given with a text."""
    mine, other = labelled(ours), labelled(theirs)
    if not mine and not other:
        return None
    if mine and other:
        return Verdict(mine[0] == other[0], "same option" if mine[0] == other[0] else "different options")
    (letter, rest), single = (mine, theirs) if mine else (other, ours)  # type: ignore[misc]
    if len(canonical(single)) == 1 and canonical(single).isalpha():
        is_same = canonical(single) == letter
        return Verdict(is_same, "same option" if is_same else "different options")
    return equal(rest, theirs) if mine else equal(ours, rest)


def is_too_large(tree: Node) -> bool:
    try:
        exact(tree)
    except TooLarge:
        return True
    except (Inexact, ZeroDivisionError):
        return isinstance(tree, Operation) and any(is_too_large(operand) for operand in tree.operands)
    return False


def is_mathematics(text: str) -> bool:
    """Whether math-verify is asked: LaTeX or symbols without prose, of bounded length and depth."""
    words = [word for word in _PROSE.findall(_COMMAND.sub(" ", text)) if word not in FUNCTIONS]
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return not words and len(text) <= MAX_FOREIGN and deepest <= 24 and not re.search("[0-9]{300}", text)


def ask_math_verify(ours: str, theirs: str) -> Verdict:
    """What math-verify says; an answer that it hangs on is wrong, a gold answer that it hangs on gives no score."""
    try:
        found = worker.compare(ours, theirs)
    except worker.MathWorkerError as error:
        return Verdict(None, str(error))
    if found == worker.MISSING:
        return Verdict(None, found)
    if found.endswith(" on gold"):
        return Verdict(None, f"math-verify {found} answer")
    return Verdict(found == "equal", f"{found} to math-verify" if found in _SAID else f"math-verify {found}")


_SAID = ("equal", "different", "unreadable")
