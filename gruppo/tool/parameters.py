"""The parameters of the training tool: a row for each, with its type, default, meaning, and the config keys it sets.

What stands in `Sets` is copied into those keys of a `RunConfig`, whose own types and bounds hold; where `translation`
computes the value first, it is `derived`. Nothing is done here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from gruppo.config import Config

BASE_MODEL = "Qwen/Qwen3-0.6B"
DATASET = "gsm8k"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


@dataclass(frozen=True)
class Sets:
    """The config keys that a parameter sets."""

    keys: tuple[str, ...]
    is_derived: bool = False


def to(*keys: str) -> Sets:
    """The value goes into these keys as it is."""
    return Sets(keys)


def derives(*keys: str) -> Sets:
    """The value is one of those that these keys are computed from."""
    return Sets(keys, is_derived=True)


def keys_of(parameters: type[Config]) -> Iterator[tuple[str, Sets]]:
    """Each parameter that sets config keys, with these."""
    for name, field in parameters.model_fields.items():
        yield from ((name, own) for own in field.metadata if isinstance(own, Sets))


class ComponentParameters(Config):
    """One term of a combined reward."""

    type: Literal["accuracy", "length_penalty", "step"]
    weight: float = 1.0
    """What the term is multiplied by."""
    tolerance: float | None = Field(None, gt=0)
    """Of accuracy: numbers nearer to the result than this are right."""
    target_length: int | None = Field(None, ge=0)
    """Of the length penalty: tokens that cost nothing, 200 unless given."""
    max_length: int | None = Field(None, ge=0)
    """Another name of target_length."""
    penalty_weight: float | None = Field(None, gt=0)
    """Of the length penalty: what each token above costs, 0.001 unless given."""
    step_bonus: float | None = Field(None, gt=0)
    """Of the step bonus: what each step pays, 0.1 unless given."""


class RewardParameters(Config):
    """The settings of a reward: `reward_config`."""

    tolerance: float | None = Field(None, gt=0)
    """Numbers nearer to the result than this are right."""
    target_length: int | None = Field(None, ge=0)
    """Tokens that a right answer may take for nothing, 200 unless given."""
    max_length: int | None = Field(None, ge=0)
    """Another name of target_length."""
    penalty_weight: float | None = Field(None, gt=0)
    """What each token above costs a right answer, 0.001 unless given."""
    step_bonus: float | None = Field(None, gt=0)
    """What each step of a right answer pays, 0.1 unless given."""
    components: list[ComponentParameters] = []
    """The terms of "combined", each with its weight."""


class CreateRewardParameters(RewardParameters):
    """Action "create_reward"."""

    reward_type: Literal["accuracy", "length_penalty", "step", "combined"] = "accuracy"
    """What is rewarded."""
    name: str = ""
    """What `reward_type` calls it later; empty: its own type, whose settings are these from then on."""


class LoadDatasetParameters(Config):
    """Action "load_dataset"."""

    format: Literal["sft", "rl"] = "sft"
    """Whose rows: prompt, completion and text, or prompt, ground_truth, question and full_answer."""
    dataset: str = DATASET
    """As of action "train"."""
    split: str = ""
    """As of action "train"."""
    max_samples: int | None = Field(None, ge=1)
    """The most rows; 100 unless given, None: all."""
    model_name: Annotated[str, derives("model.base")] = BASE_MODEL
    """Whose chat template the prompts have."""
    seed: int = 42
    """Which tasks a generator gives."""
    data_folder: str = "data"
    """As of action "train"."""
    allow_download: Annotated[bool, derives("model.allow_download")] = False
    """As of action "train"."""


class TrainParameters(Config):
    """Action "train", whatever the algorithm."""

    model_name: Annotated[str, to("model.base"), derives("start_from")] = BASE_MODEL
    """"tiny" (embedded), a folder, a hub id, or the output_dir of an earlier training, which goes on from its end."""
    output_dir: str = "./output"
    """The run folder: config, metrics, checkpoints, report."""
    dataset: Annotated[str, derives("tasks.train")] = DATASET
    """A registered name, "gsm8k" or another known set, "gym:NAME", or a file or folder of your own."""
    split: Annotated[str, derives("tasks.train")] = ""
    """Which part of it: "train" (as if left out), "test", or rows of one, as "train[:1000]" or "train[10%:20%]"."""
    max_samples: Annotated[int | None, derives("tasks.num_train")] = Field(None, ge=1)
    """The most tasks that are taken, the first ones; None: all."""
    num_epochs: Annotated[int, derives("sft.steps", "train.steps")] = Field(3, ge=1)
    """How often each task is trained on."""
    batch_size: Annotated[
        int,
        derives("sft.batch_size", "train.tasks_per_step", "sft.microbatch_tokens", "train.microbatch_tokens"),
    ] = Field(4, ge=1)
    """Sequences that are held in memory at once."""
    gradient_accumulation_steps: Annotated[int, derives("sft.batch_size", "train.tasks_per_step")] = Field(4, ge=1)
    """Batches of one optimizer step."""
    use_lora: Annotated[bool, derives("policies.agent.full")] = True
    """Whether LoRA adapters are trained, or the whole model."""
    lora_rank: Annotated[int, to("policies.agent.rank")] = 8
    """Rank of the adapters."""
    lora_alpha: Annotated[int | None, to("policies.agent.alpha")] = None
    """Their update is multiplied by lora_alpha / lora_rank; None: twice the rank."""
    lora_target_modules: Annotated[list[str], to("policies.agent.target_modules")] = ATTENTION
    """The layers that get one."""
    optimizer: Annotated[str, to("policies.agent.optimizer")] = "adamw"
    """"adamw" or "sgd"."""
    weight_decay: Annotated[float, to("policies.agent.weight_decay")] = 0.01
    """What a step takes off each weight, as a share, times the learning rate."""
    warmup_ratio: Annotated[float, derives("sft.warmup_steps", "train.warmup_steps")] = Field(0.1, ge=0, le=1)
    """The share of all steps over which the learning rate rises."""
    max_grad_norm: Annotated[float, to("sft.max_grad_norm", "train.max_grad_norm")] = 1.0
    """Gradients are clipped to this norm."""
    save_steps: Annotated[int, to("sft.save_every", "train.save_every")] = Field(50, ge=1)
    """Steps between checkpoints, from which `resume` goes on."""
    logging_steps: Annotated[int, to("monitor.every")] = Field(1, ge=1)
    """Steps between the records that TensorBoard, W&B and the log get; metrics.jsonl has them all."""
    eval_steps: Annotated[int | None, derives("sft.eval_every", "train.eval_every")] = Field(None, ge=1)
    """Steps between evaluations on held-out tasks; None: none."""
    eval_dataset: Annotated[str, derives("tasks.validation")] = ""
    """The held-out tasks of eval_steps; empty: the test split of the data set."""
    eval_samples: Annotated[int, derives("tasks.num_validation")] = Field(100, ge=1)
    """The most of them."""
    use_wandb: Annotated[bool, derives("monitors")] = False
    """Whether W&B gets the metrics."""
    wandb_project: Annotated[str, derives("monitor.project")] = ""
    """Its project there; empty: the environment's WANDB_PROJECT, else "gruppo"."""
    wandb_online: Annotated[bool, to("monitor.online")] = False
    """Whether they are sent to its server, or written into the run folder for `wandb sync`."""
    use_tensorboard: Annotated[bool | None, derives("monitors")] = None
    """Whether TensorBoard gets the metrics; None: if it is installed."""
    use_bf16: Annotated[bool, derives("model.dtype")] = False
    """Whether the base is held and computed with in bfloat16 (mixed precision), or in float32."""
    gradient_checkpointing: Annotated[bool, to("model.gradient_checkpointing")] = False
    """Computes activations again instead of keeping them: less memory, more time."""
    device: Annotated[str, to("model.device")] = ""
    """A torch device; empty: a GPU if there is one."""
    processes: Annotated[int, to("model.processes")] = Field(1, ge=1)
    """Processes that answer and learn side by side on the CPU, one thread each: faster with a very small model."""
    seed: Annotated[int, to("seed")] = 42
    """Of adapters, task order and every draw."""
    data_folder: Annotated[str, derives("tasks.folder")] = "data"
    """Where the files of known data sets are."""
    allow_download: Annotated[bool, to("model.allow_download", "tasks.download")] = False
    """Whether a model or data set that is not on this machine may be fetched from the hub."""
    resume: bool = False
    """Goes on with the run in output_dir, if there is one."""
    overwrite: bool = False
    """Replaces the run in output_dir, if there is one."""


