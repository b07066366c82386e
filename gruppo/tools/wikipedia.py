"""The wikipedia tools: the best passages of a local index, in a few words; and whole articles, found, chosen and read.

Neither knows where articles come from: `mediawiki.py` does. Without the live encyclopedia nothing goes on the network.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from gruppo.bounded_json import parse_json
from gruppo.tools.base import MAX_OUTPUT
from gruppo.tools.card import ToolCard
from gruppo.tools.fetch import FetchError, Refusal
from gruppo.tools.generator import ask
from gruppo.tools.mediawiki import Encyclopedia
from gruppo.tools.page import PageText
from gruppo.tools.passages import Embedder
from gruppo.tools.schema import check_arguments, coerced, cut
from gruppo.tools.search import BM25Index
from gruppo.tools.web import sum_up
from gruppo.types import CallContext, Engine, ToolResult

MAX_TITLES = 10
MAX_CHOSEN = 3
PAGE_KEYS = ("title", "url", "redirected_from", "retrieved_information", "options", "error")


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

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Search for `arguments["query"]`."""
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        passages = self.index.search(arguments["query"], self.k)
        if not passages:
            return ToolResult(False, error=f"nothing found for {cut(arguments['query'], 200)!r}")
        return ToolResult(True, cut(" ".join(passage.text for passage in passages), self.max_output))


CARD = ToolCard(
    name="Wikipedia_RAG_Search_Tool",
    description="Searches an encyclopedia, chooses the articles that matter, and returns what they say on a question.",
    inputs={"query": "string: what to find out, in a few words or one question"},
    output=(
        "JSON: query; relevant_pages, each with title, url, redirected_from, retrieved_information, options (what an"
        " ambiguous title may mean) and error; other_pages, the titles that were found and not read"
    ),
    examples={"look something up": '{"query": "height of the Eiffel Tower"}'},
    limits=(
        f"finds at most {MAX_TITLES} articles and reads at most {MAX_CHOSEN}",
        "knows what an encyclopedia knows: no news, no opinions, no private data",
    ),
    best_practices=(
        "ask for one thing per call, and name it as an article's title would",
        "if a page is ambiguous, ask again with one of its options",
    ),
)

SELECTION = f"""Choose the articles that most likely answer the question, {MAX_CHOSEN} at most. Answer as JSON:
{{"numbers": [...]}}"""


class WikipediaArticlesTool:
    """`Wikipedia_RAG_Search_Tool(query)`."""

    name = CARD.name
    card = CARD
    description = CARD.text()
    schema: Mapping[str, Any] = CARD.schema()

    def __init__(
        self,
        encyclopedia: Encyclopedia,
        engine: Engine | None = None,
        embed: Embedder | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> None:
        self.encyclopedia, self.engine, self.embed, self.max_output = encyclopedia, engine, embed, max_output

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Search, choose, read. A search that failed is an error; one that found nothing is not. Raises EngineError."""
        arguments = coerced(arguments, self.schema)
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        query = arguments["query"]
        try:
            titles = (await self.encyclopedia.titles(query, MAX_TITLES))[:MAX_TITLES]
        except FetchError as error:
            return ToolResult(False, error=cut(str(error), 1_000), timed_out=error.code == Refusal.timeout)
        chosen = await self._choose(query, titles)
        pages = await asyncio.gather(*(self._read(query, title) for title in chosen))
        others = [title[:100] for title in titles if title not in chosen]
        return ToolResult(True, self._shown({"query": cut(query, 200), "relevant_pages": pages, "other_pages": others}))

    def _shown(self, found: dict[str, Any]) -> str:
        """The result as JSON that fits: what the pages say is shortened, not the JSON."""
        text = ""
        for limit in (self.max_output, 2_000, 1_000, 700, 500, 200, 0):
            pages = [
                page | {"retrieved_information": cut(page["retrieved_information"], limit)}
                for page in found["relevant_pages"]
            ]
            text = json.dumps({**found, "relevant_pages": pages}, ensure_ascii=False)
            if len(text) <= self.max_output:
                break
        return cut(text, self.max_output)

    async def _choose(self, query: str, titles: list[str]) -> list[str]:
        """The engine's choice; the first titles without an engine, the first one if its choice can't be read."""
        if self.engine is None or len(titles) <= 1:
            return titles[:MAX_CHOSEN]
        listed = "\n".join(f"{number}. {title}" for number, title in enumerate(titles, 1))
        said = await ask(self.engine, SELECTION, f"Question: {query}\n\nArticles:\n{listed}", max_tokens=256)
        try:
            numbers = parse_json(said, {"numbers": list})["numbers"]
        except ValueError:
            numbers = []
        known = [number for number in numbers if type(number) is int and 1 <= number <= len(titles)]
        return [titles[number - 1] for number in dict.fromkeys(known)][:MAX_CHOSEN] or titles[:1]

    async def _read(self, query: str, title: str) -> dict[str, Any]:
        """What one article says, or what is wrong with it, under the same keys. Raises EngineError."""
        page: dict[str, Any] = {**dict.fromkeys(PAGE_KEYS, ""), "title": title, "options": []}
        try:
            article = await self.encyclopedia.article(title)
        except FetchError as error:
            return page | {"error": cut(str(error), 300)}
        page |= {"title": article.title, "url": article.url, "redirected_from": article.redirected_from}
        if article.options:
            return page | {"options": list(article.options), "error": "ambiguous: ask again with one of the options"}
        if not article.text.strip():
            return page | {"error": "the article has no text"}
        found = PageText(article.url, article.title, article.text)
        return page | {"retrieved_information": await sum_up(found, query, self.engine, self.embed)}
