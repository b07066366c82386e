"""From what a policy wrote to tool calls: the call formats, which of them a chat template teaches, and typed errors.

A reply is read from left to right; nothing inside reasoning is a call. What can be read strictly is never rewritten;
mending is recorded on the call and never changes which tool is called. Whether a tool exists and its arguments fit is
the tool's business. Nothing here runs anything.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gruppo.bounded_json import (
    ends_in_string,
    guessed,
    literal_of,
    refuse_deep,
    refuse_long,
    skip_space,
    tidied,
    value_at,
)
from gruppo.errors import ConfigError


class Fault(StrEnum):
    """What is wrong with a call, so that it can be counted."""

    unterminated_reasoning = "unterminated reasoning"
    unreadable = "unreadable"  # neither JSON nor Python, or beyond the bounds
    unfinished = "unfinished"  # cut off: half a command must not run
    empty = "empty"
    not_a_call = "not a call"  # a value, but no object with name and arguments
    missing_name = "missing name"
    bad_arguments = "bad arguments"
    ambiguous = "ambiguous"  # it names two tools, or a mended text no longer names the one that was written


class CallError(ValueError):
    """A broken call: `code` for counting, the message for the agent."""

    def __init__(self, code: Fault, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ToolCall:
    """One tool call as the policy wrote it; `repaired` if it had to be mended, which makes it no other call."""

    name: str
    arguments: Mapping[str, Any]
    repaired: bool = field(default=False, compare=False)


Item = ToolCall | CallError


def parse_tool_calls(
    text: str, call_format: str = "any", repair: bool = True
) -> tuple[list[ToolCall], list[CallError]]:
    """The calls of a reply in their order, and what is wrong with those that are broken. Never raises for the text.

    `call_format` is a name of FORMATS, as `call_format()` reads from a template; "any" tells it from the reply itself.
    A reply that never leaves its reasoning holds no call, only the error, and nothing behind a forged observation is
    read. `repair=False` takes only what is strictly well-formed. Raises ConfigError for an unknown format.
    """
    if call_format != "any" and call_format not in FORMATS:
        raise ConfigError(f"call_format = {call_format!r}: use one of any, {', '.join(FORMATS)}")
    text = cut_observation(text)
    try:
        items = list(FORMATS[_format_of(text) if call_format == "any" else call_format](text, repair))
    except CallError as error:
        return [], [error]
    return [i for i in items if isinstance(i, ToolCall)], [i for i in items if isinstance(i, CallError)]


def call_format(template: str) -> str:
    """The format that a chat template teaches; "any" if it teaches none.

    Raises ConfigError for a template of XML calls (`<function=name><parameter=…>`), which this program does not read.
    """
    if "<parameter=" in template:
        raise ConfigError(
            "the chat template teaches XML tool calls, which are not read: set team.solo.call_format, and it is told so"
        )
    if "<tool_call>" in template:
        return "hermes"
    if "<|python_start|>" in template or re.search(r"\[func\w*\(", template):
        return "pythonic"
    if "<|python_tag|>" in template or re.search(r'"name\\?": .{0,60}"parameters\\?":', template):
        return "llama"
    return "fenced" if re.search(r"```(?:tool_call|tool_code)", template) else "any"


def cut_observation(text: str) -> str:
    """`text` up to where its author goes on, behind a call, to write the tool's answer: a forgery.

    Sampling should stop there in the first place: OBSERVATIONS are its stop strings.
    """
    reasoned = text.rfind("</think>") + 1
    action = _ACTION.search(text, reasoned)
    forged = _OBSERVATION.search(text, action.end()) if action else None
    return text[: forged.start()].rstrip() if forged else text


OBSERVATIONS = ("\nObservation:", "<tool_response>")

_ACTION = re.compile(
    r"<tool_call>.*?(?:</tool_call>|\Z)|^[ \t*#>]*Action(?: Input)?[ \t*]*:[^\n]*|<\|python_\w+\|>|```tool_\w+.*?```"
    r"|^[ \t]*\[\s*[a-z_][\w.]*\((?:\s*\w+\s*=|\))[^\n]*|^[ \t]*\{\s*[\"']name[\"']\s*:[^\n]*",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_OBSERVATION = re.compile(
    r"^[ \t*#>]*(?:Observation|Tool (?:result|response|output))s?[ \t*]*:"
    r"|</?tool_response>|<\|start_header_id\|>|<\|im_start\|>",
    re.IGNORECASE | re.MULTILINE,
)
_MARK = re.compile(r"<think>|</think>|<tool_call>")
_TAG = re.compile(r"</?tool_call>")
_BLOCK_EDGE = re.compile(r"^```\w*\s*|\s*```$")
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w-]*)[ \t]*\r?\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_CALL_FENCES = {"tool_call", "tool_calls", "tool_code"}
_PYTHONIC = re.compile(r"^[ \t]*\[\s*[A-Za-z_][\w.]*\s*\(", re.MULTILINE)
_PYTHONIC_END = re.compile(r"\)\s*,?\s*\]")
_NAME = re.compile(  # of the outermost object, and beyond doubt
    r"""[^{]*\{[^{]*?\bname["']?\s*:\s*(?:(["'])([^"'\n{}]*)\1|([\w.-]+))\s*(?:[,}]|\Z)"""
)
_MAX_ENDS = 50


def _format_of(text: str) -> str:
    answer = text.rpartition("</think>")[2].strip()
    if "<tool_call>" in answer:
        return "hermes"
    if answer.startswith(("{", "<|python_tag|>")):
        return "llama"
    if answer.startswith("<|python_start|>") or (_PYTHONIC.match(answer) and answer.endswith("]") and "=" in answer):
        return "pythonic"
    return "fenced" if "```" in answer else "hermes"


# ---- the formats: text -> calls and errors in their order ------------------------------------------------------------


def _hermes(text: str, repair: bool) -> Iterator[Item]:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, the closing tag optional behind whole JSON."""
    found: list[Item] = []
    at = 0
    while mark := _MARK.search(text, at):
        at = mark.end()
        if mark[0] == "<think>":
            at = text.find("</think>", at) + len("</think>")
            if at < len("</think>"):
                raise CallError(*_UNTERMINATED)
        elif mark[0] == "</think>":  # the opening tag was in the prompt: what came before were drafts
            found.clear()
        else:
            items, at = _tagged(text, at, repair)
            found += items
    yield from found


