"""One agent on its own, with or without tools: its first message without a tool call is the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pydantic import Field

from gruppo.config import Config
from gruppo.teams.base import Action, Cast, Prompt
from gruppo.tool_calls import ToolCall, cut_observation, parse_tool_calls
from gruppo.types import Message, Outcome, Task, Tool

SYSTEM = """You answer questions. Think as long as you need, then end with a line "Answer: ...", the answer alone."""
CALLS = {
    "hermes": 'write <tool_call>{"name": ..., "arguments": {...}}</tool_call>',
    "llama": 'reply with nothing but {"name": ..., "parameters": {...}}',
    "pythonic": "reply with nothing but [name(argument=value)], every argument by its name,",
    "fenced": 'write a block\n```tool_call\n{"name": ..., "arguments": {...}}\n```\n',
}
WITH_TOOLS = "To use a tool, {call} and wait for its result.\nThe tools:\n"


class SoloConfig(Config):
    """The limits of the single agent, and how it calls tools."""

    max_turns: int = Field(6, ge=1)
    """Messages of the agent per question."""
    call_format: Literal["template", "any", "hermes", "llama", "pythonic", "fenced"] = "template"
    """How it is told to write tool calls, and how they are read: "template", as its model's chat template teaches it;
    "any": told "hermes", read whatever it is; or a format of docs/tools.md."""


class Solo:
    """The team of one role, `agent`; `call_format` is a name of CALLS or "any", set by whoever knows the template."""

    roles = ("agent",)

    def __init__(self, config: SoloConfig) -> None:
        self.config = config
        self.prompts = {"agent": Prompt("{question}", SYSTEM)}
        self.call_format = "any" if config.call_format == "template" else config.call_format

    async def play(self, task: Task, cast: Cast) -> str | None:
        """One attempt: the text after the last "Answer:", or the whole last message."""
        messages = opening(cast["agent"].role.prompt, task, list(cast.tools.values()), self.call_format)
        read = partial(read_reply, call_format=self.call_format)
        for _ in range(self.config.max_turns):
            action: Action[Reply] = await cast["agent"].say(read, messages)
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


def read_reply(text: str, call_format: str = "any") -> Reply:
    """Raises ValueError if a tool call in the text is broken."""
    calls, errors = parse_tool_calls(text, call_format)
    if errors:
        raise ValueError("; ".join(map(str, errors)))
    return Reply(calls, text.rpartition("Answer:")[2].strip())


def opening(prompt: Prompt, task: Task, tools: Sequence[Tool], call_format: str = "any") -> list[Message]:
    """System and user message; the system message says how to call the tools, if there are any, and lists them."""
    messages = prompt.messages({"question": task.question})
    if tools:
        schemas = [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)} for tool in tools
        ]
        told = WITH_TOOLS.format(call=CALLS["hermes" if call_format == "any" else call_format])
        listed = told + "\n".join(json.dumps(schema) for schema in schemas)
        messages = [{"role": "system", "content": f"{prompt.system.strip()}\n\n{listed}".strip()}, messages[-1]]
    return messages
