"""Values out of text that a model wrote: JSON, Python literals, damaged JSON; read within bounds and never evaluated.

Strict reading comes first, so that what is valid is never rewritten; what had to be mended is told apart from what had
not. It knows no tools and no templates: `tool_calls.py` does.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import json_repair

MAX_CHARACTERS = 100_000
MAX_DEPTH = 100
MAX_GUESSED = 20_000  # guessing takes more than linear time


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    for key, value in pairs if len(found) < len(pairs) else ():
        if found[key] != value:
            raise ValueError(f"{key!r} is given twice, with different values")
    return found


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_unique)  # models write code with raw newlines in strings
_REASONING = re.compile(r"<think>.*?</think>", re.DOTALL)
# A string that never ends reaches to the end of the text, so that no pattern looks at a text more than once.
_STRING = r'"(?:[^"\\]|\\.?)*+(?:"|\Z)'
_SINGLE = r"'(?:[^'\\]|\\.?)*+(?:'|\Z)"
_STRINGS = re.compile(rf"{_STRING}|(?<=[:,{{[(]){_SINGLE}|(?<=[:,{{[(]\s){_SINGLE}", re.DOTALL)
_NOT_BRACKETS = re.compile(rf"{_STRING}|[^][{{}}()\"]+", re.DOTALL)
_STRAY = re.compile(rf"({_STRING})|\\[nrt]|,(?=(?:\s|\\[nrt])*+[]}}])", re.DOTALL)
_STRAY_ESCAPE = re.compile(rf"({_STRING}|{_SINGLE})|\\[nrt]", re.DOTALL)
_WHOLE = r"""(["'])(?:[^\\]|\\.)*\1"""
_SPACE = re.compile(r"\s*")
_TOO_DEEP = f"JSON nested deeper than {MAX_DEPTH}"
_CONSTANTS = {"true": True, "false": False, "null": None}


def parse_json(text: str, fields: Mapping[str, type], optional: Mapping[str, Any] = {}) -> dict[str, Any]:  # noqa: B006
    """The declared `fields` of the JSON object in a reply, in their order; other keys are dropped.

    `optional` maps fields that may be missing to their defaults, whose type they have.

    Takes the first object that has all fields; prose and a code fence around it are fine, small damage is repaired.
    An int may stand for a float, a bool never for a number. Raises ValueError that names the missing or wrong field.
    """
    text = without_reasoning(text)
    refuse_long(text)
    problem = ValueError("no JSON object in the reply")
    for candidate in _objects(text):
        try:
            found = {name: _field(candidate, name, kind) for name, kind in fields.items()}
            return found | {
                name: _field(candidate, name, type(default)) if name in candidate else default
                for name, default in optional.items()
            }
        except ValueError as cause:
            problem = cause
    raise problem


def without_reasoning(text: str) -> str:
    """`text` less its `<think>` blocks; the first opening tag may be in the prompt. ValueError if one never ends."""
    reasoning, closing, answer = text.partition("</think>")
    if closing and "<think>" not in reasoning:
        text = answer
    text = _REASONING.sub("", text)
    if "<think>" in text:
        raise ValueError("unterminated reasoning: <think> without </think>")
    return text


def value_at(text: str, at: int) -> tuple[Any, int]:
    """The valid JSON value that starts at `at`, and where it ends. Raises JSONDecodeError, ValueError beyond bounds."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError as cause:
        raise ValueError(_TOO_DEEP) from cause
    return plain(value), end


def skip_space(text: str, at: int) -> int:
    """The next place at or behind `at` that holds no white space."""
    match = _SPACE.match(text, at)
    assert match
    return match.end()


def tidied(text: str) -> Any:
    """What `text` says beyond doubt although it isn't JSON: stray `\\n` and commas before a closing bracket dropped,
    or read as a Python literal. Raises ValueError if that is not enough."""
    refuse_long(text)
    refuse_deep(text)
    try:
        value, end = value_at(tidy := _STRAY.sub(lambda match: match[1] or "", text).strip(), 0)
        if end == len(tidy):
            return value
    except json.JSONDecodeError:
        pass
    return literal(text)


def literal(text: str) -> Any:
    """A Python literal as a JSON value; `true`, `false` and `null` count too. Raises ValueError. Nothing is run."""
    refuse_long(text)
    refuse_deep(text)
    try:
        return literal_of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, MemoryError, RecursionError) as cause:  # the last two: the parser's own stack
        raise ValueError(f"not a literal: {text.strip()[:60]!r}") from cause


def literal_of(node: ast.expr) -> Any:
    """The JSON value of a parsed literal. Raises ValueError for anything that would have to be computed."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Dict):
            keys = {key.value for key in inner.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
            if len(keys) != len(inner.keys):
                raise ValueError("the keys of an object must be different strings")
    try:
        return plain(ast.literal_eval(_JSONConstants().visit(node)))
    except (ValueError, TypeError, MemoryError, RecursionError) as cause:
        raise ValueError(f"not a literal: {cause}") from cause


class _JSONConstants(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in _CONSTANTS:
            return node
        return ast.copy_location(ast.Constant(_CONSTANTS[node.id]), node)


def guessed(text: str) -> dict[str, Any]:
    """The object that json_repair makes of damaged JSON. It guesses: check what matters. Raises ValueError."""
    refuse_long(text, MAX_GUESSED)
    refuse_deep(text)
    try:
        value = json_repair.loads(_STRAY_ESCAPE.sub(lambda match: match[1] or " ", text), skip_json_loads=True)
    except RecursionError as cause:
        raise ValueError(_TOO_DEEP) from cause
    if not isinstance(value, dict) or not value:
        raise ValueError(f"not a JSON object: {text.strip()[:60]!r}")
    return plain(value)


def ends_in_string(text: str) -> bool:
    """Whether a string that begins in `text` never ends."""
    strings = [match[0] for match in _STRINGS.finditer(text)]
    return bool(strings) and (len(strings[-1]) == 1 or re.fullmatch(_WHOLE, strings[-1], re.DOTALL) is None)


def refuse_long(text: str, limit: int = MAX_CHARACTERS) -> None:
    """Raises ValueError beyond the limit."""
    if len(text) > limit:
        raise ValueError(f"JSON of {len(text)} characters, the limit is {limit}")


def refuse_deep(text: str) -> None:
    """Raises ValueError for brackets nested beyond MAX_DEPTH, before any parser meets them."""
    if _depth(text) > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: surrogate pairs joined, lone ones replaced. ValueError for NaN, sets and depth."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as cause:
        raise ValueError(f"not a JSON value: {cause}") from cause
    except RecursionError as cause:
        raise ValueError(_TOO_DEEP) from cause
    refuse_deep(text)
    return json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _NOT_BRACKETS.sub("", text):
        depth += 1 if bracket in "{[(" else -1
        deepest = max(deepest, depth)
    return deepest


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost whole JSON objects in `text`; then, if the first brace opens none, what mending makes of it."""
    first = at = text.find("{")
    damaged = False
    while at >= 0:
        try:
            value, end = value_at(text, at)
            yield value
        except json.JSONDecodeError:
            damaged |= at == first
            end = at + 1
        at = text.find("{", end)
    if damaged:
        start = max(first, text.find("{", text.find("```") + 1))  # inside the code fence if there is one
        end = text.rfind("}")
        yield _mended(text[start : end + 1] if end > start else text[start:])


def _mended(text: str) -> dict[str, Any]:
    try:
        value = tidied(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) and value else guessed(text)


def _field(value: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in value:
        raise ValueError(f"missing field {name!r} ({kind.__name__})")
    found = value[name]
    if kind is float and type(found) is int:
        return float(found)
    if not isinstance(found, kind) or (kind in (int, float) and isinstance(found, bool)):
        raise ValueError(f"field {name!r} must be {kind.__name__}, got {type(found).__name__} {str(found)[:40]!r}")
    return found
