"""What holds for every loss, whatever the numbers: splits, gradients, bounds, and that a bandit is learnt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_losses import LENGTH, same, shapes, tokens_of
from torch import Tensor

from gruppo.algorithms.aggregations import AGGREGATIONS, RowShape
from gruppo.algorithms.losses import (
    LINEAR_ON_POLICY,
    LOSSES,
    LossSettings,
    ObjectiveSettings,
    kl_cov_tokens,
    objective,
)
from gruppo.algorithms.ratios import RATIOS, Tokens

VARIANTS = [
    *((name, LossSettings()) for name in LOSSES),
    *(("ppo_clip", LossSettings(ratio_level=level)) for level in RATIOS if level != "token"),
    ("ppo_clip", LossSettings(dual_clip=1.5, ratio_cap=1.4)),
    ("cispo", LossSettings(cispo_cap=1.1, cispo_floor=0.9)),
]
LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def batch_of(lengths, seed: int, spread: float = 0.4) -> tuple[Tensor, Tokens]:
    """Random tokens; one advantage per sequence."""
    draw, total = torch.Generator().manual_seed(seed), sum(lengths)
    new_N, noise_N, reference_N, sampled_N = torch.randn(4, total, generator=draw, dtype=torch.float64)
    sequence_N = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    advantages_N = torch.randn(len(lengths), generator=draw, dtype=torch.float64)[sequence_N]
    old_N = new_N.sub(2) + spread * noise_N
    chosen_N = torch.rand(total, generator=draw) < 0.3
    return new_N - 2, Tokens(
        old_N, advantages_N, sequence_N, old_N + spread * sampled_N, reference_N - 2, None, chosen_N
    )


def part_of(tokens: Tokens, place_N: Tensor) -> Tokens:
    """The tokens at some places, their sequences renumbered, as another microbatch would hold them."""
    given = {name: value for name, value in vars(tokens).items() if value is not None}
    cut = {name: value[place_N] for name, value in given.items()}
    return replace(tokens, **cut | {"sequence_N": cut["sequence_N"].unique(return_inverse=True)[1]})


def gradient_of(loss, new_N: Tensor, tokens: Tokens, constants: LossSettings) -> Tensor:
    leaf_N = new_N.clone().requires_grad_()
    return torch.autograd.grad(LOSSES[loss](leaf_N, tokens, constants)[0].sum(), leaf_N)[0]


@given(LENGTHS, st.integers(0, 99), st.sampled_from(VARIANTS), st.sampled_from(sorted(AGGREGATIONS)), st.data())
@settings(deadline=None, max_examples=150)
def test_loss_and_gradient_are_the_same_however_the_step_is_split(lengths, seed, variant, aggregation, data) -> None:
    new_N, tokens = batch_of(lengths, seed)
    order = data.draw(st.permutations(range(len(lengths))))
    micro = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths))))
    weights = AGGREGATIONS[aggregation]([RowShape(n, k // 2, k) for k, n in enumerate(lengths)], LENGTH)
    weights_N = torch.tensor(weights, dtype=torch.float64)[tokens.sequence_N]
    chosen = ObjectiveSettings(variant[0], variant[1], "sequence_mask", kl_coefficient=0.1)

    def total(*places_N: Tensor) -> tuple[Tensor, Tensor]:
        leaf_N = new_N.clone().requires_grad_()
        parts = [(objective(leaf_N[own], part_of(tokens, own), chosen)[0] * weights_N[own]).sum() for own in places_N]
        return sum(parts).detach(), torch.autograd.grad(sum(parts), leaf_N)[0]

    shuffled_N = torch.cat([(tokens.sequence_N == sequence).nonzero()[:, 0] for sequence in order])
    split = [shuffled_N[micro[tokens.sequence_N[shuffled_N]] == number] for number in range(3)]
    whole = total(torch.arange(sum(lengths)))
    for found, expected in zip(total(*split), whole, strict=True):
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "constants"), VARIANTS)
def test_the_first_update_follows_the_policy_gradient(name, constants) -> None:
    new_N, tokens = batch_of([3, 1, 4], seed=1)
    tokens = replace(tokens, old_N=new_N)
    gradient_N = gradient_of(name, new_N, tokens, constants)
    if name == "clip_cov":
        assert torch.equal(gradient_N, -tokens.advantages_N.masked_fill(tokens.chosen_N, 0))
    elif name == "sft":
        assert torch.equal(gradient_N, -torch.ones_like(new_N))
    elif constants.ratio_level == "sequence_sum":  # every token of a sequence holds the ratio of all of them
        lengths_N = torch.tensor([3, 3, 3, 1, 4, 4, 4, 4])
        assert torch.allclose(gradient_N, -tokens.advantages_N * lengths_N)
    else:
        assert torch.allclose(gradient_N, -tokens.advantages_N)


@pytest.mark.parametrize("name", sorted(LINEAR_ON_POLICY))
def test_linear_losses_sum_over_advantages_of_equal_rows(name) -> None:
    new_N, tokens = batch_of([2, 3], seed=2)
    tokens, settings_ = replace(tokens, old_N=new_N), LossSettings()
    parts = [
        gradient_of(name, new_N, replace(tokens, advantages_N=tokens.advantages_N * c), settings_) for c in (2, -5)
    ]
    merged = gradient_of(name, new_N, replace(tokens, advantages_N=tokens.advantages_N * -3), settings_)
    assert torch.allclose(sum(parts), merged)


@contextmanager
def frozen(values: list[Tensor], replay: bool) -> Iterator[None]:
    """Records what is detached, or gives back what was: a stopped gradient is a constant to finite differences."""
    original, queue = Tensor.detach, iter(list(values))

    def detach(tensor: Tensor) -> Tensor:
        if not replay:
            values.append(original(tensor).clone())
        return next(queue) if replay else values[-1]

    Tensor.detach = detach
    try:
        yield
    finally:
        Tensor.detach = original


@pytest.mark.parametrize(("name", "constants"), VARIANTS)
@pytest.mark.parametrize("estimator", ["k3", "k3+", "k3_ratio"])
def test_gradients_match_finite_differences(name, constants, estimator) -> None:
    new_N, tokens = batch_of([3, 2, 4], seed=3)
    chosen = ObjectiveSettings(name, constants, "token_truncate", kl_estimator=estimator, kl_coefficient=0.3)
    values: list[Tensor] = []
    with frozen(values, replay=False):
        objective(new_N, tokens, chosen)

    def losses(leaf_N: Tensor) -> Tensor:
        with frozen(values, replay=True):
            return objective(leaf_N, tokens, chosen)[0]

    assert torch.autograd.gradcheck(losses, new_N.requires_grad_(), rtol=1e-6, atol=1e-7)


def test_outside_the_bounds_ppo_has_no_gradient_and_cispo_has_one() -> None:
    outside = [(1.5, 1), (0.5, -1)]
    for (ratio, advantage), silent in [*((case, True) for case in outside), ((1.5, -1), False), ((0.5, 1), False)]:
        new_N, tokens = tokens_of([torch.tensor(ratio).log().item()], [advantage], [0])
        assert bool(gradient_of("ppo_clip", new_N, tokens, LossSettings())[0] == 0) == silent
        same(gradient_of("cispo", new_N, tokens, LossSettings()), [-ratio * advantage])


@given(LENGTHS, st.integers(0, 99))
@settings(deadline=None)
def test_gspo_is_ppo_where_all_tokens_of_a_sequence_moved_alike(lengths, seed) -> None:
    new_N, tokens = batch_of(lengths, seed)
    moved_N = torch.linspace(-0.5, 0.5, len(lengths), dtype=torch.float64)[tokens.sequence_N]
    tokens = replace(tokens, old_N=new_N - moved_N)
    by_token, by_sequence = (
        LOSSES["ppo_clip"](new_N, tokens, LossSettings(level))[0] for level in ("token", "sequence")
    )
    assert torch.allclose(by_token, by_sequence)
    gradients = [gradient_of("ppo_clip", new_N, tokens, LossSettings(level)) for level in ("token", "sequence")]
    assert torch.allclose(*gradients)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_with_one_turn_per_episode_all_means_of_means_are_one(lengths) -> None:
    rows = shapes([[n] for n in lengths])
    names = ("flow_grpo", "row_mean", "traj_token_mean", "seq_mean_token_mean")
    found = [AGGREGATIONS[name](rows, LENGTH) for name in names]
    assert all(weights == pytest.approx(found[0]) for weights in found)
    assert sum(w * n for w, n in zip(found[0], lengths, strict=True)) == pytest.approx(float(any(lengths)))


@pytest.mark.parametrize("name", LOSSES)
def test_a_token_that_moved_absurdly_far_breaks_nothing(name) -> None:
    new_N = torch.tensor([-200.0, -0.1, -1], requires_grad=True)
    tokens = Tokens(
        torch.tensor([-0.1, -200, -1]), torch.tensor([1.0, -1, 1]), torch.tensor([0, 1, 2]),
        chosen_N=torch.tensor([False, True, False]),
    )  # fmt: skip
    losses_N, sums = LOSSES[name](new_N, tokens, LossSettings())
    losses_N.sum().backward()
    assert losses_N.isfinite().all() and new_N.grad.isfinite().all()
    assert all(value.isfinite() and not value.requires_grad for value in sums.values())


@pytest.mark.parametrize(("name", "constants"), [variant for variant in VARIANTS if variant[0] != "sft"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_bandit_is_learnt_and_unlearnt_with_the_sign_of_the_advantage(name, constants, sign) -> None:
    values, draw = torch.tensor([0.1, 0.3, 0.2, 0.9]), torch.Generator().manual_seed(0)
    logits = torch.zeros(4, requires_grad=True)
    before = (logits.softmax(-1) @ values).item()
    for _ in range(20):
        arm_N = torch.multinomial(logits.detach().softmax(-1), 64, replacement=True, generator=draw)
        returns_S = values[arm_N].view(32, 2).sum(-1)  # a sequence is two pulls
        advantages_N = sign * (returns_S - returns_S.mean()).repeat_interleave(2)
        old_N = logits.detach().log_softmax(-1)[arm_N]
        chosen_N = kl_cov_tokens(old_N, advantages_N, 0.1)
        tokens = Tokens(old_N, advantages_N, torch.arange(32).repeat_interleave(2), chosen_N=chosen_N)
        for _ in range(2):
            losses_N, _ = LOSSES[name](logits.log_softmax(-1)[arm_N], tokens, constants)
            (gradient,) = torch.autograd.grad(losses_N.mean(), logits)
            logits.data -= 1.0 * gradient
    assert sign * ((logits.softmax(-1) @ values).item() - before) > 0.1
