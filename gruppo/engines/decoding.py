"""Decoding: from the prompts of one batch to sampled ids and their log-probabilities.

What requests share is computed once: beginnings of prompts, prompts, and the ids sampled so far; what earlier batches
left in a prefix cache is not computed again. Guesses are fed along, so that one forward may yield several ids. Finished
rows leave the batch. Legend: B requests, U branches, R rows of prompt trees, S nodes of a row, P prompt positions
(left-padded), T sampled positions, Q ids fed at once, G guesses, K positions with logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from gruppo.engines.branches import BRANCHES, LEAVE_SHARE, branch, follow, new_cache
from gruppo.engines.drafts import ORDER, Drafts
from gruppo.engines.draws import Draw
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


@dataclass(frozen=True)
class Memory:
    """What a process knows from batches before: key-values of prompts, and what is said after what."""

    cache: PrefixCache = field(default_factory=PrefixCache)
    drafts: Drafts = field(default_factory=Drafts)


def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Prompted],
    end_ids: Sequence[int],
    memory: Memory | None,
) -> list[tuple[Ids, tuple[float, ...]]]:
    """Sampled ids and their log-probs for each row; the rows are of one policy.

    Rows that have the same prompt and have sampled the same ids so far are one branch, computed once: attempts at one
    task part only where their draws do. What is in `memory` of the prompts is not computed again; it learns what was.
    None is for a model that does not compute branches: then each has a whole cache of its own, and nothing is guessed.
    """
    device = next(model.parameters()).device
    texts = _Texts(tokenizer, rows, end_ids, memory.drafts if memory else Drafts(), device)
    row_B = torch.arange(len(rows), device=device)  # the rows that go on
    cache = new_cache(model, memory is not None)
    logits_UV, mask_UL, position_U, branch_B = _prefill(model, cache, rows, texts.num_steps, memory)
    num_prompt = mask_UL.shape[1] - texts.num_steps
    places = branch(cache.layers, mask_UL[:, :num_prompt]) if memory else None
    left = _Left(cache.layers if memory and memory.cache.max_bytes else [], branch_B)
    logits_UQV, length_U, guess_UG = logits_UV[:, None], torch.zeros_like(position_U), position_U.new_empty(0, 0)
    with threads_for(model):
        while True:
            right_B = texts.draw(row_B, branch_B, logits_UQV, guess_UG)
            goes_on_B = ~texts.ended_B[row_B]
            row_B, branch_B, right_B = row_B[goes_on_B], branch_B[goes_on_B], right_B[goes_on_B]
            if not len(row_B):
                break
            branches = _Branches.after(branch_B, right_B, texts.newest_B[row_B], num_old=len(mask_UL))
            branch_B = branches.branch_B
            left.follow(branches, row_B)
            if branches.moved:
                mask_UL, position_U = mask_UL[branches.parent_U], position_U[branches.parent_U]
                follow(cache.layers, places, branches.parent_U)
            length_U = length_U[branches.parent_U] + branches.right_U
            guess_UG, num_fed = texts.guesses(row_B, branch_B, len(branches.id_U))
            fed_UQ = torch.cat((branches.id_U[:, None], guess_UG[:, :num_fed].clamp(min=0)), dim=1)
            at_UQ = (position_U + length_U)[:, None] + torch.arange(num_fed + 1, device=device)
            if places:
                places.feed(length_U, num_fed + 1)
            with attending(model.config, BRANCHES) if places else nullcontext():
                logits_UQV = model(
                    input_ids=fed_UQ,
                    attention_mask=None if places else mask_UL[:, : num_prompt + int(length_U.max()) + 1],
                    position_ids=at_UQ.clamp(max=texts.last_position),
                    cache=cache,
                    use_cache=True,
                ).logits
            length_U = length_U + 1
    found = texts.found()
    if memory:
        left.hand_over(memory.cache, rows, [ids for ids, _ in found], num_prompt)
    return found


@contextmanager
def threads_for(model: PreTrainedModel) -> Iterator[None]:
    """Inside, a model whose products are small computes with one thread: several would wait for one another longer than
    they compute."""
    before = torch.get_num_threads()
    is_small = before > 1 and max(weight.numel() for weight in model.parameters()) < _WORTH_SHARING
    if is_small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if is_small:
            torch.set_num_threads(before)


_WORTH_SHARING = 2**18  # weights of one product with few rows


class _Texts:
    """What each row of a batch has said so far, how it goes on, and when it ends."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rows: Sequence[Prompted],
        end_ids: Sequence[int],
        drafts: Drafts,
        device: torch.device,
    ) -> None:
        requests = [row.request for row in rows]
        self.prompts = [row.prompt_ids for row in rows]
        self.policy, self.drafts = requests[0].policy, drafts
        self.draws = Draw.of(requests, device)
        self.stops = _StopStrings(tokenizer, [request.sampling.stop for request in requests])
        self.num_steps = self.draws.uniforms_BT.shape[1]
        self.last_position = max(len(row.prompt_ids) + row.request.sampling.max_tokens for row in rows) - 1
        self.end = torch.tensor(end_ids, device=device)
        self.ids: list[list[int]] = [[] for _ in rows]
        self.logprobs_BT = torch.zeros(len(rows), self.num_steps, device=device)
        self.length_B = torch.zeros(len(rows), dtype=torch.long, device=device)
        self.newest_B = torch.zeros_like(self.length_B)
        self.ended_B = torch.zeros_like(self.length_B, dtype=torch.bool)
        for ids in dict.fromkeys(self.prompts):
            drafts.learn(self.policy, ids)

    def draw(self, row_B: Tensor, branch_B: Tensor, logits_UQV: Tensor, guess_UG: Tensor) -> Tensor:
        """Draw for the rows `row_B` at each place that was fed, up to a wrong guess or the end; how many were right."""
        right_B, going = torch.zeros_like(row_B), torch.arange(len(row_B), device=row_B.device)
        for place in range(logits_UQV.shape[1]):
            rows, branches = row_B[going], branch_B[going]
            drawn_B = self._append(rows, logits_UQV[branches, place])
            if place == guess_UG.shape[1]:
                break
            guessed_B = guess_UG[branches, place] == drawn_B
            if place == 0:
                self.drafts.count(self.policy, int(guessed_B.sum()), len(guessed_B))
            going = going[guessed_B & ~self.ended_B[rows]]
            if place == logits_UQV.shape[1] - 1 or not len(going):
                break
            right_B[going] += 1
        return right_B

    def _append(self, row_B: Tensor, logits_BV: Tensor) -> Tensor:
        """The ids that the rows `row_B` draw next."""
        at_B = self.length_B[row_B]
        ids_B, logprobs_B = self.draws.step(logits_BV, row_B, at_B)
        for row, drawn in zip(row_B.tolist(), ids_B.tolist(), strict=True):
            self.ids[row].append(drawn)
        self.logprobs_BT[row_B, at_B] = logprobs_B
        self.length_B[row_B] = at_B + 1
        self.newest_B[row_B] = ids_B
        self.ended_B[row_B] = (
            torch.isin(ids_B, self.end)
            | (self.draws.max_tokens_B[row_B] == at_B + 1)
            | self.stops.reached(self.ids, row_B)
        )
        return ids_B

    def guesses(self, row_B: Tensor, branch_B: Tensor, num_branches: int) -> tuple[Tensor, int]:
        """What each branch may say next, guess_UG (-1: nothing), and how many of these are to be fed.

        One is made in any case, to learn whether more would be worth while.
        """
        found: list[Ids] = [()] * num_branches
        if not self.drafts.at_once:
            return branch_B.new_empty(num_branches, 0), 0
        depth = self.drafts.depth(self.policy, len(branch_B.unique()))
        for place, row in dict(zip(branch_B.tolist(), row_B.tolist(), strict=True)).items():
            said = self.ids[row]
            recent = (*self.prompts[row][len(said) - ORDER :], *said) if len(said) < ORDER else said[-ORDER:]
            found[place] = self.drafts.after(self.policy, recent, max(1, depth))
        width = max(1, *map(len, found))
        padded = [[*guess, *[-1] * (width - len(guess))] for guess in found]
        return torch.tensor(padded, device=row_B.device), min(depth, max(map(len, found)))

    def found(self) -> list[tuple[Ids, tuple[float, ...]]]:
        """Ids and log-probs of each row, which has ended."""
        if self.logprobs_BT.isnan().any():
            raise ValueError("the model computes NaN logits; its weights or its inputs are broken")
        ids = [tuple(said) for said in self.ids]
        for prompt_ids, said in dict.fromkeys(zip(self.prompts, ids, strict=True)):
            recent = prompt_ids[-ORDER:]
            self.drafts.learn(self.policy, recent + said, start=len(recent))
        logprobs = self.logprobs_BT.tolist()
        return [(said, tuple(own[: len(said)])) for said, own in zip(ids, logprobs, strict=True)]


