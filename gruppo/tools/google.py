"""The Google tool: Gemini answers from Google's search, with citations. Without an API key it says that it is a mock.

It sends the agent's query, and nothing else of an episode, to the configured address.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gruppo.config import Config
from gruppo.errors import ConfigError, ToolError
from gruppo.tools.base import MAX_OUTPUT
from gruppo.tools.card import ToolCard
from gruppo.tools.schema import check_arguments, coerced, cut
from gruppo.types import CallContext, ToolResult

if TYPE_CHECKING:
    import httpx2
    import tenacity

_RETRIED = frozenset({408, 429})  # and every 5xx
MAX_QUERY = 2_000

CARD = ToolCard(
    name="Ground_Google_Search_Tool",
    description="Searches the web with Google and answers from what it finds, with citations.",
    inputs={
        "query": "string: what to search for",
        "add_citations": "boolean: whether to cite the sources as [n](address); true if it is left out",
    },
    output="the answer as text, with its sources",
    examples={
        "recent facts": '{"query": "Who won the 2022 World Cup?"}',
        "without sources": '{"query": "capital of Peru", "add_citations": false}',
    },
    limits=(
        "the answer is written by a model: check what matters at its source",
        "finds what is public and indexed only",
        "without an API key it is a mock and says so",
    ),
    best_practices=(
        "use it for recent or specific facts; use a page tool to read a source",
        "write a search query, not a task: one fact per call",
    ),
)


class GoogleConfig(Config):
    """Where and how patiently Google is asked."""

    model: str = Field("gemini-2.5-flash", min_length=1)
    """The Gemini model."""
    base_url: str = Field("https://generativelanguage.googleapis.com/v1beta", pattern=r"^https?://[^/\s@?#]+[^\s?#]*$")
    """The address that "/models/..." is appended to."""
    api_key_env: str = "GOOGLE_API_KEY"
    """The environment variable that holds the API key; if it is not set the tool is a mock."""
    timeout_seconds: float = Field(30.0, gt=0)
    """How long one try may take."""
    deadline_seconds: float = Field(90.0, gt=0)
    """How long a search may take with all its tries and waits."""
    max_retries: int = Field(5, ge=0)
    """How often a search is repeated after a connection error, a time-out, or status 408, 429 or 5xx."""
    backoff_seconds: float = Field(1.0, gt=0)
    """The longest wait before the first retry; it doubles with each, and the wait is drawn at random below it."""


class _TryAgain(Exception):
    """A failure that may pass; `after` is the least wait in seconds that was asked for."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


