"""The estimate: what a run will take, told before it starts: parameters, memory by part, tokens, episodes and disk.

From the config and the shape of the base alone: no weight is read. Figures are bounds, worst cases of lengths that only
the run knows; `measure` plays a small probe for time and for the lengths as they are. It plans nothing and starts no
run of yours.
"""

from __future__ import annotations

import math
import resource
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import AutoConfig

from gruppo.engine_room import FolderConfig, folder_model
from gruppo.log import Log
from gruppo.run import RunConfig
from gruppo.stages import train
from gruppo.store import Run
from gruppo.training.logprobs import MAX_LOGITS
from gruppo.training.model import ModelConfig, PolicyConfig, base_of, count_parameters

MAX_BATCH_TOKENS = 65_536  # of prompts and actions in one batch of the local engine, its default
BYTES = {"float32": 4, "bfloat16": 2}
BITS = {"nf4": 4.5, "int8": 8.0}  # of a quantized weight with its scales
LOGITS_COPIES = 4  # logits, log-probabilities, their exponentials and a gradient
TRANSIENT_LAYERS = 2  # what forward and backward hold of a layer's size beside what is saved: measured on a CPU
RECOMPUTED_LAYERS = 1.25  # the same where layers are computed again, one at a time
SAMPLING = "sampling: key-values and logits"
TOKEN_BYTES = 12  # of a sampled token in episodes/: its id and its log-probability


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that memory depends on."""

    layers: int
    hidden: int
    inner: int  # of the MLP
    queries: int  # heads x head size
    keys: int  # key-value heads x head size
    vocabulary: int
    context: int
    tied: bool  # whether input and output embeddings are one


@dataclass(frozen=True)
class Frozen:
    """The model of a folder that plays a frozen role: how it is held, its parameters and its sizes."""

    model: ModelConfig
    parameters: int
    shape: Shape


@dataclass(frozen=True)
class Estimate:
    """What a run will take, at most. Memory in bytes; `memory` is held all the while, of `working` one at a time."""

    base: int  # parameters
    policies: Mapping[str, int]  # name -> parameters that it trains
    engines: Mapping[str, int]  # name -> parameters, of those whose model is in a folder
    memory: Mapping[str, int]
    working: Mapping[str, int]
    episodes_per_step: int
    episodes: int
    evaluation_episodes: int
    steps: int
    sampled_tokens_per_step: int
    sampled_tokens: int
    disk: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @property
    def peak(self) -> int:
        """Bytes of the model's memory when most is in use."""
        return sum(self.memory.values()) + max(self.working.values(), default=0)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self) | {"peak": self.peak, "notes": list(self.notes)}


def estimate(config: RunConfig) -> Estimate:
    """What `config` will take. Raises ConfigError for a base that is not here, or policies that can't stand on it."""
    shape, base, frozen = shape_of(config), parameters_of(config.model), frozen_of(config)
    trained = {name: own for name, (own, _) in count_parameters(config.model, config.policies).items()}
    train_, turns = config.train, turns_of(config)
    rounds = config.algorithm.max_rounds if config.algorithm.filter_groups != "none" else 1
    per_step = train_.tasks_per_step * train_.attempts * rounds
    steps = train_.steps
    if train_.episodes:
        steps = min(steps, math.ceil(train_.episodes / (train_.tasks_per_step * train_.attempts)))
    tokens = per_step * sum(turns[name] * role.max_tokens for name, role in config.roles.items())
    return Estimate(
        base=base,
        policies=trained,
        engines={name: own.parameters for name, own in frozen.items()},
        memory=held(config, shape, base, trained) | held_frozen(config, frozen),
        working=working(config, shape, frozen),
        episodes_per_step=per_step,
        episodes=per_step * steps,
        evaluation_episodes=evaluations(config, steps),
        steps=steps,
        sampled_tokens_per_step=tokens,
        sampled_tokens=tokens * steps,
        disk={"checkpoints": checkpoints(config, trained), "episodes": TOKEN_BYTES * tokens * steps},
        notes=tuple(notes(config, frozen)),
    )


def shape_of(config: RunConfig) -> Shape:
    """The base's sizes, from its config.json. Raises ConfigError as `base_of`."""
    return sizes_of(config.model)


