"""The steps of a pipeline: what each depends on, where it leaves what it makes, whether it has to play again, and why.

A step is known by its inputs: settings, the content of the files that settings name, task sets, and the fingerprints of
the steps that it follows. It plays nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from gruppo.data.base import TaskSet
from gruppo.pipeline.recipe import Recipe
from gruppo.pipeline.results import Entry, Results
from gruppo.run import make_tasks
from gruppo.store import Run, fingerprint

Inputs = Mapping[str, Any]

STEPS: Mapping[str, str] = {
    "prepare": "read and check the tasks",
    "base": "evaluate the base",
    "sft": "supervised fine-tuning",
    "sft-eval": "evaluate, and the gate",
    "grpo": "reinforcement learning",
    "grpo-eval": "evaluate",
    "save": "save, and check what was saved",
}
FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "sft-eval": ("base", "sft"),
    "grpo": ("sft",),
    "grpo-eval": ("base", "grpo"),
    "save": ("sft-eval", "grpo-eval"),
}
"""Step -> the steps whose results it takes."""

PLAYERS = (
    "seed",
    "start_from",
    "model",
    "policies",
    "roles",
    "team",
    "engines",
    "tools",
    "rollout",
    "tasks.world_seed",
)
SCORES = ("rewards", "reward", "judge")
LEARNT = ("learning_rate", "trained")  # keys of policies and roles that only GRPO reads
READ = ("model.base", "tools.corpus")  # keys whose folder is read, where they name one
SHOWN, WIDEST = 3, 40  # of the changes that make a step play again, and characters of a value


@dataclass(frozen=True)
class Standing:
    """A step, what it depends on now, and why it has to play; an empty reason: it is up to date.

    `goes_on`: it takes up what it left when it was interrupted.
    """

    step: str
    inputs: Inputs
    reason: str
    goes_on: bool = False

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the inputs."""
        return fingerprint(self.inputs)


