"""What is paid beside being right: length, steps, tolerance, format, and the four dimensions of an agent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.rewards.agent import AgentConfig, agent, num_rounds, overlap
from gruppo.rewards.rules import is_equal, score_group
from gruppo.rewards.terms import (
    LengthPenaltyConfig,
    StepBonusConfig,
    ToleranceConfig,
    accuracy,
    length_penalty,
    num_steps,
    step_bonus,
    tolerance,
    well_formed,
)
from gruppo.types import Episode, Group, Outcome, Reward, Sampling, StopReason, Task, ToolEvent, ToolResult, Turn

TASK = Task("t", "48+24?", "72")


def turn(text: str = "", tokens: int = 0, role: str = "agent", error: str = "") -> Turn:
    ids = tuple(range(tokens))
    logprobs = (0.0,) * tokens
    return Turn(role, "p", 0, "", (), ids, logprobs, Sampling(), StopReason.stop, text, error=error)


def episode(answer: str | None, turns: Sequence[Turn] = (), calls: str = "", **fields: object) -> Episode:
    """`calls` says how tool calls went: "+-" is one that did and one that did not."""
    events = [ToolEvent(0, "python", {}, ToolResult(call == "+")) for call in calls]
    return Episode("t", "g", 0, 0, list(turns), events, answer, **fields)  # type: ignore[arg-type]


def total(functions: dict[str, tuple[Reward, float]], one: Episode, task: Task = TASK) -> float:
    score_group(functions, Group("g", task, [one]))
    assert one.reward is not None
    return one.reward


# ---- terms ----------------------------------------------------------------------------------------------------------

LENGTH = (length_penalty(is_equal, LengthPenaltyConfig()), 1.0)
STEPS = (step_bonus(is_equal, StepBonusConfig()), 1.0)
ACCURACY = (accuracy(is_equal), 1.0)
THREE = "Step 1: 48 is 50 less 2.\nStep 2: 50 + 24 is 74.\n**Step 3**: 74 - 2 is 72.\nFinal Answer: 72"


def test_the_worked_examples_of_the_formulas() -> None:
    long, short = episode("72", [turn(tokens=300), turn(tokens=200)]), episode("72", [turn(tokens=200)])
    assert total({"accuracy": ACCURACY, "length_penalty": LENGTH}, long) == pytest.approx(0.7)
    assert total({"accuracy": ACCURACY, "length_penalty": LENGTH}, short) == 1.0
    steps = episode("72", [turn(THREE, tokens=500)])
    assert total({"accuracy": ACCURACY, "step_bonus": STEPS}, steps) == pytest.approx(1.3)
    everything = {"accuracy": ACCURACY, "length_penalty": LENGTH, "step_bonus": STEPS}
    assert total(everything, steps) == pytest.approx(1.0)
    weighted = {"accuracy": ACCURACY, "length_penalty": (LENGTH[0], 0.5), "step_bonus": (STEPS[0], 0.3)}
    assert total(weighted, steps) == pytest.approx(1 - 0.5 * 0.3 + 0.3 * 0.3)
    values = {name: score.value for name, score in steps.scores.items()}
    assert values == {"accuracy": 1.0, "length_penalty": pytest.approx(-0.3), "step_bonus": pytest.approx(0.3)}


@pytest.mark.parametrize("answer", ["73", "", None])
def test_a_wrong_answer_is_neither_punished_for_length_nor_paid_for_steps(answer: str | None) -> None:
    wrong = episode(answer, [turn(THREE + "\n" * 10, tokens=9000)])
    assert total({"accuracy": ACCURACY, "length_penalty": LENGTH, "step_bonus": STEPS}, wrong) == 0.0


@settings(deadline=None)
@given(tokens=st.integers(0, 100_000), steps=st.integers(0, 50))
def test_style_never_outweighs_being_right(tokens: int, steps: int) -> None:
    text = "\n".join(f"Step {number}: say {number}" for number in range(1, steps + 1))
    functions = {"accuracy": ACCURACY, "length_penalty": LENGTH, "step_bonus": STEPS}
    right = total(functions, episode("72", [turn(text, tokens)]))
    assert 0.5 <= right <= 1.5 and total(functions, episode("7", [turn(text, tokens)])) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (THREE, 3),
        ("step 1) add\nSTEP 2. carry", 2),
        ("步骤1：加\n第2步：减", 2),
        ("Step 1: add\nStep 1: add again\nStep 3: skip", 1),  # numbers that don't go on
        ("Step 1:\nStep 2:\nStep 3: \n", 0),  # nothing said
        ("Step 1: add\nStep 2: add\nStep 2: carry", 2),  # the same said twice
        ("\n" * 10, 0),
        ("one step 1: two", 0),
        ("", 0),
    ],
)
def test_steps_are_counted_where_something_is_said(text: str, expected: int) -> None:
    assert num_steps(text) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("72", 1), ("72.009", 1), ("72.01", 0.5), ("71.5", 0.5), ("77", 0), ("67.001", 0.5), ("100", 0), ("word", 0)],
)
def test_tolerance(answer: str, expected: float) -> None:
    reward = tolerance(is_equal, ToleranceConfig(near=5.0))
    assert reward(TASK, [episode(answer), episode(None)]) == [expected, 0.0]
    strict = tolerance(is_equal, ToleranceConfig(within=0.0))
    assert strict(TASK, [episode(answer), episode("72.0")]) == [float(answer == "72"), 1.0]


def test_tolerance_takes_the_nearest_gold_answer_and_leaves_words_to_the_grading() -> None:
    reward = tolerance(is_equal, ToleranceConfig())
    assert reward(Task("t", "?", "3; 5"), [episode("5.001")]) == [1.0]
    assert reward(Task("t", "?", "Paris; 7"), [episode("paris"), episode("Rome")]) == [1.0, 0.0]


def test_what_the_grading_can_not_say_has_no_score() -> None:
    nobody = accuracy(lambda prediction, gold: None)
    assert nobody(TASK, [episode("72"), episode(None)]) == [None, 0.0]
    assert length_penalty(lambda prediction, gold: None, LengthPenaltyConfig())(TASK, [episode("72")]) == [0.0]


def test_format_is_paid_for_an_answer_only() -> None:
    bad = turn(error="no JSON")
    found = [episode("7", [turn()]), episode("7", [turn(), bad, bad]), episode("7", [bad] * 9), episode(None, [turn()])]
    found.append(episode("7", [turn()], outcome=Outcome.wrong_format))
    assert well_formed(TASK, found) == [1.0, 0.6, 0.0, 0.0, 0.8]


# ---- the agent ------------------------------------------------------------------------------------------------------

AGENT = agent(is_equal, AgentConfig())


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (episode("72", [turn()] * 20, "+++"), 0.85),  # the worked example of the four dimensions
        (episode("72", [turn()], "+"), 0.5 + 0.2 + 0.15 * 19 / 20 + 0.15),
        (episode("72", [turn()] * 10, "+-"), 0.5 + 0.1 + 0.075 + 0.15),
        (episode("72", [turn()] * 10), 0.5 + 0.2 + 0.075 + 0.15),  # no call, no wrong call
        (episode("72", [turn(error="bad")] * 5 + [turn()] * 25, "---"), 0.5),
        (episode("7"), 0.0),  # 0.30 if the dimensions were added up freely
        (episode("7", [turn()], "+"), 0.0),  # 0.4925
        (episode(None, [turn()] * 20, "+++"), 0.0),
    ],
)
def test_the_four_dimensions(one: Episode, expected: float) -> None:
    assert total(AGENT, one) == pytest.approx(expected)
    assert list(one.scores) == ["completion", "tool_accuracy", "brevity", "format"]


def test_a_step_is_a_turn_of_the_role_that_acted_most() -> None:
    team = [turn(role=role) for role in ("planner", "executor", "verifier") * 4] + [turn(role="writer")]
    assert num_rounds(episode("72", team)) == 4 and num_rounds(episode("72")) == 0


def test_partial_completion_is_off_unless_asked_for() -> None:
    paris = Task("t", "?", "the city of Paris; Lutetia")
    assert total(AGENT, episode("city of Rome"), paris) == 0.0
    some = agent(is_equal, AgentConfig(partial=0.5))
    assert total(some, episode("the city of Rome"), paris) == pytest.approx(0.5 * 0.5 * 0.75)
    assert overlap("paris", "Paris") == 1.0 and overlap("", "Paris") == overlap("x", "") == 0.0


plays = st.builds(
    episode,
    st.sampled_from(["the city of Paris", "city of Rome", "Paris Paris", "72", "", None]),
    st.lists(st.sampled_from([turn(), turn(error="bad")]), max_size=30),
    st.text(alphabet="+-", max_size=6),
)
weights = st.floats(0, 2)


@settings(deadline=None)
@given(plays, plays, st.tuples(st.floats(0.01, 2), weights, weights, weights), st.sampled_from([0, 0.3, 0.99]))
def test_a_quick_wrong_answer_never_outranks_work(
    one: Episode, other: Episode, weights: tuple[float, float, float, float], partial: float
) -> None:
    completion, tools, brevity, form = weights
    config = AgentConfig(completion=completion, tool_accuracy=tools, brevity=brevity, format=form, partial=partial)
    functions = agent(is_equal, config)
    first, second = (total(functions, each, Task("t", "?", "the city of Paris")) for each in (one, other))
    done = [float(each.scores["completion"].value or 0) for each in (one, other)]
    if done[0] < done[1]:
        assert first < second, "more completion is more reward, however it was done"
    if max(done) < 1 and done[0] == done[1]:
        assert first == second, "among wrong answers nothing is paid for being brief or tidy"
    assert 0 <= min(first, second) and max(first, second) <= sum(weights) + 1e-9
