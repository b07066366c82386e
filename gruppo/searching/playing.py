"""Whole searches, question by question: `gruppo search run`, without the printing.

The team that a config describes plays the tasks of a split, by rules, frozen engines or trained policies; nothing is
trained. Its rounds are on disk as those of any search, and a line per run, from which a killed call goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gruppo.config import dump
from gruppo.data.base import TaskSet
from gruppo.data.search_files import META, folder_name, run_folders
from gruppo.errors import ConfigError, DataError, StoreError, boundary
from gruppo.evaluation.ledger import Header, open_ledger, read_ledger
from gruppo.evaluation.search_rounds import said_important
from gruppo.evaluation.search_runs import Played, compare
from gruppo.log import Log
from gruppo.rewards.rules import is_equal
from gruppo.rollout import Rollout
from gruppo.run import RunConfig, assemble, assemble_frozen, make_tasks
from gruppo.search_state import Label, Meta, Round, Strategy, checkpoint_of, meta_of
from gruppo.stages import start_from
from gruppo.store import fingerprint
from gruppo.toolbox import close_tools
from gruppo.tools.documents import SearchTool
from gruppo.types import Episode, Task

CHECKPOINTS, RESULTS, SCHEMA = "checkpoints", "results.jsonl", "gruppo.search-runs/1"
SPLITS = ("train", "validation", "test")


def play_all(config: RunConfig, out: Path, split: str, attempts: int, log: Log) -> list[Played]:
    """The runs of all tasks of a split, each played `attempts` times; what `out` has already is not played again.

    A run that the infrastructure failed is played anew by the next call. Raises UserError for a config that can't play
    whole searches, a folder that holds the results of another one, or an empty corpus.
    """
    own = _own(config, out, split)
    tasks = make_tasks(own, split)
    with playing(own) as (rollout, weights):
        header = {
            "schema": SCHEMA,
            "split": split,
            "tasks": tasks.fingerprint,
            "config": fingerprint(dump(config)),  # as given: a folder may be moved
            "weights": weights,
        }
        with open_ledger(out / RESULTS, header, Played) as ledger:
            left, total = _left(tasks, attempts, ledger.lines), len(tasks) * attempts
            with log.progress("searches", total, total - len(left), "run") as bar:
                for run in _play(rollout, left, own):
                    ledger.append(run)
                    bar.advance(num_episodes=1)
    return list(ledger.lines.values())


def _own(config: RunConfig, out: Path, split: str) -> RunConfig:
    """The config, its rounds written below `out`. Raises ConfigError for one that plays no whole searches."""
    if split not in SPLITS:
        raise ConfigError(f"--split {split}: expected {', '.join(SPLITS)}")
    if config.team.program != "search":
        raise ConfigError(
            f'team.program = "{config.team.program}": whole searches are played by "search"; an executor alone is'
            " measured by gruppo search eval"
        )
    if config.team.search.checkpoints:
        raise ConfigError(
            f'team.search.checkpoints = "{config.team.search.checkpoints}": the rounds go below --out; leave it out'
        )
    if config.tasks.model_dump()[split] == "rounds":
        raise ConfigError(f'tasks.{split} = "rounds": these are states within searches; name tasks, as "world"')
    search = config.team.search.model_copy(update={"checkpoints": str(out / CHECKPOINTS)})
    return config.model_copy(update={"team": config.team.model_copy(update={"search": search})})


@contextmanager
def playing(config: RunConfig) -> Iterator[tuple[Rollout, Mapping[str, str]]]:
    """What plays a config, without rewards, and the fingerprints of its policies; no model is loaded where no role
    needs one. Raises DataError for an empty corpus."""
    is_local = any(role.engine == "local" for role in config.roles.values())
    if (config.start_from or config.policies) and not any(role.policy for role in config.roles.values()):
        key = "start_from" if config.start_from else f"policies.{min(config.policies)}"
        raise ConfigError(f"{key}: no role plays with a policy; name one in [roles], or leave it out")
    assembly = assemble(config) if is_local else None
    rollout = assembly.rollout if assembly else assemble_frozen(config)
    weights: dict[str, str] = {}
    try:
        if assembly:
            if config.start_from:
                start_from(Path(config.start_from), assembly.learner)
            weights = {policy: assembly.learner.fingerprint(policy) for policy in config.policies}
        for tool in rollout.tools.values():
            if isinstance(tool, SearchTool) and not len(tool.orchestrator.index):
                raise DataError(f"{config.tools.corpus}: no documents to search in")
        yield replace(rollout, rewards={}, turn_rewards={}), weights
    finally:
        if assembly:
            assembly.close()
        else:
            close_tools(rollout.tools.values())


def _left(tasks: TaskSet, attempts: int, played: Mapping[tuple[str, int], Played]) -> list[tuple[int, Task]]:
    """What is to be played: an attempt's number and a task."""
    numbered = ((attempt, task) for attempt in range(1, attempts + 1) for task in tasks)
    return [
        (attempt, task)
        for attempt, task in numbered
        if (task.id, attempt) not in played or not played[task.id, attempt].is_sound
    ]


