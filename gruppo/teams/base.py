"""Who plays: roles, the agents they become for one episode, and the cast that a team's program calls by name.

A team is ordinary async Python: `async def play(task, cast) -> answer`. An agent's `act` asks an engine and records the
turn; `cast.call` runs a tool and records the event. Nothing here knows training, and nothing here retries.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Generic, Protocol, TypeVar

from gruppo.errors import TeamError, ToolError, boundary
from gruppo.types import (
    CallContext,
    Completion,
    Episode,
    Message,
    Outcome,
    Request,
    Sampling,
    StopReason,
    Task,
    Tool,
    ToolEvent,
    ToolResult,
    Turn,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt:
    """A role's words as data: `user` is a template whose {fields} the team fills in; `system` may be empty."""

    user: str
    system: str = ""

    def messages(self, fields: Mapping[str, object]) -> list[Message]:
        """The chat messages. Filled-in text is never read as a template again."""
        system = [{"role": "system", "content": self.system.strip()}] if self.system else []
        return [*system, {"role": "user", "content": self.user.strip().format_map(fields)}]


@dataclass(frozen=True)
class Role:
    """A named seat: its prompt, how it samples, which engine plays it, and with which policy (None: frozen base)."""

    name: str
    prompt: Prompt
    sampling: Sampling
    engine: str = "local"
    policy: str | None = None
    trainable: bool = False


@dataclass(frozen=True)
class Action(Generic[T]):
    """What an agent said: the value its reader made of the text, or None and the reason in `error`."""

    text: str
    value: T | None
    error: str = ""


class Ended(Exception):
    """Raised inside a team to end the episode at once with an outcome; the rollout records it."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


Submit = Callable[[str, Request], Awaitable[Completion]]
"""(engine name, request) -> completion; the rollout batches what all episodes submit."""


def seed_of(*parts: object) -> int:
    """A 63-bit seed from any parts, the same in every process and on every machine."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Agent:
    """A role bound to an engine for one episode."""

    def __init__(self, role: Role, episode: Episode, submit: Submit) -> None:
        self.role, self._episode, self._submit, self._count = role, episode, submit, 0

    async def act(self, read: Callable[[str], T], **fields: object) -> Action[T]:
        """Ask once with the role's prompt and record the turn. `read` turns the text into a value or raises ValueError.

        Raises Ended(context_overflow) if the prompt does not fit, EngineError if the engine failed.
        """
        return await self.say(read, self.role.prompt.messages(fields))

    async def say(self, read: Callable[[str], T], messages: Sequence[Message]) -> Action[T]:
        """As `act`, with the messages given: for agents that hold a conversation."""
        role, index = self.role, self._count
        self._count += 1
        context = (self._episode.task_id, self._episode.attempt, role.name, index)
        seed = seed_of(self._episode.seed, role.name, index)
        done = await self._submit(role.engine, Request(messages, role.sampling, seed, role.policy, context))
        if done.stop_reason == StopReason.context_overflow:
            limit = role.sampling.max_tokens
            raise Ended(Outcome.context_overflow, f"{role.name}: the prompt and {limit} new tokens exceed the context")
        action = self._read(read, done)
        value = asdict(action.value) if is_dataclass(action.value) else action.value  # type: ignore[arg-type]
        self._episode.turns.append(
            Turn(
                role=role.name,
                policy=role.policy,
                version=done.version,
                prompt=done.prompt,
                prompt_ids=done.prompt_ids,
                action_ids=done.ids,
                action_logprobs=done.logprobs,
                sampling=role.sampling,
                stop_reason=done.stop_reason,
                text=done.text,
                parsed=value,
                error=action.error,
                seconds=done.seconds,
            )
        )
        return action

    def _read(self, read: Callable[[str], T], done: Completion) -> Action[T]:
        if done.stop_reason == StopReason.length:
            return Action(done.text, None, f"cut off at {self.role.sampling.max_tokens} tokens")
        try:
            return Action(done.text, read(done.text))
        except ValueError as error:
            return Action(done.text, None, str(error))


class Cast:
    """The agents and tools of one episode. `cast["planner"]` is an agent; `"planner" in cast` asks if it takes part.

    A team sets `outcome` when it ends otherwise than completed.
    """

    def __init__(
        self,
        episode: Episode,
        roles: Mapping[str, Role],
        tools: Mapping[str, Tool],
        submit: Submit,
        deadline: float | None = None,
    ) -> None:
        self.tools, self.outcome = tools, Outcome.completed
        self._episode, self._deadline = episode, deadline
        self._endings: list[Callable[[], None]] = []
        self._records: list[Callable[[Episode], None]] = []
        self._agents = {name: Agent(role, episode, submit) for name, role in roles.items()}

    def __contains__(self, role: str) -> bool:
        return role in self._agents

    def __getitem__(self, role: str) -> Agent:
        if role not in self._agents:
            raise TeamError(f"the team asks for role {role!r}, which the config lacks: add [roles.{role}]")
        return self._agents[role]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a tool and record the event. An unknown tool is a result that says so."""
        started = time.monotonic()
        turn = max(0, len(self._episode.turns) - 1)
        if tool in self.tools:
            with boundary(ToolError, f"tool {tool!r}"):
                result = await self.tools[tool].call(arguments, self._context(turn))
        else:
            result = ToolResult(ok=False, error=f"no tool {tool!r}: use one of {', '.join(self.tools)}")
        seconds = time.monotonic() - started
        self._episode.events.append(ToolEvent(turn, tool, arguments, result, seconds))
        return result

    def _context(self, turn: int) -> CallContext:
        episode = self._episode
        role = episode.turns[turn].role if episode.turns else ""
        name = f"{episode.group_id}/{episode.attempt}/{episode.retries}"
        return CallContext(episode.task_id, name, role, turn, self._deadline, self._endings.append)

    def at_end(self, record: Callable[[Episode], None]) -> None:
        """Have `record` called with the episode when it has its outcome, whatever that is; an episode that is
        interrupted gets none."""
        self._records.append(record)

    def close(self) -> None:
        """Do what the tools have left for the end of the episode."""
        while self._endings:
            self._endings.pop()()

    def tell(self) -> None:
        """Show the episode, which has its outcome, to all who record it."""
        for record in self._records:
            record(self._episode)


class Team(Protocol):
    """A program over named agents: the seats it has, their default prompts, and how one attempt is played.

    `play` runs many times at once: what belongs to one attempt lives in its local variables.
    """

    roles: Sequence[str]
    prompts: Mapping[str, Prompt]

    async def play(self, task: Task, cast: Cast) -> str | None:
        """One attempt: the answer, or None."""
        ...
