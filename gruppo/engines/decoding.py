"""Decoding: from the prompts of one batch to sampled ids and their log-probabilities.

What requests share is computed once: beginnings of prompts, prompts, and the ids sampled so far; what earlier batches
left in a prefix cache is not computed again. Finished rows leave the batch. Legend: B requests, U branches, R rows of
prompt trees, S nodes of a row, P prompt positions (left-padded), T sampled positions, K positions with logits, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from gruppo.engines.branches import BRANCHES, LEAVE_SHARE, branch, follow, new_cache
from gruppo.engines.prefix_cache import PrefixCache, States
from gruppo.prefix_tree import Ids, prefix_tree, shared_rows
from gruppo.tree_attention import TREES, Paths, attending
from gruppo.types import Request


@dataclass(frozen=True)
class Prompted:
    """A request with its rendered prompt; `index` is its place in the call."""

    index: int
    request: Request
    prompt: str
    prompt_ids: Ids


def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Prompted],
    end_ids: Sequence[int],
    known: PrefixCache | None,
) -> list[tuple[Ids, tuple[float, ...]]]:
    """Sampled ids and their log-probs for each row; the rows are of one policy.

    Rows that have the same prompt and have sampled the same ids so far are one branch, computed once: attempts at one
    task part only where their draws do. What is `known` of the prompts is not computed again; it learns what was. None
    is for a model that does not compute branches: then each has a whole cache of its own.
    """
    device = next(model.parameters()).device
    draw = _Draw.of(rows, device)
    stops = _StopStrings(tokenizer, [row.request.sampling.stop for row in rows])
    end = torch.tensor(end_ids, device=device)
    num_steps = draw.uniforms_BT.shape[1]
    ids_BT = torch.zeros(len(rows), num_steps, dtype=torch.long, device=device)
    logprobs_BT = torch.zeros(len(rows), num_steps, device=device)
    lengths_B = torch.zeros(len(rows), dtype=torch.long, device=device)
    row_B = torch.arange(len(rows), device=device)  # the rows that go on

    cache = new_cache(model, known is not None)
    logits_UV, mask_UL, position_U, branch_B = _prefill(model, cache, rows, num_steps, known)
    num_prompt = mask_UL.shape[1] - num_steps
    places = branch(cache.layers, mask_UL[:, :num_prompt]) if known else None
    left = _Left(cache.layers if known and known.max_bytes else [], branch_B)
    for step in range(num_steps):
        sampled_B, sampled_logprob_B = draw.step(logits_UV[branch_B], row_B, step)
        ids_BT[row_B, step] = sampled_B
        logprobs_BT[row_B, step] = sampled_logprob_B
        lengths_B[row_B] += 1
        finished_B = torch.isin(sampled_B, end) | (draw.max_tokens_B[row_B] <= step + 1)
        finished_B |= stops.reached(ids_BT, row_B, step)
        goes_on_B = ~finished_B
        row_B, branch_B, sampled_B = row_B[goes_on_B], branch_B[goes_on_B], sampled_B[goes_on_B]
        if not len(row_B):
            break
        next_branches = _Branches.after(branch_B, sampled_B, num_old=len(mask_UL))
        branch_B = next_branches.branch_B
        left.follow(next_branches, row_B)
        if next_branches.moved:
            mask_UL, position_U = mask_UL[next_branches.parent_U], position_U[next_branches.parent_U]
            follow(cache.layers, places, next_branches.parent_U)
        with attending(model.config, BRANCHES) if places else nullcontext():
            logits_UV = model(
                input_ids=next_branches.id_U[:, None],
                attention_mask=None if places else mask_UL[:, : num_prompt + step + 1],
                position_ids=position_U[:, None] + step,
                cache=cache,
                use_cache=True,
            ).logits[:, -1]
    if logprobs_BT.isnan().any():
        raise ValueError("the model computes NaN logits; its weights or its inputs are broken")
    lengths = lengths_B.tolist()
    ids_B = [tuple(ids[:length]) for ids, length in zip(ids_BT.tolist(), lengths, strict=True)]
    if known:
        left.hand_over(known, rows, ids_B, num_prompt)
    return [(ids, tuple(row[:length])) for ids, row, length in zip(ids_B, logprobs_BT.tolist(), lengths, strict=True)]


@dataclass(frozen=True)
class _Branches:
    """The branches of the next step: each one's parent among the old ones and its newest id; each row's branch."""

    parent_U: Tensor
    id_U: Tensor
    branch_B: Tensor
    moved: bool  # whether the key-values have to follow

    @classmethod
    def after(cls, branch_B: Tensor, sampled_B: Tensor, num_old: int) -> _Branches:
        """What becomes of `num_old` branches when the rows that go on have sampled `sampled_B`."""
        pairs_U, next_B = torch.unique(torch.stack((branch_B, sampled_B)), dim=1, return_inverse=True)
        parent_U, id_U = pairs_U
        num_alive = len(parent_U.unique())
        if len(parent_U) > num_alive or num_alive <= (1 - LEAVE_SHARE) * num_old:
            return cls(parent_U, id_U, next_B, moved=True)
        # No branch parted and few have ended: those stay in place, fed with an id whose logits nobody reads.
        stay_U = torch.arange(num_old, device=branch_B.device)
        return cls(stay_U, torch.zeros_like(stay_U).index_copy(0, parent_U, id_U), branch_B, moved=False)


class _Left:
    """What branches leave behind: their key-values, and for each a row that has its ids. No layers: nothing is kept."""

    def __init__(self, layers: Sequence[Any], branch_B: Tensor) -> None:
        self.layers = layers
        self.owner_U = branch_B.new_empty(int(branch_B.max()) + 1)
        self.owner_U[branch_B] = torch.arange(len(branch_B), device=branch_B.device)
        self.found: list[tuple[Tensor, States]] = []

    def follow(self, branches: _Branches, row_B: Tensor) -> None:
        """The rows `row_B` go on in the next branches; if they move, the key-values of those that end are taken."""
        if not self.layers:
            return
        if branches.moved:
            ends_U = torch.ones_like(self.owner_U, dtype=torch.bool).index_fill(0, branches.parent_U, False)
            if ends_U.any():
                self.found.append((self.owner_U[ends_U], [layer.states(ends_U) for layer in self.layers]))
            self.owner_U = torch.empty_like(branches.parent_U)
        self.owner_U[branches.branch_B] = row_B

    def hand_over(self, known: PrefixCache, rows: Sequence[Prompted], sampled: Sequence[Ids], num_prompt: int) -> None:
        """Give it all to the cache, with the ids of each branch: the prompt's and those sampled but the last."""
        if not self.layers:
            return
        all_U = torch.arange(len(self.owner_U), device=self.owner_U.device)
        self.found.append((self.owner_U, [layer.states(all_U) for layer in self.layers]))
        for owner_U, states in self.found:
            branches = [
                (num_prompt - len(rows[row].prompt_ids), rows[row].prompt_ids + sampled[row][:-1])
                for row in owner_U.tolist()
            ]
            known.keep(rows[0].request.policy, branches, states)