def parameters_of(model: ModelConfig) -> int:
    """How many parameters a model has, quantized or not."""
    plain = ModelConfig(base=model.base, allow_download=model.allow_download)
    return count_parameters(plain, {"base": PolicyConfig(full=True)})["base"][1]


def frozen_of(config: RunConfig) -> dict[str, Frozen]:
    """The models of folders that play a role, by the name of their engine. Raises ConfigError for one that is not
    there."""
    seated = {role.engine for role in config.roles.values()}
    models = {
        name: folder_model(name, own, config.model)
        for name, own in config.engines.items()
        if isinstance(own, FolderConfig) and name in seated
    }
    return {name: Frozen(model, parameters_of(model), sizes_of(model)) for name, model in models.items()}


def sizes_of(model: ModelConfig) -> Shape:
    """A model's sizes, from its config.json. Raises ConfigError as `base_of`."""
    with base_of(model) as source:
        found = AutoConfig.from_pretrained(source, local_files_only=not model.allow_download)
    sizes = found.get_text_config(decoder=True).to_dict()
    hidden, heads = sizes["hidden_size"], sizes.get("num_attention_heads") or 1
    head = sizes.get("head_dim") or hidden // heads
    return Shape(
        layers=sizes["num_hidden_layers"],
        hidden=hidden,
        inner=sizes.get("intermediate_size") or 4 * hidden,
        queries=heads * head,
        keys=(sizes.get("num_key_value_heads") or heads) * head,
        vocabulary=sizes["vocab_size"],
        context=sizes.get("max_position_embeddings") or MAX_BATCH_TOKENS,
        tied=bool(sizes.get("tie_word_embeddings")),
    )


def held(config: RunConfig, shape: Shape, base: int, trained: Mapping[str, int]) -> dict[str, int]:
    """Bytes of what is there all the while."""
    size, model = BYTES[config.model.dtype], config.model
    full = any(policy.full for policy in config.policies.values())
    total = sum(trained.values())
    parts = {"base weights": weight_bytes(model, shape, base)}
    if full:
        parts["trained weights"] = total * size
    else:
        parts["adapters"] = 4 * total
        if _merges(config):
            parts["merged weights"] = (base - embedded(shape)) * size
    of_one = size if full else 4
    if config.algorithm.kl_coefficient and config.algorithm.kl_reference == "start":
        parts["references"] = of_one * total
    parts["gradients"] = of_one * total * model.processes
    parts["optimizers"] = 2 * of_one * total
    if "skip" in config.alarms.actions.values():
        parts["copy to undo a step"] = 3 * of_one * total
    if model.cache_mb:
        parts["kept key-values"] = model.cache_mb * 2**20 * model.processes
    return parts


def held_frozen(config: RunConfig, frozen: Mapping[str, Frozen]) -> dict[str, int]:
    """Bytes of the models of folders, and of what each keeps of its prompts; all are in one process."""
    parts = {}
    for name, own in frozen.items():
        parts[f"weights of engine {name}"] = weight_bytes(own.model, own.shape, own.parameters)
        if config.model.cache_mb:
            parts[f"kept key-values of engine {name}"] = config.model.cache_mb * 2**20
    return parts


def weight_bytes(model: ModelConfig, shape: Shape, parameters: int) -> int:
    """Bytes of a model's weights; the embeddings are never quantized."""
    size = BYTES[model.dtype]
    if model.quantization == "none":
        return parameters * size
    kept = embedded(shape)
    return kept * size + int((parameters - kept) * BITS[model.quantization] / 8)


def embedded(shape: Shape) -> int:
    """Parameters of the embeddings, those of input and output."""
    return shape.vocabulary * shape.hidden * (1 if shape.tied else 2)


def working(config: RunConfig, shape: Shape, frozen: Mapping[str, Frozen]) -> dict[str, int]:
    """Bytes of what comes and goes: learning from one microbatch, or sampling one batch, in every process. The models
    of folders sample while the base does."""
    processes = config.model.processes
    tokens = max(config.train.microbatch_tokens, config.sft.microbatch_tokens if config.sft.steps else 0)
    logits = LOGITS_COPIES * 4 * min(MAX_LOGITS, tokens * shape.vocabulary)
    found = {}
    if config.policies:
        found["learning: activations and logits"] = processes * (tokens * token_bytes(config, shape) + logits)
    if any(role.engine == "local" for role in config.roles.values()):
        found[SAMPLING] = processes * sampling_bytes(config, shape, BYTES[config.model.dtype], processes)
    for own in frozen.values():
        found[SAMPLING] = found.get(SAMPLING, 0) + sampling_bytes(config, own.shape, BYTES[own.model.dtype], 1)
    return found


