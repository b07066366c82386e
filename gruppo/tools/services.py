"""The tools that need more than this process: an engine, a key, a server, the network; each is given what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gruppo.config import Config
from gruppo.errors import ConfigError
from gruppo.tools.coder import RAW_OUTPUT, CoderTool
from gruppo.tools.fetch import Fetcher, WebConfig
from gruppo.tools.generator import GeneratorTool
from gruppo.tools.google import GoogleConfig, GoogleTool
from gruppo.tools.mcp import MCPConfig, MCPServer
from gruppo.tools.mediawiki import Corpus, Encyclopedia, MediaWiki
from gruppo.tools.passages import Embedder, minilm
from gruppo.tools.python import PythonTool
from gruppo.tools.search import BM25Index
from gruppo.tools.web import WebTool
from gruppo.tools.wikipedia import WikipediaArticlesTool
from gruppo.types import Engine, Tool

SERVICES = ("generator", "coder", "google", "web", "articles")


class ServicesConfig(Config):
    """What the tools need that are more than a function."""

    engine: str = ""
    """The entry of [engines] that answers in "generator" and "coder", and sums up in "web" and "articles"."""
    encyclopedia: str = "corpus"
    """Where "articles" looks: "corpus", or the address of a MediaWiki, as in "https://en.wikipedia.org"."""
    embedder: Literal["bm25", "minilm"] = "bm25"
    """What chooses the passages of "web" and "articles": "bm25", or "minilm" from the extra "embed"."""
    web: WebConfig = WebConfig()
    google: GoogleConfig = GoogleConfig()
    mcp: dict[str, MCPConfig] = {}
    """MCP servers by name; the tools of one are "mcp:<name>"."""


def make_service(
    name: str,
    config: ServicesConfig,
    engine: Engine | None,
    index: Callable[[], BM25Index],
    python: Callable[[], PythonTool],
) -> list[Tool]:
    """The tools of one of SERVICES or of "mcp:<server>".

    `index` opens the corpus; `python` makes the tool that runs code. Raises ConfigError, and ToolError if an MCP server
    can't be reached.
    """
    if name.startswith("mcp:"):
        server = name.removeprefix("mcp:")
        if server not in config.mcp:
            raise ConfigError(f"tools.names: no MCP server {server!r}: add [tools.mcp.{server}] with command or url")
        return list(MCPServer(server, config.mcp[server]).tools())
    if name == "google":
        return [GoogleTool(config.google)]
    if name in ("generator", "coder") and engine is None:
        raise ConfigError(f"tools.names: {name!r} needs an engine: name an entry of [engines] in tools.engine")
    if name == "generator":
        assert engine
        return [GeneratorTool(engine)]
    if name == "coder":
        assert engine
        runner = python()
        runner.max_output = RAW_OUTPUT
        return [CoderTool(engine, runner)]
    embed: Embedder | None = minilm() if config.embedder == "minilm" else None
    if name == "web":
        return [WebTool(config.web, engine, embed)]
    is_local = config.encyclopedia == "corpus"
    wiki: Encyclopedia = Corpus(index()) if is_local else MediaWiki(Fetcher(config.web), config.encyclopedia)
    return [WikipediaArticlesTool(wiki, engine, embed)]
