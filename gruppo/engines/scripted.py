"""The engine that plays given texts: for tests, demonstrations and replays. It samples nothing and needs no model.

Every log-prob is 0.0 (the text was certain). It takes no notice of sampling parameters; a reply that should end
otherwise than by stopping can be given as a whole `Completion`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gruppo.errors import EngineError, boundary
from gruppo.types import Completion, Message, Request, StopReason

Context = tuple[str, int, str, int]
"""`Request.context`: task id, attempt, role, turn index."""


def encode_bytes(text: str) -> list[int]:
    """One id per UTF-8 byte: the stand-in where no tokenizer matters."""
    return list(text.encode("utf-8"))


@dataclass(frozen=True)
class ScriptedEngine:
    """Plays `reply(request)`.

    `encode` turns text into ids; `render` turns messages into the prompt and its ids (default: "role: content" lines,
    encoded). `end_of_turn` is the id appended to every reply, as a policy would sample it.

    Raises EngineError when `reply` has no text for a request, naming its context, or fails.
    """

    reply: Callable[[Request], str | Completion]
    encode: Callable[[str], Sequence[int]] = encode_bytes
    render: Callable[[Sequence[Message]], tuple[str, Sequence[int]]] | None = None
    end_of_turn: int | None = None
    version: int = 0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._complete(request) for request in requests]

    def _complete(self, request: Request) -> Completion:
        with boundary(EngineError, f"the script failed for {request.context}"):
            reply = self.reply(request)
        if isinstance(reply, Completion):
            return reply
        prompt, prompt_ids = self._render(request.messages)
        ids = (*self.encode(reply), *(() if self.end_of_turn is None else (self.end_of_turn,)))
        return Completion(
            prompt=prompt,
            prompt_ids=tuple(prompt_ids),
            ids=ids,
            logprobs=(0.0,) * len(ids),
            text=reply,
            stop_reason=StopReason.stop,
            version=self.version,
        )

    def _render(self, messages: Sequence[Message]) -> tuple[str, Sequence[int]]:
        if self.render is not None:
            return self.render(messages)
        prompt = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return prompt, self.encode(prompt)


def by_context(texts: Mapping[Context, str | Completion]) -> Callable[[Request], str | Completion]:
    """A reply that looks a request's context up in `texts`."""

    def reply(request: Request) -> str | Completion:
        if request.context not in texts:
            raise EngineError(f"the script has no reply for {request.context}")
        return texts[request.context]

    return reply


def by_role(texts: Mapping[str, Sequence[str | Completion]]) -> Callable[[Request], str | Completion]:
    """A reply that plays each role's list in order, from its start in every episode.

    Needs the requests' contexts: a turn index that does not grow means that the episode was started anew (a retry).
    """
    played: dict[tuple[str, int, str], list[int]] = {}  # the turn indices of a role's replies in one episode

    def reply(request: Request) -> str | Completion:
        task_id, attempt, role, turn = request.context
        turns = played.setdefault((task_id, attempt, role), [])
        if turns and turn <= turns[-1]:
            turns.clear()
        if len(turns) >= len(texts.get(role, ())):
            raise EngineError(f"the script has no reply for {request.context}: {role!r} has {len(turns)} in all")
        turns.append(turn)
        return texts[role][len(turns) - 1]

    return reply
