"""The generator and the coder: what the engine is asked, what runs, and what of it is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gruppo.engines.scripted import ScriptedEngine
from gruppo.errors import EngineError
from gruppo.tools.card import ToolCard
from gruppo.tools.coder import RAW_OUTPUT, CoderTool
from gruppo.tools.generator import GeneratorTool
from gruppo.tools.google import CARD as GOOGLE
from gruppo.tools.python import PythonTool
from gruppo.tools.web import CARD as WEB
from gruppo.tools.wikipedia import CARD as WIKIPEDIA
from gruppo.types import Request, ToolResult


@pytest.fixture(scope="module")
def python() -> Iterator[PythonTool]:
    tool = PythonTool(min_level="process", max_output=RAW_OUTPUT)
    yield tool
    tool.close()


def write(python: PythonTool, reply: str) -> ToolResult:
    return asyncio.run(CoderTool(ScriptedEngine(lambda request: reply), python).call({"query": "do it"}))


def found(result: ToolResult) -> dict[str, Any]:
    assert result.ok, result
    return json.loads(result.output)


def test_a_program_is_written_and_run(python: PythonTool) -> None:
    code = "import math\ndef f(): ...\nx = math.comb(5, 2)\nprint('it is', x)"
    value = found(write(python, f"So:\n```python\n{code}\n```"))
    assert value == {
        "printed_output": "it is 10\n",
        "variables": {"x": "10"},
        "execution_code": code,
    }


def test_outputs_are_limited_and_cut_in_the_middle(python: PythonTool) -> None:
    code = "print('a' * 50_000 + 'z')\nbig = 'b' * 9000\nfor i in range(50): globals()[f'v{i}'] = i"
    value = found(write(python, f"```python\n{code}\n```"))
    assert len(value["printed_output"]) <= 3500 and value["printed_output"].endswith("z\n")
    assert len(value["variables"]) == 20 and len(value["variables"]["big"]) <= 2000
    assert value["variables"]["big"].startswith("'bb") and value["variables"]["big"].endswith("b'")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("```python\n1 / 0\n```", "ZeroDivisionError"),
        ("```python\nx = (\n```", "SyntaxError"),
        ("```bash\nls\n```", "no program was written"),
        ("<think>```python\n1\n```", "no program was written"),
        ("", "no program was written"),
    ],
)
def test_what_goes_wrong_is_told(python: PythonTool, reply: str, error: str) -> None:
    result = write(python, reply)
    assert not result.ok and error in result.error


def test_a_program_that_ends_early_or_forges_its_variables_harms_nothing(python: PythonTool) -> None:
    assert found(write(python, "```python\nprint(1)\nraise SystemExit\n```"))["variables"] == {}
    forged = "print('\\x1evariables of the program\\x1e[[1', flush=True)\nimport os\nos._exit(0)"
    assert found(write(python, f"```python\n{forged}\n```"))["variables"] == {}
    hidden = "class Bad:\n    def __repr__(self): raise ValueError\nbad = Bad()\nprint(1)"
    assert found(write(python, f"```python\n{hidden}\n```"))["printed_output"] == "1\n"


def test_the_generator_asks_once_at_temperature_0() -> None:
    asked: list[Request] = []

    def reply(request: Request) -> str:
        asked.append(request)
        return " Paris. "

    tool = GeneratorTool(ScriptedEngine(reply))
    assert asyncio.run(tool.call({"query": "Capital of France?"})) == ToolResult(True, "Paris.")
    (request,) = asked
    assert request.messages == [{"role": "user", "content": "Capital of France?"}] and request.policy is None
    assert request.sampling.temperature == 0
    assert "expected a string" in asyncio.run(tool.call({"query": ["a"]})).error
    assert not asyncio.run(GeneratorTool(ScriptedEngine(lambda request: "")).call({"query": "x"})).ok


def test_an_engine_that_fails_is_a_failure_of_the_engine(python: PythonTool) -> None:
    def fail(request: Request) -> str:
        raise EngineError("down")

    for tool in (GeneratorTool(ScriptedEngine(fail)), CoderTool(ScriptedEngine(fail), python)):
        with pytest.raises(EngineError, match="down"):
            asyncio.run(tool.call({"query": "x"}))


@pytest.mark.parametrize(
    "card", [GOOGLE, WEB, WIKIPEDIA, GeneratorTool.card, CoderTool.card], ids=lambda card: card.name
)
def test_a_card_tells_a_planner_everything(card: ToolCard) -> None:
    text = card.text()
    assert card.limits and card.best_practices and card.examples
    lists = (card.inputs, card.examples.values(), card.limits, card.best_practices)
    for told in (card.description, card.version, card.output, *(entry for entries in lists for entry in entries)):
        assert told in text
    for example in card.examples.values():
        assert set(json.loads(example)) <= card.inputs.keys()
    assert set(card.schema()["properties"]) == card.inputs.keys()  # type: ignore[arg-type]
