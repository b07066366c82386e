"""The words of gruppo that are plain data, and the three protocols other people implement.

Everything may import this module; it imports nothing of ours and does nothing. Shapes in names: T tokens, G attempts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Message = dict[str, str]
"""One chat message: `{"role": "system" | "user" | "assistant" | "tool", "content": text}`."""


class Outcome(StrEnum):
    """How an episode ended. Never a number: a reward function decides what an ending is worth."""

    completed = "completed"
    wrong_format = "wrong_format"
    max_turns = "max_turns"
    max_tokens = "max_tokens"
    context_overflow = "context_overflow"
    tool_failed = "tool_failed"
    timeout = "timeout"
    judge_failed = "judge_failed"
    engine_failed = "engine_failed"
    team_failed = "team_failed"

    @property
    def is_infrastructure(self) -> bool:
        """True where the harness failed, not the agent: retried, then left out of the baseline and counted."""
        return self in _INFRASTRUCTURE


_INFRASTRUCTURE = frozenset(
    {Outcome.tool_failed, Outcome.timeout, Outcome.judge_failed, Outcome.engine_failed, Outcome.team_failed}
)


class StopReason(StrEnum):
    """Why the engine stopped sampling one action."""

    stop = "stop"  # the policy sampled its end-of-turn token, or a stop string came up
    length = "length"  # the token limit of the request was reached
    context_overflow = "context_overflow"  # prompt plus limit do not fit the model: nothing was sampled


@dataclass(frozen=True)
class Task:
    """One problem. The fields are the columns of a task file."""

    id: str
    question: str
    result: str
    chain: str = ""
    source: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """How an action is drawn. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One action asked of an engine.

    `policy` names the trained weights to use, None the frozen base. `seed` fixes the draw; it does not depend on what
    else is in the batch. `context` says where the request comes from (task id, attempt, role, turn index), for engines
    that replay.
    """

    messages: Sequence[Message]
    sampling: Sampling
    seed: int
    policy: str | None = None
    context: tuple[str, int, str, int] = ("", 0, "", 0)


@dataclass(frozen=True)
class Completion:
    """What an engine sampled: exact ids and the log-probability of each under softmax(logits / temperature).

    For temperature 0 the log-probs are those at temperature 1. Engines that can't see tokens leave the ids empty.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    stop_reason: StopReason
    version: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ToolResult:
    """What a tool gave back. Tools do not throw at the agent: what went wrong is in `error`."""

    ok: bool
    output: str = ""
    error: str = ""
    timed_out: bool = False

    @property
    def text(self) -> str:
        """What the agent is shown."""
        return self.output if self.ok else f"Error: {self.error}"


@dataclass(frozen=True)
class ToolEvent:
    """One executed tool call; `turn` is the index of the turn that asked for it."""

    turn: int
    tool: str
    arguments: Mapping[str, Any]
    result: ToolResult
    seconds: float = 0.0


@dataclass(frozen=True)
class Turn:
    """One sampled action with everything needed to train on it. `policy` is None for a frozen role.

    `len(action_ids) == len(action_logprobs)`; both are as sampled, the sampled end-of-turn token included.
    `parsed` is the JSON-able value the role's schema gave, or None with the reason in `error`.
    """

    role: str
    policy: str | None
    version: int
    prompt: str
    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    action_logprobs: tuple[float, ...]
    sampling: Sampling
    stop_reason: StopReason
    text: str
    parsed: Any = None
    error: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        assert len(self.action_ids) == len(self.action_logprobs), "one log-prob per sampled id"


@dataclass(frozen=True)
class Score:
    """A reward function's finite value (the reason is then a note, "kind: words"), or the reason why there is none."""

    value: float | None
    reason: str = ""


@dataclass(frozen=True)
class Credit:
    """What a turn is paid: its role's reward after shaping, the return it is judged by, and its advantage.

    The raw rewards are the episode's `reward` and `turn_rewards`. None: there is none; a turn without an advantage is
    not trained on.
    """

    shaped: float | None = None
    return_: float | None = None
    advantage: float | None = None


@dataclass
class Episode:
    """One attempt at one task. Filled by the rollout, read by everything after it."""

    task_id: str
    group_id: str
    attempt: int
    seed: int
    turns: list[Turn] = field(default_factory=list)
    events: list[ToolEvent] = field(default_factory=list)
    answer: str | None = None
    outcome: Outcome = Outcome.completed
    error: str = ""
    scores: dict[str, Score] = field(default_factory=dict)
    reward: float | None = None  # the team's; None: unscorable, left out of the baseline
    turn_rewards: list[float | None] = field(default_factory=list)  # raw, per turn; empty: none are given
    credits: list[Credit] = field(default_factory=list)  # per turn, once the groups have been compared
    retries: int = 0
    seconds: float = 0.0

    @property
    def num_tokens(self) -> dict[str, int]:
        """Sampled tokens per role."""
        counts: dict[str, int] = {}
        for turn in self.turns:
            counts[turn.role] = counts.get(turn.role, 0) + len(turn.action_ids)
        return counts


@dataclass
class Group:
    """All episodes of one task at one policy version: the unit of the baseline. Sizes may differ (failures)."""

    id: str
    task: Task
    episodes: list[Episode]


class Engine(Protocol):
    """Messages in, sampled ids and log-probs out. One call may hold many requests; answers come in their order.

    Raises EngineError when the engine itself failed; a request that does not fit is a Completion that says so.
    """

    async def generate(self, requests: Sequence[Request]) -> list[Completion]: ...


@dataclass(frozen=True)
class CallContext:
    """Where a tool call comes from; it is not in the tool's schema, and no model writes it.

    `episode` names one attempt, another one if it is played again; `deadline` is when that ends at the earliest, by the
    clock of the running event loop, if it does; `at_end` takes what is to be done then.
    """

    task: str
    episode: str
    role: str
    turn: int
    deadline: float | None
    at_end: Callable[[Callable[[], None]], None]


class Tool(Protocol):
    """A named callable with a JSON schema. `call` checks its arguments and never raises for what the agent did."""

    name: str
    description: str
    schema: Mapping[str, Any]

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult: ...


TurnReward = Callable[[Task, Episode], Sequence[float | None]]
"""A reward for turns: a task and one episode in, one finite number per turn out (None: this turn has none)."""

Values = Sequence[float | Score | None]
Reward = Callable[[Task, Sequence[Episode]], Values | Awaitable[Values]]
"""A reward function: a task and its group's episodes in, one finite number per episode out (None: can't be scored).

A Score carries a note, or says that the judge failed. An async function is awaited on the rollout's loop.
"""
