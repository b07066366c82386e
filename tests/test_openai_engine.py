"""The OpenAI-compatible engine against a real local server: what is sent, retried, given up, and never shown."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gruppo.config import load
from gruppo.engines.openai import OpenAIConfig, OpenAIEngine
from gruppo.errors import ConfigError, EngineError
from gruppo.types import Completion, Request, Sampling, StopReason

KEY = "sk-very-secret"


class Server:
    """Plays `replies` in order, the last one for ever: (status, body, headers), or a function to call instead."""

    def __init__(self) -> None:
        self.replies: list[Any] = [completion("hi")]
        self.seen: list[dict] = []
        self.headers: list[dict] = []
        self.busy = self.most_busy = 0
        self.lock = threading.Lock()
        self.released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with server.lock:
                    server.busy += 1
                    server.most_busy = max(server.most_busy, server.busy)
                    server.seen.append(json.loads(body) | {"path": self.path})
                    server.headers.append({name.lower(): value for name, value in self.headers.items()})
                    reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
                status, text, headers = reply() if callable(reply) else reply
                with server.lock:
                    server.busy -= 1
                if status is None:  # hang up
                    return
                self.send_response(status)
                for name, value in ({"content-length": str(len(text.encode()))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


def completion(text: str | None, finish: str = "stop") -> tuple[int, str, dict]:
    return 200, json.dumps({"choices": [{"message": {"content": text}, "finish_reason": finish}]}), {}


def failure(status: int, message: str = "", code: str | None = None, **headers: str) -> tuple[int, str, dict]:
    return status, json.dumps({"error": {"message": message, "code": code}}), headers


@contextmanager
def serving() -> Iterator[Server]:
    """A server until the block ends."""
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.released.set()
    server.http.shutdown()
    server.http.server_close()
    thread.join()


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("GRUPPO_TEST_KEY", f" {KEY}\n")
    with serving() as server:
        yield server


def engine(server: Server, **settings: Any) -> OpenAIEngine:
    settings = {"backoff_seconds": 0.01, "max_retries": 2, "api_key_env": "GRUPPO_TEST_KEY"} | settings
    return OpenAIEngine(OpenAIConfig(base_url=server.url, model="m", **settings))


def request(policy: str | None = None, seed: int = 5, **sampling: Any) -> Request:
    messages = [{"role": "user", "content": "hello"}, {"role": "tool", "content": "4"}]
    return Request(messages, Sampling(**sampling), seed, policy, ("t", 0, "judge", 0))


def ask(engine: OpenAIEngine, *requests: Request) -> list[Completion]:
    return asyncio.run(engine.generate(requests or [request()]))


def refused(engine: OpenAIEngine, *requests: Request) -> str:
    with pytest.raises(EngineError) as caught:
        ask(engine, *requests)
    assert "\n" not in str(caught.value) and KEY not in repr(caught.value.__dict__) + str(caught.value)
    assert len(str(caught.value)) < 400
    return str(caught.value)


def test_what_is_sent_and_what_comes_back(server):
    (done,) = ask(engine(server), request(seed=2**31 + 5, temperature=0.3, top_p=0.9, max_tokens=7, stop=("END",)))
    assert server.seen == [
        {
            "path": "/v1/chat/completions",
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}, {"role": "user", "content": "4"}],
            "temperature": 0.3,
            "top_p": 0.9,
            "max_tokens": 7,
            "seed": 5,
            "stop": ["END"],
        }
    ]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert (done.text, done.stop_reason, done.ids, done.logprobs, done.prompt_ids) == (
        "hi",
        StopReason.stop,
        (),
        (),
        (),
    )
    assert done.seconds > 0 and "hello" in done.prompt


def test_without_a_key_or_stop_strings_none_are_sent(server):
    ask(engine(server, api_key_env=None))
    assert "authorization" not in server.headers[0] and "stop" not in server.seen[0]


def test_answers_come_in_order_with_a_bounded_number_under_way_in_any_number_of_event_loops(server):
    def echo() -> tuple[int, str, dict]:
        time.sleep(0.02)
        return completion("hi")

    server.replies = [echo]
    patient = engine(server, max_concurrency=2)

    async def many() -> int:
        calls = [patient.generate([request(), request()]) for _ in range(3)]
        return sum(len(done) for done in await asyncio.gather(*calls))

    assert [asyncio.run(many()) for _ in range(2)] == [6, 6]
    assert server.most_busy == 2
    server.replies = [completion("a"), completion("b")]
    assert [done.text for done in ask(engine(server, max_concurrency=1), request(), request())] == ["a", "b"]


def test_lengths(server):
    server.replies = [completion(None, "length")]
    assert ask(engine(server))[0].stop_reason is StopReason.length
    server.replies = [failure(400, "This model's maximum context length is 10 tokens", "context_length_exceeded")]
    (done,) = ask(engine(server))
    assert (done.text, done.stop_reason) == ("", StopReason.context_overflow)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_a_failure_that_passes_is_retried(server, status):
    server.replies = [failure(status), completion("at last")]
    assert ask(engine(server))[0].text == "at last" and len(server.seen) == 2


def test_a_server_that_hangs_up_is_retried(server):
    server.replies = [(None, "", {}), completion("at last")]
    assert ask(engine(server))[0].text == "at last"


def test_retries_end(server):
    server.replies = [failure(500, "out\nof luck")]
    assert refused(engine(server)).startswith(f"m at {server.url}: status 500: ")
    assert len(server.seen) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 307])
def test_what_a_retry_can_not_mend_is_not_retried_and_the_key_is_not_shown(server, status):
    server.replies = [failure(status, f"bad key {KEY} " + "x" * 1000)]
    assert "bad key ***" in refused(engine(server)) and len(server.seen) == 1


def test_retry_after_is_honoured_in_seconds_and_as_a_date(server):
    server.replies = [failure(429, **{"retry-after": "0.3"}), completion("hi")]
    start = time.monotonic()
    ask(engine(server))
    assert time.monotonic() - start >= 0.3
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    server.replies = [failure(429, "come back later", **{"retry-after": date})]
    start = time.monotonic()
    assert "come back later" in refused(engine(server, deadline_seconds=5)), "no use waiting beyond the deadline"
    assert time.monotonic() - start < 2
    server.replies = [failure(429, **{"retry-after": "soon"}), completion("hi")]
    assert ask(engine(server))[0].text == "hi"


def hang(server: Server) -> Callable[[], tuple[None, str, dict]]:
    return lambda: (server.released.wait(5), (None, "", {}))[1]


def test_a_hanging_try_is_given_up_and_retried(server):
    server.replies = [hang(server), completion("hi")]
    start = time.monotonic()
    assert ask(engine(server, timeout_seconds=0.2))[0].text == "hi"
    assert 0.2 <= time.monotonic() - start < 2


def test_all_tries_together_have_a_deadline(server):
    server.replies = [hang(server)]
    start = time.monotonic()
    assert refused(engine(server, deadline_seconds=0.3)).endswith("no answer within 0.3 s")
    assert time.monotonic() - start < 2


def test_one_failure_stops_the_other_requests_of_the_call(server):
    server.replies = [failure(401), hang(server)]
    start = time.monotonic()
    assert "status 401" in refused(engine(server), request(), request())
    assert time.monotonic() - start < 2


def test_nobody_listens(server):
    settings = OpenAIConfig(base_url="http://127.0.0.1:9", model="m", max_retries=1, backoff_seconds=0.01)
    assert "ConnectError" in refused(OpenAIEngine(settings))


@pytest.mark.parametrize(
    "body",
    [
        *("{oops", "", "[]", "{}", '{"choices": []}'),
        *('{"choices": [{"message": null}]}', '{"choices": [{"message": {"content": 3}}]}'),
    ],
)
def test_an_answer_that_is_no_completion(server, body):
    server.replies = [(200, body, {})]
    assert "expected a chat completion, got: " in refused(engine(server)) and len(server.seen) == 1


def test_a_body_that_can_not_be_decoded(server):
    server.replies = [(200, "not gzip", {"content-encoding": "gzip"})]
    assert "DecodingError" in refused(engine(server))


def test_a_withheld_answer_is_the_endpoints_failure(server):
    server.replies = [completion(None, "content_filter")]
    assert "withheld" in refused(engine(server))


def test_a_trained_role_is_refused(server):
    with pytest.raises(ConfigError, match="role 'judge' is trained .policy 'p'.*frozen roles only"):
        ask(engine(server), request(policy="p"))
    assert not server.seen


def test_a_key_that_is_missing_or_no_key_is_refused_without_showing_it(server, monkeypatch):
    with pytest.raises(ConfigError, match="api_key_env = 'NO_SUCH_KEY': this environment variable is not set"):
        engine(server, api_key_env="NO_SUCH_KEY")
    monkeypatch.setenv("GRUPPO_TEST_KEY", f"{KEY}\né")
    with pytest.raises(ConfigError) as caught:
        engine(server)
    assert KEY not in str(caught.value)


def test_further_fields_are_sent_as_they_are(server):
    thinking = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 20}
    ask(engine(server, extra=thinking))
    assert {key: server.seen[0][key] for key in thinking} == thinking and server.seen[0]["model"] == "m"


@pytest.mark.parametrize(
    "address", ["localhost:8000", "ftp://x", "http://", "http://user:word@host/v1", "http://x/v1?a=b"]
)
def test_an_address_that_is_none(address):
    with pytest.raises(ConfigError, match="base_url = .*: expected an http:// or https:// address"):
        load(OpenAIConfig, (), {"base_url": address, "model": "m"})


def test_the_http_libraries_are_imported_when_they_are_used():
    code = "import sys, gruppo.engines.openai; print(sorted({'httpx2', 'tenacity', 'torch'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
