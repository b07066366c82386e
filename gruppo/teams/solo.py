"""One agent on its own, with or without tools: its first message without a tool call is the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from gruppo.config import Config
from gruppo.teams.base import Action, Cast, Prompt
from gruppo.tool_calls import ToolCall, cut_observation, parse_tool_calls
from gruppo.types import Message, Outcome, Task, Tool

SYSTEM = """You answer questions. Think as long as you need, then end with a line "Answer: ...", the answer alone."""
WITH_TOOLS = """To use a tool, write <tool_call>{"name": ..., "arguments": {...}}</tool_call> and wait for its result.
The tools:
"""


class SoloConfig(Config):
    """The limits of the single agent."""

    max_turns: int = Field(6, ge=1)
    """Messages of the agent per question."""


class Solo:
    """The team of one role, `agent`."""

    roles = ("agent",)

    def __init__(self, config: SoloConfig) -> None:
        self.config = config
        self.prompts = {"agent": Prompt("{question}", SYSTEM)}

    async def play(self, task: Task, cast: Cast) -> str | None:
        """One attempt: the text after the last "Answer:", or the whole last message."""
        messages = opening(cast["agent"].role.prompt, task, list(cast.tools.values()))
        for _ in range(self.config.max_turns):
            action: Action[Reply] = await cast["agent"].say(read_reply, messages)
            messages.append({"role": "assistant", "content": cut_observation(action.text)})
            if action.value is None:
                messages.append({"role": "user", "content": f"Error: {action.error}"})
                continue
            if not action.value.calls:
                return action.value.answer
            for call in action.value.calls:
                result = await cast.call(call.name, call.arguments)
                messages.append({"role": "tool", "content": result.text})
        cast.outcome = Outcome.wrong_format if action.value is None else Outcome.max_turns
        return None


@dataclass(frozen=True)
class Reply:
    """What the agent said: tool calls, or else an answer."""

    calls: list[ToolCall]
    answer: str


def read_reply(text: str) -> Reply:
    """Raises ValueError if a tool call in the text is broken."""
    calls, errors = parse_tool_calls(text)
    if errors:
        raise ValueError("; ".join(map(str, errors)))
    return Reply(calls, text.rpartition("Answer:")[2].strip())


def opening(prompt: Prompt, task: Task, tools: Sequence[Tool]) -> list[Message]:
    """System and user message; the system message lists the tools, if any."""
    messages = prompt.messages({"question": task.question})
    if tools:
        schemas = [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)} for tool in tools
        ]
        listed = WITH_TOOLS + "\n".join(json.dumps(schema) for schema in schemas)
        messages = [{"role": "system", "content": f"{prompt.system.strip()}\n\n{listed}".strip()}, messages[-1]]
    return messages
