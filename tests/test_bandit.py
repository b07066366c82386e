"""Every loss with every advantage learns a 4-armed bandit, whose arms pay 0, 0.2, 0.5 and 1."""

from __future__ import annotations

import pytest
import torch

from gruppo.algorithms import ADVANTAGES, LOSSES, AlgorithmConfig, CreditConfig, clashes
from gruppo.algorithms.advantages import AdvantageSettings, GroupReturns, moving_average
from gruppo.algorithms.losses import TREATS_CHOSEN_APART, LossSettings, kl_cov_tokens
from gruppo.algorithms.ratios import Tokens

PAYS = torch.tensor([0.0, 0.2, 0.5, 1.0], dtype=torch.float64)
GROUPS, ATTEMPTS, STEPS = 4, 8, 20
LEGAL = [
    (loss, advantage)
    for loss in LOSSES
    for advantage in ADVANTAGES
    if not list(clashes(AlgorithmConfig(loss=loss, advantage=advantage), CreditConfig()))
]


def learn(loss: str, advantage: str, sign: float = 1.0) -> float:
    """The expected pay after training; at the start it is 0.425."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.2)
    average = 0.0
    for _ in range(STEPS):
        arms_N = torch.multinomial(logits.detach().softmax(-1), GROUPS * ATTEMPTS, True, generator=draw)
        pays = PAYS[arms_N].view(GROUPS, ATTEMPTS).tolist()
        greedy = PAYS[logits.argmax()].item()
        ones = [1] * ATTEMPTS
        returns = [GroupReturns(str(n), own, ones, {"pay": (1.0, own)}, greedy, average) for n, own in enumerate(pays)]
        average = moving_average(average, [pay for own in pays for pay in own])
        given = ADVANTAGES[advantage](returns, AdvantageSettings())
        advantages_N = sign * torch.tensor([value for own in given for value in own], dtype=torch.float64)
        new_N = logits.log_softmax(-1)[arms_N]
        chosen_N = kl_cov_tokens(new_N.detach(), advantages_N) if loss in TREATS_CHOSEN_APART else None
        tokens = Tokens(new_N.detach(), advantages_N, torch.arange(len(arms_N)), chosen_N=chosen_N)
        losses_N, _ = LOSSES[loss](new_N, tokens, LossSettings())
        optimizer.zero_grad()
        losses_N.mean().backward()
        optimizer.step()
    return float(logits.detach().softmax(-1) @ PAYS)


@pytest.mark.parametrize("loss", sorted({loss for loss, _ in LEGAL}))
def test_every_legal_pair_learns(loss: str) -> None:
    found = {advantage: learn(loss, advantage) for own, advantage in LEGAL if own == loss}
    assert len(found) == len(ADVANTAGES)
    assert min(found.values()) > 0.6, found


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "reinforce++"])
def test_the_other_sign_unlearns(advantage: str) -> None:
    assert learn("ppo_clip", advantage, sign=-1.0) < 0.3