def _play(rollout: Rollout, left: Sequence[tuple[int, Task]], config: RunConfig) -> Iterator[Played]:
    """Attempt by attempt, so that a question's newest run on disk is the one that has just ended."""
    for number in sorted({attempt for attempt, _ in left}):
        own = [task for attempt, task in left if attempt == number]
        for group in rollout.stream(own, 1, config.seed, f"run-{number}"):
            yield _played(group.task, group.episodes[0], number, Path(config.team.search.checkpoints))


def _played(task: Task, episode: Episode, attempt: int, root: Path) -> Played:
    meta, rounds = _newest(root, task)
    important = tuple(sorted(name for name, label in meta.labels.items() if label == Label.IMPORTANT))
    is_judged = bool(task.result.strip()) and not episode.outcome.is_infrastructure
    searches = (each.verdicts for each in rounds if each.strategy == Strategy.SEARCH)
    is_right = episode.answer is not None and is_equal(episode.answer, task.result)
    return Played(
        task=task.id,
        question=task.question,
        attempt=attempt,
        run=meta.run,
        outcome=episode.outcome,
        answer=episode.answer,
        right=float(is_right) if is_judged else None,
        rounds=len(rounds),
        searches=tuple(tuple(verdict.document for verdict in verdicts) for verdicts in searches),
        said=tuple(sorted(said_important(rounds))),
        true=important if meta.labels else None,
        tokens=episode.num_tokens,
        turns=dict(Counter(turn.role for turn in episode.turns)),
        seconds=round(episode.seconds, 3),
        error=episode.error,
    )


def _newest(root: Path, task: Task) -> tuple[Meta, list[Round]]:
    """A task's last run on disk, without its start; a retry leaves the runs before it behind."""
    folder = root / folder_name(task.question)
    with boundary(StoreError, f"{folder}: the rounds that were just played can't be read"):
        for run in reversed(run_folders(folder)):
            meta = meta_of((run / META).read_bytes())
            if meta.task == task.id:
                return meta, [checkpoint_of((run / entry.file).read_bytes()).round for entry in meta.rounds[1:]]
    raise StoreError(f"{folder}: no run of task {task.id!r} there")


def compare_sides(before: Sequence[Path], after: Sequence[Path]) -> dict[str, Any]:
    """`gruppo search compare`: the results of two sides, a folder of `play_all` for each training seed.

    Raises ConfigError for sides that can't be paired, StoreError for a folder without whole results.
    """
    folders = [*before, *after]
    read = {folder: read_results(folder / RESULTS) for folder in folders}
    for folder in folders:
        if read[folder][0].get("tasks") != read[folders[0]][0].get("tasks"):
            raise ConfigError(f"{folder}: results of other tasks than {folders[0]}; play the same ones on both sides")
    with boundary(ConfigError, "the sides can't be compared"):
        return compare([read[folder][1] for folder in before], [read[folder][1] for folder in after])


def read_results(path: Path) -> tuple[Header, list[Played]]:
    """A file's header and its runs, of each attempt at a task the last line. Raises StoreError."""
    if not path.exists():
        raise StoreError(f"{path}: there is none; gruppo search run writes it")
    header, played = read_ledger(path, SCHEMA, Played)
    return header, list(played.values())
