"""Exported policies: what PEFT and transformers load plays what the policy played, and a wrong one is noticed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_run import play

from gruppo.errors import StoreError
from gruppo.export import Form, export, is_adapter, num_same
from gruppo.store import Checkpoint, Run
from gruppo.training.model import ModelConfig
from gruppo.types import Request, Sampling, StopReason, Turn

POLICIES = ["executor", "planner", "spare"]


@dataclass(frozen=True)
class Trained:
    """A trained run's base, its newest checkpoint, and a greedy turn of its planner."""

    model: ModelConfig
    checkpoint: Checkpoint
    turn: Turn


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    threads, folder = torch.get_num_threads(), tmp_path_factory.mktemp("trained")
    parts, _ = play(folder, "run", policies__planner__learning_rate="0.3")
    checkpoint = Run.open(folder / "run").latest_checkpoint()
    assert checkpoint is not None
    sampling = Sampling(0.0, max_tokens=12)
    request = Request([{"role": "user", "content": "Tool: wikipedia\nSub-goal: where?"}], sampling, 0, "planner")
    (one,) = parts.rollout.engines["local"].sample([request])  # type: ignore[attr-defined]
    turn = Turn(
        role="planner",
        policy="planner",
        version=one.version,
        prompt=one.prompt,
        prompt_ids=one.prompt_ids,
        action_ids=one.ids,
        action_logprobs=one.logprobs,
        sampling=sampling,
        stop_reason=StopReason(one.stop_reason),
        text=one.text,
    )
    yield Trained(parts.learner.config, checkpoint, turn)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("form", ["adapters", "merged"])
def test_what_is_exported_plays_the_same_tokens(trained: Trained, tmp_path: Path, form: Form) -> None:
    out = tmp_path / "models" / "out"
    assert export(trained.model, trained.checkpoint, form, out) == POLICIES
    assert [entry.name for entry in out.parent.iterdir()] == ["out"], "nothing half-done is left"
    assert is_adapter(out / "planner") == (form == "adapters") and (out / "planner" / "tokenizer.json").exists()
    assert num_same(trained.model, out / "planner", trained.turn) == len(trained.turn.action_ids)
    assert num_same(trained.model, out / "spare", trained.turn) < len(trained.turn.action_ids), "the planner has learnt"
    if form == "adapters":
        said = json.loads((out / "planner" / "adapter_config.json").read_text())["base_model_name_or_path"]
        assert Path(said).is_dir(), "PEFT finds the base"


@pytest.mark.parametrize("form", ["adapters", "merged"])
def test_weights_that_were_spoiled_are_noticed(trained: Trained, tmp_path: Path, form: Form) -> None:
    export(trained.model, trained.checkpoint, form, tmp_path / "out")
    (file,) = (tmp_path / "out" / "planner").glob("*.safetensors")
    tensors = load_file(file)
    save_file({name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    assert num_same(trained.model, tmp_path / "out" / "planner", trained.turn) < len(trained.turn.action_ids)


def test_nothing_is_overwritten(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreError, match="out is there already: move it away"):
        export(trained.model, trained.checkpoint, "adapters", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
