"""`gruppo search check`: in under a minute, whether a training from kept states would begin well: data, model, a group.

It trains nothing and writes nothing, but for the index where `tools.index` names a folder for one. What a whole run
costs is `gruppo estimate`'s part.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from gruppo.chat import render
from gruppo.data.round_splits import RoundSplit, given_rounds
from gruppo.data.rounds import MAX_LISTED, read_rounds
from gruppo.engines.local import LocalEngine
from gruppo.errors import ConfigError, DataError, UserError
from gruppo.run import Assembly, RunConfig, assemble
from gruppo.search_state import Label, continuation_of
from gruppo.search_tables import one_line
from gruppo.searching.grounds import require_ground
from gruppo.teams.search.seats import prompt_fields
from gruppo.training.grpo import check as check_training
from gruppo.training.model import count_parameters
from gruppo.types import Episode

MAX_ATTEMPTS = 4
MAX_SECONDS = 40.0  # of an attempt
MAX_SHOWN = 60  # characters of a clue
LEFT_OUT = "left out: "  # how such a count's name begins


@dataclass(frozen=True)
class Finding:
    """One line: what is as it should be, or what is not."""

    is_ok: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok     ' if self.is_ok else 'problem'} {self.text}"


def check(config: RunConfig) -> Iterator[Finding]:
    """The findings as they are made: what can't be gone on from is the last. Raises nothing that a user can mend."""
    try:
        if config.sft.steps:
            yield Finding(False, f"sft.steps = {config.sft.steps}: kept states have no gold plan to learn first; set 0")
        split = yield from _data(config)
        started = time.monotonic()
        assembly = assemble(config)
        try:
            yield from _model(config, assembly, time.monotonic() - started)
            if split.training:
                yield from _prompts(config, assembly, split)
                yield from _grounds(config, assembly, split)
                yield from _group(config, assembly, split)
        finally:
            assembly.close()
    except UserError as error:
        yield Finding(False, one_line(str(error), 1000))


def _data(config: RunConfig) -> Generator[Finding, None, RoundSplit]:
    rounds = config.tasks.rounds
    if config.tasks.train != "rounds":
        yield Finding(False, f'tasks.train = {config.tasks.train!r}: kept states are "rounds"')
        return RoundSplit([], [], Counter())
    try:
        split = given_rounds(rounds)
    except DataError as error:
        yield Finding(False, one_line(str(error), 1000))
        return RoundSplit([], [], Counter())
    for folder in dict.fromkeys(filter(None, (rounds.folder, rounds.evaluation_folder))):
        found = read_rounds(folder, rounds)
        counts = found.counts
        sizes = ", ".join(f"{count} {name}" for name, count in counts.items() if not name.startswith(LEFT_OUT))
        yield Finding(True, f"{folder}: {sizes}")
        lost = {name: count for name, count in counts.items() if name.startswith(LEFT_OUT)}
        for name, count in lost.items():
            yield Finding(True, f"{LEFT_OUT}{count} rounds: {name.removeprefix(LEFT_OUT)}")
        for problem in found.problems[:MAX_LISTED]:
            yield Finding(False, f"skipped: {problem}")
        if (more := len(found.problems) - MAX_LISTED) > 0:
            yield Finding(False, f"skipped: {more} more")
    sizes, *lost_lines = split.text().splitlines()
    needed = "rounds" in (config.tasks.test, config.tasks.validation)
    yield Finding(bool(split.evaluation) or not needed, sizes)
    for line in lost_lines:
        yield Finding(True, line)
    return split


def _model(config: RunConfig, assembly: Assembly, seconds: float) -> Iterator[Finding]:
    sizes = count_parameters(config.model, config.policies)
    bases = [total - (0 if config.policies[policy].full else own) for policy, (own, total) in sizes.items()]
    yield Finding(True, f"model {config.model.base}: {max(bases, default=0):,} parameters, ready after {seconds:.1f} s")
    for policy, (trained, _) in sizes.items():
        yield Finding(True, f"policy {policy}: {trained:,} parameters learn")
    check_training(config.train, assembly.rollout, config.algorithm, config.credit)
    if not assembly.rollout.roles["executor"].trainable:
        yield Finding(False, "roles.executor is not trained: give it a policy, and leave out trained = false")


