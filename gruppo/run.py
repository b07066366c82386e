"""The parts of a run, put together from its config: the one file that knows every family.

It starts nothing: `stages.py` plays a run from beginning to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, model_validator

from gruppo.algorithms import AlgorithmConfig, CreditConfig
from gruppo.config import Config, load_object, suggest
from gruppo.data.base import TaskSet
from gruppo.data.gym import gym_score
from gruppo.data.gym_process import require_gym
from gruppo.data.round_splits import round_tasks
from gruppo.data.rounds import RoundsConfig
from gruppo.data.selection import GYM, Place, mixture, tasks_of
from gruppo.data.world import with_labels, world_of, world_tasks
from gruppo.engine_room import EngineConfig, calls, endpoints, learner_engine, make_engines
from gruppo.engines.local import LocalEngine
from gruppo.engines.openai import OpenAIEngine
from gruppo.engines.unforged import Unforged
from gruppo.errors import ConfigError, boundary
from gruppo.monitors import Monitor, MonitorConfig
from gruppo.rewards import REWARDS
from gruppo.rewards.judge import Judge, JudgeConfig
from gruppo.rewards.menu import GRADINGS, RewardConfig, check_names, make_judge, make_rewards
from gruppo.rewards.rules import is_async
from gruppo.rewards.turns import TURN_REWARDS
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.teams import TEAMS
from gruppo.teams.base import Prompt, Role, Team
from gruppo.teams.search import SearchConfig
from gruppo.teams.solo import Solo, SoloConfig
from gruppo.teams.solver import SolverConfig
from gruppo.tool_calls import OBSERVATIONS, call_format
from gruppo.toolbox import ToolsConfig, can_renew, close_tools, isolation_of, make_tools, renew
from gruppo.training.alarms import AlarmsConfig
from gruppo.training.grpo import GRPOConfig
from gruppo.training.learner import Learner
from gruppo.training.model import ModelConfig, PolicyConfig
from gruppo.training.sft import SFTConfig
from gruppo.troupe import Troupe
from gruppo.types import Engine, Reward, Sampling, TurnReward

BUILT_IN: Mapping[str, Reward] = {**REWARDS, "gym": gym_score}
"""The reward functions without settings."""


class TasksConfig(Config):
    """Where tasks come from."""

    train: str = "world"
    """"world" (embedded), a task file or folder, a known data set ("gsm8k:train[:1000]"), "gym:NAME", "mix", or
    "rounds": the states of deep searches."""
    validation: str = "world"
    """For evaluations during training: as train."""
    test: str = "world"
    """For the evaluations before and after: as train."""
    columns: dict[str, str] = {}
    """Our column -> its name in the task files."""
    folder: str = "data"
    """Where the files of known data sets are."""
    download: bool = False
    """Whether files of known data sets that are not there may be fetched from the hub."""
    mix: dict[str, float] = {}
    """What "mix" is made of: data set, generator or file -> weight."""
    gym: dict[str, dict[str, Any]] = {}
    """Generator of reasoning-gym -> its own settings."""
    rounds: RoundsConfig = RoundsConfig()
    families: list[str] = Field(
        ["compute", "lookup", "compute-lookup", "lookup-compute", "lookup-lookup"], min_length=1
    )
    """Question families drawn from the world."""
    world_seed: int = 0
    """Which world."""
    num_train: int = Field(1000, ge=1)
    """Training tasks drawn from the world, or the most taken from a file."""
    num_validation: int = Field(100, ge=1)
    """As num_train."""
    num_test: int = Field(300, ge=1)
    """As num_train."""

    @model_validator(mode="after")
    def _check_use(self) -> TasksConfig:
        used = [self.train, self.validation, self.test]
        if self.mix and "mix" not in used:
            raise ValueError('tasks.mix: nothing takes it; set tasks.train = "mix"')
        if "mix" in used and not self.mix:
            raise ValueError('"mix" is made of [tasks.mix], which is empty: name data sets and weights there')
        if (self.rounds.folder or self.rounds.evaluation_folder) and "rounds" not in used:
            raise ValueError('tasks.rounds.folder: nothing takes it; set tasks.train = "rounds"')
        if idle := self.gym.keys() - {text.removeprefix(GYM) for text in (*used, *self.mix)}:
            raise ValueError(f'tasks.gym.{min(idle)}: no tasks are taken from it; set tasks.train = "gym:{min(idle)}"')
        return self


class TeamConfig(Config):
    """Which program plays, and its limits."""

    program: str = "solver"
    """"solver", "solo", "search", "search_from_state" (where its executor learns), or your own class:
    "file.py:Name"."""
    solver: SolverConfig = SolverConfig()
    solo: SoloConfig = SoloConfig()
    search: SearchConfig = SearchConfig()


class RoleConfig(Config):
    """One seat of the team."""

    policy: str | None = None
    """The trained weights that play it; several roles may name the same. None: the engine's own model."""
    trained: bool = True
    """False: plays with its policy, which reinforcement learning leaves alone."""
    engine: str = "local"
    """"local", or the name of an entry in [engines]. A local role without a policy is the frozen base."""
    temperature: float = Field(1.0, ge=0)
    """Of sampling; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; refused below 1 for a trained role."""
    max_tokens: int = Field(256, ge=1)
    """Longest action."""
    stop: list[str] = []
    """Strings that end an action."""
    system: str | None = None
    """Replaces the team's system prompt."""
    user: str | None = None
    """Replaces the team's user prompt; may hold the team's {fields}."""


