"""The prefix tree: sequences of ids laid out in one row, so that what they begin alike is computed once.

Used where prompts are read (`engines/decoding`) and where actions are trained (`algorithms/batching`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any

import torch
from torch import Tensor

Ids = tuple[int, ...]

ROW_LENGTH = 256  # nodes of a row of short sequences: the longer, the more is computed only to be masked
MIN_SHARE = 0.25  # what a sequence must save to join a row beyond that; such a row ends at twice its longest sequence


@dataclass(frozen=True)
class PrefixTree:
    """Nodes in the order of their row; node i sees node j if and only if enter[j] <= enter[i] < leave[j].

    The nodes that are asked for come last, so that the head of a model need compute no others.
    """

    ids: list[int]
    positions: list[int]  # depths, which are the positions in the sequences
    enter: list[int]
    leave: list[int]
    paths: list[list[int]]  # for each sequence, the nodes along it
    num_asked: int

    def __len__(self) -> int:
        return len(self.ids)


def prefix_tree(sequences: Sequence[Ids], asked_from: Sequence[int]) -> PrefixTree:
    """The tree of `sequences`; asked for are the nodes of each from its index `asked_from` on."""
    ids: list[int] = []  # in preorder first: a node's number is when the walk enters it
    depths: list[int] = []
    leave: list[int] = []
    paths: list[list[int]] = [[] for _ in sequences]
    asked: set[int] = set()
    before: Ids = ()
    path: list[int] = []
    for place in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[place]
        kept = common_length(before, sequence)
        for node in path[kept:]:
            leave[node] = len(ids)
        path = path[:kept] + list(range(len(ids), len(ids) + len(sequence) - kept))
        ids += sequence[kept:]
        depths += range(kept, len(sequence))
        leave += [0] * (len(sequence) - kept)
        paths[place], before = path, sequence
        asked.update(path[asked_from[place] :])
    for node in path:
        leave[node] = len(ids)
    order = sorted(range(len(ids)), key=lambda node: (node in asked, node))
    column = {node: place for place, node in enumerate(order)}
    return PrefixTree(
        ids=[ids[node] for node in order],
        positions=[depths[node] for node in order],
        enter=order,
        leave=[leave[node] for node in order],
        paths=[[column[node] for node in path] for path in paths],
        num_asked=len(asked),
    )


def shared_rows(sequences: Sequence[Ids]) -> list[list[int]]:
    """Which sequences are worth laying out together: lists of their places, every place in one of them.

    Neighbours in sorted order share a row: short ones until it is full, all rows about equally, long ones if they save.
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    kept = [common_length(sequences[a], sequences[b]) for a, b in pairwise([*order[:1], *order])]
    kept[:1] = [0]
    total = sum(len(sequence) for sequence in sequences) - sum(kept)
    full = total / ceil(total / ROW_LENGTH)
    rows: list[list[int]] = []
    length = longest = 0
    for place, shared in zip(order, kept, strict=True):
        own = len(sequences[place])
        longest, length = max(longest, own), length + own - shared
        fits = length - own + shared < full or (shared >= MIN_SHARE * own and length <= 2 * longest)
        if not rows or not fits:
            rows.append([])
            longest = length = own
        rows[-1].append(place)
    return rows


def common_length(first: Ids, second: Ids) -> int:
    """How many ids two sequences begin with alike."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    return next(place for place in range(length) if first[place] != second[place])


def attention_of(enter_BS: Tensor, leave_BS: Tensor) -> Tensor:
    """Additive float32 [B, 1, S, S]: 0 where a node sees another, very negative elsewhere. Padding has enter -1."""
    allowed_BSS = (enter_BS[:, None, :] <= enter_BS[:, :, None]) & (enter_BS[:, :, None] < leave_BS[:, None, :])
    allowed_BSS &= enter_BS[:, None, :] >= 0
    allowed_BSS |= torch.eye(enter_BS.shape[1], dtype=torch.bool, device=enter_BS.device)  # padding must see something
    blocked = torch.finfo(torch.float32).min
    return torch.zeros(allowed_BSS.shape, device=enter_BS.device).masked_fill(~allowed_BSS, blocked)[:, None]


def takes_trees(model: Any) -> bool:
    """Whether a model computes a row of several sequences right: its attention must take a mask of ours."""
    kinds = set(model.config.to_dict().get("layer_types") or ["full_attention"])
    return kinds == {"full_attention"} and model.config._attn_implementation in ("sdpa", "eager")
