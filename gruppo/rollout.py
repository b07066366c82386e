"""The rollout: tasks times attempts, played as concurrent episodes, returned as scored groups.

Episodes are tasks on one event loop. In lockstep, all that wait at the same moment are sampled in one batch, in a fixed
order, so that the same seeds give the same bits. A failed episode is data; it never stops its siblings.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import Field

from gruppo.config import Config
from gruppo.errors import EngineError, GruppoError, RewardError, TeamError, ToolError, UserError, boundary
from gruppo.rewards.rules import score_group
from gruppo.rewards.turns import score_turns
from gruppo.teams.base import Cast, Ended, Role, Team, seed_of
from gruppo.types import Completion, Engine, Episode, Group, Outcome, Request, Reward, Task, Tool, TurnReward

Key = tuple[int, int, int]  # (group, attempt, submission): the order of a batch


@dataclass(frozen=True)
class Waiting:
    """A request on its way into a batch, and the seconds that its episode has left: it does not pay for the wait."""

    engine: str
    request: Request
    answer: asyncio.Future[Completion]
    deadline: asyncio.Timeout
    seconds: float | None


class RolloutConfig(Config):
    """How episodes are played."""

    max_seconds: float = Field(600.0, gt=0)
    """Deadline of one episode; past it the harness, not the agent, has failed."""
    retries: int = Field(1, ge=0)
    """How often an episode that failed for an infrastructure reason is played again."""
    max_concurrent: int = Field(1024, ge=1)
    """Episodes in the air at once; more are played in waves, so that batches don't depend on timing."""


class Lockstep:
    """Collects requests until every live episode waits for one, then asks the engines once for all of them."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._live = 0
        self._waiting: dict[Key, Waiting] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def enter(self) -> None:
        """An episode begins: no batch goes out before it asks or leaves."""
        self._live += 1

    def leave(self) -> None:
        """An episode ended."""
        self._live -= 1
        self._check_soon()

    async def submit(self, key: Key, engine: str, request: Request, deadline: asyncio.Timeout) -> Completion:
        """Wait for the batch and return this request's completion. The deadline rests until the batch goes out."""
        loop = asyncio.get_running_loop()
        when = deadline.when()
        seconds = None if when is None else when - loop.time()
        deadline.reschedule(None)
        waiting = self._waiting[key] = Waiting(engine, request, loop.create_future(), deadline, seconds)
        self._check_soon()
        try:
            return await waiting.answer
        finally:
            self._waiting.pop(key, None)

    def _check_soon(self) -> None:
        # Not at once: episodes that are ready to run have yet to enter, or to ask.
        asyncio.get_running_loop().call_soon(self._ask_if_all_wait)

    def _ask_if_all_wait(self) -> None:
        if not self._waiting or len({key[:2] for key in self._waiting}) < self._live:
            return
        batch = [self._waiting.pop(key) for key in sorted(self._waiting)]
        for entry in batch:
            if entry.seconds is not None:
                entry.deadline.reschedule(asyncio.get_running_loop().time() + entry.seconds)
        for name in sorted({entry.engine for entry in batch}):
            asking = asyncio.ensure_future(self._ask(name, [entry for entry in batch if entry.engine == name]))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _ask(self, name: str, batch: Sequence[Waiting]) -> None:
        """Give each episode its answer, or the reason why there is none."""
        try:
            with boundary(EngineError, f"engine {name!r}"):
                answers = await self._engines[name].generate([entry.request for entry in batch])
                if len(answers) != len(batch):
                    raise ValueError(f"{len(answers)} completions for {len(batch)} requests")
        except GruppoError as error:
            if isinstance(error, EngineError) and len(batch) > 1:  # one request must not fail its siblings
                await asyncio.gather(*(self._ask(name, [entry]) for entry in batch))
                return
            for entry in batch:
                if not entry.answer.done():
                    entry.answer.set_exception(error)
            return
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.answer.done():
                entry.answer.set_result(answer)


