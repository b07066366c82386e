"""Corrections for a sampler that is not the learner, against worked numbers, and what must hold for any numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_losses import ADVANTAGES, GOLDEN, NEW, OLD, TOKENS, flat, padded, same
from torch import Tensor

from gruppo.algorithms.corrections import (
    CORRECTIONS,
    CorrectionSettings,
    correction_weights,
    mismatch_metrics,
    mismatch_sums,
    on_policy_enough,
)
from gruppo.algorithms.losses import LOSSES, LossSettings, ObjectiveSettings, objective
from gruppo.algorithms.ratios import Tokens

SMALL = replace(TOKENS, sampled_N=flat(GOLDEN["F2"]["roll"]))
BIG = replace(TOKENS, sampled_N=flat([[-2.4, -0.5, -0.6], [-0.75, -3.1, -1]]))
INFINITE = CorrectionSettings(high=math.inf)


def weights_of(name: str, tokens: Tokens, bounds: CorrectionSettings = INFINITE) -> Tensor:
    return correction_weights(name, tokens, bounds)[0]


def total(correction: str, tokens: Tokens, **bounds) -> float:
    """The example's loss at token mean; what is rejected stays in the denominator."""
    chosen = ObjectiveSettings(correction=correction, bounds=CorrectionSettings(**bounds))
    return objective(NEW, tokens, chosen)[0].mean().item()


@pytest.mark.parametrize(("tokens", "case"), [(SMALL, "is.small"), (BIG, "is.big")])
def test_weights_of_tokens_and_sequences(tokens, case) -> None:
    same(padded(weights_of("token_truncate", tokens)), GOLDEN[case]["token"])
    same(weights_of("token_mask", tokens), weights_of("token_truncate", tokens))
    same(weights_of("sequence_truncate", tokens)[[0, 3]], GOLDEN[case]["seq"])
    low, high = sorted(GOLDEN[case]["geo"])  # it shows only in where a window may end
    for edge, kept in ((1.00001, [1, 1]), (0.99999, [0, 0] if case == "is.small" else [1, 0])):
        window = CorrectionSettings(low=min(1.0, low / edge), high=max(1.0, high * edge))
        assert weights_of("geometric_mask", tokens, window)[[0, 3]].tolist() == kept


@pytest.mark.parametrize(
    ("case", "correction", "low", "high"),
    [
        ("tt2", "token_truncate", 0, 2),
        ("tt3", "token_truncate", 0, 3),
        ("tm3", "token_mask", 0, 3),
        ("ice.5_5", "token_mask", 0.5, 5),
        ("ice.5_2", "token_mask", 0.5, 2),
        ("st3", "sequence_truncate", 0, 3),
        ("sm3", "sequence_mask", 0, 3),
        ("seqmask_tis", "geometric_mask_weighted", 0.5, 5),
        ("geo_strict", "geometric_mask", 0.99, 1.01),
    ],
)
def test_corrected_losses(case, correction, low, high) -> None:
    same(total(correction, BIG, low=low, high=high), GOLDEN["is.big"][case])
    same(total("off", BIG, low=low, high=high), GOLDEN["loss.high"]["token_mean"])


def test_mismatch_is_measured_per_token_and_per_sequence_and_adds_up_over_microbatches() -> None:
    found, expected = mismatch_metrics(mismatch_sums(SMALL)), GOLDEN["is.small"]
    names = {"mismatch": "mean_abs", "mismatch_k1": "k1", "mismatch_k3": "k3", "chi2_sequence": "chi2_seq"}
    assert set(found) == {*names, "chi2_token", "ess"}
    for name, value in found.items():
        same(value, expected[names.get(name, name)])
    parts = [replace(SMALL, **{name: value[cut] for name, value in vars(SMALL).items() if value is not None})
             for cut in (slice(0, 3), slice(3, 5))]  # fmt: skip
    parts[1] = replace(parts[1], sequence_N=parts[1].sequence_N - 1)
    sums = [mismatch_sums(part) for part in parts]
    added = mismatch_metrics({name: sum(part[name] for part in sums) for name in sums[0]})
    assert all(torch.allclose(torch.as_tensor(added[name]), torch.as_tensor(found[name])) for name in found)
    assert mismatch_metrics(mismatch_sums(TOKENS)) == {}  # no sampler spoke


