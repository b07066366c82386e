"""An executor measured at kept states: figures by hand, who says what is IMPORTANT, and two sides compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_states import I, R, X, a_group, a_state, attempt, failed

from gruppo.data.rounds import RoundState
from gruppo.errors import DataError
from gruppo.evaluation.search_rounds import (
    columns,
    compare,
    gain_lines,
    measure,
    named_gains,
    of_seeds,
    paired_gain,
    tried,
    worths_of,
)
from gruppo.search_state import Continuation, Document, Round, State, Verdict, to_json
from gruppo.types import Episode, Group, Outcome, Task

TRUE = {"a": I, "b": I, "c": R}


def test_one_evaluation_by_hand() -> None:
    groups = [
        a_group(a_state(labels=TRUE), attempt(1.0, a=I, c=R), attempt(0.0, d=I)),
        a_group(a_state(number=2, found=["a"], labels=TRUE), attempt(2.0, b=I), failed()),
        a_group(a_state("other", labels={"z": I}), attempt(-1.0, y=X)),
        a_group(a_state("other", number=3, found=["z"], labels={"z": I}), attempt(None, w=R)),
    ]
    found = measure(groups)
    assert (found["labels"], found["questions"], found["states"], found["attempts"]) == ("truth", 2, 4, 5)
    assert (found["infrastructure"], found["unscored"], found["complete"]) == (1, 1, 1)
    assert found["reward"] == pytest.approx((0.5 + 2.0 - 1.0) / 3)
    assert found["important_rate"] == pytest.approx((0.5 + 1.0 + 0.0 + 0.0) / 4)  # d is IMPORTANT for the checker only
    assert found["precision"] == pytest.approx(2 / 6)
    assert found["recall"] == pytest.approx((0.25 + 1.0 + 0.0) / 3)
    assert found["recall_by_round"] == {"1": {"n": 2, "recall": 0.125}, "2": {"n": 1, "recall": 1.0}}
    assert found["by_question"]["q"]["reward"] == pytest.approx(1.25) and found["by_question"]["other"]["recall"] == 0


def test_without_labels_the_pool_says_what_is_important() -> None:
    kept = Document("s", "", "", I, "", 1)
    state = RoundState("q", 1, 2, "", State("q", documents=(kept,), found=("s",)), ("a", "b"), {"r": "IMPORTANT"})
    one, other = a_group(state, attempt(0.0, n=X)), a_group(state, attempt(1.0, n=I, m=R))
    assert worths_of(tried([one]))["q"].important == {"s", "r"}
    assert worths_of([*tried([one]), *tried([other])])["q"].important == {"s", "r", "n"}
    assert measure([one])["labels"] == "pool" and measure([one])["recall"] == 0
    found = compare([[one]], [[other]])
    assert found["labels"] == "pool" and found["recall"]["before"] == found["recall"]["after"] == 0.5
    raised = replace(Round(1), raised=(Verdict("t", I, ""),))
    rose = Episode("", "", 0, 0, answer=to_json(Continuation((raised,))))
    assert worths_of(tried([a_group(state, rose)]))["q"].important == {"s", "r", "t"}
    mixed = [one, a_group(a_state("k", labels=TRUE), attempt(1.0))]
    assert measure(mixed)["labels"] == "truth and pool"


def test_sides_are_paired_by_state_whatever_their_order() -> None:
    before = [a_group(a_state("one"), attempt(0.0)), a_group(a_state("two"), attempt(5.0))]
    after = [a_group(a_state("two"), attempt(5.0)), a_group(a_state("one"), attempt(1.0))]
    assert compare([before], [after])["reward"]["gain_ci95"] == [0.0, 1.0]


def test_an_attempt_without_an_answer_found_nothing_and_foreign_tasks_are_refused() -> None:
    silent = Episode("", "", 0, 0, outcome=Outcome.context_overflow, reward=-0.5)
    found = measure([a_group(a_state(labels=TRUE), silent)])
    assert found["reward"] == -0.5 and found["recall"] == 0 and "precision" not in found
    with pytest.raises(DataError, match="is no state of a search"):
        measure([Group("g", Task("t", "q", "r"), [])])
    with pytest.raises(ValueError, match="more than once"):
        measure([a_group(a_state()), a_group(a_state())])
    assert measure([])["states"] == 0


def evaluation(*rewards: float, document: str = "a") -> list[Group]:
    """One state for each reward, each of a question of its own."""
    return [
        a_group(a_state(f"q{at}", labels=TRUE), attempt(reward, **{document: I})) for at, reward in enumerate(rewards)
    ]


def test_two_evaluations_are_paired_by_state_and_drawn_by_question() -> None:
    before = [a_group(a_state(number=n, labels=TRUE), attempt(0.0, c=R)) for n in (1, 2)] + evaluation(1.0)
    after = [a_group(a_state(number=n, labels=TRUE), attempt(float(n), a=I)) for n in (1, 2)] + evaluation(1.0)
    found = compare([before], [after])
    assert found["reward"]["n"] == 2 and found["states"] == 3 and found["unpaired"] == 0
    assert found["reward"]["gain"] == pytest.approx((1.5 + 0) / 2) and found["reward"]["gain_ci95"] == [0.0, 1.5]
    assert found["recall_by_round"]["2"]["n"] == 1 and "gain_ci95" not in found["recall_by_round"]["2"]
    assert found["recall_by_round"]["1"]["gain"] == pytest.approx(0.25)
    lines = gain_lines(named_gains(found))
    assert lines[0].split() == ["before", "after", "gain", "95", "%", "interval", "questions"]
    assert any("recall, round 2" in line and "none" in line for line in lines)


def test_what_the_infrastructure_failed_is_no_zero() -> None:
    before = [a_group(a_state(f"q{at}", labels=TRUE), attempt(1.0, a=I)) for at in range(3)]
    after = [*before[:2], a_group(a_state("q2", labels=TRUE), failed())]
    found = compare([before], [after])
    assert found["reward"] == {"n": 2, "seeds": 1, "before": 1.0, "after": 1.0, "gain": 0.0, "gain_ci95": [0.0, 0.0]}
    assert found["unpaired"] == 1


PAIR = st.tuples(st.floats(-1, 2), st.floats(-1, 2))


@given(st.lists(st.lists(PAIR, min_size=3, max_size=3), min_size=1, max_size=3))
def test_swapped_sides_have_the_opposite_gain(table: list[list[tuple[float, float]]]) -> None:
    rows = [dict(zip("abc", row, strict=True)) for row in table]
    there = paired_gain(rows)
    back = paired_gain([{question: pair[::-1] for question, pair in row.items()} for row in rows])
    assert there["gain"] == -back["gain"] and there["gain_ci95"] == [-bound for bound in back["gain_ci95"][::-1]]
    assert (there["before"], there["after"]) == (back["after"], back["before"])


def test_swapped_evaluations_too() -> None:
    before, after = evaluation(0.0, 1.0, 0.5), evaluation(1.0, 0.5, 2.0, document="c")
    there, back = compare([before], [after]), compare([after], [before])
    for name in ("reward", "important_rate", "recall"):
        assert there[name]["gain"] == -back[name]["gain"] != 0
        assert there[name]["gain_ci95"] == [-bound for bound in back[name]["gain_ci95"][::-1]]


def test_several_seeds_share_a_baseline() -> None:
    baseline = evaluation(0.0, 0.0, 0.0)
    seeds = [evaluation(1.0, 2.0, 3.0), evaluation(2.0, 3.0, 4.0)]
    found = compare([baseline], seeds)["reward"]
    assert found["seeds"] == 2 and found["by_seed"] == [2.0, 3.0] and found["gain"] == 2.5
    low, high = found["gain_ci95"]
    assert low < 2.0 and high > 3.0, "seeds and questions both vary the mean"
    assert compare(seeds, [baseline])["reward"]["gain"] == -2.5


def test_sides_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="1 are in only one"):
        compare([evaluation(1.0)], [evaluation(1.0, 2.0)])
    with pytest.raises(ValueError, match="2 before, 3 after"):
        list(of_seeds([1, 2], [1, 2, 3]))
    with pytest.raises(ValueError, match="0 before"):
        compare([], [evaluation(1.0)])
    assert paired_gain([{"q": (0, 1)}, {"other": (0, 1)}]) == {"n": 0, "seeds": 2}
    assert columns([["a", "1"], ["bb", "22"]]) == ["a    1", "bb  22"]
