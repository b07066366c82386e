"""The engine in this process: samples from a torch model and reports the log-probability of every sampled token.

What several requests share, a prompt and the ids sampled so far, is computed once; finished rows leave the batch. This
module owns no weights and knows no adapters: the learner that does gives `activate` and `version`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from gruppo.chat import decode_action, end_of_turn_ids, render
from gruppo.errors import EngineError, boundary
from gruppo.types import Completion, Request, StopReason


class LocalEngine:
    """Samples from the model of whichever policy a request names.

    `activate(policy)` is a context manager that yields the model that computes with that policy's weights (None: the
    frozen base) inside the block; `model` tells the architecture's limits and end tokens; `version(policy)` is the
    integer written into its completions. `max_batch_tokens` bounds rows x (prompt + action) of one batch, padding
    included, and so the memory of its key-values; `context_length` defaults to the model's. A row's draw depends on its
    seed and its logits only, whatever else is in the batch; logits may differ in the last float32 digits with the shape
    of the batch.
    """

    def __init__(
        self,
        model: PreTrainedModel | Any,  # Any: a PEFT model wraps one without being one
        tokenizer: PreTrainedTokenizerBase,
        *,
        activate: Callable[[str | None], AbstractContextManager[Any]],
        version: Callable[[str | None], int],
        max_batch_tokens: int = 65_536,
        context_length: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.activate = activate
        self.version = version
        self.max_batch_tokens = max_batch_tokens
        self.context_length = context_length or _context_length(model)
        self.end_ids = end_of_turn_ids(tokenizer, model.generation_config)
        # One thread: calls queue up instead of switching adapters under one another, and the event loop stays free.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-engine")

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """As `sample`, without blocking the event loop. Concurrent calls run one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self.sample, requests)

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in their order. Ids end with the sampled end-of-turn token if there was one.

        A request whose prompt + max_tokens exceed the context is answered `context_overflow` with no ids. Log-probs are
        float32, of softmax(logits / temperature) over the whole vocabulary, also where top_p cuts the draw; greedy ones
        are at temperature 1. Raises EngineError for whatever torch or the tokenizer raise.
        """
        with boundary(EngineError, "local engine"), torch.no_grad():
            rows = self._render(requests)
            done = {row.index: self._overflow(row) for row in rows if not self._fits(row)}
            by_policy: dict[str | None, list[_Row]] = {}
            for row in rows:
                if row.index not in done:
                    by_policy.setdefault(row.request.policy, []).append(row)
            for policy, policy_rows in by_policy.items():
                with self.activate(policy) as model, _evaluating(model):
                    for batch in _batches(policy_rows, self.max_batch_tokens):
                        done |= self._sample_batch(model, batch)
            return [done[index] for index in range(len(requests))]

    def _render(self, requests: Sequence[Request]) -> list[_Row]:
        prompts: dict[tuple[Any, ...], tuple[str, tuple[int, ...]]] = {}
        rows = []
        for index, request in enumerate(requests):
            key = tuple(tuple(message.items()) for message in request.messages)
            if key not in prompts:
                text, ids = render(self.tokenizer, request.messages)
                prompts[key] = text, tuple(ids)
            rows.append(_Row(index, request, *prompts[key]))
        return rows

    def _fits(self, row: _Row) -> bool:
        return len(row.prompt_ids) + row.request.sampling.max_tokens <= self.context_length

    def _overflow(self, row: _Row) -> Completion:
        version = self.version(row.request.policy)
        return Completion(row.prompt, row.prompt_ids, (), (), "", StopReason.context_overflow, version)

    def _sample_batch(self, model: Any, rows: Sequence[_Row]) -> dict[int, Completion]:
        started = time.perf_counter()
        sampled = _decode(model, self.tokenizer, rows, self.end_ids)
        seconds = time.perf_counter() - started
        version = self.version(rows[0].request.policy)
        completions = {}
        for row, (ids, logprobs) in zip(rows, sampled, strict=True):
            text, stopped = _cut(decode_action(self.tokenizer, ids, self.end_ids), row.request.sampling.stop)
            stop = StopReason.stop if stopped or ids[-1] in self.end_ids else StopReason.length
            completions[row.index] = Completion(row.prompt, row.prompt_ids, ids, logprobs, text, stop, version, seconds)
        return completions


@dataclass(frozen=True)
class _Row:
    """A request with its rendered prompt; `index` is its place in the call."""

    index: int
    request: Request
    prompt: str
    prompt_ids: tuple[int, ...]


def _batches(rows: Sequence[_Row], max_batch_tokens: int) -> Iterator[list[_Row]]:
    """`rows` in order, cut where the padded batch would exceed the budget; a row alone may."""
    batch: list[_Row] = []
    widest_prompt = widest_action = 0
    for row in rows:
        prompt, action = len(row.prompt_ids), row.request.sampling.max_tokens
        widest_prompt, widest_action = max(prompt, widest_prompt), max(action, widest_action)
        if batch and (len(batch) + 1) * (widest_prompt + widest_action) > max_batch_tokens:
            yield batch
            batch, widest_prompt, widest_action = [], prompt, action
        batch.append(row)
    if batch:
        yield batch


def _cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """`text` up to the first stop string, and whether there was one."""
    places = [at for string in stop if (at := text.find(string)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _context_length(model: PreTrainedModel) -> int:
    try:
        return model.config.get_text_config(decoder=True).max_position_embeddings
    except AttributeError:  # a model without positions (Mamba) has no limit of its own
        return 2**31


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No dropout inside; afterwards every module that was training is training again."""
    training = [module for module in model.modules() if module.training] if model.training else []
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


