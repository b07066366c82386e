"""A run that starts with the policies of another: with their weights and nothing else, and only if they fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from one_layer import one_layer
from safetensors.torch import load_file, save_file
from small_run import config_of, quiet

from gruppo.errors import ConfigError
from gruppo.run import RunConfig, assemble
from gruppo.stages import begin_again, evaluate_run, train
from gruppo.store import Checkpoint, Run

REWARD = """
def noise(task, episodes):
    return [e.attempt + sum(sum(turn.action_ids) for turn in e.turns) % 97 / 97 for e in episodes]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of one step, named first."""
    root = tmp_path_factory.mktemp("root")
    (root / "reward.py").write_text(REWARD)
    train(config(root), root / "first", False, quiet())
    return root


def config(root: Path, **changes: str) -> RunConfig:
    options = {"rewards": f'{{"{root / "reward.py"}:noise" = 1.0}}', "eval__stages": "false", "sft__steps": "0"}
    return config_of(root, **options | {"train__steps": "1"} | changes)


def newest(run: Path) -> Checkpoint:
    checkpoint = Run.open(run).latest_checkpoint()
    assert checkpoint is not None
    return checkpoint


def weights(checkpoint: Checkpoint) -> dict[str, bytes]:
    files = sorted((checkpoint.path / "policies").rglob("*.safetensors"))
    return {str(file.relative_to(checkpoint.path)): file.read_bytes() for file in files}


def test_it_starts_with_the_weights_but_with_fresh_optimizers_and_references(root: Path, tmp_path: Path) -> None:
    first, out = newest(root / "first"), tmp_path / "second"
    changes = {"start_from": str(root / "first"), "algorithm__kl_coefficient": "0.1"}
    train(config(root, **changes, train__steps="0"), out, False, quiet())
    second = newest(out)
    assert second.step == 0 and weights(second) == weights(first)
    assert weights(Run.open(root / "first").checkpoint(0)) != weights(first), "the first run has learnt"
    assert load_file(first.path / "optimizer-planner.safetensors")
    assert not load_file(second.path / "optimizer-planner.safetensors")
    reference = load_file(second.path / "reference-planner" / "model.safetensors")
    start = load_file(first.path / "policies" / "planner" / "adapter_model.safetensors")
    assert reference.keys() == start.keys() and all(torch.equal(reference[name], start[name]) for name in start)


def test_resumed_it_needs_the_first_run_no_more(root: Path, tmp_path: Path) -> None:
    first = shutil.copytree(root / "first", tmp_path / "first")
    second = partial(config, root, start_from=str(first), seed="1")  # whose own adapters would be others
    whole = train(second(train__steps="2"), tmp_path / "whole", False, quiet())
    train(second(), tmp_path / "parts", False, quiet())
    shutil.rmtree(first)
    parts = train(second(train__steps="2"), tmp_path / "parts", True, quiet())
    assert weights(newest(tmp_path / "parts")) == weights(newest(tmp_path / "whole"))
    assert parts["roles"] == whole["roles"], "what has changed since the start is told alike"
    assert [whole["roles"][role]["changed"] for role in ("planner", "verifier")] == [True, False]


def test_resumed_before_its_first_checkpoint_it_starts_from_the_first_run_again(root: Path, tmp_path: Path) -> None:
    first, out = shutil.copytree(root / "first", tmp_path / "first"), tmp_path / "second"
    second = config(root, start_from=str(first), train__steps="0")
    train(second, out, False, quiet())
    shutil.rmtree(out / "checkpoints")
    train(second, out, True, quiet())
    assert weights(newest(out)) == weights(newest(first))
    shutil.rmtree(out / "checkpoints")
    shutil.rmtree(first)
    with pytest.raises(ConfigError, match="start_from: .*first is not a run folder"):
        train(second, out, True, quiet())


def test_an_evaluation_compares_with_what_it_started_from(root: Path, tmp_path: Path) -> None:
    first, out = shutil.copytree(root / "first", tmp_path / "first"), tmp_path / "second"
    second = config(root, start_from=str(first), train__steps="0", tasks__num_test="2")
    train(second, out, False, quiet())
    run, assembly = Run.open(out), assemble(second)
    fresh = {policy: assembly.learner.fingerprint(policy) for policy in second.policies}
    begin_again(run, second, assembly.learner)
    began = {policy: assembly.learner.fingerprint(policy) for policy in second.policies}
    assembly.close()
    assert began == run.read_json("start.json") and began["planner"] != fresh["planner"]
    assert evaluate_run(out, None, "greedy", quiet())["comparison"]["gain"] == 0, "it has not learnt"

    train(config(root, train__steps="2"), first, True, quiet())
    with pytest.raises(ConfigError, match="start_from: .*first has learnt since .*second began with its weights"):
        evaluate_run(out, None, "greedy", quiet())
    shutil.rmtree(first)
    with pytest.raises(ConfigError, match="start_from: .*first is not a run folder"):
        evaluate_run(out, None, "greedy", quiet())


def no_run(root: Path, first: Path) -> dict[str, str]:
    shutil.rmtree(first)
    return {}


def no_checkpoint(root: Path, first: Path) -> dict[str, str]:
    shutil.rmtree(first / "checkpoints")
    return {}


def other_rank(root: Path, first: Path) -> dict[str, str]:
    return {"policies__executor__rank": "8"}


def other_policy(root: Path, first: Path) -> dict[str, str]:
    return {"policies__novice__rank": "4", "roles__writer__policy": "novice", "roles__writer__trained": "false"}


def other_base(root: Path, first: Path) -> dict[str, str]:
    base = shutil.copytree(one_layer(), first.parent / "model")
    tensors = load_file(base / "model.safetensors")
    name = min(tensors)
    save_file(tensors | {name: tensors[name] + 1e-3}, base / "model.safetensors", metadata={"format": "pt"})
    return {"model__base": str(base)}


REFUSED: dict[Callable[[Path, Path], dict[str, str]], str] = {
    no_run: "first is not a run folder",
    no_checkpoint: "first: the run has no checkpoint yet",
    other_rank: "policy 'executor' has another shape",
    other_policy: "no adapter_model.safetensors for policy 'novice'",
    other_base: "was trained on another base than model.base",
}


@pytest.mark.parametrize(("spoil", "expected"), REFUSED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_what_does_not_fit_is_refused_before_anything_is_written(
    root: Path, tmp_path: Path, spoil: Callable[[Path, Path], dict[str, str]], expected: Any
) -> None:
    first, out = shutil.copytree(root / "first", tmp_path / "first"), tmp_path / "second"
    changes = spoil(root, first)
    with pytest.raises(ConfigError, match=f"^start_from: .*{expected}"):
        train(config(root, start_from=str(first), **changes), out, False, quiet())
    assert not out.exists()
