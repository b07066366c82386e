"""Aggregations: what a token's loss weighs in the loss of an optimizer step. No torch: only lengths are known here.

An aggregation gives each row a weight, the same for all its tokens, from the shapes of all rows of the step, on all
ranks and in all microbatches. The step's loss is the sum of weight x loss over its tokens, so it is the same however
the step is split. Rows without tokens weigh 0; a step without any has loss 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RowShape:
    """What an aggregation knows of a row, which is one turn."""

    num_tokens: int  # trained ones
    episode: Hashable  # which attempt at which task
    sequence: Hashable  # what the ratio is taken over: a turn, or the turns of a role in an episode


@dataclass(frozen=True)
class AggregationSettings:
    """Constants of the aggregations."""

    length_norm: float = 1024.0  # the constant length of "token_sum_norm", in tokens

    def __post_init__(self) -> None:
        if not self.length_norm > 0:
            raise ValueError(f"length_norm = {self.length_norm}: must be above 0")


Aggregation = Callable[[Sequence[RowShape], AggregationSettings], list[float]]


def token_mean(rows: Sequence[RowShape], settings: AggregationSettings) -> list[float]:
    """Every token of the step weighs the same. Source: arXiv 2503.14476 (DAPO).

    Departs from the paper, where the mean is over one prompt's group: here it is over the optimizer step.
    """
    num_tokens = sum(row.num_tokens for row in rows)
    return [share(row, num_tokens) for row in rows]


def seq_mean_token_mean(rows: Sequence[RowShape], settings: AggregationSettings) -> list[float]:
    """Mean over sequences of the mean over their tokens. Sources: arXiv 2402.03300 (GRPO), 2507.18071 (GSPO)."""
    return mean_of_means(rows, [row.sequence for row in rows])


def seq_mean_token_sum(rows: Sequence[RowShape], settings: AggregationSettings) -> list[float]:
    """Mean over sequences of the sum over their tokens. Source: arXiv 2602.05261 (LUSPO)."""
    num_sequences = len({row.sequence for row in live(rows)})
    return [share(row, num_sequences) for row in rows]


def token_sum_norm(rows: Sequence[RowShape], settings: AggregationSettings) -> list[float]:
    """Sum over tokens / (episodes x a constant length). Source: arXiv 2503.20783 (Dr. GRPO).

    Episodes without tokens count: nothing but their number may move the denominator.
    """
    num_episodes = len({row.episode for row in rows})
    return [share(row, num_episodes * settings.length_norm) for row in rows]


def token_sum(rows: Sequence[RowShape], settings: AggregationSettings) -> list[float]:
    """Sum over tokens; the learning rate has to know the batch size."""
    return [share(row, 1) for row in rows]


def traj_token_mean(rows: Sequence[RowShape], settings: AggregationSettings) -> list[float]:
    """Mean over episodes of the mean over their tokens, so that the number of turns weighs nothing."""
    return mean_of_means(rows, [row.episode for row in rows])


def flow_grpo(rows: Sequence[RowShape], settings: AggregationSettings) -> list[float]:
    """Mean over episodes of the mean over their turns of the mean over tokens. Source: arXiv 2510.05592.

    Departs from the paper, which averages groups: where their sizes differ, here every episode weighs the same.
    """
    turns = Counter(row.episode for row in live(rows))
    return [share(row, len(turns) * turns[row.episode] * row.num_tokens) for row in rows]


def row_mean(rows: Sequence[RowShape], settings: AggregationSettings) -> list[float]:
    """Mean over turns of the mean over their tokens: an episode of many turns weighs more. Rarely what is wanted."""
    return mean_of_means(rows, range(len(rows)))


def mean_of_means(rows: Sequence[RowShape], keys: Iterable[Hashable]) -> list[float]:
    """Weights for the mean over keys of the mean over the tokens of a key's rows; `keys` has one for each row."""
    keys, tokens = list(keys), Counter[Hashable]()
    for row, key in zip(rows, keys, strict=True):
        if row.num_tokens:
            tokens[key] += row.num_tokens
    return [share(row, len(tokens) * tokens[key]) for row, key in zip(rows, keys, strict=True)]


def share(row: RowShape, denominator: float) -> float:
    """1 / denominator; 0 for a row without tokens, whose denominator may be 0."""
    return 1 / denominator if row.num_tokens else 0.0


def live(rows: Sequence[RowShape]) -> list[RowShape]:
    """The rows with tokens."""
    return [row for row in rows if row.num_tokens]


AGGREGATIONS: Mapping[str, Aggregation] = {
    "token_mean": token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "token_sum_norm": token_sum_norm,
    "token_sum": token_sum,
    "traj_token_mean": traj_token_mean,
    "flow_grpo": flow_grpo,
    "row_mean": row_mean,
}
