"""The recipe: what a pipeline is to do, read from one TOML file, or from the config.json of hello-agents' chapter 11.

A recipe is a run's config with a table [pipeline]: the gates, and what is saved. It starts nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from gruppo.config import Config, load
from gruppo.data.quality import LimitsConfig
from gruppo.data.sources import SOURCES
from gruppo.export import Form
from gruppo.run import RunConfig

RESERVED = ("sft", "grpo", "evaluation")  # the pipeline's own folders


def _inside(folder: str) -> str:
    path = Path(folder)
    if path.is_absolute() or ".." in path.parts or not path.parts or path.parts[0] in RESERVED:
        raise ValueError("expected a folder of its own inside --out, such as models/sft")
    return folder


Inside = Annotated[str, AfterValidator(_inside)]


class PipelineConfig(Config):
    """The gates, and what is saved."""

    sft_accuracy_threshold: float = Field(0.4, ge=0, le=1)
    """GRPO begins only if after SFT the greedy accuracy on the test split is at least this; 0: in any case."""
    limits: LimitsConfig = LimitsConfig()
    """What `gruppo data check` may find in the training tasks: with more than that nothing is trained."""
    save: Form = "adapters"
    """"adapters", in PEFT's format, or "merged": whole models, the adapters added in."""
    sft_output: Inside = "models/sft"
    """Where the policies after SFT are saved: a folder inside the pipeline's own."""
    grpo_output: Inside = "models/grpo"
    """Where the policies after GRPO are saved: a folder inside the pipeline's own."""

    @model_validator(mode="after")
    def _are_apart(self) -> PipelineConfig:
        first, second = Path(self.sft_output), Path(self.grpo_output)
        if first.is_relative_to(second) or second.is_relative_to(first):
            raise ValueError(f"sft_output and grpo_output are {first} and {second}: expected two folders side by side")
        return self


class Recipe(RunConfig):
    """A run's config, and how its stages are gated and saved."""

    pipeline: PipelineConfig = PipelineConfig()

    @model_validator(mode="after")
    def _has_all_stages(self) -> Recipe:
        if not self.sft.steps:
            raise ValueError("sft.steps = 0: a pipeline begins with SFT; for GRPO alone there is gruppo train")
        if not self.train.steps:
            raise ValueError("train.steps = 0: a pipeline ends with GRPO; for SFT alone there is gruppo sft")
        if not self.eval.stages:
            raise ValueError("eval.stages = false: a pipeline evaluates between its stages; leave it out")
        if self.eval.modes[:1] != ["greedy"]:
            raise ValueError(f'eval.modes = {self.eval.modes}: the gate and the table are greedy; put "greedy" first')
        if self.pipeline.save == "merged" and self.model.quantization != "none":
            raise ValueError(
                f'pipeline.save = "merged": an adapter can\'t be added to weights of model.quantization = '
                f'"{self.model.quantization}" as they were played; use "adapters"'
            )
        return self


def read_recipe(file: Path, overrides: Mapping[str, str]) -> Recipe:
    """The recipe of a TOML file, or of a config.json with the chapter's keys; flags are laid over it.

    Raises ConfigError.
    """
    if file.suffix == ".json":
        return load(Recipe, [], {**settings_of(load(ChapterConfig, [file])), **overrides})
    return load(Recipe, [file], overrides)


def run_config(recipe: Recipe, **tables: Mapping[str, Any]) -> RunConfig:
    """The config of one of the pipeline's runs: the recipe's, with some keys of some tables replaced."""
    own: dict[str, Any] = {name: value for name, value in vars(recipe).items() if name != "pipeline"}
    return RunConfig(**own | {name: own[name].model_copy(update=dict(keys)) for name, keys in tables.items()})


# The chapter's config.json -------------------------------------------------------------------------------------------


class ChapterModel(Config):
    """Which model."""

    base_model: str = "Qwen/Qwen3-0.6B"
    """The base."""


class ChapterData(Config):
    """How much of GSM8K."""

    max_samples: int | None = Field(None, ge=1)
    """Training tasks, of SFT and of GRPO; none: all."""


