"""Every constant of the losses and advantages can be set by a key, and every such key has an effect."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from gruppo.algorithms import ADVANTAGES, AlgorithmConfig
from gruppo.algorithms.advantages import GroupReturns
from gruppo.algorithms.batching import Row
from gruppo.algorithms.losses import LossSettings, objective
from gruppo.algorithms.ratios import Tokens
from gruppo.training.update import Coefficients, Step, chosen

NEW = torch.tensor([-0.4, -1.5, -2.6, -0.7, -2.0, -0.3])  # two sequences of three tokens, moved both ways
OLD = torch.tensor([-1.2, -0.6, -1.5, -0.9, -1.0, -1.1])
SAMPLED = OLD + torch.tensor([0.3, -0.2, -0.3, -0.8, 0.05, 0.9])
GROUPS = [
    GroupReturns("a", [1, 1, 0, 0.8], [3, 1, 2, 2], {"x": (1.0, [1, 1, 0, 0.8])}, 0.5, 0.25),
    GroupReturns("b", [0, 0.5, 0.25], [1, 4, 1], {"x": (1.0, [0, 0.5, 0.25])}, 0.125, 0.25),
    GroupReturns("c", [1, 1], [2, 2], {"x": (1.0, [1, 1])}, 1.0, 0.25),
]
VESPO = [f"vespo_{name}_{sign}" for name in ("k", "lambda") for sign in ("positive", "negative")]
CONSTANTS: dict[str, dict[str, Any]] = {  # loss -> constants that it reads, with another value than the default
    "ppo_clip": {"clip_low": 0.05, "clip_high": 0.05, "dual_clip": 1.5, "ratio_cap": 1.5, "ratio_level": "turn"},
    "cispo": {"cispo_cap": 0.9, "cispo_floor": 0.8},
    "sapo": {"sapo_temperature_positive": 2.0, "sapo_temperature_negative": 2.0},
    "gmpo": {"gmpo_clip": 0.1},
    "vespo": dict.fromkeys(VESPO, 1.0),
    "dppo_tv": {"dppo_delta": 0.01, "dppo_cap": 0.9},
    "dro": {"dro_beta": 0.5},
    "kl_cov": {"kl_cov_coefficient": 3.0},
    "reinforce": {"entropy_coefficient": 0.1, "off_policy_mask": 0.01, "kl_coefficient": 0.1},
}
OF_ADVANTAGES: dict[str, dict[str, Any]] = {
    "grpo": {"advantage_ddof": 0, "advantage_epsilon": 0.1},
    "passk": {"passk_std": False},
    "gpg": {"gpg_scale": 2.0},
    "reinforce++": {"whitening_unbiased": False, "whitening_by_tokens": False},
}


def losses_of(**settings: Any) -> list[float]:
    """The gradient of the log-probs, weighed unevenly, then the loss; positive advantages first, then negative."""
    algorithm = AlgorithmConfig(**settings)
    step = Step(algorithm, Coefficients(algorithm.kl_coefficient, algorithm.entropy_coefficient), 1.0, 1.0, 1)
    found: list[float] = []
    for sign in (1.0, -1.0):
        new_N = NEW.clone().requires_grad_()
        marks = torch.tensor([True, False] * 3)
        tokens = Tokens(
            OLD, torch.full_like(OLD, sign), torch.tensor([0, 0, 0, 1, 1, 1]), SAMPLED, OLD - 0.5, -new_N, marks
        )
        losses_N, _ = objective(new_N, tokens, step.objective)
        (losses_N * torch.arange(1, 7)).sum().backward()
        assert new_N.grad is not None
        found += [*new_N.grad.tolist(), *losses_N.tolist()]
    return found


@pytest.mark.parametrize(
    ("loss", "key", "value"), [(loss, key, value) for loss, own in CONSTANTS.items() for key, value in own.items()]
)
def test_every_constant_of_a_loss_changes_it(loss: str, key: str, value: Any) -> None:
    assert losses_of(loss=loss, **{key: value}) != losses_of(loss=loss)


@pytest.mark.parametrize(
    ("name", "key", "value"), [(name, key, value) for name, own in OF_ADVANTAGES.items() for key, value in own.items()]
)
def test_every_constant_of_an_advantage_changes_it(name: str, key: str, value: Any) -> None:
    one, other = AlgorithmConfig(advantage=name), AlgorithmConfig(advantage=name, **{key: value})
    assert ADVANTAGES[name](GROUPS, one.settings) != ADVANTAGES[name](GROUPS, other.settings)


def test_clip_cov_picks_tokens_within_its_window() -> None:
    pairs = [(-3.0, -1.0), (-1.0, -1.0), (-0.5, 1.0), (-2.0, 1.0)]  # covariances 1.375, -0.625, 1.125, -0.375
    rows = [Row((1,), (2,), advantage=advantage, old=(old,)) for old, advantage in pairs]

    def picked(**window: float) -> list[bool]:
        found = chosen(rows, AlgorithmConfig(loss="clip_cov", cov_share=1.0, **window), 0)
        return [mark for row in found for mark in row.chosen]

    assert picked() == [True, False, True, False]
    assert picked(cov_low=1.25) == [True, False, False, False]
    assert picked(cov_high=1.25) == [False, False, True, False]


def test_every_constant_is_among_these() -> None:
    assert {key for own in CONSTANTS.values() for key in own} >= {field.name for field in fields(LossSettings)}
    values = {key: value for own in OF_ADVANTAGES.values() for key, value in own.items()}
    pairs = zip(vars(AlgorithmConfig().settings).items(), vars(AlgorithmConfig(**values).settings).items(), strict=True)
    assert not [one for one, other in pairs if one == other]


def test_bounds_of_corrections_and_the_choice_of_a_kl_change_the_loss() -> None:
    for choice, key, value in (
        ({"correction": "token_truncate"}, "correction_high", 1.1),
        ({"correction": "token_mask"}, "correction_low", 0.9),
        ({"kl_coefficient": 0.1}, "kl_estimator", "k1"),
        ({"kl_coefficient": 0.1}, "kl_in", "reward"),
    ):
        assert losses_of(**choice, **{key: value}) != losses_of(**choice)
