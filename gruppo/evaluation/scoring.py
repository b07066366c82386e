"""Is a benchmark's item right? Free answers, multiple choice in two stages, and the expressions of the Game of 24.

What can't be read is wrong, with the reason; nothing is guessed, and no text is evaluated as code. Who is asked and
what is counted is the business of `benchmarks`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from gruppo.data.game24 import makes_24
from gruppo.evaluation.premises import holds
from gruppo.rewards.answers import equal, grade
from gruppo.rewards.extraction import extract, without_thoughts
from gruppo.rewards.maths.notation import canonical, tidy
from gruppo.types import Episode, Task

MAX_CHARACTERS = 20_000  # of an answer that is read

_BARE = re.compile(r"[(\[]?([A-Za-z])[)\]]?[.:)]?")
_LABELLED = re.compile(r"(?:[(\[]([A-Z])[)\]]|([A-Z])[).:,])\s*(?:[-–:]\s*)?(\S.*)", re.DOTALL)
_NAMED = re.compile(r"\b(?:option|choice|answer)\s*(?:is|:)?\s*[(\[]?([A-Z])[)\]]?(?![\w'])(?!\s+(?:and|or)\s)")
_MENTIONED = re.compile(r"[(\[]([A-Z])[)\]]|\b(?:[Oo]ption|[Cc]hoice)\s+([A-Z])\b")
_REASONED = re.compile(r"([A-Z])(?=\s+(?:because|since|as|given)\b|\s*[;–]|\s+[-(])")
_SPEAKS_OF = re.compile(r"(?:and|or|is|was|are|can|could|would|may|might|seems|looks|does|has|[A-Z][)\].,])(?:\b|\s)")
_LIST = re.compile(r"\b(?:and|or|not|neither|either|both)\b|/", re.IGNORECASE)
_TEX = re.compile(r"\\(?:left|right|displaystyle|text|mathrm|[,;! ])|[$`*]{2}|[$`]|\\[()\[\]]")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")


@dataclass(frozen=True)
class Graded:
    """Whether an answer is right, what was read from it, and why."""

    correct: bool
    read: str
    reason: str


def grade_free(task: Task, episode: Episode) -> Graded:
    """An answer in words or numbers: equal to the result by `rewards.answers`, or right for the run's judge if it has
    one."""
    answer = (episode.answer or "")[:MAX_CHARACTERS]
    verdict = grade(answer, task.result, "answer")
    if not verdict.correct:
        found = grade(answer, task.result, "completion")
        verdict = found if found.correct else verdict
    judge = episode.scores.get("judge")
    if not verdict.correct and judge is not None and judge.value == 1.0:
        return Graded(True, answer, "right for the judge")
    return Graded(verdict.correct is True, answer, verdict.reason)


def grade_choice(task: Task, episode: Episode) -> Graded:
    """Multiple choice: which option does the answer name, by letter or by text, then whether it is the right one.

    An answer that names none, or several, is wrong: no option is made up for it.
    """
    choices = [str(choice) for choice in task.extra_info.get("choices", ())]
    gold, _ = option_of(task.result, choices)
    letter, how = option_of(episode.answer or "", choices)
    if gold is None:
        return Graded(False, letter or "", f"the task names no right option: {task.result[:60]!r}")
    if letter is None:
        return Graded(False, "", how)
    return Graded(letter == gold, letter, how)


def grade_expression(task: Task, episode: Episode) -> Graded:
    """Game of 24: an expression of the task's numbers, each exactly once, that comes to 24."""
    numbers = [int(number) for number in task.extra_info.get("numbers", ())]
    expression = expression_in(episode.answer or "")
    is_right = makes_24(expression, numbers)
    return Graded(is_right, expression, "makes 24" if is_right else "does not make 24 of the numbers, each once")


def option_of(answer: str, choices: Sequence[str]) -> tuple[str | None, str]:
    """(letter, how it was named), or (None, why there is none)."""
    text = without_thoughts(answer[-MAX_CHARACTERS:]).strip()
    if not text:
        return None, "no answer"
    found = extract(text)
    marked = sorted(found.candidates, key=len) if found and found.marker != "last value" else ()
    for candidate in (*marked, text.splitlines()[-1], text):
        letter, how = _option(tidy(candidate), choices)
        if letter or how:
            return letter, how
    said = {letter for pair in _MENTIONED.findall(text) for letter in pair if letter in _letters(choices) and letter}
    if len(said) == 1:
        return said.pop(), "the only letter that is mentioned"
    return None, "several options are mentioned" if said else "no option is named"


def _option(text: str, choices: Sequence[str]) -> tuple[str | None, str]:
    """The option that a short text names; (None, "") if it names none, (None, reason) if it contradicts itself."""
    letters = _letters(choices)
    if (bare := _BARE.fullmatch(text)) and bare[1].upper() in letters:
        return bare[1].upper(), "letter"
    same = [letter for letter, choice in zip(letters, choices, strict=True) if _is_same(text, choice)]
    if len(same) == 1:
        return same[0], "text of the option"
    if labelled := _LABELLED.match(text):
        letter, rest = labelled[1] or labelled[2], labelled[3]
        others = [o for o, choice in zip(letters, choices, strict=True) if canonical(rest) == canonical(tidy(choice))]
        if letter in letters and others and letter not in others:
            return None, f"it names {letter} with the text of {others[0]}"
        if letter in letters and not _SPEAKS_OF.match(rest) and not _MENTIONED.search(rest):
            return letter, "letter and text"
    if (reasoned := _REASONED.match(text)) and reasoned[1] in letters:
        return reasoned[1], "letter"
    named = {letter for letter in _NAMED.findall(text) if letter in letters}
    if len(named) == 1:
        return named.pop(), "letter"
    if named or _LIST.search(text):
        return None, ""
    held = [letter for letter, choice in zip(letters, choices, strict=True) if holds(text, choice)]
    texts = dict(zip(letters, choices, strict=True))
    whole = [one for one in held if not any(other != one and holds(texts[other], texts[one]) for other in held)]
    return (whole[0], "text of the option") if len(whole) == 1 else (None, "")


def _letters(choices: Sequence[str]) -> str:
    return ascii_uppercase[: len(choices)]


def _is_same(text: str, choice: str) -> bool:
    if canonical(text) == canonical(tidy(choice)):
        return True
    return len(text) <= 200 and any(character.isdigit() for character in text) and equal(text, choice).correct is True


def expression_in(answer: str) -> str:
    """The expression that an answer gives: what is marked, else its last line with an operation, in plain signs."""
    text = without_thoughts(answer[-MAX_CHARACTERS:]).strip()
    found = extract(text)
    marked = [found.candidates[0]] if found and found.marker != "last value" else []
    lines = [line for line in reversed(text.splitlines()) if re.search(r"[0-9].*[-+*/×÷−·\\].*[0-9]", line)]
    for candidate in [*marked, *lines[:1]]:
        plain = _FRACTION.sub(r"((\1)/(\2))", _TEX.sub(" ", candidate).replace(r"\div", "/").replace(r"\times", "*"))
        plain = plain.replace(r"\cdot", "*").strip().rstrip(".").strip()
        plain = re.sub(r"(?<=[0-9)])\s*x\s*(?=[0-9(])", "*", plain.rpartition(": ")[2])
        if re.search(r"[-+*/×÷−·]", plain):
            return plain
    return ""


SCORINGS: Mapping[str, Callable[[Task, Episode], Graded]] = {
    "free": grade_free,
    "choice": grade_choice,
    "expression": grade_expression,
}
"""Name -> how an item is graded."""
