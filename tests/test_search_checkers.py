"""Training from kept states: checkers that are down, err or talk nonsense, and rounds replayed to the end of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from kept_states import LATER, START, WEIGHTS, clues, collect, first, scores

from gruppo.errors import ConfigError, EngineError
from gruppo.rewards.search import SearchRewardConfig, search
from gruppo.search_state import (
    Continuation,
    Label,
    Round,
    Strategy,
    Verdict,
    continuation_of,
    to_json,
)
from gruppo.tools.search import Passage
from gruppo.types import Completion, Episode, Outcome, Request, StopReason

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


def test_a_checker_is_not_asked_again_about_what_is_important_already() -> None:
    asked: list[str] = []

    def checker(request: Request) -> str:
        asked.append(request.messages[-1]["content"].rpartition("Documents:\n")[2])
        return verdicts(request, lambda row: "IRRELEVANT")

    (episode,) = collect([clues("mayor of Vael", "Odo Brin")], LATER, checker=checker)  # a is IMPORTANT in it
    assert "a" in first(episode).hits and len(asked) == 1 and "mayor of Vael is" not in asked[0]


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