class EvalConfig(Config):
    """Evaluation on the test split before, between and after."""

    stages: bool = True
    """Whether a training run evaluates the base, the cold start and the end, and writes report.html."""
    modes: list[Literal["greedy", "sampled"]] = ["greedy", "sampled"]
    """"greedy" (temperature 0) and "sampled" (temperature 1)."""
    attempts: int = Field(1, ge=1)
    """Episodes per task."""


class RunConfig(Config):
    """Everything a run needs to know."""

    title: str = "gruppo run"
    """Heads the report."""
    seed: int = 0
    """Of adapters, task order and every draw."""
    start_from: str = ""
    """A run with the same policies, whose newest checkpoint's weights they start with; empty: fresh ones."""
    model: ModelConfig = ModelConfig()
    policies: dict[str, PolicyConfig] = {}
    roles: dict[str, RoleConfig] = {}
    team: TeamConfig = TeamConfig()
    engines: dict[str, EngineConfig] = {}
    tasks: TasksConfig = TasksConfig()
    tools: ToolsConfig = ToolsConfig()
    rewards: dict[str, float] = {}
    """Reward function -> weight: those of docs/rewards.md, as "exact", or your own: "file.py:name". Empty: exact."""
    reward: RewardConfig = RewardConfig()
    judge: JudgeConfig = JudgeConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    credit: CreditConfig = CreditConfig()
    sft: SFTConfig = SFTConfig()
    train: GRPOConfig = GRPOConfig()
    alarms: AlarmsConfig = AlarmsConfig()
    monitors: list[Monitor] = []
    """What also gets every record of metrics.jsonl: "tensorboard", "wandb", "trackio" (extras), "log" (a text file)."""
    monitor: MonitorConfig = MonitorConfig()
    eval: EvalConfig = EvalConfig()


@dataclass(frozen=True)
class Assembly:
    """The parts of a run that do not depend on its folder."""

    learner: Learner
    rollout: Rollout
    isolation: str

    def close(self) -> None:
        """End the processes of the tools and of the learner."""
        self.learner.replicas.stop()
        close_tools(self.rollout.tools.values())


