"""What a step learns from: rounds of rollouts until there are enough groups, and what their rewards are worth.

Filtering looks at the raw reward only, before any shaping; all that was played is returned beside what was kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import torch

from gruppo.algorithms import KLS, NEEDS_GREEDY, AlgorithmConfig
from gruppo.algorithms.advantages import has_signal
from gruppo.algorithms.batching import collate, microbatches, row_of
from gruppo.rollout import Rollout
from gruppo.training.curriculum import Curriculum
from gruppo.training.learner import Learner
from gruppo.types import Group

Key = Hashable  # (group id, attempt, role)


def collect(
    rollout: Rollout, tasks: Curriculum, algorithm: AlgorithmConfig, step: int, size: tuple[int, int], seed: int
) -> tuple[list[Group], list[Group], dict[str, float]]:
    """Groups of a step (from 0): all that were played, those kept, and the reward of each group's greedy episode.

    `size` is (groups, attempts). At most `max_rounds` rounds, each with other tasks; a round's tasks are a function of
    (seed, step, round) and of what the curriculum has seen. What is still missing after the last round is missing.
    """
    num_tasks, attempts = size
    played: list[Group] = []
    kept: list[Group] = []
    greedy: dict[str, float] = {}
    for round_ in range(algorithm.max_rounds):
        own = tasks.batch(step * algorithm.max_rounds + round_, num_tasks, seed)[: num_tasks - len(kept)]
        label = f"grpo-{step + 1:06d}" + (f".{round_}" if round_ else "")
        if algorithm.advantage in NEEDS_GREEDY:
            groups = rollout.collect(own, attempts, seed, label)
            best = rollout.at_temperature(0.0).collect(own, 1, seed, f"{label}-greedy")
            rewards = {group.id: one.episodes[0].reward for group, one in zip(groups, best, strict=True)}
            greedy |= {id_: reward for id_, reward in rewards.items() if reward is not None}
        else:
            groups = rollout.collect(own, attempts, seed, label)
        played += groups
        kept += [group for group in groups if passes(group, algorithm)]
        if algorithm.filter_groups == "none" or len(kept) >= num_tasks:
            break
    return played, kept, greedy


def passes(group: Group, algorithm: AlgorithmConfig) -> bool:
    """Whether a group is kept, by its raw rewards."""
    rewards = [episode.reward for episode in group.episodes if episode.reward is not None]
    if algorithm.filter_groups == "zero_std":
        return has_signal(rewards)
    if algorithm.filter_groups == "range":
        return bool(rewards) and algorithm.filter_low < fmean(rewards) < algorithm.filter_high
    return True


def kl_penalties(
    learner: Learner, groups: Sequence[Group], algorithm: AlgorithmConfig, kl: Mapping[str, float], max_tokens: int
) -> dict[Key, float]:
    """(group, attempt, role) -> coefficient x KL from the reference, summed over the tokens the role sampled.

    `kl` is the coefficient of each policy. Departs from REINFORCE++, which takes each token's KL off the return of the
    tokens up to it: here the whole episode pays for it.
    """
    found: dict[Key, float] = defaultdict(float)
    for policy, coefficient in kl.items():
        rows = [
            replace(row_of(turn), episode=(group.id, episode.attempt, turn.role))
            for group in groups
            for episode in group.episodes
            for turn in episode.turns
            if turn.policy == policy and turn.action_ids
        ]
        for packs in microbatches(rows, max_tokens, learner.can_share):
            batch = collate(packs, learner.pad_id, learner.config.device)
            with torch.no_grad():
                new_N, reference_N = learner.logprobs(policy, batch), learner.reference_logprobs(policy, batch)
            kl_N = KLS[algorithm.kl_estimator](new_N, reference_N, new_N).tolist()
            start = 0
            for row in (row for pack in packs for row in pack.rows):
                found[row.episode] += coefficient * sum(kl_N[start : start + len(row.action_ids)])
                start += len(row.action_ids)
    return dict(found)
