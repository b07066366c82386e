"""Batching: from groups and advantages to rows, and from rows to padded tensors that fit a token budget.

A row is one turn of a trained policy: the exact prompt ids it saw and the exact ids it sampled. Nothing is re-encoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
class Batch:
    """Padded rows. Sequences are padded on the left, so that the actions of all rows end at the last column."""

    ids_BS: Tensor
    attention_BS: Tensor
    positions_BS: Tensor
    mask_BT: Tensor  # bool: the trained tokens
    sampled_logprobs_BT: Tensor
    advantages_BT: Tensor
    temperatures_B: Tensor

    @property
    def num_actions(self) -> int:
        """T: the longest action."""
        return self.mask_BT.shape[1]


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


def microbatches(rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
    """Rows of similar length together, each list within `max_tokens` padded tokens (or a single longer row)."""
    batches: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: row.num_tokens, reverse=True):
        if not batches or (len(batches[-1]) + 1) * batches[-1][0].num_tokens > max_tokens:
            batches.append([])
        batches[-1].append(row)
    return batches


def collate(rows: Sequence[Row], pad_id: int, device: str = "cpu") -> Batch:
    """Pad rows to one Batch."""
    length, actions = max(row.num_tokens for row in rows), max(len(row.action_ids) for row in rows)

    def right_aligned(values: Sequence[Sequence[float]], width: int, fill: float, dtype: torch.dtype) -> Tensor:
        padded = [[fill] * (width - len(row)) + list(row) for row in values]
        return torch.tensor(padded, dtype=dtype, device=device)

    lengths = [len(row.action_ids) for row in rows]
    sampled = [row.logprobs or (0.0,) * len(row.action_ids) for row in rows]
    attention_BS = right_aligned([[1] * row.num_tokens for row in rows], length, 0, torch.long)
    return Batch(
        ids_BS=right_aligned([(*row.prompt_ids, *row.action_ids) for row in rows], length, pad_id, torch.long),
        attention_BS=attention_BS,
        positions_BS=(attention_BS.cumsum(1) - 1).clamp(min=0),
        mask_BT=right_aligned([[1] * n for n in lengths], actions, 0, torch.bool),
        sampled_logprobs_BT=right_aligned(sampled, actions, 0.0, torch.float32),
        advantages_BT=right_aligned(
            [[r.advantage] * n for r, n in zip(rows, lengths, strict=True)], actions, 0.0, torch.float32
        ),
        temperatures_B=torch.tensor([row.temperature for row in rows], dtype=torch.float32, device=device),
    )
