"""What the solver's roles say: the four structured outputs, and how each is read from text in the two prompt sizes.

A reader returns the value or raises ValueError with a reason that is shown to the agent. Readers never guess: an
unknown tool or a missing field is a wrong format, not a default.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gruppo.bounded_json import parse_json


@dataclass(frozen=True)
class QueryAnalysis:
    """What the analyzer sees in the question."""

    concise_summary: str
    required_skills: str
    relevant_tools: str
    additional_considerations: str


@dataclass(frozen=True)
class NextStep:
    """The planner's single next step."""

    justification: str
    context: str
    sub_goal: str
    tool_name: str


@dataclass(frozen=True)
class ToolCommand:
    """The executor's call: the tool's arguments, or the text of its only argument."""

    analysis: str
    explanation: str
    command: Any


@dataclass(frozen=True)
class MemoryVerification:
    """Whether the steps so far suffice."""

    analysis: str
    stop_signal: bool


def read_analysis(text: str) -> QueryAnalysis:
    """The analyzer's JSON."""
    return QueryAnalysis(**parse_json(text, dict.fromkeys(QueryAnalysis.__dataclass_fields__, str)))


def read_next_step(text: str, tools: Sequence[str], compact: bool) -> NextStep:
    """The planner's step: "tool: sub-goal" when compact, else JSON or labelled lines (the last of a label counts)."""
    if compact:
        name, colon, goal = text.strip().partition(":")
        if not colon or not goal.strip():
            raise ValueError("a plan is 'tool: sub-goal'")
        return NextStep("", "", goal.strip(), match_tool(name, tools))
    optional = {"justification": "", "context": ""}
    try:
        fields = parse_json(text, {"sub_goal": str, "tool_name": str}, optional)
    except ValueError as error:
        fields = optional | {name: found[-1] for name in _FIELDS if (found := _labelled(text, name))}
        if not {"sub_goal", "tool_name"} <= fields.keys():
            raise ValueError(str(error)) from None
    if not fields["sub_goal"].strip():
        raise ValueError("the plan's sub_goal is empty")
    return NextStep(**{**fields, "tool_name": match_tool(fields["tool_name"], tools)})


_FIELDS = tuple(NextStep.__dataclass_fields__)
_LABEL = r"^[ \t]*(?:\d+[.)][ \t]*)?\**[ \t]*(?:{names})[ \t]*\**[ \t]*:[ \t]*\**"


def _labelled(text: str, name: str) -> list[str]:
    """The texts after "Sub-Goal:" and the like; bold marks and list numbers are ignored."""
    label, *labels = (_LABEL.format(names=each.replace("_", "[ _-]?")) for each in (name, *_FIELDS))
    pattern = rf"{label}(.*?)(?={'|'.join(labels)}|\Z)"
    return [found.strip() for found in re.findall(pattern, text, re.IGNORECASE | re.MULTILINE | re.DOTALL)]


def match_tool(name: str, tools: Sequence[str]) -> str:
    """The tool meant by `name`, blanks, case and underscores apart. Raises ValueError with the known names."""
    wanted = re.sub(r"[\s_]+", "_", name.strip().strip("`'\"").lower())
    for tool in tools:
        if wanted == re.sub(r"[\s_]+", "_", tool.lower()):
            return tool
    raise ValueError(f"no tool {name.strip()[:40]!r}: use one of {', '.join(tools)}")


def read_tool_command(text: str, compact: bool) -> ToolCommand:
    """The executor's command: the whole text when compact, else the JSON's `command`."""
    if compact:
        if not text.strip():
            raise ValueError("the command is empty")
        return ToolCommand("", "", text.strip())
    fields = parse_json(text, {"command": object}, {"analysis": "", "explanation": ""})
    if not fields["command"]:
        raise ValueError("the command is empty")
    return ToolCommand(**fields)


def read_verification(text: str, compact: bool) -> MemoryVerification:
    """The verifier's verdict: the word when compact, else the JSON's boolean; never a substring."""
    if compact:
        if text.strip() not in ("stop", "continue"):
            raise ValueError("a verdict is 'stop' or 'continue'")
        return MemoryVerification("", text.strip() == "stop")
    return MemoryVerification(**parse_json(text, {"stop_signal": bool}, {"analysis": ""}))
