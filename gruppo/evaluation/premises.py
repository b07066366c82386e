"""What an episode had to go on: the question, what tools said and when, and what was rightly worked out from it.

The ground that the rules of `mistakes` stand on. Values are compared as they are written: numbers and names as whole
tokens, whatever the case. Pure text; judges nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from gruppo.evaluation.claims import claims_in, numbers_in
from gruppo.rewards.answers import alternatives
from gruppo.types import Episode, Task, ToolEvent, ToolResult, Turn

_SHORT = 300  # characters of a result that is a message, not a page
_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(?:\.[0-9]+)?")
_NAME = re.compile(r"[A-Z][\w'’-]+(?:\s+[A-Z][\w'’-]+)*")
_FINDINGS = r"results?|pages?|matches|match|entry|entries|documents?|articles?|hits|records?|data|information|answer"
_NOT_FOUND = re.compile(
    rf"\bnot found\b|\bno (?:\w+ )?(?:{_FINDINGS})\b|\bnothing (?:was )?found\b|\bno such\b|\bdoes not exist\b"
    r"|\b(?:could|can)(?: not|not|n't) (?:be found|find)\b|\b0 results\b|\b404\b|\bunknown (?:page|entity|title|key)\b",
    re.IGNORECASE,
)
_NOTHING = re.compile(
    r"\bnothing\b(?:\s\w+){0,4}?\s(?:happen(?:ed|s)|occur(?:red|s)|took place|was|is)\b"
    r"|\b(?:did|does|do|has|have|had|was|were|is)(?:\s+not|n't|\s+never)\s(?:\w+\s){0,3}?"
    r"(?:happen(?:ed)?|occur(?:red)?|exist(?:ed)?|tak(?:e|en) place|known to exist)\b"
    r"|\bnever\s(?:\w+\s){0,2}?(?:happened|occurred|existed|took place|was|had|been)\b"
    r"|\bthere\s(?:is|are|was|were|has been|have been)\s(?:no|nothing|never|not any|not a)\b"
    r"|\bno\s(?:\w+\s){1,4}?(?:happened|occurred|took place|exist(?:s|ed)?|(?:was|were)(?: \w+)?|lived|is known)\b"
    r"|\b(?:has|had|have)\s(?:no|never had an?y?)\s\w+|\buneventful\b|\b(?:nobody|no ?one|none)\s\w+",
    re.IGNORECASE,
)
_HONEST = re.compile(
    rf"\bno (?:\w+ )?(?:{_FINDINGS})\b|\bnot found\b|\bfound (?:no|nothing)\b|\bcould(?:n't| not)\b|\bcan(?:not|'t)\b"
    r"|\bunable\b|\bunknown\b|\bnot know\b|\bsearch|\btry\b|\bagain\b|\bunclear\b|\bnot (?:sure|certain|enough)\b",
    re.IGNORECASE,
)
_BARE_NOTHING = re.compile(
    r"(?:none|nothing|nobody|no ?one|never|no event|no such \w+|it does not exist)\W*", re.IGNORECASE
)
_SENTENCE = re.compile(r"[^.!?;\n]+")
_OPINION = re.compile(r"generat|generalist|language.?model|(?:^|_)llm", re.IGNORECASE)
_SMALL_WORDS = frozenset(
    "a an the of in on at to for and or is was are were be it its this that these those by with from as about answer "
    "final yes no therefore so thus he she they his her their there which who what when where has had have did"
    " does".split()
)
_NUMERALS = {
    word: Fraction(value)
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
        " seventeen eighteen nineteen twenty".split()
    )
} | {
    "once": Fraction(1), "twice": Fraction(2), "double": Fraction(2), "triple": Fraction(3), "thrice": Fraction(3),
    "half": Fraction(1, 2), "third": Fraction(1, 3), "quarter": Fraction(1, 4), "dozen": Fraction(12),
    "thirty": Fraction(30), "forty": Fraction(40), "fifty": Fraction(50), "sixty": Fraction(60),
    "hundred": Fraction(100), "pair": Fraction(2), "couple": Fraction(2), "score": Fraction(20),
}  # fmt: skip
_CONSTANTS: Mapping[int, str] = {
    7: "week|day", 12: "year|month|dozen|hour|inch|feet|foot", 24: "day|hour", 30: "month|day", 31: "month|day",
    52: "year|week", 60: "minute|hour|second", 100: "percent|%|cent|metre|meter", 360: "degree|angle|circle",
    365: "year|day", 366: "year|day", 1000: "kilo|kg|km|gram|litre|liter|ton", 3600: "hour|second", 180: "degree|angle",
}  # fmt: skip
"""Number -> the words of a question that bring it in unasked."""


class Wanted(NamedTuple):
    """The kind of answer that a question asks for."""

    name: str
    fits: Callable[[str], bool]


class Following(NamedTuple):
    """What came after a result: the turn, its words, and what it says."""

    turn: int
    quote: str
    said: str


@dataclass(frozen=True)
class Premises:
    """One episode beside its task; `is_right` says whether it solved it."""

    task: Task
    episode: Episode
    is_right: bool

    @property
    def turns(self) -> Sequence[Turn]:
        return self.episode.turns

    @property
    def events(self) -> Sequence[ToolEvent]:
        return self.episode.events

    @cached_property
    def plan(self) -> list[str]:
        """The tools of the reference plan in their order; empty where there is none."""
        plan = self.task.extra_info.get("plan")
        steps = plan if isinstance(plan, list) else []
        return [str(step["tool"]) for step in steps if isinstance(step, dict) and "tool" in step]

    @cached_property
    def told(self) -> list[ToolEvent]:
        """Calls that told something: they went well, found something, and are nobody's opinion."""
        return [e for e in self.events if e.result.ok and not reads_not_found(e.result) and not is_opinion(e)]

    def text(self, place: int) -> str:
        """The beginning of a turn's words."""
        return shown(self.turns[place].text) if 0 <= place < len(self.turns) else ""

    def sayings(self, place: int) -> list[str]:
        """What a turn says: the texts in its JSON, else its text."""
        turn = self.turns[place]
        values = turn.parsed.values() if isinstance(turn.parsed, dict) else ()
        return [value for value in values if isinstance(value, str) and value in turn.text] or [turn.text]

    def words_of_call(self, event: ToolEvent) -> str:
        """The beginning of the turn that asked for a call, else the call itself."""
        return self.text(event.turn) or shown(call_text(event))

    def is_told(self, claim: str) -> bool:
        """Whether a tool said the like of a claim that something is not."""
        return any(holds(e.result.text, claim) or next(says_nothing(e.result.text, False), "") for e in self.told)

    def tells(self, event: ToolEvent, value: str) -> bool:
        """Whether a call's result holds a value."""
        return event.result.ok and holds(event.result.text, value)

    def holds_gold(self, event: ToolEvent) -> bool:
        """Whether the result holds the task's; one or two characters count in a short text only."""
        gold = self.task.result
        found = [part.strip() for part in alternatives(gold) or [gold] if holds(event.result.text, part.strip())]
        return any(len(part) > 2 or len(event.result.text) <= _SHORT for part in found)

    def unknown_in(self, event: ToolEvent) -> list[str]:
        """Numbers (from 10 on) and names in a call that neither the question nor an earlier result has."""
        place = next(index for index, other in enumerate(self.events) if other is event)
        earlier = [e.result.text for e in self.events[:place] if e.result.ok]
        known = "\n".join((self.task.question, *earlier, *self._worked_out(event.turn)))
        return [term for term in terms(_arguments(event)) if not holds(known, term)]

    def asked(self) -> list[str]:
        """Numbers and names of the question."""
        return terms(self.task.question)

    def followed(self) -> Iterator[tuple[ToolEvent, Following]]:
        """Each call that told something, with the next call or, for the last, the answer."""
        last = len(self.turns) - 1
        answer = self.episode.answer or ""
        for event in self.told:
            later = [other for other in self.events if other.turn > event.turn]
            if later:
                yield event, Following(later[0].turn, self.words_of_call(later[0]), _arguments(later[0]))
            elif event.turn < last and answer:
                yield event, Following(last, shown(answer), answer)

    def other_number(self, following: Following) -> str:
        """A number in what followed that nothing before it has."""
        earlier = [e.result.text for e in self.events if e.turn < following.turn and e.result.ok]
        known = "\n".join((self.task.question, *earlier, *self._worked_out(following.turn)))
        return next((number for number in _NUMBER.findall(following.said) if not holds(known, number)), "")

    def texts_after(self, turn: int) -> list[str]:
        """All that was said and called after a turn, the answer last."""
        said = [later.text for later in self.turns[turn + 1 :]]
        return [*said, *(call_text(e) for e in self.events if e.turn > turn), self.episode.answer or ""]

    def is_supported(self, answer: str) -> bool:
        """Whether the numbers and words of an answer are in the question or the results, or were rightly worked out."""
        known = "\n".join((self.task.question, *(e.result.text for e in self.told), *self._worked_out(len(self.turns))))
        if not all(holds(known, number) for number in _NUMBER.findall(answer)):
            return False
        words = [word for word in re.findall(r"[^\W\d_]+", answer.casefold()) if word not in _SMALL_WORDS]
        there = set(re.findall(r"[^\W\d_]+", known.casefold()))
        return sum(word in there for word in words) * 4 >= 3 * len(words)  # an answer may add a word of its own

    def foreign_operands(self) -> Iterator[tuple[int, str, Fraction]]:
        """(turn, words, number) of calculations with a number that is not of the question, while one that is lies idle.

        Constants that it brings in, as 60 minutes, and what was worked out before are nobody's misreading.
        """
        given = set(numbers_in(self.task.question))
        words = re.findall(r"[a-z]+", self.task.question.casefold())
        known = (
            given | {Fraction(0), Fraction(1), Fraction(2)} | {_NUMERALS[word] for word in words if word in _NUMERALS}
        )
        known |= {Fraction(n) for n, cue in _CONSTANTS.items() if re.search(cue, self.task.question, re.IGNORECASE)}
        known |= {100 - number for number in given} | {number / 100 for number in given} | {1 / n for n in known if n}
        known |= {1 - number / 100 for number in given} | {1 + number / 100 for number in given}
        claims = [(place, claim) for place, turn in enumerate(self.turns) for claim in claims_in(turn.text)]
        if given and given <= {number for _, claim in claims for number in claim.operands}:
            return
        for place, claim in claims:
            for number in claim.operands:
                if number not in known:
                    yield place, claim.quote, number
            known.add(claim.stated)
            known |= {abs(claim.stated), claim.value}

    def _worked_out(self, turn: int) -> list[str]:
        """Values of the calculations that hold, up to a turn."""
        claims = (claim for own in self.turns[: turn + 1] for claim in claims_in(own.text))
        return [written(claim.stated) for claim in claims if claim.holds]


