"""From the tool's parameters to the config of a run, and from what the config says of its keys back to the parameters.

What a parameter sets as it is stands in `parameters`; here is what has to be computed: steps from epochs, groups from
batches, the start from another run. It runs nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gruppo.config import Config, load, suggest
from gruppo.errors import ConfigError
from gruppo.run import RunConfig
from gruppo.tool.parameters import (
    ACTIONS,
    OBJECTS,
    UNLESS_GIVEN,
    EvaluateParameters,
    GRPOParameters,
    SFTParameters,
    keys_of,
)
from gruppo.tool.recipes import Recipe
from gruppo.training.devices import devices

AGENT = "agent"  # the one role of the team, and its policy
MAX_PROMPT = 512  # tokens; a guess, from which the memory of a batch follows
MAX_NEW_TOKENS, NUM_ANSWERS, TEMPERATURE = 512, 3, 0.8  # of evaluations, unless given or trained otherwise

SHAPE = ("rank", "alpha", "target_modules")  # of an adapter

Values = dict[str, Any]

TEAM: Values = {"team.program": "solo", "team.solo.max_turns": 1, "tools.names": [], f"roles.{AGENT}.system": ""}
"""One agent that is asked the bare question and answers it at once."""


# ---- parameters ------------------------------------------------------------------------------------------------------


def action_of(given: Mapping[str, Any]) -> str:
    """The entry of ACTIONS that is asked for. Raises ConfigError if there is no such action or algorithm."""
    action, names = given.get("action"), {entry.split()[0] for entry in ACTIONS}
    if action not in names:
        raise ConfigError(f"action = {action!r}: expected one of {', '.join(sorted(names))}")
    if action != "train":
        return str(action)
    algorithms = [entry.split()[1] for entry in ACTIONS if " " in entry]
    algorithm = given.get("algorithm", "sft")
    if not isinstance(algorithm, str) or algorithm.lower() not in algorithms:
        raise ConfigError(f"algorithm = {algorithm!r}: expected {' or '.join(algorithms)}")
    return f"train {algorithm.lower()}"


def read(entry: str, given: Mapping[str, Any]) -> Config:
    """The parameters of an action, checked; None is as if not given, where it is not a meaning of its own.

    Raises ConfigError for an unknown one, or a value of the wrong type.
    """
    kind = ACTIONS[entry]
    named = {name: value for name, value in given.items() if name not in ("action", "algorithm", *OBJECTS)}
    for name in given.keys() - {"action", "algorithm"}:
        if name not in kind.model_fields and entry not in OBJECTS.get(name, ()):
            raise ConfigError(unknown(entry, name, given[name]))
    values = {name: value for name, value in {**UNLESS_GIVEN.get(entry, {}), **named}.items() if value is not None}
    return build(kind, values)


def unknown(entry: str, name: str, value: Any) -> str:
    """What to say of a parameter that the action does not take."""
    takes = [other for other, kind in ACTIONS.items() if name in kind.model_fields or other in OBJECTS.get(name, ())]
    if takes:
        return (
            f"{name} = {value!r:.60}: {entry} does not take it; {' and '.join(takes)} {'do' if takes[1:] else 'does'}"
        )
    return f"unknown parameter {name} = {value!r:.60}{suggest(name, ACTIONS[entry].model_fields)}"


def build(kind: type[Config], values: Mapping[str, Any]) -> Any:
    """`load` of plain Python values by dotted key. Raises ConfigError."""
    try:
        return load(kind, [], {key: toml(key, value) for key, value in values.items()})
    except ConfigError as error:
        raise ConfigError(str(error).replace(" (command line)", "")) from error


def toml(key: str, value: Any) -> str:
    """A plain value as TOML on one line. Raises ConfigError for any other."""
    if isinstance(value, Mapping):
        pairs = (f"{_quoted(str(name))} = {toml(key, own)}" for name, own in value.items() if own is not None)
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(key, own) for own in value)}]"
    if isinstance(value, str | os.PathLike):
        return _quoted(os.fspath(value))
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise ConfigError(f"{key}: expected a plain value, not {type(value).__name__}")


def _quoted(text: str) -> str:
    """Text as JSON writes it, but for what TOML wants otherwise: all of Unicode as it is, and DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def speak(message: str, parameters: type[Config]) -> str:
    """A message with the names of parameters in place of the config keys that they set."""
    found = [(key, name, own.is_derived) for name, own in keys_of(parameters) for key in own.keys]
    owners = Counter(key for key, _, _ in found)
    names = {key: name for key, name, is_derived in found if not is_derived or owners[key] == 1}
    names |= {"--download": "allow_download", "--resume": '"resume": True', "--out": "output_dir"}
    for key in sorted(names, key=len, reverse=True):
        is_word = key.isidentifier()  # as "seed" or "reward", which also stand in sentences
        there = rf"^{key}(?= =|:)" if is_word else rf"(?<![\w.-]){re.escape(key)}(?![\w-]|\.\w)"
        message = re.sub(there, names[key], message)
    return message


