"""Training states out of what deep searches left on disk: every SEARCH round, with the state before it.

question -> runs -> rounds with strategy SEARCH -> the checkpoint of the round before. What can't be read is reported
and left out, never guessed. Which states may be trained on, given others for evaluation, is `round_splits.py`'s part.
"""

from __future__ import annotations

import json
import random
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from gruppo.config import Config
from gruppo.data.search_files import META, question_folders, run_folders
from gruppo.errors import DataError
from gruppo.search_state import Checkpoint, Meta, Round, State, Strategy, checkpoint_of, meta_of, state_of, to_json
from gruppo.search_tables import tables
from gruppo.types import Task

MAX_BYTES = 16 * 2**20  # of a file that is read; what is written is far smaller
MAX_LISTED = 20
Read = TypeVar("Read")


class RoundsConfig(Config):
    """Which rounds of the searches become training states."""

    min_clues_per_round: int = Field(2, ge=1)
    """Rounds with fewer clues, as written, are left out."""
    max_samples_per_question: int = Field(10, ge=1)
    """The most rounds of a question, of all its runs together; drawn at random if there are more."""
    evaluation_share: float = Field(0.2, ge=0, lt=1)
    """The share of questions that are kept for evaluation."""
    seed: int = 0
    """Of the draw of rounds and of the split."""
    folder: str = ""
    """The searches that tasks are made of where tasks.train or tasks.test is "rounds": the checkpoints folder."""
    evaluation_folder: str = ""
    """Searches of other questions, all kept for evaluation; empty: `evaluation_share` of those in `folder` is."""


@dataclass(frozen=True)
class RoundState:
    """A state that an executor was asked for clues in: what it was shown, and what it answered at the time."""

    question: str
    run: int
    number: int
    sub_goal: str
    state: State
    clues: tuple[str, ...]
    verdicts: Mapping[str, str] = field(default_factory=dict)  # document -> label, as the round gave them
    labels: Mapping[str, str] = field(default_factory=dict)  # document -> true label, where the task knows
    task: str = ""
    result: str = ""

    @property
    def id(self) -> str:
        """Tells it from any other of the same folder."""
        return f"{self.question} / run {self.run} / round {self.number}"

    def text(self) -> Mapping[str, str]:
        """The tables as the executor was shown them."""
        return tables(self.state)

    def to_task(self) -> Task:
        """The state as a task, for a team of one round; `round_state_of` reads it back."""
        info = {
            "state": json.loads(to_json(self.state)),
            "sub_goal": self.sub_goal,
            "run": self.run,
            "round": self.number,
            "clues": list(self.clues),
            "verdicts": dict(self.verdicts),
            "documents": dict(self.labels),
            "task": self.task,
            "family": f"round {self.number}",
        }
        return Task(self.id, self.question, self.result, source="search rounds", extra_info=info)


def round_state_of(task: Task) -> RoundState:
    """What `to_task` made a task of. Raises DataError for another one."""
    info = task.extra_info
    try:
        state = state_of(json.dumps(info["state"]))
        return RoundState(
            question=task.question,
            run=info["run"],
            number=info["round"],
            sub_goal=info["sub_goal"],
            state=state,
            clues=tuple(info["clues"]),
            verdicts=dict(info["verdicts"]),
            labels=dict(info["documents"]),
            task=info["task"],
            result=task.result,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"task {task.id[:200]!r} is no state of a search: {error}") from None


@dataclass
class Seen:
    """All that the runs of a question show of it, in states that are drawn and in those that are not."""

    questions: set[str] = field(default_factory=set)
    entities: set[str] = field(default_factory=set)
    documents: set[str] = field(default_factory=set)

    def add(self, checkpoint: Checkpoint) -> None:
        """What a round shows."""
        state = checkpoint.state
        self.entities |= {entity.name for entity in state.entities}
        self.documents |= documents_of(state) | {verdict.document for verdict in checkpoint.round.verdicts}


def documents_of(state: State) -> set[str]:
    """The documents that a state tells something of: found, read, or named as the source of something."""
    sources = {fact.document for entity in state.entities for fact in entity.facts}
    sources |= {target.document for target in state.targets if target.document}
    sources |= {note.document for note in state.context} | {document.id for document in state.documents}
    return sources | set(state.found)


@dataclass
class Reading:
    """What a folder of searches holds: the states, what each question's runs show, what was left out and why."""

    states: list[RoundState] = field(default_factory=list)
    seen: dict[str, Seen] = field(default_factory=dict)  # by question, as `plain` makes it
    counts: Counter[str] = field(default_factory=Counter)  # questions, runs, rounds, and what was left out
    problems: list[str] = field(default_factory=list)  # one line for each file that could not be read

    def text(self) -> str:
        """The report, for people."""
        lines = [f"{count} {name}" for name, count in self.counts.items()]
        more = len(self.problems) - MAX_LISTED
        lines += [f"skipped: {problem}" for problem in self.problems[:MAX_LISTED]]
        return "\n".join([*lines, *([f"skipped: {more} more"] if more > 0 else [])])

    def as_dict(self) -> dict[str, object]:
        """The report, for programs."""
        return {"states": len(self.states), "counts": dict(self.counts), "problems": list(self.problems)}


