"""Encyclopedias behind one interface: Wikipedia itself, through the MediaWiki API, and any local corpus.

Both find titles for a query and fetch the article of exactly one title: nothing guesses another title for it. Fetching
is `fetch.py`'s, with all its limits; which articles matter is the tool's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from gruppo.tools.fetch import Fetcher, FetchError, Refusal
from gruppo.tools.search import BM25Index

MAX_OPTIONS = 30


@dataclass(frozen=True)
class Article:
    """An article as it is called in the end; `options` are the titles that an ambiguous one may mean."""

    title: str
    url: str
    text: str
    redirected_from: str = ""
    options: tuple[str, ...] = ()


class Encyclopedia(Protocol):
    """Where articles come from. Both raise FetchError."""

    async def titles(self, query: str, limit: int) -> list[str]:
        """The titles of at most `limit` articles for a query, the best first."""
        ...

    async def article(self, title: str) -> Article:
        """The article of this title, redirects followed."""
        ...


class Corpus:
    """A local index as an encyclopedia: an article is all passages of one title."""

    def __init__(self, index: BM25Index) -> None:
        self.index = index

    async def titles(self, query: str, limit: int) -> list[str]:
        passages = self.index.search(query, 5 * limit)  # an article may have several passages
        return list(dict.fromkeys(passage.title for passage in passages))[:limit]

    async def article(self, title: str) -> Article:
        passages = self.index.titled(title)
        if not passages:
            raise FetchError(Refusal.status, f"no article {title[:200]!r}")
        return Article(title, passages[0].id, "\n".join(passage.text for passage in passages))


class MediaWiki:
    """A live wiki; `base_url` is the address that "/w/api.php" is appended to."""

    def __init__(self, fetcher: Fetcher, base_url: str = "https://en.wikipedia.org") -> None:
        self.fetcher, self.base_url = fetcher, base_url.rstrip("/")

    async def titles(self, query: str, limit: int) -> list[str]:
        found = await self._query(list="search", srsearch=query[:300], srlimit=str(limit))
        return [str(entry["title"]) for entry in _rows(found, "search")][:limit]

    async def article(self, title: str) -> Article:
        found = await self._query(
            prop="extracts|pageprops|info|links",
            explaintext="1",
            redirects="1",
            inprop="url",
            ppprop="disambiguation",
            plnamespace="0",
            pllimit=str(MAX_OPTIONS),
            titles=title,
        )
        pages = _rows(found, "pages")
        if not pages or pages[0].get("missing") or pages[0].get("invalid"):
            raise FetchError(Refusal.status, f"no article {title[:200]!r}")
        page = pages[0]
        name, properties = str(page["title"]), page.get("pageprops")
        is_ambiguous = isinstance(properties, dict) and "disambiguation" in properties
        links = [str(link["title"]) for link in _rows(page, "links")] if is_ambiguous else []
        moved = next((str(row["from"]) for row in _rows(found, "redirects", "from")), "")
        url = str(page.get("fullurl") or f"{self.base_url}/wiki/{quote(name.replace(' ', '_'))}")
        return Article(name, url, str(page.get("extract") or ""), moved, tuple(links[:MAX_OPTIONS]))

    async def _query(self, **parameters: str) -> dict[str, Any]:
        """The `query` of the API's answer. Raises FetchError for anything else."""
        asked = {"action": "query", "format": "json", "formatversion": "2", **parameters}
        page = await self.fetcher.get(f"{self.base_url}/w/api.php?{urlencode(asked)}")
        try:
            if "json" not in page.kind:
                raise ValueError(f"it is {page.kind}")
            answer = json.loads(page.text())
            if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
                raise ValueError(f"{answer['error'].get('code')}: {answer['error'].get('info')}")
            found = answer.get("query", {}) if isinstance(answer, dict) else None
            if not isinstance(found, dict):
                raise ValueError("it has another shape")
        except (ValueError, RecursionError) as error:
            raise FetchError(Refusal.content, f"{self.base_url}: not an answer of the MediaWiki API: {error}") from None
        return found


def _rows(found: Mapping[str, Any], key: str, name: str = "title") -> list[dict[str, Any]]:
    """The objects in a list of the answer that have a `name`; whatever else is there is left out."""
    rows = found.get(key)
    return [row for row in rows if isinstance(row, dict) and name in row] if isinstance(rows, list) else []
