"""Batching: from turns to rows, and from rows to tensors that fit a token budget.

A row is one turn of a trained policy: the exact prompt ids it saw and the exact ids it sampled. Nothing is re-encoded.
Rows that begin alike share a prefix tree; action tokens come out flat, so that no loss ever meets padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gruppo.prefix_tree import PrefixTree, num_distinct, prefix_tree, shared_rows
from gruppo.tree_attention import Paths
from gruppo.types import Group, Turn


@dataclass(frozen=True)
class Row:
    """One training example. Values per token are given once where they are the same for the whole action."""

    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    sampled: tuple[float, ...] = ()  # log-probs as sampled; empty where nothing was (demonstrations)
    advantage: float = 1.0
    temperature: float = 1.0
    weight: float = 1.0  # of each token's loss in the loss of the optimizer step
    episode: tuple[Hashable, ...] = ()  # group id and attempt
    sequence: Hashable = None  # rows with the same one are one sequence to the ratio; None: a sequence of its own
    old: tuple[float, ...] = ()  # log-probs before the first update; empty: those of the update itself
    entropy: tuple[float, ...] = ()  # of the distributions its tokens were drawn from, before the first update
    chosen: tuple[bool, ...] = ()  # tokens picked beforehand over the whole step; empty: all

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
        return cls(rows, prefix_tree([_sequence(row) for row in rows], [len(row.prompt_ids) - 1 for row in rows]))

    def predictors(self, num_predictors: int) -> list[int]:
        """For each action token, row after row, which of the last `num_predictors` positions predicts it."""
        start = len(self.tree) - num_predictors
        paths = zip(self.rows, self.tree.paths, strict=True)
        return [node - start for row, path in paths for node in path[len(row.prompt_ids) - 1 :]]


@dataclass(frozen=True)
class Batch:
    """B packs padded on the left to S positions, of which the last K predict; their N action tokens, flat.

    Tokens stand pack after pack, row after row. Per-token values are float32; what is not known is NaN.
    """

    ids_BS: Tensor
    positions_BS: Tensor
    mask_BS: Tensor  # 0 on padding
    paths: Paths | None  # how nodes attend; None if every pack holds one row
    num_predictors: int  # K
    temperatures_B: Tensor
    pack_N: Tensor
    predictor_N: Tensor  # which of the last K positions predicts the token
    label_N: Tensor
    sequence_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    sampled_N: Tensor
    old_N: Tensor
    chosen_N: Tensor  # bool


def row_of(turn: Turn, advantage: float = 1.0) -> Row:
    """The training row of one turn."""
    return Row(turn.prompt_ids, turn.action_ids, turn.action_logprobs, advantage, turn.sampling.temperature or 1.0)


def rows_of(groups: Sequence[Group], policy: str, whole: bool = False) -> list[Row]:
    """The rows of `policy`: the turns it sampled that were given an advantage.

    `whole`: all turns of a role in an episode are one sequence to the ratio. A turn without tokens gives no row (its
    episode still counted in the group's statistics).
    """
    rows = []
    for group in groups:
        for episode in group.episodes:
            for turn, credit in zip(episode.turns, episode.credits, strict=False):
                if turn.policy == policy and credit.advantage is not None and turn.action_ids:
                    place = (group.id, episode.attempt)
                    sequence = (*place, turn.role) if whole else None
                    rows.append(replace(row_of(turn, credit.advantage), episode=place, sequence=sequence))
    return rows


def shares_of(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """The rows in `count` shares, those of a group together; empty shares are left out."""
    groups = {key: place for place, key in enumerate(dict.fromkeys(row.episode[0] for row in rows))}
    shares: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        shares[groups[row.episode[0]] % count].append(row)
    return [share for share in shares if share]


def merge(rows: Sequence[Row]) -> list[Row]:
    """Rows with equal prompt and action become one whose weighted advantages add up; sums of 0 are dropped.

    Exact for an update whose gradient is linear in weight x advantage: on-policy, without KL or entropy terms.
    """
    merged: dict[Hashable, Row] = {}
    for row in rows:
        key = (row.prompt_ids, row.action_ids, row.temperature)
        pull = row.weight * row.advantage
        old = merged.get(key)
        merged[key] = replace(row, weight=1.0, advantage=pull + (old.advantage if old else 0.0))
    sizes = [abs(row.advantage) for row in merged.values()]
    residue = 1e-9 * max(filter(math.isfinite, sizes), default=0.0)
    return [row for row, size in zip(merged.values(), sizes, strict=True) if not size <= residue]


def microbatches(rows: Sequence[Row], max_tokens: int, share: bool = True, whole: bool = False) -> list[list[Pack]]:
    """Packs of similar length together, each list within `max_tokens` padded tokens (or a single longer unit).

    Without `share` every row is a pack of its own, for models that take no attention mask of ours. `whole` keeps the
    rows of a sequence in one list.
    """
    return _within(_units(rows, max_tokens, share, whole), max_tokens)


def balanced(
    rows: Sequence[Row], num: int, max_tokens: int, share: bool = True, whole: bool = False
) -> list[list[list[Pack]]]:
    """The `microbatches` of at most `num` processes that work side by side, with about equally many tokens each."""
    shares: list[list[list[Pack]]] = [[] for _ in range(num)]
    sizes = [0] * num
    even = math.ceil(_EVEN * num_distinct([_sequence(row) for row in rows]) / num)
    for unit in sorted(_units(rows, min(max_tokens, even), share, whole), key=_size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(unit)
        sizes[least] += _size(unit)
    return [_within(own, max_tokens) for own in shares if own]


_EVEN = 1.05  # a share that is a little larger than an even one leaves no rest behind


def _units(rows: Sequence[Row], max_tokens: int, share: bool, whole: bool) -> list[list[Pack]]:
    """Packs that must not be parted."""
    sequences = by(rows, key_of).values() if whole else [[row] for row in rows]
    alone = [own[0] for own in sequences if len(own) == 1]
    units = [packs_of(own, max_tokens, share) for own in sequences if len(own) > 1]
    return units + [[pack] for pack in packs_of(alone, max_tokens, share)]


def _within(units: Sequence[list[Pack]], max_tokens: int) -> list[list[Pack]]:
    lengths = [max(len(pack.tree) for pack in unit) for unit in units]
    batches: list[list[Pack]] = []
    longest = 0
    for length, unit in sorted(zip(lengths, units, strict=True), key=lambda pair: pair[0], reverse=True):
        full = not batches or (len(batches[-1]) + len(unit)) * longest > max_tokens
        if full or 2 * length < longest:  # else most of it would be padding
            batches.append([])
            longest = length
        batches[-1] += unit
    return batches


def _size(unit: Sequence[Pack]) -> int:
    return sum(len(pack.tree) for pack in unit)


def packs_of(rows: Sequence[Row], max_tokens: int, share: bool) -> list[Pack]:
    """Rows that begin alike together, as far as `max_tokens` allow; each row alone if not `share`."""
    if not share:
        return [Pack.of([row]) for row in rows]
    packs = []
    for alike in by(rows, lambda row: row.temperature).values():
        places = shared_rows([_sequence(row) for row in alike], max_tokens)
        packs += [Pack.of([alike[place] for place in together]) for together in places]
    return packs


def _sequence(row: Row) -> tuple[int, ...]:
    """What is computed: the last id predicts nothing."""
    return row.prompt_ids + row.action_ids[:-1]


def by(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> Mapping[Hashable, list[Row]]:
    """The rows of each key, in order."""
    found: dict[Hashable, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def key_of(row: Row) -> Hashable:
    """Which sequence a row belongs to."""
    return id(row) if row.sequence is None else row.sequence


def collate(packs: Sequence[Pack], pad_id: int, device: str = "cpu") -> Batch:
    """Packs as one Batch."""
    trees, rows = [pack.tree for pack in packs], [row for pack in packs for row in pack.rows]
    num_predictors = max(tree.num_asked for tree in trees)
    sequences = {key: place for place, key in enumerate(dict.fromkeys(map(key_of, rows)))}

    def padded(values: Iterable[Sequence[int]], fill: int) -> Tensor:
        lists = list(values)
        width = max(map(len, lists))
        return torch.tensor([[fill] * (width - len(own)) + list(own) for own in lists], device=device)

    def flat(values: Callable[[Row], Sequence[float]], fill: float, dtype: torch.dtype = torch.float32) -> Tensor:
        own = [(values(row), len(row.action_ids)) for row in rows]
        return torch.tensor([v for given, n in own for v in (given or (fill,) * n)], dtype=dtype, device=device)

    alone = all(len(pack.rows) == 1 for pack in packs)
    nan = float("nan")
    return Batch(
        ids_BS=padded((tree.ids for tree in trees), pad_id),
        positions_BS=padded((tree.positions for tree in trees), 0),
        mask_BS=padded(([1] * len(tree) for tree in trees), 0),
        paths=None if alone else Paths.of(trees, device),
        num_predictors=num_predictors,
        temperatures_B=torch.tensor([pack.rows[0].temperature for pack in packs], dtype=torch.float32, device=device),
        pack_N=torch.tensor(
            [place for place, pack in enumerate(packs) for row in pack.rows for _ in row.action_ids], device=device
        ),
        predictor_N=torch.tensor([place for pack in packs for place in pack.predictors(num_predictors)], device=device),
        label_N=flat(lambda row: row.action_ids, 0, torch.long),
        sequence_N=flat(lambda row: [sequences[key_of(row)]] * len(row.action_ids), 0, torch.long),
        advantages_N=flat(lambda row: [row.advantage] * len(row.action_ids), 0),
        weights_N=flat(lambda row: [row.weight] * len(row.action_ids), 0),
        sampled_N=flat(lambda row: row.sampled, nan),
        old_N=flat(lambda row: row.old, nan),
        chosen_N=flat(lambda row: row.chosen, 1, torch.bool),
    )
