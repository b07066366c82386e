"""Training from kept states: what clues are paid, odd clues and collections, the same ground for all, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_states import LATER, PASSAGES, QUESTION, START, WEIGHTS, clues, collect, first, scores

from gruppo.data.round_splits import given_rounds, round_tasks
from gruppo.data.rounds import RoundsConfig, read_rounds
from gruppo.data.search_files import RunFiles
from gruppo.errors import DataError, RewardError
from gruppo.rewards.search import SearchRewardConfig, search
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.search_state import (
    Label,
    Meta,
    Round,
    State,
    Strategy,
    Target,
)
from gruppo.teams.search import SearchConfig, SearchFromState
from gruppo.tools.documents import document_tools
from gruppo.tools.search import BM25Index, Passage
from gruppo.types import Episode, Outcome, Task

# ---- what is paid ---------------------------------------------------------------------------------------------------


def test_each_part_is_paid_as_it_is_weighed() -> None:
    both, one, none, bad = collect(
        [
            clues("mayor Vael", "Odo Brin"),
            clues("population of Vael"),
            clues("zebra"),
            clues("the of", "Morla", "Morla"),
        ]
    )
    # Odo Brin is in a and b; Vael in a and d.
    assert scores(both) == {"found": 1.0, "important": 2.0, "relevant": 1.0, "clues": 2.0}
    assert both.reward == pytest.approx(2 * 1.0 + 1 * 0.1 + 2 * -0.02)
    assert scores(one) == {"found": 1.0, "important": 1.0, "relevant": 1.0, "irrelevant": 1.0, "clues": 1.0}
    assert one.reward == pytest.approx(1.0 + 0.1 - 0.02)
    assert scores(none) == {"clues": 1.0} and none.reward == pytest.approx(-0.02)
    assert scores(bad) == {"found": 1.0, "important": 1.0, "irrelevant": 1.0, "faults": 2.0, "clues": 3.0}
    assert bad.reward == pytest.approx(1.0 + 2 * -0.1 + 3 * -0.02)
    assert {episode.outcome for episode in (both, one, none, bad)} == {Outcome.completed}


def test_what_was_found_before_does_not_pay_again() -> None:
    (again, more) = collect([clues("mayor of Vael Odo"), clues("birth city Morla")], LATER)
    assert set(first(again).hits) == {"a", "b", "d"} and {v.document for v in first(again).verdicts} == {"b", "d"}
    assert scores(again)["duplicates"] == 1.0 and again.reward == pytest.approx(1.0 + 0.1 - 0.02 - 0.02)
    assert "duplicates" not in scores(more) and more.reward == pytest.approx(1.0 - 0.02)


def test_a_label_of_a_copy_is_paid_as_that_of_the_document_that_is_found() -> None:
    copies = [Passage(f"0-{each.id}", each.title, f" {each.text}") for each in PASSAGES]
    (episode,) = collect([clues("mayor Vael", "Odo Brin")], passages=[*PASSAGES, *copies])
    assert {verdict.document: verdict.label for verdict in first(episode).verdicts} == {
        "0-a": "IMPORTANT",
        "0-b": "IMPORTANT",
        "0-d": "RELEVANT",
    }
    assert scores(episode) == {"found": 1.0, "important": 2.0, "relevant": 1.0, "clues": 2.0}


def test_weights_come_from_the_config() -> None:
    weights = SearchRewardConfig(important=0.0, relevant=2.0, irrelevant=-1.0, clues=0.0)
    (episode,) = collect([clues("population of Vael")], weights=weights)
    assert episode.reward == 2.0 - 1.0


@pytest.mark.parametrize("written", ["no JSON", '{"clues": []}', '{"clues": ["", " "]}', '{"clues": [3]}', ""])
def test_clues_that_can_t_be_read_are_the_executors_fault(written: str) -> None:
    bad, good = collect([written, clues("mayor of Vael")])
    assert bad.outcome == Outcome.wrong_format and scores(bad) == {"unreadable": 1.0}
    assert bad.reward == WEIGHTS.unreadable == -0.5 and good.reward is not None and good.reward > 0
    assert first(bad).error.startswith("executor: ") and not bad.events


# ---- odd clues and odd collections ----------------------------------------------------------------------------------

ENDLESS, IDLE = "Vael " * 2_000, "the of and what is"


@pytest.mark.parametrize(
    ("written", "faults", "num_clues"),
    [
        ([ENDLESS], ["too long"], 1),
        ([IDLE], ["only stop words"], 1),
        (["Vael", "vael", "VAEL!"], ["repeated", "repeated"], 3),
        ([f"word{number}" for number in range(40)], ["too many"] * 24, 32),
        (["Vael", "", " "], ["empty", "empty"], 3),
        ([ENDLESS, IDLE, "?!"], ["too long", "only stop words", "empty"], 3),
    ],
)
def test_odd_clues_cost_and_break_nothing(written: list[str], faults: list[str], num_clues: int) -> None:
    (episode,) = collect([clues(*written)])
    played = first(episode)
    assert [fault.fault for fault in played.faults] == faults and len(played.clues) == num_clues
    assert all(len(clue) <= 200 for clue in played.clues) and episode.outcome == Outcome.completed
    found = scores(episode)
    assert (found.get("faults", 0.0), found["clues"]) == (len(faults), num_clues)
    paid = found.get("important", 0.0) + 0.1 * found.get("relevant", 0.0)  # type: ignore[operator]
    assert episode.reward == pytest.approx(paid - 0.1 * len(faults) - 0.02 * num_clues)


def test_chinese_clues_find_chinese_documents() -> None:
    passages = [Passage("1", "杭州", "杭州的市长是李明。"), Passage("2", "上海", "上海的市长是王芳。")]
    state = State("杭州的市长是谁？", (Target("杭州的市长"),))
    start = replace(
        START, question=state.question, sub_goal="杭州的市长", state=state, labels={"1": "IMPORTANT", "2": "RELEVANT"}
    )
    good, idle = collect([clues("杭州市长", "李明"), clues("是什么", "的")], start, passages)
    assert first(good).hits[0] == "1" and scores(good)["important"] == 1.0
    assert [fault.fault for fault in first(idle).faults] == ["only stop words"] * 2 and "important" not in scores(idle)


def test_an_empty_index_pays_nothing_and_is_no_failure() -> None:
    (episode,) = collect([clues("mayor of Vael")], passages=[])
    assert episode.outcome == Outcome.completed and not first(episode).hits
    assert first(episode).error == "the search found nothing" and episode.reward == pytest.approx(-0.02)


# ---- the same ground for all ----------------------------------------------------------------------------------------

WORDS = st.sampled_from(["Vael", "mayor", "Odo", "Brin", "Morla", "population", "the", "", "杭州", "x" * 300])
SETS = st.lists(st.lists(WORDS, max_size=5).map(lambda words: clues(*words)), min_size=1, max_size=5)


@given(SETS)
def test_attempts_are_deterministic_and_begin_in_the_same_state(written: list[str]) -> None:
    prompts: dict[int, str] = {}
    together = collect(written, LATER)
    for episode in together:
        prompts[episode.attempt] = episode.turns[0].prompt
    assert len(set(prompts.values())) == 1
    assert [episode.answer for episode in together] == [episode.answer for episode in collect(written, LATER)]
    for text, episode in zip(written, together, strict=True):
        (alone,) = collect([text], LATER)
        assert (alone.answer, alone.reward, alone.outcome) == (episode.answer, episode.reward, episode.outcome)
        assert "a" not in {verdict.document for verdict in first(episode).verdicts}


# ---- states on disk -------------------------------------------------------------------------------------------------


def kept(root: Path, questions: Sequence[str]) -> list[Path]:
    folders = []
    for question in questions:
        files = RunFiles.create(root, Meta(question, task="t", result="Morla", labels={"a": Label.IMPORTANT}))
        files.write(Round(0), State(question, (Target("mayor"),)))
        files.write(Round(1, Strategy.SEARCH, "mayor of Vael", ("x", "y")), State(question, (Target("mayor"),)))
        files.end("completed", "x")
        folders.append(files.folder)
    return folders


def test_a_state_cut_in_half_is_told_and_the_others_are_trained_on(tmp_path: Path) -> None:
    damaged, *_ = kept(tmp_path, ["one", "two", "three"])
    file = damaged / "round_000.json"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    config = RoundsConfig(folder=str(tmp_path), evaluation_share=0.0)
    found = read_rounds(tmp_path, config)
    assert len(found.states) == 2 and len(found.problems) == 1 and "round_000.json" in found.problems[0]
    tasks = round_tasks(config, "train")
    assert len(tasks) == 2 and len(given_rounds(config).training) == 2
    for state in found.states:
        (episode,) = collect([clues("mayor of Vael")], state)
        assert episode.reward is not None and episode.reward > 0


def task_of(changes: Mapping[str, object]) -> Task:
    task = START.to_task()
    return replace(task, extra_info={key: value for key, value in {**task.extra_info, **changes}.items() if value})


@pytest.mark.parametrize(
    "task",
    [
        Task("t", QUESTION, "Morla"),
        task_of({"state": None}),
        task_of({"state": {"question": 3}}),
        task_of({"clues": 5}),
        task_of({"round": None}),
    ],
)
def test_a_task_that_is_no_state_is_one_line(task: Task) -> None:
    team = SearchFromState(SearchConfig())
    tools = {tool.name: tool for tool in document_tools(BM25Index(PASSAGES))}
    rollout = Rollout(team, {}, {}, tools, {}, RolloutConfig())
    with pytest.raises(DataError, match="is no state of a search: ") as refused:
        rollout.collect([task], 1, 0, "test")
    assert "\n" not in str(refused.value)


def test_the_reward_is_for_continuations_alone() -> None:
    episode = Episode("t", "g", 0, 0, answer="Morla")
    for function, _ in search(WEIGHTS, False).values():
        with pytest.raises(RewardError, match='for team.program = "search_from_state"'):
            function(START.to_task(), [episode])
