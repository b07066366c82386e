"""Curriculum: which tasks are worth an attempt now, and coefficients that follow what was measured.

Pure numbers: who keeps the success rates, draws the tasks and saves the state is the trainer. A task's success rate is
its share of solved attempts, within 0 and 1; a success rate outside raises ValueError. pass@k is a figure of merit and
lives with the evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Tasks ---------------------------------------------------------------------------------------------------------------


def learnability(success_rate: float) -> float:
    """p (1 - p), the variance of the outcome: 0 for what is always or never solved. Source: arXiv 2502.12272."""
    _check(success_rate)
    return success_rate * (1 - success_rate)


def prioritised(success_rates_N: Sequence[float]) -> list[float]:
    """Weights that add up to 1, in proportion to 1 - success rate; equal where all is solved.

    Source: prioritised sampling, Kimi k1.5, arXiv 2501.12599.
    """
    for success_rate in success_rates_N:
        _check(success_rate)
    failures = [1 - success_rate for success_rate in success_rates_N]
    total = math.fsum(failures)
    return [failure / total if total else 1 / len(failures) for failure in failures]


def probability_mixed(success_rate: float, group_size: int) -> float:
    """The chance that a group holds both a success and a failure, and so a signal. Source: DAPO, arXiv 2503.14476."""
    _check(success_rate)
    return 1 - success_rate**group_size - (1 - success_rate) ** group_size


def at_least_one(success_rate: float, num_attempts: int) -> float:
    """The chance that some attempt succeeds, so that rejection sampling has something to keep: 1 - (1 - p)^n."""
    _check(success_rate)
    return 1 - (1 - success_rate) ** num_attempts


def adarft_target(
    target: float,
    reward: float,
    *,
    eta: float = 50.0,
    alpha: float = 2.0,
    beta: float = 0.5,
    bounds: tuple[float, float] = (0.0, 100.0),
) -> float:
    """The next target difficulty: up where the mean reward is above `beta`, else down. Source: arXiv 2504.05520.

    target + eta tanh(alpha (reward - beta)), within `bounds`; difficulties are on the scale of the bounds.
    """
    lowest, highest = bounds
    return min(highest, max(lowest, target + eta * math.tanh(alpha * (reward - beta))))


def _check(success_rate: float) -> None:
    if not 0 <= success_rate <= 1:
        raise ValueError(f"a success rate must be within 0 and 1, not {success_rate}")


# Coefficients --------------------------------------------------------------------------------------------------------


def adaptive_entropy_coefficient(
    coefficient: float, entropy: float, target: float = 0.2, delta: float = 0.005
) -> float:
    """Weight of the entropy bonus: delta more where the entropy is below its target, else delta less, never below 0.

    `entropy`: nats per trained token. Source: Skywork OR1, arXiv 2505.22312.
    """
    return max(0.0, coefficient + (delta if entropy < target else -delta))


def adaptive_kl_coefficient(coefficient: float, kl: float, target: float, horizon: int, num_episodes: int) -> float:
    """Weight of the KL to the reference: times 1 + e num_episodes / horizon, e the relative error within -0.2 and 0.2.

    `kl` and `target` in one unit; `horizon` in episodes. Source: arXiv 1909.08593. Raises ValueError if target <= 0.
    """
    if target <= 0:
        raise ValueError(f"the KL target must be positive, not {target}")
    error = max(-0.2, min(0.2, kl / target - 1))
    return coefficient * (1 + error * num_episodes / horizon)


def scaled_learning_rate(learning_rate: float, batch_size: int, reference_size: int) -> float:
    """The rate that suits another batch size, by the square root of their ratio. Source: for Adam, arXiv 2205.10287."""
    return learning_rate * math.sqrt(batch_size / reference_size)
