"""Finds the answer in a completion: the last of its markers, wherever it stands; without any, the last value.

Pure, and linear in the length of the text. What the answer is worth is decided elsewhere. Markers: a box (\\boxed,
\\fbox), "####", <answer> tags, "Final Answer:", "The answer is". What stands in <think> is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gruppo.rewards.last_value import last_value
from gruppo.rewards.maths.notation import unmarked
from gruppo.rewards.maths.quantities import NOT_UNITS, SCALES

MAX_JOINED = 100  # boxes in one list
MAX_STATEMENTS = 1_000  # that are looked at, from the last one back


@dataclass(frozen=True)
class Extracted:
    """`candidates` says the same answer in one or two ways: the whole statement, the value in it; `marker` names what
    it was found by."""

    candidates: tuple[str, ...]
    marker: str


@dataclass(frozen=True)
class Found:
    """One marker with what it marks. A weak one does not go before a strong one: it marks words, not a value."""

    start: int
    text: str
    marker: str
    is_weak: bool = False


_THINK = re.compile(r"<(/?)(?:think|thinking|thought|reasoning|scratchpad)>|\[(/?)THINK\]", re.IGNORECASE)
_BOX = re.compile(r"\\\\?(?:boxed|fbox|framebox)\s*(?:\{|(?=[A-Za-z0-9]))|\\[{}\\]|[{}]")
_BARE_BOX = re.compile(r"-?[A-Za-z0-9.]{1,40}")
_UNCLOSED = re.compile(r"\n|\\[)\]]|\$|</")
_BETWEEN_BOXES = re.compile(
    r"(?:\s|[,;$&]|\\[()\[\]]|\\q?quad|\\text|\\[ ,;]|[{}]|\band\b|\bor\b)*"
    r"|[\s$\\()a-z{}]{0,60}\b(?:and|or)\b[\s$\\(){}a-z]{0,40}(?:[A-Za-z]_?\{?[0-9]?\}?\s*=\s*)?"
)
_CHANGE_OF_MIND = re.compile(r"\b(?:is|was|wrong|not|but|so|no|wait|then|should|instead|rather|check)\b|\n\s*\n")
_TAG = re.compile(r"<(/?)(?:final_)?answer>|\[(/?)ANSWER\]", re.IGNORECASE)
_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
_HEADING = re.compile(
    r"[*_ ]*(?:(?:step|part|case|solution|explanation|conclusion|verification|note|summary|check|approach|final|answer"
    r"|calculation|analysis|given|method|problem|question|result)\b|[0-9]{1,2}[.)][ \t]+[A-Za-z])",
    re.IGNORECASE,
)
_MENTION = re.compile(
    r"(?:\bfinal[ \t]+)?\banswer\b|答案|\b(?:correct|right|best)[ \t]+(?:option|choice)\b", re.IGNORECASE
)
_STATEMENT = re.compile(
    r"\b(?:correct|right|best)[ \t]+(?:option|choice)(?:[ \t]*\*\*)?(?:[ \t]+is\b|[ \t]*[:：])(?:[ \t]*\*\*)?[ \t]*:?"
    r"(?=[\s$\\(*]{0,8}(?:text\w{0,2}\{)?\(?(?-i:[A-H])\b)|"
    r"\bfinal[ \t]+answer\b(?:[ \t]*\*\*)?(?:[ \t]+is\b|[ \t]*[:：=]|(?=\s*(?:\n|$|[$\\0-9*-])))[ \t]*(?:\*\*)?[ \t]*:?"
    r"|\banswer(?:[ \t]+(?:to|for|of)[ \t][^.:\n]{1,80}?)?(?:[ \t]*\*\*)?"
    r"(?:[ \t]+(?:is|was|would[ \t]+be|must[ \t]+be|should[ \t]+be|equals|are)\b(?:[ \t]+therefore|[ \t]+thus)?[ \t]*:?"
    r"|[ \t]*[:：=])(?:[ \t]*\*\*)?|答案(?:是|为|[:：])",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<!\bMr)(?<!\bDr)(?<!\bMrs)(?<!\bSt)(?<!\bi\.e)(?<!\be\.g)[.!?。](?=\s|$|\*\*)|\n")
_TAIL = re.compile(
    r"[,;]?\s+(?:because|since|so|as|which|where|when|in total|altogether|that is|after|given)\b.*|[,;]?\s+i\.e\..*"
    r"|(?<=[0-9)}$%])(?:,\s+[A-Za-z]{2,}.*|\s+\([A-Za-z]{2,}.*)|;.*",
    re.DOTALL,
)
_HEDGE = re.compile(r"\b(?:or|either|and|maybe|perhaps|possibly|alternatively|could|might|otherwise)\b", re.IGNORECASE)
_LEADING = re.compile(r"((?:about |approximately |exactly |\$ ?)?[-+$€£]*[0-9]\S*)\s+([A-Za-z]+)")
_DISPLAYED = {r"\[": r"\]", r"\(": r"\)", "$$": "$$"}
_HAS_VALUE = re.compile(r"[0-9\\$]|^\W*(?:[A-J]|yes|no|true|false)\W*$", re.IGNORECASE)


def extract(completion: str) -> Extracted | None:
    """The answer, or None if there is none. An empty box is an empty answer, unless something else is marked."""
    text = without_thoughts(completion)
    found = sorted([*boxes(text), *tags(text), *hashes(text), *statements(text)], key=lambda one: one.start)
    filled = [one for one in found if one.text]
    strong = [one for one in filled if not one.is_weak]
    if filled:
        return from_marker((strong or filled)[-1])
    if found:
        return Extracted(("",), found[-1].marker)
    value = last_value(text)
    return Extracted(exclaimed([value]), "last value") if value else None


def marked(text: str) -> Extracted | None:
    """The answer that a box, "####" or a tag marks; None if there is none of them. For gold answers and bare ones."""
    found = sorted([*boxes(text), *tags(text), *hashes(text)], key=lambda one: one.start)
    filled = [one for one in found if one.text]
    return from_marker(filled[-1]) if filled else None


def without_thoughts(text: str) -> str:
    """What stands outside of <think> ... </think>; one that is never closed goes to the end."""
    kept: list[str] = []
    place, is_thought = 0, False
    for match in _THINK.finditer(text):
        is_end = "/" in match[0]
        if is_end and not is_thought:
            kept.clear()  # opened by the prompt
        elif not is_end and not is_thought:
            kept.append(text[place : match.start()])
        place, is_thought = match.end(), not is_end
    return "".join(kept) + ("" if is_thought else text[place:])


def boxes(text: str) -> Iterator[Found]:
    r"""The outermost boxes, from the last one back to the last that is not empty.

    One that is never closed reaches to the end of its line or formula. Boxes that only "," "and" "or" part are one
    list: "\boxed{1} and \boxed{2}".
    """
    spans = list(_box_spans(text))
    last = len(spans) - 1
    while last >= 0:
        first = last
        while first and last - first < MAX_JOINED and _belong_together(text[spans[first - 1][1] : spans[first][0]]):
            first -= 1
        contents = [text[start:end].strip() for _, _, start, end in spans[first : last + 1]]
        gaps = text[spans[first][1] : spans[last][0]]
        joined = (" or " if re.search(r"\bor\b", gaps) else ", ").join(dict.fromkeys(contents))
        yield Found(spans[first][0], joined, "box")
        if joined:
            return
        last = first - 1


def _box_spans(text: str) -> Iterator[tuple[int, int, int, int]]:
    """(start, end, start of content, end of content) of each outermost box."""
    if "box" not in text:
        return
    braces: list[tuple[int, int] | None] = []  # of each open brace: start and content of its box, None if it is no box
    closed: list[tuple[int, int, int, int]] = []
    for match in _BOX.finditer(text):
        token = match[0]
        if token.startswith("\\") and "box" in token:
            if token.endswith("{"):
                braces.append((match.start(), match.end()))
            elif bare := _BARE_BOX.match(text, match.end()):
                closed.append((match.start(), bare.end(), bare.start(), bare.end()))
        elif token == "{":
            braces.append(None)
        elif token == "}" and braces and (box := braces.pop()):
            closed.append((box[0], match.end(), box[1], match.start()))
    unclosed = next((box for box in reversed(braces) if box), None)
    if unclosed:
        end = _UNCLOSED.search(text, unclosed[1])
        stop = end.start() if end else len(text)
        closed.append((unclosed[0], stop, unclosed[1], stop))
    outer_end = -1
    for span in sorted(closed):
        if span[0] >= outer_end:
            yield span
            outer_end = span[1]


def _belong_together(gap: str) -> bool:
    if len(gap) > 120 or not _BETWEEN_BOXES.fullmatch(gap):
        return False
    return not (_CHANGE_OF_MIND.search(gap) or ("\n" in gap and not re.search(r"[,;&]|\band\b|\bor\b", gap)))


def tags(text: str) -> Iterator[Found]:
    """What stands in <answer> tags; one that is never closed reaches to the end."""
    opened: re.Match[str] | None = None
    for match in _TAG.finditer(text):
        if "/" not in match[0]:
            opened = match
        elif opened:
            yield Found(opened.start(), text[opened.end() : match.start()].strip(), "tag")
            opened = None
    if opened:
        yield Found(opened.start(), text[opened.end() :].strip(), "tag")


def hashes(text: str) -> Iterator[Found]:
    """The rest of the line after "####", unless it is a heading."""
    for match in _HASHES.finditer(text):
        content = unmarked(match[1])
        if content and not _HEADING.match(content) and not match[1].rstrip().endswith(":"):
            yield Found(match.start(), content, "####")


def statements(text: str) -> Iterator[Found]:
    """What "Final Answer:" or "The answer is" says, to the end of the sentence; on the next line if it says nothing.

    From the last one back to the last that says a value.
    """
    end = len(text)
    for mention in list(_MENTION.finditer(text))[: -MAX_STATEMENTS - 1 : -1]:
        match = _STATEMENT.match(text, mention.start())
        if match is None:
            continue
        content = unmarked(text[slice(*_statement_span(text, match.end(), end))])
        end = match.start()
        if content:
            is_weak = not _HAS_VALUE.search(content)
            yield Found(match.start(), content, "statement", is_weak)
            if not is_weak:
                return


def _statement_span(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and (text[start].isspace() or text[start] in "*:"):
        start += 1
    closing = _DISPLAYED.get(text[start : start + 2])
    if closing and (stop := text.find(closing, start + 2, end)) >= 0:
        return start, stop + 2
    sentence_end = _SENTENCE_END.search(text, start, end)
    return start, sentence_end.start() if sentence_end else end


def from_marker(found: Found) -> Extracted:
    """A box is taken as it is; of a statement, also the value in it."""
    if found.marker == "box":
        return Extracted((found.text,), found.marker)
    inner = marked(found.text) if found.marker == "tag" else None
    if inner:
        return inner
    text = unmarked(found.text)
    candidates = [text]
    tail = _TAIL.search(text)
    if tail and tail.start() and not _HEDGE.search(tail[0]):
        candidates.append(unmarked(text[: tail.start()]))
    if value := value_in(candidates[-1]):
        candidates.append(value)
    return Extracted(exclaimed(candidates), found.marker)


def exclaimed(candidates: list[str]) -> tuple[str, ...]:
    """With what a sentence that ends in "5!" may mean: a factorial, or that somebody is glad."""
    glad = [text.rstrip("!") for text in candidates if re.search(r"[0-9]!+$", text)]
    return tuple(dict.fromkeys(candidates + glad))


def value_in(statement: str) -> str:
    """The value that a statement with words begins with, else the last one in it; "" where there is nothing to find."""
    if not re.search(r"[A-Za-z]{3}", re.sub(r"\\[A-Za-z]+", "", statement)):
        return ""
    leading = _LEADING.match(statement)
    if leading:
        word = leading[2].casefold()
        return "" if word in NOT_UNITS or word in SCALES else leading[1]
    return last_value(statement)
