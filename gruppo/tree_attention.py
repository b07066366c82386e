"""Attention along the paths of prefix trees: a node meets its ancestors and itself, and no other product is computed.

A mask over a row of n nodes costs n^2, however few see one another. Here every sequence brings, as queries, the nodes
that no sequence before it has brought, and its whole path as keys; those of like lengths are one product. So sequences
that share nothing may lie in one row too, without padding. Models are unchanged: they call the attention that their
config names.
Legend: B rows, S nodes of a row (left-padded), N = B x S, R sequences of a bucket, Q nodes that they bring, K nodes of
their paths, H heads, J heads of key-values, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from gruppo.prefix_tree import PrefixTree, prefix_tree

TREES = "gruppo_trees"  # the name of this attention
_MAX_SCORES = 2**24  # of a bucket, for each head


@dataclass(frozen=True)
class Bucket:
    """Sequences whose own nodes are computed in one product; both are padded on the left."""

    query_RQ: Tensor  # places among the N nodes
    key_RK: Tensor
    bias_RQK: Tensor | None  # additive: 0 or very negative; None for one sequence that brings its whole path

    def attend(self, query_NX: Tensor, key_NX: Tensor, value_NX: Tensor, heads: tuple[int, int], how: _How) -> Tensor:
        """[R x Q, H x D] of the own nodes."""
        num_heads, num_kv = heads
        num_sequences, num_own = self.query_RQ.shape
        # An embedding is a choice of rows whose gradient adds up in one order, whatever the number of threads.
        query = F.embedding(self.query_RQ, query_NX).view(num_sequences, num_own, num_heads, -1).transpose(1, 2)
        key, value = (
            F.embedding(self.key_RK, states_NX).view(num_sequences, -1, num_kv, states_NX.shape[1] // num_kv)
            for states_NX in (key_NX, value_NX)
        )
        bias = None if self.bias_RQK is None else self.bias_RQK[:, None].to(query.dtype)
        attend = F.scaled_dot_product_attention if how.softcap is None else how.capped
        found = attend(
            query,
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=bias,
            dropout_p=how.dropout,
            is_causal=bias is None,
            scale=how.scaling,
            enable_gqa=num_heads != num_kv,
        )
        return found.transpose(1, 2).reshape(num_sequences * num_own, -1)


@dataclass(frozen=True)
class Paths:
    """How the nodes of a batch attend."""

    buckets: Sequence[Bucket]
    source_N: Tensor  # each node's place among the queries, bucket after bucket; padding has any

    @classmethod
    def of(cls, trees: Sequence[PrefixTree], device: Any = "cpu") -> Paths:
        """The paths of trees that are padded on the left to the longest of them."""
        width = max(map(len, trees))
        own_and_whole: list[tuple[list[int], list[int]]] = []
        for row, tree in enumerate(trees):
            start, seen = (row + 1) * width - len(tree), set[int]()
            for path in tree.paths:
                own = path[next((depth for depth, node in enumerate(path) if node not in seen), len(path)) :]
                seen.update(own)
                if own:
                    own_and_whole.append(([start + node for node in own], [start + node for node in path]))
        own_and_whole.sort(key=lambda pair: len(pair[0]), reverse=True)
        source = [0] * (len(trees) * width)
        buckets, num_queries = [], 0
        for chosen in _of_like_length(own_and_whole):
            num_own = len(chosen[0][0])
            for place, (own, _) in enumerate(chosen):
                for query, node in enumerate(own, start=num_queries + (place + 1) * num_own - len(own)):
                    source[node] = query
            num_queries += num_own * len(chosen)
            buckets.append(_bucket(chosen, device))
        return cls(buckets, torch.tensor(source, device=device))


def _of_like_length(pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Sequences, sorted by what they bring, cut where more than half of a product would be padding, or too many."""
    chosen: list[tuple[list[int], list[int]]] = []
    longest = 0
    for own, path in pairs:
        longest = max(longest, len(path))
        num_own = len(chosen[0][0]) if chosen else 0
        if chosen and (2 * len(own) < num_own or (len(chosen) + 1) * num_own * longest > _MAX_SCORES):
            yield chosen
            chosen, longest = [], len(path)
        chosen.append((own, path))
    yield chosen


