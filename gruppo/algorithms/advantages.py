"""Advantages: from the rewards of one role's episodes to one number per episode. No torch, no tokens, no turns.

The plain functions are the estimators as the papers write them: most see one group, a few the whole batch. `ADVANTAGES`
gives them one signature for the trainer, by name. Rewards within an episode are the business of `returns.py`, what
shapes them of `shaping.py`, and which group to keep of the trainer.

Statistics are per episode, over one group, before anything is split into rows, so the number of turns never weighs
them; a role's group holds the episodes in which it acted. An episode that can't be scored (None) is left out.

Shapes: P groups of G episodes each (G may differ from group to group), N values, F reward functions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

EPSILON = 1e-6
TOLERANCE = 1e-6  # rewards closer than this (relative) are equal: their float residue must not become a signal
WHITENING_EPSILON = 1e-8  # added to the variance, not to its root

Scores = Mapping[str, tuple[float, Sequence[float | None]]]
"""Reward function -> its weight and its value for each episode of a group, None where it gave none."""


def has_signal(rewards_G: Sequence[float]) -> bool:
    """Whether the rewards differ by more than rounding. They must be finite."""
    assert all(map(math.isfinite, rewards_G)), f"rewards must be finite: {list(rewards_G)}"
    if len(rewards_G) < 2:
        return False
    return max(rewards_G) - min(rewards_G) > TOLERANCE * max(1.0, *map(abs, rewards_G))


# One group -----------------------------------------------------------------------------------------------------------
# Each gives exactly 0 to all where the rewards are equal up to rounding, or the group has one member: there the papers
# leave 0 / epsilon or no baseline, and implementations return anything from 0 to the raw reward.


def grpo(rewards_G: Sequence[float], *, ddof: int = 1, epsilon: float = EPSILON) -> list[float]:
    """(r - mean) / (std + epsilon), the sample std or, with ddof 0, the population's. Source: arXiv 2402.03300.

    The paper names neither ddof nor epsilon; implementations use 1 and 0, and 1e-9 to 1e-4.
    """
    return _divided(centred(rewards_G), _std(rewards_G, ddof) + epsilon)


def centred(rewards_G: Sequence[float]) -> list[float]:
    """r - mean: without the std, which weighs easy and hard tasks more. Source: arXiv 2503.20783 (Dr. GRPO)."""
    if not has_signal(rewards_G):
        return [0.0] * len(rewards_G)
    mean = statistics.fmean(rewards_G)
    return [reward - mean for reward in rewards_G]


def rloo(rewards_G: Sequence[float]) -> list[float]:
    """r - the mean of the others, which is G / (G - 1) times `centred`. Source: arXiv 2402.14740."""
    size = len(rewards_G)
    return [value * size / (size - 1) if value else 0.0 for value in centred(rewards_G)]


def opo(rewards_G: Sequence[float], lengths_G: Sequence[int]) -> list[float]:
    """r - the mean weighted by length: least variance if gradients grow with length. Source: arXiv 2505.23585.

    `lengths_G`: the trained tokens of each episode. Without any there is nothing to train, and all get 0.
    """
    if not has_signal(rewards_G) or not any(lengths_G):
        return [0.0] * len(rewards_G)
    baseline = statistics.fmean(rewards_G, lengths_G)
    return [reward - baseline for reward in rewards_G]


def maxrl(rewards_G: Sequence[float]) -> list[float]:
    """(r - mean) / mean, so that rare successes weigh most; 0 where the mean isn't positive. Source: arXiv 2602.02710.

    Meant for rewards that are never negative.
    """
    values_G = centred(rewards_G)
    mean = statistics.fmean(rewards_G) if any(values_G) else 0.0
    return _divided(values_G, mean) if mean > 0 else [0.0] * len(rewards_G)


def gpg(rewards_G: Sequence[float], alpha: float) -> list[float]:
    """alpha (r - mean). Source: arXiv 2504.02546, whose alpha is that of `gpg_alpha`."""
    return [alpha * value for value in centred(rewards_G)]


def gpg_alpha(rewards_PG: Sequence[Sequence[float]]) -> float:
    """Episodes / episodes in groups with a signal: what makes up for those without a gradient. 0 if there are none."""
    num_with_signal = sum(len(rewards_G) for rewards_G in rewards_PG if has_signal(rewards_G))
    return sum(map(len, rewards_PG)) / num_with_signal if num_with_signal else 0.0


def passk(
    rewards_G: Sequence[float], *, divide_by_std: bool = True, ddof: int = 1, epsilon: float = EPSILON
) -> list[float]:
    """The best episode gets its lead over the second best, the others and ties 0. Source: arXiv 2503.19595.

    With `divide_by_std` the lead is divided by (std + epsilon) of the group. The advantages don't add up to 0.
    """
    best, *others = sorted(rewards_G, reverse=True) or [0.0]
    if not others or not has_signal([best, others[0]]):
        return [0.0] * len(rewards_G)
    scale = _std(rewards_G, ddof) + epsilon if divide_by_std else 1.0
    return [(best - others[0]) / scale if reward == best else 0.0 for reward in rewards_G]


def remax(rewards_G: Sequence[float], greedy: float | None) -> list[float]:
    """r - the reward of the greedy episode. Source: arXiv 2310.10505.

    The baseline is not of the group, so one member is enough. All get 0 if it is None: there is no baseline then.
    """
    return [0.0] * len(rewards_G) if greedy is None else _against(rewards_G, greedy)


def gdpo(scores_FG: Scores, *, ddof: int = 1, epsilon: float = EPSILON) -> list[float]:
    """Every reward function's scores normalised as by `grpo`, then summed by weight. Source: arXiv 2601.05242.

    A None counts in no statistic and adds nothing. This is one group's part; `gdpo_batch` then scales it by the batch.
    """
    assert scores_FG, "gdpo needs the scores of each reward function"
    columns_FG = [
        [weight * value for value in _among_scored(scores_G, ddof, epsilon)] for weight, scores_G in scores_FG.values()
    ]
    summed_G = [math.fsum(values) for values in zip(*columns_FG, strict=True)]
    return summed_G if has_signal(summed_G) else [0.0] * len(summed_G)  # functions may cancel out


def loo_counterfactual(means_N: Sequence[float], counts_N: Sequence[int]) -> list[float]:
    """Mean return of each alternative - that of the others, weighted by how often each was replayed.

    N alternatives to one message, replayed from the same transcript prefix. Where the others were never replayed there
    is no baseline: 0. Source: C3, arXiv 2603.06859.
    """
    if not has_signal(means_N):
        return [0.0] * len(means_N)
    pairs = list(zip(means_N, counts_N, strict=True))
    total, weighted = sum(counts_N), math.fsum(mean * count for mean, count in pairs)
    return [mean - (weighted - mean * count) / (total - count) if count < total else 0.0 for mean, count in pairs]


def rae(rewards_G: Sequence[float], average: float) -> list[float]:
    """r - the moving average of what the role got before in such tasks. Source: SPIRAL, arXiv 2506.24119.

    The baseline is not of the group, so one member is enough. Departs from the paper, whose average moves on with every
    episode: here all of a step's episodes meet the one that stood when it began, and `moving_average` is called after.
    """
    return _against(rewards_G, average)


def moving_average(average: float, rewards_N: Iterable[float], decay: float = 0.95) -> float:
    """The average after `rewards_N`, one after the other; it starts at 0. Source: SPIRAL, arXiv 2506.24119.

    One per role and game. It outlives the batch, so it belongs into checkpoints.
    """
    for reward in rewards_N:
        average = decay * average + (1 - decay) * reward
    return average


# The batch -----------------------------------------------------------------------------------------------------------
# Statistics are over the groups handed in. Groups without a signal get exactly 0 here too, but for `reinforce_pp`.


def grpo_batch(rewards_PG: Sequence[Sequence[float]], *, ddof: int = 1, epsilon: float = EPSILON) -> list[list[float]]:
    """(r - group mean) / (std of all the batch's rewards + epsilon). Source: Lite PPO, arXiv 2508.08221; TRL's "batch".

    A batch that mixes reward scales silences the family with the smaller one.
    """
    scale = _std(_flat(rewards_PG), ddof) + epsilon
    return [_divided(centred(rewards_G), scale) for rewards_G in rewards_PG]


def grpo_batch_centred(
    rewards_PG: Sequence[Sequence[float]], *, ddof: int = 1, epsilon: float = EPSILON
) -> list[list[float]]:
    """(r - group mean) / (std of these differences over the batch + epsilon). Source: ScaleRL, arXiv 2510.13786."""
    return _scaled_by_batch([centred(rewards_G) for rewards_G in rewards_PG], ddof, epsilon)


def gdpo_batch(scores_PFG: Sequence[Scores], *, ddof: int = 1, epsilon: float = EPSILON) -> list[list[float]]:
    """`gdpo` of each group / (std over the batch + epsilon). Source: arXiv 2601.05242.

    Departs from the paper: the batch's mean isn't subtracted. Each group adds up to 0, so it is 0 but for rounding.
    """
    return _scaled_by_batch([gdpo(scores_FG, ddof=ddof, epsilon=epsilon) for scores_FG in scores_PFG], ddof, epsilon)


def reinforce_pp(
    rewards_PG: Sequence[Sequence[float]], weights_PG: Sequence[Sequence[float]], *, unbiased: bool = True
) -> list[list[float]]:
    """Rewards whitened over the batch, without a group baseline. Source: REINFORCE++, arXiv 2501.03262.

    `weights_PG`: the trained tokens of each episode, so that every token counts once; all 1 counts episodes instead.
    """
    return _grouped(whiten(_flat(rewards_PG), _flat(weights_PG), unbiased=unbiased), rewards_PG)


def reinforce_pp_baseline(
    rewards_PG: Sequence[Sequence[float]], weights_PG: Sequence[Sequence[float]], *, unbiased: bool = True
) -> list[list[float]]:
    """r - group mean, whitened over the batch; weights as for `reinforce_pp`. Source: arXiv 2501.03262.

    Departs from the paper: groups without a signal are left out of the whitening, which would give them one.
    """
    counted_PG = [
        weights_G if has_signal(rewards_G) else [0] * len(weights_G)
        for rewards_G, weights_G in zip(rewards_PG, weights_PG, strict=True)
    ]
    return reinforce_pp([centred(rewards_G) for rewards_G in rewards_PG], counted_PG, unbiased=unbiased)


def whiten(values_N: Sequence[float], weights_N: Sequence[float], *, unbiased: bool = True) -> list[float]:
    """(value - mean) / sqrt(variance + 1e-8), weighted: `weights_N` are token counts, or a mask of 0 and 1.

    A value of weight 0 counts nowhere, whatever it is, and becomes 0; so do all if those that count are equal.
    `unbiased` divides by the total weight - 1 (as verl), else by the total weight (as OpenRLHF).
    """
    pairs = [(value, weight) for value, weight in zip(values_N, weights_N, strict=True) if weight]
    if not has_signal([value for value, _ in pairs]):
        return [0.0] * len(values_N)
    total = sum(weights_N)
    mean = math.fsum(weight * value for value, weight in pairs) / total
    squares = math.fsum(weight * (value - mean) ** 2 for value, weight in pairs)
    scale = math.sqrt(squares / (total - unbiased) + WHITENING_EPSILON)
    return [(value - mean) / scale if weight else 0.0 for value, weight in zip(values_N, weights_N, strict=True)]


def _std(values_N: Sequence[float], ddof: int) -> float:
    """0 for fewer than two values. Exact before the root: no residue, however small the spread beside the values."""
    assert ddof in (0, 1), f"ddof must be 0 or 1, not {ddof}"
    if len(values_N) < 2:
        return 0.0
    return statistics.stdev(values_N) if ddof else statistics.pstdev(values_N)


def _against(rewards_G: Sequence[float], baseline: float) -> list[float]:
    """r - baseline, 0 where they are equal up to rounding."""
    return [reward - baseline if has_signal([reward, baseline]) else 0.0 for reward in rewards_G]


def _divided(values_N: Sequence[float], scale: float) -> list[float]:
    """What is 0 stays 0, whatever the scale."""
    return [value / scale if value else 0.0 for value in values_N]


def _scaled_by_batch(values_PG: Sequence[Sequence[float]], ddof: int, epsilon: float) -> list[list[float]]:
    scale = _std(_flat(values_PG), ddof) + epsilon
    return [_divided(values_G, scale) for values_G in values_PG]


def _among_scored(scores_G: Sequence[float | None], ddof: int, epsilon: float) -> list[float]:
    """`grpo` over the scores there are; 0 for None."""
    values = iter(grpo([score for score in scores_G if score is not None], ddof=ddof, epsilon=epsilon))
    return [0.0 if score is None else next(values) for score in scores_G]


def _flat(values_PG: Iterable[Sequence[float]]) -> list[float]:
    return list(chain.from_iterable(values_PG))


def _grouped(values_N: Iterable[float], like_PG: Sequence[Sequence[float]]) -> list[list[float]]:
    values = iter(values_N)
    return [list(islice(values, len(like_G))) for like_G in like_PG]


# By name -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupReturns:
    """One role's episodes in one group: those in which it acted and that could be scored. All sequences have length G.

    `key` names the group (a task, or a task in a state); prompts may repeat, keys may not.
    """

    key: str
    rewards_G: Sequence[float]
    lengths_G: Sequence[int]  # trained tokens of the role in each episode
    scores_FG: Scores = field(default_factory=dict)  # for gdpo
    greedy: float | None = None  # reward of the greedy episode, for remax
    average: float = 0.0  # of the role's rewards before this step in tasks of the same family, for rae

    def __post_init__(self) -> None:
        columns = [self.lengths_G, *(scores_G for _, scores_G in self.scores_FG.values())]
        assert all(len(column) == len(self.rewards_G) for column in columns), f"group {self.key}: lengths differ"


@dataclass(frozen=True)
class AdvantageSettings:
    """The constants of the estimators; each reads its own."""

    ddof: int = 1  # grpo, grpo_batch, grpo_batch_centred, gdpo, passk
    epsilon: float = EPSILON  # the same
    divide_by_std: bool = True  # passk
    gpg_alpha: float | None = None  # gpg; None: the paper's, from the batch
    unbiased: bool = True  # reinforce++, reinforce++_baseline: the variance of the whitening
    token_weighted: bool = True  # the same: every token counts once, else every episode


Estimator = Callable[[Sequence[GroupReturns], AdvantageSettings], list[list[float]]]
"""The groups of one role and batch -> an advantage per group and episode, in their order."""


def _each(advantage: Callable[[GroupReturns, AdvantageSettings], list[float]]) -> Estimator:
    """The estimator that looks at one group at a time."""
    return lambda groups, settings: [advantage(group, settings) for group in groups]


def _rewards(groups: Sequence[GroupReturns]) -> list[Sequence[float]]:
    return [group.rewards_G for group in groups]


def _weights(groups: Sequence[GroupReturns], settings: AdvantageSettings) -> list[Sequence[int]]:
    return [group.lengths_G if settings.token_weighted else [1] * len(group.lengths_G) for group in groups]


def _gpg(groups: Sequence[GroupReturns], settings: AdvantageSettings) -> list[list[float]]:
    alpha = gpg_alpha(_rewards(groups)) if settings.gpg_alpha is None else settings.gpg_alpha
    return [gpg(rewards_G, alpha) for rewards_G in _rewards(groups)]


ADVANTAGES: Mapping[str, Estimator] = {
    "grpo": _each(lambda group, by: grpo(group.rewards_G, ddof=by.ddof, epsilon=by.epsilon)),
    "centred": _each(lambda group, _: centred(group.rewards_G)),
    "rloo": _each(lambda group, _: rloo(group.rewards_G)),
    "grpo_batch": lambda groups, by: grpo_batch(_rewards(groups), ddof=by.ddof, epsilon=by.epsilon),
    "grpo_batch_centred": lambda groups, by: grpo_batch_centred(_rewards(groups), ddof=by.ddof, epsilon=by.epsilon),
    "reinforce++": lambda groups, by: reinforce_pp(_rewards(groups), _weights(groups, by), unbiased=by.unbiased),
    "reinforce++_baseline": lambda groups, by: reinforce_pp_baseline(
        _rewards(groups), _weights(groups, by), unbiased=by.unbiased
    ),
    "opo": _each(lambda group, _: opo(group.rewards_G, group.lengths_G)),
    "maxrl": _each(lambda group, _: maxrl(group.rewards_G)),
    "gpg": _gpg,
    "passk": _each(
        lambda group, by: passk(group.rewards_G, divide_by_std=by.divide_by_std, ddof=by.ddof, epsilon=by.epsilon)
    ),
    "remax": _each(lambda group, _: remax(group.rewards_G, group.greedy)),
    "rae": _each(lambda group, _: rae(group.rewards_G, group.average)),
    "gdpo": lambda groups, by: gdpo_batch([group.scores_FG for group in groups], ddof=by.ddof, epsilon=by.epsilon),
}
"""Name -> estimator. A new one is a function above and a line here."""

GROUP_RELATIVE = frozenset(ADVANTAGES) - {"reinforce++", "remax", "rae"}
"""Whose baseline is the group: one member, or rewards without spread (of gdpo: scores), give no signal."""
NEEDS_GREEDY = frozenset({"remax"})
NEEDS_AVERAGE = frozenset({"rae"})