def terms(text: str) -> list[str]:
    """Numbers from 10 on and names, in their order. A lone word with a capital at the start of a sentence is none."""
    found = [(m.start(), m[0]) for m in _NUMBER.finditer(text) if len(re.sub(r"\D", "", m[0])) > 1]
    for match in _NAME.finditer(text):
        starts = match.start() == 0 or re.search(r"[.!?:]\s*$|[\"'(\[]$", text[: match.start()])
        name = re.sub(r"^\S+\s+", "", match[0]) if starts and " " in match[0] and _is_common(match[0]) else match[0]
        if not starts or " " in match[0]:
            found.append((match.start(), name))
    return list(dict.fromkeys(term for _, term in sorted(found)))


def _is_common(name: str) -> bool:
    """Whether the first word is there for the sentence: "What Paris ...", "Find Oslo"."""
    first = name.split()[0].casefold()
    return first in _SMALL_WORDS or first in {
        "find",
        "compute",
        "tell",
        "how",
        "why",
        "look",
        "work",
        "name",
        "does",
        "did",
    }


def holds(text: str, value: str) -> bool:
    """Whether a text has a value as a whole, whatever the case and the commas in numbers."""
    text, value = (re.sub(r"(?<=[0-9]),(?=[0-9]{3})", "", part.casefold()) for part in (text, value))
    value = " ".join(value.split())
    pattern = rf"(?<![\w])(?<![0-9]\.){re.escape(value)}(?!\w|\.[0-9])"
    return bool(value) and bool(re.search(pattern, " ".join(text.split())))


