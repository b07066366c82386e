"""The training tool: one call with a dictionary of parameters, one JSON text back. What it does is done elsewhere.

A fault that the caller can mend is a result too: `{"status": "error", "error": ..., "message": ...}`, and the same line
on standard error, so that it is seen where nobody looks at the status. Anything else is a bug, and is raised.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gruppo.assess import at_temperature
from gruppo.config import Config, suggest
from gruppo.data.base import TaskSet
from gruppo.data.selection import Place
from gruppo.data.sources import SOURCES
from gruppo.errors import ConfigError, GruppoError, StoreError, UserError, boundary
from gruppo.lints import lint
from gruppo.log import Log
from gruppo.run import RunConfig, assemble
from gruppo.stages import start_from, train
from gruppo.store import Run
from gruppo.tool.datasets import VIEWS, Row, Wanted, as_lines, choose, tasks_from, tokenizer_of
from gruppo.tool.findings import details_of, metrics_of, training_of
from gruppo.tool.parameters import (
    ACTIONS,
    OBJECTS,
    CreateRewardParameters,
    EvaluateParameters,
    GRPOParameters,
    LoadDatasetParameters,
    SFTParameters,
    TrainParameters,
)
from gruppo.tool.recipes import Recipe, Rewards, components_of, described, plain_function, recipe_of, resolved
from gruppo.tool.translation import (
    ALGORITHMS,
    NUM_ANSWERS,
    TEMPERATURE,
    action_of,
    changed,
    evaluation,
    read,
    run_in,
    speak,
    training,
)
from gruppo.types import Group

ALLOW_DOWNLOAD = "GRUPPO_ALLOW_DOWNLOAD"  # set to 1 in the environment it is the default of allow_download
PARTS_OF_A_RUN = (
    "checkpoints", "episodes", "monitors", "tasks", "metrics.jsonl", "start.json", "facts.json", "report.json",
    "report.html", "wandb.id", "run.lock", "config.toml",
)  # fmt: skip


class Result(str):
    """A JSON text whose keys can be read at once: `result["accuracy"]`. Of an error that raises UserError with it."""

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        values = json.loads(self)
        if key not in values and values["status"] == "error":
            raise UserError(values["message"])
        return values[key]


class RLTrainingTool:
    """`run({"action": ...})`: train, load_dataset, create_reward, evaluate; see docs/hello_agents.md.

    `defaults` are parameters that hold in all calls whose action has them and that do not give them.
    """

    def __init__(self, log: Log | None = None, **defaults: Any) -> None:
        self.log = log or Log()
        self.rewards = Rewards()
        self.datasets: dict[str, Iterable[Row]] = {}
        known = {name for kind in ACTIONS.values() for name in kind.model_fields}
        for name in defaults:
            if name not in known:
                raise ConfigError(f"unknown parameter {name} = {defaults[name]!r:.60}{suggest(name, known)}")
        allowed = {"allow_download": True} if os.environ.get(ALLOW_DOWNLOAD, "").lower() in ("1", "true") else {}
        self.defaults = allowed | defaults

    def run(self, parameters: Mapping[str, Any]) -> Result:
        """Do what `parameters` ask for; JSON with numbers as numbers, or with status "error" and a message."""
        kind: type[Config] = TrainParameters
        try:
            if not isinstance(parameters, Mapping):
                raise ConfigError(f"parameters: expected a dictionary, not {type(parameters).__name__}")
            entry = action_of(parameters)
            kind = ACTIONS[entry]
            own = {name: value for name, value in self.defaults.items() if name in kind.model_fields}
            given = {**own, **parameters}
            objects = {name: given.get(name) for name in OBJECTS}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")
                found = self._do(read(entry, given), objects)
        except GruppoError as error:
            message = " ".join(speak(str(error), kind).split())
            self.log.say(f"error: {message}")
            found = {"status": "error", "error": type(error).__name__, "message": message}
        return Result(json.dumps(found, ensure_ascii=False, allow_nan=False))

    def register_dataset(self, name: str, dataset: Iterable[Row]) -> None:
        """Make rows known as `"dataset": name`. Raises DataError for a broken row, ConfigError for a name of ours."""
        if name in SOURCES or not name or ":" in name:
            raise ConfigError(f"register_dataset: {name!r} can't be a name of your own; take another")
        tasks_from(dataset, name)
        self.datasets[name] = dataset

    def register_reward_function(self, name: str, function: Callable[..., Any]) -> None:
        """Make a function known as `"reward_type": name`; where a data set has that name, it is what rewards it.

        Raises ConfigError for what is no function, or a name that can't be one.
        """
        if not name or ":" in name:
            raise ConfigError(f"register_reward_function: {name!r} can't be a name; take another")
        self.rewards.registered[name] = plain_function(function, name)

    def _do(self, request: Config, objects: Mapping[str, Any]) -> dict[str, Any]:
        match request:
            case SFTParameters() | GRPOParameters():
                return self._train(request, objects)
            case LoadDatasetParameters():
                return self._load_dataset(request, objects)
            case CreateRewardParameters():
                return self._create_reward(request)
            case EvaluateParameters():
                return self._evaluate(request, objects)
        raise AssertionError(type(request))

    # ---- train -------------------------------------------------------------------------------------------------------

    def _train(self, request: SFTParameters | GRPOParameters, objects: Mapping[str, Any]) -> dict[str, Any]:
        out, started = Path(request.output_dir), time.monotonic()
        recipe = self._recipe(request, objects) if isinstance(request, GRPOParameters) else None
        tasks = {"train": choose(self._wanted(request, objects["custom_dataset"]), self.datasets)}
        if request.eval_steps:
            tasks["validation"] = choose(self._held_out(request, objects["custom_dataset"]), self.datasets)
        config = training(request, len(tasks["train"]), recipe)
        files = {out / "tasks" / f"{split}.jsonl": as_lines(chosen) for split, chosen in tasks.items()}
        if resumed := self._goes_on(request, config, files):
            self.log.say(f"goes on with the run in {out}")
        else:
            with boundary(StoreError, f"output_dir = {request.output_dir!r}"):
                for path, lines in files.items():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(lines, encoding="utf-8")
        try:
            train(config, out, resumed, self.log, recipe.functions if recipe else {})
        except UserError:
            if not (out / "config.toml").exists():  # nothing has begun: leave nothing behind
                remove_run(out)
            raise
        hints = [speak(str(hint), type(request)) for hint in lint(config)]
        return {
            "status": "success",
            "algorithm": ALGORITHMS[type(request)],
            "model": request.model_name,
            "model_path": request.output_dir,
            "output_dir": request.output_dir,
            "dataset": tasks["train"].name,
            "dataset_size": len(tasks["train"]),
            "num_epochs": request.num_epochs,
            **training_of(Run.open(out).read_metrics(), ALGORITHMS[type(request)]),
            "device": config.model.device,
            "seconds": round(time.monotonic() - started, 1),
            "hints": hints,
        }

    def _goes_on(self, request: SFTParameters | GRPOParameters, config: RunConfig, files: Mapping[Path, str]) -> bool:
        """Whether there is a run to go on with; one that is to be overwritten is removed.

        Raises ConfigError for one that is to be neither, or that was begun with other parameters or tasks.
        """
        out, before = Path(request.output_dir), run_in(request.output_dir)
        if before is None:
            return False
        if request.resume:
            keys = list(changed(before, config, type(request)))
            is_same = (path.is_file() and path.read_text(encoding="utf-8") == lines for path, lines in files.items())
            keys += [] if all(is_same) else ["dataset"]
            if keys:
                raise ConfigError(f"{keys[0]}: the run in {out} was begun with another; give that, or overwrite it")
            return True
        if not request.overwrite:
            raise ConfigError(
                f'output_dir = {str(out)!r}: holds a run; pass "resume": True to go on with it, "overwrite": True to '
                "replace it, or another output_dir"
            )
        if config.start_from and Path(config.start_from).resolve() == out.resolve():
            raise ConfigError(f"output_dir = {str(out)!r}: is what model_name begins with; take another")
        remove_run(out)
        return False

    def _held_out(self, request: TrainParameters, custom: Any) -> Wanted:
        wanted = self._wanted(request, None)
        if request.eval_dataset:
            return replace(
                wanted, dataset=request.eval_dataset, split="", max_samples=request.eval_samples, usual="test"
            )
        own = custom is not None or request.dataset in self.datasets
        if own or request.dataset not in SOURCES and not request.dataset.startswith("gym:"):
            raise ConfigError("eval_steps: rows of your own have no test split; name held-out tasks with eval_dataset")
        return replace(wanted, split="test", max_samples=request.eval_samples)

    # ---- the other actions -------------------------------------------------------------------------------------------

    def _load_dataset(self, request: LoadDatasetParameters, objects: Mapping[str, Any]) -> dict[str, Any]:
        tasks = choose(self._wanted(request, objects["custom_dataset"]), self.datasets)
        run = run_in(request.model_name)
        tokenizer = tokenizer_of(run.model.base if run else request.model_name, request.allow_download)
        sample = VIEWS[request.format](tasks[0], tokenizer)
        return {
            "status": "success",
            "format": request.format,
            "dataset": tasks.name,
            "split": request.split or "train",
            "dataset_size": len(tasks),
            "sample_keys": list(sample),
            "sample": sample,
        }

    def _create_reward(self, request: CreateRewardParameters) -> dict[str, Any]:
        components = components_of(request.reward_type, request)
        recipe_of(components)  # which refuses what does not go together
        name = request.name or request.reward_type
        self.rewards.created[name] = request
        return {
            "status": "success",
            "name": name,
            "reward_type": request.reward_type,
            "description": described(components),
            **resolved(components),
        }

    def _evaluate(self, request: EvaluateParameters, objects: Mapping[str, Any]) -> dict[str, Any]:
        sampled = "accuracy_at_k" in request.metrics
        if idle := sorted(request.model_fields_set & {"k", "temperature"} if not sampled else ()):
            raise ConfigError(f'{idle[0]}: only the metric "accuracy_at_k" samples answers; add it to metrics')
        tasks = choose(self._wanted(request, objects["custom_dataset"], usual="test"), self.datasets)
        recipe = self._recipe(request, objects)
        config, is_learnt = evaluation(request, recipe)
        k = (request.k or NUM_ANSWERS) if sampled else 1
        groups, answers = self._play(request, config, is_learnt, tasks, recipe, k if sampled else 0)
        found = {
            "status": "success",
            "model_path": request.model_path,
            "use_lora": is_learnt and not config.policies["agent"].full,
            "dataset": tasks.name,
            "num_samples": len(tasks),
            "device": config.model.device,
            **metrics_of(groups, answers, request.metrics, k),
        }
        return found | (details_of(groups) if request.return_details else {})

    def _play(
        self, request: EvaluateParameters, config: Any, is_learnt: bool, tasks: TaskSet, recipe: Recipe, k: int
    ) -> tuple[list[Group], list[Group]]:
        """One greedy answer to each task, and k sampled ones."""
        assembly = assemble(config, recipe.functions)
        try:
            if is_learnt:
                start_from(Path(request.model_path), assembly.learner)
            with self.log.progress("evaluate", len(tasks) * (1 + k), noun="episode") as bar:
                rollout = replace(assembly.rollout, on_episode=lambda episode: bar.advance(num_episodes=1))
                groups = at_temperature(rollout, 0.0).collect(tasks, 1, request.seed, "evaluate")
                if not k:
                    return groups, []
                warm = at_temperature(rollout, request.temperature or TEMPERATURE)
                return groups, warm.collect(tasks, k, request.seed, "evaluate-k")
        finally:
            assembly.close()

    # ---- what the actions share --------------------------------------------------------------------------------------

    def _wanted(self, request: Any, custom: Iterable[Row] | None, usual: str = "train") -> Wanted:
        if custom is not None and "dataset" in request.model_fields_set - self.defaults.keys():
            raise ConfigError("dataset: custom_dataset takes its place; give one of them")
        place = Place(Path(request.data_folder), request.allow_download, seed=request.seed)
        if custom is None and request.dataset not in self.datasets:
            self._check_known(request.dataset)
        return Wanted(request.dataset, request.split, request.max_samples, place, custom, usual)

    def _check_known(self, dataset: str) -> None:
        """A name that is neither a file nor known is one that was never registered."""
        bare = dataset.partition(":")[0].partition("[")[0]
        if bare not in (*SOURCES, "gym") and not Path(bare).exists() and not Path(bare).suffix:
            known = [*SOURCES, *self.datasets]
            raise ConfigError(f"dataset = {dataset!r}: not registered, and no known set{suggest(bare, known)}")

    def _recipe(self, request: GRPOParameters | EvaluateParameters, objects: Mapping[str, Any]) -> Recipe:
        dataset = request.dataset if objects["custom_dataset"] is None else ""
        return self.rewards.choose(request.reward_type, request.reward_config, dataset, objects["custom_reward"])


def remove_run(out: Path) -> None:
    """Remove a run from its folder, and nothing else that is there; the folder too, if it is then empty."""
    for path in (out / name for name in PARTS_OF_A_RUN):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()
