"""The base model: which one, how its weights are held, and what loads it. What learns on top is in `learner.py`."""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import constants as hub
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from pydantic import Field, model_validator
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from gruppo.config import Config
from gruppo.errors import ConfigError, boundary
from gruppo.training.merged import MergedLinear
from gruppo.tree_attention import attending
from gruppo.weights import resolve

TINY = Path(__file__).parents[1] / "models" / "tiny"
M_MMAP_THRESHOLD = -3  # of mallopt(3): pieces from that size on are the system's, not the heap's
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ModelConfig(Config):
    """The base that all policies stand on."""

    base: str = "tiny"
    """"tiny" (embedded), "smollm2-135m" (after `gruppo model pull`), a folder, or a hub id (see `allow_download`)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the base's weights and what is computed with them; adapters, their gradients and losses are float32 anyway."""
    quantization: Literal["none", "nf4", "int8"] = "none"
    """Holds the base's linear layers, all but the output head, in 4 bits (QLoRA's "nf4") or 8: only adapters can learn.
    On a GPU "int8" also rounds what goes into them. Needs the extra gruppo[quant]."""
    double_quantization: bool = True
    """Whether "nf4" quantizes its scales as well: 4.13 instead of 4.5 bits per weight."""
    gradient_checkpointing: bool = False
    """Computes the activations of a layer again for its gradient instead of keeping them: less memory, more time."""
    device: str = "cpu"
    """A torch device."""
    threads: int = Field(0, ge=0)
    """Torch threads; 0 leaves torch's choice. Bit-identical resume needs the same number."""
    processes: int = Field(1, ge=1)
    """Processes that play and learn side by side, one thread each: for models too small for threads to help. Built-in
    teams on the local engine play whole episodes apart; of others, and in async mode, only the sampling is shared."""
    cache_mb: int = Field(256, ge=0)
    """Memory of each process for key-values of earlier turns, for prompts that begin like them; 0: none are kept."""
    draft_tokens: int = Field(64, ge=0)
    """Guesses at the next tokens fill a decoding forward up to so many, fewer where they are often wrong; 0: none. What
    is sampled stays the same but for rounding."""
    template: dict[str, bool | int | float | str] = {}
    """Values that the chat template asks for, as { enable_thinking = false } for Qwen3."""
    allow_download: bool = False
    """Whether a hub id may be fetched; without it nothing reaches for the network."""

    @model_validator(mode="after")
    def _scales_are_quantized(self) -> ModelConfig:
        if not self.double_quantization and self.quantization != "nf4":
            raise ValueError('double_quantization = false: only quantization = "nf4" has scales to quantize; drop it')
        return self

    @model_validator(mode="after")
    def _processes_are_possible(self) -> ModelConfig:
        several = f"model.processes = {self.processes}"
        if self.processes > 1 and self.threads > 1:
            raise ValueError(f"model.threads = {self.threads}: with {several} each has one; leave it out")
        if self.processes > 1 and self.device != "cpu":
            raise ValueError(f"{several}: only on the CPU, not on model.device = {self.device!r}; use 1")
        return self


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
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """What takes the steps: AdamW (betas .9 and .95), or gradient descent with momentum .9, which wants far higher
    learning rates."""
    weight_decay: float = Field(0.0, ge=0)
    """What a step takes off each weight, as a share of it, times the learning rate."""


def load_base(config: ModelConfig) -> tuple[PreTrainedTokenizerBase, Any]:
    """(tokenizer, model) of the base. Raises ConfigError if there is no such model here, or it has no chat template."""
    with boundary(ConfigError, f"model.device = {config.device!r}"):
        torch.empty(0, device=config.device)
    how = {"dtype": DTYPES[config.dtype], "quantization_config": quantizer(config), "device_map": {"": config.device}}
    with base_of(config) as source:
        local = not config.allow_download
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local)
        model: Any = AutoModelForCausalLM.from_pretrained(source, local_files_only=local, **how)
    if tokenizer.chat_template is None:
        raise ConfigError(f"model.base = {config.base!r}: its tokenizer has no chat template; take an instruct model")
    if config.gradient_checkpointing:
        recompute_layers(model)
        give_memory_back()
    if config.template:
        tokenizer.chat_template = with_values(config.template, tokenizer.get_chat_template())
    return tokenizer, model.eval()