@dataclass(frozen=True)
class _Branches:
    """The branches of the next forward: each one's parent among the old ones, how many guesses of it were right, and
    its newest id; each row's branch."""

    parent_U: Tensor
    right_U: Tensor
    id_U: Tensor
    branch_B: Tensor
    moved: bool  # whether the key-values have to follow

    @classmethod
    def after(cls, branch_B: Tensor, right_B: Tensor, newest_B: Tensor, num_old: int) -> _Branches:
        """What becomes of `num_old` branches when the rows that go on have said as many right guesses and one more."""
        kinds_U, next_B = torch.unique(torch.stack((branch_B, right_B, newest_B)), dim=1, return_inverse=True)
        parent_U, right_U, id_U = kinds_U
        num_alive = len(parent_U.unique())
        if len(parent_U) > num_alive or num_alive <= (1 - LEAVE_SHARE) * num_old:
            return cls(parent_U, right_U, id_U, next_B, moved=True)
        # No branch parted and few have ended: those stay in place, fed with an id whose logits nobody reads.
        stay_U = torch.arange(num_old, device=branch_B.device)
        right_U, id_U = (torch.zeros_like(stay_U).index_copy(0, parent_U, of_U) for of_U in (right_U, id_U))
        return cls(stay_U, right_U, id_U, branch_B, moved=False)


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
    memory: Memory | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One branch per distinct prompt: their first logits_UV, mask_UL (L = P + T; 0 on padding) and first new
    position_U; and each request's branch_B. Without `memory`, beginnings can't be shared."""
    device = next(model.parameters()).device
    unique = {ids: place for place, ids in enumerate(dict.fromkeys(prompted.prompt_ids for prompted in requested))}
    prompts = list(unique)
    branch_B = torch.tensor([unique[prompted.prompt_ids] for prompted in requested], device=device)
    lengths_U = torch.tensor([len(ids) for ids in prompts], device=device)
    num_prompt = max(map(len, prompts))
    mask_UL = (torch.arange(num_prompt + num_steps, device=device) >= num_prompt - lengths_U[:, None]).long()
    past = memory.cache.beginnings(requested[0].request.policy, prompts) if memory else None
    if past:
        logits_UV = _read_on(model, cache, prompts, mask_UL[:, :num_prompt], past)
    else:
        logits_UV = _read(model, cache, prompts, in_trees=memory is not None)
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

    def reached(self, ids: Sequence[list[int]], row_B: Tensor) -> Tensor:
        """A bool per row of `row_B`, after its newest id."""
        if not self.some:
            return torch.zeros_like(row_B, dtype=torch.bool)
        return torch.tensor(
            [
                bool(self.stop[row]) and cut(str(self.tokenizer.decode(ids[row][-self.window :])), self.stop[row])[1]
                for row in row_B.tolist()
            ],
            device=row_B.device,
        )
