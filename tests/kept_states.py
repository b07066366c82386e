"""Kept states of searches: attempts at one, with scripts for executor and checker, and whole folders of searches."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gruppo.data.rounds import RoundState
from gruppo.data.world import with_labels, world_of, world_tasks
from gruppo.engines.scripted import ScriptedEngine
from gruppo.rewards.search import SearchRewardConfig, search
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.search_state import Document, Label, Round, State, Target, continuation_of
from gruppo.teams.base import Role
from gruppo.teams.search import Search, SearchConfig, SearchFromState
from gruppo.toolbox import world_index
from gruppo.tools.documents import document_tools
from gruppo.tools.search import BM25Index, Passage
from gruppo.types import Completion, Episode, Request, Sampling

PASSAGES = [
    Passage("a", "Vael", "The mayor of Vael is Odo Brin."),
    Passage("b", "Odo Brin", "The birth city of Odo Brin is Morla."),
    Passage("c", "Morla", "Morla has a population of 412."),
    Passage("d", "Vael", "The population of Vael is 99."),
]
QUESTION = "What is the birth city of the mayor of Vael?"
LABELS = {"a": "IMPORTANT", "b": "IMPORTANT", "d": "RELEVANT"}
TARGETS = (Target("mayor of Vael"), Target("birth city of #1"))
START = RoundState(QUESTION, 1, 1, "mayor of Vael", State(QUESTION, TARGETS), ("x", "y"), labels=LABELS, result="Morla")
FOUND = Document("a", "Vael", PASSAGES[0].text, Label.IMPORTANT, "", 1, is_read=True)
LATER = replace(
    START, number=3, sub_goal="birth city of Odo Brin", state=replace(START.state, documents=(FOUND,), found=("a",))
)
WEIGHTS = SearchRewardConfig()

Reply = Callable[[Request], str | Completion]


def search_world(folder: Path, split: str, count: int, families: Sequence[str], corpus: str | None = None) -> None:
    """Searches of world questions, by rules, over the sentences of their split or of `corpus`, kept in a folder."""
    team, world = Search(SearchConfig(checkpoints=str(folder), checker="truth")), world_of(0)
    tools = {tool.name: tool for tool in document_tools(world_index(split if corpus is None else corpus, 0))}
    tasks = with_labels(world_tasks(world, split, count, families), world)
    Rollout(team, {}, {}, tools, {}, RolloutConfig()).collect(tasks, 1, 0, "search")


def clues(*texts: str) -> str:
    return json.dumps({"clues": texts})


def collect(
    written: Sequence[str],
    start: RoundState = START,
    passages: Sequence[Passage] = PASSAGES,
    weights: SearchRewardConfig = WEIGHTS,
    checker: Reply | None = None,
    **settings: object,
) -> list[Episode]:
    """One attempt for each first reply of the executor, all at the same state; `checker` takes that seat."""

    def reply(request: Request) -> str | Completion:
        if request.context[2] == "executor" and request.context[3]:  # in a later round
            return clues(request.messages[-1]["content"].partition("Sub-goal: ")[2].partition("\n")[0])
        if request.context[2] == "executor":
            return written[request.context[1]]
        assert checker
        return checker(request)

    config = SearchConfig(**{"checker": "truth", **settings})  # type: ignore[arg-type]
    team = SearchFromState(config)
    seats = ["executor", *(["checker"] if checker else [])]
    roles = {name: Role(name, team.prompts[name], Sampling(max_tokens=64), "script") for name in seats}
    tools = {tool.name: tool for tool in document_tools(BM25Index(passages))}
    rewards = {f"search/{part}": own for part, own in search(weights, config.replay).items()}
    rollout = Rollout(team, roles, {"script": ScriptedEngine(reply)}, tools, rewards, RolloutConfig(retries=0))
    (group,) = rollout.collect([start.to_task()], len(written), 0, "test")
    return group.episodes


def first(episode: Episode) -> Round:
    assert episode.answer is not None
    return continuation_of(episode.answer).rounds[0]


def scores(episode: Episode) -> dict[str, float | None]:
    return {name.removeprefix("search/"): score.value for name, score in episode.scores.items() if score.value != 0}
