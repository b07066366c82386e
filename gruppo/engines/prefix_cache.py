"""The prefix cache: key-values of what was computed before, for prompts that begin like it.

The turns of an episode repeat one another: the next prompt begins with the last one. What a batch has computed is kept
as the block it lies in, and found again by ids. It knows no models and computes nothing; `decoding` fills and asks it.
Legend: U branches, P prompt positions (left-padded), N positions to compute.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gruppo.prefix_tree import Ids, common_length

States = list[tuple[Tensor, Tensor]]  # of each layer the keys and values [U, heads, positions, head size]

MIN_SAVING = 0.25  # of the ids to compute: below it, gathering costs more than it saves


class PrefixCache:
    """Key-values by policy and ids, at most `max_bytes` of them; what was not used for longest goes first. 0: off.

    `stamp(policy)` is a number that changes whenever a policy's weights do.
    """

    def __init__(self, max_bytes: int = 0, stamp: Callable[[str | None], int] = lambda policy: 0) -> None:
        self.max_bytes = max_bytes
        self._stamp = stamp
        self._period = 0
        self._stamps: dict[str | None, int] = {}
        self._blocks: dict[int, _Block] = {}  # by number, the least recently used first
        self._branches: dict[str | None, list[_Branch]] = {}  # sorted
        self._num_kept = self.num_bytes = 0

    def enter(self, period: int, policy: str | None) -> None:
        """Drop what is stale: everything of another period, and what a policy's earlier weights computed."""
        if period != self._period:
            self._period = period
            self._drop(list(self._blocks))
        stamp = self._stamp(policy)
        if self._stamps.get(policy) != stamp:
            self._stamps[policy] = stamp
            self._drop([number for number, block in self._blocks.items() if block.policy == policy])

    def keep(self, policy: str | None, branches: Sequence[tuple[int, Ids]], states: States) -> None:
        """Remember `states`, which must not change any more, of branches whose ids begin at a position each."""
        num_bytes = sum(tensor.untyped_storage().nbytes() for pair in states for tensor in pair)
        if num_bytes > self.max_bytes:
            return
        while self.num_bytes + num_bytes > self.max_bytes:
            self._drop([next(iter(self._blocks))])
        self.num_bytes += num_bytes
        self._num_kept += 1
        self._blocks[self._num_kept] = _Block(policy, states, num_bytes)
        for row, (start, ids) in enumerate(branches):
            insort(self._branches.setdefault(policy, []), _Branch(ids, self._num_kept, row, start))

    def beginnings(self, policy: str | None, prompts: Sequence[Ids]) -> tuple[int, States] | None:
        """(N, states [U, heads, P - N, size]): all that goes before each prompt's last N ids, left-padded like them.

        None where it would save too little.
        """
        known = self._branches.get(policy)
        if not known:
            return None
        found = [_longest(known, ids) for ids in prompts]
        num_new = max(len(ids) - length for ids, (length, _) in zip(prompts, found, strict=True))
        if len(prompts) * num_new > (1 - MIN_SAVING) * _num_distinct(prompts):
            return None
        width = max(map(len, prompts)) - num_new
        rows: dict[int, list[tuple[int, _Branch]]] = {}
        for place, (_, branch) in enumerate(found):
            rows.setdefault(branch.block, []).append((place, branch))
        for number in rows:
            self._blocks[number] = self._blocks.pop(number)
        starts = [width - len(ids) + num_new for ids in prompts]
        return num_new, self._gathered(rows, starts, width)

    def _gathered(self, rows: dict[int, list[tuple[int, _Branch]]], starts: Sequence[int], width: int) -> States:
        """From each block its rows, each shifted so that it begins at its start among `width` positions."""
        gathered: States = []
        for number, own in rows.items():
            states = self._blocks[number].states
            device = states[0][0].device
            place_U = torch.tensor([place for place, _ in own], device=device)
            row_U1 = torch.tensor([[branch.row] for _, branch in own], device=device)
            shift_U1 = torch.tensor([[branch.start - starts[place]] for place, branch in own], device=device)
            # Before its beginning a row shows whatever lies there: attention doesn't look at it.
            position_UP = (torch.arange(width, device=device) + shift_U1).clamp(min=0)
            if not gathered:
                shape = len(starts), states[0][0].shape[1], width
                gathered = [
                    (keys.new_empty(*shape, keys.shape[3]), values.new_empty(*shape, values.shape[3]))
                    for keys, values in states
                ]
            for targets, pair in zip(gathered, states, strict=True):
                for target, one in zip(targets, pair, strict=True):
                    target[place_U] = one[row_U1, :, position_UP].transpose(1, 2)
        return gathered

    def _drop(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        for number in numbers:
            self.num_bytes -= self._blocks.pop(number).num_bytes
        for policy, branches in self._branches.items():
            self._branches[policy] = [branch for branch in branches if branch.block in self._blocks]


@dataclass(frozen=True)
class _Block:
    """What one batch left behind."""

    policy: str | None
    states: States
    num_bytes: int


class _Branch(NamedTuple):
    """Ids whose states lie in a row of a block, from the position `start` on. Sorts by its ids."""

    ids: Ids
    block: int
    row: int
    start: int


def _longest(known: Sequence[_Branch], ids: Ids) -> tuple[int, _Branch]:
    """The branch that begins most like `ids`, and how many of these, all but the last one, it has."""
    place = bisect(known, (ids,))  # what begins most like it stands beside it
    beside = known[max(0, place - 1) : place + 1]
    length, branch = max(((common_length(branch.ids, ids), branch) for branch in beside), key=lambda pair: pair[0])
    return min(length, len(ids) - 1), branch


def _num_distinct(prompts: Sequence[Ids]) -> int:
    """How many ids are to be computed where each shared beginning is computed once."""
    order = sorted(prompts)
    return sum(map(len, order)) - sum(common_length(first, second) for first, second in pairwise(order))
