"""Trained teams looked at from outside: published benchmarks, several runs side by side, what goes wrong in them.

What `gruppo bench`, `gruppo compare` and `gruppo mistakes` do. It trains nothing; `stages.py` evaluates within a run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gruppo.config import dump, load
from gruppo.data.selection import Place, tasks_of
from gruppo.data.sources import find_files, usual_split
from gruppo.errors import ConfigError, boundary
from gruppo.evaluation.benchmarks import (
    BENCHMARKS,
    MAX_SECONDS,
    MAX_STEPS,
    TEMPERATURE,
    benchmark_of,
    run_benchmark,
)
from gruppo.evaluation.comparison import System, compare_systems
from gruppo.evaluation.evaluate import check_mode
from gruppo.evaluation.mistake_judge import BY_JUDGE, judged_mistakes
from gruppo.evaluation.mistakes import Found, compare_mistakes, mistake_rates, mistakes_in
from gruppo.log import Log
from gruppo.rewards.judge import Judge
from gruppo.rollout import Rollout
from gruppo.run import RunConfig, assemble, find_judge
from gruppo.stages import STAGES, start_from
from gruppo.store import Run, fingerprint
from gruppo.types import Group

LIMITS: Mapping[str, str] = {
    "team.solver.max_steps": str(MAX_STEPS),
    "team.solo.max_turns": str(MAX_STEPS),
    "rollout.max_seconds": str(MAX_SECONDS),
    "rollout.retries": "0",  # an item that ran out of time has had it; what the harness failed is played again later
    "rollout.mode": "async",  # in lockstep no item would be told of before all have ended
    "rollout.max_concurrent": "20",
}
"""What a benchmark is played with unless it is told otherwise: as the table's, 20 items at once."""


def bench_config(files: Sequence[Path], run: Path | None, overrides: Mapping[str, str]) -> RunConfig:
    """The config of a benchmark: that of a run or of files, the table's limits, then flags.

    Raises ConfigError for the flag of a temperature: it is 0.
    """
    if warm := [key for key in overrides if key.startswith("roles.") and key.endswith(".temperature")]:
        raise ConfigError(f"--{warm[0]}: a benchmark is played at temperature {TEMPERATURE:g}; leave it out")
    own = [Run.open(run).path / "config.toml"] if run else []
    return load(RunConfig, [*own, *files], {**LIMITS, **overrides})


def bench(
    config: RunConfig, names: Sequence[str], place: Place, out: Path, run: Path | None, limit: int | None, log: Log
) -> list[dict[str, Any]]:
    """Play benchmarks with a config's team, with the newest weights of `run` if there is one; a summary of each.

    The items are in `out`/<benchmark>.jsonl; what is there is not played again. Raises UserError.
    """
    wanted = {name: benchmark_of(name) for name in names or BENCHMARKS}
    tasks = {name: tasks_of(f"{name}{_split(name, place.folder)}", place, count=limit) for name in wanted}
    if not config.roles:
        raise ConfigError("nobody plays: name a run (--run) or a config with [roles] (--config)")
    assembly = assemble(config)
    try:
        if run:
            start_from(run, assembly.learner, "--run")
        # Its own rewards are for its own tasks: only a judge can tell something of these.
        rewards = {name: reward for name, reward in assembly.rollout.rewards.items() if name == "judge"}
        rollout = replace(at_temperature(assembly.rollout, TEMPERATURE), rewards=rewards, turn_rewards={})
        weights = {policy: assembly.learner.fingerprint(policy) for policy in config.policies}
        settings = {"model": config.model.base, "config": fingerprint(dump(config)), "weights": weights}
        found = []
        for name, own in tasks.items():
            path, play = out / f"{name}.jsonl", partial(rollout.stream, attempts=1, seed=0, label=f"bench-{name}")
            found.append(run_benchmark(name, own, play, path, settings, log))
        return found
    finally:
        assembly.close()


def _split(name: str, folder: Path) -> str:
    """The table's own items, unless only the usual split is there."""
    usual = find_files(name, usual_split(name), folder) and not find_files(name, "benchmark", folder)
    return "" if usual else ":benchmark"


