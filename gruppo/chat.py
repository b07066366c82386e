"""Messages to token ids and back: the one place that knows chat templates and the markup of actions.

Rendering keeps the template's control tokens and makes sure that text from users, tools and pages never becomes one.
Parsing reads tool calls and JSON objects out of what a policy wrote. This module samples nothing, calls no tool and
imports no torch; the tokenizer (a fast `transformers` one) is given.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import json_repair

from gruppo.errors import ConfigError
from gruppo.types import Message

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

MAX_JSON_CHARACTERS = 100_000
MAX_JSON_DEPTH = 100

# ---- messages to ids -------------------------------------------------------------------------------------------------


def render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
) -> tuple[str, list[int]]:
    """The prompt for the next assistant message: its text and its ids, generation prompt included.

    Ids are the template's standard tokenisation, but for control strings inside contents. Special tokens are plain text
    in every content; other markup tokens of the template (`<tool_call>`, `<think>`) too, where the author is a user or
    a tool: the program's and the policy's own markup stays what it is.

    Raises ConfigError if the tokenizer has no chat template.
    """
    control = _control_of(tokenizer)
    contents = "\0".join([message["content"] for message in messages])
    cut = ""
    if control.occurs_in(contents):
        cut = _unused_mark(contents)
        messages = [{**m, "content": control.cut(m["content"], cut, markup=_is_foreign(m))} for m in messages]
    text = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tools=[dict(tool) for tool in tools] if tools else None,
        tokenize=False,
        add_generation_prompt=True,
    )
    return _encode(tokenizer, str(text), cut)


def encode_action(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids a policy would have sampled to write `text`: special tokens as plain text, then the end of turn."""
    cut = _unused_mark(text)
    _, ids = _encode(tokenizer, _control_of(tokenizer).cut(text, cut, markup=False), cut)
    return [*ids, end_of_turn_ids(tokenizer)[0]]


def decode_action(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], end_ids: Sequence[int] = ()) -> str:
    """The text of sampled ids without the end-of-turn token, which is one of `end_ids` (default: the tokenizer's)."""
    if ids and ids[-1] in (end_ids or end_of_turn_ids(tokenizer)):
        ids = ids[:-1]
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def end_of_turn_ids(
    tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None = None
) -> tuple[int, ...]:
    """Every id at which sampling stops; first the one that the template writes after an assistant's content.

    Says nothing about padding: a pad token may be one of these, so masks come from lengths.
    Raises ConfigError if there is none, since then no turn could end.
    """
    ids = dict.fromkeys(_control_of(tokenizer).end_ids)
    if generation_config is not None and generation_config.eos_token_id is not None:
        eos = generation_config.eos_token_id
        ids |= dict.fromkeys(eos if isinstance(eos, list) else [eos])
    if not ids:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r}: no end-of-turn token in its chat template and no eos token; set one"
        )
    return tuple(ids)


