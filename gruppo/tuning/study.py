"""The study: which settings are tried next, each as a run of its own, and what came of them.

The folder of a study:

    study.toml   configs/*.toml (copies)   study.db (Optuna's)   results.json   results.html
    trials/0003.toml, 0003.log, 0003.lock, 0003/ (the run)

Optuna proposes settings and keeps the trials, for a grid and random draws too, so that all methods resume and share
work alike: a study that was killed goes on, trials that are done are not played again, and a trial that was under way
goes on from its run's checkpoint. Several processes may work on one folder. It knows nothing of training.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TextIO

import tomli_w
from pydantic import Field, model_validator

from gruppo.config import Config, dump, load, missing_file
from gruppo.errors import ConfigError
from gruppo.run import RunConfig
from gruppo.teams.base import seed_of
from gruppo.tuning import results, trial
from gruppo.tuning.results import Result
from gruppo.tuning.space import Parameter, grid, settings

DEFAULT_TRIALS = 20
REASON, SECONDS, RECORDS = "reason", "seconds", "records"  # what is kept of a trial beside Optuna's own


class StudyConfig(Config):
    """What is searched, how, and for what."""

    title: str = "gruppo study"
    """Heads the results."""
    method: Literal["grid", "random", "bayesian"] = "bayesian"
    """Every combination; independent draws; or draws that favour what did well so far (Optuna's TPE)."""
    trials: int | None = Field(None, ge=1)
    """How many runs, failed ones included. A grid plays each of its combinations; the others default to 20."""
    seed: int = 0
    """Of the draws. The runs have their own, which can be searched as well: seed = {choice = [0, 1, 2]}."""
    workers: int = Field(1, ge=1)
    """Runs at once."""
    configs: list[str] = Field(min_length=1)
    """The run's config files, laid over one another."""
    run: dict[str, Any] = {}
    """Tables and keys of the run's config, laid over `configs`."""
    space: dict[str, Parameter] = Field(min_length=1)
    """Key of the run's config, in quotes -> what is tried for it."""
    metric: str = "eval/success"
    """What is compared: this metric of the last record that has it. The default is the success rate on the validation
    split, with its interval: set train.eval_every in [run]. The test split is for whoever wins."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Which way is better."""
    max_seconds: float = Field(86400.0, gt=0)
    """Deadline of one run, which fails past it."""
    prune_metric: str = ""
    """A metric of every step, such as "reward/mean": a run whose is worse than the median of the others at the same
    step ends early. Empty: none does."""
    prune_after_trials: int = Field(5, ge=1)
    """Runs that are done before any ends early."""
    prune_after_steps: int = Field(5, ge=0)
    """Steps of a run before it may end early."""

    @model_validator(mode="after")
    def _a_grid_is_what_it_is(self) -> StudyConfig:
        if self.method == "grid" and self.trials is not None:
            raise ValueError(f"trials = {self.trials}: a grid plays each of its combinations; leave it out")
        return self

    @property
    def num_trials(self) -> int:
        """How many runs there will be."""
        return len(list(grid(self.space))) if self.method == "grid" else self.trials or DEFAULT_TRIALS


def tune(config: StudyConfig, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Play a new study in the folder `out`; returns the content of its results.json. Raises ConfigError."""
    check(config)
    if (out / "study.toml").exists():
        raise ConfigError(f"{out} holds a study; pass --resume or another --out")
    for folder in (out / "configs", out / "trials"):
        folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(config.configs):
        shutil.copyfile(file, out / "configs" / f"{number:02d}-{Path(file).name}")
    (out / "configs" / "run.toml").write_text(tomli_w.dumps(config.run), encoding="utf-8")
    (out / "study.toml").write_text(dump(config), encoding="utf-8")
    return Study(config, out, say).play()


def resume(out: Path, changes: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Any]:
    """Go on with the study in `out`; `changes` may give it more trials, or other workers. Raises ConfigError."""
    file = out / "study.toml"
    if not file.exists():
        raise ConfigError(f"{out} holds no study to resume; check --out, or leave out --resume to start one")
    for key in changes:
        if key not in ("trials", "workers", "max_seconds"):
            raise ConfigError(f"--{key}: a resumed study goes on with its own config; leave it out, or start anew")
    config = load(StudyConfig, [file], changes)
    file.write_text(dump(config), encoding="utf-8")
    return Study(config, out, say).play()


def check(config: StudyConfig) -> None:
    """Try the ends of every parameter on the run's config. Raises ConfigError for keys and values it does not take."""
    if find_spec("optuna") is None:
        raise ConfigError('gruppo tune needs optuna: pip install "gruppo[tune]"')
    for file in map(Path, config.configs):
        if not file.exists():
            raise ConfigError(missing_file(file))
    first = {name: parameter.grid()[0] for name, parameter in config.space.items()}
    tried = [first | {name: value} for name, parameter in config.space.items() for value in parameter.grid()]
    for values in tried:
        own = run_of(config, values)
        if config.metric.startswith("eval/") and not 0 < own.train.eval_every <= own.train.steps:
            raise ConfigError(
                f"metric = {config.metric!r}: train.eval_every = {own.train.eval_every} evaluates nothing in "
                f"train.steps = {own.train.steps}; set it in [run]"
            )


def run_of(config: StudyConfig, values: Mapping[str, Any]) -> RunConfig:
    """The config of the run that tries `values`. Raises ConfigError if there can be none."""
    with tempfile.TemporaryDirectory() as folder:
        layers = [Path(folder) / "run", Path(folder) / "space"]
        for layer, table in zip(layers, (config.run, settings(config.space, values)), strict=True):
            layer.write_text(tomli_w.dumps(table), encoding="utf-8")
        try:
            return load(RunConfig, [*config.configs, *layers])
        except ConfigError as error:
            raise ConfigError(str(error).replace(f"{folder}/", "the study's ")) from error


class Study:
    """One process's work on the study in a folder."""

    def __init__(self, config: StudyConfig, out: Path, say: Callable[[str], None]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.config, self.out, self.say, self.optuna = config, out, say, optuna
        self.maximize = config.direction == "maximize"
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{(out / 'study.db').resolve()}", engine_kwargs={"connect_args": {"timeout": 60}}
        )
        pruner = optuna.pruners.MedianPruner(config.prune_after_trials, config.prune_after_steps)
        self.study = optuna.create_study(
            study_name="study", storage=storage, pruner=pruner, direction=config.direction, load_if_exists=True
        )
        if config.method == "grid":
            for values in grid(config.space):
                texts = {name: json.dumps(value) for name, value in values.items()}
                self.study.enqueue_trial(texts, skip_if_exists=True)
        self._choosing = threading.Lock()
        self._stop = threading.Event()
        self._begun = self._running()

    def play(self) -> dict[str, Any]:
        """Work until the study has its trials; returns the content of results.json."""
        with ThreadPoolExecutor(self.config.workers) as pool:
            jobs = [pool.submit(self._work) for _ in range(self.config.workers)]
            try:
                for job in jobs:
                    job.result()
            finally:
                self._stop.set()  # an interrupt ends the runs too; their trials go on with the next --resume
        return self.write()

    def write(self) -> dict[str, Any]:
        """Write results.json and results.html from what the storage holds; returns the former."""
        found = self.results()
        summary = results.summary(found, self.config.metric, self.maximize)
        curve = self.config.prune_metric or self.config.metric
        page = results.page(self.config.title, summary, found, curve)
        for name, content in (("results.json", json.dumps(summary, indent=1)), ("results.html", page)):
            new = self.out / f".{name}.{threading.get_ident()}"
            new.write_text(content, encoding="utf-8")
            new.replace(self.out / name)
        return summary

    def results(self) -> list[Result]:
        """All trials so far, in their order."""
        states = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}
        curve = self.config.prune_metric or self.config.metric
        found = []
        for one in self.study.get_trials(deepcopy=False):
            if one.state.name == "WAITING":
                continue
            records = trial.records(self._path(one.number))
            own: dict[str, Any] = results.measured(records, self.config.metric) if one.state.name == "COMPLETE" else {}
            own |= {key: one.user_attrs[key] for key in (REASON, SECONDS) if key in one.user_attrs}
            state: Any = states.get(one.state.name, "unfinished")
            own["curve"] = results.curve_of(records, curve)
            found.append(Result(one.number, state, self._values(one.params), **own))
        return found

    def _work(self) -> None:
        while not self._stop.is_set() and (chosen := self.choose()):
            own, lock = chosen
            with lock:
                self._try(own)
            self.write()

    def choose(self) -> tuple[Any, TextIO] | None:
        """A trial with its settings and its lock: one left behind, or a new one; None when there are enough.

        A draw depends on the seed, its number and the trials so far alone, so that a resumed study goes the same way.
        """
        with self._choosing:
            while self._begun:
                left = self._begun.pop(0)
                lock = trial.claim(self._path(left.number, ".lock"))
                if lock and left.number in [one.number for one in self._running()]:
                    # By its id in the storage: the one way to go on with a trial that another process began.
                    own = self.optuna.trial.Trial(self.study, left._trial_id)
                    self._suggest(own)
                    return own, lock
                if lock:  # done in the meantime
                    lock.close()
            trials = self.study.get_trials(deepcopy=False)
            num_waiting = sum(one.state.name == "WAITING" for one in trials)
            if not num_waiting and len(trials) >= self.config.num_trials:
                return None
            seed = seed_of(self.config.seed, len(trials)) % 2**32
            samplers = self.optuna.samplers
            self.study.sampler = (
                samplers.TPESampler(seed=seed) if self.config.method == "bayesian" else samplers.RandomSampler(seed)
            )
            own = self.study.ask()
            lock = trial.claim(self._path(own.number, ".lock"))
            assert lock is not None, "a new trial is nobody else's"
            self._suggest(own)
            return own, lock

    def _suggest(self, own: Any) -> None:
        """Draw the settings of a trial; those that it has already stay as they are."""
        for name, parameter in self.config.space.items():
            if parameter.choice or self.config.method == "grid":
                own.suggest_categorical(name, [json.dumps(value) for value in parameter.grid()])
            elif parameter.integer:
                own.suggest_int(name, int(parameter.low or 0), int(parameter.high or 0), log=parameter.log)
            else:
                own.suggest_float(name, parameter.low, parameter.high, log=parameter.log)

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A trial's settings, as the run's config takes them."""
        is_text = {name for name, own in self.config.space.items() if own.choice or self.config.method == "grid"}
        return {name: json.loads(value) if name in is_text else value for name, value in params.items()}

    def _try(self, own: Any) -> None:
        """Play a trial and keep how it ended."""
        values, path, started = self._values(own.params), self._path(own.number), time.monotonic()
        layer = self._path(own.number, ".toml")
        layer.write_text(tomli_w.dumps(settings(self.config.space, values)), encoding="utf-8")
        self.say(f"trial {own.number}: {results.words(values)}")
        files = [*sorted((self.out / "configs").glob("[0-9]*.toml")), self.out / "configs" / "run.toml", layer]
        reason = trial.play(path, files, self.config.max_seconds, lambda records: self._judge(own, records))
        if reason == "stopped":
            return
        found = results.measured(trial.records(path), self.config.metric)
        own.set_user_attr(SECONDS, round(time.monotonic() - started, 1))
        states = self.optuna.trial.TrialState
        if reason == "pruned":
            own.set_user_attr(REASON, f"worse than the median at step {own.user_attrs.get('step')}")
            self.study.tell(own, state=states.PRUNED)
        elif reason or not found:
            own.set_user_attr(REASON, reason or f"none of its records has {self.config.metric}")
            self.study.tell(own, state=states.FAIL)
        else:
            self.study.tell(own, found["value"])
        self.say(f"trial {own.number}: {self._ending(reason, found)}")

    def _ending(self, reason: str, found: Mapping[str, Any]) -> str:
        if reason or not found:
            return reason or f"failed: none of its records has {self.config.metric}"
        bounds = found.get("interval")
        shown = f" (95% interval {bounds[0]:.3g} to {bounds[1]:.3g}, n {found['n']})" if bounds else ""
        return f"{self.config.metric} {found['value']:.4g}{shown}"

    def _judge(self, own: Any, records: Sequence[Mapping[str, Any]]) -> str:
        """Report what is new of a running trial; why it should end, or nothing."""
        if self._stop.is_set():
            return "stopped"
        if not self.config.prune_metric:
            return ""
        reported = self.study.get_trials(deepcopy=False)[own.number].intermediate_values
        for step, value in results.curve_of(records, self.config.prune_metric):
            if step in reported:
                continue
            own.report(value, step)
            if own.should_prune():
                own.set_user_attr("step", step)
                return "pruned"
        return ""

    def _path(self, number: int, end: str = "") -> Path:
        return self.out / "trials" / f"{number:04d}{end}"

    def _running(self) -> list[Any]:
        """The trials that somebody plays, or did before being killed."""
        return self.study.get_trials(deepcopy=False, states=[self.optuna.trial.TrialState.RUNNING])