def _llama(text: str, repair: bool) -> Iterator[Item]:
    """The whole reply is one or more objects, with `parameters` or `arguments`, behind an optional `<|python_tag|>`;
    or, behind the tag, a Python call."""
    answer = _answer(text)
    is_tagged = answer.startswith("<|python_tag|>")
    body = re.sub(r"(<\|e\w+\|>)+$", "", answer.removeprefix("<|python_tag|>").strip())
    if is_tagged and not body.startswith(("{", "[")):
        yield from _python_calls(body)
    elif is_tagged or body.startswith("{"):
        yield from _objects(body, repair, is_call=is_tagged)


def _pythonic(text: str, repair: bool) -> Iterator[Item]:
    """A Python list of calls at the start of a line, `[search(query='x'), shell(cmd='ls')]`; arguments by name."""
    answer = _answer(text)
    begin = answer.find("<|python_start|>")
    if begin >= 0:
        yield from _python_calls(answer[begin + len("<|python_start|>") :].partition("<|python_end|>")[0])
    elif start := _PYTHONIC.search(answer):
        ends = [match.end() for match in _PYTHONIC_END.finditer(answer, start.start())]
        bodies = [answer[start.start() : end] for end in ends[:_MAX_ENDS]] or [answer[start.start() :]]
        yield from _python_calls(next((body for body in bodies if _is_python(body)), bodies[-1]))


def _fenced(text: str, repair: bool) -> Iterator[Item]:
    """Objects or Python calls in a fenced block of `tool_call` or `tool_code`; in one of `json`, if they are calls."""
    for kind, body in _FENCE.findall(_answer(text)):
        is_call = kind.lower() in _CALL_FENCES
        if body.lstrip().startswith(("{", "[{")) and (is_call or kind.lower() in ("json", "")):
            yield from _objects(body.strip(), repair, is_call)
        elif is_call:
            yield from _python_calls(body)


FORMATS: dict[str, Callable[[str, bool], Iterator[Item]]] = {
    "hermes": _hermes,
    "llama": _llama,
    "pythonic": _pythonic,
    "fenced": _fenced,
}

# ---- their parts -----------------------------------------------------------------------------------------------------

_UNTERMINATED = (Fault.unterminated_reasoning, "unterminated reasoning: <think> without </think>")


def _answer(text: str) -> str:
    """What follows the reasoning. Raises CallError if it never ends."""
    answer = text.rpartition("</think>")[2]
    if "<think>" in answer:
        raise CallError(*_UNTERMINATED)
    return answer.strip()


def _objects(body: str, repair: bool, is_call: bool) -> Iterator[Item]:
    """The calls in a text of JSON objects; what merely looks like data is no call unless it is marked as one."""
    if is_call or re.search(r"""["']name["']\s*:""", body) and re.search(r"""["'](arguments|parameters)["']""", body):
        yield from _tagged(body + "</tool_call>", 0, repair)[0]