def is_append_only(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if a turn's prompt and action ids are a prefix of the next turn's prompt ids, reasoning included.

    False, for instance, where the template drops `<think>` from earlier turns: then turns are separate training rows.
    """
    return all(_keeps_prefix(tokenizer, action) for action in ("A", "<think>\nt\n</think>\n\nA"))


def _keeps_prefix(tokenizer: PreTrainedTokenizerBase, action: str) -> bool:
    messages = [{"role": "user", "content": "q"}]
    for question in ("r", "s"):
        _, before = render(tokenizer, messages)
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": question}]
        _, after = render(tokenizer, messages)
        before += encode_action(tokenizer, action)
        if after[: len(before)] != before:
            return False
    return True


# ---- control tokens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Control:
    """The strings that a tokenizer turns into control tokens, and where a turn ends."""

    strings: tuple[str, ...]
    special_start: re.Pattern[str]
    any_start: re.Pattern[str]
    end_ids: tuple[int, ...]

    def occurs_in(self, text: str) -> bool:
        return any(string in text for string in self.strings)

    def cut(self, text: str, mark: str, markup: bool) -> str:
        """Put `mark` behind the first character of every control string, so that none is whole any more."""
        return (self.any_start if markup else self.special_start).sub(rf"\g<0>{mark}", text)


def _control_of(tokenizer: PreTrainedTokenizerBase) -> _Control:
    """Cached per tokenizer, template and vocabulary size."""
    try:
        template = tokenizer.get_chat_template()
    except ValueError as cause:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template; take an instruction-tuned model or set "
            "tokenizer.chat_template"
        ) from cause
    return _read_control(tokenizer, template, len(tokenizer))


@lru_cache(maxsize=16)
def _read_control(tokenizer: PreTrainedTokenizerBase, template: str, size: int) -> _Control:
    added = tokenizer.added_tokens_decoder
    special = [token.content for token in added.values() if token.special]
    # Some vocabularies hold runs of spaces as added tokens; only what the template writes out is markup.
    markup = [t.content for t in added.values() if not t.special and t.content in template and t.content.strip()]
    return _Control(
        strings=(*special, *markup),
        special_start=_start_of(special),
        any_start=_start_of([*special, *markup]),
        end_ids=tuple(_read_end_ids(tokenizer, frozenset(id_ for id_, token in added.items() if token.special))),
    )


def _start_of(strings: Sequence[str]) -> re.Pattern[str]:
    """Matches the first character of any of `strings`, overlapping ones included; nothing if there are none."""
    return re.compile(f"(?={'|'.join(map(re.escape, strings))}).", re.DOTALL) if strings else re.compile("(?!)")


def _read_end_ids(tokenizer: PreTrainedTokenizerBase, special_ids: frozenset[int]) -> Iterator[int]:
    """The special token that the template writes behind an assistant's content, then eos."""
    probe = "0probe0"
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": probe}]
    tail = str(tokenizer.apply_chat_template(messages, tokenize=False)).rpartition(probe)[2]
    tail_ids = tokenizer.encode(tail, add_special_tokens=False, split_special_tokens=False)
    yield from [id_ for id_ in tail_ids if id_ in special_ids][:1]
    if tokenizer.eos_token_id is not None:
        yield tokenizer.eos_token_id


def _is_foreign(message: Message) -> bool:
    return message["role"] not in ("system", "assistant")


def _unused_mark(text: str) -> str:
    """A string of private-use characters that does not occur in `text`."""
    return next(mark for n in count() if (mark := f"\ue000{n}\ue001") not in text)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, cut: str) -> tuple[str, list[int]]:
    """Encode the pieces between cuts one by one, so that no token spans a cut."""
    # Not `split_special_tokens`: transformers keeps it as state of the tokenizer, which another thread may be using.
    pieces = text.split(cut) if cut else [text]
    ids = [tokenizer.encode(p, add_special_tokens=False, split_special_tokens=False) for p in pieces if p]
    return "".join(pieces), [id_ for piece_ids in ids for id_ in piece_ids]


# ---- actions to values -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToolCall:
    """One tool call as the policy wrote it: whether the tool exists and the arguments fit is the tool's business."""

    name: str
    arguments: Mapping[str, Any]


def parse_tool_calls(text: str) -> tuple[list[ToolCall], list[str]]:
    """The calls `<tool_call>{"name": …, "arguments": {…}}</tool_call>` of a reply, and what is wrong with the others.

    Reasoning is not looked at; a reply that never leaves it holds no call. The closing tag may be missing behind whole
    JSON (it is often the stop string), but nothing is mended then: half a command must not run. Never raises.
    """
    calls: list[ToolCall] = []
    errors: list[str] = []
    try:
        rest = _without_reasoning(text)
    except ValueError as cause:
        return calls, [str(cause)]
    while "<tool_call>" in rest:
        body = rest.partition("<tool_call>")[2]
        try:
            values, rest = _call_values(body)
            calls += [_as_call(value) for value in values]
        except ValueError as cause:
            errors.append(f"tool call: {cause}")
            rest = body.partition("</tool_call>")[2]
    return calls, errors


def parse_json(text: str, fields: Mapping[str, type], optional: Mapping[str, Any] = {}) -> dict[str, Any]:  # noqa: B006
    """The declared `fields` of the JSON object in a reply, in their order; other keys are dropped.

    `optional` maps fields that may be missing to their defaults, whose type they have.

    Takes the first object that has all fields; prose and a code fence around it are fine, small damage is repaired.
    An int may stand for a float, a bool never for a number. Raises ValueError that names the missing or wrong field.
    """
    text = _without_reasoning(text)
    _refuse_long(text)
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


def _without_reasoning(text: str) -> str:
    """`text` less its `<think>` blocks; the first opening tag may be in the prompt. ValueError if one never ends."""
    reasoning, closing, answer = text.partition("</think>")
    if closing and "<think>" not in reasoning:
        text = answer
    text = _REASONING.sub("", text)
    if "<think>" in text:
        raise ValueError("unterminated reasoning: <think> without </think>")
    return text


