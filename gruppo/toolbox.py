"""The tools of a run, put together from its config: what each name stands for, and what it is given.

What a tool does is in `tools/`; this file alone knows them all, and what they need of engines and of the world.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import Literal

from pydantic import Field

from gruppo.config import load_object, missing_file, suggest
from gruppo.data.world import world_of
from gruppo.data.world.encyclopedia import SPLITS
from gruppo.engines.openai import OpenAIConfig, OpenAIEngine
from gruppo.errors import ConfigError
from gruppo.tools.base import FunctionTool
from gruppo.tools.coder import CoderTool
from gruppo.tools.documents import ReadTool, SearchTool, document_tools
from gruppo.tools.isolation import Level
from gruppo.tools.mcp import MCPTool
from gruppo.tools.python import PythonTool
from gruppo.tools.search import BM25Index, Passage
from gruppo.tools.services import SERVICES, ServicesConfig, make_service
from gruppo.tools.web import WebTool
from gruppo.tools.wikipedia import WikipediaTool
from gruppo.types import Tool


class ToolsConfig(ServicesConfig):
    """What the agents may call."""

    names: list[str] = ["python", "wikipedia"]
    """"python", "wikipedia", "documents", "generator", "coder", "google", "web", "articles", "mcp:<server>", or your
    own: "file.py:name"."""
    corpus: str = "world"
    """What is searched: "world", the part of it that a split's questions are about ("world:train"), a folder of texts,
    or a .jsonl of passages."""
    index: str = ""
    """A folder that keeps the index of a corpus of files from run to run, memory-mapped; empty: it is in memory."""
    passages: int = Field(1, ge=1)
    """Passages that a search returns."""
    documents_per_clue: int = Field(10, ge=1)
    """Documents that count of what "documents" finds for one search clue."""
    documents_per_round: int = Field(10, ge=1)
    """Documents that come out of all clues of a search."""
    workers: int | None = Field(None, ge=1)
    """Calls at once of each of your own tools, in as many processes at most; None: what its @tool says, or 64."""
    level: Literal["auto", "namespaces", "landlock", "monty", "process"] = "auto"
    """How code is confined, as docs/safety.md tells: "auto" is the best of "namespaces" and "landlock" that holds
    here; "monty" is for calculator-type code; "process" has limits and no walls."""
    min_level: Level = "monty"
    """The weakest level that a run may start with: "process", "monty", "landlock" or "namespaces"."""
    python_seconds: float = Field(5.0, gt=0)
    """Time limit of a piece of code."""
    python_memory_mb: int = Field(512, ge=64)
    """Memory limit of a piece of code, of all its processes together."""
    python_disk_mb: int = Field(64, ge=1)
    """Limit of the files that a piece of code writes."""
    python_processes: int = Field(16, ge=1)
    """Limit of the processes and threads of a piece of code; 1: it can't start another process."""
    python_once: bool = True
    """Whether the same code, asked for by several episodes at the same moment, is run once for all of them; it gives
    each the same, but for the time and other things that code can't know. Not for python_stateful."""
    python_concurrent: int | None = Field(None, ge=1)
    """Pieces of code that run at once; None: twice as many as there are cores, and at least 4. More helps code that
    waits; code that computes then takes longer by the clock of python_seconds."""
    python_stateful: bool = False
    """Whether variables and files stay from call to call of one episode."""
    python_idle_seconds: float = Field(600.0, gt=0)
    """A session without a call for so long is ended; for python_stateful."""
    python_work_dir: str = ""
    """A folder that gets copies of the files that code leaves; empty: they are deleted."""


def make_tools(config: ToolsConfig, engines: Mapping[str, OpenAIConfig], world_seed: int) -> dict[str, Tool]:
    """The tools by name; `engines` may answer in them. Raises ConfigError for one that can't be found or confined."""
    made = [tool for name in config.names for tool in find_tools(name, config, engines, world_seed)]
    names = [tool.name for tool in made]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"tools.names: two tools are called {min(twice)!r}; leave one out")
    return dict(zip(names, made, strict=True))


