"""Any OpenAI-compatible chat endpoint, for frozen roles and judges.

The endpoint hides its tokens, so completions carry no ids and no log-probs and can't be trained on. The HTTP libraries
are imported, and the endpoint is contacted, when the first request is made.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import weakref
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from gruppo.config import Config
from gruppo.errors import ConfigError, EngineError
from gruppo.types import Completion, Request, StopReason

if TYPE_CHECKING:
    import ssl

    import httpx2
    import tenacity

_RETRIED = frozenset({408, 409, 429})  # and every 5xx
_OVERFLOW_STATUSES = frozenset({400, 413, 422})
_OVERFLOW_SIGNS = (  # how servers say that prompt plus limit do not fit
    "context_length_exceeded",
    "exceed_context_size",
    "maximum context length",
    "context window",
    "context size",
    "prompt is too long",
)
_OURS = {  # fields of a request -> what says what they are
    "model": "engines.<name>.model",
    "messages": "the team",
    "temperature": "roles.<name>.temperature",
    "top_p": "roles.<name>.top_p",
    "max_tokens": "roles.<name>.max_tokens",
    "max_completion_tokens": "roles.<name>.max_tokens",
    "stop": "roles.<name>.stop",
    "seed": "seed",
    "n": "the team, which reads one reply",
    "stream": "the engine, which reads whole replies",
    "tools": "the team, which reads calls itself",
    "tool_choice": "the team, which reads calls itself",
}
_MAX_DETAIL = 200  # characters of an endpoint's own words in our message
_SEED_RANGE = 2**31  # the widest that every server takes


class OpenAIConfig(Config):
    """Where the endpoint is and how patiently it is asked."""

    base_url: str
    """The address that "/chat/completions" is appended to, as in "http://localhost:8000/v1". A model in a
    folder has `folder` instead."""
    model: str = Field(min_length=1)
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """The environment variable that holds the API key; without it no key is sent."""
    timeout_seconds: float = Field(120.0, gt=0)
    """How long one try may take."""
    deadline_seconds: float = Field(600.0, gt=0)
    """How long one request may take with all its tries and waits."""
    max_retries: int = Field(5, ge=0)
    """How often a request is repeated after a connection error, a time-out, or status 408, 409, 429 or 5xx."""
    backoff_seconds: float = Field(1.0, gt=0)
    """The longest wait before the first retry; it doubles with each, and the wait is drawn at random below it."""
    max_concurrency: int = Field(16, ge=1)
    """How many requests are under way at once."""
    extra: dict[str, Any] = {}
    """Further fields of each request, as { chat_template_kwargs = { enable_thinking = false } } for Qwen3 at a vLLM or
    SGLang server."""

    @field_validator("extra")
    @classmethod
    def _check_extra(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := value.keys() & _OURS.keys():
            raise ValueError(f"{min(taken)!r} is set by {_OURS[min(taken)]}; leave it out here")
        return value

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str) -> str:
        if not re.fullmatch(r"https?://[^/\s@?#]+(/[^\s?#]*)?", value):
            raise ValueError("expected an http:// or https:// address without a password or query")
        return value


class _TryAgain(EngineError):
    """A failure that may pass; `after` is the least wait in seconds that the endpoint asked for."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