class GoogleTool:
    """`Ground_Google_Search_Tool(query, add_citations)`."""

    name = CARD.name
    card = CARD
    description = CARD.text()
    schema: Mapping[str, Any] = CARD.schema(optional=("add_citations",))

    def __init__(self, config: GoogleConfig, max_output: int = MAX_OUTPUT) -> None:
        self.config, self.max_output = config, max_output
        self._tls: ssl.SSLContext | None = None  # slow to make, so made once
        self._key()  # a malformed key should show before a run has begun

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Search. Raises ToolError, one line without the key, once the retries are used up or if they can't help."""
        arguments = coerced(arguments, self.schema)
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        query = arguments["query"]
        if not query.strip() or len(query) > MAX_QUERY:
            return ToolResult(False, error=f"argument 'query' has {len(query)} characters, expected 1 to {MAX_QUERY}")
        if not self._key():
            return ToolResult(True, self._mock(query))
        try:
            async with asyncio.timeout(self.config.deadline_seconds):
                answer = await self._retry(query)
        except TimeoutError:
            raise ToolError(f"{self._place}: no answer within {self.config.deadline_seconds:g} s") from None
        except _TryAgain as error:
            raise ToolError(str(error)) from None
        text = cited(answer, arguments.get("add_citations", True))
        if not text:
            return ToolResult(False, error=f"no answer to {cut(query, 200)!r}")
        return ToolResult(True, cut(text, self.max_output))

    def _mock(self, query: str) -> str:
        why = f"the environment variable {self.config.api_key_env} is not set"
        return f"[mock: no search was made, since {why}] A search for {cut(query, 200)!r} would be answered here."

    async def _retry(self, query: str) -> dict[str, Any]:
        import httpx2
        import tenacity

        jitter = tenacity.wait_random_exponential(multiplier=self.config.backoff_seconds, max=30)

        def wait(state: tenacity.RetryCallState) -> float:
            failure = state.outcome.exception() if state.outcome else None
            return (failure.after if isinstance(failure, _TryAgain) else 0.0) + jitter(state)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_TryAgain),
            stop=tenacity.stop_after_attempt(self.config.max_retries + 1),
            wait=wait,
            sleep=asyncio.sleep,
            reraise=True,
        )
        self._tls = self._tls or httpx2.create_ssl_context()
        async with httpx2.AsyncClient(verify=self._tls, timeout=None) as client:
            return await retrying(self._try, client, query)

    async def _try(self, client: httpx2.AsyncClient, query: str) -> dict[str, Any]:
        import httpx2

        url = f"{self.config.base_url.rstrip('/')}/models/{self.config.model}:generateContent"
        body = {"contents": [{"role": "user", "parts": [{"text": query}]}], "tools": [{"google_search": {}}]}
        try:
            async with asyncio.timeout(self.config.timeout_seconds):
                response = await client.post(url, json=body, headers={"x-goog-api-key": self._key()})
        except TimeoutError:
            raise _TryAgain(f"{self._place}: no answer within {self.config.timeout_seconds:g} s") from None
        except httpx2.HTTPError as error:
            raise _TryAgain(f"{self._place}: {type(error).__name__}: {self._clean(str(error))}") from None
        if not response.is_success:
            message = f"{self._place}: status {response.status_code}: {self._clean(response.text)}"
            if response.status_code in _RETRIED or response.status_code >= 500:
                after = response.headers.get("retry-after", "")
                raise _TryAgain(message, float(after) if after.isdecimal() else 0.0)
            raise ToolError(message)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ToolError(f"{self._place}: expected a JSON object, got: {self._clean(response.text)}")
        return answer

    @property
    def _place(self) -> str:
        return f"{self.config.model} at {self.config.base_url}"

    def _key(self) -> str:
        key = os.environ.get(self.config.api_key_env, "").strip()
        if not (key.isascii() and key.isprintable()):  # the HTTP library would show the key in its complaint
            raise ConfigError(f"api_key_env = {self.config.api_key_env!r}: its value holds characters that no key has")
        return key

    def _clean(self, said: str) -> str:
        """Foreign words on one short line, without the key."""
        key = self._key()
        return cut(" ".join((said.replace(key, "***") if key else said).split()), 200)


def cited(answer: Mapping[str, Any], add_citations: bool = True) -> str:
    """The text of Gemini's answer; with [n](address) behind each part that has sources, and a list of them."""
    candidate = _dict(_at(answer.get("candidates"), 0))
    parts = _list(_dict(candidate.get("content")).get("parts"))
    text = "".join(str(_dict(part).get("text", "")) for part in parts if not _dict(part).get("thought"))
    if not add_citations or not text:
        return text.strip()
    grounding = _dict(candidate.get("groundingMetadata"))
    sources = [_dict(_dict(chunk).get("web")) for chunk in _list(grounding.get("groundingChunks"))]
    ends: dict[int, list[int]] = {}
    encoded = text.encode("utf-8", "replace")
    for support in map(_dict, _list(grounding.get("groundingSupports"))):
        end = _dict(support.get("segment")).get("endIndex")  # in bytes
        cites = [n for n in _list(support.get("groundingChunkIndices")) if type(n) is int and 0 <= n < len(sources)]
        if type(end) is int and 0 <= end <= len(encoded):
            ends.setdefault(end, []).extend(cites)
    for end in sorted(ends, reverse=True):  # from the end backwards, so that the places stay right
        marks = "".join(f"[{n + 1}]({_url(sources[n])})" for n in sorted(set(ends[end])) if _url(sources[n]))
        while end < len(encoded) and encoded[end] & 0xC0 == 0x80:  # not inside a character
            end += 1
        encoded = encoded[:end] + marks.encode("utf-8", "replace") + encoded[end:]
    known = [(number, source) for number, source in enumerate(sources, 1) if _url(source)]
    listed = [f"[{number}] {source.get('title') or ''} {_url(source)}" for number, source in known]
    return encoded.decode("utf-8", "replace").strip() + ("\n\nSources:\n" + "\n".join(listed) if listed else "")


def _url(source: Mapping[str, Any]) -> str:
    url = str(source.get("uri", ""))
    return url if url.startswith(("http://", "https://")) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, list) and len(value) > index else None
