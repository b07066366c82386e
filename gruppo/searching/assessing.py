"""What an executor learnt: its run's states played before and after, and what its training paid for.

`gruppo search eval` and `audit`, without the printing. The figures are `evaluation/search_rounds.py`'s and
`search_audit.py`'s; nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gruppo.config import load
from gruppo.data.base import TaskSet
from gruppo.data.rounds import round_state_of
from gruppo.errors import ConfigError, boundary
from gruppo.evaluation.evaluate import check_mode
from gruppo.evaluation.search_audit import Rewards, audit_pair, audit_text, audit_training
from gruppo.evaluation.search_rounds import (
    Tried,
    Worth,
    columns,
    compare,
    gain_lines,
    measure,
    named_gains,
    tried,
    worths_of,
)
from gruppo.log import Log
from gruppo.rewards.search import search
from gruppo.run import RunConfig, assemble, make_tasks
from gruppo.searching.grounds import require_ground
from gruppo.stages import begin_again, play
from gruppo.store import Checkpoint, Run
from gruppo.teams.search.truth import of_originals
from gruppo.training.grpo import load as load_checkpoint
from gruppo.types import Group

BASELINE = "baseline"
NUM_QUESTIONS = 3  # of the best and of the worst that are shown
_OF_A_SEED: Any = {
    "model": {"device", "threads", "processes"},
    "monitor": True,
    "tasks": {"rounds": {"folder", "evaluation_folder"}},
}
"""What may differ between the seeds of a training, besides the keys that stand in no table."""
Side = str | int | None
"""BASELINE, the step of a checkpoint, or None for the newest one."""


def evaluate(
    path: Path,
    sides: Sequence[Side],
    mode: str = "greedy",
    attempts: int = 1,
    log: Log | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The evaluation states of a run, played as each of its `sides` (one or two), in plain JSON-able data.

    `sides` has the measures of each, `questions` the rewards by question, `attempts` every attempt; of two sides there
    are the `comparison` and the `audit` besides. Raises UserError.
    """
    groups = play_states(path, sides, mode, attempts, log or Log(), overrides)
    worths = worths_of(state for own in groups.values() for state in tried(own))
    found = _evaluation(path, config_of(path, overrides), groups, worths) | {"mode": mode}
    if len(groups) == 2:
        before, after = groups.values()
        found["comparison"] = compare([before], [after])
    return found