def paths_of(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Step -> what it leaves in the pipeline's folder, by what it is."""
    modes = recipe.eval.modes
    shard = "evaluation/episodes/eval-{}-{}.episodes.parquet"
    return {
        "prepare": {},
        "base": {"run": "evaluation"},
        "sft": {"run": "sft"},
        "sft-eval": {mode: shard.format("sft", mode) for mode in modes[:1]},
        "grpo": {"run": "grpo", "report": "grpo/report.html"},
        "grpo-eval": {mode: shard.format("final", mode) for mode in modes},
        "save": {"sft": recipe.pipeline.sft_output, "grpo": recipe.pipeline.grpo_output},
    }


def read_tasks(recipe: Recipe) -> dict[str, TaskSet]:
    """The task sets that the pipeline uses, by split. Raises DataError and ConfigError as `make_tasks`."""
    used = {"train": True, "validation": recipe.train.eval_every or recipe.sft.eval_every, "test": True}
    return {split: make_tasks(recipe, split) for split, is_used in used.items() if is_used}


def inputs_of(recipe: Recipe, tasks: Mapping[str, TaskSet]) -> dict[str, dict[str, Any]]:
    """Step -> what it depends on, by names that tell a person what has changed."""
    keys = dict(_flat(to_jsonable_python(recipe, exclude_none=True)))
    sets = {split: {f"{split} tasks": own.fingerprint} for split, own in tasks.items()}
    learnt = {key: keys[key] for key in _under(keys, ("policies", "roles")) if key.rpartition(".")[2] in LEARNT}
    players = {key: keys[key] for key in _under(keys, PLAYERS) if key not in learnt}
    scores = {key: keys[key] for key in _under(keys, SCORES)}
    tables = {name: {key: keys[key] for key in _under(keys, (name,))} for name in ("eval", "sft")}
    rl = {key: keys[key] for key in _under(keys, ("train", "algorithm", "credit", "alarms"))} | learnt | scores
    if recipe.train.eval_every:
        rl |= sets["validation"] | {"eval.attempts": recipe.eval.attempts}
    limits = {key: keys[key] for key in _under(keys, ("pipeline.limits",))}
    saved = {key: keys[key] for key in ("pipeline.save", "pipeline.sft_output", "pipeline.grpo_output")}
    own: dict[str, dict[str, Any]] = {
        "prepare": limits | {name: value for one in sets.values() for name, value in one.items()},
        "base": players | scores | tables["eval"] | sets["test"],
        "sft": players | tables["sft"] | sets["train"] | (sets["validation"] if recipe.sft.eval_every else {}),
        "sft-eval": {},
        "grpo": rl,
        "grpo-eval": {},
        "save": saved,
    }
    for step in STEPS:
        own[step] |= contents(own[step])
        own[step] |= {other: fingerprint(own[other]) for other in FOLLOWS.get(step, ())}
    return own


def standings(out: Path, inputs: Mapping[str, Inputs], results: Results | None) -> list[Standing]:
    """Where every step stands, in their order."""
    found: dict[str, Standing] = {}
    for step in STEPS:
        entry = results.steps.get(step) if results else None
        again = [other for other in FOLLOWS.get(step, ()) if found[other].reason]
        reason = _reason(step, inputs[step], entry, again)
        if entry and not reason:
            missing = [path for path in entry.paths.values() if not (out / path).exists()]
            begun = {"running": "was interrupted", "stale": "was interrupted", "failed": f"failed: {entry.message}"}
            reason = begun.get(entry.status, f"{missing[0]} is gone" if missing else "")
            found[step] = Standing(step, inputs[step], reason, goes_on=entry.status in ("running", "failed"))
        else:
            found[step] = Standing(step, inputs[step], reason)
    return list(found.values())


def _reason(step: str, inputs: Inputs, entry: Entry | None, again: Sequence[str]) -> str:
    """Why what a step once did is not what it is to do now."""
    if entry is None:
        return "not played yet"
    is_other = entry.fingerprint != fingerprint(inputs)
    if is_other and (changed := changes(step, entry.inputs, inputs)):
        return changed
    if followed := again or (FOLLOWS.get(step, ()) if is_other else ()):
        return f"follows {' and '.join(followed)}"
    return "changed" if is_other else ""


def changes(step: str, before: Inputs, now: Inputs) -> str:
    """What is different in a step's own inputs, the first few in words; nothing where only earlier steps are."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    own = [_change(name, before.get(name), now.get(name)) for name in names if name not in FOLLOWS.get(step, ())]
    more = f" and {len(own) - SHOWN} more" if len(own) > SHOWN else ""
    return f"changed: {', '.join(own[:SHOWN])}{more}" if own else ""


def _change(name: str, before: Any, now: Any) -> str:
    if " " in name:  # a file, a folder or a task set: its SHA-256 tells nothing
        return name
    return f"{name} ({_shown(before)} to {_shown(now)})"


def _shown(value: Any) -> str:
    text = "unset" if value is None else " ".join(str(value).split())
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def contents(settings: Inputs) -> dict[str, str]:
    """SHA-256 of what settings name: files, by a path or "path.py:name", folders that are read, a run's newest weights.

    Raises StoreError and CheckpointError for a run that is none.
    """
    found: dict[str, str] = {}
    for key, value in settings.items():
        texts = [key, *_texts(value)]
        for path in map(Path, sorted({path for text in texts for path in (text, _before_name(text)) if path})):
            if os.path.isfile(path):  # unlike Path.is_file, False for any text that is no path
                found[f"file {path}"] = fingerprint(path)
        if key in READ and Path(value).is_dir():
            files = sorted(path for path in Path(value).rglob("*") if path.is_file())
            found[f"folder {value}"] = fingerprint({str(file): fingerprint(file) for file in files})
        if key == "start_from" and value and (checkpoint := Run.open(value).latest_checkpoint()):
            found[f"run {value}"] = fingerprint(checkpoint.path / "manifest.json")
    return found


def _before_name(text: str) -> str:
    """The "path.py" of "path.py:name", else nothing; of a key "rewards.path.py:name" too."""
    place = text.rpartition(":")[0]
    for table in ("rewards.", "credit.turn_rewards."):
        place = place.removeprefix(table)
    return place if place.endswith(".py") else ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is no table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _under(keys: Mapping[str, Any], tables: Sequence[str]) -> Iterator[str]:
    """The keys that are, or lie in, one of these tables."""
    return (key for key in keys if any(key == table or key.startswith(f"{table}.") for table in tables))
