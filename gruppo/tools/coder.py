"""The coder tool: an engine writes a program for a task, the python tool runs it. It mends nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gruppo.code_blocks import compiles, extract_code
from gruppo.tools.card import ToolCard
from gruppo.tools.generator import MAX_TOKENS, ask
from gruppo.tools.schema import check_arguments, coerced, cut
from gruppo.types import CallContext, Engine, Tool, ToolResult

MAX_PRINTED = 3_500  # characters
MAX_VARIABLE = 2_000  # characters
MAX_VARIABLES = 20
RAW_OUTPUT = 200_000  # what the python tool given should let through, so that the variables come with it

CARD = ToolCard(
    name="Python_Code_Generator_Tool",
    description="Writes a Python program for a task and runs it in a sandbox.",
    inputs={"query": "string: the task, with all numbers and texts that the program needs"},
    output=(
        f"JSON: printed_output (at most {MAX_PRINTED} characters), variables (at most {MAX_VARIABLES}, {MAX_VARIABLE}"
        " characters each) and execution_code; longer texts are cut in the middle"
    ),
    examples={
        "calculate": '{"query": "Find the sum of the primes below 1000."}',
        "work on a list": '{"query": "Sort [3, 1, 2] in descending order."}',
    },
    limits=(
        "the standard library only: nothing can be installed",
        "no files of yours, no network, no input from a user",
        "limited time and memory: no heavy computation",
        "each call starts anew: variables do not stay",
        "the program may solve another task than was meant: read its code",
    ),
    best_practices=(
        "give every number, and say what is to be printed",
        "ask for one calculation per call",
        "use it for exact arithmetic, counting, sorting and text work rather than for facts",
    ),
)

WRITE = """Write a complete Python program that does the task and prints the result with a word on what it is. Use the
standard library only; read no files, no network and no input. Answer with one block: ```python, the code, ```."""

MARK = "\x1evariables of the program\x1e"
EPILOGUE = f"""
try:
    print({MARK!r} + __import__("json").dumps([
        [name, (lambda text: text if len(text) <= {MAX_VARIABLE} else
                text[:{MAX_VARIABLE // 2 - 20}] + " ... [cut] ... " + text[-{MAX_VARIABLE // 2 - 20}:])(repr(value))]
        for name, value in list(globals().items())
        if name[0] != "_" and type(value).__name__ not in ("module", "function", "type", "builtin_function_or_method")
    ][:{MAX_VARIABLES}]), end="")
except Exception:
    pass
"""


class CoderTool:
    """`Python_Code_Generator_Tool(query)`. `python` is the tool that runs code, with an output of RAW_OUTPUT."""

    name = CARD.name
    card = CARD
    description = CARD.text()
    schema: Mapping[str, Any] = CARD.schema()

    def __init__(self, engine: Engine, python: Tool, max_tokens: int = MAX_TOKENS) -> None:
        self.engine, self.python, self.max_tokens = engine, python, max_tokens

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Write and run. Raises EngineError, and ToolError where the python tool does."""
        arguments = coerced(arguments, self.schema)
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        said = await ask(self.engine, WRITE, f"Task: {arguments['query']}", self.max_tokens)
        try:
            code = extract_code(said)
        except ValueError as error:
            return ToolResult(False, error=f"no program was written: {error}")
        if not code:
            return ToolResult(False, error="no program was written")
        epilogue = EPILOGUE if compiles(code) else ""
        result = await self.python.call({"code": code + "\n" + epilogue}, context)
        printed, variables = _parted(result.output)
        printed, shown = cut(printed, MAX_PRINTED), cut(code, MAX_PRINTED)
        if not result.ok:
            told = f"{cut(result.error, MAX_PRINTED)}\nThe code was:\n{shown}"
            return ToolResult(False, printed, told, timed_out=result.timed_out)
        found = {"printed_output": printed, "variables": variables, "execution_code": shown}
        return ToolResult(True, json.dumps(found, ensure_ascii=False))


def _parted(output: str) -> tuple[str, dict[str, str]]:
    """What the program printed, and its variables; none if it ended before it came to them."""
    printed, mark, listed = output.rpartition(MARK)
    if not mark:
        return output, {}
    try:
        variables = {str(name): cut(str(text), MAX_VARIABLE) for name, text in json.loads(listed)[:MAX_VARIABLES]}
    except (ValueError, TypeError, RecursionError):  # cut, or written by the program itself
        return printed, {}
    return printed, variables
