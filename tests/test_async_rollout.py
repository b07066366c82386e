"""Async mode: nobody waits for anybody, engines are asked as they get free, groups are handed out as they end."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from small_run import config_of, parts_of
from test_rollout import Counting, Echo, Relay, check_siblings, make, ones, plain, tasks, throw

from gruppo.errors import ConfigError, EngineError, RewardError, TeamError
from gruppo.rollout import Rollout
from gruppo.teams.base import Cast, Prompt, Role
from gruppo.tools.base import tool
from gruppo.types import Completion, Episode, Group, Outcome, Request, Sampling, Task

ROOT = Path(__file__).parents[1]
MODES = pytest.mark.parametrize("mode", ["lockstep", "async"])
EIGHT = [f"t{number}" for number in range(8)]


class Busy(Counting):
    """A scripted engine that takes a while, and knows how many calls were under way at once."""

    def __init__(self, seconds: float = 0.01) -> None:
        super().__init__()
        self.seconds, self.now, self.most = seconds, 0, 0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds)
        self.now -= 1
        return await super().generate(requests)


def played(rollout: Rollout, names: Sequence[str] = EIGHT, attempts: int = 3) -> list[list[Episode]]:
    return [list(map(plain, group.episodes)) for group in rollout.collect(tasks(*names), attempts, 0, "step")]


# ---- who waits for whom ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{}, {"max_concurrent": 5}, {"max_batch": 3}, {"max_concurrent": 4, "max_batch": 1}])
def test_results_are_those_of_lockstep(limits: Mapping[str, int]) -> None:
    turns = {name: 1 + number % 3 for number, name in enumerate(EIGHT)}
    expected = played(make(Relay(turns=turns), Counting()))
    delays = iter([0.0, 0.01, 0.002] * 99)
    uneven = make(Relay(turns=turns), Busy(0.001), Echo(lambda: next(delays)), mode="async", **limits)
    assert played(uneven) == expected


@pytest.mark.parametrize("is_thread", [False, True])
def test_a_slow_tool_holds_only_its_own_episode(is_thread: bool) -> None:
    others_are_done = threading.Event()

    async def wait(text: str) -> str:
        """Say it again, for one text when everybody else is done."""
        while text.startswith("slow:") and not others_are_done.is_set():
            await asyncio.sleep(0.001)
        return text

    def block(text: str) -> str:
        """The same on a thread."""
        return text if not text.startswith("slow:") or others_are_done.wait(5) else "never"

    ended: list[str] = []

    def note(episode: Episode) -> None:
        ended.append(episode.task_id)
        if len(ended) == 3:
            others_are_done.set()

    echo = tool(block if is_thread else wait, name="echo", in_process=True)
    engine = Counting()
    team = Relay(turns=dict.fromkeys("abc", 3))
    rollout = replace(make(team, engine, echo, mode="async", max_seconds=5.0, retries=0), on_episode=note)
    groups = rollout.collect(tasks("a", "slow", "b", "c"), 1, 0, "step")
    assert ended[-1] == "slow" and sorted(ended[:-1]) == ["a", "b", "c"]
    assert engine.calls[-1] == [("slow", 0, "agent", 1)], "its second turn came after all turns of the others"
    assert {episode.outcome for group in groups for episode in group.episodes} == {Outcome.completed}


@MODES
def test_sync_tools_of_a_batch_overlap(mode: str) -> None:
    everybody = threading.Barrier(4)

    @tool(in_process=True, workers=4)
    def echo(text: str) -> str:
        """Wait until four are here."""
        everybody.wait(5)
        return text

    episodes = played(make(Relay(), Counting(), echo, mode=mode), "abcd", 1)
    assert [episode.events[0].result.ok for (episode,) in episodes] == [True] * 4


class Pair(Relay):
    """Even tasks ask one engine, odd ones the other."""

    roles = ("agent", "judge")

    async def play(self, task: Task, cast: Cast) -> str | None:
        for _ in range(3):
            said = await cast[self.roles[int(task.id[1]) % 2]].act(str, question=task.question)
        return said.text


def test_engines_do_not_wait_for_one_another() -> None:
    gate = asyncio.Event()

    class Gated(Counting):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            await gate.wait()
            return await super().generate(requests)

    def note(episode: Episode) -> None:
        ended.append(episode.task_id)
        if len(ended) == 4:
            gate.set()

    ended: list[str] = []
    rollout = make(Pair(), Counting(), mode="async", max_seconds=5.0)
    judge = Role("judge", Prompt("{question}"), Sampling(), "gated")
    rollout = replace(rollout, roles={**rollout.roles, "judge": judge}, on_episode=note)
    rollout = replace(rollout, engines={**rollout.engines, "gated": Gated()})
    played(rollout, EIGHT, 1)
    assert sorted(ended[:4]) == EIGHT[::2] and sorted(ended[4:]) == EIGHT[1::2]


def test_what_a_local_model_draws_depends_on_seeds_only(tmp_path: Path) -> None:
    turns = {}
    for mode in ("lockstep", "async"):
        config = config_of(tmp_path, rollout__mode=mode, rollout__max_batch="5")
        with parts_of(config, tmp_path / mode) as parts:
            groups = parts.rollout.collect(parts.tasks.batch(0, 2, 0), 4, 0, "one")
        turns[mode] = [turn for group in groups for episode in group.episodes for turn in episode.turns]
    pairs = list(zip(turns["lockstep"], turns["async"], strict=True))
    same = [(one, other) for one, other in pairs if one.action_ids == other.action_ids]
    assert len(same) >= 0.9 * len(pairs) > 20, "but for tokens that are equally likely to the last digits"
    for one, other in same:
        assert (one.role, one.prompt) == (other.role, other.prompt)
        assert other.action_logprobs == pytest.approx(one.action_logprobs, abs=1e-3)


# ---- calls ----------------------------------------------------------------------------------------------------------


def test_an_engine_gets_one_call_at_a_time_with_all_that_waits() -> None:
    engine = Busy()
    played(make(Relay(), engine, mode="async"))
    assert engine.most == 1 and [len(call) for call in engine.calls] == [24, 24]
    engine = Busy(0.001)
    played(make(Relay(), engine, mode="async", max_batch=10))
    assert engine.most == 1 and max(len(call) for call in engine.calls) == 10
    assert sum(len(call) for call in engine.calls) == 48


def test_a_server_gets_each_request_as_a_call_of_its_own() -> None:
    engine = Busy()
    played(replace(make(Relay(), engine, mode="async"), calls={"script": 5}))
    assert engine.most == 5 and [len(call) for call in engine.calls] == [1] * 48


def test_lockstep_cuts_batches_in_their_order() -> None:
    whole, cut = Counting(), Counting()
    assert played(make(Relay(), whole)) == played(make(Relay(), cut, max_batch=10))
    assert [len(call) for call in cut.calls] == [10, 10, 4] * 2
    assert sum(cut.calls, []) == sum(whole.calls, [])


def test_a_deadline_rests_while_the_request_waits_for_its_engine() -> None:
    engine = Busy(0.1)  # one request at a time: the last of eight waits for 0.7 s, twice
    rollout = make(Relay(), engine, mode="async", max_batch=1, max_seconds=1.0, retries=0)
    assert {episode.outcome for (episode,) in played(rollout, EIGHT, 1)} == {Outcome.completed}


@MODES
def test_a_deadline_runs_while_the_engine_works(mode: str) -> None:
    rollout = make(Relay(), Busy(9.0), mode=mode, max_seconds=0.1, retries=0)
    assert {episode.outcome for (episode,) in played(rollout, "ab", 1)} == {Outcome.timeout}


@MODES
def test_a_request_that_is_given_up_leaves_the_deadline_running(mode: str) -> None:
    class Impatient(Relay):
        async def play(self, task: Task, cast: Cast) -> str | None:
            if task.id == "a":  # in lockstep its being busy, in async mode the engine's, keeps the other waiting
                await asyncio.sleep(0.3 * (mode == "lockstep"))
                return (await cast["agent"].act(str, question="first")).text
            await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await cast["agent"].act(str, question="in vain")
            await asyncio.sleep(9)
            return None

    engine = Busy(0.3 * (mode == "async"))
    first, second = played(make(Impatient(), engine, mode=mode, max_seconds=0.8, retries=0), "ab", 1)
    assert (first[0].outcome, second[0].outcome) == (Outcome.completed, Outcome.timeout)
    assert engine.calls == [[("a", 0, "agent", 0)]]


# ---- failures -------------------------------------------------------------------------------------------------------


def test_an_engine_that_fails_on_one_request_fails_only_that_episode() -> None:
    engine = Counting({"b": throw(EngineError("refused"))})
    groups = make(Relay(), engine, retries=1, mode="async").collect(tasks("a", "b", "c"), 2, 0, "step")
    episode = check_siblings(groups, "b", Outcome.engine_failed, 1)
    assert (episode.error, episode.turns) == ("refused", [])


def test_an_error_of_the_user_ends_the_run() -> None:
    engine = Counting({"b": throw(ConfigError("no such key"))})
    with pytest.raises(ConfigError, match="no such key"):
        make(Relay(), engine, mode="async").collect(tasks("a", "b"), 2, 0, "step")


def test_a_reward_that_raises_for_one_task_keeps_the_others() -> None:
    def picky(task: Task, episodes: Sequence[Episode]) -> list[float]:
        if task.id == "b":
            raise KeyError("b")
        return [1.0] * len(episodes)

    groups = make(Relay(), Counting(), reward=picky, mode="async").collect(tasks("a", "b", "c"), 2, 0, "step")
    assert [[episode.reward for episode in group.episodes] for group in groups] == [[1.0] * 2, [None] * 2, [1.0] * 2]
    assert groups[1].episodes[0].scores["r"].reason == "raised KeyError: 'b'"
    with pytest.raises(RewardError, match="reward 'r' raised KeyError: 'b' in all 2 episodes"):
        make(Relay(), Counting(), reward=picky, mode="async").collect(tasks("b"), 2, 0, "step")


def test_a_team_that_fails_everywhere_stops_the_run() -> None:
    broken = {name: throw(AttributeError("none")) for name in "ab"}
    with pytest.raises(TeamError, match="in all 4 episodes: AttributeError: none"):
        make(Relay(broken), Counting(), mode="async").collect(tasks("a", "b"), 2, 0, "step")


# ---- the stream -----------------------------------------------------------------------------------------------------


def test_a_window_slides_where_a_wave_waits_for_its_slowest() -> None:
    team = Relay(turns={"t0": 12})
    alive, most = set(), []

    class Watching(Counting):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            alive.update(request.context[0] for request in requests)
            most.append(len(alive))
            return await super().generate(requests)

    def note(episode: Episode) -> None:
        alive.discard(episode.task_id)
        ended.append(episode.task_id)

    orders = {}
    for mode in ("lockstep", "async"):
        ended: list[str] = []
        rollout = replace(make(team, Watching(), mode=mode, max_concurrent=2), on_episode=note)
        streamed = [group.task.id for group in rollout.stream(tasks(*EIGHT), 1, 0, "step")]
        orders[mode] = (streamed, ended.index("t0"))
    assert orders["lockstep"] == (EIGHT, 1), "its wave ends before the next begins"
    assert orders["async"][1] > 4 and orders["async"][0][-1] != "t7", "the others went by"
    assert max(most) == 2


@MODES
def test_a_stream_keeps_nothing_that_was_handed_out(mode: str) -> None:
    rollout = make(Relay(), Counting(), reward=ones, mode=mode, max_concurrent=4)
    seen: list[weakref.ref[Group]] = []
    most = 0
    for group in rollout.stream(tasks(*map(str, range(100))), 2, 0, "step"):
        assert [(episode.attempt, episode.reward) for episode in group.episodes] == [(0, 1.0), (1, 1.0)]
        seen.append(weakref.ref(group))
        most = max(most, sum(reference() is not None for reference in seen))
    assert len(seen) == 100 and most <= 8


@MODES
def test_deadlines_rest_while_the_caller_holds_a_group(mode: str) -> None:
    rollout = make(Relay(), Counting(), Echo(lambda: 0.2), mode=mode, max_concurrent=1, max_seconds=0.6, retries=0)
    outcomes = []
    for group in rollout.stream(tasks("a", "b", "c"), 1, 0, "step"):
        time.sleep(0.7)
        outcomes.append(group.episodes[0].outcome)
        assert group.episodes[0].seconds < 0.65
    assert outcomes == [Outcome.completed] * 3


class Lingering(Relay):
    """Only t0 ends soon; it knows who plays."""

    def __init__(self) -> None:
        super().__init__()
        self.playing: set[str] = set()

    async def play(self, task: Task, cast: Cast) -> str | None:
        self.playing.add(task.id)
        try:
            answer = await super().play(task, cast)
            await asyncio.sleep(0 if task.id == "t0" else 30)
            return answer
        finally:
            self.playing.remove(task.id)


def test_a_stream_that_is_closed_ends_what_plays() -> None:
    team = Lingering()
    with closing(make(team, Counting(), mode="async").stream(tasks(*EIGHT), 1, 0, "step")) as stream:
        assert [group.task.id for group in islice(stream, 1)] == ["t0"] and team.playing == set(EIGHT[1:])
    assert not team.playing


@pytest.mark.parametrize("way", [Rollout.stream, Rollout.collect])
def test_an_error_ends_what_plays_though_its_frames_are_held(way: Callable[..., Iterable[Group]]) -> None:
    team = Lingering()
    rollout = make(team, Counting(), reward=lambda task, episodes: [], mode="async")
    with pytest.raises(RewardError, match="returned 0 scores for 1 episodes") as held:
        list(way(rollout, tasks(*EIGHT), 1, 0, "step"))
    assert held.value.__traceback__ and not team.playing


@MODES
@pytest.mark.parametrize("where", ["tool", "reward"])
def test_an_interrupt_ends_what_plays(mode: str, where: str, caplog: pytest.LogCaptureFixture) -> None:
    team, pressed = Lingering(), partial(signal.raise_signal, signal.SIGINT)

    @tool(in_process=True)
    async def echo(text: str) -> str:
        """Say it again."""
        if where == "tool" and text.startswith("t0:"):
            pressed()
        return text

    def reward(task: Task, episodes: Sequence[Episode]) -> list[float]:
        pressed()
        return ones(task, episodes)

    def interrupted() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may have had it ignored
        waves = {"max_concurrent": 1} if mode == "lockstep" and where == "reward" else {}  # or t0 waits for the others
        with pytest.raises(KeyboardInterrupt):
            make(team, Counting(), echo, reward=reward, mode=mode, **waves).collect(tasks(*EIGHT), 1, 0, "step")
        assert not team.playing
        gc.collect()
        assert not caplog.records, "no task was destroyed while it was pending"

    in_a_process(interrupted)


def in_a_process(body: Callable[[], None]) -> None:
    """Signals reach the main thread only: a fork goes on in its own, whichever thread the tests run in."""
    process = multiprocessing.get_context("fork").Process(target=body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads at a fork
        process.start()
    process.join(60)
    assert process.exitcode == 0, "its words are above"


# ---- size -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_plays_rewards_compares_and_stores(tmp_path: Path) -> None:
    script, file = str(ROOT / "benchmarks" / "episodes.py"), tmp_path / "found.json"
    sizes = "--episodes 96 --max-concurrent 32 --shard 4".split()
    command = [sys.executable, script, *sizes, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert (found["episodes"], found["turns"]) == (96, 384)
    assert set(found["by_part"]) == {"rollout", "rewards", "advantages", "store"}
    assert found["turns_per_second"] > 0 and found["rss_end_mb"] >= found["rss_after_1000_mb"] > 0
    assert "| store |" in done.stdout
