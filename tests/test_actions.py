"""What the solver's roles say and are told: the readers of their texts, and the prompts of both sizes and of a user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gruppo.errors import ConfigError
from gruppo.teams.actions import (
    MemoryVerification,
    NextStep,
    QueryAnalysis,
    ToolCommand,
    match_tool,
    read_analysis,
    read_next_step,
    read_tool_command,
    read_verification,
)
from gruppo.teams.base import Prompt
from gruppo.teams.solver import Solver, SolverConfig, solver_prompts

ANALYSIS = {
    "concise_summary": "who governs Vael",
    "required_skills": "look-up",
    "relevant_tools": "wikipedia",
    "additional_considerations": "none at all",
}
PLAN = {
    "justification": "the name comes first",
    "context": "Vael is the city",
    "sub_goal": "find its mayor",
    "tool_name": "Wikipedia",
}
NAMES = ["python", "wikipedia", "Google_Search"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [("python", "python"), (" Wikipedia ", "wikipedia"), ("`python`", "python"), ("google  search", "Google_Search")],
)
def test_tool_names_are_matched_whatever_their_case_blanks_and_quotes(said: str, meant: str) -> None:
    assert match_tool(said, NAMES) == meant


@pytest.mark.parametrize("said", ["", "py", "python tool", "python and wikipedia", "none"])
def test_a_tool_is_never_guessed(said: str) -> None:
    with pytest.raises(ValueError, match="use one of python, wikipedia, Google_Search"):
        match_tool(said, NAMES)


def test_a_plan_as_json() -> None:
    step = NextStep("the name comes first", "Vael is the city", "find its mayor", "wikipedia")
    for text in (
        json.dumps(PLAN),
        f"Sure!\n```json\n{json.dumps(PLAN, indent=1)}\n```\nDone.",
        f"<think>no</think>{json.dumps(PLAN)}",
    ):
        assert read_next_step(text, NAMES, compact=False) == step
    short = json.dumps({"sub_goal": "x", "tool_name": "python"})
    assert read_next_step(short, NAMES, compact=False) == NextStep("", "", "x", "python")


def test_a_plan_as_labelled_lines() -> None:
    text = """1. **Justification:** a name
