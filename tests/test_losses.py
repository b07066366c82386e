"""Ratios, losses, KL estimates and aggregations against worked numbers.

The numbers of golden/losses.json were worked out by hand-written float64 code and agree with TRL 1.16 and verl; their
padded [2, 3] examples become flat tokens here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gruppo.algorithms.aggregations import AGGREGATIONS, AggregationSettings, RowShape
from gruppo.algorithms.kl import KLS
from gruppo.algorithms.losses import (
    LOSSES,
    LossSettings,
    ObjectiveSettings,
    clip_cov_tokens,
    covariance,
    high_entropy_tokens,
    kl_cov_tokens,
    objective,
)
from gruppo.algorithms.ratios import RATIOS, Tokens, log_ratio

GOLDEN = json.loads((Path(__file__).parent / "golden" / "losses.json").read_text())
LIVE = torch.tensor(GOLDEN["F2"]["mask"]).bool()
LENGTH = AggregationSettings(length_norm=4)


def flat(padded) -> Tensor:
    return torch.tensor(padded, dtype=torch.float64)[LIVE]


def padded(values_N: Tensor) -> Tensor:
    return torch.zeros(LIVE.shape, dtype=values_N.dtype).masked_scatter(LIVE, values_N)


NEW, OLD, REFERENCE = flat(GOLDEN["F2"]["logp"]), flat(GOLDEN["F2"]["old"]), flat(GOLDEN["F2"]["ref"])
ADVANTAGES = torch.tensor([1, 1, 1, -0.5, -0.5], dtype=torch.float64)
TOKENS = Tokens(OLD, ADVANTAGES, torch.tensor([0, 0, 0, 1, 1]), reference_N=REFERENCE)
ROWS = [RowShape(3, "first", "first"), RowShape(2, "second", "second")]


def same(found, expected) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert torch.allclose(torch.as_tensor(found, dtype=torch.float64), expected, atol=2e-6, rtol=0), (found, expected)


def tokens_of(log_ratio_N, advantages, sequence) -> tuple[Tensor, Tokens]:
    """Tokens whose log-ratio is given; log-probs are about -1."""
    new_N = torch.tensor(log_ratio_N, dtype=torch.float64) - 1
    advantages_N = torch.tensor(advantages, dtype=torch.float64)
    return new_N, Tokens(torch.full_like(new_N, -1), advantages_N, torch.tensor(sequence))


def weights_of(aggregation: str, rows=ROWS) -> Tensor:
    weights = AGGREGATIONS[aggregation](rows, LENGTH)
    return torch.tensor([w for w, row in zip(weights, rows, strict=True) for _ in range(row.num_tokens)])


def evaluate(loss: str, aggregation: str = "token_mean", tokens: Tokens = TOKENS, **constants):
    """(losses_N, loss of the step, gradient [2, 3]) of the example."""
    new_N = NEW.clone().requires_grad_()
    losses_N, _ = LOSSES[loss](new_N, tokens, LossSettings(**constants))
    total = (losses_N * weights_of(aggregation)).sum()
    total.backward()
    return losses_N.detach(), total.item(), padded(new_N.grad)


@pytest.mark.parametrize(("case", "high"), [("loss.sym", 0.2), ("loss.high", 0.28)])
def test_ppo_clip_under_every_aggregation(case, high) -> None:
    expected = GOLDEN[case]
    names = {"token_sum_norm4": "token_sum_norm"}
    for key in ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm4", "token_sum"):
        losses, loss, gradient = evaluate("ppo_clip", names.get(key, key), clip_high=high)
        same(padded(losses), expected["token"])
        same(loss, expected[key])
        if f"grad_{key}" in expected:
            same(gradient, expected[f"grad_{key}"])


def test_sums_are_ratio_clipped_share_and_kl_from_the_old_policy() -> None:
    same(padded(RATIOS["token"](NEW, TOKENS)) * LIVE, torch.tensor(GOLDEN["F2.ratio"]) * LIVE)
    _, sums = LOSSES["ppo_clip"](NEW, TOKENS, LossSettings(clip_high=0.2))
    same([sums["clipped"] / 5, sums["kl_old"] / 5, sums["ratio"]], [0.2, 0.08, 4.751836])
    first = Tokens(OLD[:3], ADVANTAGES[:3], TOKENS.sequence_N[:3])
    _, sums = LOSSES["ppo_clip"](NEW[:3], first, LossSettings(clip_high=0.2))
    same(sums["clipped"] / 3, GOLDEN["loss.clipfrac"]["seq_mean_max"])


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "k3+", "k3_ratio"])
def test_kl_estimates_and_their_gradients(name) -> None:
    new_N = NEW.clone().requires_grad_()
    values_N = KLS[name](new_N, REFERENCE, OLD)
    values_N.sum().backward()
    expected = GOLDEN[f"kl.{name.rstrip('+')}"]
    same(padded(values_N.detach()), expected["token"])
    same(values_N.mean().item(), expected["token_mean"])
    same(padded(new_N.grad), GOLDEN["kl.grad"][name.replace("+", "plus")])


def test_the_squared_estimate_is_k2_twice_in_value_and_gradient() -> None:

    new_N = NEW.clone().requires_grad_()
    values_N = KLS["squared"](new_N, REFERENCE, OLD)
    values_N.sum().backward()
    same(padded(values_N.detach()) / 2, GOLDEN["kl.k2"]["token"])
    same(padded(new_N.grad) / 2, GOLDEN["kl.grad"]["k2"])

    twice, _ = objective(NEW, TOKENS, ObjectiveSettings(kl_estimator="k2", kl_coefficient=0.04))
    once, _ = objective(NEW, TOKENS, ObjectiveSettings(kl_estimator="squared", kl_coefficient=0.02))
    same(once.mean(), twice.mean())


@pytest.mark.parametrize(("name", "case"), [("k3", "plain"), ("k3_ratio", "bias_corrected")])
def test_kl_is_added_to_the_loss(name, case) -> None:
    chosen = ObjectiveSettings(kl_estimator=name, kl_coefficient=0.04)
    losses_N, sums = objective(NEW, TOKENS, chosen)
    same(losses_N.mean(), GOLDEN["kl.dapo_beta.04"][case])
    same(sums["kl"], sum(GOLDEN[f"kl.{name}"]["seq_sum"]))


def test_kl_of_far_tokens_is_bounded_and_then_pulls_no_more() -> None:
    new_N = torch.tensor([-1.0, -30.0, -200.0], requires_grad=True)
    for name, estimate in KLS.items():
        values_N = estimate(new_N, torch.tensor([-60.0, -1.0, -1.0]), new_N.detach())
        assert values_N.abs().max() <= 10 and values_N.isfinite().all(), name
        assert not torch.autograd.grad(values_N.sum(), new_N)[0].any()
    same(KLS["abs"](NEW, REFERENCE, OLD), KLS["k1"](NEW, REFERENCE, OLD).abs())


@given(st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0)), min_size=1))
def test_k3_is_never_negative(pairs) -> None:
    new_N, reference_N = torch.tensor(pairs, dtype=torch.float64).T
    assert (KLS["k3"](new_N, reference_N, new_N) >= -1e-12).all()


@pytest.mark.parametrize(
    ("case", "constants"),
    [
        ("dual/plain", {}),
        ("dual/delta4", {"ratio_cap": 4}),
        ("dual/c3", {"dual_clip": 3}),
        ("dual.roll/c1.4", {"dual_clip": 1.4}),
    ],
)
def test_a_large_ratio_on_a_bad_token_is_bounded_only_if_asked_for(case, constants) -> None:
    name, variant = case.split("/")
    new_N, tokens = tokens_of(torch.tensor([5, 1.2]).double().log().tolist(), [-1, -1], [0, 0])
    losses_N, sums = LOSSES["ppo_clip"](new_N.requires_grad_(), tokens, LossSettings(clip_high=0.2, **constants))
    same(losses_N.detach(), GOLDEN[name][variant][0])
    same(losses_N.mean().item(), GOLDEN[name][variant][1])
    losses_N.sum().backward()
    assert bool(new_N.grad[0] == 0) == bool(constants) and sums["clipped"] == len(constants)


@pytest.mark.parametrize(("case", "low", "high"), [("gspo.paper", 3e-4, 4e-4), ("gspo.wide", 0.2, 0.28)])
def test_gspo_and_luspo(case, low, high) -> None:
    expected, bounds = GOLDEN[case], {"clip_low": low, "clip_high": high}
    same(RATIOS["sequence"](NEW, TOKENS)[[0, 3]], GOLDEN["gspo.ratio"]["s"])
    for level in ("sequence", "sequence_token"):
        losses, loss, gradient = evaluate("ppo_clip", "seq_mean_token_mean", ratio_level=level, **bounds)
        same(losses[[0, 3]], expected["seq"])
        same(loss, expected["loss"])
        same(gradient, expected["grad"])
        _, loss, gradient = evaluate("ppo_clip", "seq_mean_token_sum", ratio_level=level, **bounds)
        same(loss, expected["luspo"])
        same(gradient, expected["luspo_grad"])
    same(evaluate("ppo_clip", ratio_level="sequence", **bounds)[1], expected["token_mean"])


def test_a_ratio_over_a_turn_knows_its_own_tokens_only() -> None:
    expected = GOLDEN["turn.ratio"]
    new_N, turns = tokens_of([0.2, 0.1, -0.5, 0.3], [1] * 4, [0, 0, 1, 1])  # what stood between was not sampled
    same(RATIOS["turn"](new_N, turns)[[0, 2]], expected["turn"])
    same(
        RATIOS["sequence"](new_N, replace(turns, sequence_N=torch.zeros(4, dtype=torch.long)))[0], expected["traj_gspo"]
    )
    losses_N, _ = LOSSES["ppo_clip"](new_N, turns, LossSettings(ratio_level="turn"))
    rows = [RowShape(2, "episode", number) for number in range(2)]
    same((losses_N * weights_of("row_mean", rows)).sum(), expected["loss_turn_mean"])
    same((losses_N * weights_of("token_mean", rows)).sum(), expected["loss_token_mean"])
    same(RATIOS["sequence"](*tokens_of([0.1, 0.2], [1, 1], [0, 0]))[0], GOLDEN["gspo.obs"]["right"])


def test_rloo_takes_the_ratio_of_the_whole_sequence() -> None:
    same(RATIOS["sequence_sum"](NEW, TOKENS)[[0, 3]], GOLDEN["rloo.trl_seq"]["ratio"])
    same(GOLDEN["rloo.trl_seq"]["ratio"], GOLDEN["gspo.ratio"]["product"])
    _, loss, _ = evaluate("ppo_clip", "seq_mean_token_mean", ratio_level="sequence_sum")
    same(loss, GOLDEN["rloo.trl_seq"]["loss"])


@pytest.mark.parametrize(
    ("case", "floor", "cap"),
    [
        ("cispo.max5", 0, 5),
        ("cispo.trl_default_trap", 0, 0.2),
        ("cispo.rel.2_.28", 0.8, 1.28),
        ("cispo.rel.2_.2", 0.8, 1.2),
    ],
)
def test_cispo(case, floor, cap) -> None:
    losses, loss, gradient = evaluate("cispo", cispo_floor=floor, cispo_cap=cap)
    same(padded(losses), GOLDEN[case]["token"])
    same(loss, GOLDEN[case]["loss"])
    same(gradient, GOLDEN[case]["grad"])


def test_sapo() -> None:
    losses, loss, gradient = evaluate("sapo", "seq_mean_token_mean")
    same(padded(losses / -ADVANTAGES), GOLDEN["sapo"]["gate"])
    same(loss, GOLDEN["sapo"]["loss"])
    same(gradient, GOLDEN["sapo"]["grad"])
    share = -padded(ADVANTAGES) * torch.tensor(GOLDEN["F2.ratio"]) * torch.tensor(GOLDEN["sapo"]["weight"])
    same(gradient, share * padded(weights_of("seq_mean_token_mean").double()))


def test_gmpo() -> None:
    losses, loss, _ = evaluate("gmpo", "seq_mean_token_mean")
    same((losses / -ADVANTAGES)[[0, 3]], GOLDEN["gmpo.F2"]["geo"])
    same(loss, GOLDEN["gmpo.F2"]["loss"])
    new_N, tokens = tokens_of([0.5, 0.1, -0.6, -0.1], [1, 1, -1, -1], [0, 0, 1, 1])
    losses_N, sums = LOSSES["gmpo"](new_N, tokens, LossSettings())
    same((losses_N / -tokens.advantages_N)[[0, 2]], GOLDEN["gmpo.clip"]["geo"])
    same(losses_N.mean(), GOLDEN["gmpo.clip"]["loss"])
    assert sums["clipped"] == 2


def test_vespo() -> None:
    _, loss, gradient = evaluate("vespo")
    same(loss, GOLDEN["vespo"]["loss"])
    same((gradient * -5)[:, 0] / torch.tensor([1, -0.5]), GOLDEN["vespo"]["phi"])


def test_losses_that_are_linear_in_the_log_prob() -> None:
    same(evaluate("reinforce")[1], GOLDEN["gpg.token_mean"])
    same(evaluate("dppo_tv")[1], GOLDEN["dppo.loss"]["token_mean"])
    same(evaluate("dro", dro_beta=0.1)[1], GOLDEN["dro"]["token_mean"])
    same(evaluate("sft")[1], -NEW.mean())


def test_dppo_lets_a_rare_token_double_and_stops_a_likely_one() -> None:
    same(padded(NEW.exp() - OLD.exp()), GOLDEN["dppo"]["dp"])
    probability_N = torch.tensor([0.9, 0.02], dtype=torch.float64)
    old_N = torch.tensor([0.5, 0.01], dtype=torch.float64)
    same(probability_N / old_N, GOLDEN["dppo"]["ex_ratio"])
    same(probability_N - old_N, GOLDEN["dppo"]["ex_dp"])
    for sign in (1.0, -1.0):  # a bad token that became likelier is always worth the gradient
        new_N = probability_N.log().requires_grad_()
        tokens = Tokens(old_N.log(), torch.full_like(old_N, sign), torch.arange(2))
        LOSSES["dppo_tv"](new_N, tokens, LossSettings())[0].sum().backward()
        same(new_N.grad, [0, -2.0] if sign > 0 else [1.8, 2.0])


def test_tokens_by_their_covariance() -> None:
    logprobs = torch.tensor([-0.1, -2, -0.5, -3])
    advantages = torch.tensor([1.0, 1, -1, -1])
    same(covariance(logprobs, advantages), GOLDEN["cov"])
    drawn = [clip_cov_tokens(logprobs, advantages, torch.Generator().manual_seed(seed)).tolist() for seed in range(20)]
    assert {tuple(mask) for mask in drawn} == {(True, False, False, False), (False, False, False, True)}
    assert clip_cov_tokens(logprobs, advantages, torch.Generator(), low=2.0).tolist() == [False] * 4
    assert kl_cov_tokens(logprobs, advantages).tolist() == [False, False, False, True]
    assert kl_cov_tokens(logprobs, advantages, 0.5).tolist() == [True, False, False, True]


def test_chosen_tokens_lose_their_gradient_or_are_held_back() -> None:
    tokens = replace(TOKENS, chosen_N=torch.tensor([True, False, False, True, False]))
    plain, _, _ = evaluate("ppo_clip")
    losses, _, gradient = evaluate("clip_cov", tokens=tokens)
    same(losses, plain * ~tokens.chosen_N)
    assert not gradient[:, 0].any() and gradient[:, 1].all()
    losses, _, _ = evaluate("kl_cov", tokens=tokens, kl_cov_coefficient=0.1)
    same(losses, -NEW.sub(OLD).exp() * ADVANTAGES + torch.tensor([0.02, 0, 0, 0, 0]))
    for name in ("clip_cov", "kl_cov"):  # and the objective does not take the others away from them
        assert torch.equal(objective(NEW, tokens, ObjectiveSettings(name))[0], evaluate(name, tokens=tokens)[0])


def test_only_tokens_of_high_entropy_are_trained_and_the_bonus_is_of_all() -> None:
    expected = GOLDEN["entropy.top"]
    entropy_N = flat([[0.1, 2, 0.5], [1.5, 0.05, 9]])
    for share in (0.2, 0.5):
        chosen_N = high_entropy_tokens(entropy_N, share)
        assert torch.equal(chosen_N, entropy_N >= expected[f"thr_{share}".replace("0", "")])
        losses_N, _ = objective(NEW, replace(TOKENS, chosen_N=chosen_N), ObjectiveSettings())
        same(losses_N.mean(), expected[f"loss_{share}".replace("0", "")])
    assert high_entropy_tokens(entropy_N, 1.0).all() and high_entropy_tokens(entropy_N, 1e-9).sum() == 1
    losses_N, _ = objective(NEW, replace(TOKENS, entropy_N=entropy_N), ObjectiveSettings(entropy_coefficient=0.01))
    same(losses_N.mean(), expected["bonus_.01"])
    same(entropy_N.mean(), expected["H"])


def test_a_ratio_compares_log_probs_at_the_temperature_of_sampling() -> None:
    expected = GOLDEN["temperature"]
    logits = torch.tensor([2.0, 1, 0, -1], dtype=torch.float64)
    sampled, plain = (logits / 0.7).log_softmax(-1), logits.log_softmax(-1)
    same(sampled.exp(), expected["p.7"])
    same([plain[1], sampled[1], plain[1] / 0.7], [expected[key] for key in ("logp1", "logp1_.7", "wrong")])
    same(-(sampled.exp() * sampled).sum(), expected["H.7"])
    assert log_ratio(sampled, sampled).abs().max() == 0 and log_ratio(plain, sampled)[1] > 0.25


def test_a_row_without_tokens_counts_only_where_the_denominator_is_constant() -> None:
    expected, rows = GOLDEN["edge.row_masked"], [ROWS[0], RowShape(0, "second", "second")]
    first = Tokens(OLD[:3], ADVANTAGES[:3], TOKENS.sequence_N[:3])
    losses_N, _ = LOSSES["ppo_clip"](NEW[:3], first, LossSettings())
    total = {name: (losses_N * weights_of(name, rows)).sum().item() for name in AGGREGATIONS}
    for name in ("token_mean", "seq_mean_token_mean", "traj_token_mean", "flow_grpo", "row_mean"):
        same(total[name], expected["skip_row"])
    same(total["token_sum_norm"], expected["dr4"])
    same(total["seq_mean_token_sum"], expected["seq_sum"])
    assert abs(total["seq_mean_token_mean"] - expected["divide_by_B"]) > 0.1


def test_the_mean_is_over_the_optimizer_step_and_over_nothing_smaller() -> None:
    tokens, values, expected = [[2, 8], [4, 2]], [[1, -1], [0.5, 2]], GOLDEN["norm"]

    def mean(*places: tuple[int, int]) -> float:
        rows = [RowShape(tokens[rank][micro], (rank, micro), (rank, micro)) for rank, micro in places]
        weights = AGGREGATIONS["token_mean"](rows, LENGTH)
        return sum(
            weight * row.num_tokens * values[rank][micro]
            for weight, row, (rank, micro) in zip(weights, rows, places, strict=True)
        )

    first, second, third, fourth = places = [(rank, micro) for rank in range(2) for micro in range(2)]
    same(mean(*places), expected["global"])
    same(sum(map(mean, places)) / 4, expected["micro_mean"])
    same((mean(first, second) + mean(third, fourth)) / 2, expected["rank_mean"])
    same([mean(first, third), mean(second, fourth)], expected["step_global"])
    weight = AGGREGATIONS["token_mean"]([RowShape(n, n, n) for rank in tokens for n in rank], LENGTH)[0]
    ranks = [2 * weight * sum(n * v for n, v in zip(*rank, strict=True)) for rank in zip(tokens, values, strict=True)]
    same(ranks, expected["rank_sum_over_Ndp"])  # what each of two ranks back-propagates where gradients are averaged


def shapes(episodes, sequences_are_turns: bool = True) -> list[RowShape]:
    return [
        RowShape(num_tokens, episode, (episode, turn) if sequences_are_turns else episode)
        for episode, turns in enumerate(episodes)
        for turn, num_tokens in enumerate(turns)
    ]


def test_how_much_an_episode_of_many_turns_weighs() -> None:
    rows, advantages = shapes([[4, 2, 6, 4], [8], [5, 5], [6]]), [0.5, -0.5, 0.5, -0.5]
    for name, expected in GOLDEN["turn.norm"].items():
        constant = AggregationSettings(length_norm=20)
        weights = AGGREGATIONS[name.replace("const20", "token_sum_norm")](rows, constant)
        each = [0.0] * 4
        for weight, row in zip(weights, rows, strict=True):
            each[row.episode] += weight * row.num_tokens
        same(each, expected["weights"])
        same(-sum(w * a for w, a in zip(each, advantages, strict=True)), expected["loss"])
    for name, expected in GOLDEN["turn.pertoken"].items():
        same(AGGREGATIONS[name](shapes([[2, 6], [4]]), LENGTH), expected)
    per_episode = AGGREGATIONS["seq_mean_token_mean"](shapes([[2, 6], [4]], sequences_are_turns=False), LENGTH)
    same(per_episode, GOLDEN["turn.pertoken"]["traj_token_mean"])
    per_turn = AGGREGATIONS["seq_mean_token_mean"](shapes([[2, 6], [4]]), LENGTH)
    same(per_turn, GOLDEN["turn.pertoken"]["row_mean"])


def test_a_step_without_tokens_has_loss_zero_with_a_live_graph() -> None:
    for aggregation in AGGREGATIONS.values():
        assert aggregation([], LENGTH) == []
        assert aggregation([RowShape(0, 0, 0), RowShape(0, 1, 1)], LENGTH) == [0.0, 0.0]
    none = torch.zeros(0)
    empty = Tokens(none, none, torch.zeros(0, dtype=torch.long), none, none, none, none.bool())
    for loss in LOSSES:
        new_N = torch.zeros(0, requires_grad=True)
        chosen = ObjectiveSettings(loss, correction="token_mask", kl_coefficient=0.1, entropy_coefficient=0.1)
        total = objective(new_N, empty, chosen)[0].sum()
        total.backward()
        assert total == 0 and new_N.grad.shape == (0,)
    assert not len(high_entropy_tokens(none, 0.2)) and not len(kl_cov_tokens(none, none))
    assert not len(clip_cov_tokens(none, none, torch.Generator()))


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"ratio_level": "word"}, "ratio_level = 'word': not one of token, turn"),
        ({"dual_clip": 1.0}, "dual_clip = 1.0"),
        ({"ratio_cap": 1.1}, "ratio_cap = 1.1: must be above 1 \\+ clip_high = 1.28"),
    ],
)
def test_impossible_constants_are_refused(constants, message) -> None:
    with pytest.raises(ValueError, match=message):
        LossSettings(**constants)
    with pytest.raises(ValueError, match="length_norm = 0"):
        AggregationSettings(length_norm=0)
