"""Presets reproduce the numbers of what they are named after, from the config to the loss of a step."""

from __future__ import annotations

import pytest
import torch

from gruppo.algorithms import ADVANTAGES, AGGREGATIONS, PRESETS, AlgorithmConfig
from gruppo.algorithms.advantages import GroupReturns
from gruppo.algorithms.aggregations import AggregationSettings, RowShape
from gruppo.algorithms.losses import objective
from gruppo.algorithms.ratios import Tokens
from gruppo.training.update import Coefficients, Step

NEW = torch.tensor([-1, -0.5, -2, -0.7, -1.2], dtype=torch.float64)  # two sequences, of three and two tokens
OLD = torch.tensor([-1.2, -0.6, -1.5, -0.7, -1], dtype=torch.float64)
REFERENCE = torch.tensor([-1.1, -0.4, -1.8, -0.9, -1.1], dtype=torch.float64)
GIVEN = torch.tensor([1, 1, 1, -0.5, -0.5], dtype=torch.float64)
SEQUENCE = torch.tensor([0, 0, 0, 1, 1])
REWARDS = [1, 1, 0, 0.8]

MEAN_K3 = (0.031411 / 3 + 0.023902 / 2) / 2
# Executed in TRL 1.16 and verl on the same numbers; grpo_paper and flow_grpo add their KL to those.
LOSSES = {
    "trl": -0.400467, "verl": -0.400467, "dapo": -0.404748, "agentic": -0.404748, "dr_grpo": -0.250292,
    "gspo": -0.217828, "cispo": 0.429162, "rloo": -0.204683, "sapo": -0.535918, "reinforce++": -0.400467,
    "reinforce++_baseline": -0.400467 + 0.001 * 0.011, "grpo_paper": -0.257942 + 0.04 * MEAN_K3,
    "flow_grpo": -0.261509 + 0.001 * MEAN_K3,
}  # fmt: skip
CENTRED = [0.3, 0.3, -0.7, 0.1]
STANDARD = [0.630125, 0.630125, -1.470291, 0.210042]
ADVANTAGE = {
    "trl": [0.629994, 0.629994, -1.469985, 0.209998], "dr_grpo": CENTRED, "rloo": [0.4, 0.4, -0.933333, 0.133333],
}  # fmt: skip


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_computes_the_loss_of_its_namesake(preset: str) -> None:
    algorithm = AlgorithmConfig(preset=preset, length_norm=4)
    step = Step(algorithm, Coefficients(algorithm.kl_coefficient, 0.0), 1.0, 1.0, 1)
    shapes = [RowShape(3, "first", 0), RowShape(2, "second", 1)]
    weights = AGGREGATIONS[algorithm.aggregation](shapes, AggregationSettings(algorithm.length_norm))
    tokens = Tokens(OLD, GIVEN, SEQUENCE, sampled_N=OLD, reference_N=REFERENCE)
    losses_N, _ = objective(NEW, tokens, step.objective)
    loss = (losses_N * torch.tensor(weights, dtype=torch.float64)[SEQUENCE]).sum().item()
    assert loss == pytest.approx(LOSSES[preset], abs=2e-6)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_computes_the_advantages_of_its_namesake(preset: str) -> None:
    algorithm = AlgorithmConfig(preset=preset)
    expected = ADVANTAGE.get(preset, STANDARD)
    (found,) = ADVANTAGES[algorithm.advantage]([GroupReturns("g", REWARDS, [1] * 4)], algorithm.settings)
    near = (
        2e-6 if not preset.startswith("reinforce") else 5e-6
    )  # whitened over the batch: its epsilon is under the root
    assert found == pytest.approx(expected, abs=near)
