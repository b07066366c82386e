"""The prefix tree: sequences of ids laid out in one row, so that what they begin alike is computed once.

Used where prompts are read (`engines/decoding`) and where actions are trained (`algorithms/batching`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Ids = tuple[int, ...]


@dataclass(frozen=True)
class PrefixTree:
    """Nodes in the order of their row. Those that are asked for come last, so that the head of a model need compute no
    others."""

    ids: list[int]
    positions: list[int]  # depths, which are the positions in the sequences
    paths: list[list[int]]  # for each sequence, the nodes along it
    num_asked: int

    def __len__(self) -> int:
        return len(self.ids)


def prefix_tree(sequences: Sequence[Ids], asked_from: Sequence[int]) -> PrefixTree:
    """The tree of `sequences`; asked for are the nodes of each from its index `asked_from` on."""
    ids: list[int] = []  # in preorder first: a node's number is when the walk enters it
    depths: list[int] = []
    paths: list[list[int]] = [[] for _ in sequences]
    asked: set[int] = set()
    before: Ids = ()
    path: list[int] = []
    for place in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[place]
        kept = common_length(before, sequence)
        path = path[:kept] + list(range(len(ids), len(ids) + len(sequence) - kept))
        ids += sequence[kept:]
        depths += range(kept, len(sequence))
        paths[place], before = path, sequence
        asked.update(path[asked_from[place] :])
    order = sorted(range(len(ids)), key=lambda node: (node in asked, node))
    column = {node: place for place, node in enumerate(order)}
    return PrefixTree(
        ids=[ids[node] for node in order],
        positions=[depths[node] for node in order],
        paths=[[column[node] for node in path] for path in paths],
        num_asked=len(asked),
    )


def shared_rows(sequences: Sequence[Ids], max_nodes: int) -> list[list[int]]:
    """Which sequences are laid out together: lists of their places, every place in one of them.

    In sorted order, so that neighbours begin alike, each row is filled up to `max_nodes`; a longer sequence has one of
    its own. What is shared is computed once, and nothing is padded.
    """
    rows: list[list[int]] = []
    length = 0
    before: Ids = ()
    for place in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[place]
        new = len(sequence) - common_length(before, sequence)
        if rows and length + new <= max_nodes:
            rows[-1].append(place)
            length += new
        else:
            rows.append([place])
            length = len(sequence)
        before = sequence
    return rows


def num_distinct(sequences: Sequence[Ids]) -> int:
    """How many nodes their tree has."""
    ordered = sorted(sequences)
    return sum(len(own) - common_length(before, own) for before, own in zip([(), *ordered], ordered, strict=False))


def common_length(first: Ids, second: Ids) -> int:
    """How many ids two sequences begin with alike."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    return next(place for place in range(length) if first[place] != second[place])