def _call_values(body: str) -> tuple[list[Any], str]:
    """The JSON values behind one `<tool_call>` (some models write several) and what follows them."""
    inside, closing, after = body.partition("</tool_call>")
    values: list[Any] = []
    at = _skip_space(body, 0)
    try:
        while at < len(body) and not body.startswith("</tool_call>", at):
            value, at = _value_at(body, at)
            values.append(value)
            at = _skip_space(body, at)
    except json.JSONDecodeError as cause:
        if not closing:
            raise ValueError(f"neither closed nor whole JSON: {inside.strip()[:60]!r}") from cause
        return [_mended(inside)], after
    if not values:
        raise ValueError("empty")
    return values, body[at:]


def _as_call(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object with name and arguments, got {type(value).__name__}")
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError("missing name")
    if isinstance(arguments, str):  # some models send the arguments as a JSON string
        arguments, _ = _value_at(arguments, _skip_space(arguments, 0))
    if not isinstance(arguments, dict):
        raise ValueError(f"{name}: arguments must be an object, got {type(arguments).__name__}")
    return ToolCall(name, arguments)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost whole JSON objects in `text`; then, if the first brace opens none, what mending makes of it."""
    first = at = text.find("{")
    damaged = False
    while at >= 0:
        try:
            value, end = _value_at(text, at)
            yield value
        except json.JSONDecodeError:
            damaged |= at == first
            end = at + 1
        at = text.find("{", end)
    if damaged:
        start = max(first, text.find("{", text.find("```") + 1))  # inside the code fence if there is one
        end = text.rfind("}")
        yield _mended(text[start : end + 1] if end > start else text[start:])


def _field(value: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in value:
        raise ValueError(f"missing field {name!r} ({kind.__name__})")
    found = value[name]
    if kind is float and type(found) is int:
        return float(found)
    if not isinstance(found, kind) or (kind in (int, float) and isinstance(found, bool)):
        raise ValueError(f"field {name!r} must be {kind.__name__}, got {type(found).__name__} {str(found)[:40]!r}")
    return found


# ---- bounded JSON ----------------------------------------------------------------------------------------------------

_DECODER = json.JSONDecoder(strict=False)  # models write code with raw newlines inside strings
_REASONING = re.compile(r"<think>.*?</think>", re.DOTALL)
_STRING = r'"(?:[^"\\]|\\.)*"'
_NOT_BRACKETS = re.compile(rf"{_STRING}|[^][{{}}]+", re.DOTALL)
_STRAY_ESCAPE = re.compile(rf"({_STRING})|\\[nrt]", re.DOTALL)
_TOO_DEEP = f"JSON nested deeper than {MAX_JSON_DEPTH}"


def _skip_space(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def _value_at(text: str, at: int) -> tuple[Any, int]:
    """The valid JSON value that starts at `at`, and where it ends. Raises JSONDecodeError, ValueError beyond bounds."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError as cause:
        raise ValueError(_TOO_DEEP) from cause
    return _plain(value), end


def _mended(text: str) -> dict[str, Any]:
    """The object that damaged JSON stands for: a Python literal, else what json_repair makes of it, else ValueError."""
    _refuse_long(text)
    if _depth(text) > MAX_JSON_DEPTH:
        raise ValueError(_TOO_DEEP)
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    try:
        if not isinstance(value, dict):
            value = json_repair.loads(_STRAY_ESCAPE.sub(lambda match: match[1] or " ", text), skip_json_loads=True)
    except RecursionError as cause:
        raise ValueError(_TOO_DEEP) from cause
    if not isinstance(value, dict) or not value:
        raise ValueError(f"not a JSON object: {text.strip()[:60]!r}")
    return _plain(value)


def _refuse_long(text: str) -> None:
    if len(text) > MAX_JSON_CHARACTERS:
        raise ValueError(f"JSON of {len(text)} characters, the limit is {MAX_JSON_CHARACTERS}")


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _NOT_BRACKETS.sub("", text):
        depth += 1 if bracket in "{[" else -1
        deepest = max(deepest, depth)
    return deepest


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it: surrogate pairs joined, lone ones replaced. ValueError for NaN, sets and depth."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as cause:
        raise ValueError(f"not a JSON value: {cause}") from cause
    if _depth(text) > MAX_JSON_DEPTH:
        raise ValueError(_TOO_DEEP)
    return json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
