"""Training and evaluation states apart: split by question, and no state left that shows something of the other side.

Rounds of one question never come apart, and a training state that shows a question, an entity or a labelled document of
the evaluation is left out, counted, and not repaired.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gruppo.data.base import TaskSet
from gruppo.data.rounds import Reading, RoundsConfig, RoundState, Seen, documents_of, plain, read_rounds
from gruppo.errors import DataError
from gruppo.words import letters

Words = tuple[str, ...]


@dataclass(frozen=True)
class RoundSplit:
    """The states to train on and those to evaluate on; `left_out` counts what training lost, and why."""

    training: list[RoundState]
    evaluation: list[RoundState]
    left_out: Counter[str]

    def text(self) -> str:
        """The report, for people."""
        lost = [f"left out of training: {count} that show {reason}" for reason, count in self.left_out.items()]
        return "\n".join([f"{len(self.training)} states to train on, {len(self.evaluation)} to evaluate on", *lost])


def given_rounds(config: RoundsConfig) -> RoundSplit:
    """The split that a config describes. Raises DataError if a folder is not there, or leaves nothing to train on."""
    if not config.folder:
        raise DataError(
            "tasks.rounds.folder is empty: name the checkpoints folder of searches, as gruppo search writes"
        )
    reading = read_rounds(config.folder, config)
    if not config.evaluation_folder:
        split = split_rounds(reading, config)
    else:
        held_out = read_rounds(config.evaluation_folder, config)
        split = without_leaks(reading.states, held_out.states, list(held_out.seen.values()))
    if not split.training:
        raise DataError(
            f"{config.folder}: no state to train on. {'; '.join([*reading.text().splitlines(), split.text()])}"
        )
    return split


def round_tasks(config: RoundsConfig, split: str, count: int | None = None) -> TaskSet:
    """The states of a side as tasks, at most `count`: those of "train", or of the evaluation."""
    given = given_rounds(config)
    states = given.training if split == "train" else given.evaluation
    if not states:
        raise DataError(f"{config.folder}: no state to evaluate on; raise tasks.rounds.evaluation_share")
    return TaskSet([state.to_task() for state in states][:count], f"rounds {config.folder}:{split}")


def split_rounds(reading: Reading, config: RoundsConfig) -> RoundSplit:
    """Some questions for evaluation, the same ones for the same questions and seed, whatever their number of runs.

    Questions of the same words stay together, however they are punctuated."""
    alike: dict[Words, list[str]] = {}
    for question in sorted(reading.seen):
        alike.setdefault(words_of(question) or (question,), []).append(question)
    questions = list(alike.values())
    random.Random(f"split {config.seed}").shuffle(questions)
    kept = {question for same in questions[: round(config.evaluation_share * len(questions))] for question in same}
    evaluation = [state for state in reading.states if plain(state.question) in kept]
    training = [state for state in reading.states if plain(state.question) not in kept]
    return without_leaks(training, evaluation, [reading.seen[question] for question in kept])


def without_leaks(training: Iterable[RoundState], evaluation: Sequence[RoundState], seen: Sequence[Seen]) -> RoundSplit:
    """The training states that show nothing of what was `seen` in the evaluation's runs; for splits that are given."""
    questions = Names(question for each in seen for question in each.questions)
    entities = Names(entity for each in seen for entity in each.entities)
    documents = {document for each in seen for document in each.documents}
    clean, left_out = [], Counter[str]()
    for state in training:
        shown = [words_of(text) for text in texts_of(state)]
        if any(map(questions.are_in, shown)):
            left_out["a question of the evaluation"] += 1
        elif any(map(entities.are_in, shown)):
            left_out["an entity of the evaluation"] += 1
        elif (documents_of(state.state) | state.verdicts.keys() | state.labels.keys()) & documents:
            left_out["a document labelled in the evaluation"] += 1
        else:
            clean.append(state)
    return RoundSplit(clean, list(evaluation), left_out)


def texts_of(state: RoundState) -> Iterator[str]:
    """All words of a state that a model could learn."""
    yield from (state.question, state.sub_goal, *state.clues, *state.text().values())


def words_of(text: str) -> Words:
    """The words of a text as they are compared."""
    return tuple(letters(text))


class Names:
    """Names that are looked for in texts, as whole words; names of many words cost no more than the text has."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[int, set[Words]] = {}
        for words in map(words_of, names):
            if words:
                self._names.setdefault(len(words), set()).add(words)

    def are_in(self, words: Words) -> bool:
        """Whether one of the names is in a text."""
        return any(
            words[at : at + size] in names for size, names in self._names.items() for at in range(len(words) - size + 1)
        )
