"""Messages to token ids and back: the one place that knows chat templates.

Rendering keeps the template's control tokens and makes sure that text from users, tools and pages never becomes one.
This module samples nothing, reads no calls out of replies (`tool_calls.py` does) and imports no torch; the tokenizer (a
fast `transformers` one) is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gruppo.errors import ConfigError
from gruppo.types import Message

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

# ---- messages to ids -------------------------------------------------------------------------------------------------


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    said: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> tuple[str, list[int]]:
    """The prompt for the next assistant message: its text and its ids, generation prompt included.

    `said` are texts of earlier prompts with what was sampled after them, and the ids of both: a prompt that goes on
    from one, with an end of turn, begins with these ids, whatever the standard tokenisation of the text would be. All
    else has the standard one, but for control strings inside contents. Special tokens are plain text in every content;
    other markup tokens of the template (`<tool_call>`, `<think>`) too, where the author is a user or a tool: the
    program's and the policy's own markup stays what it is.

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
    begun, begun_ids = _begun(tokenizer, str(text), cut, said) if said else (0, ())
    ids = [*begun_ids, *_encode(tokenizer, str(text)[begun:], cut)]
    return str(text).replace(cut, "") if cut else str(text), ids


def _begun(
    tokenizer: PreTrainedTokenizerBase, text: str, cut: str, said: Mapping[str, Sequence[int]]
) -> tuple[int, Sequence[int]]:
    """How much of `text`, up to an end of turn, is the longest of `said`, and its ids."""
    end = str(tokenizer.convert_ids_to_tokens(end_of_turn_ids(tokenizer)[0]))
    at = text.rfind(end)
    while at > 0:
        ids = said.get(text[:at].replace(cut, "") if cut else text[:at])
        if ids is not None:
            return at, ids
        at = text.rfind(end, 0, at)
    return 0, ()


def encode_action(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids a policy would have sampled to write `text`: special tokens as plain text, then the end of turn."""
    cut = _unused_mark(text)
    return [
        *_encode(tokenizer, _control_of(tokenizer).cut(text, cut, markup=False), cut),
        end_of_turn_ids(tokenizer)[0],
    ]


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


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, cut: str) -> list[int]:
    """Encode the pieces between cuts one by one, so that no token spans a cut."""
    # Not `split_special_tokens`: transformers keeps it as state of the tokenizer, which another thread may be using.
    pieces = text.split(cut) if cut else [text]
    ids = [tokenizer.encode(p, add_special_tokens=False, split_special_tokens=False) for p in pieces if p]
    return [id_ for piece_ids in ids for id_ in piece_ids]