def sampling_bytes(config: RunConfig, shape: Shape, size: int, processes: int) -> int:
    """Bytes of sampling one batch in one of so many processes, a value of the model having `size` bytes."""
    rows, tokens = batch_of(config, shape, processes)
    return tokens * 2 * shape.layers * shape.keys * size + rows * LOGITS_COPIES * 4 * shape.vocabulary


def token_bytes(config: RunConfig, shape: Shape) -> int:
    """Bytes that one token of a microbatch leaves for the backward pass, and what a layer needs on the way.

    Counted by hand over a decoder layer with RMS norms, rotary positions and a gated MLP, its attention in one kernel:
    inputs of norms and linear layers (4 hidden), queries, keys, values and the attention's output, the MLP's four.
    """
    size = BYTES[config.model.dtype]
    layer = size * (4 * shape.hidden + 4 * shape.queries + 3 * shape.keys + 4 * shape.inner)
    if size < 4:
        layer += 4 * 2 * shape.hidden  # norms compute in float32
    if not _merges(config) and not any(policy.full for policy in config.policies.values()):
        layer += 4 * (5 * shape.hidden + shape.queries + shape.inner)  # what goes into each adapter, in float32
    if config.model.gradient_checkpointing:
        return shape.layers * shape.hidden * size + int(RECOMPUTED_LAYERS * layer)
    return (shape.layers + TRANSIENT_LAYERS - 1) * layer


def batch_of(config: RunConfig, shape: Shape, processes: int) -> tuple[int, int]:
    """(rows, tokens) of the largest batch that one of the processes samples, were every prompt to fill the context."""
    train_, test = config.train, config.tasks.num_test * len(config.eval.modes) * config.eval.attempts
    episodes = max(train_.tasks_per_step * train_.attempts, test if config.eval.stages else 0)
    rows = min(episodes, config.rollout.max_concurrent, config.rollout.max_batch)
    rows = math.ceil(rows / processes)
    return rows, min(MAX_BATCH_TOKENS, rows * shape.context)


def checkpoints(config: RunConfig, trained: Mapping[str, int]) -> int:
    """Bytes of all checkpoints, the one that is being written among them."""
    full = any(policy.full for policy in config.policies.values())
    of_one = BYTES[config.model.dtype] if full else 4
    copies = 4 if config.algorithm.kl_coefficient and config.algorithm.kl_reference == "start" else 3
    return (config.train.keep_last + 1) * copies * of_one * sum(trained.values())


def evaluations(config: RunConfig, steps: int) -> int:
    """Episodes of the evaluations, before, between and after."""
    own, of_stage = config.eval, config.tasks.num_test * config.eval.attempts
    stages = 2 * len(own.modes) + (1 if config.sft.steps else 0) if own.stages else 0
    on_the_way = steps // config.train.eval_every if config.train.eval_every else 0
    return stages * of_stage + on_the_way * config.tasks.num_validation * own.attempts


def turns_of(config: RunConfig) -> dict[str, int]:
    """Role -> the most turns of an episode; 1 in a team of one's own, which only it knows."""
    repeated = {
        "solver": dict.fromkeys(("planner", "executor", "verifier"), config.team.solver.max_steps),
        "solo": {"agent": config.team.solo.max_turns},
    }
    return dict.fromkeys(config.roles, 1) | repeated.get(config.team.program, {})


def notes(config: RunConfig, frozen: Mapping[str, Frozen]) -> list[str]:
    """What the figures leave out."""
    found = ["Bounds: every prompt fills the context, every action its max_tokens. --measure finds out what they do."]
    if config.team.program not in ("solver", "solo"):
        found.append(
            f"{config.team.program}: one turn of each role was counted; only the team knows how many it takes."
        )
    elsewhere = [name for name, own in frozen.items() if own.model.device != config.model.device]
    found += [f"engine {name} is on {frozen[name].model.device}; the sum has its memory too." for name in elsewhere]
    if config.tasks.train != "world" or config.tasks.test != "world":
        found.append("Task files are not opened: tasks.num_train, num_validation and num_test were counted.")
    if config.model.device == "cpu":
        found.append("Python and torch themselves take about 0.5 GB more.")
    return found