def _tagged(text: str, at: int, repair: bool) -> tuple[list[Item], int]:
    """The calls of one `<tool_call>` whose content starts at `at` (some models write several), and where it ends."""
    items: list[Item] = []
    while (at := skip_space(text, at)) < len(text) and not _TAG.match(text, at):
        if items and text[at] in ",;":
            at += 1
            continue
        if items and text[at] not in "{[":
            return _left_over(text, at, items)
        try:
            value, at = value_at(text, at)
            items += _calls(value, repaired=False)
        except json.JSONDecodeError:
            broken = text[at : _end(text, at)]
            at += len(broken)
            try:
                items += _calls(_mended(broken, text.startswith("</tool_call>", at), repair), repaired=True)
            except ValueError as error:
                items.append(_error(error, Fault.unreadable))
            return items, at
        except ValueError as error:  # beyond the bounds
            return [*items, _error(error, Fault.unreadable)], _end(text, at)
    return items or [CallError(Fault.empty, "tool call: empty")], at


def _left_over(text: str, at: int, items: list[Item]) -> tuple[list[Item], int]:
    """Behind whole objects: prose where the closing tag is missing, or brackets too many; else the last call is off."""
    mark = _TAG.search(text, at)
    end = mark.start() if mark else len(text)
    rest = text[at:end]
    if text.startswith("</tool_call>", end) and rest.strip("]}` \n"):
        error = CallError(Fault.unreadable, f"tool call: it goes on behind its object: {rest.strip()[:60]!r}")
        return [*items[:-1], error], end
    return items, end


def _end(text: str, at: int) -> int:
    """Where a damaged call that goes on at `at` ends: the closing tag, since another may be part of a text in it."""
    closing = text.find("</tool_call>", at)
    return closing if closing >= 0 else len(text)


def _mended(broken: str, is_closed: bool, repair: bool) -> Any:
    """The value of a damaged call. Raises ValueError."""
    shown = f"{broken.strip()[:60]!r}"
    if not is_closed or "<tool_call>" in broken:
        raise CallError(Fault.unfinished, f"tool call: neither closed nor whole JSON: {shown}")
    body = _BLOCK_EDGE.sub("", broken.strip())
    if not repair:
        raise CallError(Fault.unreadable, f"tool call: not JSON: {shown}")
    try:
        return tidied(body)
    except ValueError:
        pass
    if ends_in_string(body):
        raise CallError(Fault.unfinished, f"tool call: a text in it never ends: {shown}")
    value = guessed(body)
    name = _NAME.match(body)
    if "name" in value and not (name and value["name"] == (name[2] or name[3])):
        raise CallError(Fault.ambiguous, f"tool call: can't tell which tool is meant: {shown}")
    return value


def _calls(value: Any, repaired: bool) -> list[Item]:
    return [_as_call(entry, repaired) for entry in (value if isinstance(value, list) and value else [value])]


def _error(error: ValueError, code: Fault) -> CallError:
    return error if isinstance(error, CallError) else CallError(code, f"tool call: {error}")


def _as_call(value: Any, repaired: bool) -> Item:
    try:
        return replace(_read_call(value), repaired=repaired)
    except ValueError as error:
        return _error(error, Fault.bad_arguments)


def _read_call(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise CallError(Fault.not_a_call, f"tool call: expected an object with name and arguments, got {kind}")
    if value.get("type") == "function" and isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise CallError(Fault.missing_name, "tool call: missing name")
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if len(given) == 2:
        raise CallError(Fault.ambiguous, f"tool call: {name}: both arguments and parameters; write arguments")
    loose = [key for key in value if key not in ("name", "id", "type")]
    if not given and loose:
        raise CallError(Fault.bad_arguments, f"tool call: {name}: put {loose[0]!r} into an object arguments")
    arguments = given[0] if given and given[0] is not None else {}
    if isinstance(arguments, str):  # some models send the arguments as a JSON string
        arguments = tidied(arguments)
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise CallError(Fault.bad_arguments, f"tool call: {name}: arguments must be an object, got {kind}")
    return ToolCall(name.strip(), arguments)


def _is_python(text: str) -> bool:
    try:
        refuse_long(text)
        refuse_deep(text)
        ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: the parser's own stack
        return False
    return True


def _python_calls(text: str) -> Iterator[Item]:
    """The calls of a Python expression: one call, or a list or tuple of them."""
    text = text.strip()
    if not _is_python(text):
        yield CallError(Fault.unreadable, f"tool call: not a Python call: {text[:60]!r}")
        return
    body = ast.parse(text, mode="eval").body
    for node in body.elts if isinstance(body, ast.List | ast.Tuple) else [body]:
        try:
            yield _python_call(node)
        except ValueError as error:
            yield _error(error, Fault.bad_arguments)


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise CallError(Fault.not_a_call, f"tool call: expected name(argument=value), got {ast.unparse(node)[:60]!r}")
    name = ast.unparse(node.func)
    if not re.fullmatch(r"[^\W\d][\w.]*", name):
        raise CallError(Fault.missing_name, "tool call: missing name")
    if node.args or not all(keyword.arg for keyword in node.keywords):
        raise CallError(Fault.bad_arguments, f"tool call: {name}: give every argument by name, as in key='value'")
    return ToolCall(name, {str(keyword.arg): literal_of(keyword.value) for keyword in node.keywords})