def assemble(config: RunConfig, rewards: Mapping[str, Reward] = MappingProxyType({})) -> Assembly:
    """Team, roles, tools, engines, rewards and learner; `rewards` as in `find_rewards`.

    Raises ConfigError for what can't be put together.
    """
    team = make_team(config.team)
    roles = {name: make_role(config, team, name) for name in order(config.roles, team)}
    tools = make_tools(config.tools, endpoints(config.engines), config.tasks.world_seed)
    found = find_rewards(config, rewards)
    played = {name for role in config.roles.values() for name in (role.policy, role.engine)}
    played |= {config.judge.engine, config.tools.engine}
    for table, names in (("policies", config.policies), ("engines", config.engines)):
        if idle := set(names) - played:
            raise ConfigError(f"{table}.{min(idle)}: no role plays with it; name it in [roles] or leave it out")
    learner = Learner(config.model, config.policies, config.seed)
    seated = {role.engine for role in roles.values()}
    made = {**make_engines(config.engines, config.model, seated), "local": learner_engine(learner)}
    engines: dict[str, Engine] = {**made}
    if isinstance(team, Solo) and tools:
        here = {name: engine for name, engine in made.items() if isinstance(engine, LocalEngine)}
        if config.team.solo.call_format == "template":
            for name in seated & here.keys():
                team.call_format = call_format(str(here[name].tokenizer.get_chat_template()))
        engines |= {name: Unforged(engine, engine.tokenizer) for name, engine in here.items()}
    of_turns = {name: (find_turn_reward(name), weight) for name, weight in config.credit.turn_rewards.items()}
    rollout = Rollout(team, roles, engines, tools, found, config.rollout, of_turns, calls=calls(config.engines))
    if can_play_apart(config, rollout):
        rollout = replace(rollout, troupe=Troupe(rollout, learner.replicas, partial(renew, config.tools), close_tools))
    return Assembly(learner, rollout, isolation_of(tools.values()))


def assemble_frozen(config: RunConfig) -> Rollout:
    """What plays a config in which no role needs the local engine: no base is loaded, and nothing can be trained."""
    team = make_team(config.team)
    roles = {name: make_role(config, team, name) for name in order(config.roles, team)}
    tools = make_tools(config.tools, endpoints(config.engines), config.tasks.world_seed)
    engines = make_engines(config.engines, config.model, {role.engine for role in roles.values()})
    return Rollout(team, roles, engines, tools, {}, config.rollout, calls=calls(config.engines))


def can_play_apart(config: RunConfig, rollout: Rollout) -> bool:
    """Whether several processes may play whole episodes, not only sample: none would miss what another does."""
    ours = config.team.program in TEAMS and can_renew(rollout.tools.values())
    here = {role.engine for role in rollout.roles.values()} == {"local"}
    waits = config.rollout.mode == "async" or any(is_async(function) for function, _ in rollout.rewards.values())
    return config.model.processes > 1 and ours and here and not waits


def check(config: RunConfig) -> None:
    """What can be told without making anything but the team: raises ConfigError for a name that stands for nothing."""
    team = make_team(config.team)
    for name in order(config.roles, team):
        make_role(config, team, name)
    check_names(config.rewards, BUILT_IN)
    for name in config.credit.turn_rewards:
        find_turn_reward(name)


def make_team(config: TeamConfig) -> Team:
    """The team's program."""
    if config.program in TEAMS:
        own = {"solver": config.solver, "solo": config.solo}
        return TEAMS[config.program](own.get(config.program, config.search))
    if ":" not in config.program:
        raise ConfigError(f"team.program = {config.program!r}: no such team{suggest(config.program, TEAMS)}")
    with boundary(ConfigError, f"team.program = {config.program!r}"):
        team = load_object(config.program)()
    if missing := {"roles", "prompts", "play"} - set(dir(team)):
        raise ConfigError(
            f"team.program = {config.program!r}: a team has roles, prompts and play; no {min(missing)} here"
        )
    return team


def find_rewards(
    config: RunConfig, rewards: Mapping[str, Reward] = MappingProxyType({})
) -> dict[str, tuple[Reward, float]]:
    """Name -> reward function, built in, the user's or one of `rewards`, and its weight."""
    weights = config.rewards or {"exact": 1.0}
    if "gym" in {*weights, *config.reward.by_source.values()}:
        require_gym()
    return make_rewards(
        weights,
        {**BUILT_IN, **rewards},
        config.reward,
        config.judge,
        partial(judging, config),
        config.team.search.replay,
    )


