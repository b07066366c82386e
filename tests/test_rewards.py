"""The exact-answer reward, and how a group is scored whatever its reward functions do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.errors import ConfigError, RewardError
from gruppo.rewards import REWARDS
from gruppo.rewards.rules import exact, score_group
from gruppo.types import Episode, Group, Outcome, Score, Task


def group(*answers: str | None, result: str = "4") -> Group:
    episodes = [Episode("7", "g", attempt, 0, answer=answer) for attempt, answer in enumerate(answers)]
    return Group("g", Task("7", "2+2?", result), episodes)


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("4", "4", 1.0),
        ("4", " 4. ", 1.0),
        ("3", "3.0", 1.0),
        ("1234", "1,234", 1.0),
        ("1,234.50", "1234.5", 1.0),
        ("1/2", "0.5", 1.0),
        ("1/3", "0.333", 0.0),
        ("-2", "−2", 1.0),
        ("1e3", "1000", 1.0),
        ("0.1", "0.1000000000000000000000001", 0.0),
        ("1234", "12,34", 0.0),
        ("12", "1 2", 0.0),
        ("102", "10²", 0.0),
        ("1e999", "1e9999999999", 0.0),
        ("5", "1/0", 0.0),
        ("1" * 5000, "1" * 5000, 1.0),
        ("1" * 5000, "2" * 5000, 0.0),
        ("Paris", "  the PARIS.", 1.0),
        ("The Hague", "hague", 1.0),
        ("Straße", "STRASSE", 1.0),
        ("Paris", "ＰＡＲＩＳ", 1.0),
        ("New  York", "new\nyork", 1.0),
        ("A", "a", 1.0),
        ("a", "", 0.0),
        ("The", "the", 1.0),
        (".", ".", 1.0),
        (".", "", 0.0),
        ("Paris", "Paris, France", 0.0),
        ("Paris; Lutetia", "lutetia", 1.0),
        ("Paris; Lutetia", "Paris; Lutetia", 0.0),
        ("Paris; ", "", 0.0),
        ("; ", "", 0.0),
        ("4", None, 0.0),
        ("None", None, 0.0),
    ],
)
def test_exact(gold, answer, expected):
    assert exact(Task("7", "?", gold), group(answer).episodes) == [expected]


@given(answer=st.text(max_size=20))
def test_exact_takes_any_text_and_every_answer_equals_itself(answer):
    assert exact(Task("7", "?", "gold"), group(answer).episodes) in ([0.0], [1.0])
    if answer.strip() and "; " not in answer:
        assert exact(Task("7", "?", answer), group(answer).episodes) == [1.0]


def test_the_reward_is_the_weighted_sum_over_the_functions_that_gave_a_value():
    two = group("4", "5")
    score_group({"exact": (REWARDS["exact"], 2.0), "brevity": (lambda task, episodes: [None, 3], 0.5)}, two)
    assert two.episodes[0].scores == {"exact": Score(1.0), "brevity": Score(None, "returned None")}
    assert [episode.reward for episode in two.episodes] == [2.0, 1.5]


def test_episodes_that_the_infrastructure_ended_are_neither_shown_nor_scored():
    three = group("4", "4", "4")
    three.episodes[1].outcome = Outcome.timeout
    three.episodes[2].outcome = Outcome.wrong_format  # the agent's own doing: scored
    seen = []
    score_group({"one": (lambda task, episodes: [seen.append(e.attempt) or 1.0 for e in episodes], 1.0)}, three)
    assert seen == [0, 2]
    assert three.episodes[1].scores == {"one": Score(None, "timeout")}
    assert [episode.reward for episode in three.episodes] == [1.0, None, 1.0]

    for episode in three.episodes:
        episode.outcome = Outcome.judge_failed
    score_group({"one": (lambda task, episodes: 1 / 0, 1.0)}, three)
    assert {episode.scores["one"].reason for episode in three.episodes} == {"judge_failed"}


def test_a_function_that_raises_or_returns_nan_leaves_no_score_and_spoils_no_other():
    def broken(task, episodes):
        raise ValueError("no\n luck")

    two = group("4", "5")
    score_group({"broken": (broken, 1.0), "nan": (lambda task, episodes: [math.nan, 1], 1.0)}, two)
    assert two.episodes[0].scores == {
        "broken": Score(None, "raised ValueError: no luck"),
        "nan": Score(None, "returned NaN"),
    }
    assert [episode.reward for episode in two.episodes] == [None, 1.0]


def test_an_error_for_the_user_is_not_swallowed():
    def keyless(task, episodes):
        raise ConfigError("no key")

    with pytest.raises(ConfigError, match="no key"):
        score_group({"judge": (keyless, 1.0)}, group("4"))


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([1.0, 0.0, 1.0], "reward 'brevity' returned 3 scores for 4 episodes of task '7'"),
        ([], "reward 'brevity' returned 0 scores for 4 episodes of task '7'"),
        (0.5, "reward 'brevity' returned float for task '7': expected a list of 4 numbers"),
        ("1111", "reward 'brevity' returned str for task '7': expected a list of 4 numbers"),
        ([0, 0, 0, math.inf], "reward 'brevity' returned inf for task '7': expected a finite number"),
        ([0, 0, 0, -math.inf], "reward 'brevity' returned -inf for task '7'"),
        ([0, 0, 0, 10**400], "reward 'brevity' returned 1000"),
        ([0, 0, 0, "1"], "reward 'brevity' returned '1' for task '7'"),
    ],
)
def test_a_function_that_breaks_its_contract_is_named(returned, expected):
    with pytest.raises(RewardError) as caught:
        score_group({"brevity": (lambda task, episodes: returned, 1.0)}, group("4", "4", "4", "4"))
    assert str(caught.value).startswith(expected)


def test_booleans_are_numbers():
    two = group("4", "5")
    score_group({"right": (lambda task, episodes: [e.answer == "4" for e in episodes], 1.0)}, two)
    assert [episode.reward for episode in two.episodes] == [1.0, 0.0]
