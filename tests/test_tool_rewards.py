"""The training tool's rewards: action "create_reward", and the functions to call by hand.

A test that is named after a parameter is its proof: docs/hello_agents.md points at it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.errors import ConfigError, RewardError
from gruppo.tool import (
    MathRewardFunction,
    RLTrainingTool,
    create_accuracy_reward,
    create_combined_reward,
    create_length_penalty_reward,
    create_step_reward,
)
from gruppo.tool.parameters import RewardParameters
from gruppo.tool.recipes import TERMS, Recipe

STEPS = "Step 1: 48/2 = 24\nStep 2: 48 + 24 = 72\nStep 3: that is all\n\nFinal Answer: 72"
LISTED = [
    {"type": "accuracy", "weight": 1.0},
    {"type": "length_penalty", "weight": 0.5, "target_length": 200},
    {"type": "step", "weight": 0.3, "step_bonus": 0.1},
]


@pytest.fixture
def tool() -> RLTrainingTool:
    return RLTrainingTool()


def create(tool: RLTrainingTool, **given: Any) -> dict[str, Any]:
    return json.loads(tool.run({"action": "create_reward", **given}))


def recipe(tool: RLTrainingTool, name: str) -> Recipe:
    """What a training with this reward_type is paid by."""
    return tool.rewards.choose(name, RewardParameters(), "", None)


# ---- action create_reward --------------------------------------------------------------------------------------------


def test_reward_type_is_what_is_rewarded(tool: RLTrainingTool) -> None:
    assert create(tool)["reward_type"] == "accuracy" and create(tool)["description"].startswith("1 for a right answer")
    weights = {kind: {"accuracy": 1.0, term: 1.0} for kind, term in TERMS.items()}
    for kind, expected in weights.items():
        assert create(tool, reward_type=kind)["status"] == "success"
        assert recipe(tool, kind).weights == expected
    said = create(tool, reward_type="lenght_penalty")["message"]
    assert said.endswith("did you mean length_penalty?")


def test_name_is_what_reward_type_calls_it_later(tool: RLTrainingTool) -> None:
    assert create(tool, reward_type="step", name="mine", step_bonus=0.2)["name"] == "mine"
    assert recipe(tool, "mine").settings == {"step_bonus.per_step": 0.2}
    assert create(tool, reward_type="step", step_bonus=0.3)["name"] == "step"
    assert recipe(tool, "step").settings == {"step_bonus.per_step": 0.3}, "its own type from then on"


def test_max_length_and_target_length_are_one(tool: RLTrainingTool) -> None:
    found = create(tool, reward_type="length_penalty", max_length=1024, penalty_weight=0.001)
    assert (found["target_length"], found["penalty_weight"]) == (1024, 0.001)
    assert create(tool, reward_type="length_penalty")["target_length"] == 200
    said = create(tool, reward_type="length_penalty", max_length=5, target_length=6)["message"]
    assert "two names of one thing" in said


def test_target_length_is_what_costs_nothing(tool: RLTrainingTool) -> None:
    create(tool, reward_type="length_penalty", target_length=150)
    assert recipe(tool, "length_penalty").tables["reward.length_penalty.target"] == 150


def test_penalty_weight_is_the_price_of_a_token(tool: RLTrainingTool) -> None:
    create(tool, reward_type="length_penalty", penalty_weight=0.01)
    assert recipe(tool, "length_penalty").tables["reward.length_penalty.per_token"] == 0.01
    said = create(tool, penalty_weight=0.01)["message"]
    assert said == "penalty_weight = 0.01: reward_type 'accuracy' does not use it; leave it out"


def test_step_bonus_is_the_pay_of_a_step(tool: RLTrainingTool) -> None:
    assert create(tool, reward_type="step", step_bonus=0.1)["step_bonus"] == 0.1
    assert recipe(tool, "step").tables["reward.step_bonus.per_step"] == 0.1


def test_tolerance_is_how_near_is_right(tool: RLTrainingTool) -> None:
    assert create(tool, tolerance=0.01)["tolerance"] == 0.01
    assert recipe(tool, "accuracy").tables["rewards"] == {"accuracy": 0.0, "tolerance": 1.0}
    assert recipe(tool, "accuracy").tables["reward.tolerance.within"] == 0.01


def test_components_are_added_up_by_weight(tool: RLTrainingTool) -> None:
    assert create(tool, reward_type="combined", components=LISTED)["status"] == "success"
    found = recipe(tool, "combined")
    assert found.weights == {"accuracy": 1.0, "length_penalty": 0.5, "step_bonus": 0.3}
    assert found.settings == {"length_penalty.target": 200, "step_bonus.per_step": 0.1}
    for given_, said in (
        ({"reward_type": "combined"}, 'components: reward_type "combined" needs some'),
        ({"components": LISTED}, 'components: only reward_type "combined" has some'),
        ({"reward_type": "combined", "components": LISTED * 2}, "components.3.type = 'accuracy': comes twice"),
        ({"reward_type": "combined", "components": LISTED, "step_bonus": 1.0}, "step_bonus: of reward_type"),
        (
            {"reward_type": "combined", "components": [{"type": "step", "tolerance": 1.0}]},
            "components.0.tolerance = 1.0",
        ),
        ({"reward_type": "combined", "components": [{"type": "spet"}]}, "components.0.type"),
    ):
        assert create(tool, **given_)["message"].startswith(said), given_


# ---- functions to call by hand ---------------------------------------------------------------------------------------


def test_answers_are_found_and_compared() -> None:
    maths = MathRewardFunction()
    found = {
        "so it is 9*2=18": "18", "#### 1,000": "1,000", "The answer is 5. No: Final Answer: 7": "7", "": None,
        "Therefore he has 48-24 = 24": "24",
    }  # fmt: skip
    assert {text: maths.extract_answer(text) for text in found} == found
    assert all(
        maths.compare_answers(*pair) for pair in (("72.0", "72"), ("1,000", "1000"), ("1/2", "0.5"), ("$5", "5"))
    )
    assert not maths.compare_answers("73", "72") and not maths.compare_answers("72.005", "72")
    assert MathRewardFunction(tolerance=0.01).compare_answers("72.005", "72")


def test_the_worked_figures() -> None:
    accuracy = create_accuracy_reward()
    said = [f"Final Answer: {answer}" for answer in ("72", "72.0", "73")]
    assert accuracy(said, ground_truth=["72"] * 3) == [1.0, 1.0, 0.0]
    long = {"completion_ids": [[0] * 500]}
    assert create_length_penalty_reward(max_length=200)([STEPS], ground_truth=["72"], **long) == [pytest.approx(0.7)]
    assert create_step_reward()([STEPS], ground_truth=["72"]) == [pytest.approx(1.3)]
    both = create_combined_reward([(accuracy, 1.0), (create_step_reward(step_bonus=0.2), 0.5)])
    assert both([STEPS], ground_truth=["72"]) == [pytest.approx(1 + 0.5 * 1.5)]
    by_words = create_length_penalty_reward(max_length=0, penalty_weight=0.01)
    assert by_words(["#### 72"], ground_truth=["72"]) == [pytest.approx(1 - 0.01 * 5)], "signs count"


@given(st.integers(0, 30), st.integers(0, 2000))
def test_style_is_never_paid_for_a_wrong_answer_and_never_outweighs_a_right_one(steps: int, tokens: int) -> None:
    lines = "\n".join(f"Step {number}: part {number}" for number in range(1, steps + 1))
    ids = {"completion_ids": [[0] * tokens]}
    for function in (create_step_reward(), create_length_penalty_reward(max_length=10)):
        (wrong,) = function([f"{lines}\nFinal Answer: 1"], ground_truth=["2"], **ids)
        (right,) = function([f"{lines}\nFinal Answer: 2"], ground_truth=["2"], **ids)
        assert wrong == 0 and 0.5 <= right <= 1.5


def test_ground_truth_has_to_be_there() -> None:
    for columns in ({}, {"ground_truth": ["1"]}, {"ground_truth": "12"}):
        with pytest.raises(RewardError, match="ground_truth: expected a list with an answer for each of 2"):
            create_accuracy_reward()(["1", "2"], **columns)


def test_a_function_has_a_name_and_can_be_called(tool: RLTrainingTool) -> None:
    for name in ("", "a.py:b"):
        with pytest.raises(ConfigError, match="can't be a name"):
            tool.register_reward_function(name, create_accuracy_reward())
    with pytest.raises(ConfigError, match="expected a function"):
        tool.register_reward_function("mine", "text")  # type: ignore[arg-type]
