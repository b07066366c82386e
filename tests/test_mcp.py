"""Tools of MCP servers: real servers of the official SDK, over standard input and output and over HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gruppo.errors import ConfigError, ToolError
from gruppo.tools.mcp import MCPConfig, MCPServer, MCPTool
from gruppo.types import ToolResult

if importlib.util.find_spec("mcp") is None:  # which is slow to import where its tests don't run
    pytest.skip("needs mcp: pip install 'gruppo[mcp]'", allow_module_level=True)

SERVER = """
import asyncio, os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("test")

@server.tool()
def add(a: int, b: int = 1) -> str:
    "Add two numbers."
    return str(a + b)

@server.tool()
def fail() -> str:
    raise ValueError("no such thing")

@server.tool()
async def hang() -> str:
    await asyncio.sleep(60)
    return ""

@server.tool()
def die() -> str:
    os._exit(3)

@server.tool()
def look(name: str) -> str:
    return os.environ.get(name, "nothing")

@server.tool()
def pid() -> str:
    return str(os.getpid())

if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mcp") / "server.py"
    file.write_text(SERVER)
    return file


@pytest.fixture(scope="module")
def server(script: Path) -> Iterator[MCPServer]:
    made = MCPServer(
        "test", MCPConfig(command=[sys.executable, str(script)], seconds=3.0, environment=["GRUPPO_SHOWN"])
    )
    yield made
    made.close()


def tools(server: MCPServer) -> dict[str, MCPTool]:
    return {tool.name: tool for tool in server.tools()}


def call(tool: MCPTool, **arguments: object) -> ToolResult:
    return asyncio.run(tool.call(arguments))


def test_a_started_server_answers_across_event_loops(server: MCPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUPPO_SECRET", "x")
    monkeypatch.setenv("GRUPPO_SHOWN", "y")
    found = tools(server)
    add = found["add"]
    assert "Add two numbers" in add.description and add.schema["properties"]["a"]["type"] == "integer"
    assert call(add, a=2) == ToolResult(True, "3") and call(add, a="2", b=5) == ToolResult(True, "7")
    assert call(add, a="two").error == "argument 'a' is 'two', expected an integer"
    assert call(add).error.startswith("argument 'a' is missing")
    assert "fail" in call(found["fail"]).error and not call(found["fail"]).ok
    assert call(found["look"], name="GRUPPO_SECRET").output == "nothing"
    assert call(found["pid"]).output == call(found["pid"]).output


def test_calls_at_once_get_their_own_answers_and_a_slow_one_its_deadline(server: MCPServer) -> None:
    found = tools(server)

    async def all_at_once() -> list[ToolResult]:
        slow = found["hang"].call({})
        return await asyncio.gather(slow, *(found["add"].call({"a": number}) for number in range(8)))

    started = time.monotonic()
    slow, *quick = asyncio.run(all_at_once())
    assert slow == ToolResult(False, error="timed out after 3 s", timed_out=True) and time.monotonic() - started < 20
    assert [result.output for result in quick] == [str(number + 1) for number in range(8)]


def test_a_server_that_dies_is_a_failure_of_the_tool_and_is_started_again(server: MCPServer) -> None:
    found = tools(server)
    before = call(found["pid"]).output
    with pytest.raises(ToolError, match="MCP server 'test'"):
        call(found["die"])
    assert call(found["pid"]).output not in ("", before)


def test_a_server_that_does_not_come_up_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("import time\ntime.sleep(60)")
    for command, seconds in (
        ([sys.executable, "-c", "1"], 20.0),
        (["no-such-program"], 20.0),
        ([sys.executable, str(file)], 1.0),
    ):
        broken = MCPServer("bad", MCPConfig(command=command, start_seconds=seconds))
        started = time.monotonic()
        with pytest.raises(ToolError, match="MCP server 'bad'"):
            broken.tools()
        assert time.monotonic() - started < 30
        broken.close()


def test_a_closed_server_leaves_no_process(script: Path) -> None:
    server = MCPServer("test", MCPConfig(command=[sys.executable, str(script)], only=["pid"]))
    (tool,) = server.tools()
    pid = int(call(tool).output)
    server.close()
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_over_http(script: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    null = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, str(script), str(port)], stdout=null, stderr=null)
    server = MCPServer("web", MCPConfig(url=f"http://127.0.0.1:{port}/mcp", seconds=5.0))
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                found = tools(server)
                break
            except ToolError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert call(found["add"], a=2) == ToolResult(True, "3")
        process.kill()
        process.wait()
        with pytest.raises(ToolError, match="MCP server 'web'"):
            call(found["add"], a=2)
    finally:
        process.kill()
        process.wait()
        server.close()


def test_mistakes_in_the_config(server: MCPServer) -> None:
    for values in ({}, {"command": ["x"], "url": "http://x"}):
        with pytest.raises(ValueError, match="either command or url"):
            MCPConfig(**values)
    server.config = server.config.model_copy(update={"only": ["subtract"]})
    with pytest.raises(ConfigError, match=r"tools\.mcp\.test\.only: no tool 'subtract', only add"):
        server.tools()
    server.config = server.config.model_copy(update={"only": []})