class ChapterStage(Config):
    """A training stage."""

    output_dir: Inside
    """Where its model is saved, inside the pipeline's folder."""
    num_epochs: int = Field(2, ge=1)
    """How often each task comes."""
    batch_size: int = Field(ge=1)
    """Tasks of one optimizer step."""


class ChapterSFT(ChapterStage):
    output_dir: Inside = "models/sft"
    batch_size: int = Field(4, ge=1)


class ChapterGRPO(ChapterStage):
    output_dir: Inside = "models/grpo"
    batch_size: int = Field(2, ge=1)


class ChapterEval(Config):
    """The evaluations and the gate."""

    max_samples: int | None = Field(None, ge=1)
    """Test tasks; none: all."""
    sft_accuracy_threshold: float = Field(0.4, ge=0, le=1)
    """GRPO begins only if the accuracy after SFT is at least this."""


class ChapterMonitoring(Config):
    """Where the curves go."""

    use_wandb: bool = False
    """To W&B, offline (--monitor.online sends)."""
    use_tensorboard: bool = False
    """To TensorBoard's files."""
    wandb_project: str | None = None
    """The project's name."""


class ChapterConfig(Config):
    """The keys of hello-agents' chapter 11, file config.json."""

    model: ChapterModel = ChapterModel()
    data: ChapterData = ChapterData()
    sft: ChapterSFT = ChapterSFT()
    grpo: ChapterGRPO = ChapterGRPO()
    eval: ChapterEval = ChapterEval()
    monitoring: ChapterMonitoring = ChapterMonitoring()


CHAPTER: Mapping[str, Any] = {
    "title": "SFT, then GRPO on GSM8K",
    "team.program": "solo",
    "team.solo.max_turns": 1,
    "roles.agent.policy": "agent",
    "roles.agent.max_tokens": 512,
    "roles.agent.temperature": 0.8,
    "policies.agent.rank": 16,
    "policies.agent.alpha": 32,
    "policies.agent.learning_rate": 1e-5,
    "rewards.answers": 1.0,
    "tasks.train": "gsm8k:train",
    "tasks.validation": "gsm8k:test",
    "tasks.test": "gsm8k:test",
    "sft.learning_rate": 1e-4,
    "train.attempts": 4,
    "algorithm.kl_coefficient": 0.05,
    "algorithm.clip_low": 0.2,
    "algorithm.clip_high": 0.2,
    "eval.modes": ["greedy"],
}
"""What its config.json leaves open, as in its sections 3.3 and 4.2; the learning rate of SFT is the one for LoRA."""


def settings_of(chapter: ChapterConfig) -> dict[str, str]:
    """The chapter's keys as ours: dotted key -> value as it would be typed."""
    rows = SOURCES["gsm8k"].num_rows
    num_train = min(chapter.data.max_samples or rows["train"], rows["train"])
    watched = {"wandb": chapter.monitoring.use_wandb, "tensorboard": chapter.monitoring.use_tensorboard}
    own: dict[str, Any] = {
        "model.base": chapter.model.base_model,
        "tasks.num_train": num_train,
        "tasks.num_test": min(chapter.eval.max_samples or rows["test"], rows["test"]),
        "sft.demonstrations": num_train,
        "sft.batch_size": chapter.sft.batch_size,
        "sft.steps": math.ceil(num_train * chapter.sft.num_epochs / chapter.sft.batch_size),
        "train.tasks_per_step": chapter.grpo.batch_size,
        "train.steps": math.ceil(num_train * chapter.grpo.num_epochs / chapter.grpo.batch_size),
        "pipeline.sft_output": chapter.sft.output_dir,
        "pipeline.grpo_output": chapter.grpo.output_dir,
        "pipeline.sft_accuracy_threshold": chapter.eval.sft_accuracy_threshold,
        "monitors": [monitor for monitor, used in watched.items() if used],
    }
    if chapter.monitoring.wandb_project:
        own["monitor.project"] = chapter.monitoring.wandb_project
    return {key: json.dumps(value, ensure_ascii=False) for key, value in {**CHAPTER, **own}.items()}
