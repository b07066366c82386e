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
from gruppo.errors import ConfigError, boundary
from gruppo.evaluation.evaluate import MODES
from gruppo.evaluation.search_audit import Rewards, audit_pair, audit_text, audit_training
from gruppo.evaluation.search_rounds import (
    Tried,
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
from gruppo.stages import begin_again, play
from gruppo.store import Checkpoint, Run
from gruppo.training.grpo import load as load_checkpoint
from gruppo.types import Group

BASELINE = "baseline"
NUM_QUESTIONS = 3  # of the best and of the worst that are shown
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
    measured = {name: measure(own, worths) for name, own in groups.items()}
    found: dict[str, Any] = {"run": str(path), "mode": mode, "sides": measured}
    if len(groups) == 2:
        before, after = groups.values()
        found["comparison"] = compare([before], [after])
        found["audit"] = audit_pair(before, after, rewards_of(config_of(path, overrides)))
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
    if mode not in MODES:
        raise ConfigError(f"--mode {mode}: expected {' or '.join(MODES)}")
    tasks = make_tasks(config, "test")
    with Run.open(path) as run:
        checkpoints = {side: _checkpoint(run, side) for side in sides if not isinstance(side, str)}
        names = {side: f"step {checkpoints[side].step}" if side in checkpoints else BASELINE for side in sides}
        assembly, found = assemble(config), {}
        try:
            if BASELINE in sides:
                begin_again(run, config, assembly.learner)
            for side in sorted(sides, key=lambda side: side != BASELINE):  # which is of fresh policies, so comes first
                if side in checkpoints:
                    load_checkpoint(assembly.learner, checkpoints[side], only_policies=True)
                found[side] = play(assembly, tasks, [mode], config, log, names[side])[mode]
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


def _figure_rows(side: Mapping[str, Any]) -> Iterator[list[str]]:
    names = ("reward", "important_rate", "precision", "recall")
    yield from ([name.replace("_", " "), f"{side[name]:.3f}"] for name in names if name in side)
    for number, own in side["recall_by_round"].items():
        yield [f"recall, round {number}", f"{own['recall']:.3f}"]