def read_rounds(root: str | Path, config: RoundsConfig) -> Reading:
    """The training states below `root`, in the order of folders, runs and rounds; the same files, the same states.

    Raises DataError if there is no such folder. A folder without a single good round is an empty reading.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root}: no folder of searches; gruppo search writes one, as does team.search.checkpoints")
    found = Reading()
    by_question: dict[str, dict[str, RoundState]] = {}
    for folder in question_folders(root):
        runs = run_folders(folder)
        if not runs:
            found.problems.append(f"{folder}: not the folder of a question: no run_1 in it")
        for run in runs:
            for state in _states_of(run, config, found):
                own = by_question.setdefault(plain(state.question), {})
                if own.setdefault(state.id, state) is not state:
                    found.problems.append(
                        f"{run}: round {state.number} is a copy: run {state.run} has been read before"
                    )
    num_states = sum(map(len, by_question.values()))
    for question, states in by_question.items():
        found.states += _drawn(question, list(states.values()), config)
    if num_states > len(found.states):
        found.counts["left out: more than max_samples_per_question"] = num_states - len(found.states)
    found.counts |= {"questions": len(found.seen), "states": len(found.states)}
    return found


def plain(question: str) -> str:
    """A question as it is compared with others: white space and case apart."""
    return " ".join(question.casefold().split())


def _drawn(question: str, states: Sequence[RoundState], config: RoundsConfig) -> list[RoundState]:
    if len(states) <= config.max_samples_per_question:
        return list(states)
    rng = random.Random(f"rounds {config.seed} {question}")
    chosen = sorted(rng.sample(range(len(states)), config.max_samples_per_question))
    return [states[index] for index in chosen]


def _states_of(run: Path, config: RoundsConfig, found: Reading) -> Iterator[RoundState]:
    """The states of one run; whatever is wrong with its files goes into the report."""
    meta = _read(run / META, meta_of, found)
    if meta is None:
        return
    found.counts["runs"] += 1
    seen = found.seen.setdefault(plain(meta.question), Seen())
    seen.questions.add(meta.question)
    checkpoints = dict(_checkpoints(run, meta, found))
    for checkpoint in checkpoints.values():
        seen.add(checkpoint)
    for number, checkpoint in checkpoints.items():
        if checkpoint.round.strategy != Strategy.SEARCH:
            continue
        found.counts["SEARCH rounds"] += 1
        if len(checkpoint.round.clues) < config.min_clues_per_round:
            found.counts["left out: fewer clues than min_clues_per_round"] += 1
        elif number - 1 not in checkpoints:
            found.counts["left out: the round before is missing"] += 1
        elif {v.document for v in checkpoint.round.verdicts} & set(checkpoints[number - 1].state.found):
            found.problems.append(f"{run}: round {number} does not follow on the round before it")
        else:
            yield _state(meta, checkpoints[number - 1].state, checkpoint.round)


def _checkpoints(run: Path, meta: Meta, found: Reading) -> Iterator[tuple[int, Checkpoint]]:
    """The whole files among those that the list of rounds names, each the one that it means."""
    for entry in meta.rounds:
        path = run / entry.file
        if Path(entry.file).name != entry.file:
            found.problems.append(f"{run / META}: {entry.file[:200]!r} is no file of this run")
        elif checkpoint := _read(path, checkpoint_of, found):
            if (checkpoint.round.number, checkpoint.state.question) == (entry.number, meta.question):
                yield entry.number, checkpoint
            else:
                found.problems.append(f"{path}: belongs to another round or question")


def _state(meta: Meta, before: State, played: Round) -> RoundState:
    return RoundState(
        question=meta.question,
        run=meta.run,
        number=played.number,
        sub_goal=played.sub_goal,
        state=before,
        clues=played.clues,
        verdicts={verdict.document: verdict.label.value for verdict in played.verdicts},
        labels={document: label.value for document, label in meta.labels.items()},
        task=meta.task,
        result=meta.result,
    )


def _read(path: Path, parse: Callable[[bytes], Read], found: Reading) -> Read | None:
    """What a file holds; None, and a line in the report, if it is not there, not whole or of another kind."""
    try:
        facts = path.stat()
        if facts.st_size > MAX_BYTES or not (stat.S_ISREG(facts.st_mode) or path.is_dir()):
            raise ValueError(f"no file of a search: {facts.st_size} bytes, more than any has, or no plain file")
        return parse(path.read_bytes())
    except OSError as error:
        found.problems.append(f"{path}: {error.strerror}")
    except ValueError as error:
        found.problems.append(f"{path}: {' '.join(str(error).split())[:300]}")
    return None
