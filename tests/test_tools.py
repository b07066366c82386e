"""Function tools, their schemas and worker processes, and search: real processes, real files."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.errors import DataError, ToolError
from gruppo.tools.base import FunctionTool, tool
from gruppo.tools.schema import check_arguments, cut, fits, parse_docstring, schema_of, schema_of_type
from gruppo.tools.search import BM25Index, Passage, terms
from gruppo.tools.wikipedia import WikipediaTool
from gruppo.types import ToolResult


def find_trains(
    start: str, seats: int = 1, sort: Literal["price", "time"] = "price", via: list[str] | None = None
) -> str:
    """Find trains.

    Only direct ones.

    Args:
        start: where the journey
            begins
        seats (int): how many
    Returns:
        text: not an argument
    """
    return f"{start} {seats} {sort} {via}"


SCHEMA = schema_of(find_trains)[1]

WORKER_TOOLS = '''
import asyncio, ctypes, os, signal, subprocess, sys, time
from gruppo.tools.base import tool

@tool(seconds=30)
def add(a: int, b: int = 1) -> int:
    """Add.
    a: first
    b: second
    """
    return a + b

@tool(seconds=30)
async def slow_echo(text: str) -> str:
    """Echo."""
    await asyncio.sleep(0.01)
    return text

@tool(seconds=30)
def fail(kind: str) -> str:
    """Fail."""
    if kind == "exit":
        os._exit(3)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "segfault":
        ctypes.string_at(0)
    if kind == "sys.exit":
        sys.exit("bye")
    raise ValueError("no such thing")

@tool(seconds=1)
def hang(pid_file: str) -> str:
    """Hang, with a child."""
    child = subprocess.Popen(["sleep", "60"])
    with open(pid_file, "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    while True:
        time.sleep(1)

@tool(seconds=30, max_output=100)
def flood(characters: int) -> str:
    """Print and return a lot."""
    print("y" * characters)
    return "x" * characters

@tool
def pid() -> int:
    """The process."""
    return os.getpid()
'''


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A user's tool file, loaded from its path under a name that can't be imported."""
    file = tmp_path_factory.mktemp("tools") / "my tools.py"
    file.write_text(WORKER_TOOLS)
    spec = importlib.util.spec_from_file_location("loaded_tools", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for value in vars(module).values():
        if isinstance(value, FunctionTool):
            value.close()


def call(function_tool: Any, **arguments: Any) -> ToolResult:
    return asyncio.run(function_tool.call(arguments))


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_schema_comes_from_the_signature_and_the_docstring() -> None:
    description, schema = schema_of(find_trains)
    assert description == "Find trains.\n\nOnly direct ones."
    assert schema == {
        "type": "object",
        "properties": {
            "start": {"type": "string", "description": "where the journey begins"},
            "seats": {"type": "integer", "description": "how many", "default": 1},
            "sort": {"enum": ["price", "time"], "default": "price"},
            "via": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        },
        "required": ["start"],
        "additionalProperties": False,
    }
    assert parse_docstring("Add.\na: first\nb: second", ("a", "b")) == ("Add.", {"a": "first", "b": "second"})
    assert schema_of_type(dict[str, float]) == {"type": "object", "additionalProperties": {"type": "number"}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "argument 'start' is missing, expected a string"),
        ({"start": 3}, "argument 'start' is 3, expected a string"),
        ({"start": "a", "seats": "2"}, "argument 'seats' is '2', expected an integer"),
        ({"start": "a", "seats": True}, "argument 'seats' is True, expected an integer"),
        ({"start": "a", "seats": 2.0}, "argument 'seats' is 2.0, expected an integer"),
        ({"start": "a", "sort": "x"}, """argument 'sort' is 'x', expected one of "price", "time\""""),
        ({"start": "a", "via": [1]}, "argument 'via' is [1], expected a list (each: a string) or null"),
        ({"start": "a", "to": "b"}, "unknown argument 'to', expected 'start', 'seats', 'sort', 'via'"),
        (["a"], "the arguments are ['a'], expected an object"),
        ({"start": "a", "seats": 2, "sort": "time", "via": ["b"]}, ""),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, message: str) -> None:
    assert check_arguments(SCHEMA, arguments) == message