class OpenAIEngine:
    """Asks the endpoint for each request's next message.

    Messages with role "tool" are sent as "user": the endpoint's own tool protocol is not used. A prompt that does not
    fit the model is a Completion with `StopReason.context_overflow`.

    Raises ConfigError if the API key is missing or the request is for a trained policy, EngineError (one line, without
    the key) once the retries or the deadline are used up, or at once for what a retry can't mend.
    """

    def __init__(self, config: OpenAIConfig) -> None:
        self.config = config
        self._tls: ssl.SSLContext | None = None  # slow to make, so made once
        # One per event loop: a semaphore belongs to the loop that first waited on it.
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._slots = weakref.WeakKeyDictionary()
        self._key()  # a missing key should show before a run has begun

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        import httpx2

        for request in requests:
            if request.policy is not None:
                raise ConfigError(
                    f"role {request.context[2]!r} is trained (policy {request.policy!r}), but an OpenAI-compatible "
                    "endpoint plays frozen roles only: give the role a local or vllm engine"
                )
        self._tls = self._tls or httpx2.create_ssl_context()
        key = self._key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # A client belongs to its event loop too, so each call has its own; time-outs are set around each try.
        limits = httpx2.Limits(max_connections=None)  # `max_concurrency` is the limit
        async with httpx2.AsyncClient(headers=headers, verify=self._tls, timeout=None, limits=limits) as client:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._answer(client, request)) for request in requests]
            except ExceptionGroup as failures:  # the first one stopped the others
                raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _answer(self, client: httpx2.AsyncClient, request: Request) -> Completion:
        slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.config.max_concurrency))
        async with slots:
            start = time.monotonic()
            try:
                async with asyncio.timeout(self.config.deadline_seconds):
                    text, reason = await self._retry(client, self._payload(request))
            except TimeoutError:
                raise EngineError(f"{self._place}: no answer within {self.config.deadline_seconds:g} s") from None
        prompt = "\n".join(f"{message['role']}: {message['content']}" for message in request.messages)
        return Completion(prompt, (), (), (), text, reason, seconds=time.monotonic() - start)

    async def _retry(self, client: httpx2.AsyncClient, payload: dict[str, Any]) -> tuple[str, StopReason]:
        import tenacity

        jitter = tenacity.wait_random_exponential(multiplier=self.config.backoff_seconds, max=60)

        def wait(state: tenacity.RetryCallState) -> float:
            failure = state.outcome.exception() if state.outcome else None
            return (failure.after if isinstance(failure, _TryAgain) else 0.0) + jitter(state)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_TryAgain),
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(self.config.max_retries + 1),
                tenacity.stop_before_delay(self.config.deadline_seconds),
            ),
            wait=wait,
            sleep=asyncio.sleep,
            reraise=True,
        )
        return await retrying(self._try, client, payload)

    async def _try(self, client: httpx2.AsyncClient, payload: dict[str, Any]) -> tuple[str, StopReason]:
        import httpx2

        try:
            async with asyncio.timeout(self.config.timeout_seconds):
                response = await client.post(f"{self.config.base_url.rstrip('/')}/chat/completions", json=payload)
        except TimeoutError:
            raise _TryAgain(f"{self._place}: no answer within {self.config.timeout_seconds:g} s") from None
        except httpx2.TransportError as error:
            raise _TryAgain(f"{self._place}: {type(error).__name__}: {self._clean(str(error))}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:  # an unreadable body, a malformed address
            raise EngineError(f"{self._place}: {type(error).__name__}: {self._clean(str(error))}") from None
        if response.is_success:
            return self._read(response)
        said = response.text
        if response.status_code in _OVERFLOW_STATUSES and any(sign in said.lower() for sign in _OVERFLOW_SIGNS):
            return "", StopReason.context_overflow
        message = f"{self._place}: status {response.status_code}: {self._clean(said) or response.reason_phrase}"
        if response.status_code in _RETRIED or response.status_code >= 500:
            raise _TryAgain(message, _seconds_to_wait(response.headers.get("retry-after", "")))
        raise EngineError(message)

    def _payload(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        payload: dict[str, Any] = {
            "model": self.config.model,
            "messages": [
                {"role": "user" if message["role"] == "tool" else message["role"], "content": message["content"]}
                for message in request.messages
            ],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed % _SEED_RANGE,
        }
        return payload | ({"stop": list(sampling.stop)} if sampling.stop else {}) | self.config.extra

    def _read(self, response: httpx2.Response) -> tuple[str, StopReason]:
        try:
            choice = response.json()["choices"][0]
            text, finish = choice["message"]["content"], choice.get("finish_reason")
            if text is not None and not isinstance(text, str):
                raise TypeError("content is not text")
        except (ValueError, LookupError, TypeError, AttributeError):  # not JSON, or not of this shape
            said = self._clean(response.text) or "nothing"
            raise EngineError(f"{self._place}: expected a chat completion, got: {said}") from None
        if finish == "content_filter":
            raise EngineError(f"{self._place}: the endpoint withheld the reply (content_filter)")
        return text or "", StopReason.length if finish == "length" else StopReason.stop

    @property
    def _place(self) -> str:
        return f"{self.config.model} at {self.config.base_url}"

    def _key(self) -> str:
        name = self.config.api_key_env
        if name is None:
            return ""
        key = os.environ.get(name, "").strip()
        if not key:
            raise ConfigError(f"api_key_env = {name!r}: this environment variable is not set")
        if not (key.isascii() and key.isprintable()):  # the HTTP library would show the key in its complaint
            raise ConfigError(f"api_key_env = {name!r}: its value holds characters that no API key has")
        return key

    def _clean(self, said: str) -> str:
        """Foreign words on one short line, without the key."""
        key = self._key()
        line = " ".join((said.replace(key, "***") if key else said).split())
        return line if len(line) <= _MAX_DETAIL else line[: _MAX_DETAIL - 1] + "…"


def _seconds_to_wait(retry_after: str) -> float:
    """A Retry-After header, in seconds or as a date; 0 if it is neither."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