@dataclass(frozen=True)
class Rollout:
    """Everything that plays: the team, its roles, their engines and tools, and the rewards that score it."""

    team: Team
    roles: Mapping[str, Role]
    engines: Mapping[str, Engine]
    tools: Mapping[str, Tool]
    rewards: Mapping[str, tuple[Reward, float]]
    config: RolloutConfig
    turn_rewards: Mapping[str, tuple[TurnReward, float]] = field(default_factory=dict)
    on_episode: Callable[[Episode], None] = lambda episode: None

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

    def _score(self, groups: Sequence[Group]) -> None:
        episodes = [episode for group in groups for episode in group.episodes]
        if episodes and all(episode.outcome == Outcome.team_failed for episode in episodes):
            raise TeamError(f"the team failed in all {len(episodes)} episodes: {episodes[0].error}")
        for group in groups:
            score_group(self.rewards, group)
            score_turns(self.turn_rewards, group)
        check_scores(self.rewards, episodes)

    async def _play(self, lockstep: Lockstep, at: tuple[int, int], seed: int, group: Group) -> Episode:
        """One attempt, played again with the same seed while the infrastructure fails it."""
        task, attempt = group.task, at[1]
        lockstep.enter()
        try:
            for retry in range(self.config.retries + 1):
                episode = Episode(task.id, group.id, attempt, seed_of(seed, group.id, attempt), retries=retry)
                await self._attempt(lockstep, at, task, episode)
                if not episode.outcome.is_infrastructure:
                    break
        finally:
            lockstep.leave()
        self.on_episode(episode)
        return episode

    async def _attempt(self, lockstep: Lockstep, at: tuple[int, int], task: Task, episode: Episode) -> None:
        """Fill `episode`. Whatever the team, the engine or a tool raises becomes its outcome."""
        count = 0

        def submit(engine: str, request: Request) -> Awaitable[Completion]:
            nonlocal count
            count += 1
            return lockstep.submit((*at, count), engine, request, deadline)

        cast = Cast(episode, self.roles, self.tools, submit)
        deadline = asyncio.timeout(self.config.max_seconds)
        started = time.monotonic()
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
        except UserError:
            raise
        except Exception as error:  # a team is foreign code: its failure is this episode's, not its siblings'
            episode.outcome, episode.error = Outcome.team_failed, f"{type(error).__name__}: {error}"
        episode.seconds = time.monotonic() - started


def collect_side_by_side(
    rollouts: Mapping[str, Rollout], tasks: Sequence[Task], attempts: int, seed: int
) -> dict[str, list[Group]]:
    """As `collect` for several rollouts by label, all in one lockstep: what they ask alike is computed once.

    They share the engines and the limits of the first.
    """
    groups = asyncio.run(_play_all(rollouts, tasks, attempts, seed))
    for label, rollout in rollouts.items():
        rollout._score(groups[label])
    return groups


async def _play_all(
    rollouts: Mapping[str, Rollout], tasks: Sequence[Task], attempts: int, seed: int
) -> dict[str, list[Group]]:
    first = next(iter(rollouts.values()))
    lockstep = Lockstep(first.engines)
    groups = [
        (rollout, Group(id_, task, []))
        for label, rollout in rollouts.items()
        for id_, task in zip(group_ids(tasks, label), tasks, strict=True)
    ]
    places = [(number, attempt) for number in range(len(groups)) for attempt in range(attempts)]
    for start in range(0, len(places), first.config.max_concurrent):
        wave = places[start : start + first.config.max_concurrent]
        playing = (groups[at[0]][0]._play(lockstep, at, seed, groups[at[0]][1]) for at in wave)
        for at, episode in zip(wave, await asyncio.gather(*playing), strict=True):
            groups[at[0]][1].episodes.append(episode)
    found = [group for _, group in groups]
    return {label: found[number * len(tasks) : (number + 1) * len(tasks)] for number, label in enumerate(rollouts)}


def check_scores(names: Iterable[str], episodes: Sequence[Episode]) -> None:
    """RewardError for a reward function that raised, or returned NaN, for every episode there was to score."""
    scorable = [episode for episode in episodes if not episode.outcome.is_infrastructure]
    for name in names:
        reasons = [episode.scores[name].reason for episode in scorable]
        if reasons and all(reason.startswith(("raised ", "returned NaN")) for reason in reasons):
            raise RewardError(f"reward {name!r} {reasons[0]} in all {len(reasons)} episodes: nothing can be learnt")


def group_ids(tasks: Sequence[Task], label: str) -> list[str]:
    """One id per task; a task that comes again gets a number, and with it draws of its own."""
    seen: Counter[str] = Counter()
    ids = []
    for task in tasks:
        seen[task.id] += 1
        ids.append(f"{label}/{task.id}" + (f"#{seen[task.id]}" if seen[task.id] > 1 else ""))
    return ids