def tables(found: Estimate, probe: Measured | None) -> list[tuple[str, list[tuple[str, str]]]]:
    """Everything but the notes, for people: titled lists of a name and a figure."""
    parameters = [("base", f"{found.base:,}"), *((name, f"{own:,} trained") for name, own in found.policies.items())]
    parameters += [(f"engine {name}", f"{own:,} frozen") for name, own in found.engines.items()]
    memory = [(part, megabytes(size)) for part, size in (*found.memory.items(), *found.working.items())]
    work = [
        ("steps", f"{found.steps:,}"),
        ("episodes per step", f"{found.episodes_per_step:,}"),
        ("episodes", f"{found.episodes:,}"),
        ("episodes of evaluations", f"{found.evaluation_episodes:,}"),
        ("sampled tokens per step", f"{found.sampled_tokens_per_step:,}"),
        ("sampled tokens", f"{found.sampled_tokens:,}"),
    ]
    lists = [
        ("parameters", parameters),
        ("memory, at most", [*memory, ("all that is held, and the greater of the two", megabytes(found.peak))]),
        ("work, at most", work),
        ("disk, at most", [(part, megabytes(size)) for part, size in found.disk.items()]),
    ]
    if probe:
        measured_ = [
            ("seconds per step", f"{probe.seconds_per_step:.1f}"),
            ("hours in all", f"{probe.seconds / 3600:.2f}"),
            ("sampled tokens per step", f"{probe.sampled_tokens_per_step:,.0f}"),
            ("episodes on disk", megabytes(probe.episode_bytes)),
            ("memory of this process", megabytes(probe.peak)),
        ]
        lists.append((f"measured on {probe.tasks} tasks", measured_))
    return lists


def megabytes(size: float) -> str:
    """Bytes in MB, of 10^6."""
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:,.1f} MB"


def _merges(config: RunConfig) -> bool:
    """Whether a copy of the base holds a policy's weights merged, as the learner does where nothing is rounded away."""
    plain = config.model.dtype == "float32" and config.model.quantization == "none"
    return plain and bool(config.policies) and not any(policy.full for policy in config.policies.values())


@dataclass(frozen=True)
class Measured:
    """A probe: one step of `tasks` groups, played and learnt from. Seconds and tokens are per step of the real run."""

    tasks: int
    seconds_per_step: float
    seconds: float  # of all steps, the evaluations among them
    sampled_tokens_per_step: float
    episode_bytes: int  # of all steps
    peak: int  # bytes of this process, Python and torch included


def measure(config: RunConfig, of: Estimate, tasks: int = 2) -> Measured:
    """Play a step of `tasks` groups in a folder that is thrown away. Bigger batches cost less per episode than this."""
    small = config.train.model_copy(update={"steps": 1, "tasks_per_step": tasks, "updates": 1, "eval_every": 0})
    quiet = config.model_copy(
        update={
            "train": small.model_copy(update={"warmup_steps": 0, "decay_steps": 0, "episodes": 0}),
            "sft": config.sft.model_copy(update={"steps": 0}),
            "eval": config.eval.model_copy(update={"stages": False}),
            "monitors": [],
        }
    )
    with tempfile.TemporaryDirectory(prefix="gruppo-estimate-") as folder:
        out = Path(folder) / "probe"
        train(quiet, out, False, Log(Console(quiet=True)))
        run = Run.open(out)
        (record,) = run.read_metrics()
        groups = run.read_episodes("grpo-000001")
        num_bytes = sum(path.stat().st_size for path in (out / "episodes").iterdir())
    scale = of.episodes_per_step / record["episodes"]
    turns = [turn for group in groups for episode in group.episodes for turn in episode.turns]
    seconds_per_episode = record["seconds/rollout"] / record["episodes"]
    unit = 1 if sys.platform == "darwin" else 1024
    return Measured(
        tasks=tasks,
        seconds_per_step=scale * record["seconds/step"],
        seconds=of.steps * scale * record["seconds/step"] + of.evaluation_episodes * seconds_per_episode,
        sampled_tokens_per_step=scale * sum(len(turn.action_ids) for turn in turns),
        episode_bytes=int(of.steps * scale * num_bytes),
        peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    )
