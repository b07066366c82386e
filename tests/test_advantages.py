"""Advantages against numbers worked out elsewhere, and the properties that must hold for any rewards.

The golden numbers were computed with NumPy in float64 by other code than ours; entries named after a public
implementation (TRL 1.16, verl, AReaL) hold what that one gives.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.algorithms.advantages import (
    ADVANTAGES,
    GROUP_RELATIVE,
    NEEDS_AVERAGE,
    NEEDS_GREEDY,
    AdvantageSettings,
    GroupReturns,
    centred,
    gdpo,
    gpg,
    gpg_alpha,
    grpo,
    grpo_batch,
    grpo_batch_centred,
    has_signal,
    loo_counterfactual,
    maxrl,
    moving_average,
    opo,
    passk,
    rae,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rloo,
    whiten,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "advantages.json").read_text())
SETTINGS = AdvantageSettings()
NAN = float("nan")

near = partial(pytest.approx, abs=2e-6)


def golden(name):
    return GOLDEN[name]["in"], GOLDEN[name]["out"]


def flat(groups):
    return list(chain.from_iterable(groups))


def group(rewards, lengths=None, key="g", greedy=0.25):
    lengths = [1] * len(rewards) if lengths is None else lengths
    scores = {"right": (1.0, rewards), "short": (0.5, [-length for length in lengths])}
    return GroupReturns(key, rewards, lengths, scores, greedy, average=0.5)


# Golden numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trl", "verl", "areal", "eps1e-9", "pop"])
def test_grpo(name) -> None:
    given_, out = golden(f"adv.grpo.{name}")
    assert grpo(given_["rewards"], ddof=given_["ddof"], epsilon=given_["epsilon"]) == near(out)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("adv.centred", centred),
        ("adv.rloo", rloo),
        ("adv.maxrl", maxrl),
        ("adv.gpg.verl", partial(gpg, alpha=4 / 3)),
        ("adv.remax", partial(remax, greedy=0.8)),
        ("adv.B.trl", partial(grpo, epsilon=1e-4)),
        ("adv.B.centred", centred),
        ("adv.B.rloo", rloo),
    ],
)
def test_one_group(name, function) -> None:
    given_, out = golden(name)
    assert function(given_["rewards"]) == near(out)


def test_grpo_on_a_small_range_a_binary_group_and_four_attempts() -> None:
    given_, out = golden("adv.smallrange")
    assert grpo(given_["rewards"], epsilon=1e-4) == near(out["eps1e-4"])
    assert grpo(given_["rewards"]) == near(out["eps1e-6"])
    for num_right, right, wrong in golden("adv.binary8")[1]:
        rewards = [1] * num_right + [0] * (8 - num_right)
        assert grpo(rewards, epsilon=0) == near([right] * num_right + [wrong] * (8 - num_right))
    given_, out = golden("adv.seed")
    assert centred(given_["rewards"]) == near(out["centred"])
    assert grpo(given_["rewards"], epsilon=1e-4) == near(out["sample"])
    assert grpo(given_["rewards"], ddof=0, epsilon=1e-8) == near(out["pop"])


def test_mean_and_std_can_be_read_back_from_the_advantages() -> None:
    given_, out = golden("adv.stats")
    assert given_["rewards"][0] - centred(given_["rewards"])[0] == near(out["mean"])
    for ddof, name in ((0, "std_pop"), (1, "std_sample")):
        assert 0.3 / grpo(given_["rewards"], ddof=ddof, epsilon=0)[0] == near(out[name])


@pytest.mark.parametrize("name", ["adv.opo", "adv.opo2"])
def test_opo(name) -> None:
    given_, out = golden(name)
    assert opo(given_["rewards"], given_["lengths"]) == near(out["adv"])
    assert given_["rewards"][0] - opo(given_["rewards"], given_["lengths"])[0] == near(out["baseline"])


def test_passk() -> None:
    given_, out = golden("adv.passk")
    assert passk(given_["rewards"], divide_by_std=False) == near(out["nostd"])
    assert passk(given_["rewards"]) == near(out["std"])
    assert passk([1, 1, 0]) == [0.0] * 3  # nobody leads


def test_batch_std_of_raw_and_of_centred_rewards() -> None:
    for name, function in (("adv.batch.trl", grpo_batch), ("adv.batch.centred", grpo_batch_centred)):
        given_, out = golden(name)
        found = flat(function(given_["groups"], epsilon=1e-4))
        assert found == near(out["adv"])
        assert 0.3 / found[0] - 1e-4 == near(out["std"])


@pytest.mark.parametrize(("name", "function"), [("adv.rfpp", reinforce_pp), ("adv.rfppb", reinforce_pp_baseline)])
def test_reinforce_pp(name, function) -> None:
    given_, out = golden(name)
    rewards, lengths = ([given_[key][:4], given_[key][4:]] for key in ("rewards", "lengths"))
    assert flat(function(rewards, lengths)) == near(out["unbiased"])
    assert flat(function(rewards, lengths, unbiased=False)) == near(out["biased"])
    if "sequence" in out:
        groups = [group(*pair) for pair in zip(rewards, lengths, strict=True)]
        assert flat(ADVANTAGES["reinforce++"](groups, replace(SETTINGS, token_weighted=False))) == near(out["sequence"])


def test_gdpo() -> None:
    given_, out = golden("adv.gdpo")
    scores = {"f1": (1.0, given_["f1"]), "f2": (1.0, given_["f2"])}
    summed = [f1 + f2 for f1, f2 in zip(given_["f1"], given_["f2"], strict=True)]
    assert grpo(summed, epsilon=1e-4) == near(out["sum_then_norm"])
    assert gdpo(scores, epsilon=1e-4) == near(out["norm_then_sum"])
    groups = [GroupReturns("g", summed, [1] * 4, scores)]
    assert ADVANTAGES["gdpo"](groups, replace(SETTINGS, epsilon=1e-4)) == [near(out["final"])]
    against = {"f1": (0.7, [1, 0, 1]), "f2": (0.3, [0, 1, 0]), "f3": (0.4, [0, 1, 0])}
    assert gdpo(against) == [0.0] * 3  # they cancel out but for rounding
    holes = gdpo({"f1": (2.0, [1, None, 0, None]), "f2": (1.0, [None, 1, 0, None])}, epsilon=0)
    assert holes == near([2**0.5, 0.5**0.5, -1.5 * 2**0.5, 0])


def test_alternatives_are_compared_with_the_others_by_how_often_they_were_replayed() -> None:
    given_, out = golden("c3")
    assert loo_counterfactual(given_["means"], [1, 1, 1]) == near(out["loo"])
    assert loo_counterfactual(given_["means"], given_["counts"]) == near(out["weighted"])
    assert centred(given_["means"]) == near(out["full"])
    assert loo_counterfactual([0.7], [4]) == [0.0]
    assert loo_counterfactual([1, 0], [4, 0]) == [0.0, -1.0]  # the first has nobody to be compared with


def test_role_averages_follow_the_rewards() -> None:
    given_, out = golden("rae")
    average = 0.0
    for reward, expected in zip(given_["rewards"], out, strict=True):  # the paper's: a step of one episode each
        (advantage,) = rae([reward], average)
        average = moving_average(average, [reward], given_["decay"])
        assert [advantage, average] == near(expected)
    assert moving_average(0.0, given_["rewards"], given_["decay"]) == average
    assert rae([0.3, 0.1 + 0.2, 1.0], 0.3) == [0.0, 0.0, 0.7]


def test_who_is_compared_with_whom_makes_the_schemes_of_teams() -> None:
    """Dr.MAS, MAGRPO and a proposer with its solvers are the estimators above over other groups."""
    given_, out = golden("drmas")
    planner, calls = given_["R"], given_["calls"]
    searcher_rows = flat([reward] * num for reward, num in zip(planner, calls, strict=True))
    assert grpo(planner) == near(out["planner"])
    assert grpo(searcher_rows) == near(out["searcher"])  # Dr.MAS: its rows
    assert statistics.fmean(searcher_rows) == near(out["searcher_mean"])
    assert statistics.stdev(searcher_rows) == near(out["searcher_std"])
    pool = grpo(planner + searcher_rows)
    assert (pool[:4], pool[4:]) == (near(out["planner_global"]), near(out["searcher_global"]))
    assert statistics.fmean(planner + searcher_rows) == near(out["global_mean"])
    assert statistics.stdev(planner + searcher_rows) == near(out["global_std"])
    acted = [reward for reward, num in zip(planner, calls, strict=True) if num]
    assert grpo(acted) == pytest.approx([1.154701, -0.57735, -0.57735], abs=3e-6)  # ours: its episodes

    assert centred(golden("magrpo")[0]["returns"]) == near(golden("magrpo")[1])
    given_, out = golden("hier")
    assert {name: centred(rewards) for name, rewards in given_.items()} == {name: near(out[name]) for name in out}


# What has no signal, and what has none by rights ---------------------------------------------------------------------


def test_rounding_never_becomes_a_signal() -> None:
    given_, out = golden("adv.floatnoise")
    residue = 2.0**-24  # of 0.95 in float32
    for name, epsilon in (("eps1e-4", 1e-4), ("eps1e-6", 1e-6), ("eps1e-9", 1e-9)):
        unguarded = residue / (given_["std"] + epsilon)
        assert unguarded == near(out[name])
        assert grpo([0.95] * 7 + [0.95 + residue], epsilon=epsilon) == [0.0] * 8


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_groups_without_signal_get_exactly_zero_beside_those_with_one(name) -> None:
    silent = [group([0.95] * 8), group([0.1 + 0.2, 0.3, 0.3]), group([0.7]), group([])]
    alone = ADVANTAGES[name]([group([0.7] * count) for count in (3, 1, 0)], SETTINGS)
    among = ADVANTAGES[name]([group([1, 0, 0, 0.5]), *silent], SETTINGS)
    assert any(among[0]) and [len(values) for values in among] == [4, 8, 3, 1, 0]
    if name in GROUP_RELATIVE:
        assert among[1:] == [[0.0] * 8, [0.0] * 3, [0.0], []]
    if name not in ("remax", "rae"):  # their baseline is of other episodes
        assert alone == [[0.0] * 3, [0.0], []]
    assert ADVANTAGES[name]([], SETTINGS) == []


def test_reinforce_pp_has_a_signal_across_groups_and_remax_and_rae_against_other_episodes() -> None:
    assert {name for name in ADVANTAGES if name not in GROUP_RELATIVE} == {"reinforce++", "remax", "rae"}
    assert ADVANTAGES["reinforce++"]([group([1]), group([0])], SETTINGS) == [near([0.5**0.5]), near([-(0.5**0.5)])]
    assert ADVANTAGES["remax"]([group([1], greedy=0.25)], SETTINGS) == [[0.75]]
    assert ADVANTAGES["remax"]([group([1, 0], greedy=None)], SETTINGS) == [[0.0, 0.0]]
    assert ADVANTAGES["rae"]([group([1]), group([0.5, 0])], SETTINGS) == [[0.5], [0.0, -0.5]]
    assert ({"remax"}, {"rae"}) == (NEEDS_GREEDY, NEEDS_AVERAGE)


def test_silent_groups_and_episodes_without_tokens_do_not_move_the_whitening_of_the_others() -> None:
    whitened = ADVANTAGES["reinforce++_baseline"]
    lengths = [[3, 1, 2], [1, 1, 5]]
    groups = [group([1, 0, 0.5], lengths[0]), group([0, 1, 1], lengths[1])]
    found = whitened(groups, SETTINGS)
    assert sum(value * length for value, length in zip(flat(found), flat(lengths), strict=True)) == pytest.approx(0)
    assert whitened([*groups, group([1, 1], [50, 60]), group([1], [9])], SETTINGS) == [*found, [0.0, 0.0], [0.0]]
    for name in ("reinforce++_baseline", "reinforce++"):
        assert ADVANTAGES[name]([group([1, 0], [3, 0])], SETTINGS) == [[0.0, 0.0]]
    assert whiten([1, NAN, 0], [1, 0, 1]) == near([0.5**0.5, 0, -(0.5**0.5)])


def test_episodes_that_can_not_be_scored_are_left_out_and_failures_of_the_harness_are_not_zeros() -> None:
    given_, out = golden("adv.nan")
    scored = [reward for reward in given_["rewards"] if reward is not None]
    assert grpo(scored, epsilon=1e-4) == near([value for value in out["adv"] if value])
    column = gdpo({"only": (1.0, given_["rewards"])}, epsilon=1e-4)
    assert column == near(out["adv"])
    assert statistics.fmean(scored) == near(out["mean"]) and statistics.stdev(scored) == near(out["std"])
    given_, out = golden("turn.failure")
    assert grpo([reward for reward in given_["rewards"] if reward is not None], epsilon=1e-4) == near(out["drop"])
    assert grpo([reward or 0 for reward in given_["rewards"]], epsilon=1e-4) == near(out["as_zero"])
    for broken in (NAN, float("inf")):
        with pytest.raises(AssertionError, match="finite"):
            centred([1.0, broken, 0.0])
    with pytest.raises(AssertionError, match="group g"):
        GroupReturns("g", [1.0, 0.0], [3])


def test_statistics_are_per_episode_not_per_row() -> None:
    given_, out = golden("turn.adv")
    rows = flat([reward] * turns for reward, turns in zip(given_["R"], given_["K"], strict=True))
    assert grpo(given_["R"]) == near(out["traj"])
    assert centred(given_["R"]) == near(out["traj_centred"])
    assert grpo(rows)[:1] + grpo(rows)[4:5] == near(out["row"])  # what must not happen: success is worth less
    assert centred(rows)[:1] + centred(rows)[4:5] == near(out["row_centred"])
    assert (statistics.fmean(rows), statistics.stdev(rows)) == (near(out["row_mean"]), near(out["row_std"]))


@pytest.mark.parametrize("name", ["adv.loo_std", "adv.loo_std.0111"])
def test_leave_one_out_has_no_std_of_the_others_which_would_have_no_bound(name) -> None:
    given_, out = golden(name)
    rewards = given_["rewards"]
    assert [reward - value for reward, value in zip(rewards, rloo(rewards), strict=True)] == near(out["baseline"])
    others = [statistics.stdev(rewards[:i] + rewards[i + 1 :]) for i in range(4)]
    assert others == near(out["std"])
    divided = [value / (std + 1e-6) if std else value for value, std in zip(rloo(rewards), others, strict=True)]
    assert divided == near(out["adv"])
    assert max(map(abs, grpo(rewards))) <= 3 / 4**0.5


# Properties ----------------------------------------------------------------------------------------------------------

# Quarters: far apart or equal, so that no example sits on the edge of the tolerance.
QUARTERS = st.integers(-16, 16).map(lambda number: number / 4)
REWARDS = st.lists(QUARTERS, min_size=2, max_size=9)
GROUPS = st.lists(st.lists(st.tuples(QUARTERS, st.integers(0, 9)), min_size=1, max_size=6), min_size=1, max_size=4)
ZERO_SUM = ["grpo", "centred", "rloo", "grpo_batch", "grpo_batch_centred", "gpg", "gdpo", "maxrl"]
UNMOVED = sorted(set(ADVANTAGES) - {"maxrl", "remax", "rae", "gdpo"})
SCALE_FREE = ["grpo", "grpo_batch", "grpo_batch_centred", "maxrl", "passk", "reinforce++", "reinforce++_baseline"]


def groups_of(specs, change=lambda reward: reward):
    return [group([change(r) for r, _ in spec], [n for _, n in spec], f"g{i}") for i, spec in enumerate(specs)]


@given(GROUPS, st.randoms())
def test_order_and_names_of_groups_and_episodes_do_not_matter(specs, random) -> None:
    outer = random.sample(range(len(specs)), len(specs))
    inner = [random.sample(range(len(spec)), len(spec)) for spec in specs]
    mixed = groups_of([[specs[g][i] for i in inner[g]] for g in outer])
    for estimator in ADVANTAGES.values():
        values = estimator(groups_of(specs), SETTINGS)
        for found, g in zip(estimator(mixed, SETTINGS), outer, strict=True):
            assert found == pytest.approx([values[g][i] for i in inner[g]], abs=1e-9)


@given(GROUPS)
def test_advantages_of_a_group_add_up_to_zero(specs) -> None:
    for name in ZERO_SUM:
        for values in ADVANTAGES[name](groups_of(specs), SETTINGS):
            assert sum(values) == pytest.approx(0, abs=1e-7)
    for spec, values in zip(specs, ADVANTAGES["opo"](groups_of(specs), SETTINGS), strict=True):
        assert sum(value * length for value, (_, length) in zip(values, spec, strict=True)) == pytest.approx(
            0, abs=1e-9
        )


@given(GROUPS, QUARTERS, st.sampled_from([3.0, 40.0]))
def test_shifts_change_nothing_and_scales_nothing_or_in_proportion(specs, shift, scale) -> None:
    exact = replace(SETTINGS, epsilon=0.0)
    for name in UNMOVED:
        values = flat(ADVANTAGES[name](groups_of(specs), SETTINGS))
        assert flat(ADVANTAGES[name](groups_of(specs, lambda r: r + shift), SETTINGS)) == pytest.approx(
            values, abs=1e-7
        )
    for name in SCALE_FREE:
        values = flat(ADVANTAGES[name](groups_of(specs), exact))
        assert flat(ADVANTAGES[name](groups_of(specs, lambda r: r * scale), exact)) == pytest.approx(values, abs=1e-3)
    for name in ("centred", "rloo", "opo", "gpg"):
        values = [scale * value for value in flat(ADVANTAGES[name](groups_of(specs), SETTINGS))]
        assert flat(ADVANTAGES[name](groups_of(specs, lambda r: r * scale), SETTINGS)) == pytest.approx(
            values, abs=1e-9
        )


@given(REWARDS)
def test_relations_between_the_estimators(rewards) -> None:
    size, ones = len(rewards), [1] * len(rewards)
    middle = centred(rewards)
    assert rloo(rewards) == pytest.approx([size / (size - 1) * value for value in middle])
    assert loo_counterfactual(rewards, ones) == pytest.approx(rloo(rewards), abs=1e-12)
    assert opo(rewards, ones) == pytest.approx(middle)
    assert gpg(rewards, gpg_alpha([rewards])) == pytest.approx(middle)
    assert grpo_batch([rewards]) == [grpo(rewards)] and grpo_batch_centred([rewards]) == [pytest.approx(grpo(rewards))]
    assert reinforce_pp_baseline([rewards], [ones]) == [pytest.approx(grpo(rewards), abs=1e-4)]
    assert max(map(abs, grpo(rewards))) <= (size - 1) / size**0.5 + 1e-9
    assert has_signal(rewards) == any(grpo(rewards)) == any(middle)


def test_maxrl_has_no_direction_where_the_mean_is_not_positive() -> None:
    assert maxrl([-1, -2, 0]) == [0.0] * 3 and maxrl([-1, 1]) == [0.0] * 2


def test_gpg_makes_up_for_episodes_without_gradient() -> None:
    assert ADVANTAGES["gpg"]([group([1, 0]), group([1, 1])], SETTINGS) == [[1.0, -1.0], [0.0, 0.0]]
    assert ADVANTAGES["gpg"]([group([1, 0])], replace(SETTINGS, gpg_alpha=4.0)) == [[2.0, -2.0]]


def test_precision_does_not_depend_on_where_the_rewards_lie() -> None:
    near_million = [1e6 + reward for reward in (0.0, 4.0, 8.0, 4.0)]
    assert grpo(near_million) == pytest.approx(grpo([0, 4, 8, 4]))
