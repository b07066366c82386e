"""Small things that other trainers got wrong and no other test would notice: see `benchmarks/mutations.py`."""

from __future__ import annotations

import math

import pytest
import torch

from gruppo.algorithms import AlgorithmConfig
from gruppo.algorithms.advantages import grpo
from gruppo.algorithms.batching import Pack, Row, collate, rows_of
from gruppo.algorithms.losses import LossSettings, ObjectiveSettings, objective
from gruppo.algorithms.ratios import Tokens
from gruppo.training.learner import Learner
from gruppo.training.model import ModelConfig, PolicyConfig
from gruppo.training.sampling import passes
from gruppo.training.update import Coefficients, Step, can_merge
from gruppo.types import Credit, Episode, Group, Sampling, StopReason, Task, Turn


def turn(prompt_ids: tuple[int, ...], action_ids: tuple[int, ...]) -> Turn:
    logprobs = (-1.0,) * len(action_ids)
    return Turn("p", "p", 0, "", prompt_ids, action_ids, logprobs, Sampling(), StopReason.stop, "")


def group_of(*episodes: list[Turn]) -> Group:
    found = [Episode("t", "g", attempt, 0, turns=turns, reward=1.0) for attempt, turns in enumerate(episodes)]
    for episode in found:
        episode.credits = [Credit(1.0, 1.0, 0.8) for _ in episode.turns]
    return Group("g", Task("t", "q", "r"), found)


def test_groups_are_filtered_by_the_raw_reward_whatever_length_costs() -> None:
    group = group_of([turn((1,), (2,))], [turn((1,), (2, 3, 4)), turn((1,), (2,))])
    group.episodes[0].credits = [Credit(shaped=0.9, return_=0.9)]
    assert [episode.num_tokens for episode in group.episodes] == [{"p": 1}, {"p": 4}]
    assert not passes(group, AlgorithmConfig(filter_groups="zero_std", truncated="soft_overlong"))
    assert not passes(group, AlgorithmConfig(filter_groups="range"))
    group.episodes[1].reward = 0.5
    assert passes(group, AlgorithmConfig(filter_groups="zero_std"))
    assert passes(group, AlgorithmConfig(filter_groups="range", filter_low=0.7))


def test_rewards_of_any_size_have_an_exact_spread() -> None:
    base = 1e9  # the square of a reward, not the reward, has more digits than a float
    assert grpo([base + 3000, base, base, base + 2000]) == pytest.approx(grpo([3000.0, 0, 0, 2000]), rel=1e-12)


def test_only_sampled_tokens_are_trained_and_an_empty_action_is_no_row() -> None:
    first, second = turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5), (6,))
    rows = rows_of([group_of([first, second, turn((1,), ())])], "p")
    assert [(row.prompt_ids, row.action_ids, len(row.sampled)) for row in rows] == [
        ((1, 2), (3, 4), 2),
        ((1, 2, 3, 4, 5), (6,), 1),
    ]


def test_advantages_are_not_rounded_on_their_way_to_the_loss() -> None:
    batch = collate([Pack.of([Row((1,), (2, 3), advantage=0.8, weight=0.1)])], pad_id=0)
    assert torch.equal(batch.advantages_N, torch.tensor([0.8, 0.8]))
    assert torch.equal(batch.weights_N, torch.tensor([0.1, 0.1]))


def test_no_layer_of_a_learner_is_in_training_mode() -> None:
    learner = Learner(ModelConfig(threads=1), {"p": PolicyConfig(rank=1)}, seed=0)
    assert not [name for name, module in learner.model.named_modules() if module.training]


@pytest.mark.parametrize("terms", [{"kl_coefficient": 0.1}, {"entropy_coefficient": 0.1}, {"off_policy_mask": 0.5}])
def test_rows_are_merged_only_if_nothing_but_the_advantage_pulls(terms) -> None:
    def step(algorithm: AlgorithmConfig) -> Step:
        return Step(algorithm, Coefficients(algorithm.kl_coefficient, algorithm.entropy_coefficient), 1.0, 1.0, 1)

    assert can_merge(step(AlgorithmConfig())) and not can_merge(step(AlgorithmConfig(**terms)))


@pytest.mark.parametrize("bounds", [{"clip_low": 3.0}, {"clip_low": 0.0}, {"clip_high": -0.2}])
def test_a_bound_that_bounds_nothing_is_refused(bounds) -> None:
    with pytest.raises(ValueError, match=next(iter(bounds))):
        AlgorithmConfig(**bounds)


@pytest.mark.parametrize(("loss", "level"), [("ppo_clip", "sequence"), ("cispo", "turn"), ("gmpo", "token")])
def test_losses_of_sequences_are_corrected_too(loss: str, level: str) -> None:
    new_N = torch.tensor([-1.0, -2.0, -0.5])
    off = ObjectiveSettings(loss, LossSettings(level))
    sampled_N = new_N - torch.tensor([0.5, 0.5, 0.0]).log()
    tokens = Tokens(new_N, torch.tensor([1.0, 1.0, -1.0]), torch.tensor([0, 0, 1]), sampled_N)
    corrected = ObjectiveSettings(loss, LossSettings(level), "token_truncate")
    plain_N, weighted_N = (objective(new_N, tokens, settings)[0] for settings in (off, corrected))
    assert torch.allclose(weighted_N, plain_N * torch.tensor([0.5, 0.5, 2.0]))


def test_what_is_rejected_is_gone_even_where_its_loss_is_not_a_number() -> None:
    new_N = torch.tensor([math.nan, -math.inf, -1.0])
    tokens = Tokens(torch.tensor([-math.inf, -math.inf, -1.0]), torch.ones(3), torch.tensor([0, 1, 2]), new_N)
    losses_N, _ = objective(new_N, tokens, ObjectiveSettings("reinforce", correction="token_mask"))
    assert losses_N.tolist() == [0.0, 0.0, 1.0]
