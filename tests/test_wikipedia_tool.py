"""The wikipedia tools, against a local MediaWiki API and local corpora, and the search index below them."""

from __future__ import annotations

import asyncio
import json
import math
import socketserver
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_web import LocalWeb, serving

from gruppo.engines.scripted import ScriptedEngine
from gruppo.tools.fetch import Fetcher, WebConfig
from gruppo.tools.mediawiki import Corpus, MediaWiki
from gruppo.tools.search import BM25Index, Passage, terms
from gruppo.tools.wikipedia import PAGE_KEYS, WikipediaArticlesTool
from gruppo.types import ToolResult

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "search_tools.jsonl").read_text().splitlines()]
BY_ID = {case["id"]: case for case in CASES}

PAGES: dict[str, dict[str, Any]] = {
    "Kale": {"extract": "Kale is a green cabbage. " + "More on cabbage. " * 300},
    "Kal": {"extract": "Kal is a name."},
    "Blue screen of death": {"extract": "A blue screen is an error screen."},
    "Mercury": {
        "extract": "Mercury may refer to:",
        "pageprops": {"disambiguation": ""},
        "links": [{"ns": 0, "title": "Mercury (planet)"}, {"ns": 0, "title": "Mercury (element)"}],
    },
    "Empty": {"extract": ""},
}
REDIRECTS = {"BSOD": "Blue screen of death"}


class Wiki:
    """A MediaWiki API over PAGES; `hits` are the titles that any search finds."""

    def __init__(self, web: LocalWeb) -> None:
        self.web, self.hits = web, list(PAGES)
        web.answers["/w/api.php"] = self.answer

    def answer(self, handler: socketserver.StreamRequestHandler) -> None:
        asked = {key: values[0] for key, values in parse_qs(self.web.asked[-1][0].partition("?")[2]).items()}
        if asked.get("list") == "search":
            query: dict[str, Any] = {"search": [{"ns": 0, "title": title} for title in self.hits]}
        else:
            title = asked["titles"]
            name = REDIRECTS.get(title, title)
            page = {"title": name, **PAGES[name]} if name in PAGES else {"title": name, "missing": True}
            query = {"pages": [page]} | ({"redirects": [{"from": title, "to": name}]} if name != title else {})
        body = json.dumps({"batchcomplete": True, "query": query}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        handler.wfile.write(head.encode() + body)


@pytest.fixture
def wiki() -> Iterator[Wiki]:
    with serving() as web:
        yield Wiki(web)


def live(wiki: Wiki, **options: Any) -> WikipediaArticlesTool:
    fetcher = Fetcher(WebConfig(seconds=5.0, allow=[wiki.web.host]))
    return WikipediaArticlesTool(MediaWiki(fetcher, wiki.web.url), **options)


def ask(tool: WikipediaArticlesTool, **arguments: Any) -> ToolResult:
    return asyncio.run(tool.call(arguments))


def found(result: ToolResult) -> dict[str, Any]:
    assert result.ok, result
    value = json.loads(result.output)
    assert list(value) == ["query", "relevant_pages", "other_pages"]
    assert all(tuple(page) == PAGE_KEYS for page in value["relevant_pages"])
    return value


def test_the_article_of_that_very_title_is_read(wiki: Wiki) -> None:
    """h003: github.com/goldsmith/Wikipedia/issues/295"""
    wiki.hits = [BY_ID["h003"]["input"]["title"]]
    (page,) = found(ask(live(wiki), query="Kale"))["relevant_pages"]
    assert page["title"] == BY_ID["h003"]["expected"]["page"] and "green cabbage" in page["retrieved_information"]
    assert "not instructions" in page["retrieved_information"] and page["url"] == f"{wiki.web.url}/wiki/Kale"


def test_a_redirect_is_told(wiki: Wiki) -> None:
    """h005: github.com/goldsmith/Wikipedia/issues/186"""
    wiki.hits = [BY_ID["h005"]["input"]["title"]]
    (page,) = found(ask(live(wiki), query="BSOD"))["relevant_pages"]
    assert page["title"] == BY_ID["h005"]["expected"]["page"]
    assert page["redirected_from"] == BY_ID["h005"]["expected"]["redirected_from"]


def test_an_ambiguous_title_comes_with_what_it_may_mean(wiki: Wiki) -> None:
    """h001: github.com/agno-agi/agno/pull/7222"""
    wiki.hits = ["Mercury"]
    result = ask(live(wiki), query=BY_ID["h001"]["input"]["query"])
    assert all(title in result.text for title in BY_ID["h001"]["expected"]["observation_contains"])
    assert found(result)["relevant_pages"][0]["error"].startswith("ambiguous")


def test_the_errors_of_pages_are_kept_and_spare_the_others(wiki: Wiki) -> None:
    wiki.hits = ["Gone", "Kale", "Empty", *(f"Other {number}" for number in range(20))]
    value = found(ask(live(wiki), query="kale"))
    assert [page["title"] for page in value["relevant_pages"]] == ["Gone", "Kale", "Empty"]
    assert [page["error"] for page in value["relevant_pages"]] == ["no article 'Gone'", "", "the article has no text"]
    assert len(value["other_pages"]) == 7


def test_nothing_found_and_a_failed_search_are_different_observations(wiki: Wiki) -> None:
    """h017: github.com/Datus-ai/Datus-agent/pull/1365; h008: github.com/jsvine/waybackpack/issues/31"""
    wiki.hits = []
    assert found(ask(live(wiki), query="zzz"))["relevant_pages"] == []
    assert "argument 'query'" in ask(live(wiki), **BY_ID["h017"]["input"]["arguments"]).error
    wiki.web.page("/w/api.php", b"<html>Forbidden</html>", "Content-Type: text/html", status="403 Forbidden")
    assert "403" in ask(live(wiki), query="x").error


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/html", b"<html>"),
        ("application/json", b"<html>"),
        ("application/json", b"[]"),
        ("application/json", b'{"query": []}'),
        ("application/json", b'{"error": {"code": "ratelimited", "info": "slow down"}}'),
        ("application/json", b"[" * 100_000),
    ],
)
def test_what_is_no_answer_of_the_api_is_an_error(wiki: Wiki, kind: str, body: bytes) -> None:
    wiki.web.page("/w/api.php", body, f"Content-Type: {kind}")
    result = ask(live(wiki), query="x")
    assert not result.ok and "not an answer of the MediaWiki API" in result.error


