"""Which engines [engines] describes: endpoints on a network, and models in folders, which play frozen roles here.

The engine "local" plays with what the learner holds; one of a folder has a model of its own, which nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from gruppo.config import Config
from gruppo.engines.decoding import Memory
from gruppo.engines.drafts import Drafts
from gruppo.engines.local import LocalEngine
from gruppo.engines.openai import OpenAIConfig, OpenAIEngine
from gruppo.engines.prefix_cache import PrefixCache
from gruppo.errors import ConfigError
from gruppo.training.learner import Learner
from gruppo.training.model import ModelConfig, load_frozen


class FolderConfig(Config):
    """A whole model that plays frozen roles in this process; what is not given is as in [model]."""

    folder: str = Field(min_length=1)
    """Where the model and its tokenizer are, in place of an endpoint's base_url and model."""
    device: str | None = None
    """As model.device."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """As model.dtype."""
    quantization: Literal["none", "nf4", "int8"] | None = None
    """As model.quantization."""
    template: dict[str, bool | int | float | str] | None = None
    """As model.template."""

    @model_validator(mode="before")
    @classmethod
    def _is_no_endpoint(cls, data: dict[str, Any]) -> dict[str, Any]:
        if both := data.keys() & OpenAIConfig.model_fields.keys():
            raise ValueError(f"{min(both)} is an endpoint's, folder a model's here: keep one of them")
        return data


def _kind(data: Any) -> str:
    """The members' names must not be keys: errors tell where a value is without them."""
    is_folder = isinstance(data, FolderConfig) or (isinstance(data, dict) and "folder" in data)
    return "a folder" if is_folder else "an endpoint"


EngineConfig = Annotated[
    Annotated[FolderConfig, Tag("a folder")] | Annotated[OpenAIConfig, Tag("an endpoint")], Discriminator(_kind)
]
"""An entry of [engines]."""


def endpoints(configs: Mapping[str, EngineConfig]) -> dict[str, OpenAIConfig]:
    """Those that may judge and answer in tools."""
    return {name: config for name, config in configs.items() if isinstance(config, OpenAIConfig)}


def calls(configs: Mapping[str, EngineConfig]) -> dict[str, int]:
    """How many calls each endpoint takes at once."""
    return {name: config.max_concurrency for name, config in endpoints(configs).items()}


def make_engines(
    configs: Mapping[str, EngineConfig], model: ModelConfig, seated: Collection[str]
) -> dict[str, LocalEngine | OpenAIEngine]:
    """Every endpoint, and the models of those folders that are `seated`. Raises ConfigError for one without a model."""
    made: dict[str, LocalEngine | OpenAIEngine] = {}
    for name, config in configs.items():
        if isinstance(config, OpenAIConfig):
            made[name] = OpenAIEngine(config)
        elif name in seated:
            made[name] = folder_engine(name, config, model)
    return made


def learner_engine(learner: Learner) -> LocalEngine:
    """The engine "local": what the learner holds, as it learns."""
    config = learner.config
    return LocalEngine(
        learner.model,
        learner.tokenizer,
        activate=learner.sampling,
        version=learner.version,
        replicas=learner.replicas,
        memory=lambda: Memory(PrefixCache(config.cache_mb * 2**20, learner.changes), Drafts(config.draft_tokens)),
    )


def folder_model(name: str, config: FolderConfig, model: ModelConfig) -> ModelConfig:
    """How the model of a folder is held, where [model] is `model`. Raises ConfigError where there is none."""
    if not (Path(config.folder) / "config.json").is_file():
        raise ConfigError(f"engines.{name}.folder = {config.folder!r}: no model there; gruppo search merge writes one")
    return model.model_copy(update={"base": config.folder, **config.model_dump(exclude={"folder"}, exclude_none=True)})


def folder_engine(name: str, config: FolderConfig, model: ModelConfig) -> LocalEngine:
    """The model of a folder: greedy and sampled as "local" is, and no policy has a place in it."""
    own = folder_model(name, config, model)
    try:
        tokenizer, loaded = load_frozen(own)
    except ConfigError as error:
        raise ConfigError(f"engines.{name}.folder = {config.folder!r}: {error}") from error
    return LocalEngine(
        loaded,
        tokenizer,
        activate=lambda policy: nullcontext(loaded),
        version=lambda policy: 0,
        memory=lambda: Memory(PrefixCache(model.cache_mb * 2**20, lambda policy: 0), Drafts(model.draft_tokens)),
    )
