"""Returns: from the rewards within one episode to a number per turn or token. No torch, no log-probs to differentiate.

What compares episodes with one another is in `advantages.py`; here that happens only among turns in equal states.

Shapes: T tokens of an episode, K turns or links of a chain, G episodes of a group. `mask_T` is 1 on tokens that the
trained policy sampled. The others (tool results, other agents' words) are passed over: their rewards and values are
never read, not even NaN, and they get 0.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from statistics import fmean

from gruppo.algorithms.advantages import Advantage, grpo

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


# Among the turns of a group ------------------------------------------------------------------------------------------


def gigpo(
    rewards_G: Sequence[float],
    returns_GK: Sequence[Sequence[float]],
    states_GK: Sequence[Sequence[Hashable]],
    omega: float = 1.0,
    advantage: Advantage = grpo,
) -> list[list[float]]:
    """Per turn: the episode's advantage + omega times the turn's among turns in equal states. Source: arXiv 2505.10978.

    `rewards_G` are the episodes' rewards, `returns_GK` what each turn led to (`discounted_outcome`, `rewards_to_go`),
    `states_GK` what it started from. `advantage` is `grpo` or `centred`, for both parts. Departs from the released
    code: the episodes' statistics count each episode once, not once per turn.
    """
    turns_GK = state_advantages(returns_GK, states_GK, advantage)
    episodes = zip(advantage(rewards_G), turns_GK, strict=True)
    return [[episode + omega * turn for turn in turns_K] for episode, turns_K in episodes]


def state_advantages(
    returns_GK: Sequence[Sequence[float]], states_GK: Sequence[Sequence[Hashable]], advantage: Advantage = grpo
) -> list[list[float]]:
    """`advantage` among all turns of the group that started from equal states, revisits included; 0 for a lone one.

    A state is any hashable description of all that the policy could see, without history: if few states are shared
    (`share_in_shared_states`), nothing is left of it.
    """
    advantages_GK = [[0.0] * len(returns_K) for returns_K in returns_GK]
    for places in _places_by_state(states_GK).values():
        values = advantage([returns_GK[episode][turn] for episode, turn in places])
        for (episode, turn), value in zip(places, values, strict=True):
            advantages_GK[episode][turn] = value
    return advantages_GK


def share_in_shared_states(states_GK: Sequence[Sequence[Hashable]]) -> float:
    """Share of turns whose state some other turn of the group started from too. Near 0, GiGPO is GRPO."""
    sizes = [len(places) for places in _places_by_state(states_GK).values()]
    return sum(size for size in sizes if size > 1) / max(1, sum(sizes))


def _places_by_state(states_GK: Sequence[Sequence[Hashable]]) -> dict[Hashable, list[tuple[int, int]]]:
    places: dict[Hashable, list[tuple[int, int]]] = {}
    for episode, states_K in enumerate(states_GK):
        for turn, state in enumerate(states_K):
            places.setdefault(state, []).append((episode, turn))
    return places


# Among the agents of a team ------------------------------------------------------------------------------------------


def team_and_local(team_N: Sequence[float], local_N: Sequence[float], alpha: float = 1.0) -> list[float]:
    """alpha times the team's reward + the agent's own, for N actions that are then compared with one another.

    Source: AT-GRPO, arXiv 2510.11062, which compares actions of one agent in one state at one turn.
    """
    return [alpha * team + local for team, local in zip(team_N, local_N, strict=True)]


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