# ---- decoding: B rows, U branches, P prompt positions (left-padded), T sampled positions, V vocabulary ---------------


def _decode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[_Row], end_ids: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Sampled ids and their log-probs for each row.

    Rows that have the same prompt and have sampled the same ids so far are one branch, computed once: attempts at one
    task part only where their draws do.
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

    logits_UV, cache, mask_UL, position_U, branch_B = _prefill(model, rows, num_steps)
    num_prompt = mask_UL.shape[1] - num_steps
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
        if next_branches.moved:
            mask_UL, position_U = mask_UL[next_branches.parent_U], position_U[next_branches.parent_U]
            cache.reorder_cache(next_branches.parent_U)
        logits_UV = model(
            input_ids=next_branches.id_U[:, None],
            attention_mask=mask_UL[:, : num_prompt + step + 1],
            position_ids=position_U[:, None] + step,
            cache=cache,
            use_cache=True,
        ).logits[:, -1]
    if logprobs_BT.isnan().any():
        raise ValueError("the model computes NaN logits; its weights or its inputs are broken")
    return [
        (tuple(ids[:length]), tuple(logprobs[:length]))
        for ids, logprobs, length in zip(ids_BT.tolist(), logprobs_BT.tolist(), lengths_B.tolist(), strict=True)
    ]


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
        if len(parent_U) > num_alive or num_alive <= (1 - _LEAVE_SHARE) * num_old:
            return cls(parent_U, id_U, next_B, moved=True)
        # No branch parted and few have ended: those stay in place, fed with an id whose logits nobody reads.
        stay_U = torch.arange(num_old, device=branch_B.device)
        return cls(stay_U, torch.zeros_like(stay_U).index_copy(0, parent_U, id_U), branch_B, moved=False)


_LEAVE_SHARE = 0.25  # leaving copies the key-values of those who stay: worth it for a share of the batch, not for one


