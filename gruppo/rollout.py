"""The rollout: tasks times attempts, played as concurrent episodes, returned as scored groups.

Episodes are tasks on one event loop. In lockstep (the default) their requests go to the engines together, in a fixed
order, so that the same seeds give the same bits. In async mode nobody waits for anybody: every draw still has its seed,
but what shares a batch depends on timing, and with it the last float32 digits of a local model's log-probs (and, where
two tokens are that close, the token). What scripts answer does not change; groups may end in another order. A failed
episode is data; it never stops its siblings.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from pydantic import Field

from gruppo.config import Config
from gruppo.dispatch import Deadline, Dispatch, FreeRunning, Lockstep, RestingLoop
from gruppo.errors import EngineError, RewardError, TeamError, ToolError, UserError
from gruppo.rewards.rules import ask, is_async, score_group
from gruppo.rewards.turns import score_turns
from gruppo.teams.base import Cast, Ended, Role, Team, seed_of
from gruppo.types import Completion, Engine, Episode, Group, Outcome, Request, Reward, Task, Tool, TurnReward


class RolloutConfig(Config):
    """How episodes are played."""

    mode: Literal["lockstep", "async"] = "lockstep"
    """"lockstep": a batch goes out when every episode waits for one, and runs repeat bit by bit. "async": a request
    goes out as soon as its engine is free, and no episode waits for the slow tool of another."""
    max_seconds: float = Field(600.0, gt=0)
    """Deadline of one episode, the time in an engine's queue not counted; past it the harness, not the agent, has
    failed."""
    retries: int = Field(1, ge=0)
    """How often an episode that failed for an infrastructure reason is played again."""
    max_judge_seconds: float = Field(600.0, gt=0)
    """Deadline of an asynchronous reward function, such as a judge, for one group, its queues included; past it the
    episodes of the group are judge_failed."""
    max_concurrent: int = Field(1024, ge=1)
    """Episodes in the air at once. In lockstep more are played in waves, so that batches don't depend on timing; in
    async mode one that ends makes room for the next."""
    max_batch: int = Field(1024, ge=1)
    """Requests in one call to an engine. A smaller call answers sooner, which only async mode can make use of."""


Called = tuple[str, Task]
"""A task that is to be played, with a name of its own among all that are."""

Handed = tuple[str, Group, Mapping[str, object]]
"""A group that is whole, its label first, and what its asynchronous reward functions said."""

Troupe = Callable[["Mapping[str, Rollout]", Sequence[Called], int, int], Iterable[Handed]]
"""Plays as `played` does, which is one."""


@dataclass(frozen=True)
class Rollout:
    """Everything that plays: the team, its roles, their engines and tools, and the rewards that score it.

    `calls` says, for async mode, how many calls an engine takes at once; 1 where none is given, and above 1 every
    request is a call of its own (a server, which batches by itself). `troupe` plays what is collected, in several
    processes; None: all is played in this one.
    """

    team: Team
    roles: Mapping[str, Role]
    engines: Mapping[str, Engine]
    tools: Mapping[str, Tool]
    rewards: Mapping[str, tuple[Reward, float]]
    config: RolloutConfig
    turn_rewards: Mapping[str, tuple[TurnReward, float]] = field(default_factory=dict)
    on_episode: Callable[[Episode], None] = lambda episode: None
    calls: Mapping[str, int] = field(default_factory=dict)
    troupe: Troupe | None = None

    def at_temperature(self, temperature: float) -> Rollout:
        """The same, the roles that a policy plays sampling at another temperature, whether they are trained or not."""
        roles = {
            name: replace(role, sampling=replace(role.sampling, temperature=temperature)) if role.policy else role
            for name, role in self.roles.items()
        }
        return replace(self, roles=roles)

    def collect(self, tasks: Sequence[Task], attempts: int, seed: int, label: str) -> list[Group]:
        """One scored group per task, in order. `seed` and `label` fix every draw; the label names the groups.

        Raises TeamError if every episode failed in the team's own program, RewardError for a broken reward function.
        """
        return collect_side_by_side({label: self}, tasks, attempts, seed)[label]

    def stream(self, tasks: Sequence[Task], attempts: int, seed: int, label: str) -> Iterator[Group]:
        """The groups of `collect`, each scored and handed out when it ends, and kept nowhere: memory holds what is in
        the air. In lockstep they come in the order of the tasks, in async mode as they end.

        Nothing is played, and no deadline runs, while the caller holds a group. Closing the iterator ends all episodes.
        """
        return stream_side_by_side({label: self}, tasks, attempts, seed)

    async def play(self, dispatch: Dispatch, at: tuple[int, int], seed: int, group: Group) -> Episode:
        """One attempt, played again with the same seed while the infrastructure fails it."""
        task, attempt = group.task, at[1]
        dispatch.enter()
        try:
            for retry in range(self.config.retries + 1):
                episode = Episode(task.id, group.id, attempt, seed_of(seed, group.id, attempt), retries=retry)
                await self._attempt(dispatch, at, task, episode)
                if not episode.outcome.is_infrastructure:
                    break
        finally:
            dispatch.leave()
        self.on_episode(episode)
        return episode

    async def _attempt(self, dispatch: Dispatch, at: tuple[int, int], task: Task, episode: Episode) -> None:
        """Fill `episode`. Whatever the team, the engine or a tool raises becomes its outcome."""
        count = 0

        def submit(engine: str, request: Request) -> Awaitable[Completion]:
            nonlocal count
            count += 1
            return dispatch.submit((*at, count), engine, request, deadline)

        deadline = Deadline(self.config.max_seconds)
        clock = asyncio.get_running_loop().time
        started = clock()
        cast = Cast(episode, self.roles, self.tools, submit, started + self.config.max_seconds)
        try:
            async with deadline:
                episode.answer = await self.team.play(task, cast)
            episode.outcome = cast.outcome
        except Ended as ended:
            episode.outcome, episode.error = ended.outcome, str(ended)
        except EngineError as error:
            episode.outcome, episode.error = Outcome.engine_failed, str(error)
        except ToolError as error:
            episode.outcome, episode.error = Outcome.tool_failed, str(error)
        except TimeoutError:
            episode.outcome, episode.error = Outcome.timeout, f"no answer within {self.config.max_seconds} s"
        except UserError as error:  # ends everything, this one as a failure of its team
            episode.outcome, episode.error = Outcome.team_failed, str(error)
            cast.tell()
            raise
        except Exception as error:  # a team is foreign code: its failure is this episode's, not its siblings'
            episode.outcome, episode.error = Outcome.team_failed, f"{type(error).__name__}: {error}"
        finally:
            cast.close()
        episode.seconds = clock() - started
        cast.tell()


def collect_side_by_side(
    rollouts: Mapping[str, Rollout], tasks: Sequence[Task], attempts: int, seed: int
) -> dict[str, list[Group]]:
    """As `collect` for several rollouts by label, all at once: what they ask alike is computed once.

    They share the engines, the limits and the troupe of the first.
    """
    called, troupe = called_up(tasks), next(iter(rollouts.values())).troupe
    if troupe:
        groups = scored(rollouts, troupe(rollouts, called, attempts, seed))
    else:
        groups = stream_side_by_side(rollouts, tasks, attempts, seed)
    found = {group.id: group for group in groups}
    return {label: [found[group_id(label, name)] for name, _ in called] for label in rollouts}


def stream_side_by_side(
    rollouts: Mapping[str, Rollout], tasks: Sequence[Task], attempts: int, seed: int
) -> Iterator[Group]:
    """As `stream` for several rollouts by label."""
    with closing(played(rollouts, called_up(tasks), attempts, seed)) as handed:  # at once, whoever holds an error of it
        yield from scored(rollouts, handed)


def scored(rollouts: Mapping[str, Rollout], handed: Iterable[Handed]) -> Iterator[Group]:
    """What was handed out, with its rewards. Raises, in the end, what `collect` raises."""
    faults = {label: Faults() for label in rollouts}
    for label, group, asked in handed:
        score_group(rollouts[label].rewards, group, asked)
        score_turns(rollouts[label].turn_rewards, group)
        faults[label].add(group)
        yield group
    for label, rollout in rollouts.items():
        faults[label].check(rollout.rewards)


def played(
    rollouts: Mapping[str, Rollout], tasks: Sequence[Called], attempts: int, seed: int
) -> Generator[Handed, None, None]:
    """The groups of tasks and labels as they end, played in this process and not yet scored."""
    first = next(iter(rollouts.values()))
    with asyncio.Runner(loop_factory=RestingLoop) as runner:  # which ends all that still plays when it is left
        ended: asyncio.Queue[tuple[Seat, Mapping[str, object]] | None] = asyncio.Queue()
        stage = Stage(first, seed, attempts, ended)
        playing = runner.get_loop().create_task(stage.play(seats(rollouts, tasks, attempts)))
        playing.add_done_callback(lambda _: ended.put_nowait(None))
        while handed := runner.run(ended.get()) if ended.empty() else ended.get_nowait():
            seat, asked = handed
            yield seat.label, seat.group, asked
        playing.result()


@dataclass(frozen=True)
class Seat:
    """An episode to be played: whose, in which group, and where (group, attempt) it stands among all."""

    label: str
    rollout: Rollout
    group: Group
    at: tuple[int, int]


def seats(rollouts: Mapping[str, Rollout], tasks: Sequence[Called], attempts: int) -> Iterator[Seat]:
    """All episodes in order, each made when its turn comes."""
    number = 0
    for label, rollout in rollouts.items():
        for name, task in tasks:
            group = Group(group_id(label, name), task, [])
            yield from (Seat(label, rollout, group, (number, attempt)) for attempt in range(attempts))
            number += 1


class Stage:
    """Where episodes are played, a bounded number at once; seats whose groups are whole go into `ended`."""

    def __init__(
        self,
        first: Rollout,
        seed: int,
        attempts: int,
        ended: asyncio.Queue[tuple[Seat, Mapping[str, object]] | None],
    ) -> None:
        config, self._in_lockstep = first.config, first.config.mode == "lockstep"
        self._size, self._seed, self._attempts, self._ended = config.max_concurrent, seed, attempts, ended
        self._dispatch: Dispatch = (
            Lockstep(first.engines, config.max_batch)
            if self._in_lockstep
            else FreeRunning(first.engines, config.max_batch, first.calls)
        )
        self._judging: list[asyncio.Task[None]] = []

    async def play(self, waiting: Iterator[Seat]) -> None:
        """Wave after wave in lockstep, else through a sliding window."""
        if self._in_lockstep:
            while wave := list(islice(waiting, self._size)):
                await asyncio.gather(*map(self._play, wave))
                for seat in wave:
                    if seat.at[1] == self._attempts - 1:
                        self._hand_out(seat)
        else:
            await asyncio.gather(*(self._play_on(waiting) for _ in range(self._size)))
        while self._judging:
            await self._judging[0]
            self._judging = [task for task in self._judging if not task.done()]

    async def _play_on(self, waiting: Iterator[Seat]) -> None:
        for seat in waiting:
            await self._play(seat)
            if len(seat.group.episodes) == self._attempts:
                self._hand_out(seat)

    async def _play(self, seat: Seat) -> None:
        seat.group.episodes.append(await seat.rollout.play(self._dispatch, seat.at, self._seed, seat.group))

    def _hand_out(self, seat: Seat) -> None:
        """At once, or when its judges have answered; they hold no other group up but, in lockstep, those behind it."""
        seat.group.episodes.sort(key=lambda episode: episode.attempt)
        self._judging = [task for task in self._judging if not task.done()]
        before = self._judging[-1] if self._in_lockstep and self._judging else None
        if before or any(is_async(function) for function, _ in seat.rollout.rewards.values()):
            self._judging.append(asyncio.create_task(self._judge(seat, before)))
        else:
            self._ended.put_nowait((seat, {}))

    async def _judge(self, seat: Seat, before: asyncio.Task[None] | None) -> None:
        asked = await ask(seat.rollout.rewards, seat.group, seat.rollout.config.max_judge_seconds)
        if before:  # lockstep hands out in the order of the tasks
            await before
        self._ended.put_nowait((seat, asked))


class Faults:
    """Counts what went wrong, to tell what went wrong always; it keeps no episode."""

    def __init__(self) -> None:
        self._num_episodes = self._num_scorable = 0
        self._counts: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}

    def add(self, group: Group) -> None:
        """Look at a scored group."""
        self._num_episodes += len(group.episodes)
        for episode in group.episodes:
            if episode.outcome == Outcome.team_failed:
                self._note("", episode.error)
            if not episode.outcome.is_infrastructure:
                self._num_scorable += 1
                for name, score in episode.scores.items():
                    if score.reason.startswith(("raised ", "returned NaN")):
                        self._note(name, score.reason)

    def _note(self, name: str, reason: str) -> None:
        self._counts[name] += 1
        self._reasons.setdefault(name, reason)

    def check(self, rewards: Iterable[str]) -> None:
        """Raises TeamError for a team, RewardError for a reward function that failed for every episode there was."""
        if self._num_episodes and self._counts[""] == self._num_episodes:
            raise TeamError(f"the team failed in all {self._num_episodes} episodes: {self._reasons['']}")
        for name in rewards:
            if self._num_scorable and self._counts[name] == self._num_scorable:
                raise RewardError(
                    f"reward {name!r} {self._reasons[name]} in all {self._num_scorable} episodes: nothing can be learnt"
                )


def called_up(tasks: Sequence[Task]) -> list[Called]:
    """Each task with its name; one that comes again gets a number, and with it draws of its own."""
    seen: Counter[str] = Counter()
    called = []
    for task in tasks:
        seen[task.id] += 1
        called.append((task.id + (f"#{seen[task.id]}" if seen[task.id] > 1 else ""), task))
    return called


def group_id(label: str, name: str) -> str:
    """The id of the group that plays a called-up task under a label."""
    return f"{label}/{name}"
