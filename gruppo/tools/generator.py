"""The generalist tool: an engine answers a question or does a step of text work, from nothing but what it knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gruppo.tools.base import MAX_OUTPUT
from gruppo.tools.card import ToolCard
from gruppo.tools.schema import check_arguments, coerced, cut
from gruppo.types import CallContext, Engine, Request, Sampling, StopReason, ToolResult

MAX_TOKENS = 2048

CARD = ToolCard(
    name="Generalist_Solution_Generator_Tool",
    description="Answers a question, or does one step of reasoning or writing, from general knowledge.",
    inputs={"query": "string: the question or task, with all that is needed to do it"},
    output="the answer as text",
    examples={"summarise": '{"query": "Summarise in three points: ..."}'},
    limits=(
        "may be wrong or out of date: check facts, names and numbers with another tool",
        "sees nothing but the query: neither the question nor the steps before",
    ),
    best_practices=(
        "use it for reasoning, summaries and general knowledge, and where no other tool fits",
        "put the context into the query, and ask for one thing",
    ),
)


async def ask(engine: Engine, system: str, question: str, max_tokens: int = MAX_TOKENS) -> str:
    """What the frozen engine says, at temperature 0. Raises EngineError."""
    system_message = [{"role": "system", "content": system}] if system else []
    messages = [*system_message, {"role": "user", "content": question}]
    (done,) = await engine.generate([Request(messages, Sampling(temperature=0.0, max_tokens=max_tokens), seed=0)])
    return "" if done.stop_reason == StopReason.context_overflow else done.text.strip()


class GeneratorTool:
    """`Generalist_Solution_Generator_Tool(query)`."""

    name = CARD.name
    card = CARD
    description = CARD.text()
    schema: Mapping[str, Any] = CARD.schema()

    def __init__(self, engine: Engine, max_tokens: int = MAX_TOKENS, max_output: int = MAX_OUTPUT) -> None:
        self.engine, self.max_tokens, self.max_output = engine, max_tokens, max_output

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Ask the engine. Raises EngineError."""
        arguments = coerced(arguments, self.schema)
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        said = await ask(self.engine, "", arguments["query"], self.max_tokens)
        if not said:
            return ToolResult(False, error="no answer: the query is too long, or the engine said nothing")
        return ToolResult(True, cut(said, self.max_output))