def find_judge(config: RunConfig) -> Judge:
    """The judge on its own, whether or not a reward asks it."""
    return make_judge(config.judge, partial(judging, config), GRADINGS[config.reward.grading])


def judging(config: RunConfig, name: str) -> tuple[Engine, str]:
    """The engine that judges, and what its model is called in the cache."""
    if name == "local":
        raise ConfigError(
            "judge.engine = 'local': the engine that plays can't judge, see docs/rewards.md; serve a model, and name it"
            " in [engines]"
        )
    servers = endpoints(config.engines)
    if name not in servers:
        raise ConfigError(f"judge.engine = {name!r}: no such endpoint in [engines]{suggest(name, servers)}")
    own = servers[name]
    return OpenAIEngine(own), f"{own.model} at {own.base_url}"


def find_turn_reward(name: str) -> TurnReward:
    """A built-in reward function for turns, or the user's."""
    if name in TURN_REWARDS:
        return TURN_REWARDS[name]
    if ":" not in name:
        raise ConfigError(
            f"credit.turn_rewards.{name}: no such reward{suggest(name, TURN_REWARDS)}; your own is 'file.py:name'"
        )
    return load_object(name)


def order(roles: dict[str, RoleConfig], team: Team) -> list[str]:
    """The configured roles in the team's order. Raises ConfigError for a role that the team does not have."""
    for name in roles:
        if name not in team.roles:
            raise ConfigError(f"unknown role roles.{name}{suggest(name, team.roles)}")
    return [name for name in team.roles if name in roles]


def make_role(config: RunConfig, team: Team, name: str) -> Role:
    """A seat with its prompt, sampling, engine and policy."""
    role = config.roles[name]
    if role.engine != "local" and role.engine not in config.engines:
        raise ConfigError(
            f"roles.{name}.engine = {role.engine!r}: no such engine{suggest(role.engine, ['local', *config.engines])}"
        )
    if role.policy is not None and role.policy not in config.policies:
        raise ConfigError(
            f"roles.{name}.policy = {role.policy!r}: no such policy{suggest(role.policy, config.policies)}"
        )
    if role.policy is not None and role.engine != "local":
        raise ConfigError(f"roles.{name}: policy {role.policy!r} plays on the local engine, not on {role.engine!r}")
    prompt = team.prompts.get(name, Prompt("{question}"))
    prompt = Prompt(
        prompt.user if role.user is None else role.user, prompt.system if role.system is None else role.system
    )
    # An agent alone may go on to answer its own calls: what it would make up is neither shown to it nor trained on.
    forged = OBSERVATIONS if isinstance(team, Solo) and config.tools.names else ()
    sampling = Sampling(role.temperature, role.top_p, role.max_tokens, (*role.stop, *forged))
    return Role(name, prompt, sampling, role.engine, role.policy, role.policy is not None and role.trained)


def make_tasks(config: RunConfig, split: str) -> TaskSet:
    """The tasks of "train", "validation" or "test"."""
    tasks = config.tasks
    source = {"train": tasks.train, "validation": tasks.validation, "test": tasks.test}[split]
    count = {"train": tasks.num_train, "validation": tasks.num_validation, "test": tasks.num_test}[split]
    if source == "rounds":
        return round_tasks(tasks.rounds, split, count)
    if source == "world":
        world = world_of(tasks.world_seed)
        drawn = world_tasks(world, split, count, tasks.families)
        return with_labels(drawn, world) if config.team.program == "search" else drawn
    place = Place(Path(tasks.folder), tasks.download, tasks.columns, tasks.gym, config.seed)
    if source == "mix":
        return mixture(tasks.mix, place, split, count)
    return tasks_of(source, place, split, count)


def of_families(tasks: TaskSet, families: Sequence[str], key: str) -> TaskSet:
    """The tasks of these families, of all if there are none. Raises ConfigError naming `key` for one without tasks."""
    there = {str(task.extra_info.get("family")) for task in tasks}
    for family in families:
        if family not in there:
            raise ConfigError(f"{key}: no training task of family {family!r}{suggest(family, there)}")
    return TaskSet([t for t in tasks if not families or t.extra_info.get("family") in families], tasks.name)
