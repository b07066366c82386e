"""The Google tool against a local server: citations, the mock, retries, and what may not leak."""

from __future__ import annotations

import asyncio
import json
import socketserver
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_web import LocalWeb, serving

from gruppo.errors import ConfigError, ToolError
from gruppo.tools.google import GoogleConfig, GoogleTool, cited
from gruppo.types import ToolResult

PATH = "/v1beta/models/gemini-2.5-flash:generateContent"
SOURCES = [{"web": {"uri": "https://a.org/x", "title": "A"}}, {"web": {"uri": "https://b.org/", "title": "B"}}]


def answer(text: str, *ends: tuple[int, list[int]], sources: Any = SOURCES) -> dict[str, Any]:
    supports = [{"segment": {"endIndex": end}, "groundingChunkIndices": chunks} for end, chunks in ends]
    grounding = {"groundingChunks": sources, "groundingSupports": supports}
    return {"candidates": [{"content": {"parts": [{"text": text}]}, "groundingMetadata": grounding}]}


ANSWER = answer("Café is good. So is tea.", (14, [0, 1]), (25, [1]))


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalWeb]:
    monkeypatch.setenv("GOOGLE_API_KEY", "top-secret-key")
    with serving() as server:
        server.page(PATH, json.dumps(ANSWER).encode(), "Content-Type: application/json")
        yield server


def ask(web: LocalWeb, query: Any = "tea", **values: Any) -> ToolResult:
    options = {"base_url": f"{web.url}/v1beta", "timeout_seconds": 0.5, "backoff_seconds": 0.01, "max_retries": 2}
    return asyncio.run(GoogleTool(GoogleConfig(**options | values)).call({"query": query}))


def test_parts_of_the_answer_are_cited(web: LocalWeb) -> None:
    shown = "Café is good.[1](https://a.org/x)[2](https://b.org/) So is tea.[2](https://b.org/)"
    assert ask(web).output == f"{shown}\n\nSources:\n[1] A https://a.org/x\n[2] B https://b.org/"
    assert cited(ANSWER, add_citations=False) == "Café is good. So is tea."
    assert json.loads(web.bodies[0])["tools"] == [{"google_search": {}}]
    path, headers = web.asked[0]
    assert headers["x-goog-api-key"] == "top-secret-key" and "key" not in path


def test_without_a_key_it_is_a_mock_that_says_so(web: LocalWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", " ")
    result = ask(web)
    assert result.ok and result.output.startswith("[mock: no search was made") and not web.asked


def test_failures_that_may_pass_are_retried(web: LocalWeb) -> None:
    body = json.dumps(ANSWER).encode()
    later = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    firsts = [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 429 Slow\r\nRetry-After: 0\r\n\r\n"]

    def in_turn(handler: socketserver.StreamRequestHandler) -> None:
        handler.wfile.write([*firsts, later][len(web.asked) - 1])

    web.answers[PATH] = in_turn
    assert ask(web).ok and len(web.asked) == 3


@pytest.mark.parametrize(
    ("status", "asked"), [("500 Oops", 3), ("429 Slow", 3), ("400 Bad", 1), ("401 No", 1), ("403 No", 1)]
)
def test_a_service_that_fails_is_a_failure_of_the_tool(web: LocalWeb, status: str, asked: int) -> None:
    web.page(PATH, b"the key top-secret-key\nis wrong", status=status)
    with pytest.raises(ToolError, match=status[:3]) as caught:
        ask(web)
    assert len(web.asked) == asked and "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_service_that_hangs_or_talks_nonsense_ends_in_time(web: LocalWeb) -> None:
    web.answers[PATH] = lambda handler: web.stop.wait(20) and None
    started = time.monotonic()
    with pytest.raises(ToolError, match=r"no answer within 0\.2 s"):
        ask(web, timeout_seconds=0.2)
    with pytest.raises(ToolError, match=r"no answer within 0\.3 s"):
        ask(web, timeout_seconds=5.0, deadline_seconds=0.3)
    assert time.monotonic() - started < 8
    for body in (b"<html>", b"[]", b"\xff"):
        web.page(PATH, body)
        with pytest.raises(ToolError, match="expected a JSON object"):
            ask(web)
    web.page(PATH, b'{"candidates": []}')
    assert ask(web) == ToolResult(False, error="no answer to 'tea'")


def test_wrong_arguments_and_a_malformed_key_are_named(web: LocalWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(web, query="").error == "argument 'query' has 0 characters, expected 1 to 2000"
    assert "expected a string" in ask(web, query=["a", "b"]).error
    monkeypatch.setenv("GOOGLE_API_KEY", "a\nb")
    with pytest.raises(ConfigError, match="GOOGLE_API_KEY") as caught:
        ask(web)
    assert "a\nb" not in str(caught.value)


@given(
    st.text(max_size=10), st.lists(st.tuples(st.integers(-5, 40), st.lists(st.integers(-2, 3), max_size=3)), max_size=4)
)
def test_citations_never_break_the_text(text: str, ends: list[tuple[int, list[int]]]) -> None:
    shown = cited(answer(text, *ends)).partition("\n\nSources:")[0]
    for mark in ("[1](https://a.org/x)", "[2](https://b.org/)"):
        shown = shown.replace(mark, "")
    assert shown.strip() == text.strip()


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2)))
def test_any_shape_of_an_answer_is_read(value: Any) -> None:
    grounding = {"groundingChunks": value, "groundingSupports": value}
    grounded = {"content": {"parts": [{"text": "x"}]}, "groundingMetadata": grounding}
    for candidates in (value, [value], [{"content": value}], [grounded]):
        assert isinstance(cited({"candidates": candidates}), str)
    assert isinstance(cited(answer("x", (1, [0]), sources=value)), str)
