"""The smallest run of a team, for tests of the hub: two steps on a layer of the embedded base, with any reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from one_layer import one_layer
from rich.console import Console

from gruppo.config import dump, load
from gruppo.evaluation.metrics import rollout_metrics
from gruppo.log import Log
from gruppo.run import Assembly, RunConfig, assemble, make_tasks
from gruppo.store import Run
from gruppo.training.alarms import Alarms
from gruppo.training.grpo import Parts, grpo
from gruppo.types import Episode, Reward, Task

# The verifier is cut off before it can say "stop", so every episode has as many plans as steps.
CONFIG = """
[model]
threads = 1
[policies.planner]
rank = 4
learning_rate = 1e-2
[policies.executor]
rank = 4
learning_rate = 1e-2
[policies.spare]
rank = 4
[roles.planner]
policy = "planner"
temperature = 2.0
max_tokens = 4
[roles.executor]
policy = "executor"
max_tokens = 6
[roles.verifier]
policy = "spare"
trained = false
max_tokens = 1
[roles.writer]
temperature = 0.0
max_tokens = 4
[team.solver]
prompts = "compact"
max_steps = 2
[tools]
names = ["wikipedia"]
[tasks]
num_train = 6
families = ["lookup"]
[train]
steps = 2
tasks_per_step = 2
attempts = 4
"""


def noise(task: Task, episodes: Sequence[Episode]) -> list[float]:
    """A reward that differs between attempts whatever the base can do and depends on what was sampled."""
    return [e.attempt + sum(sum(turn.action_ids) for turn in e.turns) % 97 / 97 for e in episodes]


def config_of(tmp_path: Path, **overrides: str) -> RunConfig:
    """The config of the run."""
    file = tmp_path / "config.toml"
    file.write_text(CONFIG)
    keys = {"model.base": one_layer(), **{key.replace("__", "."): value for key, value in overrides.items()}}
    return load(RunConfig, [file], keys)


def quiet() -> Log:
    return Log(Console(quiet=True))


@contextmanager
def parts_of(config: RunConfig, out: Path, reward: Reward = noise, resume: bool = False) -> Iterator[Parts]:
    assembly: Assembly = assemble(config)
    rollout = replace(assembly.rollout, rewards={"noise": (reward, 1.0)})
    with Run.resume(out) if resume else Run.create(out, dump(config)) as run:
        yield Parts(
            run=run,
            learner=assembly.learner,
            rollout=rollout,
            tasks=make_tasks(config, "train"),
            algorithm=config.algorithm,
            credit=config.credit,
            alarms=Alarms(config.alarms, config.train.attempts, config.train.updates),
            seed=config.seed,
            log=quiet(),
            measure=rollout_metrics,
            evaluate=lambda step: {"eval/success": float(step)},
        )
    assembly.close()


def play(tmp_path: Path, name: str, reward: Reward = noise, **overrides: str) -> tuple[Parts, list[dict[str, Any]]]:
    """A whole run of the hub in a folder of its own: its parts, and its metrics."""
    config = config_of(tmp_path, **overrides)
    with parts_of(config, tmp_path / name, reward) as parts:
        grpo(parts, config.train)
        return parts, parts.run.read_metrics()


def fingerprints(parts: Parts) -> dict[str, str]:
    return {policy: parts.learner.fingerprint(policy) for policy in parts.learner.policies}