is needed
2. **Context**: Vael
3. **Sub-Goal:** guess
4. **Tool Name**: `python`
Better:
Sub_goal: find its
mayor
tool-name: WIKIPEDIA"""
    assert read_next_step(text, NAMES, compact=False) == NextStep(
        "a name\nis needed", "Vael", "find its\nmayor", "wikipedia"
    )


def test_labelled_values_keep_their_own_stars_and_numbers() -> None:
    text = "Justification: x\nContext:\n3.5 is the height\nSub-Goal: compute 12**2\nTool Name: python"
    assert read_next_step(text, NAMES, compact=False) == NextStep("x", "3.5 is the height", "compute 12**2", "python")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I would look it up.", "no JSON object"),
        ('{"sub_goal": "x"}', "missing field 'tool_name'"),
        ('{"sub_goal": 3, "tool_name": "python"}', "'sub_goal' must be str"),
        ('{"sub_goal": " ", "tool_name": "python"}', "sub_goal is empty"),
        ('{"sub_goal": "x", "tool_name": "bing"}', "no tool 'bing'"),
        ("Sub-Goal: x", "no JSON object"),
        ("Sub-Goal:\nTool Name: python", "sub_goal is empty"),
    ],
)
def test_a_plan_that_lacks_something_says_what(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_next_step(text, NAMES, compact=False)


def test_commands() -> None:
    assert read_tool_command(" print(1)\nprint(2) ", compact=True).command == "print(1)\nprint(2)"
    full = {"analysis": "a", "explanation": "b", "command": {"code": "print(1)"}}
    assert read_tool_command(json.dumps(full), compact=False) == ToolCommand("a", "b", {"code": "print(1)"})
    assert read_tool_command('```json\n{"command": "print(1)"}\n```', compact=False) == ToolCommand("", "", "print(1)")
    for text, reason in (
        ('{"analysis": "a"}', "missing field 'command'"),
        ('{"command": ""}', "empty"),
        ("x", "no JSON"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_tool_command(text, compact=False)


def test_a_verdict_is_a_boolean_never_a_word_in_a_sentence() -> None:
    assert read_verification('{"analysis": "stop? no", "stop_signal": false}', compact=False).stop_signal is False
    assert read_verification('{"analysis": "a", "stop_signal": true}', False) == MemoryVerification("a", True)
    for text in ("stop", "We should not stop", '{"stop_signal": "true"}', '{"stop_signal": 1}', '{"analysis": "stop"}'):
        with pytest.raises(ValueError, match="stop_signal|no JSON"):
            read_verification(text, compact=False)
    assert read_verification(" stop\n", compact=True).stop_signal
    assert not read_verification("continue", compact=True).stop_signal
    for text in ("should not stop", "STOP!", "", "don't stop"):
        with pytest.raises(ValueError, match="'stop' or 'continue'"):
            read_verification(text, compact=True)


def test_an_analysis_has_all_its_fields() -> None:
    assert read_analysis(json.dumps(ANALYSIS)) == QueryAnalysis(**ANALYSIS)
    with pytest.raises(ValueError, match="missing field 'relevant_tools'"):
        read_analysis(json.dumps({**ANALYSIS, "relevant_tools": None} | {}).replace('"relevant_tools"', '"tools"'))


# ---- prompts --------------------------------------------------------------------------------------------------------


def test_both_sizes_have_the_prompts_that_the_program_fills() -> None:
    fields = (
        "question",
        "tools",
        "max_steps",
        "analysis",
        "memory",
        "step",
        "tool_name",
        "sub_goal",
        "context",
        "tool",
    )
    filled = {name: f"<{name}>" for name in fields}
    assert set(solver_prompts("full")) == set(Solver.roles) and set(solver_prompts("compact")) == {
        "planner",
        "executor",
        "verifier",
        "writer",
    }
    for size in ("full", "compact"):
        for role, prompt in solver_prompts(size).items():
            text = prompt.messages(filled)[-1]["content"]
            needed = ("<sub_goal>", "<tool_name>") if role == "executor" else ("<question>",)
            assert all(part in text for part in needed)


OWN = '[planner]\nuser = "Plan: {question}"\n[executor]\nsystem = "Go."\nuser = "{sub_goal}"\n'


def test_own_prompts_are_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    prompts = solver_prompts(str(path))
    assert prompts["planner"] == Prompt("Plan: {question}") and prompts["executor"] == Prompt("{sub_goal}", "Go.")
    assert Prompt("{question}").messages({"question": "?"}) == [{"role": "user", "content": "?"}]
    assert prompts["executor"].messages({"sub_goal": "x"})[0] == {"role": "system", "content": "Go."}
    assert not Solver(SolverConfig(prompts=str(path))).compact


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file; use 'compact', 'full' or a TOML file"),
        ("planner = ", "each role needs a table"),
        ('[planner]\nsystem = "x"', "each role needs a table with 'user'"),
        ('planner = "x"', "each role needs a table"),
        ("[planner]\nuser = 3", "each role needs a table"),
        ('[plannr]\nuser = "x"', "plannr"),
        ("[planner]\nuser = 'the {questoin}'", "questoin"),
        ("folder", "team.solver.prompts"),
        (b"\xff", "team.solver.prompts"),
    ],
)
def test_own_prompts_that_are_wrong_are_one_line_for_the_user(tmp_path: Path, content, reason: str) -> None:
    path = tmp_path / "own.toml"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=reason) as raised:
        solver_prompts(str(path))
    assert "\n" not in str(raised.value) and "own.toml" in str(raised.value)
