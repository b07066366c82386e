"""The cold start on written solutions, its checkpoints, its evaluations, and optimizers by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from one_layer import one_layer
from small_run import quiet

from gruppo.config import load
from gruppo.errors import ConfigError
from gruppo.log import Bar, Log
from gruppo.run import RunConfig
from gruppo.stages import train
from gruppo.store import Run
from gruppo.training.learner import Learner
from gruppo.training.model import ModelConfig, PolicyConfig

TASKS = [{"question": f"{n} + {n}?", "result": str(n + n), "chain": f"{n}+{n}={n + n}"} for n in range(1, 9)]


class Interrupted(Exception):
    """What a kill is to these tests."""


class Interrupting(Log):
    """A log that is interrupted once the cold start has done so many steps."""

    def __init__(self, after: int) -> None:
        super().__init__(quiet().console)
        self.after = after

    def progress(self, description: str, total: int, completed: int = 0, noun: str = "step") -> Any:
        log = self

        class Counted(Bar):
            def advance(self, num_episodes: int = 0, **fields: Any) -> None:
                super().advance(num_episodes, **fields)
                if self._step > log.after:
                    raise Interrupted

        return _closing(Counted(self, description, total, completed, noun))


class _closing:
    def __init__(self, bar: Bar) -> None:
        self.bar = bar

    def __enter__(self) -> Bar:
        return self.bar

    def __exit__(self, *_: object) -> None:
        self.bar.close()


@pytest.fixture
def config(tmp_path: Path) -> Any:
    for split in ("train", "held_out"):
        lines = TASKS if split == "train" else TASKS[:2]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))

    def make(**changes: str) -> RunConfig:
        keys = {
            "model.base": one_layer(), "model.threads": "1", "policies.solver.rank": "4",
            "roles.agent.policy": "solver", "team.program": "solo", "tools.names": "[]",
            "tasks.train": str(tmp_path / "train.jsonl"),
            "tasks.validation": str(tmp_path / "held_out.jsonl"), "sft.steps": "5", "sft.batch_size": "4",
            "train.steps": "0", "eval.stages": "false",
        }  # fmt: skip
        return load(RunConfig, [], keys | {key.replace("__", "."): value for key, value in changes.items()})

    return make


def test_a_killed_cold_start_goes_on_from_its_checkpoint_to_the_same_bits(config: Any, tmp_path: Path) -> None:
    own = config(sft__save_every="2")
    train(own, tmp_path / "whole", False, quiet())
    with pytest.raises(Interrupted):
        train(own, tmp_path / "killed", False, Interrupting(after=4))
    killed = Run.open(tmp_path / "killed")
    assert killed.list_checkpoints() == [2, 4] and killed.checkpoint(4).state["stage"] == "sft"
    train(own, tmp_path / "killed", True, quiet())
    ends = [Run.open(tmp_path / name) for name in ("whole", "killed")]
    assert ends[0].read_metrics() == ends[1].read_metrics() and len(ends[0].read_metrics()) == 5
    assert [run.list_checkpoints() for run in ends] == [[0], [0]], "where reinforcement learning would begin"
    weights = [run.checkpoint(0).path / "policies" / "solver" / "adapter_model.safetensors" for run in ends]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_evaluations_look_at_the_validation_split_and_change_nothing(config: Any, tmp_path: Path) -> None:
    train(config(), tmp_path / "plain", False, quiet())
    train(config(sft__eval_every="2"), tmp_path / "looking", False, quiet())
    plain, looking = (Run.open(tmp_path / name).read_metrics() for name in ("plain", "looking"))
    assert [record["step"] for record in looking if "eval/loss/solver" in record] == [2, 4]
    rest = [{key: value for key, value in record.items() if "eval" not in key} for record in looking]
    assert rest == plain
    losses = [record["eval/loss/solver"] for record in looking if "eval/loss/solver" in record]
    assert losses[1] < losses[0], "what is held out here is shown too"


def test_longer_demonstrations_are_left_out(config: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sft.max_length = 3: the shortest demonstration has"):
        train(config(sft__max_length="3"), tmp_path / "run", False, quiet())


def test_optimizers_by_name_and_what_decays() -> None:
    policies = {
        "plain": PolicyConfig(rank=2),
        "decaying": PolicyConfig(rank=2, weight_decay=0.5),
        "descending": PolicyConfig(rank=2, optimizer="sgd"),
    }
    learner = Learner(ModelConfig(threads=1), policies, 0)
    learner.start_optimizers(dict.fromkeys(policies, 0.1))
    kinds = {name: type(optimizer) for name, optimizer in learner._optimizers.items()}
    assert kinds == {"plain": torch.optim.AdamW, "decaying": torch.optim.AdamW, "descending": torch.optim.SGD}
    for name, factor in (("plain", 1.0), ("decaying", 0.95), ("descending", 1.0)):
        weight = next(iter(learner.parameters(name).values()))
        before, weight.grad = weight.detach().clone(), torch.zeros_like(weight)
        for other in learner.parameters(name).values():
            other.grad = torch.zeros_like(other)
        learner.step(name, 1.0, 1.0)
        assert torch.allclose(weight, factor * before)


def test_sgd_is_saved_and_read_back(tmp_path: Path) -> None:
    policies = {"one": PolicyConfig(rank=2, optimizer="sgd")}
    learner = Learner(ModelConfig(threads=1), policies, 0)
    learner.start_optimizers({"one": 0.1})
    for parameter in learner.parameters("one").values():
        parameter.grad = torch.ones_like(parameter)
    learner.step("one", 1.0, 1.0)
    learner.save(tmp_path / "saved")
    other = Learner(ModelConfig(threads=1), policies, 1)
    other.start_optimizers({"one": 0.1})
    other.load(tmp_path / "saved", {"one": 1})
    for mine, theirs in zip(learner.parameters("one").values(), other.parameters("one").values(), strict=True):
        states = (learner._optimizers["one"].state[mine], other._optimizers["one"].state[theirs])
        assert torch.equal(states[0]["momentum_buffer"], states[1]["momentum_buffer"])