def find_tools(name: str, tools: ToolsConfig, engines: Mapping[str, OpenAIConfig], world_seed: int) -> list[Tool]:
    """What one entry of tools.names stands for."""
    if name == "python":
        return [make_python(tools)]
    if name == "wikipedia":
        return [WikipediaTool(make_index(tools.corpus, world_seed, tools.index), k=tools.passages)]
    if name == "documents":
        documents = make_index(tools.corpus, world_seed, tools.index)
        return list(document_tools(documents, tools.documents_per_clue, tools.documents_per_round))
    if name in SERVICES or name.startswith("mcp:"):
        if tools.engine and tools.engine not in engines:
            raise ConfigError(
                f"tools.engine = {tools.engine!r}: no such endpoint in [engines]{suggest(tools.engine, engines)}"
            )
        engine = OpenAIEngine(engines[tools.engine]) if tools.engine else None
        index = partial(make_index, tools.corpus, world_seed, tools.index)
        return make_service(name, tools, engine, index, partial(make_python, tools))
    if ":" not in name:
        close = suggest(name, ("python", "wikipedia", "documents", *SERVICES))
        raise ConfigError(f"tools.names: no tool {name!r}{close}; your own is 'file.py:name'")
    if isfunction(tool := load_object(name)):
        raise ConfigError(f"tools.names: {name!r} is a plain function; put @tool (gruppo.tools) above it")
    return [replace(tool, workers=tools.workers) if tools.workers and isinstance(tool, FunctionTool) else tool]


def make_python(tools: ToolsConfig) -> PythonTool:
    """The python tool. Raises ConfigError if no sandbox that is good enough holds here."""
    if tools.python_stateful and tools.python_work_dir:
        raise ConfigError(
            f"tools.python_work_dir = {tools.python_work_dir!r}: a session's files stay with it; leave it out, or set"
            " tools.python_stateful = false"
        )
    return PythonTool(
        level=tools.level,
        min_level=tools.min_level,
        work_dir=tools.python_work_dir or None,
        seconds=tools.python_seconds,
        memory_mb=tools.python_memory_mb,
        disk_mb=tools.python_disk_mb,
        processes=tools.python_processes,
        once=tools.python_once,
        stateful=tools.python_stateful,
        idle_seconds=tools.python_idle_seconds,
        **({"concurrent": tools.python_concurrent} if tools.python_concurrent else {}),
    )


def make_index(corpus: str, world_seed: int, folder: str = "") -> BM25Index:
    """The passages that are searched; each sentence of the world can be found on its own. `folder` keeps the index."""
    if corpus.partition(":")[0] == "world":
        if folder:
            raise ConfigError(f"tools.index = {folder!r}: the world is made in memory; leave it out")
        return world_index(corpus.partition(":")[2], world_seed)
    if not corpus:
        raise ConfigError('tools.corpus is empty: name a folder of texts, a .jsonl of passages, or "world"')
    if not Path(corpus).exists():
        raise ConfigError(f"tools.corpus: {missing_file(Path(corpus))}")
    if folder:
        return BM25Index.kept(corpus, folder)
    return BM25Index.from_jsonl(corpus) if corpus.endswith(".jsonl") else BM25Index.from_folder(corpus)


def world_index(split: str, world_seed: int) -> BM25Index:
    """All sentences of the world, or those about entities of one split; a sentence has the same id in both."""
    world = world_of(world_seed)
    if split and split not in SPLITS:
        raise ConfigError(f"tools.corpus = 'world:{split}': no such split{suggest(split, SPLITS)}")
    names = {name for (_, part), names in world.entities.items() for name in names if part == split or not split}
    return BM25Index(Passage(id, subject, text) for id, subject, text in world.passages if subject in names)


def close_tools(tools: Iterable[Tool]) -> None:
    """End their processes and connections."""
    for tool in tools:
        runner = tool.python if isinstance(tool, CoderTool) else tool
        if isinstance(runner, PythonTool | WebTool | MCPTool | FunctionTool):
            runner.close()


def can_renew(tools: Iterable[Tool]) -> bool:
    """Whether a forked process can have tools of its own in place of these."""
    shared = PythonTool | WikipediaTool | SearchTool | ReadTool
    return all(isinstance(tool, shared) or _has_processes(tool) for tool in tools)


def renew(config: ToolsConfig, tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """The same tools, without the processes that belong to the process that this one was forked from."""
    found = dict(tools)
    for name, tool in tools.items():
        if isinstance(tool, PythonTool):
            found[name] = make_python(config.model_copy(update={"level": tool.level}))
        elif isinstance(tool, FunctionTool):
            found[name] = replace(tool)
    return found


def _has_processes(tool: Tool) -> bool:
    return isinstance(tool, FunctionTool) and not tool.in_process


def isolation_of(tools: Iterable[Tool]) -> str:
    """In words, how what the agents write is confined; empty if nothing runs code."""
    runners = [tool.python if isinstance(tool, CoderTool) else tool for tool in tools]
    return "; ".join(runner.isolation for runner in runners if isinstance(runner, PythonTool))
