"""`gruppo search merge`: checkpoints of a trained policy as whole models, which take its seat back in the system.

One model per checkpoint, one in memory at a time, always on the CPU. What is written answers as the adapter on its base
does, or is not kept. The exporting itself is `export.py`'s part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, BatchEncoding

from gruppo.chat import render
from gruppo.config import load, suggest
from gruppo.errors import CheckpointError, ConfigError, StoreError, boundary
from gruppo.export import NEAR, is_adapter, load_exported, plain, whole, write_policy
from gruppo.run import RunConfig
from gruppo.store import Checkpoint, Run
from gruppo.training.model import ModelConfig, digest_of, load_base

MERGED = "merged"
QUESTION = "Write search clues for: the birth city of the mayor of Vael"


@dataclass(frozen=True)
class Merged:
    """A model that was written: the checkpoint's step, and how far its logits are from the adapter's on a prompt (root
    of the mean square)."""

    step: int
    folder: Path
    difference: float


def merge(path: Path, steps: Sequence[int], policy: str, out: Path | None, say: Callable[[str], None]) -> list[Merged]:
    """Write `policy` of the checkpoints of `steps` (none given: of all of reinforcement learning) into folders named
    {base}-grpo-step{N} in `out` (None: the run's own folder of merged models).

    Each is whole when it has its name. Before anything is written, raises ConfigError for an unknown policy or step,
    StoreError if a folder is there, CheckpointError for another base; later StoreError for a model that is not what was
    trained.
    """
    run = Run.open(path)
    config = load(RunConfig, [path / "config.toml"])
    if policy not in config.policies:
        raise ConfigError(f"--policy {policy}: no such policy in {path}{suggest(policy, config.policies)}")
    parent = out or path / MERGED
    found = [(checkpoint, parent / name_of(config.model.base, checkpoint.step)) for checkpoint in chosen(run, steps)]
    for _, folder in found:
        if folder.exists():
            raise StoreError(f"{folder} is there already: move it away, or give another --out")
    require_base(config.model, [checkpoint for checkpoint, _ in found])
    with boundary(StoreError, f"{parent} can't be written"):
        parent.mkdir(parents=True, exist_ok=True)
    merged = []
    for checkpoint, folder in found:
        merged.append(Merged(checkpoint.step, folder, merge_one(config.model, checkpoint, policy, folder)))
        say(f"step {checkpoint.step}: {folder}")
    return merged


def name_of(base: str, step: int) -> str:
    """The folder of a merged model: the base's own name, without what stands before it, and the step."""
    return f"{Path(base).name or Path(base).resolve().name}-grpo-step{step}"


def chosen(run: Run, steps: Sequence[int]) -> list[Checkpoint]:
    """The checkpoints of `steps`, each once; none given: those that reinforcement learning has brought further."""
    there = run.list_checkpoints()
    known = f"there are {', '.join(map(str, there))}" if there else "the run has none yet"
    if missing := [step for step in steps if step not in there]:
        raise ConfigError(f"--step {missing[0]}: no such checkpoint in {run.path}: {known}")
    found = [run.checkpoint(step) for step in dict.fromkeys(steps or there)]
    if not steps:
        found = [each for each in found if each.step and each.state.get("stage") != "sft"]
    if not found:
        raise ConfigError(f"{run.path}: no checkpoint of reinforcement learning: {known}; --step takes any")
    return found


def require_base(model: ModelConfig, checkpoints: Sequence[Checkpoint]) -> None:
    """Raises CheckpointError if the base is not what they were trained on. One that was quantized can't be told here:
    its fingerprint is of the quantized weights."""
    if model.quantization != "none":
        return
    fingerprint = digest_of(load_base(plain(model, device="cpu"))[1].state_dict())
    for checkpoint in checkpoints:
        if checkpoint.state["base"] != fingerprint:
            raise CheckpointError(f"{checkpoint.path}: was trained on another base than model.base = {model.base!r}")


def merge_one(model: ModelConfig, checkpoint: Checkpoint, policy: str, folder: Path) -> float:
    """Write one model; returns how far it is from what was trained. Raises StoreError, and leaves nothing, if far."""
    model = plain(model, device="cpu")
    exact = plain(model, dtype="float32")
    source = checkpoint.path / "policies" / policy
    with whole(folder) as part:
        write_policy(model, source, "merged", part)
        if not is_adapter(source):  # a whole model, copied
            return 0.0
        tokenizer = AutoTokenizer.from_pretrained(part, local_files_only=True)
        _, prompt = render(tokenizer, [{"role": "user", "content": QUESTION}])
        difference = float((logits_of(exact, part, prompt) - logits_of(exact, source, prompt)).square().mean().sqrt())
        if not difference <= NEAR[model.dtype]:  # False for NaN too
            raise StoreError(f"{folder}: not kept, its logits are {difference:.3g} from those of {source}")
    return difference


def logits_of(model: ModelConfig, folder: Path, prompt: Sequence[int]) -> Any:
    """The logits [T, V] of a policy's folder, an adapter on its base or a whole model, on a prompt."""
    loaded = load_exported(model, folder).requires_grad_(False)
    return loaded(**BatchEncoding({"input_ids": [list(prompt)]}, tensor_type="pt")).logits[0]