def says_nothing(text: str, is_answer: bool) -> Iterator[str]:
    """Sentences that say that something did not happen or does not exist, not just that it was not found."""
    if is_answer and _BARE_NOTHING.fullmatch(text.strip()):
        yield shown(text)
    for match in _SENTENCE.finditer(text):
        if _NOTHING.search(match[0]) and not _HONEST.search(match[0]):
            yield shown(match[0])


def reads_not_found(result: ToolResult) -> bool:
    """Whether a tool says that it found nothing; a long text says so at its very beginning."""
    text = result.text.strip()
    match = _NOT_FOUND.search(text[:_SHORT])
    return not text or match is not None and (len(text) <= _SHORT or match.start() < 80)


def is_opinion(event: ToolEvent) -> bool:
    """Whether the tool is a model that answers from memory."""
    return bool(_OPINION.search(event.tool))


def is_number(text: str) -> bool:
    """Whether a text is one number."""
    return bool(_NUMBER.fullmatch(text))


def wanted(question: str) -> Wanted | None:
    """A number or a year, where the question says that it asks for one."""
    if re.search(r"\bhow (?:many|much|old)\b|\b(?:what|which) year\b", question, re.IGNORECASE):
        return Wanted("a number", lambda answer: bool(re.search(r"[0-9]", answer)) or _has_numeral(answer))
    return None


def _has_numeral(text: str) -> bool:
    return not _NUMERALS.keys().isdisjoint(re.findall(r"[a-z]+", text.casefold()))


def written(value: Fraction) -> str:
    """A number as people write it."""
    if value.denominator == 1:
        return str(value)
    return f"{value.numerator / value.denominator:.6g}"


def shown(text: str, limit: int = 160) -> str:
    """The beginning of a text, as it stands there."""
    return text.strip()[:limit]


def call_text(event: ToolEvent) -> str:
    """A call as one text."""
    return f"{event.tool} {json.dumps(dict(event.arguments), ensure_ascii=False, sort_keys=True, default=str)}"


def _arguments(event: ToolEvent) -> str:
    return "\n".join(
        value if isinstance(value, str) else json.dumps(value, default=str) for value in event.arguments.values()
    )
