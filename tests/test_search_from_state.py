"""Training from kept states: what clues are paid, and what goes wrong in a round, from the checker to the clues."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.data.round_splits import given_rounds, round_tasks
from gruppo.data.rounds import RoundsConfig, RoundState, read_rounds
from gruppo.data.search_files import RunFiles
from gruppo.engines.scripted import ScriptedEngine
from gruppo.errors import ConfigError, DataError, EngineError, RewardError
from gruppo.rewards.search import SearchRewardConfig, search
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.search_state import (
    Continuation,
    Document,
    Label,
    Meta,
    Round,
    State,
    Strategy,
    Target,
    Verdict,
    continuation_of,
    to_json,
)
from gruppo.teams.base import Role
from gruppo.teams.search import SearchConfig, SearchFromState
from gruppo.tools.documents import document_tools
from gruppo.tools.search import BM25Index, Passage
from gruppo.types import Completion, Episode, Outcome, Request, Sampling, StopReason, Task

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


# ---- checkers -------------------------------------------------------------------------------------------------------


def verdicts(request: Request, label: Callable[[str], str]) -> str:
    rows = request.messages[-1]["content"].rpartition("Documents:\n")[2].splitlines()
    return json.dumps({"documents": [{"number": at, "label": label(row)} for at, row in enumerate(rows, 1)]})


def test_a_checker_that_is_down_fails_its_own_attempt_and_no_other() -> None:
    def checker(request: Request) -> str:
        if request.context[1] == 1:
            raise EngineError("connection refused")
        return verdicts(request, lambda row: "IMPORTANT")

    before, down, after = collect([clues("Vael"), clues("Vael"), clues("Morla")], checker=checker)
    assert down.outcome == Outcome.engine_failed and down.reward is None and "connection refused" in down.error
    assert {score.value for score in down.scores.values()} == {None}
    assert before.reward == pytest.approx(2 - 0.02) == after.reward


def test_a_checker_that_talks_nonsense_is_no_reward_of_nought() -> None:
    def checker(request: Request) -> str:
        return "I can't" if request.context[1] == 0 else verdicts(request, lambda row: "RELEVANT")

    nonsense, good = collect([clues("Vael"), clues("Vael")], checker=checker)
    assert nonsense.outcome == Outcome.judge_failed and nonsense.reward is None
    assert nonsense.error.startswith("reward 'search/") and "checker: " in nonsense.error
    assert good.outcome == Outcome.completed and good.reward == pytest.approx(0.2 - 0.02)


def test_documents_that_a_checker_leaves_out_are_unchecked_and_pay_nothing() -> None:
    (episode,) = collect([clues("Vael")], checker=lambda request: '{"documents": []}')
    assert scores(episode) == {"unchecked": 2.0, "clues": 1.0} and episode.outcome == Outcome.completed


def test_a_tenth_of_wrong_labels_changes_rewards_and_always_the_same_ones() -> None:
    passages = [Passage(f"p{number}", f"Vael {number}", f"Here is street{number}.") for number in range(400)]
    start = replace(START, labels={passage.id: "IMPORTANT" for passage in passages})
    written = [clues(*(f"street{at}" for at in range(8 * part, 8 * part + 8))) for part in range(40)]
    right, wrong = (collect(written, start, passages, wrong_labels=share) for share in (0.0, 0.1))
    again = collect(written, start, passages, wrong_labels=0.1)
    assert [episode.reward for episode in wrong] == [episode.reward for episode in again]
    given_ = {v.document: v.label for episode in wrong for v in first(episode).verdicts}
    flipped = [label for label in given_.values() if label != Label.IMPORTANT]
    assert len(given_) >= 300 and 0.05 < len(flipped) / len(given_) < 0.16
    assert set(flipped) == {Label.RELEVANT, Label.IRRELEVANT}
    assert sum(episode.reward or 0 for episode in wrong) < sum(episode.reward or 0 for episode in right)


def by_place(request: Request) -> str:
    """IMPORTANT is whatever stands first: a checker whose word depends on what else is asked about."""
    rows = request.messages[-1]["content"].rpartition("Documents:\n")[2].splitlines()
    labels = ["IMPORTANT", *["IRRELEVANT"] * (len(rows) - 1)]
    return json.dumps({"documents": [{"number": at, "label": label} for at, label in enumerate(labels, 1)]})


@pytest.mark.parametrize("alone", [True, False])
def test_a_checker_asked_alone_gives_a_shared_document_one_label(alone: bool) -> None:
    sets = [clues("population of Vael"), clues("mayor of Vael")]  # d stands first in the one, a in the other
    labels = [
        {verdict.document: verdict.label for verdict in first(episode).verdicts}
        for episode in collect(sets, checker=by_place, check_alone=alone)
    ]
    shared = labels[0].keys() & labels[1].keys()
    assert {"a", "d"} <= shared
    assert all(labels[0][document] == labels[1][document] for document in shared) is alone


def test_a_checker_asked_alone_that_fails_on_one_document_is_no_reward() -> None:
    def checker(request: Request) -> str:
        return (
            verdicts(request, lambda row: "IMPORTANT") if "mayor of Vael is" in request.messages[-1]["content"] else "?"
        )

    (episode,) = collect([clues("Vael")], checker=checker, check_alone=True)
    labels = {verdict.document: verdict.label for verdict in first(episode).verdicts}
    assert labels == {"a": Label.IMPORTANT, "d": Label.UNCHECKED} and episode.reward is None
    assert episode.outcome == Outcome.judge_failed and len(episode.turns) == 3


# ---- replay ---------------------------------------------------------------------------------------------------------

REPLAYED = SearchRewardConfig(later=1.0, discount=0.5, answer=3.0)


def test_a_replayed_round_is_paid_for_what_it_makes_possible() -> None:
    written = [clues("mayor of Vael"), clues("zebra")]
    best, worse = collect(written, weights=REPLAYED, replay=True, max_rounds=8)
    assert best.answer is not None
    played = continuation_of(best.answer)
    assert [each.strategy for each in played.rounds] == ["SEARCH", "READ", "SEARCH", "READ", "VERIFY", "ANSWER"]
    assert [each.number for each in played.rounds] == [1, 2, 3, 4, 5, 6] and played.answer == "Morla"
    # b is found two rounds later; what later clues cost is not this round's
    assert scores(best) == {"found": 1, "important": 1, "relevant": 1, "clues": 1, "later": 0.25, "answer": 1}
    assert best.reward == pytest.approx(1.0 + 0.1 - 0.02 + 1.0 * 0.25 + 3.0)
    assert worse.reward is not None and best.reward > worse.reward


def test_later_documents_are_discounted_by_their_delay() -> None:
    def played(*labels: Label | None) -> Continuation:
        rounds = [Round(number, Strategy.SEARCH, verdicts=(Verdict(str(number), label, ""),) if label else ())
                  for number, label in enumerate(labels, 1)]  # fmt: skip
        return Continuation(tuple(rounds), "Morla")

    later, weight = search(REPLAYED, True)["later"]
    episode = Episode("t", "g", 0, 0)
    for labels, value in (
        ((Label.IMPORTANT, None, Label.IMPORTANT), 0.25),
        ((None, Label.IMPORTANT, Label.IMPORTANT), 0.75),
        ((Label.IMPORTANT, Label.RELEVANT), 0.0),
    ):
        episode.answer = to_json(played(*labels))
        assert later(START.to_task(), [episode]) == [pytest.approx(value)] and weight == 1.0


def test_only_a_replayed_search_has_later_rounds_and_an_answer() -> None:
    for weights in (SearchRewardConfig(later=0.5), SearchRewardConfig(answer=1.0)):
        with pytest.raises(ConfigError, match=r"reward\.search\.(later|answer) = .*set team\.search\.replay = true"):
            search(weights, False)
    assert "later" not in search(WEIGHTS, False) and "later" in search(WEIGHTS, True)


def overflow(request: Request) -> Completion:
    return Completion("", (), (), (), "", StopReason.context_overflow)


def test_a_checker_s_prompt_that_does_not_fit_is_not_the_clues_fault() -> None:
    def checker(request: Request) -> str | Completion:
        return overflow(request) if request.context[1] == 0 else verdicts(request, lambda row: "IMPORTANT")

    full, good = collect([clues("Vael"), clues("Vael")], checker=checker)
    assert full.outcome == Outcome.judge_failed and full.reward is None and "checker: the prompt" in full.error
    assert good.reward == pytest.approx(2 - 0.02)


def test_a_later_round_that_does_not_fit_takes_nothing_from_the_first() -> None:
    def checker(request: Request) -> str | Completion:
        return overflow(request) if request.context[3] else verdicts(request, lambda row: "IMPORTANT")

    (episode,) = collect([clues("mayor of Vael")], weights=REPLAYED, checker=checker, replay=True)
    assert episode.outcome == Outcome.context_overflow and scores(episode)["important"] == 2.0
    assert episode.reward == pytest.approx(2.0 - 0.02)


@pytest.mark.parametrize("later", [1.0, 0.0])
def test_a_later_verdict_that_can_t_be_read_is_no_nought_where_it_counts(later: float) -> None:
    def checker(request: Request) -> str:
        return "nonsense" if request.context[3] else verdicts(request, lambda row: "IMPORTANT")

    weights = SearchRewardConfig(later=later)
    (episode,) = collect([clues("mayor of Vael")], weights=weights, checker=checker, replay=True)
    assert episode.scores["search/later"].value is None and episode.scores["search/important"].value == 2.0
    assert (episode.outcome == Outcome.judge_failed) is (episode.reward is None) is (later > 0)


def test_a_checker_that_breaks_off_a_later_round_takes_the_whole_reward() -> None:
    def checker(request: Request) -> str:
        if request.context[3]:
            raise EngineError("connection refused")
        return verdicts(request, lambda row: "IRRELEVANT")

    (episode,) = collect([clues("zebra Vael")] * 1, weights=REPLAYED, checker=checker, replay=True)
    assert episode.outcome == Outcome.engine_failed and episode.reward is None


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
