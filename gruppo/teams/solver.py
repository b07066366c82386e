"""The plan-execute-verify team: analyze, then plan, write the command, execute and verify until done, then answer.

The memory is new for every question. A plan or command that can't be read becomes a step that says why, so the planner
sees it; it is never a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import Field

from gruppo.config import Config
from gruppo.teams.actions import (
    MemoryVerification,
    NextStep,
    ToolCommand,
    read_analysis,
    read_next_step,
    read_tool_command,
    read_verification,
)
from gruppo.teams.base import Action, Cast, Ended, Prompt
from gruppo.teams.prompt_files import read_prompts
from gruppo.types import Outcome, Task, Tool

FIELDS = (
    "question", "tools", "max_steps", "analysis", "memory", "step", "tool_name", "sub_goal", "context", "tool",
)  # fmt: skip
ROLES = ("analyzer", "planner", "executor", "verifier", "writer")


class SolverConfig(Config):
    """The limits and the words of the solver team."""

    prompts: str = "full"
    """"compact" (one line in, one line out), "full" (JSON, for LLMs), or a TOML file with your own full prompts."""
    max_steps: int = Field(5, ge=1)
    """Plans per question."""
    max_tool_output: int = Field(2000, ge=16)
    """Characters of a tool's result that enter the memory."""
    answer_at_limit: bool = True
    """Whether the writer still answers when the steps ran out; else the episode has no answer."""
    end_on_bad_verdict: bool = False
    """Whether a verdict that can't be read ends the episode; else it means go on, which training can abuse."""


@dataclass(frozen=True)
class Step:
    """One entry of the memory."""

    tool_name: str
    sub_goal: str
    command: Any
    result: str


@dataclass
class Memory:
    """What the team has done for this question, as the prompts show it: "Action Step n"."""

    compact: bool
    steps: list[Step] = field(default_factory=list)

    def text(self) -> str:
        """All steps, one line each when compact."""
        if not self.steps:
            return "No steps yet."
        return "\n".join(f"Action Step {number}: {self._line(step)}" for number, step in enumerate(self.steps, 1))

    def _line(self, step: Step) -> str:
        if self.compact:
            return f"{step.tool_name}: {step.sub_goal} = {step.result}"
        return f"tool {step.tool_name}; sub-goal: {step.sub_goal}; command: {step.command}; result: {step.result}"


class Solver:
    """The team of `roles`; analyzer and verifier may be left out of a config, and then their step is skipped."""

    roles = ROLES

    def __init__(self, config: SolverConfig) -> None:
        self.config = config
        self.compact = config.prompts == "compact"
        self.prompts = solver_prompts(config.prompts)

    async def play(self, task: Task, cast: Cast) -> str | None:
        """One attempt at one task: the writer's answer, or None with the outcome set on the cast."""
        memory = Memory(self.compact)
        fields = {"question": task.question, "tools": describe(cast.tools), "max_steps": self.config.max_steps}
        fields["analysis"] = await self._analyze(cast, fields)
        worked = False
        for step in range(1, self.config.max_steps + 1):
            worked = await self._take_step(cast, memory, {**fields, "memory": memory.text(), "step": step})
            if worked and await self._is_done(cast, {**fields, "memory": memory.text()}):
                return await self._answer(cast, {**fields, "memory": memory.text()})
        cast.outcome = Outcome.max_turns if worked else Outcome.wrong_format
        return await self._answer(cast, {**fields, "memory": memory.text()}) if self.config.answer_at_limit else None

    async def _analyze(self, cast: Cast, fields: Mapping[str, object]) -> str:
        if "analyzer" not in cast:
            return "none"
        action = await cast["analyzer"].act(read_analysis, **fields)
        return action.text.strip() if action.value else "none"

    async def _take_step(self, cast: Cast, memory: Memory, fields: Mapping[str, object]) -> bool:
        """Plan, command, execute, remember. False if there was nothing to execute."""
        read = partial(read_next_step, tools=list(cast.tools), compact=self.compact)
        plan: Action[NextStep] = await cast["planner"].act(read, **fields)
        if plan.value is None:
            memory.steps.append(Step("none", _shorten(plan.text, 60), "", f"Error: {plan.error}"))
            return False
        step = plan.value
        asked = {"tool_name": step.tool_name, "sub_goal": step.sub_goal, "context": step.context}
        tool = describe({step.tool_name: cast.tools[step.tool_name]})
        read_command = partial(read_tool_command, compact=self.compact)
        action: Action[ToolCommand] = await cast["executor"].act(read_command, **{**fields, **asked, "tool": tool})
        if action.value is None:
            memory.steps.append(Step(step.tool_name, step.sub_goal, "", f"Error: {action.error}"))
            return False
        command = action.value.command
        result = await cast.call(step.tool_name, _arguments(command, cast.tools[step.tool_name]))
        shown = _shorten(result.text, self.config.max_tool_output)
        memory.steps.append(Step(step.tool_name, step.sub_goal, command, shown))
        return True

    async def _is_done(self, cast: Cast, fields: Mapping[str, object]) -> bool:
        """The verifier's verdict; one that can't be read means go on, or the end. Raises Ended."""
        if "verifier" not in cast:
            return False
        read = partial(read_verification, compact=self.compact)
        verdict: Action[MemoryVerification] = await cast["verifier"].act(read, **fields)
        if verdict.value is None and self.config.end_on_bad_verdict:
            raise Ended(Outcome.wrong_format, f"verifier: {verdict.error}")
        return verdict.value is not None and verdict.value.stop_signal

    async def _answer(self, cast: Cast, fields: Mapping[str, object]) -> str | None:
        action = await cast["writer"].act(str.strip, **fields)
        if action.value is None:
            cast.outcome = Outcome.max_tokens
        return action.value


def solver_prompts(which: str) -> dict[str, Prompt]:
    """The prompts of a size, or of a user's TOML file: role -> Prompt. Raises ConfigError for a missing or odd file."""
    sizes = {"compact": "solver_compact.toml", "full": "solver_full.toml"}
    return read_prompts("team.solver.prompts", which, sizes, ROLES, FIELDS)


def describe(tools: Mapping[str, Tool]) -> str:
    """The tools as a prompt lists them: name, arguments, description."""
    lines = []
    for tool in tools.values():
        lines.append(f"{tool.name}({', '.join(tool.schema.get('properties', {}))}): {tool.description}")
    return "\n".join(lines)


def _arguments(command: Any, tool: Tool) -> Mapping[str, Any]:
    """A command as tool arguments: an object as it is, anything else as the tool's only argument."""
    if isinstance(command, dict):
        return command
    names = tool.schema.get("required") or list(tool.schema.get("properties", {})) or ["input"]
    return {names[0]: command}


def _shorten(text: str, limit: int) -> str:
    """The text on one line, cut in the middle."""
    line = " ".join(text.split())
    half = max(1, (limit - 5) // 2)
    return line if len(line) <= limit else f"{line[:half]} ... {line[-half:]}"
