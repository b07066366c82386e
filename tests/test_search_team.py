"""The search team: by rules on the world, by scripts where models speak; checkers that err, fail or say nonsense."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from kept_states import PASSAGES, QUESTION

from gruppo.config import load
from gruppo.data.search_files import folder_name, run_folders
from gruppo.data.world import with_labels, world_of, world_tasks
from gruppo.engines.scripted import ScriptedEngine, by_role
from gruppo.errors import ConfigError, EngineError, StoreError, TeamError
from gruppo.rewards import REWARDS
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.search_state import (
    Checkpoint,
    Document,
    Entity,
    Fact,
    Label,
    Meta,
    Round,
    Target,
    Verdict,
    checkpoint_of,
    meta_of,
)
from gruppo.teams.base import Role
from gruppo.teams.search import Search, SearchConfig, rules, truth
from gruppo.teams.search.replies import read_clues, read_extraction, read_plan, read_verdicts
from gruppo.toolbox import world_index
from gruppo.tools.documents import document_tools
from gruppo.tools.search import BM25Index, Passage
from gruppo.types import Completion, Episode, Outcome, Request, Sampling, Task

WORLD = world_of(0)
CHAINS = ["lookup", "lookup-lookup", "lookup-lookup-lookup"]


def collect(
    config: SearchConfig,
    tasks: Sequence[Task],
    index: BM25Index,
    script: Mapping[str, Sequence[str | Completion]] | None = None,
    reply=None,
) -> list[Episode]:
    team = Search(config)
    seats = [role for role in team.roles if role in (script or {})]
    roles = {name: Role(name, team.prompts[name], Sampling(max_tokens=64), "script") for name in seats}
    engines = {"script": ScriptedEngine(reply or by_role(script or {}))}
    tools = {tool.name: tool for tool in document_tools(index)}
    rollout = Rollout(team, roles, engines, tools, {"exact": (REWARDS["exact"], 1.0)}, RolloutConfig(retries=0))
    return [group.episodes[0] for group in rollout.collect(tasks, 1, 0, "test")]


def play(
    tmp_path: Path, script=None, question: str = QUESTION, passages=PASSAGES, **settings
) -> tuple[Episode, Meta, list[Checkpoint]]:
    """One question: its episode, and what its run left on disk."""
    config = SearchConfig(checkpoints=str(tmp_path), **settings)
    (episode,) = collect(config, [Task("t", question, "Morla")], BM25Index(passages), script)
    folder = run_folders(tmp_path / folder_name(question))[-1]
    meta = meta_of((folder / "meta.json").read_bytes())
    return episode, meta, [checkpoint_of((folder / entry.file).read_bytes()) for entry in meta.rounds]


# ---- by rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checker", ["words", "truth"])
def test_rules_answer_the_questions_of_the_world(checker: str) -> None:
    tasks = with_labels(world_tasks(WORLD, "validation", 12, CHAINS), WORLD)
    index = world_index("validation", 0)
    episodes = collect(SearchConfig(checker=checker), tasks, index)
    assert [episode.reward for episode in episodes] == [1.0] * len(episodes)
    assert {episode.outcome for episode in episodes} == {Outcome.completed}


def test_a_run_is_on_disk_round_by_round(tmp_path: Path) -> None:
    episode, meta, rounds = play(tmp_path)
    assert episode.answer == meta.answer == "Morla" and meta.outcome == "completed" and meta.task == "t"
    told = [each.round.strategy for each in rounds]
    assert told == [None, "SEARCH", "READ", "SEARCH", "READ", "VERIFY", "ANSWER"]
    assert [entry.number for entry in meta.rounds] == list(range(len(told)))
    start, end = rounds[0].state, rounds[-1].state
    assert [target.text for target in start.targets] == ["mayor of Vael", "birth city of #1"] and not start.found
    assert [target.value for target in end.targets] == ["Odo Brin", "Morla"] and end.is_verified
    assert Entity("Odo Brin", (Fact("birth city: Morla", "b"),)) in end.entities
    assert rounds[1].round.clues and set(rounds[1].round.hits) == {v.document for v in rounds[1].round.verdicts}


def test_the_same_question_gets_runs_of_its_own_and_the_same_rounds(tmp_path: Path) -> None:
    first, second = play(tmp_path), play(tmp_path)
    assert (first[1].run, second[1].run) == (1, 2) and first[2] == second[2]


def test_chinese_end_to_end(tmp_path: Path) -> None:
    passages = [
        Passage("1", "杭州", "杭州的市长是李明。"),
        Passage("2", "李明", "李明的出生城市是苏州。"),
        Passage("3", "上海", "上海的市长是王芳。"),
    ]
    episode, _, rounds = play(tmp_path, question="杭州的市长的出生城市是哪里？", passages=passages)
    assert episode.answer == "苏州" and rounds[-1].state.targets[0].value == "李明"


def test_an_empty_index_ends_without_an_answer(tmp_path: Path) -> None:
    episode, meta, rounds = play(tmp_path, passages=[])
    assert episode.answer is None and episode.outcome == Outcome.completed == meta.outcome
    assert rounds[1].round.error == "the search found nothing" and not rounds[-1].state.documents


def test_rounds_that_run_out_are_told(tmp_path: Path) -> None:
    script = {"planner": ['{"strategy": "SEARCH", "sub_goal": "mayor of Vael"}'] * 3}
    episode, meta, _ = play(tmp_path, script, max_rounds=3)
    assert episode.outcome == Outcome.max_turns == meta.outcome
    script = {"planner": ["no plan"] * 3}
    episode, meta, rounds = play(tmp_path, script, max_rounds=3)
    assert episode.outcome == Outcome.wrong_format == meta.outcome
    assert rounds[1].round == Round(1, error="planner: no JSON object in the reply") and rounds[1].state.last


# ---- by models ------------------------------------------------------------------------------------------------------

TEXTS = {
    "planner": [
        '{"strategy": "search", "sub_goal": "mayor of Vael", "targets": ["who #1 is"]}',
        '{"strategy": "READ"}',
        '{"strategy": "ANSWER"}',
    ],
    "executor": ['{"clues": ["mayor Vael", "Vael", "the"]}'],
    "checker": [
        '{"documents": [{"number": 1, "label": "important", "reason": "says\\nit"},'
        ' {"number": 2, "label": "RELEVANT"}]}'
    ],
    "entity_manager": [
        '{"facts": [{"entity": "Vael", "fact": "mayor Odo Brin"}], "values": [{"target": 1, "value": "Odo Brin"}]}',
        '{"facts": []}',
    ],
    "writer": [" Morla "],
}


def test_roles_take_the_place_of_rules(tmp_path: Path) -> None:
    episode, _, rounds = play(tmp_path, TEXTS)
    assert episode.answer == "Morla" and [turn.role for turn in episode.turns] == [
        "planner", "executor", "checker", "planner", "entity_manager", "planner", "writer",
    ]  # fmt: skip
    searched, read = rounds[1], rounds[2]
    assert searched.round.clues == ("mayor Vael", "Vael", "the")
    assert [(fault.clue, fault.fault) for fault in searched.round.faults] == [("the", "only stop words")]
    assert searched.round.verdicts[0] == Verdict("a", Label.IMPORTANT, "says it")
    assert searched.state.targets[-1] == Target("who #1 is")  # which the executor of this round was not shown
    assert read.state.targets[0].value == "Odo Brin" and read.state.entities == (
        Entity("Vael", (Fact("mayor Odo Brin", "a"),)),
    )


def test_clues_of_several_turns_are_searched_for_together(tmp_path: Path) -> None:
    script = {"executor": ["mayor of Vael", "- birth city of Odo Brin\n- Morla"] * 4}
    _, _, rounds = play(tmp_path, script, prompts="compact", clue_turns=2)
    assert rounds[1].round.clues == ("mayor of Vael", "birth city of Odo Brin", "Morla")


@pytest.mark.parametrize(
    "said", ["nonsense", '{"documents": [{"number": 9, "label": "IMPORTANT"}]}', '{"documents": []}']
)
def test_what_a_checker_does_not_label_is_unchecked_never_irrelevant(tmp_path: Path, said: str) -> None:
    _, _, rounds = play(tmp_path, TEXTS | {"checker": [said]})
    assert {verdict.label for verdict in rounds[1].round.verdicts} == {Label.UNCHECKED}
    assert bool(rounds[1].round.error) is (said != '{"documents": []}')


def test_an_executor_that_writes_nothing_is_told(tmp_path: Path) -> None:
    _, _, rounds = play(tmp_path, TEXTS | {"executor": ['{"clues": []}']})
    assert rounds[1].round.error == "executor: no clue was written" == rounds[1].state.last
    assert not rounds[1].state.found and rounds[1].state.idle == 1


def test_a_checker_that_is_down_labels_nothing_and_breaks_off(tmp_path: Path) -> None:
    def reply(request: Request) -> str:
        if request.context[2] == "checker":
            raise EngineError("connection refused")
        return TEXTS[request.context[2]][request.context[3]]

    config = SearchConfig(checkpoints=str(tmp_path))
    (episode,) = collect(config, [Task("t", QUESTION, "Morla")], BM25Index(PASSAGES), TEXTS, reply)
    assert episode.outcome == Outcome.engine_failed and episode.reward is None and not episode.events[0].result.error
    folder = tmp_path / folder_name(QUESTION) / "run_1"
    meta = meta_of((folder / "meta.json").read_bytes())
    assert meta.outcome == "engine_failed" and "connection refused" in meta.error
    assert [entry.number for entry in meta.rounds] == [0]


def test_an_index_that_breaks_is_the_tools_failure(tmp_path: Path) -> None:
    index = BM25Index(PASSAGES)
    index.close()
    (episode,) = collect(SearchConfig(), [Task("t", QUESTION, "Morla")], index)
    assert episode.outcome == Outcome.tool_failed and episode.reward is None


# ---- checkers -------------------------------------------------------------------------------------------------------


def test_a_document_can_be_worth_more_for_a_later_sub_goal_and_never_less(tmp_path: Path) -> None:
    _, _, rounds = play(tmp_path)
    first, later = rounds[1].round, rounds[3].round
    assert Verdict("b", Label.IRRELEVANT, "has 0 of 2 words of the sub-goal") in first.verdicts and not first.raised
    assert [verdict.document for verdict in later.raised] == ["b"] and not later.verdicts and not later.error
    labels = {each.id: each.label for each in rounds[3].state.documents}
    assert labels == {"a": "IMPORTANT", "b": "IMPORTANT", "d": "RELEVANT"}


def test_searches_without_an_important_document_bring_nothing_on(tmp_path: Path) -> None:
    _, _, rounds = play(tmp_path, question="What is the mayor of Kloun?", passages=[Passage("x", "", "A mayor sings.")])
    assert rounds[1].round.verdicts and rounds[1].state.idle == 1


def test_a_wrong_checker_errs_at_its_rate_and_always_alike() -> None:
    verdicts = [Verdict(str(number), Label.IRRELEVANT, "") for number in range(2000)]
    wrong = truth.erring(verdicts, "q", 0.1)
    assert wrong == truth.erring(verdicts[::-1], "q", 0.1)[::-1] != truth.erring(verdicts, "r", 0.1)
    flipped = [verdict.label for verdict in wrong if verdict.label != Label.IRRELEVANT]
    assert 150 < len(flipped) < 250 and set(flipped) == {Label.IMPORTANT, Label.RELEVANT}
    worded = [Verdict(verdict.document, verdict.label, "in other words") for verdict in verdicts]
    assert [verdict.label for verdict in truth.erring(worded, "q", 0.1)] == [verdict.label for verdict in wrong]
    assert truth.erring(verdicts, "q", 0.0) == tuple(verdicts)
    assert all(verdict.label != Label.IRRELEVANT for verdict in truth.erring(verdicts, "q", 1.0))


def test_the_team_plays_on_under_a_wrong_checker() -> None:
    tasks = with_labels(world_tasks(WORLD, "validation", 24, CHAINS), WORLD)
    episodes = collect(SearchConfig(checker="truth", wrong_labels=0.1), tasks, world_index("validation", 0))
    right = [episode.reward for episode in episodes]
    assert 0.4 < sum(right) / len(right) < 1.0 and {episode.outcome for episode in episodes} == {Outcome.completed}


def test_the_truth_is_in_the_task() -> None:
    found = [Document(each.id, each.title, each.text, Label.UNCHECKED, "", 1) for each in PASSAGES]
    given = Task("t", "q", "r", extra_info={"documents": {"c": "IMPORTANT", "a": "RELEVANT"}})
    labels = [verdict.label for verdict in truth.check(given, found)]
    assert labels == ["RELEVANT", "IRRELEVANT", "IMPORTANT", "IRRELEVANT"]
    with pytest.raises(TeamError, match="no document's label is known"):
        truth.check(Task("t", "q", "r"), found)
    with pytest.raises(TeamError, match="no label 'GREAT'"):
        truth.check(Task("t", "q", "r", extra_info={"documents": {"c": "GREAT"}}), found)


def test_tasks_of_the_world_know_the_sentences_of_their_plans() -> None:
    texts = {id: text for id, _, text in WORLD.passages}
    for task in with_labels(world_tasks(WORLD, "validation", 12, CHAINS), WORLD):
        labels = task.extra_info["documents"]
        found = [texts[id] for id, label in labels.items() if label == "IMPORTANT"]
        assert sorted(found) == sorted({step["result"] for step in task.extra_info["plan"]})
        subjects = [step["sub_goal"].partition(" of ")[2] for step in task.extra_info["plan"]]
        others = [texts[id] for id, label in labels.items() if label == "RELEVANT"]
        assert all(any(subject.lower() in text.lower() for subject in subjects) for text in others)


# ---- replies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (lambda text: read_plan(text, False), '{"strategy": "FIND"}', "no strategy 'FIND'"),
        (lambda text: read_plan(text, False), '{"strategy": "SEARCH"}', "needs a sub-goal"),
        (lambda text: read_plan(text, True), "SEARCH: ", "needs a sub-goal"),
        (lambda text: read_clues(text, False), '{"clues": [3]}', "a list of texts"),
        (lambda text: read_clues(text, True), " \n ", "no clue"),
        (lambda text: read_verdicts(text, []), '{"documents": [{"number": true}]}', "needs its number"),
        (read_extraction, '{"facts": [{"entity": "x"}]}', "entity"),
        (read_extraction, '{"facts": [], "values": [{"target": "1", "value": "x"}]}', "target"),
    ],
)
def test_readers_never_guess(read, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(text)


def test_a_document_has_one_label() -> None:
    document = Document("a", "", "", Label.UNCHECKED, "", 1)
    rows = [{"number": 1, "label": "IMPORTANT"}, {"number": 1, "label": "IRRELEVANT"}]
    with pytest.raises(ValueError, match="two labels"):
        read_verdicts(json.dumps({"documents": rows}), [document])


@pytest.mark.parametrize(
    ("question", "targets"),
    [
        ("What is the mayor of Vael?", ["mayor of Vael"]),
        ("Find the birth city of the mayor of Vael.", ["mayor of Vael", "birth city of #1"]),
        ("Find the mayor of Vael, then the birth city of that person.", ["mayor of Vael", "birth city of #1"]),
        ("杭州的市长的出生城市是哪里？", ["杭州的市长", "#1的出生城市"]),
        ("Why do cats purr?", ["Why do cats purr"]),
        ("", []),
    ],
)  # fmt: skip
def test_a_question_is_taken_apart(question: str, targets: list[str]) -> None:
    assert rules.targets_of(question) == targets


# ---- folders and settings -------------------------------------------------------------------------------------------

NAMES = [
    "杭州的市长是谁？",
    "a/b\\c:../../x",
    "x" * 10_000,
    "问" * 10_000,
    "",
    ".",
    "CON",
    "a\x00b\n",
    "\ud800",
    "🦊" * 300,
    "-rf",
]


def test_any_question_has_a_folder_of_its_own(tmp_path: Path) -> None:
    names = [folder_name(question) for question in NAMES]
    assert len(set(names)) == len(names) and names[0].startswith("杭州的市长是谁-")
    for name in names:
        assert len(name.encode()) <= 97 and name[0] not in ".-" and not set(name) & set("/\\:\x00\n ")
        (tmp_path / name).mkdir()
    assert folder_name("x" * 9_999) != folder_name("x" * 10_000) and folder_name("A b") != folder_name("a b")


def test_a_folder_that_can_t_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = SearchConfig(checkpoints=str(tmp_path / "file"))
    with pytest.raises(StoreError, match="can't be written to"):
        collect(config, [Task("t", QUESTION, "")], BM25Index(PASSAGES))


def test_settings_and_prompts_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wrong_labels"):
        load(SearchConfig, [], {"wrong_labels": "2"})
    own = tmp_path / "own.toml"
    own.write_text('[checker]\nuser = "{no_such_field}"\n')
    with pytest.raises(ConfigError, match="no_such_field"):
        Search(SearchConfig(prompts=str(own)))
    for size in ("compact", "full"):
        assert set(Search(SearchConfig(prompts=size)).prompts) <= set(Search.roles)


def test_a_label_of_a_copy_is_that_of_the_document_that_is_found(tmp_path: Path) -> None:
    copies = [Passage("a-copy", "Vael", f"{PASSAGES[0].text}\n"), Passage("z", "Morla", PASSAGES[2].text)]
    given = {"a-copy": "IMPORTANT", "a": "RELEVANT", "c": "RELEVANT", "z": "IRRELEVANT", "gone": "IMPORTANT"}
    task = Task("t", QUESTION, "Morla", extra_info={"documents": given})
    config = SearchConfig(checkpoints=str(tmp_path), checker="truth")
    collect(config, [task], BM25Index([*PASSAGES, *copies]))
    (run,) = run_folders(tmp_path / folder_name(QUESTION))
    labels = meta_of((run / "meta.json").read_bytes()).labels
    assert labels == {"a": "IMPORTANT", "c": "RELEVANT", "gone": "IMPORTANT"}
    found = checkpoint_of((run / "round_001.json").read_bytes()).round.verdicts
    assert {verdict.document: verdict.label for verdict in found}["a"] == "IMPORTANT"
