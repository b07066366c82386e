"""Returns within an episode, reward shaping and curriculum: worked numbers, and what must hold for any input.

The golden numbers were computed with NumPy in float64 by other code than ours.
"""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.algorithms.advantages import centred, whiten
from gruppo.algorithms.curriculum import (
    adaptive_entropy_coefficient,
    adaptive_kl_coefficient,
    adarft_target,
    at_least_one,
    learnability,
    prioritised,
    probability_mixed,
    scaled_learning_rate,
)
from gruppo.algorithms.returns import (
    chain_margin,
    chain_quality,
    discounted_outcome,
    gae,
    length_adaptive_lambda,
    rewards_to_go,
    token_rewards,
)
from gruppo.algorithms.shaping import group_length_penalty, soft_overlong
from gruppo.evaluation.statistics import pass_at_k

GOLDEN = json.loads((Path(__file__).parent / "golden" / "advantages.json").read_text())
NAN = float("nan")
RATES = st.floats(0, 1)
QUARTERS = st.integers(-16, 16).map(lambda number: number / 4)

near = partial(pytest.approx, abs=2e-6)


def golden(name):
    return GOLDEN[name]["in"], GOLDEN[name]["out"]


def flat(rows):
    return list(chain.from_iterable(rows))


# Returns -------------------------------------------------------------------------------------------------------------


def test_turns_see_the_outcome_discounted_by_turns() -> None:
    out = golden("ret.turn")[1]
    assert discounted_outcome(4, 0.95, 1) == near(out["g.95T4"])
    assert discounted_outcome(3, 0.9, 1) == rewards_to_go([0, 0, 1], 0.9) == near(out["g.9T3"])
    assert discounted_outcome(1, 0.5, 0.7) == [0.7] and discounted_outcome(0, 0.5, 1) == []


def test_returns_go_on_across_what_the_policy_did_not_sample() -> None:
    given_, out = golden("ret.obs")
    found = rewards_to_go([0, 0, NAN, NAN, 0, 1], 1, given_["mask"])
    assert found == near(out["fixed"]) and found != out["buggy"]
    found = rewards_to_go([0, NAN, 1], 0.5, [1, 0, 1])
    assert found == near(out["fixed_g.5"]) and found != out["buggy_g.5"]


def test_kl_as_part_of_the_reward() -> None:
    given_, out = golden("adv.rfpp.kl")
    tokens = [
        token_rewards(outcome, [ratio if trained else NAN for ratio, trained in zip(*row, strict=True)], row[1], 0.1)
        for outcome, row in zip(given_["outcomes"], zip(given_["log_ratios"], given_["mask"], strict=True), strict=True)
    ]
    returns = [rewards_to_go(row, 1, mask) for row, mask in zip(tokens, given_["mask"], strict=True)]
    assert tokens == [near(row) for row in out["token_reward"]]
    assert returns == [near(row) for row in out["returns"]]
    assert whiten(flat(returns), flat(given_["mask"])) == near(flat(out["adv"]))
    assert token_rewards(1, [0, NAN], [1, 0], 0.1) == [1, 0]  # paid at the last trained token
    assert token_rewards(1, [0.5, 0.5], [0, 0], 0.1) == [0, 0] and token_rewards(1, [], [], 0.1) == []


def test_gae_steps_from_trained_token_to_trained_token() -> None:
    given_, out = golden("gae.obs")
    rewards, values, mask = given_["rewards"], given_["values"], given_["mask"]
    hidden = [value if trained else NAN for value, trained in zip(values, mask, strict=True)]
    advantages, targets = gae(rewards, hidden, mask, given_["gamma"], given_["lambda"])
    assert (advantages, targets) == (near(out["adv"]), near(out["returns"]))
    assert whiten(advantages, mask) == near(out["whitened"])
    naive, _ = gae(rewards, values, [1] * 6, given_["gamma"], given_["lambda"])
    assert [value * trained for value, trained in zip(naive, mask, strict=True)] == near(out["naive"])
    assert naive[0] != pytest.approx(advantages[0], abs=0.5)


@given(st.lists(st.tuples(QUARTERS, QUARTERS, st.integers(0, 1)), max_size=8))
def test_gae_with_lambda_one_is_the_return_less_the_value(tokens) -> None:
    rewards, values, mask = ([token[i] for token in tokens] for i in range(3))
    advantages, targets = gae(rewards, values, mask, 0.9, 1)
    assert targets == pytest.approx(rewards_to_go(rewards, 0.9, mask))
    assert all(value == 0 for value, trained in zip(advantages, mask, strict=True) if not trained)


def test_lambda_grows_with_the_length() -> None:
    for length, expected in golden("gae.vapo_lambda")[1]:
        assert length_adaptive_lambda(length) == near(expected)
    assert length_adaptive_lambda(0) == 0.0


def test_links_of_a_chain_are_paid_by_what_came_before() -> None:
    given_, out = golden("marti")
    assert chain_margin(given_["rewards"], given_["alpha"]) == near(out["margin"])
    assert chain_quality(given_["rewards"], given_["alpha"]) == near(out["quality"])
    assert chain_quality([0, 1, 0]) == near(out["quality_010"])
    assert chain_margin([]) == [] and chain_quality([0.7]) == [0.7]


# Shaping -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "expected"),
    [(16383, 0), (16384, 0), (16385, -1 / 4096), (17000, -0.150390625), (18432, -0.5), (20480, -1), (20481, -1)],
)
def test_soft_overlong_as_in_dapo(length, expected) -> None:
    assert soft_overlong(length, 20480, 4096) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(("length", "expected"), [(50, 0), (60, -0.2), (75, -0.5), (100, -1), (120, -1)])