def load_frozen(config: ModelConfig) -> tuple[PreTrainedTokenizerBase, Any]:
    """As `load_base`, of a model that plays and never learns."""
    if config.threads:
        torch.set_num_threads(config.threads)
    tokenizer, model = load_base(config.model_copy(update={"gradient_checkpointing": False}))
    hold_still(model.requires_grad_(False), config.quantization)
    return tokenizer, model


def with_values(values: Mapping[str, Any], template: str) -> str:
    """A chat template that finds these values given, whoever renders it. Raises ConfigError for one that it does not
    ask for."""
    for name in values:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ConfigError(f"model.template.{name}: the chat template of this model asks for no such value")
    given = "".join(f"{{%- set {name} = {json.dumps(value)} -%}}" for name, value in values.items())
    return given + template


@contextmanager
def base_of(config: ModelConfig) -> Iterator[str]:
    """What transformers is to load inside the block, whose faults come out as ConfigErrors."""
    transformers_logging.disable_progress_bar()
    hub.HF_HUB_DISABLE_TELEMETRY = True  # else even a look into the cache asks huggingface.co which agent is calling
    source = str(TINY) if config.base == "tiny" else resolve(config.base)
    if Path(source).is_dir() and not (Path(source) / "config.json").exists():
        raise ConfigError(f"model.base = {config.base!r}: the folder has no config.json")
    try:
        yield source
    except OSError as error:
        hint = "use 'tiny', a model folder, or model.allow_download = true for a hub id"
        raise ConfigError(f"model.base = {config.base!r}: no such folder, nor cached: {hint}") from error
    except ValueError as error:  # what transformers raises for a config.json that it can't make a model of
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"model.base = {config.base!r}: not a causal language model: {reason}") from error
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"model.device = {config.device!r}: too little memory for {config.base!r}") from error


def quantizer(config: ModelConfig) -> BitsAndBytesConfig | None:
    """How the base is quantized as it is loaded. Raises ConfigError where that can't be done, which is tried out."""
    if config.quantization == "none":
        return None
    try:
        from bitsandbytes.nn import Linear4bit, Linear8bitLt
    except ImportError as error:
        needs = f'model.quantization = "{config.quantization}" needs bitsandbytes'
        raise ConfigError(f'{needs}: pip install "gruppo[quant]"') from error
    logging.getLogger("bitsandbytes.autograd").setLevel(logging.ERROR)  # else each product says which dtype it takes
    dtype = DTYPES[config.dtype]
    four_bits = config.quantization == "nf4"
    layer: Any = (
        Linear4bit(64, 64, compute_dtype=dtype, quant_type="nf4", compress_statistics=config.double_quantization)
        if four_bits
        else Linear8bitLt(64, 64, has_fp16_weights=False, threshold=6.0)
    )
    with boundary(ConfigError, f'model.quantization = "{config.quantization}" on {config.device} in {config.dtype}'):
        inputs = torch.ones(1, 64, dtype=dtype, device=config.device, requires_grad=True)
        layer.to(config.device, dtype)(inputs).sum().backward()
    return BitsAndBytesConfig(
        load_in_4bit=four_bits,
        load_in_8bit=not four_bits,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=config.double_quantization,
    )


def hold_still(model: Any, quantization: str) -> None:
    """No dropout, ever: what samples, learns and compares must be one function.

    Quantized layers, which have no dropout, are left in training mode: in evaluation mode on a CPU bitsandbytes also
    rounds what goes into int8 layers, and where there is AVX512-BF16 multiplies by nf4 weights without a gradient.
    """
    model.eval()
    if quantization != "none":
        from bitsandbytes.nn import Linear4bit, Linear8bitLt

        for module in model.modules():
            if isinstance(module, Linear4bit | Linear8bitLt):
                module.training = True