def _prefill(
    model: PreTrainedModel,
    cache: DynamicCache,
    requested: Sequence[Prompted],
    num_steps: int,
    known: PrefixCache | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One branch per distinct prompt: their first logits_UV, mask_UL (L = P + T; 0 on padding) and first new
    position_U; and each request's branch_B. Without `known`, beginnings can't be shared."""
    device = next(model.parameters()).device
    unique = {ids: place for place, ids in enumerate(dict.fromkeys(prompted.prompt_ids for prompted in requested))}
    prompts = list(unique)
    branch_B = torch.tensor([unique[prompted.prompt_ids] for prompted in requested], device=device)
    lengths_U = torch.tensor([len(ids) for ids in prompts], device=device)
    num_prompt = max(map(len, prompts))
    mask_UL = (torch.arange(num_prompt + num_steps, device=device) >= num_prompt - lengths_U[:, None]).long()
    past = known.beginnings(requested[0].request.policy, prompts) if known else None
    if past:
        logits_UV = _read_on(model, cache, prompts, mask_UL[:, :num_prompt], past)
    else:
        logits_UV = _read(model, cache, prompts, in_trees=known is not None)
    return logits_UV, mask_UL, lengths_U, branch_B


def _read(model: PreTrainedModel, cache: DynamicCache, prompts: Sequence[Ids], in_trees: bool) -> Tensor:
    """The first logits_UV, computed from whole prompts."""
    if not in_trees or len(prompts) == 1:
        device = next(model.parameters()).device
        mask_UP = _left_padded([[1] * len(ids) for ids in prompts], 0, device)
        return model(
            input_ids=_left_padded(prompts, 0, device),
            attention_mask=mask_UP,
            position_ids=(mask_UP.cumsum(-1) - 1).clamp(min=0),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
    return _read_trees(model, cache, prompts)


def _read_trees(model: PreTrainedModel, cache: DynamicCache, prompts: Sequence[Ids]) -> Tensor:
    """As `_read`; what prompts begin alike is computed once, and nothing is padded."""
    device = next(model.parameters()).device
    together = shared_rows(prompts, MAX_ROW)
    trees = [prefix_tree(own, [len(ids) - 1 for ids in own]) for own in ([prompts[p] for p in row] for row in together)]
    width, num_asked = max(map(len, trees)), max(tree.num_asked for tree in trees)
    with attending(model.config, TREES):
        logits_RKV = model(
            input_ids=_left_padded([tree.ids for tree in trees], 0, device),
            position_ids=_left_padded([tree.positions for tree in trees], 0, device),
            cache=cache,
            use_cache=True,
            logits_to_keep=num_asked,
            tree_paths=Paths.of(trees, device),
        ).logits
    row_of, path_of = [0] * len(prompts), [[0]] * len(prompts)
    for row, (own, tree) in enumerate(zip(together, trees, strict=True)):
        for place, path in zip(own, tree.paths, strict=True):  # a tree is pushed to the right edge of its row
            row_of[place], path_of[place] = row, [node + width - len(tree) for node in path]
    row_U, path_UP = torch.tensor(row_of, device=device), _left_padded(path_of, 0, device)
    layers: Sequence[Any] = cache.layers  # roomy ones, where trees are read
    for layer in layers:
        layer.take(row_U, path_UP)
    return logits_RKV[row_U, path_UP[:, -1] - (width - num_asked)]


def _read_on(
    model: PreTrainedModel, cache: DynamicCache, prompts: Sequence[Ids], mask_UP: Tensor, past: tuple[int, States]
) -> Tensor:
    """The first logits_UV, computed from the last ids of each prompt and the key-values of all before."""
    num_new, states = past
    layers: Sequence[Any] = cache.layers
    for layer, (keys, values) in zip(layers, states, strict=True):
        layer.update(keys, values)
    return model(
        input_ids=_left_padded([ids[-num_new:] for ids in prompts], 0, mask_UP.device),
        attention_mask=mask_UP,
        position_ids=(mask_UP.cumsum(-1) - 1).clamp(min=0)[:, -num_new:],
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]


def _left_padded(values: Sequence[Sequence[int]], fill: int, device: torch.device) -> Tensor:
    width = max(map(len, values))
    return torch.tensor([[fill] * (width - len(row)) + list(row) for row in values], device=device)


MAX_ROW = 2**13  # nodes of a row of prompts: what is computed at once for each


@dataclass(frozen=True)
class _Draw:
    """How each row is drawn: its temperature, top_p and one uniform number per token, all fixed before the first."""

    temperature_B: Tensor
    top_p_B: Tensor
    max_tokens_B: Tensor
    uniforms_BT: Tensor
    all_at_one: bool  # no temperature to divide by
    all_greedy: bool
    some_top_p: bool

    @classmethod
    def of(cls, rows: Sequence[Prompted], device: torch.device) -> _Draw:
        samplings = [row.request.sampling for row in rows]
        num_steps = max(sampling.max_tokens for sampling in samplings)
        uniforms = []
        for row in rows:
            random = Random(row.request.seed)
            num_own = row.request.sampling.max_tokens
            uniforms.append([random.random() for _ in range(num_own)] + [0.0] * (num_steps - num_own))
        return cls(
            temperature_B=torch.tensor([sampling.temperature for sampling in samplings], device=device),
            top_p_B=torch.tensor([sampling.top_p for sampling in samplings], device=device),
            max_tokens_B=torch.tensor([sampling.max_tokens for sampling in samplings], device=device),
            uniforms_BT=torch.tensor(uniforms, dtype=torch.float64, device=device),
            all_at_one=all(sampling.temperature == 1 for sampling in samplings),
            all_greedy=all(sampling.temperature == 0 for sampling in samplings),
            some_top_p=any(sampling.top_p < 1 for sampling in samplings),
        )

    def step(self, logits_BV: Tensor, row_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The ids drawn at `step` for the rows `row_B`, and their float32 log-probs."""
        logits_BV, greedy_B1 = logits_BV.float(), None
        if not self.all_at_one:
            temperature_B1 = self.temperature_B[row_B, None]
            greedy_B1 = temperature_B1 == 0
            logits_BV = logits_BV / temperature_B1.masked_fill(greedy_B1, 1.0)
        logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
        if self.all_greedy:
            ids_B1 = logits_BV.argmax(-1, keepdim=True)
        else:
            probs_BV = logprobs_BV.exp()
            if self.some_top_p:
                probs_BV = _truncate(probs_BV, self.top_p_B[row_B, None])
            ids_B1 = _quantile(probs_BV, self.uniforms_BT[row_B, step, None])
            if greedy_B1 is not None:
                ids_B1 = torch.where(greedy_B1, logits_BV.argmax(-1, keepdim=True), ids_B1)
        return ids_B1[:, 0], logprobs_BV.gather(1, ids_B1)[:, 0]


def _quantile(probs_BV: Tensor, share_B1: Tensor) -> Tensor:
    """[B, 1]: where each row's cumulative sum first exceeds that share of its total, which no probability of 0 does.

    In float64: float32 would round rare tokens away. First among sums of blocks, then within one: adding up all of a
    large vocabulary would take longer than the model's head.
    """
    blocks_BNS = pad(probs_BV, (0, -probs_BV.shape[1] % _BLOCK)).unflatten(1, (-1, _BLOCK))
    ends_BN = blocks_BNS.sum(-1, dtype=torch.float64).cumsum(-1)
    target_B1 = share_B1 * ends_BN[:, -1:]
    block_B1 = torch.searchsorted(ends_BN, target_B1, right=True).clamp(max=ends_BN.shape[1] - 1)
    starts_BN = pad(ends_BN, (1, -1))
    within_BS = blocks_BNS.gather(1, block_B1[..., None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    rest_B1 = (target_B1 - starts_BN.gather(1, block_B1)).clamp(min=0)
    rest_B1 = torch.minimum(rest_B1, within_BS[:, -1:] * (1 - 2**-52))  # rounding must not lead past the block
    found_B1 = block_B1 * _BLOCK + torch.searchsorted(within_BS, rest_B1, right=True)
    return found_B1.clamp(max=probs_BV.shape[1] - 1)  # NaN is found nowhere


_BLOCK = 256


def _truncate(probs_BV: Tensor, top_p_B1: Tensor) -> Tensor:
    """Zero outside each row's smallest set of most likely tokens that holds top_p; rows with top_p 1 are untouched."""
    sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    outside_BV = (sorted_BV.cumsum(-1, dtype=torch.float64) - sorted_BV >= top_p_B1) & (top_p_B1 < 1)
    return probs_BV.masked_fill(torch.zeros_like(outside_BV).scatter(1, order_BV, outside_BV), 0.0)


def cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """`text` up to the first stop string, and whether there was one."""
    places = [at for string in stop if (at := text.find(string)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


class _StopStrings:
    """Tells which rows have just completed one of their stop strings. Costs nothing for rows that have none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[Sequence[str]]) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        self.some = any(stop)
        # A token holds at least one byte, so a string of n bytes spans n tokens; one more may hide a leading space.
        self.window = 1 + max((len(string.encode()) for strings in stop for string in strings), default=0)

    def reached(self, ids_BT: Tensor, row_B: Tensor, step: int) -> Tensor:
        """A bool per row of `row_B`, after the token at `step`."""
        if not self.some:
            return torch.zeros_like(row_B, dtype=torch.bool)
        start = max(0, step + 1 - self.window)
        recent = ids_BT[row_B, start : step + 1].tolist()
        return torch.tensor(
            [
                bool(self.stop[row]) and cut(str(self.tokenizer.decode(ids)), self.stop[row])[1]
                for row, ids in zip(row_B.tolist(), recent, strict=True)
            ],
            device=row_B.device,
        )