def copied(parameters: Config) -> Values:
    """Config key -> value, of the parameters that are copied as they are; of two algorithms' keys both."""
    values = {name: value for name, value in parameters if value is not None}
    own = ((key, name) for name, sets in keys_of(type(parameters)) if not sets.is_derived for key in sets.keys)
    return {key: values[name] for key, name in own if name in values}


# ---- the config of a training ----------------------------------------------------------------------------------------


def training(request: SFTParameters | GRPOParameters, num_tasks: int, recipe: Recipe | None) -> RunConfig:
    """The run that trains on `num_tasks` tasks in the folder's tasks/train.jsonl. Raises ConfigError."""
    tasks = Path(request.output_dir) / "tasks"
    values = copied(request) | TEAM | start(request) | monitors(request) | device(request.device)
    values |= {
        "title": f"{Path(request.output_dir).name}: {ALGORITHMS[type(request)]}",
        "tasks.train": str(tasks / "train.jsonl"),
        "tasks.num_train": num_tasks,
        "tasks.folder": request.data_folder,
        f"roles.{AGENT}.policy": AGENT,
        "eval.stages": False,
    }
    own = sft(request, num_tasks) if isinstance(request, SFTParameters) else grpo(request, num_tasks)
    if request.eval_steps:
        stage = "sft" if isinstance(request, SFTParameters) else "train"
        own |= {f"{stage}.eval_every": request.eval_steps, "tasks.validation": str(tasks / "validation.jsonl")}
        own["tasks.num_validation"] = request.eval_samples
    return build(RunConfig, values | own | (recipe.tables if recipe else {}))


ALGORITHMS: Mapping[type[Config], str] = {SFTParameters: "sft", GRPOParameters: "grpo"}


def sft(request: SFTParameters, num_tasks: int) -> Values:
    """The cold start alone, in epochs."""
    rows = request.batch_size * request.gradient_accumulation_steps
    steps = math.ceil(num_tasks * request.num_epochs / rows)
    return {
        "train.steps": 0,
        "sft.steps": steps,
        "sft.demonstrations": num_tasks,
        "sft.batch_size": rows,
        "sft.warmup_steps": math.ceil(steps * request.warmup_ratio),
        "sft.microbatch_tokens": request.batch_size * request.max_length,
    }


def grpo(request: GRPOParameters, num_tasks: int) -> Values:
    """Reinforcement learning alone, in epochs. Raises ConfigError where groups don't fill a batch."""
    answers, size = request.batch_size * request.gradient_accumulation_steps, request.num_generations
    if answers % size:
        said = f"batch_size = {request.batch_size} times gradient_accumulation_steps = "
        said += f"{request.gradient_accumulation_steps} is {answers} answers a step"
        raise ConfigError(f"{said}, which is no multiple of num_generations = {size}; {multiple(request)}")
    tasks = answers // size * request.updates_per_rollout
    steps = math.ceil(num_tasks * request.num_epochs / tasks)
    return {
        "sft.steps": 0,
        "train.steps": steps,
        "train.tasks_per_step": tasks,
        "train.warmup_steps": math.ceil(steps * request.warmup_ratio),
        "train.microbatch_tokens": request.batch_size * (request.max_new_tokens + MAX_PROMPT),
        "algorithm.advantage": "grpo" if request.scale_rewards else "centred",
    }


def multiple(request: GRPOParameters) -> str:
    """How to make a batch of whole groups."""
    fitting = request.num_generations // math.gcd(request.batch_size, request.num_generations)
    return f"set gradient_accumulation_steps = {fitting}, or a multiple of it"


def start(request: SFTParameters | GRPOParameters) -> Values:
    """The policy and its base, or the run that both go on from if `model_name` is the output_dir of one.

    Raises ConfigError for LoRA settings without LoRA, or for others than that run has.
    """
    rank, given = request.lora_rank, request.model_fields_set
    if not request.use_lora and (idle := sorted(name for name in given if name.startswith("lora_"))):
        raise ConfigError(f"{idle[0]}: with use_lora = false the whole model is trained; leave it out")
    values = {
        "use_lora": request.use_lora,
        "lora_rank": rank,
        "lora_alpha": request.lora_alpha or max(1, 2 * rank),
        "lora_target_modules": request.lora_target_modules,
        "use_bf16": request.use_bf16,
    }
    if (run := run_in(request.model_name)) is None:
        return policy_of(values)
    before = shape_of(run, request.model_name)
    for name in given & values.keys():
        if values[name] != before[name]:
            has, is_ = json.dumps(before[name]), json.dumps(values[name])
            raise ConfigError(f"{name} = {is_}: {request.model_name} was trained with {has}; leave it out to go on")
    return policy_of(before) | {"model.base": run.model.base, "start_from": request.model_name}