def recompute_layers(model: Any) -> None:
    """Have each layer forget its activations and compute them again for its gradient.

    Transformers does so in training mode only, which would switch dropout on. Raises ConfigError if it has no layers.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"model.gradient_checkpointing = true: {type(model).__name__} has no layers that can be computed again"
        )
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward, model.config)


def give_memory_back() -> None:
    """Have the C library hand what a tensor took back to the system once it is freed, as it does when a process starts.

    glibc does so for ever larger pieces only, up to 32 MiB; smaller ones, freed between those that are kept, then stay
    in its heap: with recomputed layers that was 2.7 (of 4 layers) to 3.5 (of 8) times what is in use. Other C
    libraries are left as they are.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    set_option(M_MMAP_THRESHOLD, 2**17)  # glibc's own first value; setting it keeps it


def _recomputed(forward: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
    """`forward`, a method of a layer; a deep copy of the layer calls its own."""
    active, attention = _adapters(forward.__self__), config._attn_implementation

    def again(*args: Any, **kwargs: Any) -> Any:
        assert _adapters(forward.__self__) == active, "another policy was activated between forward and backward"
        with attending(config, attention):
            return forward(*args, **kwargs)

    return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def _adapters(layer: torch.nn.Module) -> list[Any]:
    for module in layer.modules():
        if isinstance(module, MergedLinear):
            return [module.policy]
        if isinstance(module, LoraLayer):
            return [] if module.disable_adapters else module.active_adapters
    return []


def with_adapter(model: Any, name: str, policy: PolicyConfig) -> Any:
    """The model with one more LoRA adapter, drawn from torch's generator, in float32 whatever the model is in.

    Raises ConfigError for target modules that it lacks.
    """
    targets = policy.target_modules
    lora = LoraConfig(r=policy.rank, lora_alpha=policy.alpha, target_modules=targets, task_type="CAUSAL_LM")
    with boundary(ConfigError, f"policies.{name}.target_modules = {targets!r}"):
        if not isinstance(model, PeftModel):
            return get_peft_model(model, lora, adapter_name=name)
        model.add_adapter(name, lora)
        return model


def check_policies(config: ModelConfig, policies: Mapping[str, PolicyConfig]) -> None:
    """Raises ConfigError where a policy can't stand on that base, or not beside the others."""
    full = [name for name, policy in policies.items() if policy.full]
    if full and len(policies) > 1:
        raise ConfigError(f"policies.{full[0]}.full = true: a fully trained model is the only policy; drop the others")
    if full and config.quantization != "none":
        raise ConfigError(
            f'policies.{full[0]}.full = true: the weights of model.quantization = "{config.quantization}" can\'t be '
            'trained; train an adapter (drop full), or set model.quantization = "none"'
        )
    if full and config.dtype == "bfloat16":
        lost = "steps below a 512th of a weight are rounded away, so that small learning rates change next to nothing"
        warnings.warn(
            f'policies.{full[0]}.full = true with model.dtype = "bfloat16": {lost}; float32 or an adapter keeps them',
            stacklevel=2,
        )


def count_parameters(config: ModelConfig, policies: Mapping[str, PolicyConfig]) -> dict[str, tuple[int, int]]:
    """Policy -> (how many parameters it trains, how many it computes with), by shape: no weight is read or made.

    Quantized weights count as what they stand for. Raises ConfigError as `load_base` and `with_adapter`.
    """
    check_policies(config, policies)
    counts = {}
    with base_of(config) as source:
        shape = AutoConfig.from_pretrained(source, local_files_only=not config.allow_download)
    with torch.device("meta"):
        for name, policy in policies.items():
            model = AutoModelForCausalLM.from_config(shape)
            if not policy.full:
                model = with_adapter(model.requires_grad_(False), name, policy)
            sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
            counts[name] = sum(size for size, learns in sizes if learns), sum(size for size, _ in sizes)
    return counts


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