KEYS = st.sampled_from(["search", "pages", "title", "redirects", "links", "pageprops", "from"])


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner),
    )
)
def test_any_shape_of_an_answer_is_survived(query: Any) -> None:
    class Odd(MediaWiki):
        async def _query(self, **parameters: str) -> dict[str, Any]:
            return query if isinstance(query, dict) else {"search": [{"title": "A"}], "pages": query}

    result = ask(WikipediaArticlesTool(Odd(Fetcher(WebConfig()), "http://x")), query="x")
    assert json.loads(result.output) if result.ok else result.error


@pytest.mark.parametrize(
    ("reply", "titles"),
    [
        ('{"numbers": [5, 1, 5, 1, 2, 3]}', ["Empty", "Kale", "Kal"]),
        ('Those: {"numbers": [2]}', ["Kal"]),
        ('{"numbers": [99, 0, -1, true, "1"]}', ["Kale"]),
        ("I can't choose.", ["Kale"]),
    ],
)
def test_an_engine_chooses_and_its_choice_is_checked(wiki: Wiki, reply: str, titles: Sequence[str]) -> None:
    engine = ScriptedEngine(lambda request: reply if "Choose" in request.messages[0]["content"] else "Said.")
    pages = found(ask(live(wiki, engine=engine), query="x"))["relevant_pages"]
    assert [page["title"] for page in pages] == titles
    assert all(page["retrieved_information"] == "Said." for page in pages if not page["error"])


def test_the_result_is_whole_json_however_small(wiki: Wiki) -> None:
    for limit in (900, 1500, 3500):
        result = ask(live(wiki, max_output=limit), query="cabbage")
        assert len(result.output) <= limit and found(result)


def test_a_folder_is_an_encyclopedia_too(tmp_path: Path) -> None:
    (tmp_path / "Kale.txt").write_text("Kale is green.")
    (tmp_path / "Kal.md").write_text("Kal is a name.")
    tool = WikipediaArticlesTool(Corpus(BM25Index.from_folder(tmp_path)))
    (page,) = found(ask(tool, query="green kale"))["relevant_pages"]
    assert page["title"] == "Kale" and "Kale is green." in page["retrieved_information"] and page["url"] == "Kale.txt"
    assert found(ask(tool, query="zzz"))["relevant_pages"] == []


def test_passages_of_a_title() -> None:
    index = BM25Index(
        [Passage("2", "A b", "two"), Passage("1", "A b", "one"), Passage("3", "A c", "x"), Passage("4", "!", "y")]
    )
    assert [passage.id for passage in index.titled("A b")] == ["1", "2"]
    assert [passage.id for passage in index.titled("!")] == ["4"] and index.titled("a B") == []


def test_empty_documents_are_searched() -> None:
    """h014: github.com/deepset-ai/haystack/issues/11598"""
    for texts in (BY_ID["h014"]["input"]["docs"], []):
        index = BM25Index(Passage(str(number), "", text) for number, text in enumerate(texts))
        assert index.search(BY_ID["h014"]["input"]["query"], 5) == []


def test_a_match_has_a_positive_score() -> None:
    """h015: github.com/xhluca/bm25s/issues/127"""
    case = BY_ID["h015"]["input"]
    index = BM25Index(Passage(str(number), "", text) for number, text in enumerate(case["docs"]))
    scored = index.scored(case["query"], case["k"] * 100)
    assert [passage.text for passage, _ in scored] == BY_ID["h015"]["expected"]["top2"]
    assert scored[0][1] == scored[1][1] > 0


WORDS = st.sampled_from(["red", "god", "fox", "ant", "bee"])


@given(st.lists(st.lists(WORDS, max_size=6), min_size=1, max_size=8), st.lists(WORDS, min_size=1, max_size=3))
def test_scores_are_those_of_a_plain_bm25(documents: list[list[str]], query: list[str]) -> None:
    index = BM25Index(Passage(f"{number}", "", " ".join(words)) for number, words in enumerate(documents))
    average = sum(map(len, documents)) / len(documents)
    wanted = {}
    for number, words in enumerate(documents):
        total = 0.0
        for term in terms(" ".join(query)):
            holding = sum(term in other for other in documents)
            weight = max(1e-6, math.log((len(documents) - holding + 0.5) / (holding + 0.5)))
            count = words.count(term)
            total += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(words) / average)) if count else 0.0
        if total:
            wanted[f"{number}"] = total
    scores = {passage.id: score for passage, score in index.scored(" ".join(query), 100)}
    assert scores == pytest.approx(wanted)