def _prefill(
    model: PreTrainedModel, rows: Sequence[_Row], num_steps: int
) -> tuple[Tensor, DynamicCache, Tensor, Tensor, Tensor]:
    """One branch per distinct prompt: their first logits_UV, cache, mask_UL (L = P + T; 0 on padding) and first new
    position_U; and each row's branch_B."""
    device = next(model.parameters()).device
    unique = {prompt_ids: place for place, prompt_ids in enumerate(dict.fromkeys(row.prompt_ids for row in rows))}
    unique_B = torch.tensor([unique[row.prompt_ids] for row in rows], device=device)
    lengths_U = torch.tensor([len(ids) for ids in unique], device=device)
    cache, shared = _new_cache(model), len(os.path.commonprefix([ids[:-1] for ids in unique]))
    if len(unique) == 1 or shared < _SHARED_PREFIX:
        shared = 0
    else:  # the beginning that all prompts have, such as the system message, is computed once
        start = torch.tensor([next(iter(unique))[:shared]], device=device)
        model(input_ids=start, cache=cache, use_cache=True, logits_to_keep=1)
        cache.reorder_cache(torch.zeros(len(unique), dtype=torch.long, device=device))
    width = max(map(len, unique)) - shared
    # The id of a padded position is never seen: the mask comes from the lengths.
    rest = [ids[shared:] for ids in unique]
    input_ids = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids in rest], device=device)
    place_L = torch.arange(shared + width + num_steps, device=device)
    mask_UL = ((place_L < shared) | (place_L >= shared + width - (lengths_U[:, None] - shared))).long()
    logits_UV = model(
        input_ids=input_ids,
        attention_mask=mask_UL[:, : shared + width],
        position_ids=(mask_UL[:, : shared + width].cumsum(-1) - 1).clamp(min=0)[:, shared:],
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    return logits_UV, cache, mask_UL, lengths_U, unique_B


_SHARED_PREFIX = 8  # tokens; a shorter common beginning is not worth a forward of its own


@dataclass(frozen=True)
class _Draw:
    """How each row is drawn: its temperature, top_p and one uniform number per token, all fixed before the first."""

    temperature_B: Tensor
    top_p_B: Tensor
    max_tokens_B: Tensor
    uniforms_BT: Tensor
    some_greedy: bool
    some_top_p: bool

    @classmethod
    def of(cls, rows: Sequence[_Row], device: torch.device) -> _Draw:
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
            some_greedy=any(sampling.temperature == 0 for sampling in samplings),
            some_top_p=any(sampling.top_p < 1 for sampling in samplings),
        )

    def step(self, logits_BV: Tensor, row_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The ids drawn at `step` for the rows `row_B`, and their float32 log-probs."""
        temperature_B1 = self.temperature_B[row_B, None]
        if self.some_greedy:
            greedy_B1 = temperature_B1 == 0
            temperature_B1 = temperature_B1.masked_fill(greedy_B1, 1.0)
        logprobs_BV = torch.log_softmax(logits_BV.float() / temperature_B1, dim=-1)
        probs_BV = logprobs_BV.exp()
        if self.some_top_p:
            probs_BV = _truncate(probs_BV, self.top_p_B[row_B, None])
        # Inverse of the cumulative distribution, in float64: float32 would round rare tokens away.
        cumulative_BV = probs_BV.cumsum(-1, dtype=torch.float64)
        target_B1 = self.uniforms_BT[row_B, step, None] * cumulative_BV[:, -1:]
        ids_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True).clamp(max=logits_BV.shape[1] - 1)
        if self.some_greedy:
            ids_B1 = torch.where(greedy_B1, logits_BV.argmax(-1, keepdim=True), ids_B1)
        return ids_B1[:, 0], logprobs_BV.gather(1, ids_B1)[:, 0]


def _truncate(probs_BV: Tensor, top_p_B1: Tensor) -> Tensor:
    """Zero outside each row's smallest set of most likely tokens that holds top_p; rows with top_p 1 are untouched."""
    sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    outside_BV = (sorted_BV.cumsum(-1, dtype=torch.float64) - sorted_BV >= top_p_B1) & (top_p_B1 < 1)
    return probs_BV.masked_fill(torch.zeros_like(outside_BV).scatter(1, order_BV, outside_BV), 0.0)


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
                bool(self.stop[row]) and _cut(self.tokenizer.decode(ids), self.stop[row])[1]
                for row, ids in zip(row_B.tolist(), recent, strict=True)
            ],
            device=row_B.device,
        )


# ---- cache -----------------------------------------------------------------------------------------------------------


def _new_cache(model: PreTrainedModel) -> DynamicCache:
    """The cache of the model's architecture, its plain attention layers with room to grow."""
    cache = DynamicCache(config=model.config)
    cache.layers = [_RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class _RoomyLayer(DynamicLayer):
    """A DynamicLayer that writes new keys and values into spare room instead of copying all old ones at each token."""

    def __init__(self) -> None:
        super().__init__()
        self.room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [B, heads, new, head size] states; returns views of all states so far."""
        if not self.is_initialized or key_states.shape[-2] > 1:
            return super().update(key_states, value_states, *args, **kwargs)
        used = self.get_seq_length()
        if self.room is None or self.room[0].shape[-2] == used:
            self.room = _with_room(self.keys), _with_room(self.values)
        for room, states in zip(self.room, (key_states, value_states), strict=True):
            room[:, :, used : used + 1] = states
        self.keys, self.values = (room[:, :, : used + 1] for room in self.room)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows `beam_idx`, repeated or left out as it says."""
        super().reorder_cache(beam_idx)
        self.room = None


def _with_room(states: Tensor) -> Tensor:
    """A copy with uninitialised room behind it, which no view shows before it is written."""
    batch, heads, used, size = states.shape
    room = states.new_empty(batch, heads, used + max(16, used // 4), size)
    room[:, :, :used] = states
    return room