def test_a_token_of_which_the_sampler_said_nothing_weighs_one() -> None:
    tokens = replace(BIG, sampled_N=torch.where(torch.arange(5) == 0, torch.nan, BIG.sampled_N))
    weights_N, sums = correction_weights("token_truncate", tokens, CorrectionSettings(high=3))
    same(weights_N[:3], GOLDEN["is.nan"]["token"])
    same(weights_of("sequence_truncate", tokens)[0], GOLDEN["is.nan"]["seq"])
    assert (sums["unknown"], sums["infinite"], sums["rejected"]) == (1, 0, 0)
    assert mismatch_sums(tokens)["known"] == 4


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize(("old", "sampled"), [(-1, -math.inf), (-1, math.inf), (-math.inf, -1), (-math.inf, math.nan)])
@pytest.mark.parametrize("loss", ["ppo_clip", "reinforce", "cispo", "sapo", "dro"])
def test_a_token_with_an_infinite_log_prob_is_rejected_and_counted(name, old, sampled, loss) -> None:
    first = torch.arange(5) == 0
    tokens = replace(SMALL, old_N=torch.where(first, old, OLD), sampled_N=torch.where(first, sampled, SMALL.sampled_N))
    # On the first update the new log-prob is the same infinity.
    new_N = torch.where(first, float(old), NEW).requires_grad_()
    losses_N, sums = objective(new_N, tokens, ObjectiveSettings(loss, correction=name))
    losses_N.sum().backward()
    assert losses_N[0] == 0 and new_N.grad[0] == 0 and losses_N.isfinite().all() and new_N.grad.isfinite().all()
    assert losses_N[1:].all() and sums["infinite"] == 1 == sums["rejected"] and sums["unknown"] == 0


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_perfect_sampler_needs_no_correction(name) -> None:
    for low, high in ((0.5, 2), (1, 1)):
        assert total(name, replace(TOKENS, sampled_N=OLD), low=low, high=high) == total("off", TOKENS)


@pytest.mark.parametrize("name", CORRECTIONS)
@given(st.lists(st.tuples(st.floats(-60, 0), st.floats(-60, 0)), min_size=1, max_size=9), st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_weights_are_finite_without_gradient_and_within_their_bounds(name, pairs, length) -> None:
    old_N, sampled_N = torch.tensor(pairs, dtype=torch.float64).T.contiguous()
    tokens = Tokens(old_N.clone().requires_grad_(), old_N, torch.arange(len(old_N)) // length, sampled_N)
    weights_N = weights_of(name, tokens, CorrectionSettings(low=0.5, high=2))
    assert not weights_N.requires_grad and weights_N.isfinite().all() and (weights_N >= 0).all()
    if name != "geometric_mask_weighted":
        assert (weights_N <= 2).all()
    if name.endswith("mask"):
        assert ((weights_N == 0) | (weights_N >= 0.5)).all()
    if name in ("sequence_truncate", "sequence_mask", "geometric_mask"):
        assert all(weights_N[i] == weights_N[i // length * length] for i in range(len(weights_N)))


def test_decoupled_ppo_is_the_tokens_weight_without_a_bound() -> None:
    chosen = ObjectiveSettings(correction="token_truncate", bounds=INFINITE)
    losses_N, _ = objective(NEW, SMALL, chosen)
    same(padded(losses_N), GOLDEN["decoupled"]["token"])
    same(losses_N.mean(), GOLDEN["decoupled"]["loss"])
    # Where the proximal policy is the one that sampled, it is plain PPO.
    bypass = replace(TOKENS, old_N=SMALL.sampled_N, sampled_N=SMALL.sampled_N)
    plain_N, sums = LOSSES["ppo_clip"](NEW, bypass, LossSettings())
    assert torch.equal(objective(NEW, bypass, chosen)[0], plain_N)
    same(plain_N.mean(), GOLDEN["decoupled"]["bypass"])
    same(sums["ratio"], sum(map(sum, GOLDEN["decoupled"]["bypass_ratio"])))


def test_bad_sequences_that_drifted_too_far_are_dropped() -> None:
    same([(OLD - NEW)[:3].mean(), (OLD - NEW)[3:].mean()], GOLDEN["opsm"]["mean_kl"])
    for limit in (0.05, 0.2):
        same(total("off", TOKENS, off_policy_mask=limit), GOLDEN["opsm"][f"loss_{limit}".replace("0.", ".")])
    assert on_policy_enough(NEW, TOKENS, 0.05).tolist() == [True] * 3 + [False] * 2
    assert on_policy_enough(NEW, replace(TOKENS, advantages_N=-ADVANTAGES), 0.05).tolist() == [False] * 3 + [True] * 2
    # The sampler's log-probs are what the sequence was drawn from; where they are unknown, the old ones.
    nearer = replace(TOKENS, sampled_N=torch.tensor([math.nan] * 3 + [-0.7, -1.2]))
    assert on_policy_enough(NEW, nearer, 0.05).all()
    assert (
        on_policy_enough(NEW, replace(nearer, sampled_N=nearer.sampled_N + 0.1), 0.05).tolist()
        == [True] * 3 + [False] * 2
    )


def test_what_cannot_be_corrected_is_refused() -> None:
    with pytest.raises(ValueError, match="correction = 'token_mask' needs the sampler's log-probs"):
        correction_weights("token_mask", TOKENS, INFINITE)
    for bounds in ({"high": 0.9}, {"low": 1.1}, {"low": -0.1}):
        with pytest.raises(ValueError, match="must lie between"):
            CorrectionSettings(**bounds)
