"""The wikipedia tool: the best passages of a local index. It never goes on the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gruppo.tools.base import MAX_OUTPUT
from gruppo.tools.schema import check_arguments, cut
from gruppo.tools.search import BM25Index
from gruppo.types import ToolResult


class WikipediaTool:
    """`wikipedia(query)`: the texts of the `k` best passages, joined by a space, at most `max_output` characters."""

    name = "wikipedia"
    description = "Search an encyclopedia and return the text of the best passage."
    schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "what to look for, in a few words"}},
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, index: BM25Index, k: int = 1, max_output: int = MAX_OUTPUT) -> None:
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1 passage")
        self.index, self.k, self.max_output = index, k, max_output

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Search for `arguments["query"]`."""
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        passages = self.index.search(arguments["query"], self.k)
        if not passages:
            return ToolResult(False, error=f"nothing found for {cut(arguments['query'], 200)!r}")
        return ToolResult(True, cut(" ".join(passage.text for passage in passages), self.max_output))