class SFTParameters(TrainParameters):
    """Action "train", algorithm "sft"."""

    learning_rate: Annotated[float, to("sft.learning_rate")] = 5e-5
    """After the warm-up."""
    max_length: Annotated[int, to("sft.max_length"), derives("sft.microbatch_tokens")] = Field(2048, ge=1)
    """Tokens of the longest example, its prompt included; longer ones are left out."""


class GRPOParameters(TrainParameters):
    """Action "train", algorithm "grpo"."""

    learning_rate: Annotated[float, to("policies.agent.learning_rate")] = 1e-5
    """After the warm-up."""
    num_generations: Annotated[int, to("train.attempts"), derives("train.tasks_per_step")] = Field(8, ge=2)
    """Answers to each question: a group, whose mean reward is the baseline."""
    max_new_tokens: Annotated[int, to("roles.agent.max_tokens")] = 512
    """Tokens of the longest answer; one that is cut off is wrong."""
    temperature: Annotated[float, to("roles.agent.temperature")] = 0.8
    """Of sampling."""
    kl_coef: Annotated[float, to("algorithm.kl_coefficient")] = 0.05
    """Weight of the KL from the model as training began."""
    clip_range: Annotated[float, to("algorithm.clip_low", "algorithm.clip_high")] = 0.2
    """A token's probability ratio is clipped this far from 1; the first step on a rollout has ratio 1."""
    updates_per_rollout: Annotated[int, to("train.updates"), derives("train.tasks_per_step")] = Field(2, ge=1)
    """Optimizer steps on what was sampled at once, each on its own groups; at 1 nothing is ever clipped."""
    scale_rewards: Annotated[bool, derives("algorithm.advantage")] = True
    """Whether an advantage is divided by the group's standard deviation, or is the reward less the mean."""
    reward_type: Annotated[str, derives("rewards")] = ""
    """A type or a stored or registered name; empty: the function registered under the data set's name, or accuracy."""
    reward_config: Annotated[RewardParameters, derives("reward")] = RewardParameters()
    """The settings of a reward type."""


