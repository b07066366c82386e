"""The prefix tree: sequences of ids laid out in one row, so that what they begin alike is computed once.

Used where prompts are read (`engines/decoding`) and where actions are trained (`algorithms/batching`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Ids = tuple[int, ...]

REACH = 1600  # nodes of a row whose attention costs as much as all else; measured for hidden sizes of 128 and of 576
MAX_ROW = 2**13  # nodes of a shared row: 256 MiB of mask


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


def shared_rows(sequences: Sequence[Ids], max_nodes: int = MAX_ROW) -> list[list[int]]:
    """Which sequences are worth laying out together: lists of their places, every place in one of them.

    In sorted order, a sequence joins the row before it if that costs less than a row of its own, where a row of n
    nodes costs n + n^2 / REACH: what is shared is computed once, but each node is masked from all that are not its own.
    Rows of several have at most `max_nodes`, nor more than MAX_ROW.
    """
    rows: list[list[int]] = []
    length = 0
    before: Ids = ()
    for place in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[place]
        own, shared = len(sequence), common_length(before, sequence)
        together = length + own - shared
        if rows and together <= min(max_nodes, MAX_ROW) and together**2 - length**2 - own**2 <= REACH * shared:
            rows[-1].append(place)
            length = together
        else:
            rows.append([place])
            length = own
        before = sequence
    return rows


def common_length(first: Ids, second: Ids) -> int:
    """How many ids two sequences begin with alike."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    return next(place for place in range(length) if first[place] != second[place])


def attention_of(enter_BS: Tensor, leave_BS: Tensor) -> Tensor:
    """Additive float32 [B, 1, S, S]: 0 where a node sees another, very negative elsewhere. Padding has -1 in both."""
    allowed_BSS = (enter_BS[:, None, :] <= enter_BS[:, :, None]) & (enter_BS[:, :, None] < leave_BS[:, None, :])
    allowed_BSS.diagonal(dim1=1, dim2=2).fill_(True)  # padding must see something
    return torch.where(allowed_BSS, 0.0, torch.finfo(torch.float32).min)[:, None]


def takes_trees(model: Any) -> bool:
    """Whether a model's attention takes a mask of ours, by its configuration."""
    config = model.config.to_dict()
    kinds = config.get("layer_types") or ["sliding_attention" if config.get("sliding_window") else "full_attention"]
    return set(kinds) == {"full_attention"} and model.config._attn_implementation in ("sdpa", "eager")


def computes_trees(model: Any) -> bool:
    """Whether a model that `takes_trees` computes in one what it computes of each sequence alone, tried on a few ids.

    One that has states for attention, or finds positions in the mask, does not.
    """
    if not takes_trees(model):
        return False
    sequences = [(0, 1, 2, 3), (0, 1, 3, 2, 1)]
    tree = prefix_tree(sequences, [3, 4])
    ids, positions, enter, leave = torch.tensor(
        [tree.ids, tree.positions, tree.enter, tree.leave], device=model.device
    ).split(1)
    with torch.no_grad():
        try:
            attention = attention_of(enter, leave).to(model.dtype)
            together = model(input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False).logits[0]
        except Exception:  # a model of any make may raise anything at a mask that it does not know
            return False
        alone = [model(input_ids=ids.new_tensor([own]), use_cache=False).logits[0, -1] for own in sequences]
    ends = torch.stack([together[path[-1]] for path in tree.paths])
    tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
    return torch.allclose(ends, torch.stack(alone), rtol=tolerance, atol=tolerance)
