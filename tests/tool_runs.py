"""Trainings by the tool, for its tests: a few steps on a layer of the embedded base, each played once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from one_layer import one_layer
from safetensors.torch import load_file
from small_run import quiet

from gruppo.config import load
from gruppo.run import RunConfig
from gruppo.store import Run
from gruppo.tool import RLTrainingTool

PAIRS = ((2, 2), (5, 3), (10, 7), (4, 4), (9, 8), (1, 1), (30, 12), (6, 5))
WORKED = "We add {a} and {b}.\n{a}+{b}=<<{a}+{b}={c}>>{c}\n#### {c}"
SUMS = [{"question": f"What is {a} plus {b}?", "answer": WORKED.format(a=a, b=b, c=a + b)} for a, b in PAIRS]
SFT = {"dataset": "sums", "num_epochs": 2, "batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-2}
GRPO = {
    "dataset": "sums", "max_samples": 4, "num_epochs": 1, "batch_size": 4, "gradient_accumulation_steps": 1,
    "num_generations": 4, "max_new_tokens": 4, "learning_rate": 1e-2, "temperature": 1.0,
}  # fmt: skip


def noise(completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """A reward that differs between answers, whatever the base can do."""
    return [number % 3 + sum(ids) % 97 / 97 for number, ids in enumerate(completion_ids)]


@dataclass
class Played:
    """A training and what it left behind."""

    out: Path
    result: dict[str, Any]

    @cached_property
    def config(self) -> RunConfig:
        return load(RunConfig, [self.out / "config.toml"])

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return Run.open(self.out).read_metrics()

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        checkpoint = Run.open(self.out).latest_checkpoint()
        assert checkpoint is not None
        folder = checkpoint.path / "policies" / "agent"
        return load_file(next(folder.glob("*model.safetensors")))

    def learns_as(self, other: Played) -> bool:
        """Whether both ended with the same weights, bit for bit."""
        mine, theirs = self.weights, other.weights
        return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


class Trainings:
    """A tool in a folder of its own, and the trainings that were asked of it so far."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base = folder, Path(one_layer())
        self.tool = RLTrainingTool(quiet(), model_name=str(self.base), device="cpu", use_tensorboard=False)
        self.tool.register_dataset("sums", SUMS)
        self.tool.register_reward_function("noise", noise)
        self._played: dict[str, Played] = {}
        self._numbers = count()

    def sft(self, **changes: Any) -> Played:
        return self._train({"algorithm": "sft", **SFT, **changes})

    def grpo(self, **changes: Any) -> Played:
        return self._train({"algorithm": "grpo", "reward_type": "noise", **GRPO, **changes})

    def _train(self, parameters: dict[str, Any]) -> Played:
        key = json.dumps(parameters, sort_keys=True, default=str)
        if key not in self._played:
            out = Path(parameters.get("output_dir", self.folder / f"run{next(self._numbers)}"))
            found = json.loads(self.tool.run({"action": "train", **parameters, "output_dir": str(out)}))
            assert found["status"] == "success", found
            self._played[key] = Played(out, found)
        return self._played[key]

    def refused(self, **parameters: Any) -> str:
        """The message of a call that can't be done."""
        found = json.loads(self.tool.run(parameters))
        assert found["status"] == "error" and "\n" not in found["message"], found
        return str(found["message"])


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Trainings(tmp_path_factory.mktemp("trainings"))
    torch.set_num_threads(threads)
