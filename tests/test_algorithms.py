"""Advantages, losses and batching against worked numbers, and the properties that must hold for any numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gruppo.algorithms.advantages import centred, grpo, has_signal, role_advantages
from gruppo.algorithms.batching import Pack, Row, collate, merge, microbatches, rows_of
from gruppo.algorithms.losses import k3, negative_logprob, ppo_clip, token_mean
from gruppo.types import Episode, Group, Sampling, StopReason, Task, Turn

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=12)
MASK = torch.tensor([[True, True, True], [True, True, False]])
NEW = torch.tensor([[-1, -0.5, -2], [-0.7, -1.2, -0.3]], dtype=torch.float64)
OLD = torch.tensor([[-1.2, -0.6, -1.5], [-0.7, -1, -0.9]], dtype=torch.float64)
REFERENCE = torch.tensor([[-1.1, -0.4, -1.8], [-0.9, -1.1, -0.5]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[1.0], [-0.5]], dtype=torch.float64).expand(2, 3)


def test_grpo_matches_the_reference_values() -> None:
    assert grpo([1, 1, 0, 0.8]) == pytest.approx([0.630125, 0.630125, -1.470291, 0.210042], abs=2e-6)
    assert grpo([1, 1, 0, 0.8], epsilon=1e-4) == pytest.approx([0.629994, 0.629994, -1.469985, 0.209998], abs=2e-6)
    assert grpo([0, 0.001, 0, 0]) == pytest.approx([-0.499002, 1.497006, -0.499002, -0.499002], abs=2e-6)
    assert centred([1, 1, 0, 0.8]) == pytest.approx([0.3, 0.3, -0.7, 0.1])


@pytest.mark.parametrize("advantage", [grpo, centred])
def test_equal_rewards_and_single_members_give_exactly_zero(advantage) -> None:
    residue = [0.1 + 0.2, 0.3, 0.3]  # equal but for rounding
    for rewards in ([0.95] * 8, residue, [0.7], []):
        assert advantage(rewards) == [0.0] * len(rewards)


@given(REWARDS, st.floats(-5, 5), st.randoms())
def test_advantages_sum_to_zero_ignore_shifts_and_follow_permutations(rewards, shift, random) -> None:
    for advantage in (grpo, centred):
        values = advantage(rewards)
        assert sum(values) == pytest.approx(0, abs=1e-6)
        moved = [reward + shift for reward in rewards]
        if has_signal(rewards) and max(rewards) - min(rewards) > 1e-3:
            assert advantage(moved) == pytest.approx(values, abs=1e-4)
        order = random.sample(range(len(rewards)), len(rewards))
        assert advantage([rewards[i] for i in order]) == pytest.approx([values[i] for i in order], abs=1e-9)


def turn(role: str, policy: str | None = "p", ids: tuple[int, ...] = (1, 2)) -> Turn:
    logprobs = (-0.5,) * len(ids)
    return Turn(role, policy, 0, "", (7, 8, 9), ids, logprobs, Sampling(), StopReason.stop, "")


def group(rewards, turns_each, roles=("planner",)) -> Group:
    episodes = []
    for attempt, (reward, count) in enumerate(zip(rewards, turns_each, strict=True)):
        turns = [turn(role) for role in roles for _ in range(count)]
        episodes.append(Episode("t", "g", attempt, 0, turns=turns, reward=reward))
    return Group("g", Task("t", "q", "r"), episodes)


def test_statistics_are_per_episode_whatever_the_number_of_turns() -> None:
    found = role_advantages([group([1, 0, 1, 0], [4, 1, 2, 1])], "planner", grpo)
    assert [found["g", i] for i in range(4)] == pytest.approx([0.866024, -0.866024, 0.866024, -0.866024], abs=2e-6)


def test_a_role_is_compared_over_the_episodes_in_which_it_acted() -> None:
    mixed = group([1, 0, 1, 0], [1, 1, 1, 1])
    for attempt in (0, 1, 3):
        mixed.episodes[attempt].turns.append(turn("searcher"))
    found = role_advantages([mixed], "searcher", grpo)
    assert set(found) == {("g", 0), ("g", 1), ("g", 3)}
    assert [found["g", i] for i in (0, 1, 3)] == pytest.approx([1.154701, -0.57735, -0.57735], abs=3e-6)


def test_unscorable_episodes_are_left_out_and_groups_without_signal_are_absent() -> None:
    found = role_advantages([group([1, None, 0, 0.8], [1, 1, 1, 1])], "planner", lambda r: grpo(r, epsilon=1e-4))
    assert [found["g", i] for i in (0, 2, 3)] == pytest.approx([0.755786, -1.133679, 0.377893], abs=2e-6)
    assert role_advantages([group([1, 1, 1], [1, 1, 1])], "planner", grpo) == {}
    assert role_advantages([group([1, None], [1, 1])], "planner", grpo) == {}


def test_a_role_with_its_own_reward_is_trained_on_that() -> None:
    own = group([1, 0], [1, 1])
    own.episodes[0].rewards, own.episodes[1].rewards = {"planner": 0.0}, {"planner": 1.0}
    found = role_advantages([own], "planner", centred)
    assert found == {("g", 0): -0.5, ("g", 1): 0.5}


@pytest.mark.parametrize(("high", "loss"), [(0.2, -0.400467), (0.28, -0.404748)])
def test_ppo_clip_matches_the_reference_values(high, loss) -> None:
    losses, _ = ppo_clip(NEW, OLD, ADVANTAGES, MASK, 0.2, high)
    assert token_mean(losses, 5).item() == pytest.approx(loss, abs=2e-6)


def test_ppo_clip_gradients_and_clip_share() -> None:
    new = NEW.clone().requires_grad_()
    losses, sums = ppo_clip(new, OLD, ADVANTAGES, MASK, 0.2, 0.2)
    token_mean(losses, 5).backward()
    expected = [[0, -0.221034, -0.121306], [0.1, 0.081873, 0]]
    assert torch.allclose(new.grad, torch.tensor(expected, dtype=torch.float64), atol=2e-6)
    assert sums["clipped"].item() / 5 == pytest.approx(0.2)
    assert sums["kl_old"].item() / 5 == pytest.approx(0.08)


def test_on_policy_gradient_is_reinforce() -> None:
    new = NEW.clone().requires_grad_()
    losses, _ = ppo_clip(new, new.detach(), ADVANTAGES, MASK, 0.2, 0.28)
    token_mean(losses, 5).backward()
    assert torch.allclose(new.grad, -torch.where(MASK, ADVANTAGES, 0.0) / 5)


def test_k3_matches_the_reference_values_and_is_never_negative() -> None:
    found = k3(NEW, REFERENCE, MASK)
    expected = [[0.00483742, 0.00517092, 0.021403], [0.018731, 0.00517092, 0]]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=2e-6)
    assert (k3(torch.randn(4, 5), torch.randn(4, 5), torch.ones(4, 5, dtype=torch.bool)) >= 0).all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_nothing_under_the_mask_reaches_loss_or_gradient(poison) -> None:
    def gradient(new, old, advantages, reference):
        leaf = new.clone().requires_grad_()
        losses, _ = ppo_clip(leaf, old, advantages, MASK, 0.2, 0.28)
        (token_mean(losses + 0.1 * k3(leaf, reference, MASK), 5)).backward()
        return losses.detach(), leaf.grad

    clean = gradient(NEW, OLD, ADVANTAGES, REFERENCE)
    dirty = [tensor.clone() for tensor in (NEW, OLD, ADVANTAGES, REFERENCE)]
    for tensor in dirty:
        tensor[1, 2] = poison
    losses, grad = gradient(*dirty)
    assert torch.equal(losses, clean[0]) and torch.equal(grad, clean[1])


def test_losses_match_finite_differences() -> None:
    def total(new):
        losses, _ = ppo_clip(new, OLD, ADVANTAGES, MASK, 0.2, 0.28)
        return token_mean(losses + 0.04 * k3(new, REFERENCE, MASK) + negative_logprob(new, MASK), 5)

    assert torch.autograd.gradcheck(total, NEW.clone().requires_grad_(), rtol=1e-6)


# ---- batching --------------------------------------------------------------------------------------------------------


def rows(*specs: tuple[int, int]) -> list[Row]:
    return [Row(tuple(range(p)), tuple(range(100, 100 + a)), (-1.0,) * a, advantage=a / 3) for p, a in specs]


def test_collate_puts_predictors_at_the_right_edge_and_masks_by_length() -> None:
    packs = [Pack.of([Row((5, 6), (7, 0), (-1.0, -2.0))]), Pack.of([Row((5,), (0, 0, 0), (-3.0,) * 3)])]
    batch = collate(packs, pad_id=0)
    assert batch.ids_BS.tolist() == [[5, 6, 7], [5, 0, 0]]  # the last id predicts nothing
    assert batch.num_predictors == 3
    assert batch.predictors_BT.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert batch.labels_BT.tolist() == [[0, 7, 0], [0, 0, 0]]
    assert batch.mask_BT.tolist() == [[False, True, True], [True, True, True]]
    assert batch.sampled_logprobs_BT.tolist() == [[0, -1, -2], [-3, -3, -3]]
    assert batch.positions_BS.tolist() == [[0, 1, 2], [0, 1, 2]]
    short = collate([Pack.of([Row((5, 6, 7), (1,), (-1.0,))]), Pack.of([Row((5,), (1,), (-1.0,))])], pad_id=0)
    assert short.attention.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert short.positions_BS.tolist() == [[0, 1, 2], [0, 0, 0]]


def test_rows_that_begin_alike_share_a_tree_in_which_no_action_sees_another() -> None:
    pack = Pack.of([Row((5, 6), (7, 8, 2), (-1.0, -2.0, -5.0), 1.0), Row((5, 6), (9,), (-3.0,), -2.0)])
    batch = collate([pack, Pack.of([Row((4,), (3, 2), (-4.0, -6.0))])], pad_id=0)
    assert batch.ids_BS.tolist() == [[5, 6, 7, 8], [0, 0, 4, 3]]
    assert batch.positions_BS.tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]
    assert batch.num_predictors == 3
    assert batch.predictors_BT.tolist() == [[0, 1, 2, 0], [0, 0, 1, 2]]
    assert batch.labels_BT.tolist() == [[7, 8, 2, 9], [0, 0, 3, 2]]
    assert batch.advantages_BT.tolist() == [[1, 1, 1, -2], [0, 0, 1, 1]]
    sees = batch.attention[:, 0] == 0
    assert sees[0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert sees[1, 3].int().tolist() == [0, 0, 1, 1]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 10)), min_size=1, max_size=30), st.integers(1, 200))
def test_microbatches_keep_every_row_once_within_the_budget(specs, budget) -> None:
    for share in (False, True):
        parts = microbatches(rows(*specs), budget, share)
        kept = [row for part in parts for pack in part for row in pack.rows]
        assert sorted(row.num_tokens for row in kept) == sorted(p + a for p, a in specs)
        for part in parts:
            assert len(part) == 1 or len(part) * max(len(pack.tree) for pack in part) <= budget


def test_merge_sums_advantages_of_equal_rows_and_drops_what_cancels() -> None:
    a, b = Row((1,), (2,), (-0.1,), 1.0), Row((1,), (3,), (-0.2,), -0.5)
    merged = merge([a, b, a, Row((1,), (3,), (-0.2,), 0.5)])
    assert [(row.action_ids, row.advantage) for row in merged] == [((2,), 2.0)]


def test_rows_go_to_the_policy_that_sampled_them() -> None:
    mixed = group([1, 0], [1, 1])
    mixed.episodes[0].turns += [turn("writer", None), turn("executor", "q"), turn("planner", "p", ids=())]
    advantages = {role: role_advantages([mixed], role, centred) for role in ("planner", "executor")}
    assert len(rows_of([mixed], "p", advantages)) == 2
    assert len(rows_of([mixed], "q", advantages)) == 0  # it acted in one episode only: no baseline, no row
    assert rows_of([mixed], "p", {}) == []