def evaluate_seeds(
    paths: Sequence[Path],
    sides: Sequence[Side],
    mode: str = "greedy",
    attempts: int = 1,
    log: Log | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """As `evaluate` for several runs, which are the seeds of one training: `runs` has what `evaluate` has of each, but
    for the `comparison`, which is of all, over questions and seeds. Raises UserError, before anything is played, for
    runs that are no such seeds."""
    configs = [config_of(path, overrides) for path in paths]
    require_seeds(paths, configs, sides)
    sides = [_newest(paths[0]) if side is None else side for side in sides]  # the same one of all, or none
    played = [play_states(path, sides, mode, attempts, log or Log(), overrides) for path in paths]
    worths = worths_of(state for groups in played for own in groups.values() for state in tried(own))
    runs = [_evaluation(*run, worths) for run in zip(paths, configs, played, strict=True)]
    found: dict[str, Any] = {"mode": mode, "runs": runs}
    if len(sides) == 2:
        befores, afters = zip(*(groups.values() for groups in played), strict=True)
        found["comparison"] = compare(befores, afters)
    return found


def require_seeds(paths: Sequence[Path], configs: Sequence[RunConfig], sides: Sequence[Side]) -> None:
    """Raises ConfigError for runs that differ in more than their seeds, in the states that they are evaluated on, or
    that lack a checkpoint of `sides`."""
    first, seeds = paths[0], set[int]()
    settings, tasks, step = _settings(configs[0]), make_tasks(configs[0], "test").fingerprint, _newest(first)
    for path, config in zip(paths, configs, strict=True):
        own = _settings(config)
        if odd := [key for key in settings.keys() | own.keys() if settings.get(key) != own.get(key)]:
            raise ConfigError(f"{path}: has another {min(odd)} than {first}; give the seeds of one training")
        if config.seed in seeds:
            raise ConfigError(f"{path}: a second run with seed {config.seed}; give runs with different seeds")
        if make_tasks(config, "test").fingerprint != tasks:
            raise ConfigError(f"{path}: is evaluated on other states than {first}")
        if None in sides and _newest(path) != step:
            raise ConfigError(f"{path}: has another newest checkpoint than {first}; name one, --checkpoint N")
        for side in sides:
            if not isinstance(side, str):
                _checkpoint(Run.open(path), step if side is None else side)
        seeds.add(config.seed)


def _settings(config: RunConfig) -> dict[str, Any]:
    """What the seeds of a training have in common, as "table.key" -> value."""
    tables = {name: own for name, own in config.model_dump(exclude=_OF_A_SEED).items() if isinstance(own, dict)}
    return {f"{table}.{key}": value for table, own in tables.items() for key, value in own.items()}


def _newest(path: Path) -> int | None:
    return max(Run.open(path).list_checkpoints(), default=None)


def _evaluation(
    path: Path, config: RunConfig, groups: Mapping[str, list[Group]], worths: Mapping[str, Worth]
) -> dict[str, Any]:
    """One run, what is IMPORTANT being told by all that is evaluated with it."""
    measured = {name: measure(own, worths) for name, own in groups.items()}
    found: dict[str, Any] = {"run": str(path), "seed": config.seed, "sides": measured}
    if len(groups) == 2:
        before, after = groups.values()
        found["audit"] = audit_pair(before, after, rewards_of(config))
    found["questions"] = _questions(list(measured.values()))
    found["attempts"] = {name: [_details(state) for state in tried(own)] for name, own in groups.items()}
    return found


def play_states(
    path: Path,
    sides: Sequence[Side],
    mode: str,
    attempts: int,
    log: Log,
    overrides: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, list[Group]]:
    """The evaluation states of a run, played by its team as it began or as a checkpoint has it; groups by side, which
    is called "baseline" or "step N". `overrides` are laid over the run's settings. Raises UserError."""
    config = config_of(path, overrides)
    config = config.model_copy(update={"eval": config.eval.model_copy(update={"attempts": attempts})})
    check_mode(mode)
    tasks = make_tasks(config, "test")
    with Run.open(path) as run:
        checkpoints = {side: _checkpoint(run, side) for side in sides if not isinstance(side, str)}
        names = {side: f"step {checkpoints[side].step}" if side in checkpoints else BASELINE for side in sides}
        assembly, found = assemble(config), {}
        try:
            states = f"the evaluation states of {path}"
            require_ground(states, map(round_state_of, tasks), assembly.rollout.tools, config.tools.corpus)
            known = TaskSet((of_originals(task, assembly.rollout.tools) for task in tasks), tasks.name)
            if BASELINE in sides:
                begin_again(run, config, assembly.learner)
            for side in sorted(sides, key=lambda side: side != BASELINE):  # which is of fresh policies, so comes first
                if side in checkpoints:
                    load_checkpoint(assembly.learner, checkpoints[side], only_policies=True)
                found[side] = play(assembly, known, [mode], config, log, names[side])[mode]
        finally:
            assembly.close()
    return {names[side]: found[side] for side in sides}


def sides_of(baseline: bool, step: int | None) -> tuple[Side, ...]:
    """What is played: one side if it alone is asked for, else the baseline and a checkpoint, the newest by default."""
    if baseline and step is None:
        return (BASELINE,)
    if step is not None and not baseline:
        return (step,)
    return BASELINE, step


def audit_run(path: Path) -> dict[str, Any]:
    """What the training of a run paid for. Raises ConfigError where no episodes of it are kept."""
    config = config_of(path)
    with Run.open(path) as run:
        names = [name for name in run.list_episodes() if name.startswith("grpo-")]
        if not names:
            raise ConfigError(f"{path}: no training episodes yet")
        groups = [_without_turns(group) for name in names for group in run.read_episodes(name)]
    with boundary(ConfigError, f"{path}: the episodes can't be audited"):
        return audit_training(groups, rewards_of(config))


def _without_turns(group: Group) -> Group:
    """What an audit needs: the tokens of a whole training are many."""
    return replace(group, episodes=[replace(episode, turns=[], events=[], credits=[]) for episode in group.episodes])


def config_of(path: Path, overrides: Mapping[str, str] = MappingProxyType({})) -> RunConfig:
    """A run's config, `overrides` laid over it. Raises ConfigError if it is not one of an executor's training."""
    Run.open(path).close()
    config = load(RunConfig, [path / "config.toml"], overrides)
    if config.team.program != "search_from_state":
        raise ConfigError(
            f'{path}: team.program = "{config.team.program}": expected a run in which an executor learns from states'
            ' of searches, "search_from_state"'
        )
    if "search" not in config.rewards:
        raise ConfigError(f'{path}: [rewards] has no "search", which is what an executor is measured by')
    return config


def rewards_of(config: RunConfig) -> Rewards:
    """The parts of the reward "search" as a config weighs them, under the names of their scores."""
    parts = search(config.reward.search, config.team.search.replay)
    share = config.rewards["search"]
    return {f"search/{name}": (part, share * weight) for name, (part, weight) in parts.items()}


def _checkpoint(run: Run, step: int | None) -> Checkpoint:
    steps = run.list_checkpoints()
    if not steps:
        raise ConfigError(f"{run.path}: the run has no checkpoint yet; --baseline plays the team that it began with")
    if step is not None and step not in steps:
        raise ConfigError(f"--checkpoint {step}: {run.path} has none of this step; it has {', '.join(map(str, steps))}")
    checkpoint = run.latest_checkpoint() if step is None else run.checkpoint(step)
    assert checkpoint is not None, "where there are steps, one is whole or an error is raised"
    return checkpoint


def _questions(sides: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The reward of each question on every side, the best first; of two sides, the most gained first."""
    rows = []
    for question in sides[0]["by_question"]:
        rewards = [side["by_question"][question].get("reward") for side in sides]
        if None not in rewards:
            rows.append({"question": question, "rewards": rewards, "gain": rewards[-1] - rewards[0]})
    return sorted(rows, key=lambda row: (-row["gain"], -row["rewards"][-1]))


def _details(state: Tried) -> dict[str, Any]:
    """A state with all its attempts."""
    attempts = []
    for attempt in state.attempts:
        first = attempt.played.rounds[0]
        verdicts = [asdict(verdict) for verdict in first.verdicts]
        attempts.append({"reward": attempt.reward, "clues": first.clues, "verdicts": verdicts, "error": first.error})
    own = {"state": state.id, "question": state.state.question, "round": state.state.number}
    return own | {"infrastructure": state.infrastructure, "attempts": attempts}


def evaluation_text(found: Mapping[str, Any]) -> str:
    """An evaluation for a terminal."""
    sides = found["sides"]
    first = next(iter(sides.values()))
    lines = [
        f"{first['states']} states of {first['questions']} questions, {found['mode']}; IMPORTANT by"
        f" {first['labels'] or 'nobody'}: {' and '.join(sides)}"
    ]
    lines += [
        f"{name}: {side['infrastructure']} attempts failed by the infrastructure, in no figure"
        for name, side in sides.items()
        if side["infrastructure"]
    ]
    if "comparison" in found:
        lines += gain_lines(named_gains(found["comparison"]))
    else:
        lines += columns(list(_figure_rows(first)))
    rows = found["questions"]
    shown = rows[:NUM_QUESTIONS] + rows[max(NUM_QUESTIONS, len(rows) - NUM_QUESTIONS) :]
    lines.append("by question, the best and the worst:")
    lines += [f"  {' to '.join(f'{r:.2f}' for r in row['rewards'])}  {row['question'][:90]}" for row in shown]
    return "\n".join([*lines, *([audit_text(found["audit"])] if "audit" in found else [])])


def seeds_text(found: Mapping[str, Any]) -> str:
    """The evaluation of several runs for a terminal."""
    runs = found["runs"]
    sides = [list(run["sides"].values()) for run in runs]
    first = sides[0][0]
    lines = [
        f"{len(runs)} seeds, {first['states']} states of {first['questions']} questions, {found['mode']}; IMPORTANT by"
        f" {first['labels'] or 'nobody'}: {' and '.join(runs[0]['sides'])}"
    ]
    if failed := sum(side["infrastructure"] for own in sides for side in own):
        lines.append(f"{failed} attempts failed by the infrastructure, in no figure")
    if "comparison" in found:
        gains = named_gains(found["comparison"])
        lines += gain_lines(gains)
        by_seed = {name: [f"{own:+.3f}" for own in gain["by_seed"]] for name, gain in gains.items() if gain["n"]}
    else:
        rows = [dict(_figure_rows(own)) for (own,) in sides]
        by_seed = {name: [row[name] for row in rows] for name in rows[0] if all(name in row for row in rows)}
    lines.append("gain by seed:" if "comparison" in found else "by seed:")
    lines += columns([["", *(str(run["seed"]) for run in runs)], *([name, *own] for name, own in by_seed.items())])
    return "\n".join([*lines, *(f"seed {run['seed']}: {run['audit']['sentence']}" for run in runs if "audit" in run)])


def _figure_rows(side: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = ("reward", "important_rate", "precision", "recall")
    yield from ((name.replace("_", " "), f"{side[name]:.3f}") for name in names if name in side)
    for number, own in side["recall_by_round"].items():
        yield f"recall, round {number}", f"{own['recall']:.3f}"
