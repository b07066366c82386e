"""Returns: from the rewards within one episode to a number per turn or token. No torch, no log-probs to differentiate.

What compares episodes, or turns, with one another is in `advantages.py` and `credit.py`.

Shapes: T tokens of an episode, K links of a chain. `mask_T` is 1 on tokens that the
trained policy sampled. The others (tool results, other agents' words) are passed over: their rewards and values are
never read, not even NaN, and they get 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

# Along one episode ---------------------------------------------------------------------------------------------------


def discounted_outcome(num_turns: int, gamma: float, outcome: float) -> list[float]:
    """The outcome as each turn sees it: gamma for every turn that follows.

    Discount by turns, not by tokens: 0.99 a token leaves 4e-5 of the outcome to a turn 1000 tokens before it.
    """
    return [outcome * gamma**later for later in reversed(range(num_turns))]


def rewards_to_go(rewards_T: Sequence[float], gamma: float, mask_T: Sequence[int] | None = None) -> list[float]:
    """The sum of this and later rewards, each discounted by the places between; for turns, or for tokens with a mask.

    Masked tokens are not counted as places, and the sum goes on across them.
    """
    mask_T = [1] * len(rewards_T) if mask_T is None else mask_T
    assert len(rewards_T) == len(mask_T)
    returns_T, following = [0.0] * len(rewards_T), 0.0
    for place in _trained_backwards(mask_T):
        following = returns_T[place] = rewards_T[place] + gamma * following
    return returns_T


def token_rewards(outcome: float, log_ratios_T: Sequence[float], mask_T: Sequence[int], beta: float) -> list[float]:
    """-beta (log policy - log reference) at each trained token, and the outcome at the last: KL as part of the reward.

    `log_ratios_T` are as sampled, without gradient. Source: arXiv 2501.03262; `rewards_to_go` and `whiten` come next.
    """
    rewards_T = [-beta * ratio if trained else 0.0 for ratio, trained in zip(log_ratios_T, mask_T, strict=True)]
    last = next(_trained_backwards(mask_T), None)
    if last is not None:
        rewards_T[last] += outcome
    return rewards_T


def gae(
    rewards_T: Sequence[float], values_T: Sequence[float], mask_T: Sequence[int], gamma: float, lambda_: float
) -> tuple[list[float], list[float]]:
    """Advantages and value targets (advantage + value) of a critic's values. Source: arXiv 1506.02438.

    Departs from the paper: the next state is the next trained token, however many others stand between.
    """
    assert len(rewards_T) == len(values_T) == len(mask_T)
    advantages_T, targets_T = [0.0] * len(mask_T), [0.0] * len(mask_T)
    next_value = next_advantage = 0.0
    for place in _trained_backwards(mask_T):
        error = rewards_T[place] + gamma * next_value - values_T[place]
        next_value, next_advantage = values_T[place], error + gamma * lambda_ * next_advantage
        advantages_T[place], targets_T[place] = next_advantage, next_advantage + next_value
    return advantages_T, targets_T


def length_adaptive_lambda(length: int, alpha: float = 0.05) -> float:
    """GAE's lambda for a response of `length` tokens: 1 - 1 / (alpha length). Source: VAPO, arXiv 2504.05118.

    Departs from the paper: 0 where that would be negative, below 1 / alpha tokens.
    """
    return 1 - 1 / (alpha * length) if alpha * length > 1 else 0.0


def _trained_backwards(mask_T: Sequence[int]) -> Iterator[int]:
    """Places of the trained tokens, the last first."""
    return (place for place in reversed(range(len(mask_T))) if mask_T[place])


# Among the agents of a team ------------------------------------------------------------------------------------------


def chain_margin(rewards_K: Sequence[float], alpha: float = 0.5) -> list[float]:
    """r + alpha (r - q) for agents that answer one after the other, q the mean of the rewards before.

    The first has none before it and keeps its reward. Source: MARTI, whose code names this "margin".
    """
    return _along_chain(rewards_K, lambda reward, before: reward + alpha * (reward - before))


def chain_quality(rewards_K: Sequence[float], alpha: float = 0.5) -> list[float]:
    """r + alpha (q r - (1 - q) (1 - r)), q as for `chain_margin`; rewards within 0 and 1.

    To be right after others were pays most, to be wrong after others were wrong costs most. Source: MARTI's "quality".
    """
    return _along_chain(
        rewards_K, lambda reward, before: reward + alpha * (before * reward - (1 - before) * (1 - reward))
    )


def _along_chain(rewards_K: Sequence[float], shaped: Callable[[float, float], float]) -> list[float]:
    later = (shaped(rewards_K[place], fmean(rewards_K[:place])) for place in range(1, len(rewards_K)))
    return [*rewards_K[:1], *later]