def at_temperature(rollout: Rollout, temperature: float) -> Rollout:
    """Every role at one temperature, the frozen ones too."""
    roles = {
        name: replace(role, sampling=replace(role.sampling, temperature=temperature))
        for name, role in rollout.roles.items()
    }
    return replace(rollout, roles=roles)


def compare_runs(runs: Sequence[Path], mode: str, k: int) -> dict[str, Any]:
    """Base, after demonstrations and after GRPO, each over the seeds of `runs`, as `compare_systems` says.

    Raises ConfigError for two runs of one seed, for runs of other tasks, or if there is no stage that all have.
    """
    check_mode(mode)
    by_seed: dict[int, dict[str, list[Group]]] = {}
    for path in runs:
        with Run.open(path) as run:
            seed = load(RunConfig, [path / "config.toml"]).seed
            if seed in by_seed:
                raise ConfigError(f"{path}: a second run with seed {seed}; compare runs with different seeds")
            names = {stage: f"eval-{stage}-{mode}" for stage in STAGES}
            there = run.list_episodes()
            by_seed[seed] = {stage: run.read_episodes(name) for stage, name in names.items() if name in there}
    shared = [stage for stage in STAGES if all(stage in stages for stages in by_seed.values())]
    if not shared:
        raise ConfigError(f"no {mode} evaluation that all runs have: train with eval.stages = true")
    systems = [System(STAGES[stage], {seed: stages[stage] for seed, stages in by_seed.items()}) for stage in shared]
    with boundary(ConfigError, "the runs can't be compared"):
        return compare_systems(systems, k=k)


def mistake_judge(url: str, model: str, options: Mapping[str, str]) -> Judge:
    """The judge of `mistakes_of`, at an OpenAI-compatible address; `options` are keys of [judge] and [engines.judge].

    Raises ConfigError for another key, or an option that nothing uses here.
    """
    for key in options:
        if not key.startswith(("judge.", "engines.judge.")):
            raise ConfigError(f"--{key}: the judge's options are --judge.max_tokens and the like: docs/rewards.md")
    own = {"judge.engine": "judge", "engines.judge.base_url": json.dumps(url), "engines.judge.model": json.dumps(model)}
    config = load(RunConfig, [], {**own, **options})
    for key in ("mode", "highest", "fallback"):
        if f"judge.{key}" in options:
            raise ConfigError(f"--judge.{key}: is about grading answers, and no answer is graded here; leave it out")
    return find_judge(config)


def mistakes_of(path: Path, mode: str, judge: Judge | None = None) -> dict[str, Any]:
    """What went wrong in a run's evaluations: rates before and after training and, where there are both, the change.

    With a judge there is the same once more under "judged", with what it said of the episodes that the rules can't tell
    the mistake of, and how often it did. Raises ConfigError where the run has no such evaluation.
    """
    check_mode(mode)
    with Run.open(path) as run:
        there = [stage for stage in ("base", "final") if f"eval-{stage}-{mode}" in run.list_episodes()]
        if not there:
            raise ConfigError(f"{path}: no {mode} evaluation: train with eval.stages = true")
        groups = {stage: run.read_episodes(f"eval-{stage}-{mode}") for stage in there}
    everything = [group for own in groups.values() for group in own]
    by_rule = mistakes_in(everything)
    found = _told(groups, by_rule)
    if judge is not None:
        by_judge = asyncio.run(judged_mistakes(judge, everything))
        found["judged"] = {**_told(groups, by_judge), "evidence": _evidence(groups, by_judge)}
        found["judged"]["counts"] = dict(judge.counts)
    return found


def _told(groups: Mapping[str, Sequence[Group]], by_episode: Found) -> dict[str, Any]:
    rates = {STAGES[stage]: mistake_rates(own, by_episode) for stage, own in groups.items()}
    changes = compare_mistakes(groups["base"], groups["final"], by_episode) if len(groups) == 2 else {}
    return {"rates": rates, "changes": changes}


def _evidence(groups: Mapping[str, Sequence[Group]], by_episode: Found) -> list[dict[str, Any]]:
    """What the judge found, each with the words that show it."""
    return [
        {"stage": STAGES[stage], "task": group.task.id, "attempt": episode.attempt, **vars(mistake)}
        for stage, own in groups.items()
        for group in own
        for episode in group.episodes
        for mistake in by_episode[id(episode)]
        if mistake.reason.startswith(BY_JUDGE)
    ]
