"""Batching: from groups and advantages to rows, and from rows to padded tensors that fit a token budget.

A row is one turn of a trained policy: the exact prompt ids it saw and the exact ids it sampled. Nothing is re-encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gruppo.prefix_tree import PrefixTree, attention_of, prefix_tree, shared_rows
from gruppo.types import Group, Turn


@dataclass(frozen=True)
class Row:
    """One training example; of merged rows, `advantage` is the sum."""

    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # as sampled; empty where nothing was sampled (demonstrations)
    advantage: float = 1.0
    temperature: float = 1.0

    @property
    def num_tokens(self) -> int:
        """Length of the sequence."""
        return len(self.prompt_ids) + len(self.action_ids)


@dataclass(frozen=True)
class Pack:
    """Rows of one temperature laid out as a prefix tree, so that what they begin alike is computed once.

    A row's last id is not in the tree: nothing is predicted from it.
    """

    rows: Sequence[Row]
    tree: PrefixTree

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Pack:
        """`rows` in one tree, with every position that predicts an action's token asked for."""
        sequences = [row.prompt_ids + row.action_ids[:-1] for row in rows]
        return cls(rows, prefix_tree(sequences, [len(row.prompt_ids) - 1 for row in rows]))

    def predictors(self, num_predictors: int) -> list[int]:
        """For each action token, row after row, which of the last `num_predictors` positions predicts it."""
        start = len(self.tree) - num_predictors
        paths = zip(self.rows, self.tree.paths, strict=True)
        return [node - start for row, path in paths for node in path[len(row.prompt_ids) - 1 :]]


@dataclass(frozen=True)
class Batch:
    """B packs, padded on the left to S positions, of which the last K predict; T action tokens to train, padded too."""

    ids_BS: Tensor
    positions_BS: Tensor
    attention: Tensor  # [B, S] of 0 and 1 if every pack holds one row, else additive float32 [B, 1, S, S]
    num_predictors: int  # K
    predictors_BT: Tensor  # which of the last K positions predicts each token
    labels_BT: Tensor  # the tokens
    mask_BT: Tensor  # bool: the trained tokens
    sampled_logprobs_BT: Tensor
    advantages_BT: Tensor
    temperatures_B: Tensor


def row_of(turn: Turn, advantage: float = 1.0) -> Row:
    """The training row of one turn."""
    return Row(turn.prompt_ids, turn.action_ids, turn.action_logprobs, advantage, turn.sampling.temperature or 1.0)


def rows_of(
    groups: Sequence[Group], policy: str, advantages: Mapping[str, Mapping[tuple[str, int], float]]
) -> list[Row]:
    """The rows of `policy`: the turns it sampled, in episodes whose role has an advantage. `advantages`: by role.

    A turn without tokens gives no row (its episode still counted in the group's statistics).
    """
    rows = []
    for group in groups:
        for episode in group.episodes:
            for turn in episode.turns:
                advantage = advantages.get(turn.role, {}).get((group.id, episode.attempt))
                if turn.policy == policy and advantage is not None and turn.action_ids:
                    rows.append(row_of(turn, advantage))
    return rows


def merge(rows: Sequence[Row]) -> list[Row]:
    """Rows with equal prompt and action become one whose advantage is the sum; sums of 0 are dropped.

    Exact for one on-policy update without KL, where the gradient is linear in the advantage; count tokens before.
    """
    merged: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row.prompt_ids, row.action_ids, row.temperature)
        old = merged.get(key)
        merged[key] = row if old is None else replace(old, advantage=old.advantage + row.advantage)
    return [row for row in merged.values() if abs(row.advantage) > 1e-9]


def microbatches(rows: Sequence[Row], max_tokens: int, share: bool = True) -> list[list[Pack]]:
    """Packs of similar length together, each list within `max_tokens` padded tokens (or a single longer pack).

    Without `share` every row is a pack of its own, for models that take no attention mask of ours.
    """
    batches: list[list[Pack]] = []
    for pack in sorted(packs_of(rows, share), key=lambda pack: len(pack.tree), reverse=True):
        if not batches or (len(batches[-1]) + 1) * len(batches[-1][0].tree) > max_tokens:
            batches.append([])
        batches[-1].append(pack)
    return batches


def packs_of(rows: Sequence[Row], share: bool) -> list[Pack]:
    """Rows that begin alike together; each row alone if not `share`."""
    if not share:
        return [Pack.of([row]) for row in rows]
    by_temperature: dict[float, list[Row]] = {}
    for row in rows:
        by_temperature.setdefault(row.temperature, []).append(row)
    packs = []
    for alike in by_temperature.values():
        places = shared_rows([row.prompt_ids + row.action_ids[:-1] for row in alike])
        packs += [Pack.of([alike[place] for place in together]) for together in places]
    return packs


def collate(packs: Sequence[Pack], pad_id: int, device: str = "cpu") -> Batch:
    """Pad packs to one Batch."""
    trees = [pack.tree for pack in packs]
    num_predictors = max(tree.num_asked for tree in trees)

    def padded(values: Iterable[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
        rows = list(values)
        width = max(map(len, rows))
        return torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows], dtype=dtype, device=device)

    def per_token(values: Callable[[Row], Sequence[float]], dtype: torch.dtype = torch.float32) -> Tensor:
        return padded(([value for row in pack.rows for value in values(row)] for pack in packs), 0, dtype)

    enter_BS = padded((tree.enter for tree in trees), -1, torch.long)
    if all(len(pack.rows) == 1 for pack in packs):
        attention = (enter_BS >= 0).long()
    else:
        attention = attention_of(enter_BS, padded((tree.leave for tree in trees), -1, torch.long))
    return Batch(
        ids_BS=padded((tree.ids for tree in trees), pad_id, torch.long),
        positions_BS=padded((tree.positions for tree in trees), 0, torch.long),
        attention=attention,
        num_predictors=num_predictors,
        predictors_BT=padded((pack.predictors(num_predictors) for pack in packs), 0, torch.long),
        labels_BT=per_token(lambda row: row.action_ids, torch.long),
        mask_BT=per_token(lambda row: [1] * len(row.action_ids), torch.bool),
        sampled_logprobs_BT=per_token(lambda row: row.logprobs or [0.0] * len(row.action_ids)),
        advantages_BT=per_token(lambda row: [row.advantage] * len(row.action_ids)),
        temperatures_B=torch.tensor([pack.rows[0].temperature for pack in packs], dtype=torch.float32, device=device),
    )