def test_soft_overlong_of_short_responses(length, expected) -> None:
    assert soft_overlong(length, 100, 50) == pytest.approx(expected)


@given(st.integers(0, 300), st.integers(1, 100), st.integers(0, 100))
def test_soft_overlong_never_rises_and_stays_within_its_bounds(length, cache, room) -> None:
    found = soft_overlong(length, cache + room, cache)
    assert -1 <= soft_overlong(length + 1, cache + room, cache) <= found <= 0
    assert (found == 0) == (length <= room)


@pytest.mark.parametrize("cache", [0, -1, 101])
def test_soft_overlong_refuses_a_cache_that_does_not_fit(cache) -> None:
    with pytest.raises(ValueError, match=f"not {cache}"):
        soft_overlong(10, 100, cache)


def test_length_penalty_of_a_group() -> None:
    shaped = group_length_penalty([1, 1, 0, 1], [100, 200, 50, 400], 0.1)
    assert shaped == pytest.approx([0.98125, 0.9625, -0.009375, 0.925])
    assert centred(shaped) == pytest.approx([0.26640625, 0.24765625, -0.72421875, 0.21015625])
    assert group_length_penalty([1, 0], [0, 0], 0.1) == [1, 0]
    assert group_length_penalty([0, 0], [5, 9], 0.1) == [0, 0]  # a group that solves nothing is not pressed to be short


# Tasks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "expected"), [(0.1, 0.09), (0.25, 0.1875), (0.5, 0.25), (0.75, 0.1875), (0.9, 0.09)])
def test_learnability(rate, expected) -> None:
    assert learnability(rate) == pytest.approx(expected)


def test_prioritised_by_failures() -> None:
    assert prioritised([0, 0.25, 0.5, 1]) == pytest.approx([4 / 9, 1 / 3, 2 / 9, 0])
    assert prioritised([1, 1]) == [0.5, 0.5] and prioritised([]) == []


@given(st.lists(RATES, min_size=1, max_size=9))
def test_priorities_are_a_distribution_that_falls_with_the_success_rate(rates) -> None:
    weights = prioritised(rates)
    assert sum(weights) == pytest.approx(1) and min(weights) >= 0
    pairs = sorted(zip(rates, weights, strict=True))
    assert all(later[1] <= earlier[1] for earlier, later in zip(pairs, pairs[1:], strict=False))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.01, 0.077255), (0.05, 0.336580), (0.1, 0.569533), (0.25, 0.899872), (0.5, 0.9921875)],
)
def test_probability_of_a_mixed_group_of_eight(rate, expected) -> None:
    assert probability_mixed(rate, 8) == pytest.approx(expected, abs=2e-6)
    assert probability_mixed(1 - rate, 8) == pytest.approx(expected, abs=2e-6)


@given(RATES)
def test_pairs_are_mixed_by_twice_the_learnability_and_single_attempts_never(rate) -> None:
    assert probability_mixed(rate, 2) == pytest.approx(2 * learnability(rate), abs=1e-12)
    assert probability_mixed(rate, 1) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("rate", "n", "expected"), [(0.1, 8, 0.569533), (0.25, 4, 0.683594), (0.5, 4, 0.9375)])
def test_at_least_one_success(rate, n, expected) -> None:
    assert at_least_one(rate, n) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(8, 2, 1, 0.25), (8, 2, 4, 0.785714), (8, 0, 4, 0), (8, 5, 4, 1), (16, 3, 8, 0.9)],
)
def test_pass_at_k(n, c, k, expected) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("rate", [-0.1, 1.5, math.nan])
def test_a_success_rate_is_a_rate(rate) -> None:
    for call in (learnability, lambda p: prioritised([0.5, p]), lambda p: probability_mixed(p, 8)):
        with pytest.raises(ValueError, match="success rate"):
            call(rate)
    with pytest.raises(ValueError, match="success rate"):
        at_least_one(rate, 4)


@pytest.mark.parametrize(
    ("reward", "step"), [(0, -38.079708), (0.25, -23.105858), (0.5, 0), (0.75, 23.105858), (1, 38.079708)]
)
def test_adarft_target_follows_the_reward_within_its_bounds(reward, step) -> None:
    assert adarft_target(50, reward) == pytest.approx(50 + step, abs=2e-6)
    assert adarft_target(90, 1) == 100 and adarft_target(10, 0) == 0
    assert adarft_target(2, 1, eta=5, bounds=(1, 5)) == 5


# Coefficients --------------------------------------------------------------------------------------------------------


def test_entropy_coefficient_follows_the_entropy() -> None:
    assert adaptive_entropy_coefficient(0.01, 0.15) == pytest.approx(0.015)
    assert adaptive_entropy_coefficient(0.01, 0.25) == pytest.approx(0.005)
    assert adaptive_entropy_coefficient(0.003, 0.25) == 0


def test_kl_coefficient_follows_the_kl_in_small_steps() -> None:
    assert adaptive_kl_coefficient(0.001, 0.15, 0.1, 10_000, 512) == pytest.approx(0.00101024, abs=1e-12)
    assert adaptive_kl_coefficient(0.001, 0.11, 0.1, 1000, 100) == pytest.approx(0.00101)
    assert adaptive_kl_coefficient(0.001, 0, 0.1, 1000, 100) == pytest.approx(0.00098)
    with pytest.raises(ValueError, match="not 0"):
        adaptive_kl_coefficient(0.001, 0.1, 0, 1000, 100)


def test_learning_rate_scales_with_the_root_of_the_batch() -> None:
    assert scaled_learning_rate(5e-5, 64, 16) == pytest.approx(1e-4)
