"""Tools of MCP servers, through the official SDK (extra `mcp`): a command that is started, or an HTTP address.

A server's connection lives in a thread with an event loop of its own, so it outlasts the loops of training steps; it is
made when first needed, and again after the server has died. Names, descriptions and schemas are the server's: what it
says is trusted no more than any page, and what it needs of the environment it is given by name.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field, model_validator

from gruppo.config import Config
from gruppo.errors import ConfigError, ToolError
from gruppo.tools.base import MAX_OUTPUT
from gruppo.tools.schema import check_arguments, coerced, cut
from gruppo.types import CallContext, ToolResult

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")

CLOSE_SECONDS = 10.0  # for a server to end by itself


class MCPConfig(Config):
    """One MCP server."""

    command: list[str] = []
    """The command that starts it, for one that speaks over its standard input and output."""
    url: str = Field("", pattern=r"^(https?://[^\s@]+)?$")
    """The address of one that speaks HTTP."""
    environment: list[str] = []
    """Names of environment variables that a started server gets besides PATH, HOME and the like."""
    seconds: float = Field(30.0, gt=0)
    """How long a call may take."""
    start_seconds: float = Field(60.0, gt=0)
    """How long the server may take to answer at first."""
    only: list[str] = []
    """The tools that agents may call; empty: all of them."""

    @model_validator(mode="after")
    def _check(self) -> MCPConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either command or url")
        return self


class MCPServer:
    """A connection to one server, shared by its tools."""

    def __init__(self, name: str, config: MCPConfig) -> None:
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise ConfigError(f'tools.mcp.{name}: install "gruppo[mcp]" to use MCP servers') from None
        self.name, self.config = name, config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"mcp-{name}", daemon=True)
        self._thread.start()
        self._lock = asyncio.Lock()
        self._held: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._ending = asyncio.Event()

    def tools(self, max_output: int = MAX_OUTPUT) -> list[MCPTool]:
        """The server's tools. Raises ToolError if it can't be reached, ConfigError for an unknown name in `only`."""
        running = asyncio.run_coroutine_threadsafe(self._list(), self._loop)
        try:
            listed = running.result(2 * self.config.start_seconds)
        except TimeoutError:
            running.cancel()
            raise ToolError(f"{self}: no list of tools within {2 * self.config.start_seconds:g} s") from None
        found = {tool.name: tool for tool in listed}
        for name in self.config.only:
            if name not in found:
                raise ConfigError(f"tools.mcp.{self.name}.only: no tool {name!r}, only {', '.join(found) or 'none'}")
        chosen = self.config.only or list(found)
        return [
            MCPTool(self, name, found[name].description or "", dict(found[name].input_schema), max_output)
            for name in chosen
        ]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """What the server's tool says, from any event loop. Raises ToolError if the server has died."""
        running = asyncio.run_coroutine_threadsafe(self._call(tool, dict(arguments)), self._loop)
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """End the connection, and with it a server that was started; a later call is refused."""
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._drop(), self._loop).result(2 * CLOSE_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_SECONDS)
            self._loop.close()

    def __str__(self) -> str:
        return f"MCP server {self.name!r}"

    # ---- in the thread -----------------------------------------------------------------------------------------------

    async def _list(self) -> list[Any]:
        return await self._guarded(self._pages())

    async def _pages(self) -> list[Any]:
        client = await self._connected()
        tools: list[Any] = []
        cursor = None
        for _ in range(100):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        return tools

    async def _call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        from mcp.shared.exceptions import MCPError

        client = await self._guarded(self._connected())
        deadline = asyncio.timeout(self.config.seconds)

        async def call() -> ToolResult:
            try:
                async with deadline:
                    return result_of(await client.call_tool(tool, arguments))
            except TimeoutError:
                return ToolResult(False, error=f"timed out after {self.config.seconds:g} s", timed_out=True)
            except MCPError as error:
                if error.code == CONNECTION_CLOSED:
                    raise
                return ToolResult(False, error=str(error))

        return await self._guarded(call())

    async def _guarded(self, running: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns; if it fails the connection is dropped. Raises ToolError."""
        try:
            return await running
        except (ToolError, ConfigError):
            raise
        except Exception as error:  # a broken connection shows as anything, at several levels of the SDK
            await self._drop()
            raise ToolError(f"{self}: {_told(error)}") from None

    async def _connected(self) -> Client:
        async with self._lock:
            if self._client is None or self._held is None or self._held.done():
                ready: asyncio.Future[Client] = self._loop.create_future()
                self._ending = asyncio.Event()
                self._held = self._loop.create_task(self._hold(ready, self._ending))
                seconds = self.config.start_seconds
                either: set[asyncio.Future[Any]] = {ready, self._held}
                await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    why = "it ended" if self._held.done() else f"no answer within {seconds:g} s"
                    if self._held.done() and (error := self._held.exception()):
                        why = _told(error)
                    await self._end_task()
                    raise ToolError(f"{self} can't be started: {why}")
                self._client = ready.result()
            return self._client

    async def _hold(self, ready: asyncio.Future[Client], ending: asyncio.Event) -> None:
        """Open the connection and keep it until `ending`; it has to be closed by the task that opened it."""
        from mcp import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client

        with open(os.devnull, "w") as null:
            server: Any = self.config.url
            if self.config.command:
                environment = {name: os.environ[name] for name in self.config.environment if name in os.environ}
                program, *arguments = self.config.command
                server = stdio_client(StdioServerParameters(command=program, args=arguments, env=environment), null)
            async with Client(server) as client:
                if not ready.done():
                    ready.set_result(client)
                await ending.wait()

    async def _drop(self) -> None:
        async with self._lock:
            await self._end_task()

    async def _end_task(self) -> None:
        task, self._held, self._client = self._held, None, None
        if task is not None:
            self._ending.set()
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CLOSE_SECONDS)
            if task.done() and not task.cancelled():
                task.exception()  # it has been told, or is of no interest any more


CONNECTION_CLOSED = -32000


class MCPTool:
    """One tool of a server, by the server's name and schema."""

    def __init__(
        self, server: MCPServer, name: str, description: str, schema: Mapping[str, Any], max_output: int
    ) -> None:
        self.server, self.name, self.description = server, name, cut(description, 2_000)
        self.schema, self.max_output = schema, max_output

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Ask the server. Raises ToolError if it has died."""
        arguments = coerced(arguments, self.schema)
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        result = await self.server.call(self.name, arguments)
        output, error = cut(result.output, self.max_output), cut(result.error, self.max_output)
        return ToolResult(result.ok, output, error, result.timed_out)

    def close(self) -> None:
        """End the server's connection."""
        self.server.close()


def result_of(answer: Any) -> ToolResult:
    """A `CallToolResult` as ours: its texts, else its structured value; other contents by their kind."""
    parts = [block.text if block.type == "text" else f"[{block.type}]" for block in answer.content]
    text = "\n".join(parts)
    if not text and answer.structured_content is not None:
        text = json.dumps(answer.structured_content, ensure_ascii=False)
    return ToolResult(False, error=text or "it failed") if answer.is_error else ToolResult(True, text)


def _told(error: BaseException) -> str:
    """The innermost of nested exception groups, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cut(" ".join(f"{type(error).__name__}: {error}".rstrip(": ").split()), 300)
