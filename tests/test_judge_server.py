"""A judge behind a real local server that is down, slow, busy, broken or refuses, in the middle of a rollout.

Each fault ends as its outcome, in bounded time, and the episodes of the other tasks are unharmed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from test_openai_engine import Server, completion, failure, serving
from test_rollout import Counting, Relay, make, tasks

from gruppo.engines.openai import OpenAIConfig, OpenAIEngine
from gruppo.errors import ConfigError
from gruppo.rewards.judge import Judge, JudgeConfig
from gruppo.rewards.rules import is_equal
from gruppo.rollout import Rollout
from gruppo.types import Episode, Group, Outcome, Task

RIGHT = completion('{"reason": "same", "correct": true}')
MODES = pytest.mark.parametrize("mode", ["lockstep", "async"])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with serving() as server:
        yield server


def judge_at(url: str, engine: dict[str, Any] | None = None, **settings: Any) -> Judge:
    patience = {"backoff_seconds": 0.01, "max_retries": 1, "timeout_seconds": 0.5, "deadline_seconds": 2.0}
    endpoint = OpenAIEngine(OpenAIConfig(base_url=url, model="m", **patience | (engine or {})))
    config = {"engine": "judge", "backoff_seconds": 0.01, "retries": 1, "max_seconds": 5.0} | settings
    return Judge(endpoint, f"m at {url}", JudgeConfig(**config), is_equal)


def played(judge: Judge, mode: str = "lockstep", names: str = "abc", **config: Any) -> list[Group]:
    """Two attempts per task; everybody answers with the name of the task."""
    rollout: Rollout = make(Relay(), Counting(), mode=mode, retries=0, **config)
    return replace(rollout, rewards={"judge": (judge, 1.0)}).collect(tasks(*names), 2, 0, "step")


def episodes_of(groups: list[Group], task: str) -> list[Episode]:
    return next(group for group in groups if group.task.id == task).episodes


def by_task(server: Server, fault: Callable[[], Any]) -> Callable[[], Any]:
    """`fault` where the judge is asked about task b, a verdict elsewhere."""

    def reply() -> Any:
        # The request that is being answered is among those under way; which one, its own thread does not know.
        asked = server.seen[-1]["messages"][1]["content"]
        return fault() if "Say b." in asked else RIGHT

    return reply


FAULTS: dict[str, tuple[Callable[[Server], Any], str]] = {
    "slow": (lambda server: (server.released.wait(20), RIGHT)[1], "no answer within"),
    "429": (lambda server: failure(429, "busy", **{"retry-after": "0.05"}), "status 429: "),
    "500": (lambda server: failure(500, "oops"), "status 500: "),
    "refused at the door": (lambda server: failure(401, "who are you?"), "status 401: "),
    "not JSON": (lambda server: (200, "<html>hello</html>", {}), "expected a chat completion"),
    "another shape": (lambda server: (200, '{"choices": []}', {}), "expected a chat completion"),
    "a hang-up": (lambda server: (None, "", {}), "Error"),
    "no JSON verdict": (lambda server: completion('{"correct": tru'), "can't read the reply"),
    "a refusal": (lambda server: completion("I can't help with grading people."), "can't read the reply"),
    "nothing": (lambda server: completion(""), "can't read the reply ''"),
    "null": (lambda server: completion(None), "can't read the reply ''"),
    "cut off": (lambda server: completion("<think>Let us", "length"), "cut off at 1024 tokens"),
    "withheld": (lambda server: completion("x", "content_filter"), "withheld"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_outcome_and_the_others_are_unharmed(server: Server, name: str) -> None:
    fault, error = FAULTS[name]
    server.replies = [by_task(server, lambda: fault(server))]
    started = time.monotonic()
    groups = played(judge_at(server.url, max_concurrency=1), "async")
    assert time.monotonic() - started < 30
    for task in "ac":
        assert [(e.outcome, e.reward) for e in episodes_of(groups, task)] == [(Outcome.completed, 1.0)] * 2
    for episode in episodes_of(groups, "b"):
        assert (episode.outcome, episode.reward) == (Outcome.judge_failed, None)
        assert error in episode.error and episode.answer and len(episode.turns) == 2, episode.error
        assert episode.scores["judge"].value is None and "\n" not in episode.error


def test_a_judge_that_is_down_fails_every_episode_and_ends_nothing() -> None:
    with socket.socket() as bound:  # a port that nobody serves
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        groups = played(judge_at(url))
    assert {e.outcome for group in groups for e in group.episodes} == {Outcome.judge_failed}
    assert {e.reward for group in groups for e in group.episodes} == {None}


def test_a_judge_that_recovers_is_asked_again(server: Server) -> None:
    server.replies = [failure(429, **{"retry-after": "0.05"}), failure(503), completion("hm"), RIGHT]
    judge = judge_at(server.url, engine={"max_retries": 3}, max_concurrency=1)
    (group,) = played(judge, names="a")
    assert [episode.reward for episode in group.episodes] == [1.0, 1.0] and judge.counts["calls"] == 3


def test_a_missing_key_ends_the_run_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        judge_at("http://127.0.0.1:9/v1", engine={"api_key_env": "NO_SUCH_KEY"})


# ---- on the loop of the rollout -------------------------------------------------------------------------------------


class Gate:
    """An asynchronous reward that keeps one task waiting until the others have been scored."""

    def __init__(self, waiting: str, others: int) -> None:
        self.waiting, self.others, self.ended = waiting, others, list[str]()

    async def __call__(self, task: Task, episodes: list[Episode]) -> list[float]:
        while task.id == self.waiting and len(self.ended) < self.others:
            await asyncio.sleep(0.001)
        self.ended.append(task.id)
        return [1.0] * len(episodes)


@MODES
def test_a_slow_judge_of_one_group_holds_nobody_else(mode: str) -> None:
    gate = Gate("a", others=3)
    rollout = replace(make(Relay(), Counting(), mode=mode, max_concurrent=2), rewards={"gate": (gate, 1.0)})
    streamed = [group.task.id for group in rollout.stream(tasks(*"abcd"), 2, 0, "step")]
    assert gate.ended[-1] == "a" and sorted(gate.ended) == list("abcd")
    assert streamed == (list("abcd") if mode == "lockstep" else gate.ended), "lockstep keeps the order of the tasks"


@MODES
def test_a_judge_that_never_answers_meets_the_deadline(mode: str) -> None:
    groups = replace(
        make(Relay(), Counting(), mode=mode, max_judge_seconds=0.2), rewards={"gate": (Gate("a", 99), 1.0)}
    ).collect(tasks(*"ab"), 2, 0, "step")
    assert {e.outcome for e in groups[0].episodes} == {Outcome.judge_failed}
    assert groups[0].episodes[0].scores["gate"].reason == "no verdict: it took too long"
    assert [e.reward for e in groups[1].episodes] == [1.0, 1.0]


@MODES
def test_a_stream_that_is_left_early_leaves_no_judge_behind(mode: str) -> None:
    ended: list[str] = []

    async def endless(task: Task, episodes: list[Episode]) -> list[float]:
        try:
            await asyncio.sleep(0 if task.id == "a" else 3600)
        finally:
            ended.append(task.id)
        return [1.0] * len(episodes)

    stream = replace(make(Relay(), Counting(), mode=mode), rewards={"r": (endless, 1.0)}).stream(
        tasks(*"abc"), 2, 0, "step"
    )
    assert next(stream).task.id == "a"
    stream.close()  # type: ignore[attr-defined]
    assert sorted(ended) == list("abc")


def test_judged_rollouts_repeat(server: Server) -> None:
    server.replies = [RIGHT]
    seen: list[list[Any]] = []
    for _ in range(2):
        groups = played(judge_at(server.url))
        seen.append([(e.reward, e.scores, [t.text for t in e.turns]) for g in groups for e in g.episodes])
    assert seen[0] == seen[1]
    asked = [str(request["messages"]) for request in server.seen]
    assert len(asked) == 12 and sorted(asked[:6]) == sorted(asked[6:])


def test_the_request_holds_what_the_config_says(server: Server) -> None:
    server.replies = [RIGHT]
    played(judge_at(server.url, temperature=0.3, max_tokens=77), names="a")
    sent, _ = server.seen
    assert (sent["temperature"], sent["max_tokens"], sent["model"]) == (0.3, 77, "m")
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
