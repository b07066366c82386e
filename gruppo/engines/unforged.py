"""The engine behind an agent that calls tools: its completions end where it goes on to write a tool's answer itself.

Stop strings keep most of that from being sampled; this takes away what was, the stop string included, from the text and
from the ids, so that nothing forged is shown, kept or trained on. Every id that stays is as it was sampled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gruppo.chat import decode_action
from gruppo.tool_calls import cut_observation
from gruppo.types import Completion, Engine, Request, StopReason

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Unforged:
    """`engine`, whose ids are those of `tokenizer`, without the forgeries."""

    engine: Engine
    tokenizer: PreTrainedTokenizerBase

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._cut(done) for done in await self.engine.generate(requests)]

    def _cut(self, done: Completion) -> Completion:
        """A token that holds the end of the call and the beginning of the forgery stays."""
        whole = decode_action(self.tokenizer, done.ids)
        kept = cut_observation(whole)
        if kept == whole:
            return done
        # Whether the text so far holds all that is kept changes once, from no to yes, as ids are added.
        number = bisect_left(range(len(done.ids)), True, key=lambda n: self._text(done.ids[:n]).startswith(kept))
        return replace(
            done,
            ids=done.ids[:number],
            logprobs=done.logprobs[:number],
            text=cut_observation(done.text),
            stop_reason=StopReason.stop,  # also where the forgery was cut off: the call before it was not
        )

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
