"""How a search that broke off is told of in its files: by the outcome of its episode, or by none if it was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kept_states import PASSAGES, QUESTION

from gruppo.data.search_files import folder_name
from gruppo.errors import TeamError, ToolError
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.search_state import Meta, meta_of
from gruppo.teams.search import Search, SearchConfig
from gruppo.tools.documents import SEARCH, document_tools
from gruppo.tools.search import BM25Index
from gruppo.types import CallContext, Outcome, Task, Tool, ToolResult

TASK = Task("t", QUESTION, "Morla")


@dataclass
class Foreign:
    """A search tool of somebody else's, and what it does when it is called."""

    found: str | Exception | None = None  # what it answers or raises; None: it never answers
    name: str = SEARCH
    description: str = ""
    schema: Mapping[str, Any] = None  # type: ignore[assignment]

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        if isinstance(self.found, Exception):
            raise self.found
        if self.found is None:
            await asyncio.sleep(60)
        return ToolResult(True, str(self.found))


def rollout_of(tmp_path: Path, tool: Tool, **config: Any) -> Rollout:
    tools = {each.name: each for each in (*document_tools(BM25Index(PASSAGES)), tool)}
    team = Search(SearchConfig(checkpoints=str(tmp_path)))
    return Rollout(team, {}, {}, tools, {}, RolloutConfig(retries=0, **config))


def meta(tmp_path: Path, question: str = QUESTION) -> Meta:
    return meta_of((tmp_path / folder_name(question) / "run_1" / "meta.json").read_bytes())


@pytest.mark.parametrize(
    ("found", "outcome", "said"),
    [
        (None, Outcome.timeout, "no answer within 0.2 s"),
        (ValueError("a bug"), Outcome.tool_failed, "ValueError: a bug"),
        (ToolError("its host is down"), Outcome.tool_failed, "its host is down"),
        ("no JSON", Outcome.team_failed, "JSONDecodeError"),
        ('{"hits": [{}], "faults": []}', Outcome.team_failed, "KeyError: 'id'"),
    ],
)
def test_what_broke_a_search_off_is_in_its_files(tmp_path: Path, found: Any, outcome: Outcome, said: str) -> None:
    with suppress(TeamError):  # in the end, as the team failed in all episodes
        (episode,) = next(rollout_of(tmp_path, Foreign(found), max_seconds=0.2).stream([TASK], 1, 0, "test")).episodes
        assert episode.outcome == outcome and said in episode.error
    told = meta(tmp_path)
    assert told.outcome == outcome and said in told.error and [entry.number for entry in told.rounds] == [0]


def test_what_a_user_can_mend_ends_everything_and_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(TeamError, match="a config that lacks it"):
        rollout_of(tmp_path, Foreign(TeamError("a config that lacks it"))).collect([TASK], 1, 0, "test")
    assert (meta(tmp_path).outcome, meta(tmp_path).error) == ("team_failed", "a config that lacks it")


def test_a_search_that_is_stopped_has_no_outcome(tmp_path: Path) -> None:
    class Once(Foreign):
        """Answers the first call alone."""

        async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
            assert context
            if context.task == "t":
                return ToolResult(True, '{"hits": [], "faults": []}')
            return await super().call(arguments, context)

    rollout = rollout_of(tmp_path, Once(), mode="async")
    groups = rollout.stream([TASK, Task("u", "Who is it?", "")], 1, 0, "test")
    assert next(groups).task.id == "t" and meta(tmp_path).outcome == "completed"
    groups.close()
    assert (meta(tmp_path, "Who is it?").outcome, meta(tmp_path, "Who is it?").error) == ("", "")