def _prompts(config: RunConfig, assembly: Assembly, split: RoundSplit) -> Iterator[Finding]:
    """Whether the executor has room for its clues in every state, also in those of the evaluation."""
    role = assembly.rollout.roles["executor"]
    engine = assembly.rollout.engines[role.engine]
    if not isinstance(engine, LocalEngine):
        return
    lengths = []
    for state in (*split.training, *split.evaluation):
        fields = prompt_fields(state.state, state.number, config.team.search.max_rounds, state.sub_goal)
        lengths.append(len(render(engine.tokenizer, role.prompt.messages(fields))[1]))
    room, limit = engine.context_length - role.sampling.max_tokens, role.sampling.max_tokens
    said = f"the executor's longest prompt has {max(lengths)} tokens, and max_tokens = {limit}: "
    if too_long := sum(length > room for length in lengths):
        what = "lower team.search.tables or roles.executor.max_tokens"
        yield Finding(False, f"{said}{too_long} of {len(lengths)} don't fit into {engine.context_length}: {what}")
    else:
        yield Finding(True, f"{said}all {len(lengths)} fit into {engine.context_length}")


def _grounds(config: RunConfig, assembly: Assembly, split: RoundSplit) -> Iterator[Finding]:
    """Whether the corpus is that of the states. Raises ConfigError if it is not that of the training ones."""
    tools, corpus = assembly.rollout.tools, config.tools.corpus
    require_ground("the training states", split.training, tools, corpus)
    try:
        require_ground("the evaluation states", split.evaluation, tools, corpus)
    except ConfigError as error:  # which is well if they are played by gruppo search eval alone, over their own
        yield Finding(not config.eval.stages, f"{error} to gruppo search eval, and set eval.stages = false")


def _group(config: RunConfig, assembly: Assembly, split: RoundSplit) -> Iterator[Finding]:
    """One group of the first state: what was written, what it found, what it is paid."""
    own = assembly.rollout.config
    quick = own.model_copy(update={"max_seconds": min(MAX_SECONDS, own.max_seconds), "retries": 0})
    rollout = replace(assembly.rollout, config=quick, troupe=None)
    state = split.training[0]
    started, attempts = time.monotonic(), min(MAX_ATTEMPTS, config.train.attempts)
    (group,) = rollout.collect([state.to_task()], attempts, config.seed, "check")
    seconds = time.monotonic() - started
    yield Finding(True, f"{len(group.episodes)} attempts at {one_line(state.id, 200)} in {seconds:.1f} s")
    for episode in group.episodes:
        yield Finding(episode.reward is not None, f"attempt {episode.attempt + 1}: {_told(episode)}")
    rewards = [episode.reward for episode in group.episodes if episode.reward is not None]
    if len(set(rewards)) > 1:
        low, high, deviation = min(rewards), max(rewards), statistics.pstdev(rewards)
        yield Finding(True, f"rewards from {low:.3g} to {high:.3g} (deviation {deviation:.2g}): this group teaches")
    else:
        yield Finding(False, f"{len(rewards)} rewards, and no two differ: this group teaches nothing")


def _told(episode: Episode) -> str:
    if episode.reward is None:
        return one_line(f"{episode.outcome}: {episode.error}", 500)
    if episode.answer is None:
        return f"reward {episode.reward:.3g}; {episode.outcome}"
    first = continuation_of(episode.answer).rounds[0]
    labels = Counter(verdict.label for verdict in first.verdicts)
    found = ", ".join(f"{labels[label]} {label}" for label in Label if labels[label]) or "nothing new"
    clues = " | ".join(one_line(clue, MAX_SHOWN) for clue in first.clues) or first.error
    return f"reward {episode.reward:.3g}; found {found}; clues: {clues}"
