"""What a judge's reply says: a verdict, a grade, a choice or a ranking, or None where it does not say one.

Pure text in, values out; it asks nobody. The order of trust: JSON, then the last line that is a verdict. A verdict is
never looked for inside a sentence (`"correct" in "incorrect"`), what is still inside reasoning says nothing, and a
favourable line that the candidate wrote itself is an echo.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

MAX_CHARACTERS = 50_000  # of a reply that is read at all
MAX_BRACES = 1_000  # places where an object is looked for
MAX_LINE = 300  # a longer line is no verdict

_REASONING = re.compile(
    r"<\s*(/?)\s*(?:seed:)?(?:think|thinking|thoughts?|reasoning|reflection|scratchpad|analysis)\s*>"
    r"|\[(/?)THINK\]|◁(/?)think▷",
    re.IGNORECASE,
)
_CHANNEL, _FINAL = "<|channel|>", "<|channel|>final<|message|>"

# JSON keys that hold a verdict; those in the second set say the opposite.
_VERDICT_KEYS = frozenset(
    "correct iscorrect verdict judgement judgment decision match matches ismatch equivalent isequivalent equal "
    "truefalse pass passed result conclusion label".split()
)
_OPPOSITE_KEYS = frozenset("incorrect isincorrect wrong iswrong".split())
_GRADE_KEYS = frozenset("score grade rating points finalscore overallscore".split())
_CHOICE_KEYS = frozenset("winner better choice preferred preference verdict".split())

_GOOD = frozenset(
    "correct right yes true pass passes passed match matches matched matching equivalent equal same accurate valid "
    "accepted accept ✓ ✔ ✅ 正确 对 是".split()
)
_BAD = frozenset(
    "incorrect wrong no false fail fails failed mismatch inequivalent unequal different inaccurate invalid rejected "
    "reject ✗ ✘ ❌ 错误 不正确 错 否".split()
)
_NOT = frozenset("not no non".split())
_FULLY = frozenset("fully completely entirely quite".split())
_FILLERS = frozenset(
    "is it a an the does do did clearly definitely therefore thus indeed also considered deemed judged marked graded "
    "as factually mathematically".split()
)
_NOUNS = frozenset("answer one response solution".split())
_STRONG = r"verdict|judge?ment|decision|ruling|判断|结论"
_WEAK = r"correctness|is[ _]?correct|correct|is[ _]?match|match|equivalent|result|conclusion|assessment|evaluation"
_LABELLED = re.compile(
    rf"(?:(?:the|my|our|your|so|overall|final)\s+)*(?:(?P<strong>{_STRONG})|{_WEAK})\s*"
    r"(?:[:=–—]|-\s|\s(?:is|was)\b:?)\s*(?P<value>.*)"
)
_GRADED = re.compile(
    r"(?:(?:the|my|our|your|so|overall|final|total)\s+)*(?:score|grade|rating)\s*(?:[:=–—]|-\s|\s(?:is|was)\b:?)\s*"
    r"(?P<value>.*)"
)
_GRADE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(?:\s*(?:/|out of)\s*(\d{1,6}))?\.?")
_SENTENCES = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*(?=.)")
_PIECE_OF_JSON = re.compile(r"""\{|\[(?!\[)|"[^"]*"\s*:""")
_END_OF_PHRASE = re.compile(r"[.,;:!()–—]|\s-\s|\b(?:because|since|as|due)\b")

_LEADS = r"(?:(?:so|thus|therefore|hence|overall|finally|ultimately|consequently|in conclusion|in short)\s+)*"
_OWNERS = (
    r"(?:(?:the|this|that|their|its|his|her|both|student's|students'|candidate's|model's|assistant's|user's|agent's|"
    r"student|candidate|predicted|given|final|proposed|submitted|two)\s+)*"
)
_SUBJECTS = (
    r"(?:answers?|response|prediction|solution|results?|values?|output|submission|candidate|student|it|this|that|they)"
)
_TOKEN = r"""(?:\s+(?:["'`(]\S*|\S*\d\S*))?"""
_SENTENCE = re.compile(
    rf"{_LEADS}(?:(?P<yes>yes|no)\s+)?{_LEADS}{_OWNERS}{_SUBJECTS}{_TOKEN}(?:\s+(?:is|are|was)\b|'s\b)?\s+(?P<rest>.+)"
)
_COMPLEMENT = re.compile(
    r"(?:\s(?:to|with|as))?\s(?:the\s)?(?:(?:reference|gold|golden|expected|given|target|ground truth)(?:\s{0})?"
    r"|(?:correct|true)\s{0})$".replace("{0}", "(?:answer|solution|value|one|result)")
)


def read_verdict(reply: str, candidate: str = "") -> bool | None:
    """Whether the judge found the `candidate` correct; None: no verdict.

    The last statement decides. A statement is a JSON object with a verdict key; a line "Verdict: ..." or one that is
    nothing but a verdict; or, at the very end, a plain sentence ("The answer is not correct."). One that is ambiguous,
    such as `{"correct": "partly"}` or two verdicts in one object, is no verdict, whatever stood before it.
    """
    text = without_reasoning(reply)
    if text is None:
        return None
    if (whole := _whole_object(text)) is not None:
        return _unanimous(whole, _json_verdict)
    written = _lines_of(candidate)
    found = _last_statement(text, candidate)
    if found is None:
        return None
    verdict, line = found
    return None if verdict and _normal(line) in written else verdict


def read_grade(reply: str, highest: int, candidate: str = "") -> float | None:
    """The grade from 0 to `highest`: in JSON ("score"), on the last line "Score: ...", or alone. Never clamped."""
    text = without_reasoning(reply)
    if text is None:
        return None
    objects = [] if (whole := _whole_object(text)) is not None else list(_objects(text))
    if whole is None:
        whole = next(
            (found for found, raw in reversed(objects) if _has(found, _GRADE_KEYS) and raw not in candidate), None
        )
    if whole is not None:
        grades = {_json_grade(value, highest) for value in _values(whole, _GRADE_KEYS)}
        return grades.pop() if len(grades) == 1 else None
    written = _lines_of(candidate)
    lines = [_normal(line) for line in text.splitlines() if line.strip() and len(line) <= MAX_LINE]
    labelled = [match["value"] for line in lines if (match := _GRADED.fullmatch(line)) and line not in written]
    said = labelled[-1] if labelled else lines[0] if len(lines) == 1 else ""
    return _text_grade(said, highest)


def read_choice(reply: str, labels: Sequence[str]) -> str | None:
    """Which of `labels` the judge prefers, or "tie": a JSON object with the key "winner"."""
    found = _last_object(reply, _CHOICE_KEYS)
    choices = {str(value).strip().casefold() for value in _values(found or {}, _CHOICE_KEYS)}
    known = {label.casefold(): label for label in (*labels, "tie")}
    return known.get(choices.pop()) if len(choices) == 1 else None


def read_ranking(reply: str, labels: Sequence[str]) -> list[list[str]] | None:
    """The labels from best to worst, those that tie together: `{"ranking": [["B"], ["A", "C"]]}`, or plain labels.

    None if it is not strict JSON, or does not hold every label exactly once.
    """
    found = _last_object(reply, frozenset({"ranking"}))
    tiers = [value for key, value in (found or {}).items() if _key(key) == "ranking"]
    if len(tiers) != 1 or not isinstance(tiers[0], list):
        return None
    ranking = [tier if isinstance(tier, list) else [tier] for tier in tiers[0]]
    named = [label for tier in ranking for label in tier]
    if not all(isinstance(label, str) for label in named) or sorted(named) != sorted(labels):
        return None
    return [tier for tier in ranking if tier]


def without_reasoning(reply: str) -> str | None:
    """The reply less its reasoning; the first opening tag may be in the prompt. None if one was never closed."""
    if len(reply) > MAX_CHARACTERS:
        return None
    if _CHANNEL in reply:
        _, final, reply = reply.rpartition(_FINAL)
        if not final:
            return None
    kept, depth, start = "", 0, 0
    for tag in _REASONING.finditer(reply):
        if any(tag.groups()):  # a closing tag
            kept = kept if depth else ""
            depth = max(0, depth - 1)
        else:
            kept += reply[start : tag.start()] if not depth else ""
            depth += 1
        start = tag.end()
    return None if depth else kept + reply[start:]


# ---- statements in text ---------------------------------------------------------------------------------------------


def _last_statement(text: str, candidate: str) -> tuple[bool | None, str] | None:
    """The last thing that is a verdict, and the line that it is; objects have become lines of their own."""
    for found, raw in _objects(text):
        verdict = _unanimous(found, _json_verdict) if _has(found, _VERDICT_KEYS | _OPPOSITE_KEYS) else None
        is_echo = verdict is True and raw in candidate
        says = not is_echo and _has(found, _VERDICT_KEYS | _OPPOSITE_KEYS)
        line = f"verdict: { {True: 'yes', False: 'no', None: 'unclear'}[verdict] } [json]" if says else ""
        text = text.replace(raw, f"\n{line}\n", 1)
    text = re.sub(r"<(\w{1,20})>\s*([^<>]{0,80}?)\s*</\1>", r"\n\1: \2\n", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and (verdict := _sentence(_SENTENCES.split(lines[-1][-MAX_LINE:])[-1])) is not None:
        return verdict, lines[-1]
    for line in reversed(lines):
        if len(line) > MAX_LINE or _PIECE_OF_JSON.match(line) or not (normal := _normal(line)):
            continue
        if match := _LABELLED.fullmatch(normal):
            verdict = _polarity(_END_OF_PHRASE.split(match["value"], maxsplit=1)[0], numbers=True)
            if verdict is not None or match["strong"]:
                return verdict, line
        elif (verdict := _polarity(normal, numbers=len(lines) == 1)) is not None:
            return verdict, line
    return None


def _sentence(sentence: str) -> bool | None:
    """The verdict of a plain sentence about the answer; hedges, conditions and claims of others are none."""
    if sentence.rstrip().endswith(("?", "？")):
        return None
    normal = _normal(sentence.replace(",", " ")).rstrip(" .!。")
    match = _SENTENCE.fullmatch(normal)
    if not match:
        leading, _, rest = normal.partition(" ")
        is_pair = leading in ("yes", "no") and _polarity(rest) is (leading == "yes")  # "No, wrong."
        return _polarity(rest if is_pair else normal)
    verdict = _polarity(_COMPLEMENT.sub("", match["rest"]))
    return None if match["yes"] and verdict is not (match["yes"] == "yes") else verdict


def _polarity(phrase: str, numbers: bool = False) -> bool | None:
    """True for "correct", "does match", "not wrong"; False for "incorrect", "not fully correct", "no"; else None."""
    words = phrase.replace("-", " ").strip(" .,;:!").split()
    if numbers and words in (["1"], ["0"]):
        return words == ["1"]
    while len(words) > 1 and words[-1] in _NOUNS:
        words.pop()
    if not words or not (words[-1] in _GOOD or words[-1] in _BAD):
        return None
    *before, last = words
    negations, is_whole = sum(word in _NOT for word in before), not any(word in _FULLY for word in before)
    if any(word not in _NOT | _FULLY | _FILLERS for word in before) or negations > 1:
        return None
    if negations and last in _BAD:
        return True if is_whole and last not in ("no", "false") and "no" not in before else None
    return (last in _GOOD) is not bool(negations)


def _normal(line: str) -> str:
    """A line without case, markup and quotes; "n't" is written out."""
    text = unicodedata.normalize("NFKC", line).casefold().replace("’", "'").replace("n't", " not")
    text = re.sub(r"\\(?:boxed|text|textbf)\{([^{}]*)\}|\[\[([^\[\]]*)\]\]", r"\1\2", text).replace("[json]", "")
    return " ".join(re.sub(r"[*_`\"#>|$“”「」]", " ", text).replace("_", " ").split()).strip("- ")


def _lines_of(text: str) -> frozenset[str]:
    return frozenset(_normal(line) for line in text.splitlines() if len(line) <= MAX_LINE)


# ---- JSON -----------------------------------------------------------------------------------------------------------


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)


def _objects(text: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The outermost JSON objects in a text, and how each was written."""
    at = text.find("{")
    for _ in range(MAX_BRACES):
        if at < 0:
            return
        try:
            found, end = _DECODER.raw_decode(text, at)
            yield found, text[at:end]
        except RecursionError:  # nested for no good reason; every further brace would cost as much
            return
        except ValueError:
            end = at + 1
        at = text.find("{", end)


def _whole_object(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is, a code fence around it apart."""
    bare = re.sub(r"\A\s*```(?:json)?\s*\n(.*)\n\s*```\s*\Z", r"\1", text, flags=re.DOTALL | re.IGNORECASE).strip()
    found, raw = next(_objects(bare), ({}, ""))
    return found if raw and raw == bare else None


def _last_object(reply: str, keys: frozenset[str]) -> dict[str, Any] | None:
    text = without_reasoning(reply)
    found = [value for value, _ in _objects(text or "") if _has(value, keys)]
    return found[-1] if found else None


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


def _has(found: dict[str, Any], keys: frozenset[str]) -> bool:
    return any(True for _ in _values(found, keys))


def _values(found: dict[str, Any], keys: Iterable[str]) -> Iterator[Any]:
    """The values under `keys`, also one object further down: `{"result": {"correct": false}}`."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from (inner for key, inner in value.items() if _key(key) in keys and not isinstance(inner, dict))
        elif _key(name) in keys:
            yield value


def _unanimous(found: dict[str, Any], read: Callable[[Any], bool | None]) -> bool | None:
    """The verdict that all verdict keys of an object agree on."""
    verdicts = {read(value) for value in _values(found, _VERDICT_KEYS)}
    verdicts |= {None if (said := read(value)) is None else not said for value in _values(found, _OPPOSITE_KEYS)}
    return verdicts.pop() if len(verdicts) == 1 else None


def _json_verdict(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return value == 1
    return _polarity(_normal(value), numbers=True) if isinstance(value, str) else None


def _json_grade(value: Any, highest: int) -> float | None:
    if isinstance(value, str):
        return _text_grade(value.strip(), highest)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= highest:
        return None
    return float(value) if math.isfinite(value) else None


def _text_grade(text: str, highest: int) -> float | None:
    match = _GRADE.fullmatch(text.strip())
    if match is None or (match[2] is not None and int(match[2]) != highest):
        return None
    return _json_grade(float(match[1]), highest)
