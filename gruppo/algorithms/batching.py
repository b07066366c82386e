"""Batching: from groups and advantages to rows, and from rows to padded tensors that fit a token budget.

A row is one turn of a trained policy: the exact prompt ids it saw and the exact ids it sampled. Nothing is re-encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """B packs of rows that share a prompt: the prompt once, then their actions, each seeing the prompt and itself.

    Sequences are padded on the left, so that all actions end at the last column. T is the longest sum of a pack's
    actions; a trained token is predicted by the position before it, the first of each action by the prompt's last.
    """

    ids_BS: Tensor
    positions_BS: Tensor
    attention: Tensor  # [B, S] of 0 and 1 if every pack holds one row, else additive float32 [B, 1, S, S]
    predictors_BT: Tensor  # where in the last T + 1 positions each token is predicted
    mask_BT: Tensor  # bool: the trained tokens
    sampled_logprobs_BT: Tensor
    advantages_BT: Tensor
    temperatures_B: Tensor

    @property
    def num_actions(self) -> int:
        """T."""
        return self.mask_BT.shape[1]


Pack = list[Row]
"""Rows with the same prompt and temperature."""


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


def packs_of(rows: Sequence[Row], share: bool) -> list[Pack]:
    """Rows with the same prompt together, so that it is computed once; each row alone if not `share`."""
    packs: dict[tuple[object, ...], Pack] = {}
    for number, row in enumerate(rows):
        packs.setdefault((row.prompt_ids, row.temperature) if share else (number,), []).append(row)
    return list(packs.values())


def length_of(pack: Pack) -> int:
    """Positions that a pack takes."""
    return len(pack[0].prompt_ids) + sum(len(row.action_ids) for row in pack)


def microbatches(rows: Sequence[Row], max_tokens: int, share: bool = True) -> list[list[Pack]]:
    """Packs of similar length together, each list within `max_tokens` padded tokens (or a single longer pack)."""
    batches: list[list[Pack]] = []
    for pack in sorted(packs_of(rows, share), key=length_of, reverse=True):
        if not batches or (len(batches[-1]) + 1) * length_of(batches[-1][0]) > max_tokens:
            batches.append([])
        batches[-1].append(pack)
    return batches


def collate(packs: Sequence[Pack], pad_id: int, device: str = "cpu") -> Batch:
    """Pad packs to one Batch."""
    length, actions = max(map(length_of, packs)), max(length_of(pack) - len(pack[0].prompt_ids) for pack in packs)

    def padded(values: Sequence[Sequence[float]], width: int, fill: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[fill] * (width - len(row)) + list(row) for row in values], dtype=dtype, device=device)

    def per_token(values: Callable[[Row], Sequence[float]], dtype: torch.dtype = torch.float32) -> Tensor:
        return padded([[value for row in pack for value in values(row)] for pack in packs], actions, 0, dtype)

    prompts = [pack[0].prompt_ids for pack in packs]
    # Which action of its pack a position belongs to, from 1; 0 is the prompt, -1 padding.
    segments = [[0] * len(pack[0].prompt_ids) + segments_of(pack) for pack in packs]
    starts = [[len(pack[0].prompt_ids) + t for row in pack for t in range(len(row.action_ids))] for pack in packs]
    return Batch(
        ids_BS=padded(
            [[*pack[0].prompt_ids, *(i for row in pack for i in row.action_ids)] for pack in packs],
            length,
            pad_id,
            torch.long,
        ),
        positions_BS=padded(
            [[*range(len(p)), *s] for p, s in zip(prompts, starts, strict=True)], length, 0, torch.long
        ),
        attention=attention_of(padded(segments, length, -1, torch.long), single=all(len(pack) == 1 for pack in packs)),
        predictors_BT=padded([predictors_of(pack, actions) for pack in packs], actions, 0, torch.long),
        mask_BT=per_token(lambda row: [1] * len(row.action_ids), torch.bool),
        sampled_logprobs_BT=per_token(lambda row: row.logprobs or [0.0] * len(row.action_ids)),
        advantages_BT=per_token(lambda row: [row.advantage] * len(row.action_ids)),
        temperatures_B=torch.tensor([pack[0].temperature for pack in packs], dtype=torch.float32, device=device),
    )


def segments_of(pack: Pack) -> list[int]:
    """The number of the action, from 1, for each action token of a pack."""
    return [number for number, row in enumerate(pack, 1) for _ in row.action_ids]


def predictors_of(pack: Pack, num_actions: int) -> list[int]:
    """For each action token of a pack, which of the batch's last T + 1 positions predicts it."""
    prompt_end = num_actions - len(segments_of(pack))
    found, start = [], prompt_end
    for row in pack:
        found += [prompt_end if place == 0 else start + place for place in range(len(row.action_ids))]
        start += len(row.action_ids)
    return found


def attention_of(segments_BS: Tensor, single: bool) -> Tensor:
    """Plain if each pack is one row; else additive: a position sees the prompt and its own action up to itself."""
    if single:
        return (segments_BS >= 0).long()
    width = segments_BS.shape[1]
    ones = torch.ones(width, width, dtype=torch.bool, device=segments_BS.device)
    query_BS1, key_B1S = segments_BS[:, :, None], segments_BS[:, None, :]
    allowed_BSS = ones.tril() & ((key_B1S == 0) | (key_B1S == query_BS1)) & (key_B1S >= 0)
    allowed_BSS |= torch.eye(width, dtype=torch.bool, device=segments_BS.device)  # padding must see something
    blocked = torch.finfo(torch.float32).min
    return torch.zeros(allowed_BSS.shape, device=segments_BS.device).masked_fill(~allowed_BSS, blocked)[:, None]
