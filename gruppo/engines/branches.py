"""Branches: the key-values of many continuations of few prompts, and attention that reads each prompt's once.

Attempts at one task go on from one prompt. Here its key-values exist once, beside the few of each branch; all of its
branches' queries meet them in one product, where a plain cache copies and reads them for every attempt. It knows no
requests and draws nothing; `decoding` does. Models are unchanged: they call the attention that their config names.
Legend: R prompts, U branches (sorted by prompt), W most branches of one prompt, H heads, J heads of key-values, G = H /
J, P positions of the longest prompt (left-padded), T ids of the longest branch, Q ids fed at once (the newest one, and
guesses at those after it), D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import DynamicLayer

from gruppo.tree_attention import attending, computes_trees

LEAVE_SHARE = 0.25  # leaving copies the key-values of those who stay: worth it for a share of the batch, not for one
BRANCHES = "gruppo_branches"  # the name of this attention


class Places:
    """Which prompt each branch goes on from; all layers of a batch share it."""

    def __init__(self, mask_RP: Tensor, dtype: torch.dtype) -> None:
        """One branch for each prompt; the mask is 0 on padding."""
        self.num_prompts, self.dtype = len(mask_RP), dtype
        self.prompt_U = torch.arange(self.num_prompts, device=mask_RP.device)
        self.kept_R: Tensor | None = None  # the prompts that were kept by the last move, if some were not
        padded = not bool(mask_RP.all())
        self.bias_RP = (1 - mask_RP).to(dtype) * torch.finfo(dtype).min if padded else None
        self.num_own = 0
        self._settle()

    def follow(self, parent_U: Tensor) -> None:
        """Become the places of branches that go on from these parents, in this order."""
        self.prompt_U, self.kept_R = self.prompt_U[parent_U], None
        alive_R, which_U = self.prompt_U.unique(return_inverse=True)
        if len(alive_R) <= (1 - LEAVE_SHARE) * self.num_prompts:
            self.prompt_U, self.kept_R, self.num_prompts = which_U, alive_R, len(alive_R)
            self.bias_RP = None if self.bias_RP is None else self.bias_RP[alive_R]
        self._settle()

    def feed(self, length_U: Tensor, num_fed: int) -> None:
        """Before a forward: each branch has so many ids of its own, and is fed `num_fed` more.

        What a branch was fed and has not kept lies behind its own ids, out of sight, until it is written over.
        """
        self.row_U1 = torch.arange(len(length_U), device=length_U.device)[:, None]
        self.at_UQ = length_U[:, None] + torch.arange(num_fed, device=length_U.device)
        self.num_own = int(length_U.max()) + num_fed
        self.level = num_fed == 1 and int(length_U.min()) == self.num_own - 1  # then nothing is out of sight
        if not self.level:
            out_of_sight_UQT = torch.arange(self.num_own, device=length_U.device) > self.at_UQ[..., None]
            self.own_bias_UQT = out_of_sight_UQT.to(self.dtype) * torch.finfo(self.dtype).min

    def _settle(self) -> None:
        count_R = torch.bincount(self.prompt_U, minlength=self.num_prompts)
        self.width = int(count_R.max())
        within_U = (
            torch.arange(len(self.prompt_U), device=count_R.device) - (count_R.cumsum(0) - count_R)[self.prompt_U]
        )
        self.slot_U = self.prompt_U * self.width + within_U
        self.full = len(self.slot_U) == self.num_prompts * self.width  # then every slot is taken, in order

    def spread(self, rows_UX: Tensor) -> Tensor:
        """[R, W, ...]: each branch's row beside those of its prompt's other branches."""
        shape = self.num_prompts, self.width, *rows_UX.shape[1:]
        if self.full:
            return rows_UX.view(shape)
        empty = rows_UX.new_zeros(self.num_prompts * self.width, *rows_UX.shape[1:])
        return empty.index_copy_(0, self.slot_U, rows_UX).view(shape)

    def gathered(self, rows_RWX: Tensor) -> Tensor:
        """The way back: [U, ...]."""
        rows = rows_RWX.flatten(0, 1)
        return rows if self.full else rows[self.slot_U]


class BranchLayer(DynamicLayer):
    """A layer's key-values: those of prompts until it is told to `branch`, then each branch's own beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Places | None = None

    def take(self, row_U: Tensor, place_UP: Tensor) -> None:
        """Become the states at the places `place_UP` of the rows `row_U`."""
        assert self.keys is not None and self.values is not None, "taken from after the first forward"
        self.keys, self.values = (
            states[row_U[:, None], :, place_UP].transpose(1, 2).contiguous() for states in (self.keys, self.values)
        )

    def branch(self, places: Places) -> None:
        """From here on every branch adds to its own where the places say."""
        assert self.keys is not None and self.values is not None, "the prompts have been read"
        self.places = places
        self.prompts = self.keys, self.values
        self.room = tuple(_with_room(states[:, :, :0], 0) for states in self.prompts)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
        """As it should be; once branched, what it returns as keys is for `attend`."""
        if self.places is None:
            return super().update(key_states, value_states, *args, **kwargs)
        num_own = self.places.num_own
        if num_own > self.room[0].shape[2]:
            self.room = tuple(_with_room(states, num_own) for states in self.room)
        for room, states in zip(self.room, (key_states, value_states), strict=True):
            if self.places.level:
                room[:, :, num_own - 1 : num_own] = states
            else:
                room[self.places.row_U1, :, self.places.at_UQ] = states.transpose(1, 2)
        self.keys, self.values = (room[:, :, :num_own] for room in self.room)
        return _Keys(self.keys, self.values, *self.prompts, self.places), self.values

    def reorder_cache(self, beam_idx: Any) -> None:
        """Keep the branches `beam_idx`, repeated or left out as it says; the places have followed them already."""
        assert self.places is not None
        self.room = tuple(_with_room(states[:, :, : self.places.num_own][beam_idx], 0) for states in self.room)
        if self.places.kept_R is not None:
            self.prompts = self.prompts[0][self.places.kept_R], self.prompts[1][self.places.kept_R]

    def states(self, chosen_U: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [chosen branches, J, P + T, D] from the first position on."""
        assert self.places is not None
        prompt_U = self.places.prompt_U[chosen_U]
        keys, values = (
            torch.cat((prompts[prompt_U], room[chosen_U, :, : self.places.num_own]), dim=2)
            for prompts, room in zip(self.prompts, self.room, strict=True)
        )
        return keys, values

    def get_seq_length(self) -> int:
        """Positions so far."""
        return super().get_seq_length() if self.places is None else self.prompts[0].shape[2] + self.places.num_own


@dataclass(frozen=True)
class _Keys:
    """What attention of branches needs of a layer."""

    own_keys: Tensor
    own_values: Tensor
    prompt_keys: Tensor
    prompt_values: Tensor
    places: Places


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: _Keys,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention [U, Q, H, D] of what each branch is fed, [U, H, Q, D], to its prompt and to its own ids so far."""
    places = key.places
    num_branches, num_heads, num_fed, size = query.shape
    num_prompts, num_kv, num_positions, _ = key.prompt_keys.shape
    per_kv, width = num_heads // num_kv * num_fed, places.width
    query_UJGD = (query * (size**-0.5 if scaling is None else scaling)).reshape(num_branches, num_kv, per_kv, size)

    spread = places.spread(query_UJGD).transpose(1, 2).reshape(num_prompts * num_kv, width * per_kv, size)
    to_prompts = torch.bmm(spread, key.prompt_keys.flatten(0, 1).transpose(1, 2))
    to_prompts_RWJGP = to_prompts.view(num_prompts, num_kv, width, per_kv, num_positions).transpose(1, 2)
    if places.bias_RP is not None:
        to_prompts_RWJGP = to_prompts_RWJGP + places.bias_RP[:, None, None, None]
    to_own = torch.bmm(query_UJGD.flatten(0, 1), key.own_keys.flatten(0, 1).transpose(1, 2))
    if not places.level:
        to_own_UHQT = to_own.view(num_branches, num_heads, num_fed, -1)
        to_own = to_own_UHQT + places.own_bias_UQT[:, None]
    to_own_UJGT = to_own.view(num_branches, num_kv, per_kv, -1)
    scores_UJGL = torch.cat((places.gathered(to_prompts_RWJGP), to_own_UJGT), dim=-1)
    probs_UJGL = scores_UJGL.softmax(-1, dtype=torch.float32).to(query.dtype)

    of_prompts = places.spread(probs_UJGL[..., :num_positions]).transpose(1, 2)
    of_prompts = of_prompts.reshape(num_prompts * num_kv, width * per_kv, num_positions)
    from_prompts = torch.bmm(of_prompts, key.prompt_values.flatten(0, 1))
    from_prompts_RWJGD = from_prompts.view(num_prompts, num_kv, width, per_kv, size).transpose(1, 2)
    from_own = torch.bmm(probs_UJGL[..., num_positions:].flatten(0, 1), key.own_values.flatten(0, 1))
    found_UJGD = places.gathered(from_prompts_RWJGD) + from_own.view(num_branches, num_kv, per_kv, size)
    return found_UJGD.reshape(num_branches, num_heads, num_fed, size).transpose(1, 2), None


AttentionInterface.register(BRANCHES, attend)


def new_cache(model: Any, branches: bool) -> DynamicCache:
    """The cache of the model's architecture; with `branches` one that can branch."""
    cache = DynamicCache(config=model.config)
    if branches:
        cache.layers = [BranchLayer() for _ in cache.layers]
    return cache


def branch(layers: Sequence[Any], mask_RP: Tensor) -> Places:
    """Let every layer, its prompts read, go on in branches: at first one for each prompt."""
    places = Places(mask_RP, layers[0].keys.dtype)
    for layer in layers:
        layer.branch(places)
    return places


def follow(layers: Sequence[Any], places: Places | None, parent_U: Tensor) -> None:
    """Let every layer's rows become those that go on from these parents; without places they are no branches."""
    if places is not None:
        places.follow(parent_U)
    for layer in layers:
        layer.reorder_cache(parent_U)


def computes_branches(model: Any) -> bool:
    """Whether a model computes in branches what it computes of each sequence alone, tried on a few ids.

    It has to keep all key-values, and pass them to the attention that its config names as it gets them.
    """
    cache = DynamicCache(config=model.config)
    if not computes_trees(model) or any(type(layer) is not DynamicLayer for layer in cache.layers):
        return False
    if model.config._attn_implementation != "sdpa":
        return False
    sequences = torch.tensor([(0, 1, 2, 3, 1), (0, 1, 2, 4, 2)], device=model.device)
    with torch.no_grad():
        try:
            cache = new_cache(model, branches=True)
            model(input_ids=sequences[:1, :3], cache=cache, use_cache=True)
            places = branch(cache.layers, torch.ones_like(sequences[:1, :3]))
            follow(cache.layers, places, torch.zeros(2, dtype=torch.long, device=model.device))
            with attending(model.config, BRANCHES):
                for sign in (-1, 1):  # first other ids, as wrong guesses: what they left is written over
                    places.feed(torch.zeros(2, dtype=torch.long, device=model.device), num_fed=2)
                    fed = {"input_ids": sequences[:, 3:] * sign % 5, "position_ids": places.at_UQ + 3}
                    found = model(**fed, cache=cache, use_cache=True).logits[:, -1]
        except Exception:  # a model of any make may raise anything at key-values that it does not know
            return False
        expected = model(input_ids=sequences, use_cache=False).logits[:, -1]
    tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance)


def _with_room(states: Tensor, least: int) -> Tensor:
    """A copy with room behind it, for `least` positions in all and some more; what is hidden there must be finite."""
    num_branches, heads, used, size = states.shape
    room = states.new_zeros(num_branches, heads, max(least, used + max(16, used // 2)), size)
    room[:, :, :used] = states
    return room