def test_fits_does_not_convert() -> None:
    assert fits(1, {"type": "number"}) and fits(True, {"type": "boolean"}) and fits({"a": 1}, {"type": "object"})
    assert not fits(True, {"type": "number"}) and not fits(1, {"type": "boolean"}) and not fits(True, {"enum": [1]})
    assert not fits({"a": "x"}, schema_of_type(dict[str, int])) and not fits({1: 1}, schema_of_type(dict[str, int]))


def test_a_function_that_a_model_could_not_call_is_refused() -> None:
    def no_docstring(a: int) -> int:
        return a

    def no_type(a) -> int:
        """Doc."""
        return a

    def bad_type(a: bytes) -> int:
        """Doc."""
        return 1

    def variadic(*a: int) -> int:
        """Doc."""
        return 1

    for function, message in ((no_docstring, "no docstring"), (no_type, "'a' has no type"), (bad_type, "bytes"),
                              (variadic, "'a' can't be passed by name")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            tool(function, in_process=True)
    with pytest.raises(ValueError, match="in_process=True"):
        tool(_closure())


def _closure() -> Any:
    def inner() -> int:
        """Doc."""
        return 1

    return inner


@given(st.text(max_size=300), st.integers(0, 200))
def test_cut_keeps_the_limit_and_both_ends(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert len(short) <= limit and (short == text or len(text) > limit)
    if len(text) > limit >= 80:
        assert short.startswith(text[:10]) and short.endswith(text[-10:]) and f"cut: {len(text)} characters" in short


def test_in_process_tools() -> None:
    @tool(in_process=True, seconds=0.1)
    async def wait(seconds: float) -> dict[str, Any]:
        """Wait."""
        await asyncio.sleep(seconds)
        return {"é": 1}

    @tool(in_process=True)
    def broken() -> str:
        """Break."""
        raise TimeoutError("mine")

    assert call(wait, seconds=0) == ToolResult(True, '{"é": 1}')
    assert call(wait, seconds=5) == ToolResult(False, error="timed out after 0.1 s", timed_out=True)
    assert call(broken) == ToolResult(False, error="TimeoutError: mine")
    assert call(broken, x=1).error == "unknown argument 'x', expected none"


def test_a_worker_answers_is_reused_across_loops_and_runs_async_functions(tools: Any) -> None:
    assert call(tools.add, a=2) == ToolResult(True, "3")
    assert tools.add(2, b=5) == 7  # still the plain function
    assert call(tools.add, a="two").error == "argument 'a' is 'two', expected an integer"
    assert call(tools.slow_echo, text="né\n😀") == ToolResult(True, "né\n😀")
    assert call(tools.pid).output == call(tools.pid).output


def test_calls_at_once_get_their_own_answers(tools: Any) -> None:
    async def all_at_once() -> list[ToolResult]:
        return await asyncio.gather(*(tools.add.call({"a": number}) for number in range(12)))

    assert [result.output for result in asyncio.run(all_at_once())] == [str(number + 1) for number in range(12)]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("raise", "ValueError: no such thing"),
        ("sys.exit", "SystemExit: bye"),
        ("exit", "the process of tool 'fail' died with exit status 3"),
        ("kill", "the process of tool 'fail' died with SIGKILL"),
        ("segfault", "the process of tool 'fail' died with SIGSEGV"),
    ],
)
def test_what_goes_wrong_is_told_and_the_next_call_works(tools: Any, kind: str, error: str) -> None:
    assert call(tools.fail, kind=kind) == ToolResult(False, error=error)
    assert call(tools.fail, kind="raise").error == "ValueError: no such thing"