def policy_of(values: Mapping[str, Any]) -> Values:
    """The keys that these parameters set."""
    policy = {"full": not values["use_lora"]} | {name: values[f"lora_{name}"] for name in SHAPE if values["use_lora"]}
    dtype = "bfloat16" if values["use_bf16"] else "float32"
    return {"model.dtype": dtype} | {f"policies.{AGENT}.{name}": value for name, value in policy.items()}


def shape_of(run: RunConfig, name: str) -> Values:
    """The parameters that a run which goes on from this one has to share with it. Raises ConfigError as `agent_of`."""
    policy = agent_of(run, name).model_dump()
    shape = {f"lora_{name}": policy[name] for name in SHAPE}
    return {"use_lora": not policy["full"], "use_bf16": run.model.dtype == "bfloat16", **shape}


def monitors(request: SFTParameters | GRPOParameters) -> Values:
    """Who else gets the metrics. Raises ConfigError for a setting of W&B without it."""
    if not request.use_wandb and (idle := sorted(request.model_fields_set & {"wandb_project", "wandb_online"})):
        raise ConfigError(f"{idle[0]}: use_wandb is false; set it to true, or leave this out")
    board = request.use_tensorboard
    used = {"log": True, "tensorboard": find_spec("tensorboard") is not None if board is None else board}
    used["wandb"] = request.use_wandb
    project = request.wandb_project or os.environ.get("WANDB_PROJECT") or "gruppo"
    return {"monitors": [name for name, is_used in used.items() if is_used], "monitor.project": project}


def device(asked: str) -> Values:
    """The device that is asked for, else a GPU, else the CPU."""
    return {"model.device": asked or next((name for name in devices() if name != "cpu"), "cpu")}


# ---- the config of an evaluation -------------------------------------------------------------------------------------


def evaluation(request: EvaluateParameters, recipe: Recipe) -> tuple[RunConfig, bool]:
    """The config of a team that plays, and whether it has learnt weights to be loaded. Raises ConfigError."""
    run = run_in(request.model_path)
    values = copied(request) | TEAM | device(request.device)
    trained_in_bf16 = run is not None and run.model.dtype == "bfloat16"
    in_bf16 = trained_in_bf16 if request.use_bf16 is None else request.use_bf16
    values["model.dtype"] = "bfloat16" if in_bf16 else "float32"
    if run is None:
        if request.use_lora:
            raise ConfigError(f"use_lora = true: {request.model_path!r} is no output_dir, so it has no adapters")
        limit = {f"roles.{AGENT}.max_tokens": request.max_new_tokens or MAX_NEW_TOKENS}
        return build(RunConfig, values | limit | recipe.tables), False
    agent, role = agent_of(run, request.model_path), run.roles[AGENT]
    if request.use_lora and agent.full:
        raise ConfigError(f"use_lora = true: {request.model_path} was trained as a whole, it has no adapters")
    if in_bf16 != trained_in_bf16:
        raise ConfigError(f"use_bf16: {request.model_path} was trained otherwise, on other weights; leave it out")
    values |= {"model.base": run.model.base, f"policies.{AGENT}": agent.model_dump(exclude_none=True)}
    values |= {f"roles.{AGENT}.policy": AGENT, f"roles.{AGENT}.trained": False}
    values[f"roles.{AGENT}.max_tokens"] = request.max_new_tokens or role.max_tokens
    is_learnt = agent.full or request.use_lora is not False
    return build(RunConfig, values | recipe.tables), is_learnt


# ---- other runs ------------------------------------------------------------------------------------------------------


def run_in(name: str) -> RunConfig | None:
    """The config of the run in a folder; None if it is no run folder."""
    file = Path(name) / "config.toml"
    return load(RunConfig, [file]) if file.is_file() else None


def agent_of(run: RunConfig, name: str) -> Any:
    """The policy of a run's one agent. Raises ConfigError for a run of another team."""
    if run.team.program != "solo" or set(run.policies) != {AGENT} or set(run.roles) != {AGENT}:
        raise ConfigError(f"{name}: a run of a team, not of one agent; see gruppo eval and start_from")
    return run.policies[AGENT]


def changed(before: RunConfig, after: RunConfig, parameters: type[Config]) -> Iterable[str]:
    """The parameters in which two configs differ, or the keys where there are none."""
    flat_before, flat_after = flat(before.model_dump()), flat(after.model_dump())
    for key in sorted(flat_before.keys() | flat_after.keys()):
        if flat_before.get(key) != flat_after.get(key):
            yield speak(key, parameters)


def flat(table: Mapping[str, Any], prefix: str = "") -> Values:
    """Dotted key -> value."""
    found: Values = {}
    for name, value in table.items():
        key = f"{prefix}{name}"
        found |= flat(value, f"{key}.") if isinstance(value, Mapping) and value else {key: value}
    return found
