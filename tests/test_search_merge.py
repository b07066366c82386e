"""Merged checkpoints, and the folder that plays a frozen role: the same clues as the adapter on its base."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Command, refused
from safetensors.torch import load_file, save_file
from small_run import config_of, parts_of, play

from gruppo.config import load
from gruppo.engine_room import make_engines
from gruppo.engines.local import LocalEngine
from gruppo.errors import CheckpointError, ConfigError, StoreError
from gruppo.run import RunConfig
from gruppo.searching.merging import merge, merge_one, name_of
from gruppo.store import Checkpoint, Run
from gruppo.training.grpo import Parts
from gruppo.training.model import DTYPES
from gruppo.types import Completion, Request, Sampling

SUBGOALS = [
    f"the {what} of {who}"
    for what in ("mayor", "birth city", "population")
    for who in ("Vael", "Morla", "Odo Brin", "杭州")
]


@dataclass(frozen=True)
class Trained:
    """A run of two steps on a base of one layer, its parts as they are at the end, and the planner merged."""

    run: Path
    parts: Parts
    merged: dict[int, Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    threads, folder = torch.get_num_threads(), tmp_path_factory.mktemp("trained")
    parts, _ = play(folder, "run", policies__planner__learning_rate="0.3", train__save_every="1", train__keep_last="9")
    said: list[str] = []
    found = merge(folder / "run", [], "planner", None, said.append)
    assert len(said) == 2 and all(each.difference < 1e-3 for each in found)
    yield Trained(folder / "run", parts, {each.step: each.folder for each in found})
    torch.set_num_threads(threads)


def requests(temperature: float, policy: str | None) -> list[Request]:
    sampling = Sampling(temperature, max_tokens=12)
    texts = [f"Tool: wikipedia\nSub-goal: {goal}" for goal in SUBGOALS]
    return [Request([{"role": "user", "content": text}], sampling, seed, policy) for seed, text in enumerate(texts)]


def ids(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [each.ids for each in completions]


def merged_engine(trained: Trained, step: int = 2, **model: Any) -> LocalEngine:
    config = load(RunConfig, [], {"engines.back.folder": str(trained.merged[step])})
    engine = make_engines(config.engines, trained.parts.learner.config.model_copy(update=model), {"back"})["back"]
    assert isinstance(engine, LocalEngine)
    return engine


# ---- merging --------------------------------------------------------------------------------------------------------


def test_all_checkpoints_of_grpo_are_merged_each_in_its_folder(trained: Trained) -> None:
    assert Run.open(trained.run).list_checkpoints() == [0, 1, 2]
    assert trained.merged == {step: trained.run / "merged" / f"base-grpo-step{step}" for step in (1, 2)}
    for folder in trained.merged.values():
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    assert not [entry for entry in (trained.run / "merged").iterdir() if entry.name.startswith(".")]
    one, two = (load_file(trained.merged[step] / "model.safetensors") for step in (1, 2))
    assert any(not torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_merged_policy_writes_what_the_adapter_on_its_base_writes(trained: Trained, temperature: float) -> None:
    local: Any = trained.parts.rollout.engines["local"]
    adapter = local.sample(requests(temperature, "planner"))
    merged = merged_engine(trained).sample(requests(temperature, None))
    assert ids(merged) == ids(adapter) and len(set(ids(merged))) > 6
    assert ids(merged) == ids(merged_engine(trained).sample(requests(temperature, None))), "reproducible"
    assert ids(merged) != ids(local.sample(requests(temperature, None))), "the base has learnt"
    for own, theirs in zip(merged, adapter, strict=True):
        assert own.logprobs == pytest.approx(theirs.logprobs, abs=1e-3) and own.version == 0


def test_steps_are_chosen_by_number_also_the_first(trained: Trained, tmp_path: Path) -> None:
    found = merge(trained.run, [0, 2, 0], "executor", tmp_path / "deep" / "out", str)
    assert [each.folder.name for each in found] == ["base-grpo-step0", "base-grpo-step2"]
    fresh = load_file(found[0].folder / "model.safetensors")
    base = load_file(Path(trained.parts.learner.config.base) / "model.safetensors")
    assert all(torch.equal(fresh[name], base[name]) for name in base), "a fresh adapter adds nothing"


def test_an_existing_folder_is_named_and_left_as_it_is_before_any_is_written(trained: Trained, tmp_path: Path) -> None:
    there = tmp_path / "base-grpo-step2"
    there.mkdir()
    (there / "mine").write_text("x")
    with pytest.raises(StoreError, match="base-grpo-step2 is there already: move it away, or give another --out"):
        merge(trained.run, [1, 2], "executor", tmp_path, str)
    assert [entry.name for entry in tmp_path.iterdir()] == ["base-grpo-step2"]
    assert [entry.name for entry in there.iterdir()] == ["mine"]


def test_what_can_t_be_merged_is_one_line(trained: Trained, tmp_path: Path, gruppo: Command) -> None:
    run = str(trained.run)
    refused(gruppo("search", "merge", run, "--step", "7"), f"--step 7: no such checkpoint in {run}: there are 0, 1, 2")
    refused(gruppo("search", "merge", run, "--policy", "executer"), "did you mean executor?")
    refused(gruppo("search", "merge", str(tmp_path)), "is not a run folder")
    refused(gruppo("search", "merge", run), "base-grpo-step1 is there already")
    (tmp_path / "file").write_text("")
    refused(gruppo("search", "merge", run, "--out", str(tmp_path / "file" / "x")), "x can't be written: NotADirectory")
    early = shutil.copytree(trained.run, tmp_path / "early", ignore=shutil.ignore_patterns("step-*[12]", "merged"))
    refused(gruppo("search", "merge", str(early)), "no checkpoint of reinforcement learning: there are 0; --step takes")


def test_a_killed_merge_leaves_no_model_and_is_begun_anew(trained: Trained, tmp_path: Path) -> None:
    part = tmp_path / ".base-grpo-step2.part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"half")
    (found,) = merge(trained.run, [2], "executor", tmp_path, str)
    assert [entry.name for entry in tmp_path.iterdir()] == [found.folder.name]


def test_another_base_and_spoiled_weights_are_noticed(trained: Trained, tmp_path: Path) -> None:
    base = Path(shutil.copytree(trained.parts.learner.config.base, tmp_path / "base"))
    run = shutil.copytree(trained.run, tmp_path / "run", ignore=shutil.ignore_patterns("merged"))
    config = run / "config.toml"
    config.write_text(config.read_text().replace(trained.parts.learner.config.base, str(base)))
    weights = load_file(base / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="was trained on another base"):
        merge(run, [2], "executor", None, str)
    assert not (run / "merged").exists()


@pytest.mark.parametrize("changes", [{"dtype": "bfloat16"}, {"quantization": "nf4"}, {"device": "cuda"}])
def test_however_the_base_is_held_the_merge_is_exact_and_on_the_cpu(
    trained: Trained, tmp_path: Path, changes: dict[str, str]
) -> None:
    model = trained.parts.learner.config.model_copy(update=changes)
    difference = merge_one(model, Run.open(trained.run).checkpoint(2), "planner", tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {DTYPES[model.dtype]}
    assert difference < 1e-5 if model.dtype == "float32" else 0 < difference < 0.1


def test_a_model_that_is_not_what_was_trained_is_not_kept(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(Run.open(trained.run).checkpoint(2).path, tmp_path / "step")
    file = tmp_path / "step" / "policies" / "planner" / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, file, {"format": "pt"})
    with pytest.raises(StoreError, match="not kept, its logits are nan from those of"):
        merge_one(trained.parts.learner.config, Checkpoint(2, tmp_path / "step", {}), "planner", tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["step"]


def test_a_whole_model_is_copied_and_json_says_where(tmp_path: Path, gruppo: Command) -> None:
    text = {"policies__executor__full": "true", "roles__verifier__policy": '"executor"'}
    config = config_of(tmp_path, **text).model_dump(exclude_none=True)
    config["policies"] = {"executor": config["policies"]["executor"]}
    config["roles"].pop("planner")
    own = RunConfig.model_validate(config)
    with parts_of(own, tmp_path / "run") as parts:
        parts.run.save_checkpoint(3, parts.learner.save, {"base": parts.learner.base_fingerprint, "step": 3})
    ended = gruppo("search", "merge", str(tmp_path / "run"), "--json", "--out", "models")
    assert not ended.code, ended
    (row,) = json.loads(ended.out)
    assert (row["step"], row["folder"], row["difference"]) == (3, "models/base-grpo-step3", 0.0)
    saved = tmp_path / "run" / "checkpoints" / "step-000003" / "policies" / "executor" / "model.safetensors"
    assert (tmp_path / "models" / "base-grpo-step3" / "model.safetensors").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B-grpo-step20"),
        ("tiny", "tiny-grpo-step20"),
        ("a/b/c/", "c-grpo-step20"),
        ("./models/../x", "x-grpo-step20"),
        (".", f"{Path.cwd().name}-grpo-step20"),
    ],
)
def test_a_merged_model_is_called_by_the_last_part_of_its_base(base: str, name: str) -> None:
    assert name_of(base, 20) == name


def test_a_cold_start_s_checkpoint_is_merged_only_by_number(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.run, tmp_path / "run", ignore=shutil.ignore_patterns("merged"))
    state = run / "checkpoints" / "step-000001" / "state.json"
    opened = Run.resume(run)
    kept = opened.checkpoint(1)
    source = Path(shutil.copytree(kept.path / "policies", tmp_path / "policies"))
    opened.save_checkpoint(
        1, lambda folder: shutil.copytree(source, folder / "policies") and None, kept.state | {"stage": "sft"}
    )
    opened.close()
    assert state.exists()
    with pytest.raises(ConfigError, match="no checkpoint of reinforcement learning: there are 0, 1"):
        merge(run, [], "executor", None, str)
    assert [each.step for each in merge(run, [1], "executor", None, str)] == [1]
