"""Our side of the speed comparisons: one training step of gruppo, taken apart into sampling and the rest.

The calls are those of `gruppo/training/grpo.py`, in its order, with its metrics; only what it writes to the run's
folder is left out. The team is the built-in `solo`: an action that is cut off is told so, which makes the next turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from timing import clock
from workload import ALPHA, RANK, Workload, folder_of, questions

from gruppo.algorithms.batching import rows_of, shares_of
from gruppo.algorithms.credit import Terms, assign
from gruppo.data.base import TaskSet
from gruppo.engines.local import LocalEngine
from gruppo.evaluation.metrics import rollout_metrics
from gruppo.prefix_tree import common_length
from gruppo.run import RunConfig, assemble
from gruppo.training.sampling import collect
from gruppo.training.update import Coefficients, Step, update
from gruppo.types import Completion, Group, Request, Task

POLICY = "agent"
LEARNING_RATE = 1e-5


@dataclass
class Timed:
    """An engine that adds up the seconds spent in it."""

    engine: LocalEngine
    device: str
    seconds: float = 0.0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        started = clock(self.device)
        completions = await self.engine.generate(requests)
        self.seconds += clock(self.device) - started
        return completions


@dataclass(frozen=True)
class Taken:
    """What one step took. `computed_tokens` pays for each turn's whole sequence, `unique_tokens` for a prefix once."""

    seconds: float
    sampling: float
    computed_tokens: int
    unique_tokens: int
    metrics: dict[str, float] = field(default_factory=dict)


class Ours:
    """The parts of a run, without its folder."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.config = config_of(workload)
        self.assembly = assemble(self.config)
        learner = self.assembly.learner
        learner.start_optimizers({POLICY: LEARNING_RATE})
        engine = self.assembly.rollout.engines["local"]
        assert isinstance(engine, LocalEngine)
        # Every completion has the same length: what ends one is an id outside the vocabulary, on TRL's side too.
        engine.end_ids = (learner.model.config.vocab_size,)
        engine.context_length = max(engine.context_length, workload.context)
        self.engine = Timed(engine, workload.device)
        self.rollout = self.assembly.rollout
        self.rollout.engines["local"] = self.engine  # type: ignore[index]  # assembled as a dict
        self.steps = [
            TaskSet([Task(f"{step}-{place}", question, "") for place, question in enumerate(own)])
            for step, own in enumerate(questions(learner.tokenizer, workload))
        ]

    def sample(self, number: int) -> list[Group]:
        """The rollout of a step."""
        tasks, size = self.steps[number % len(self.steps)], (self.workload.prompts, self.workload.attempts)
        return collect(self.rollout, tasks, self.config.algorithm, number, size, self.config.seed)[0]

    def learn(self, groups: Sequence[Group], number: int) -> dict[str, float]:
        """Everything after the rollout."""
        config, algorithm, learner = self.config, self.config.algorithm, self.assembly.learner
        record = dict(rollout_metrics(groups))
        terms = Terms(reward_weights={name: weight for name, (_, weight) in self.rollout.rewards.items()})
        record |= assign(
            groups, list(self.rollout.roles), config.credit, algorithm.advantage, algorithm.settings, terms
        )
        rows = rows_of(groups, POLICY, algorithm.ratio_level.startswith("sequence"))
        train = config.train
        how = Step(algorithm, Coefficients(0.0, 0.0), 1.0, train.max_grad_norm, train.microbatch_tokens, number)
        return record | update(learner, POLICY, shares_of(rows, 1), how)

    def step(self, number: int) -> Taken:
        """One whole step. AssertionError if it was not the step that was asked for."""
        torch.set_num_threads(1 if self.workload.processes > 1 else self.workload.threads)
        self.engine.seconds = 0.0
        started = clock(self.workload.device)
        groups = self.sample(number)
        record = self.learn(groups, number)
        seconds = clock(self.workload.device) - started
        turns = [turn for group in groups for episode in group.episodes for turn in episode.turns]
        assert {len(turn.action_ids) for turn in turns} == {self.workload.new_tokens}, "every completion has its length"
        assert len(turns) == self.workload.rows * self.workload.turns, "every conversation has its turns"
        assert record[f"rows/{POLICY}"] == len(turns), "every group has a signal"
        sequences = [turn.prompt_ids + turn.action_ids for turn in turns]
        return Taken(seconds, self.engine.seconds, sum(map(len, sequences)), num_unique(sequences), record)


def config_of(workload: Workload) -> RunConfig:
    """The run that does this workload."""
    model: dict[str, Any] = {
        "base": str(folder_of(workload.base)),
        "dtype": workload.dtype,
        "device": workload.device,
        "threads": workload.threads,
    }
    if workload.processes > 1:
        model["processes"] = workload.processes
    return RunConfig.model_validate(
        {
            "model": model,
            "policies": {POLICY: {"rank": RANK, "alpha": ALPHA, "learning_rate": LEARNING_RATE}},
            "roles": {"agent": {"policy": POLICY, "max_tokens": workload.new_tokens, "system": ""}},
            "team": {"program": "solo", "solo": {"max_turns": workload.turns}},
            "tools": {"names": []},
            "rewards": {f"{Path(__file__).with_name('workload.py')}:hashed": 1.0},
            "rollout": {"max_seconds": 86400.0},
        }
    )


def num_unique(sequences: Sequence[tuple[int, ...]]) -> int:
    """Nodes of the prefix tree of all sequences: what has to be computed if nothing is computed twice."""
    ordered = sorted(sequences)
    return sum(map(len, ordered)) - sum(common_length(a, b) for a, b in pairwise(ordered))


def serve(connection: Connection, workload: Workload) -> None:
    """Take a step for every number received, until None."""
    ours = Ours(workload)
    connection.send("ready")
    while (number := connection.recv()) is not None:
        connection.send(vars(ours.step(number)) | {"gpu_bytes": gpu_peak(workload.device)})
    ours.assembly.close()


def gpu_peak(device: str) -> int:
    """The most bytes allocated on the device since the process began; 0 on the CPU."""
    return torch.cuda.max_memory_allocated() if device.startswith("cuda") else 0