def _bucket(chosen: Sequence[tuple[list[int], list[int]]], device: Any) -> Bucket:
    num_own, num_path = len(chosen[0][0]), max(len(path) for _, path in chosen)
    query_RQ = torch.tensor([own[:1] * (num_own - len(own)) + own for own, _ in chosen], device=device)
    key_RK = torch.tensor([path[:1] * (num_path - len(path)) + path for _, path in chosen], device=device)
    if len(chosen) == 1 and num_own == num_path:
        return Bucket(query_RQ, key_RK, None)
    at_Q = torch.arange(num_path - num_own, num_path, device=device)[:, None]
    at_K = torch.arange(num_path, device=device)
    start_R = torch.tensor([num_path - len(path) for _, path in chosen], device=device)
    sees_RQK = (at_K <= at_Q) & (at_K >= start_R[:, None, None]) | (at_K == at_Q)  # padding must see something
    return Bucket(query_RQ, key_RK, torch.where(sees_RQK, 0.0, torch.finfo(torch.float32).min))


@dataclass(frozen=True)
class _How:
    """What a model asks of its attention."""

    scaling: float | None
    dropout: float
    softcap: float | None

    def capped(self, query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None, **options: Any) -> Tensor:
        """As `scaled_dot_product_attention`, with scores that are bounded by a soft cap."""
        assert self.softcap is not None
        per_kv, num_own, num_path = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
        key, value = (states.repeat_interleave(per_kv, dim=1) for states in (key, value))
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if self.scaling is None else self.scaling)
        scores = torch.tanh(scores / self.softcap) * self.softcap
        if attn_mask is None:
            attn_mask = torch.full((num_own, num_path), torch.finfo(scores.dtype).min, device=scores.device).triu(1)
        return (scores + attn_mask).softmax(-1, dtype=torch.float32).to(query.dtype) @ value


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    *,
    tree_paths: Paths,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention [B, S, H, D] of queries [B, H, S, D] to keys and values [B, J, S, D], along the paths."""
    num_rows, num_heads, num_nodes, _ = query.shape
    heads, how = (num_heads, key.shape[1]), _How(scaling, options.get("dropout", 0.0), options.get("softcap"))
    query, key, value = (each.transpose(1, 2).reshape(num_rows * num_nodes, -1) for each in (query, key, value))
    found = torch.cat([bucket.attend(query, key, value, heads, how) for bucket in tree_paths.buckets])
    return F.embedding(tree_paths.source_N, found).view(num_rows, num_nodes, num_heads, -1), None


AttentionInterface.register(TREES, attend)


@contextmanager
def attending(config: Any, name: str) -> Iterator[None]:
    """Inside, models of this config attend as the function does that is registered under `name`, without a mask."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def takes_trees(model: Any) -> bool:
    """Whether every layer of a model sees all that came before, by its configuration."""
    config = model.config.to_dict()
    kinds = config.get("layer_types") or ["sliding_attention" if config.get("sliding_window") else "full_attention"]
    return set(kinds) == {"full_attention"} and model.config._attn_implementation in ("sdpa", "eager")


def computes_trees(model: Any) -> bool:
    """Whether a model that `takes_trees` computes in one what it computes of each sequence alone, tried on a few ids.

    One that has states for attention, finds positions in the mask, or does not pass on what it is given does not: then
    the nodes of others, which its own attention sees, make a difference.
    """
    if not takes_trees(model):
        return False
    sequences = [(0, 1, 2, 3), (0, 1, 3, 2, 1)]
    tree = prefix_tree(sequences, [3, 4])
    ids, positions = torch.tensor([tree.ids, tree.positions], device=model.device).split(1)
    inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    ends = [path[-1] for path in tree.paths]
    with torch.no_grad():
        try:
            with attending(model.config, TREES):
                found = model(**inputs, tree_paths=Paths.of([tree], model.device)).logits[0, ends]
            mixed = model(**inputs).logits[0, ends]
        except Exception:  # a model of any make may raise anything at arguments that it does not know
            return False
        alone = torch.cat([model(input_ids=ids.new_tensor([own]), use_cache=False).logits[:, -1] for own in sequences])
    tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
    near = torch.allclose(found, alone, rtol=tolerance, atol=tolerance)
    return near and bool((found - alone).abs().max() < 0.1 * (mixed - alone).abs().max())
