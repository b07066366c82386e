"""Training states out of searches: what is taken, what a damaged or foreign file does, and that nothing leaks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_states import search_world

from gruppo.config import load
from gruppo.data.round_splits import Names, split_rounds, texts_of, without_leaks, words_of
from gruppo.data.rounds import Reading, RoundsConfig, RoundState, documents_of, plain, read_rounds, round_state_of
from gruppo.data.search_files import RunFiles
from gruppo.data.world import World, with_labels, world_of, world_tasks
from gruppo.data.world.encyclopedia import SPLITS
from gruppo.engines.scripted import ScriptedEngine
from gruppo.errors import ConfigError, DataError
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.search_state import Entity, Fact, Label, Meta, Round, State, Strategy, Verdict
from gruppo.teams.base import Role
from gruppo.teams.search import Search, SearchConfig
from gruppo.teams.search.seats import prompt_fields
from gruppo.toolbox import world_index
from gruppo.tools.documents import document_tools
from gruppo.types import Sampling, Task

CHAINS = ["lookup", "lookup-lookup", "lookup-lookup-lookup"]
WORLD: World = world_of(0)
EVERYTHING = RoundsConfig(min_clues_per_round=1, max_samples_per_question=100)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("searches")
    search_world(root / "train", "train", 12, CHAINS)
    search_world(root / "validation", "validation", 6, CHAINS)
    search_world(root / "mixed", "train", 9, CHAINS, corpus="")
    yield root


def copied(folders: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders / "train", tmp_path / "train"))


def kept_run(root: Path, question: str, rounds: list[tuple[Round, State]]) -> Path:
    files = RunFiles.create(root, Meta(question, task="task"))
    for played, state in rounds:
        files.write(played, state)
    files.end("completed", "x")
    return files.folder


def simple_run(root: Path, question: str, num_rounds: int, num_clues: int = 2) -> Path:
    state = State(question)
    rounds = [(Round(0), state)]
    rounds += [
        (Round(number, Strategy.SEARCH, "goal", tuple(f"clue {at}" for at in range(num_clues))), state)
        for number in range(1, num_rounds + 1)
    ]
    return kept_run(root, question, rounds)


# ---- what is taken --------------------------------------------------------------------------------------------------


def test_every_search_round_becomes_the_state_before_it(folders: Path) -> None:
    found = read_rounds(folders / "train", RoundsConfig())
    assert not found.problems and found.counts["questions"] == 12 == found.counts["runs"]
    assert len(found.states) == found.counts["SEARCH rounds"] == 24
    for state in found.states:
        assert len(state.clues) >= 2 and not set(state.verdicts) & set(state.state.found)
        assert (state.number == 1) == (not state.state.documents)
    assert found.states == read_rounds(folders / "train", RoundsConfig()).states
    assert [round_state_of(state.to_task()) for state in found.states] == found.states
    assert json.loads(json.dumps(dict(found.states[3].to_task().extra_info))) == found.states[3].to_task().extra_info
    assert "24 SEARCH rounds" in found.text() and found.as_dict()["states"] == 24


def test_a_state_gives_the_very_prompt_that_the_executor_had(tmp_path: Path) -> None:
    prompts: list[str] = []

    def reply(request) -> str:
        prompts.append(request.messages[-1]["content"])
        return '{"clues": ["mayor of Morla", "the population"]}'

    team = Search(SearchConfig(checkpoints=str(tmp_path), checker="truth", max_rounds=6))
    role = Role("executor", team.prompts["executor"], Sampling(), "script")
    tools = {tool.name: tool for tool in document_tools(world_index("train", 0))}
    engines = {"script": ScriptedEngine(reply)}
    rollout = Rollout(team, {"executor": role}, engines, tools, {}, RolloutConfig())
    rollout.collect(with_labels(world_tasks(WORLD, "train", 3, CHAINS), WORLD), 1, 0, "search")
    states = read_rounds(tmp_path, EVERYTHING).states
    rebuilt = [
        role.prompt.messages(prompt_fields(state.state, state.number, 6, state.sub_goal))[-1]["content"]
        for state in states
    ]
    assert len(prompts) >= 6 and sorted(rebuilt) == sorted(prompts)


def test_rounds_with_few_clues_and_too_many_rounds_are_left_out(tmp_path: Path) -> None:
    simple_run(tmp_path, "many", 30)
    simple_run(tmp_path, "many", 30)
    simple_run(tmp_path, "few", 3, num_clues=1)
    found = read_rounds(tmp_path, RoundsConfig())
    assert len(found.states) == 10 and {state.question for state in found.states} == {"many"}
    assert found.counts["left out: fewer clues than min_clues_per_round"] == 3
    assert found.counts["left out: more than max_samples_per_question"] == 50
    assert {state.run for state in found.states} == {1, 2}
    others = read_rounds(tmp_path, RoundsConfig(seed=1))
    assert [state.id for state in others.states] != [state.id for state in found.states]
    with pytest.raises(ConfigError, match="min_clues_per_round"):
        load(RoundsConfig, [], {"min_clues_per_round": "0"})


# ---- damaged and foreign files --------------------------------------------------------------------------------------


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def of_another_schema(file: Path) -> None:
    file.write_text(file.read_text().replace("gruppo.search/1", "gruppo.search/9"))


def of_another_question(file: Path) -> None:
    file.write_text(file.read_text().replace('"question": "', '"question": "Not '))


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def a_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


DAMAGES = {
    "half": cut_in_half,
    "empty": lambda file: file.write_text(""),
    "gone": Path.unlink,
    "not utf-8": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "another program's": lambda file: file.write_text('{"epoch": 3}'),
    "a list": lambda file: file.write_text("[1, 2]"),
    "a later schema": of_another_schema,
    "another question's": of_another_question,
    "a folder": a_folder,
    "deep": lambda file: file.write_text("[" * 200_000),
    "utf-16": lambda file: file.write_bytes(file.read_text().encode("utf-16")),
    "null": lambda file: file.write_text(file.read_text().replace('"question": "', '"question": null, "x": "')),
    "a pipe": a_pipe,
    "a loop": a_loop,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["round_000.json", "round_001.json", "meta.json"])
def test_a_damaged_file_is_reported_and_the_rest_is_read(folders: Path, tmp_path: Path, name: str, damage: str) -> None:
    root = copied(folders, tmp_path)
    whole = read_rounds(root, RoundsConfig()).states
    victim = sorted(root.iterdir())[3] / "run_1" / name
    DAMAGES[damage](victim)
    found = read_rounds(root, RoundsConfig())
    lost = [state for state in whole if state not in found.states]
    assert found.problems and any(str(victim.parent) in problem for problem in found.problems)
    assert lost and len({state.question for state in lost}) == 1 and "skipped: " in found.text()
    assert all("\n" not in problem and ": : " not in problem for problem in found.problems)
    assert len(found.states) + len(lost) == len(whole)


@given(st.data())
def test_a_file_cut_anywhere_is_reported_and_gives_no_other_state(folders: Path, data: st.DataObject) -> None:
    run = next((folders / "validation").iterdir()) / "run_1"
    whole = {state.id: state for state in read_rounds(folders / "validation", EVERYTHING).states}
    file = data.draw(st.sampled_from(sorted(run.iterdir())))
    content = file.read_bytes()
    try:
        file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        found = read_rounds(folders / "validation", EVERYTHING)
    finally:
        file.write_bytes(content)
    assert len(found.problems) == 1 and str(file) in found.problems[0]
    assert all(whole[state.id] == state for state in found.states)


def test_a_mark_of_the_encoding_damages_nothing(folders: Path, tmp_path: Path) -> None:
    root = copied(folders, tmp_path)
    for file in root.rglob("*.json"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_rounds(root, RoundsConfig()).states == read_rounds(folders / "train", RoundsConfig()).states


def test_copies_of_runs_are_told_and_taken_once(folders: Path, tmp_path: Path) -> None:
    root = copied(folders, tmp_path)
    question = sorted(root.iterdir())[0]
    shutil.copytree(question / "run_1", question / "run_2")
    shutil.copytree(question, root / "zz-copy")
    found = read_rounds(root, RoundsConfig())
    assert found.states == read_rounds(folders / "train", RoundsConfig()).states
    assert found.problems and all("is a copy" in problem for problem in found.problems)


def test_foreign_things_beside_the_searches_are_reported(folders: Path, tmp_path: Path) -> None:
    root = copied(folders, tmp_path)
    (root / "notes.txt").write_text("x")
    (root / "step-000012").mkdir()
    (root / ".hidden").mkdir()
    found = read_rounds(root, RoundsConfig())
    assert len(found.states) == 24 and len(found.problems) == 1 and "not the folder of a question" in found.problems[0]


def test_a_list_that_names_other_files_reads_none_of_them(tmp_path: Path) -> None:
    folder = simple_run(tmp_path / "a", "q", 2)
    meta = folder / "meta.json"
    (tmp_path / "secret.json").write_text((folder / "round_001.json").read_text())
    meta.write_text(meta.read_text().replace("round_001.json", "../../../secret.json"))
    found = read_rounds(tmp_path / "a", RoundsConfig())
    assert not found.states and "is no file of this run" in found.problems[0]


def test_rounds_that_do_not_follow_on_one_another_are_told(tmp_path: Path) -> None:
    before = State("q", found=("a",))
    played = Round(1, Strategy.SEARCH, "goal", ("x", "y"), verdicts=(Verdict("a", Label.IMPORTANT, ""),))
    kept_run(tmp_path, "q", [(Round(0), before), (played, before)])
    found = read_rounds(tmp_path, RoundsConfig())
    assert not found.states and "does not follow on" in found.problems[0]


def test_a_killed_run_gives_the_rounds_up_to_then(tmp_path: Path) -> None:
    files = RunFiles.create(tmp_path, Meta("q"))
    files.write(Round(0), State("q"))
    files.write(Round(1, Strategy.SEARCH, "goal", ("x", "y")), State("q"))
    (files.folder / ".round_002.json.writing").write_text('{"schema"')
    found = read_rounds(tmp_path, RoundsConfig())
    assert len(found.states) == 1 and not found.problems


def test_what_is_not_there_and_what_is_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder of searches"):
        read_rounds(tmp_path / "none", RoundsConfig())
    assert read_rounds(tmp_path, RoundsConfig()).states == []
    with pytest.raises(DataError, match="is no state of a search"):
        round_state_of(Task("t", "q", "r"))


# ---- splits ---------------------------------------------------------------------------------------------------------


def names_of(split: str) -> set[str]:
    return {name for (_, own), names in WORLD.entities.items() if own == split for name in names}


def shown_in(states: list[RoundState]) -> list[tuple[str, ...]]:
    return [words_of(text) for state in states for text in texts_of(state)]


def test_nothing_of_the_evaluation_reaches_training_states(folders: Path) -> None:
    training, evaluation = (read_rounds(folders / name, EVERYTHING) for name in ("train", "validation"))
    split = without_leaks(training.states, evaluation.states, list(evaluation.seen.values()))
    assert split.training == training.states and split.evaluation == evaluation.states and not split.left_out
    shown = shown_in(split.training)
    for name in SPLITS[1:]:
        questions = [task.question for task in world_tasks(WORLD, name, 50, CHAINS)]
        others = Names([*questions, *names_of(name)])
        assert not any(others.are_in(words) for words in shown)
    labelled = {document for state in evaluation.states for document in (*state.verdicts, *state.state.found)}
    assert labelled and not labelled & {document for state in split.training for document in documents_of(state.state)}


def test_states_that_show_something_of_the_evaluation_are_left_out(folders: Path) -> None:
    mixed = read_rounds(folders / "mixed", EVERYTHING)
    evaluation = read_rounds(folders / "validation", EVERYTHING)
    split = without_leaks(mixed.states, evaluation.states, list(evaluation.seen.values()))
    seen = {document for each in evaluation.seen.values() for document in each.documents}
    assert split.left_out["a document labelled in the evaluation"] and "left out of training: " in split.text()
    assert not any(seen & (documents_of(state.state) | set(state.verdicts)) for state in split.training)
    assert split.left_out.total() + len(split.training) == len(mixed.states)


def test_a_question_never_comes_apart(tmp_path: Path) -> None:
    for number in range(20):
        simple_run(tmp_path, f"question number{number}", 3)
        simple_run(tmp_path, f"QUESTION  number{number} ", 3)
    reading = read_rounds(tmp_path, RoundsConfig(evaluation_share=0.25))
    split = split_rounds(reading, RoundsConfig(evaluation_share=0.25))
    sides = [{plain(state.question) for state in side} for side in (split.training, split.evaluation)]
    assert [len(side) for side in sides] == [15, 5] and not sides[0] & sides[1] and not split.left_out
    backwards = Reading(reading.states[::-1], dict(reversed(reading.seen.items())))
    assert split_rounds(backwards, RoundsConfig(evaluation_share=0.25)).evaluation == split.evaluation[::-1]
    others = split_rounds(reading, RoundsConfig(evaluation_share=0.25, seed=1))
    assert {state.id for state in others.evaluation} != {state.id for state in split.evaluation}
    assert split_rounds(reading, RoundsConfig(evaluation_share=0)).evaluation == []


def test_questions_of_the_same_words_stay_on_one_side(tmp_path: Path) -> None:
    ways = ("Who rules {}?", "who rules  {}", "Who rules {}!", "WHO rules – {}")
    for name in ("Vael", "Morla", "Kloun", "Hupo"):
        for way in ways:
            simple_run(tmp_path, way.format(name), 1)
    for seed in range(5):
        split = split_rounds(read_rounds(tmp_path, EVERYTHING), RoundsConfig(evaluation_share=0.5, seed=seed))
        sides = [{words_of(state.question) for state in side} for side in (split.training, split.evaluation)]
        assert [len(side) for side in sides] == [2, 2] and not sides[0] & sides[1] and not split.left_out
        assert len(split.training) == len(split.evaluation) == 2 * len(ways)


def test_what_only_undrawn_rounds_show_counts_too(tmp_path: Path) -> None:
    one = State("first question", entities=(Entity("Odo Brin", (Fact("x", "d9"),)),), found=("d9",))
    kept_run(tmp_path / "e", "first question", [(Round(0), State("first question")), (Round(1, Strategy.READ), one)])
    evaluation = read_rounds(tmp_path / "e", RoundsConfig())
    assert not evaluation.states
    seen = list(evaluation.seen.values())
    leaking = State("second", found=("d9",)), State("second", entities=(Entity("ODO  Brin"),))
    for number, state in enumerate((*leaking, State("second", found=("d1",)))):
        played = RoundState("second", 1, 1, "goal", state, ("a", "b"))
        assert len(without_leaks([played], [], seen).training) == (number == 2)
    told = RoundState("second", 1, 1, "goal", State("second"), ("a", "b"), labels={"d9": "IMPORTANT"})
    assert without_leaks([told], [], seen).left_out == {"a document labelled in the evaluation": 1}
    asked = RoundState("second", 1, 1, "goal", State("second"), ("a", "what the First question was"))
    assert without_leaks([asked], [], seen).left_out == {"a question of the evaluation": 1}


@pytest.mark.parametrize(
    ("names", "text", "is_in"),
    [
        (["Odo Brin"], "who is ODO brin?", True),
        (["Odo Brin"], "Odo Brinsley", False),
        (["李明"], "他叫李明。", True),
        (["李明"], "李大明", False),
        (["GPT4"], "用GPT4模型", True),
        ([""], "anything", False),
        (["a b c", "d"], "x d y", True),
        (["José"], "JOSE, who", True),
        (["ＡＢＣ"], "abc", True),
        (["สมชาย"], "คุณสมชายไป", True),
        (["राम"], "राम", True),
        (["राम"], "रामायण", False),
        (["who is the mayor"], "Who is: THE mayor?!", True),
    ],
)
def test_names_are_found_as_whole_words(names: list[str], text: str, is_in: bool) -> None:
    assert Names(names).are_in(words_of(text)) is is_in
