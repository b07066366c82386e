"""The base model: which one, how its weights are held, and what loads it. What learns on top is in `learner.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import constants as hub
from pydantic import Field
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from gruppo.config import Config
from gruppo.errors import ConfigError, boundary

TINY = Path(__file__).parents[1] / "models" / "tiny"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ModelConfig(Config):
    """The base that all policies stand on."""

    base: str = "tiny"
    """"tiny" (embedded), a folder with a Hugging Face causal LM, or a hub id (needs `allow_download` if not cached)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights; losses are computed in float32 either way."""
    device: str = "cpu"
    """A torch device."""
    threads: int = Field(0, ge=0)
    """Torch threads; 0 leaves torch's choice. Bit-identical resume needs the same number."""
    allow_download: bool = False
    """Whether a hub id may be fetched; without it nothing reaches for the network."""


class PolicyConfig(Config):
    """Trainable weights, and how fast they learn."""

    rank: int = Field(16, ge=1)
    """LoRA rank."""
    alpha: int = Field(32, ge=1)
    """LoRA scale: the update is multiplied by alpha / rank."""
    target_modules: str | list[str] = "all-linear"
    """Which layers get an adapter."""
    full: bool = False
    """Train the whole model instead of an adapter; then it is the only policy."""
    learning_rate: float = Field(1e-5, gt=0)
    """Of reinforcement learning; the cold start has its own."""


def load_base(config: ModelConfig) -> tuple[PreTrainedTokenizerBase, Any]:
    """(tokenizer, model) of the base. Raises ConfigError if there is no such model here, or it has no chat template."""
    transformers_logging.disable_progress_bar()
    hub.HF_HUB_DISABLE_TELEMETRY = True  # else even a look into the cache asks huggingface.co which agent is calling
    source = str(TINY) if config.base == "tiny" else config.base
    local = not config.allow_download
    if Path(source).is_dir() and not (Path(source) / "config.json").exists():
        raise ConfigError(f"model.base = {config.base!r}: the folder has no config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local)
        dtype = DTYPES[config.dtype]
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, local_files_only=local)
    except OSError as error:
        hint = "use 'tiny', a model folder, or model.allow_download = true for a hub id"
        raise ConfigError(f"model.base = {config.base!r}: no such folder, nor cached: {hint}") from error
    except ValueError as error:  # what transformers raises for a config.json that it can't make a model of
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"model.base = {config.base!r}: not a causal language model: {reason}") from error
    if tokenizer.chat_template is None:
        raise ConfigError(f"model.base = {config.base!r}: its tokenizer has no chat template; take an instruct model")
    with boundary(ConfigError, f"model.device = {config.device!r}"):
        return tokenizer, model.to(config.device).eval()


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