def test_a_hung_worker_is_killed_with_its_children(tools: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    started = time.monotonic()
    assert call(tools.hang, pid_file=str(pids)) == ToolResult(False, error="timed out after 1 s", timed_out=True)
    assert time.monotonic() - started < 8
    deadline = time.monotonic() + 5
    while any(is_alive(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_cancelled_call_leaves_no_process(tools: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def cancel() -> None:
        task = asyncio.create_task(tools.hang.call({"pid_file": str(pids)}))
        while not (pids.exists() and pids.read_text()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert not is_alive(int(pids.read_text().split()[0]))


def test_a_flood_is_cut(tools: Any) -> None:
    result = call(tools.flood, characters=50_000_000)
    assert result.ok and len(result.output) == 100 and "cut: 50000000 characters" in result.output


def test_a_worker_killed_between_calls_is_replaced(tools: Any) -> None:
    pid = int(call(tools.pid).output)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # all its threads are gone, and nobody has reaped it
    assert int(call(tools.pid).output) != pid


def test_a_worker_that_does_not_come_up_is_a_tool_error(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text("import os\nfrom gruppo.tools.base import tool\n@tool\ndef f() -> int:\n  'Doc.'\n  return 1\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import once  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    file.write_text("raise RuntimeError('broken file')\n")
    with pytest.raises(ToolError, match="tool 'f' can't be started: RuntimeError: broken file"):
        call(once.f)


PASSAGES = [
    Passage("b", "Paris", "The capital of France is Paris."),
    Passage("a", "Paris", "The capital of France is Paris."),
    Passage("c", "Rome", "Rome is the capital of Italy. Café Zürich."),
]


def test_search_ranks_and_breaks_ties_by_id() -> None:
    index = BM25Index(PASSAGES)
    assert [passage.id for passage in index.search("FRANCE france", 5)] == ["a", "b"]
    assert [passage.id for passage in index.search("cafe zurich", 5)] == ["c"]
    assert [passage.id for passage in index.search("cafe\u0301", 5)] == ["c"]
    assert index.search("capital Italy", 1)[0].id == "c" and len(index) == 3


NASTY = ['"', "NEAR(a b)", "a* OR -b^2", "title:rome", "", "😀", "\x00", "()", "AND", "x'; DROP TABLE passages", "a_b"]


@settings(max_examples=50)
@given(st.one_of(st.sampled_from(NASTY), st.text(max_size=50)))
def test_any_query_is_safe(query: str) -> None:
    index = BM25Index(PASSAGES)
    assert index.search(query, 3) == index.search(query, 3)
    assert all(word and not set(word) & set('"()*^:+-_{} \x00') for word in terms(query)), "nothing of FTS5's syntax"
    index.close()


def test_a_long_query_and_many_documents_are_fast() -> None:
    words = [f"word{number % 997} thing{number % 89} {number}" for number in range(20_000)]
    started = time.process_time()
    index = BM25Index(Passage(f"{number:05}", "title", text) for number, text in enumerate(words))
    assert index.search("word5 19999", 1)[0].id == "19999"
    assert index.search(" ".join(f"w{number}" for number in range(20_000)) + ' "' * 100, 3) == []
    assert time.process_time() - started < 4


def test_an_index_file_is_built_and_opened(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(vars(passage)) for passage in PASSAGES) + "\n")
    path = tmp_path / "index.db"
    BM25Index.from_jsonl(rows, path).close()
    assert BM25Index.open(path).search("italy")[0] == PASSAGES[2]
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "Rome.md").write_text("eternal")
    (tmp_path / "folder" / "skip.json").write_text("eternal")
    assert BM25Index.from_folder(tmp_path / "folder").search("eternal", 5) == [
        Passage("deep/Rome.md", "Rome", "eternal")
    ]


def test_bad_sources_are_named(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "1", "title": "a", "text": "b"}\n{"id": 2}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:2: expected an object with the strings id, title and text"):
        BM25Index.from_jsonl(rows)
    with pytest.raises(DataError, match="'a' is not unique"):
        BM25Index([PASSAGES[1], PASSAGES[1]])
    with pytest.raises(DataError, match="not a search index"):
        BM25Index.open(rows)
    with pytest.raises(DataError, match="no .txt or .md"):
        BM25Index.from_folder(tmp_path)


def test_wikipedia_tool() -> None:
    wikipedia = WikipediaTool(BM25Index(PASSAGES), k=2)
    assert call(wikipedia, query="France").output == " ".join([PASSAGES[0].text] * 2)
    assert call(wikipedia, query="xyzzy") == ToolResult(False, error="nothing found for 'xyzzy'")
    assert call(wikipedia, query=3).error == "argument 'query' is 3, expected a string"