class EvaluateParameters(Config):
    """Action "evaluate"."""

    model_path: Annotated[str, to("model.base"), derives("start_from")]
    """As model_name of action "train": an output_dir, a folder, a hub id or "tiny"."""
    use_lora: bool | None = None
    """Of an output_dir whether its adapters are on, or left off to see the base; None: as it was trained."""
    dataset: str = DATASET
    """As of action "train"."""
    split: str = ""
    """As of action "train"; empty: "test", of rows of your own all."""
    max_samples: int | None = Field(None, ge=1)
    """The most tasks; 100 unless given, None: all."""
    metrics: list[str] = ["accuracy"]
    """Which of docs/evaluation.md."""
    k: int | None = Field(None, ge=1)
    """Sampled answers to each question for accuracy_at_k; 3 unless given."""
    temperature: float | None = Field(None, gt=0)
    """Of these k answers; 0.8 unless given. All other metrics are of the one greedy answer."""
    max_new_tokens: Annotated[int | None, to("roles.agent.max_tokens")] = None
    """Tokens of the longest answer; None: as it was trained, else 512."""
    batch_size: Annotated[int, to("rollout.max_batch")] = Field(64, ge=1)
    """Questions that are answered at once."""
    return_details: bool = False
    """Whether every task, every error with its kind, and accuracy by difficulty are in the result."""
    reward_type: Annotated[str, derives("rewards")] = ""
    """What average_reward is of, as of action "train"."""
    reward_config: Annotated[RewardParameters, derives("reward")] = RewardParameters()
    """As of action "train"."""
    use_bf16: Annotated[bool | None, derives("model.dtype")] = None
    """As of action "train"; None: as it was trained."""
    device: Annotated[str, to("model.device")] = ""
    """As of action "train"."""
    seed: Annotated[int, to("seed")] = 42
    """Of the k answers, and which tasks a generator gives."""
    data_folder: str = "data"
    """As of action "train"."""
    allow_download: Annotated[bool, to("model.allow_download")] = False
    """As of action "train"."""


OBJECTS: Mapping[str, tuple[str, ...]] = {
    "custom_dataset": ("train sft", "train grpo", "evaluate", "load_dataset"),
    "custom_reward": ("train grpo", "evaluate"),
}
"""Parameters that are Python objects, and the actions that take them: rows in place of dataset, and a function
fn(completions, **columns) -> list of rewards."""

ACTIONS: Mapping[str, type[Config]] = {
    "train sft": SFTParameters,
    "train grpo": GRPOParameters,
    "load_dataset": LoadDatasetParameters,
    "create_reward": CreateRewardParameters,
    "evaluate": EvaluateParameters,
}
"""Action, for "train" with its algorithm -> its parameters."""

UNLESS_GIVEN: Mapping[str, Mapping[str, Any]] = {
    "load_dataset": {"max_samples": 100},
    "evaluate": {"max_samples": 100},
}
"""Defaults of parameters that may be None."""
