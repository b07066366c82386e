"""Training of the executor, the role that writes search clues: `gruppo search train`, without the printing.

The states of searches on disk become the tasks, the ordinary hub (`training/grpo.py`) trains on them, and a run folder
comes out as of any other training. All other seats are frozen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gruppo import stages
from gruppo.config import load
from gruppo.data.round_splits import given_rounds
from gruppo.errors import ConfigError
from gruppo.log import Log
from gruppo.run import RunConfig

DEFAULTS = Path(__file__).parent / "train.toml"
TRAINED = "executor"


def config_of(
    rounds: Path,
    evaluation: Path | None,
    files: Sequence[Path],
    overrides: Mapping[str, str],
    epochs: int | None = None,
) -> RunConfig:
    """The config of a training on the searches below `rounds`: our defaults, the user's files, what it can't do
    without, and the user's flags. With `epochs`, train.steps is what takes each state so many times.

    Raises ConfigError for a config that trains another role, DataError if there is nothing to train on.
    """
    own = {"team.program": "search_from_state", "tools.names": '["documents"]', "tasks.rounds.folder": f"{rounds}"}
    own |= dict.fromkeys(("tasks.train", "tasks.validation", "tasks.test"), "rounds")
    if evaluation:
        own["tasks.rounds.evaluation_folder"] = f"{evaluation}"
    if taken := own.keys() & overrides.keys():
        raise ConfigError(
            f"--{min(taken)}: `gruppo search train` sets it; use --rounds and --evaluation, or gruppo train"
        )
    config = load(RunConfig, [DEFAULTS, *files], {**own, **overrides})
    for name, role in config.roles.items():
        if role.policy is not None and role.trained and name != TRAINED:
            raise ConfigError(
                f"roles.{name}.policy = {role.policy!r}: `gruppo search train` trains the executor alone, so that its"
                f" clues are compared on the same ground; set roles.{name}.trained = false"
            )
    if epochs is None:
        return config
    if "train.steps" in overrides:
        raise ConfigError(f"--epochs {epochs}: --train.steps says how long to train already; leave one out")
    num_states = min(len(given_rounds(config.tasks.rounds).training), config.tasks.num_train)
    steps = math.ceil(epochs * num_states / config.train.tasks_per_step)
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})


def train(config: RunConfig, out: Path, log: Log) -> dict[str, Any]:
    """Train in the folder `out`; returns the summary, as `gruppo train` does."""
    log.say(given_rounds(config.tasks.rounds).text())
    return stages.train(config, out, False, log)


def resume(out: Path, log: Log) -> dict[str, Any]:
    """Go on with a training, with its own config."""
    return stages.train(load(RunConfig, [stages.config_of(out)]), out, True, log)
