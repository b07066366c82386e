"""Export: the policies of a checkpoint as folders that other programs load, and whether what was saved is what played.

An adapter goes out in PEFT's format, or added into a whole model that needs no PEFT; the tokenizer lies beside either.
It trains and evaluates nothing, and overwrites nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from peft import PeftConfig, PeftModel
from transformers import AutoTokenizer, BatchEncoding

from gruppo.errors import StoreError, boundary
from gruppo.store import Checkpoint
from gruppo.training.model import DTYPES, ModelConfig, base_of, load_base
from gruppo.types import Turn

Form = Literal["adapters", "merged"]
NEAR = {"float32": 1e-3, "bfloat16": 0.5}
"""Logits, and log-probs, so near to one another are one: batches and merged weights round in other places."""


def export(model: ModelConfig, checkpoint: Checkpoint, form: Form, out: Path) -> list[str]:
    """Write the policies of `checkpoint` into `out`/<policy>, all of them or nothing; returns their names.

    A policy that is a whole model goes out as one in either form. Raises StoreError if `out` is there, ConfigError for
    a base that is not.
    """
    with whole(out) as part:
        for source in sorted((checkpoint.path / "policies").iterdir()):
            write_policy(model, source, form, part / source.name)
    return sorted(folder.name for folder in out.iterdir())


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """A folder to write into, which is `out` once the block has ended, and gone if it raises."""
    if out.exists():
        raise StoreError(f"{out} is there already: move it away, or save elsewhere")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # a killed export's
    try:
        with boundary(StoreError, f"{out} can't be written"):
            yield part
            part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_policy(model: ModelConfig, source: Path, form: Form, target: Path) -> None:
    """Write the policy in a checkpoint's folder `source` into the folder `target`, with the tokenizer.

    A merged one is added up in float32, and gets the dtype of `model`, whatever the base was quantized to.
    """
    if not is_adapter(source):
        shutil.copytree(source, target)
    elif form == "merged":
        _, base = load_base(plain(model, dtype="float32"))
        merged: Any = PeftModel.from_pretrained(base, source)
        merged.merge_and_unload().to(DTYPES[model.dtype]).save_pretrained(target)
    else:
        shutil.copytree(source, target)
        config = PeftConfig.from_pretrained(str(target))
        with base_of(model) as base_name:  # what PEFT will look for: a folder, or a name on the hub
            config.base_model_name_or_path = base_name
        config.save_pretrained(target)
    with base_of(model) as base_name:
        AutoTokenizer.from_pretrained(base_name, local_files_only=not model.allow_download).save_pretrained(target)


def load_exported(model: ModelConfig, folder: Path) -> Any:
    """An exported policy as any program would load it: an adapter on its base, or the whole."""
    if not is_adapter(folder):
        return load_base(plain(model, base=str(folder)))[1]
    return PeftModel.from_pretrained(load_base(model)[1], folder)


def is_adapter(folder: Path) -> bool:
    """Whether a policy's folder holds an adapter, not a whole model."""
    return (folder / "adapter_config.json").exists()


def num_same(model: ModelConfig, folder: Path, turn: Turn) -> int:
    """How many of a greedy turn's tokens, from its first on, the exported policy plays too; all: it is what played.

    One forward pass: each token has to be the likeliest after those before it, and as likely as it was, or `NEAR` it.
    """
    loaded = load_exported(model, folder).requires_grad_(False)
    ids = BatchEncoding({"input_ids": [[*turn.prompt_ids, *turn.action_ids]]}, tensor_type="pt").to(loaded.device)
    logits_TV = loaded(**ids).logits[0, len(turn.prompt_ids) - 1 : -1].float()
    played_T1 = ids["input_ids"][0, len(turn.prompt_ids) :, None]
    behind_T = logits_TV.max(-1).values - logits_TV.gather(-1, played_T1)[:, 0]
    logprobs_T = logits_TV.log_softmax(-1).gather(-1, played_T1)[:, 0]
    differences = zip(behind_T.tolist(), logprobs_T.tolist(), turn.action_logprobs, strict=True)
    near = NEAR[model.dtype]
    is_same = [behind <= near and abs(now - then) <= near for behind, now, then in differences]  # False for NaN too
    return is_same.index(False) if False in is_same else len(is_same)


def plain(model: ModelConfig, **changes: str) -> ModelConfig:
    """How a model is loaded whose weights are all its own."""
    return model.model_copy(update={"quantization": "none", "gradient_checkpointing": False, **changes})
