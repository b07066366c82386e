"""Metrics by name: what counts, over what, and what can't be told."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.errors import ConfigError
from gruppo.evaluation.measures import (
    MEASURES,
    all_items,
    difficulty,
    is_well_formed,
    measure,
    measure_parts,
    number_in,
    plain,
    reference_steps,
    steps_taken,
)
from gruppo.evaluation.statistics import pass_at_k
from gruppo.types import Episode, Group, Outcome, Sampling, StopReason, Task, ToolEvent, ToolResult, Turn

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "metrics.jsonl").read_text().splitlines()]


def turn(
    text: str = "", tokens: int = 3, role: str = "agent", error: str = "", stop: StopReason = StopReason.stop
) -> Turn:
    ids = tuple(range(tokens))
    return Turn(role, None, 0, "p", (1, 2), ids, (-1.0,) * tokens, Sampling(), stop, text, error=error)


def episode(answer: str | None = "5", reward: float | None = 1.0, **fields: object) -> Episode:
    return Episode("t", "t", 0, 0, answer=answer, reward=reward, **fields)  # type: ignore[arg-type]


def group(
    task_id: str, *episodes: Episode, result: str = "5", chain: str = "", source: str = "", **extra: object
) -> Group:
    return Group(task_id, Task(task_id, "q", result, chain, source, extra), list(episodes))


def solved_of(counts: Sequence[int], attempts: int) -> list[Group]:
    return [
        group(f"t{place}", *[episode(reward=float(index < count)) for index in range(attempts)])
        for place, count in enumerate(counts)
    ]


# accuracy and accuracy@k ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_cases(case: dict) -> None:
    """Reports of other projects: `problems` is an evaluation, the others one task of n attempts."""
    given_, expected = case["input"], case["expected"]
    if "problems" in given_:
        each, counts = given_["samples_each"], [1] * given_["solved"] + [0] * (given_["problems"] - given_["solved"])
        counts = given_.get("counts", counts)
    else:
        each, counts = given_["n"], [given_.get("c", 0)]
    found = measure(solved_of(counts, each), ["accuracy", "accuracy_at_k"], k=given_["k"])
    value, reason = found["accuracy_at_k"].value, found["accuracy_at_k"].reason
    if "pass_at_1" in expected:
        assert found["accuracy"].value == pytest.approx(expected["pass_at_1"], abs=1e-6)
    if "pass_at_k" in expected:
        assert value == pytest.approx(expected["pass_at_k"], abs=1e-6)
    if given_["k"] > each:
        assert value is None and f"needs {given_['k']} attempts" in reason
        with pytest.raises(ValueError, match="k <= n"):
            pass_at_k(each, counts[0], given_["k"])


def chance(n: int, c: int, k: int) -> float:
    """The chance of a success in k draws without replacement, draw by draw."""
    return 1 - math.prod((n - c - drawn) / (n - drawn) for drawn in range(min(k, n - c + 1)))


@pytest.mark.parametrize("seed", range(20))
def test_evaluations_of_single_attempts_have_no_accuracy_at_more(seed: int) -> None:
    draw = random.Random(seed)
    problems = draw.randrange(2, 400)
    counts = [int(draw.random() < 0.4) for _ in range(problems)]
    for k in (1, 2, 10, problems):
        found = measure(solved_of(counts, 1), ["accuracy", "accuracy_at_k"], k=k)
        assert found["accuracy"].value == pytest.approx(sum(counts) / problems)
        assert found["accuracy_at_k"].value == (pytest.approx(sum(counts) / problems) if k == 1 else None)


@pytest.mark.parametrize("seed", range(20))
def test_accuracy_at_k_is_a_probability_of_each_task(seed: int) -> None:
    draw = random.Random(seed)
    attempts = draw.randrange(1, 40)
    counts = [draw.randrange(attempts + 1) for _ in range(draw.randrange(1, 6))]
    for k in {1, (attempts + 1) // 2, attempts}:
        value = measure(solved_of(counts, attempts), ["accuracy_at_k"], k=k)["accuracy_at_k"].value
        assert value == pytest.approx(sum(chance(attempts, c, k) for c in counts) / len(counts))
    assert pass_at_k(200, seed, 1) == pytest.approx(seed / 200)  # not 1 for any success at all


@pytest.mark.parametrize("n", range(20))
def test_more_draws_than_attempts_are_refused_whatever_came_of_them(n: int) -> None:
    for c in {0, n // 2, n}:
        with pytest.raises(ValueError, match="pass@k needs"):
            pass_at_k(n, c, n + 1)
    found = measure(solved_of([n // 2, n], n), ["accuracy_at_k"], k=n + 2)["accuracy_at_k"]
    assert found.value is None and found.ci95 is None and found.reason


def test_accuracy_at_k_is_a_mean_over_tasks_never_that_of_pooled_counts() -> None:
    found = measure(solved_of([4, 0, 0, 0], 4), ["accuracy", "accuracy_at_k"], k=2)
    assert found["accuracy"].value == 0.25 and found["accuracy_at_k"].value == 0.25
    assert pass_at_k(16, 4, 2) == pytest.approx(0.45)  # what pooling would say


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 5))
def test_accuracy_at_k_grows_with_k_from_the_accuracy(counts: list[int], k: int) -> None:
    groups = solved_of(counts, 5)
    found = [measure(groups, ["accuracy", "accuracy_at_k"], k=each) for each in (1, k)]
    assert found[0]["accuracy_at_k"].value == pytest.approx(found[0]["accuracy"].value)
    assert found[0]["accuracy_at_k"].value <= found[1]["accuracy_at_k"].value + 1e-12
    low, high = found[1]["accuracy_at_k"].ci95
    assert 0 <= low <= found[1]["accuracy_at_k"].value <= high + 1e-12 <= 1 + 1e-12


def test_missing_failed_and_unjudged_attempts_are_wrong() -> None:
    groups = [
        group("a", episode(), episode()),
        group("b", episode()),  # one of two attempts never came
        group("c", episode(outcome=Outcome.timeout), episode(reward=None)),
        group("d"),
    ]
    found = measure(groups, ["accuracy", "accuracy_at_k", "format_correctness"], k=2)
    assert found["accuracy"].value == pytest.approx(3 / 8) and found["accuracy"].n == 4
    assert found["accuracy_at_k"].value == pytest.approx(2 / 4)
    assert found["format_correctness"].value == pytest.approx(4 / 8)
    assert measure(groups, ["accuracy"], attempts=4)["accuracy"].value == pytest.approx(3 / 16)
    with pytest.raises(ValueError, match="2 attempts where 1"):
        measure(groups, ["accuracy"], attempts=1)


def test_tasks_that_were_not_played_are_put_in() -> None:
    tasks = [Task(f"t{n}", "q", "5") for n in range(4)]
    groups = [Group("g", tasks[2], [episode()])]
    items = all_items(tasks, groups)
    assert [one.task.id for one in items] == ["t0", "t1", "t2", "t3"]
    assert measure(items, ["accuracy"])["accuracy"].value == 0.25
    with pytest.raises(ValueError, match="other tasks, as 't2'"):
        all_items(tasks[:2], groups)
    with pytest.raises(ValueError, match="more than once"):
        all_items(tasks, groups * 2)


# the others ----------------------------------------------------------------------------------------------------------


def test_numerical_error_is_over_numbers_and_says_how_many_are_none() -> None:
    groups = [
        group("a", episode("7")), group("b", episode(r"\boxed{\frac{11}{2}}")),
        group("c", episode("The answer is 1,005.")),
        group("d", episode("no idea")), group("e", episode(None)), group("f", episode("4"), result="red"),
        group("g", episode("12"), result="1; 10; 100"), group("h", episode("3", outcome=Outcome.engine_failed)),
        group("i", episode("1" + "0" * 400)),
    ]  # fmt: skip
    found = measure(groups, ["mean_numerical_error", "median_numerical_error"])
    assert found["mean_numerical_error"].value == pytest.approx((2 + 0.5 + 1000 + 2) / 4)
    assert found["median_numerical_error"].value == pytest.approx(2.0)
    assert (found["mean_numerical_error"].n, found["mean_numerical_error"].reason[:6]) == (4, "5 of 9")
    assert measure(groups[3:5], ["mean_numerical_error"])["mean_numerical_error"].value is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("72", 72), ("-3", -3), ("1/2", 0.5), ("#### 18", 18), ("$34.50", 34.5), ("2^3", 8), ("x", None)],
)
def test_number_in(text: str, number: float | None) -> None:
    found = number_in(text, True)
    assert (None if found is None else float(found)) == number


def test_behaviour_tokens_and_costs() -> None:
    call = ToolEvent(0, "calc", {}, ToolResult(True, "2"))
    bad = ToolEvent(0, "calc", {}, ToolResult(False, error="x"))
    broken = turn('<tool_call>{"name": </tool_call>', error="not a call")
    one = episode(turns=[turn(tokens=4), turn(tokens=6)], events=[call, bad], seconds=2.0)
    two = episode(turns=[broken], seconds=1.0)
    failed = episode(turns=[turn(tokens=50)], outcome=Outcome.engine_failed, seconds=5.0)
    found = measure([group("a", one, two), group("b", failed)])
    assert found["average_length"].value == pytest.approx(13 / 2) and found["average_turns"].value == 1.5
    assert found["tool_call_validity"].value == pytest.approx(1 / 3) and found["tool_call_validity"].n == 3
    assert found["seconds_per_task"].value == 4.0  # two tasks, what failed has cost too
    assert found["tokens_per_task"].value == pytest.approx((10 + 4 + 3 + 2 + 50 + 2) / 2)


def test_what_there_is_nothing_of_is_none_with_a_reason() -> None:
    for groups in ([], [group("a")], [group("a", episode(reward=None, outcome=Outcome.judge_failed))]):
        found = measure(groups)
        assert found.keys() == MEASURES.keys()
        assert all(one.reason for one in found.values() if one.value is None)
        json.dumps(plain(found), allow_nan=False)
    assert (
        measure([group("a", episode(turns=[turn(tokens=0)]))])["average_length"].reason == "the engine shows no tokens"
    )


def test_names_and_k_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean accuracy_at_k"):
        measure([], ["acuracy_at_k"])
    with pytest.raises(ConfigError, match="k = 0"):
        measure([], ["accuracy"], k=0)


@pytest.mark.parametrize(
    ("one", "is_fine"),
    [
        (episode("5", turns=[turn("5")]), True),
        (episode("5", turns=[turn("Thus.\nAnswer: 5")]), True),
        (episode("We add.\nSo 5", turns=[turn("We add.\nSo 5")]), False),  # a text that marks no answer
        (episode("We add.\n\\boxed{5}", turns=[turn("We add.\n\\boxed{5}")]), True),
        (episode("5", turns=[turn("5", stop=StopReason.length)]), False),
        (episode("5", turns=[turn("?", error="not JSON"), turn("5")]), False),
        (episode("", turns=[turn("")]), False),
        (episode(None), False),
        (episode("5", outcome=Outcome.wrong_format), False),
        (episode("5"), True),
    ],
)
def test_well_formed(one: Episode, is_fine: bool) -> None:
    assert is_well_formed(one) is is_fine


@pytest.mark.parametrize(
    ("task", "steps", "label"),
    [
        (Task("t", "q", "5", extra_info={"steps": 3}), 3, "3-4"),
        (Task("t", "q", "5", extra_info={"plan": [{"tool": "a"}] * 5}), 5, "5+"),
        (Task("t", "q", "5", "He has <<2*3=6>>6.\nThen <<6-1=5>>5.\n#### 5"), 2, "1-2"),
        (Task("t", "q", "5", "Step 1: a\nStep 2: b\nStep 3: c\n#### 5"), 3, "3-4"),
        (Task("t", "q", "5", "First we add. Then we subtract.\n#### 5"), 2, "1-2"),
        (Task("t", "q", "5", "2 + 3 = 5\n#### 5"), 1, "1-2"),
        (Task("t", "q", "5"), None, None),
        (Task("t", "q", "5", extra_info={"steps": True}), None, None),
        (Task("t", "q", "5", extra_info={"steps": 0}), 0, None),
    ],
)
def test_difficulty_is_by_reference_steps(task: Task, steps: int | None, label: str | None) -> None:
    assert (reference_steps(task), difficulty(task)) == (steps, label)


def test_steps_taken_are_shown_ones_or_rounds() -> None:
    assert steps_taken(episode(turns=[turn("Step 1: a\nStep 2: b\nAnswer: 5")])) == 2
    assert steps_taken(episode(turns=[turn(role="planner"), turn(role="executor"), turn(role="planner")])) == 2
    assert steps_taken(episode()) == 0


def test_parts_share_the_attempts_that_are_owed() -> None:
    groups = [group("a", episode(), episode(), steps=1), group("b", episode(), steps=6), group("c", episode())]
    found = measure_parts(groups, ["accuracy"], difficulty)
    assert list(found) == ["1-2", "5+"] and found["5+"]["accuracy"].value == 0.5
