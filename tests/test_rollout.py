"""The rollout: order, batches that ignore timing, failures that stay their own, retries and deadlines."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gruppo.engines.scripted import ScriptedEngine
from gruppo.errors import EngineError, RewardError, TeamError, ToolError
from gruppo.rewards import REWARDS
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.teams.base import Cast, Ended, Prompt, Role, seed_of
from gruppo.teams.solver import Solver, SolverConfig
from gruppo.tools.base import tool
from gruppo.types import CallContext, Completion, Engine, Episode, Outcome, Request, Sampling, Task, Tool, ToolResult

Fault = Callable[[Cast], Any]


class Relay:
    """Two turns with a tool call between them; tasks named in `faults` go wrong in their own way before the call."""

    roles = ("agent",)
    prompts: Mapping[str, Prompt] = {"agent": Prompt("{question}")}

    def __init__(self, faults: Mapping[str, Fault] = {}, turns: Mapping[str, int] = {}) -> None:
        self.faults, self.turns = faults, turns

    async def play(self, task: Task, cast: Cast) -> str | None:
        said = await cast["agent"].act(str, question=task.question)
        if task.id in self.faults:
            waiting = self.faults[task.id](cast)
            if waiting is not None:
                await waiting
        for _ in range(self.turns.get(task.id, 1)):
            result = await cast.call("echo", {"text": said.text})
            said = await cast["agent"].act(str, question=f"{task.question} {result.text}")
        return said.text


class Counting:
    """The scripted engine with a note of what each call held, and faults by task id."""

    def __init__(self, faults: Mapping[str, Callable[[], None]] = {}) -> None:
        self.calls: list[list[tuple[str, int, str, int]]] = []
        self.faults = faults
        self._inner = ScriptedEngine(lambda request: f"{request.context[0]}:{request.seed % 1000}")

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.calls.append([request.context for request in requests])
        for request in requests:
            if request.context[0] in self.faults:
                self.faults[request.context[0]]()
        return await self._inner.generate(requests)


class Echo:
    """A tool that takes `seconds()` and fails with `fault` where its text begins with a name in it."""

    name, description = "echo", "Say it again."
    schema: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    def __init__(self, seconds: Callable[[], float] = lambda: 0.0, faults: Mapping[str, list[Exception]] = {}) -> None:
        self.seconds, self.faults = seconds, faults

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        await asyncio.sleep(self.seconds())
        waiting = self.faults.get(arguments["text"].partition(":")[0])
        if waiting:
            raise waiting.pop()
        return ToolResult(True, arguments["text"])


def make(team: Relay, engine: Engine, echo: Tool | None = None, reward=REWARDS["exact"], **config) -> Rollout:
    role = Role("agent", Prompt("{question}"), Sampling(), "script", "agent", trainable=True)
    tools = {"echo": echo or Echo()}
    return Rollout(team, {"agent": role}, {"script": engine}, tools, {"r": (reward, 1.0)}, RolloutConfig(**config))


def tasks(*names: str) -> list[Task]:
    return [Task(name, f"Say {name}.", name) for name in names]


def plain(episode: Episode) -> Episode:
    """Without what the clock says."""
    events = [replace(event, seconds=0.0) for event in episode.events]
    return replace(episode, seconds=0.0, events=events)


def throw(error: Exception) -> Fault:
    def fault(*_: object) -> None:
        raise error

    return fault


# ---- order and batches ----------------------------------------------------------------------------------------------


def test_groups_come_in_the_order_of_their_tasks_with_every_attempt() -> None:
    groups = make(Relay(), Counting()).collect(tasks("c", "a", "b"), 3, 7, "step")
    assert [(group.id, group.task.id) for group in groups] == [("step/c", "c"), ("step/a", "a"), ("step/b", "b")]
    for group in groups:
        assert [episode.attempt for episode in group.episodes] == [0, 1, 2]
        assert {(episode.group_id, episode.task_id) for episode in group.episodes} == {(group.id, group.task.id)}
        assert [episode.seed for episode in group.episodes] == [seed_of(7, group.id, i) for i in range(3)]
    seeds = [episode.seed for group in groups for episode in group.episodes]
    other = make(Relay(), Counting()).collect(tasks("a"), 1, 7, "step")[0].episodes[0]
    assert len(set(seeds)) == 9 and plain(other) == plain(groups[1].episodes[0]), "draws don't depend on the siblings"


class Uneven(Relay):
    """The first attempt at a task takes the most turns, so it ends last."""

    async def play(self, task: Task, cast: Cast) -> str:
        said = await cast["agent"].act(int, question=task.question)
        for _ in range(2 - said.value):
            await cast["agent"].act(int, question=task.question)
        return said.text


@pytest.mark.parametrize("mode", ["lockstep", "async"])
def test_attempts_stand_in_their_order_whichever_ends_first(mode: str) -> None:
    engine = ScriptedEngine(lambda request: str(request.context[1]))
    (group,) = make(Uneven(), engine, mode=mode).collect(tasks("a"), 3, 0, "step")
    assert [(len(episode.turns), episode.answer) for episode in group.episodes] == [(3, "0"), (2, "1"), (1, "2")]
    assert [episode.attempt for episode in group.episodes] == [0, 1, 2]


def test_all_that_wait_are_asked_in_one_call() -> None:
    engine = Counting()
    make(Relay(turns={"b": 3}), engine).collect(tasks("a", "b"), 2, 0, "step")
    places = [(task, attempt) for task in "ab" for attempt in range(2)]
    assert engine.calls[:2] == [[(task, attempt, "agent", turn) for task, attempt in places] for turn in range(2)]
    assert engine.calls[2:] == [[("b", attempt, "agent", turn) for attempt in range(2)] for turn in (2, 3)]


@pytest.mark.parametrize("seed", range(3))
def test_batches_and_results_do_not_depend_on_how_long_tools_take(seed: int) -> None:
    names = [f"t{number}" for number in range(8)]
    turns = {name: 1 + number % 3 for number, name in enumerate(names)}
    still = Counting()
    expected = make(Relay(turns=turns), still).collect(tasks(*names), 3, 0, "step")
    rng, uneven = random.Random(seed), Counting()
    late = make(Relay(turns=turns), uneven, Echo(lambda: rng.random() * 0.02)).collect(tasks(*names), 3, 0, "step")
    assert uneven.calls == still.calls and len(still.calls) == 4
    for one, other in zip(expected, late, strict=True):
        assert list(map(plain, one.episodes)) == list(map(plain, other.episodes))


def test_each_engine_is_asked_for_its_own_roles() -> None:
    class Pair(Relay):
        roles = ("agent", "judge")

        async def play(self, task: Task, cast: Cast) -> str | None:
            await asyncio.gather(*(cast[role].act(str, question=task.question) for role in ("agent", "judge")))
            return "done"

    first, second = Counting(), Counting()
    rollout = make(Pair(), first)
    judge = Role("judge", Prompt("{question}"), Sampling(), "other")
    rollout = replace(rollout, roles={**rollout.roles, "judge": judge}, engines={"script": first, "other": second})
    (group,) = rollout.collect(tasks("a"), 2, 0, "step")
    assert {role for call in first.calls for _, _, role, _ in call} == {"agent"}
    assert {role for call in second.calls for _, _, role, _ in call} == {"judge"}
    assert [sorted(turn.role for turn in episode.turns) for episode in group.episodes] == [["agent", "judge"]] * 2


def test_agents_of_one_episode_may_ask_at_once_without_hurrying_the_others() -> None:
    class Duo(Relay):
        async def play(self, task: Task, cast: Cast) -> str | None:
            await cast.call("echo", {"text": task.id})
            for _ in range(2):
                await asyncio.gather(*(cast["agent"].act(str, question=word) for word in ("left", "right")))
            return "done"

    rng, engine = random.Random(0), Counting()
    make(Duo(), engine, Echo(lambda: rng.random() * 0.05)).collect(tasks("a", "b", "c"), 2, 0, "step")
    assert [len(call) for call in engine.calls] == [12, 12]


def test_no_more_than_max_concurrent_episodes_are_in_the_air() -> None:
    engine = Counting()
    groups = make(Relay(), engine, max_concurrent=3).collect(tasks("a", "b"), 4, 0, "step")
    assert [len(call) for call in engine.calls] == [3, 3, 3, 3, 2, 2]
    everything = make(Relay(), Counting()).collect(tasks("a", "b"), 4, 0, "step")
    assert [plain(e) for g in groups for e in g.episodes] == [plain(e) for g in everything for e in g.episodes]


def test_a_task_that_comes_twice_makes_two_groups() -> None:
    groups = make(Relay(), Counting()).collect(tasks("a", "b", "a"), 2, 0, "step")
    assert len({group.id for group in groups}) == 3
    assert [group.task.id for group in groups] == ["a", "b", "a"]
    assert all(episode.group_id == group.id for group in groups for episode in group.episodes)
    assert groups[0].episodes[0].seed != groups[2].episodes[0].seed


def test_every_finished_episode_is_announced() -> None:
    seen: list[Episode] = []
    rollout = replace(make(Relay(), Counting()), on_episode=seen.append)
    groups = rollout.collect(tasks("a", "b"), 2, 0, "step")
    assert sorted(map(id, seen)) == sorted(id(episode) for group in groups for episode in group.episodes)


def test_only_roles_with_a_policy_change_their_temperature() -> None:
    sampling = Sampling(temperature=0.7, max_tokens=9)
    policies = {"agent": "p", "untrained": "q", "kept": None}
    roles = {name: Role(name, Prompt("x"), sampling, "script", p, name == "agent") for name, p in policies.items()}
    rollout = replace(make(Relay(), Counting()), roles=roles)
    cold = rollout.at_temperature(0.0)
    assert cold.roles["agent"].sampling == cold.roles["untrained"].sampling == replace(sampling, temperature=0.0)
    assert cold.roles["kept"].sampling == sampling
    assert rollout.roles["agent"].sampling == sampling and cold.team is rollout.team


# ---- failures -------------------------------------------------------------------------------------------------------


def check_siblings(groups, failed: str, outcome: Outcome, retries: int) -> Episode:
    """Every episode of `failed` ended with `outcome`, everybody else is whole; returns one of the failed."""
    for group in groups:
        for episode in group.episodes:
            wanted = (outcome, retries) if group.task.id == failed else (Outcome.completed, 0)
            assert (episode.outcome, episode.retries) == wanted, (group.task.id, episode.error)
            if group.task.id != failed:
                assert episode.answer and len(episode.turns) == 2
    return next(group for group in groups if group.task.id == failed).episodes[0]


def ones(task: Task, episodes: Sequence[Episode]) -> list[float]:
    return [1.0] * len(episodes)


@pytest.mark.parametrize(
    ("fault", "outcome", "error"),
    [
        (throw(KeyError("key")), Outcome.team_failed, "KeyError: 'key'"),
        (throw(EngineError("no engine")), Outcome.engine_failed, "no engine"),
        (throw(ToolError("no host")), Outcome.tool_failed, "no host"),
        (throw(Ended(Outcome.timeout, "too slow")), Outcome.timeout, "too slow"),
    ],
)
@pytest.mark.parametrize("retries", [0, 2])
def test_what_the_infrastructure_did_wrong_is_retried_and_left_out(fault, outcome, error, retries: int) -> None:
    rollout = make(Relay({"b": fault}), Counting(), reward=ones, retries=retries)
    groups = rollout.collect(tasks("a", "b", "c"), 2, 0, "step")
    episode = check_siblings(groups, "b", outcome, retries)
    assert (episode.error, episode.answer, episode.reward) == (error, None, None)
    assert episode.scores["r"].value is None and episode.scores["r"].reason == outcome.value
    assert len(episode.turns) == 1, "the turns of the last try, and only those"
    assert groups[0].episodes[0].reward == 1.0


def test_what_the_agent_did_wrong_is_not_retried() -> None:
    ended = throw(Ended(Outcome.max_tokens, "too long"))
    groups = make(Relay({"b": ended}), Counting(), retries=3).collect(tasks("a", "b"), 2, 0, "step")
    assert check_siblings(groups, "b", Outcome.max_tokens, 0).reward == 0.0


def test_a_retry_that_works_is_a_whole_episode_that_counts() -> None:
    echo = Echo(faults={"b": [ToolError("died"), ToolError("died")]})
    groups = make(Relay(), Counting(), echo, reward=ones, retries=1).collect(tasks("a", "b"), 2, 0, "step")
    assert [episode.retries for episode in groups[1].episodes] == [1, 1]
    clean = make(Relay(), Counting(), reward=ones).collect(tasks("a", "b"), 2, 0, "step")
    for tried, never_failed in zip(groups[1].episodes, clean[1].episodes, strict=True):
        assert plain(replace(tried, retries=0)) == plain(never_failed), "the same seed, the same episode"


def test_an_engine_that_fails_on_one_request_fails_only_that_episode() -> None:
    engine = Counting({"b": throw(EngineError("refused"))})
    groups = make(Relay(), engine, retries=1).collect(tasks("a", "b", "c"), 2, 0, "step")
    episode = check_siblings(groups, "b", Outcome.engine_failed, 1)
    assert (episode.error, episode.turns) == ("refused", [])


def test_what_an_engine_or_tool_raises_is_theirs_not_the_teams() -> None:
    engine = Counting({"b": throw(RuntimeError("odd"))})
    groups = make(Relay(), engine, retries=0).collect(tasks("a", "b"), 1, 0, "step")
    assert "RuntimeError: odd" in check_siblings(groups, "b", Outcome.engine_failed, 0).error
    echo = Echo(faults={"b": [RuntimeError("odd")]})
    groups = make(Relay(), Counting(), echo, retries=0).collect(tasks("a", "b"), 1, 0, "step")
    assert "RuntimeError: odd" in check_siblings(groups, "b", Outcome.tool_failed, 0).error


def test_an_engine_that_loses_a_request_has_failed() -> None:
    class Losing(Counting):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            return (await super().generate(requests))[:-1]

    groups = make(Relay(), Losing(), retries=0, max_seconds=2.0).collect(tasks("a", "b"), 1, 0, "step")
    assert {episode.outcome for group in groups for episode in group.episodes} == {Outcome.engine_failed}


def test_an_episode_that_hangs_times_out_and_its_siblings_do_not_wait_themselves_to_death() -> None:
    hang = {"b": lambda cast: asyncio.sleep(60)}
    started = time.monotonic()
    groups = make(Relay(hang), Counting(), max_seconds=0.4, retries=1).collect(tasks("a", "b", "c"), 2, 0, "step")
    episode = check_siblings(groups, "b", Outcome.timeout, 1)
    assert episode.error == "no answer within 0.4 s" and len(episode.turns) == 1 and episode.reward is None
    assert time.monotonic() - started < 5


def test_an_engine_that_hangs_is_a_timeout() -> None:
    class Hanging(Counting):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            await asyncio.sleep(60)
            return []

    groups = make(Relay(), Hanging(), max_seconds=0.2, retries=0).collect(tasks("a", "b"), 1, 0, "step")
    assert [episode.outcome for group in groups for episode in group.episodes] == [Outcome.timeout] * 2


def test_a_team_that_fails_everywhere_stops_the_run_with_its_reason() -> None:
    broken = {name: throw(AttributeError("no such thing")) for name in "ab"}
    with pytest.raises(TeamError, match="the team failed in all 4 episodes: AttributeError: no such thing"):
        make(Relay(broken), Counting()).collect(tasks("a", "b"), 2, 0, "step")
    groups = make(Relay({"a": broken["a"]}), Counting()).collect(tasks("a", "b"), 2, 0, "step")
    check_siblings(groups, "a", Outcome.team_failed, 1)


def test_a_broken_reward_stops_the_run() -> None:
    with pytest.raises(RewardError, match="returned 1 scores for 2 episodes"):
        make(Relay(), Counting(), reward=lambda task, episodes: [1.0]).collect(tasks("a"), 2, 0, "step")


# ---- size -----------------------------------------------------------------------------------------------------------


@tool(in_process=True)
async def shout(text: str) -> str:
    """Say it in capitals."""
    return text.upper()


def test_two_thousand_episodes_take_seconds() -> None:
    team = Solver(SolverConfig(prompts="compact", max_steps=3))
    texts = {"planner": "shout: odo", "executor": "odo", "verifier": "continue", "writer": "ODO"}
    engine = ScriptedEngine(lambda request: texts[request.context[2]])
    roles = {name: Role(name, team.prompts[name], Sampling(), "script") for name in texts}
    rewards = {"exact": (REWARDS["exact"], 1.0)}
    rollout = Rollout(team, roles, {"script": engine}, {"shout": shout}, rewards, RolloutConfig())
    started = time.monotonic()
    groups = rollout.collect([Task(f"t{number}", "Who?", "odo") for number in range(250)], 8, 0, "step")
    assert time.monotonic() - started < 20
    assert {(e.outcome, e.reward, len(e.turns)) for g in groups for e in g.episodes} == {(Outcome.max_turns, 1.0, 10)}
