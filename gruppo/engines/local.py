"""The engine in this process: samples from a torch model and reports the log-probability of every sampled token.

It renders, batches, hands each batch to `decoding` and words what comes back. It owns no weights and knows no adapters:
the learner that does gives `activate` and `version`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gruppo.chat import decode_action, end_of_turn_ids, render
from gruppo.engines.branches import computes_branches
from gruppo.engines.decoding import Memory, Prompted, cut, decode
from gruppo.errors import EngineError, boundary
from gruppo.prefix_tree import Ids
from gruppo.replicas import Replicas
from gruppo.types import Completion, Request, StopReason

Home = tuple[str | None, str | Ids]  # policy, and task or prompt: whose rows stay together
Attempt = tuple[str, int]  # at a task: where a conversation goes on
Sampled = tuple[tuple[int, ...], tuple[float, ...], float]  # ids, log-probs, seconds


class LocalEngine:
    """Samples from the model of whichever policy a request names.

    `activate(policy)` is a context manager that yields the model that computes with that policy's weights (None: the
    frozen base) inside the block; `model` tells the architecture's limits and end tokens; `version(policy)` is the
    integer written into its completions. `max_batch_tokens` bounds rows x (prompt + action) of one batch, padding
    included, and so the memory of its key-values; `context_length` defaults to the model's. `memory` makes what is
    known from earlier calls, one for each process: key-values (`prefix_cache`), and what may come next (`drafts`).

    A row's draw depends on its seed and its logits only, whatever else is in the batch; logits may differ in the last
    float32 digits with the batch's shape and with what is cached. A prompt that goes on from what an attempt has said
    before begins with the ids of that turn.
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
        replicas: Replicas | None = None,
        memory: Callable[[], Memory] = Memory,
    ) -> None:
        self.tokenizer = tokenizer
        self.activate = activate
        self.version = version
        self.max_batch_tokens = max_batch_tokens
        self.context_length = context_length or _context_length(model)
        self.branches = computes_branches(model)
        self.replicas = replicas or Replicas(1)
        self.replicas.add(self)
        self.memories = [memory() for _ in range(self.replicas.num)]
        self._period, self._homes = 0, dict[Home, int]()
        self._said: dict[Attempt, dict[str, Ids]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.end_ids = end_of_turn_ids(tokenizer, model.generation_config)
        self._worker = _one_thread()

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """As `sample`, without blocking the event loop. Concurrent calls run one after the other.

        A call from another event loop than the last forgets first: a rollout plays on a loop of its own, so what it
        gives does not depend on those before it, and a run that was resumed repeats one that was not.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._worker.shutdown(wait=True)
            self._loop, self._worker = loop, _one_thread()  # another one: a forked process has none of the threads
            self._worker.submit(self.forget)
        return await loop.run_in_executor(self._worker, self.sample, requests)

    def forget(self) -> None:
        """Let the caches go when they are next used: calls give, bit by bit, what they would give as the first."""
        self._period += 1
        self._homes.clear()
        self._said.clear()

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in their order. Ids end with the sampled end-of-turn token if there was one.

        A request whose prompt + max_tokens exceed the context is answered `context_overflow` with no ids. Log-probs are
        float32, of softmax(logits / temperature) over the whole vocabulary, also where top_p cuts the draw; greedy ones
        are at temperature 1. Raises EngineError for whatever torch or the tokenizer raise.
        """
        with boundary(EngineError, "local engine"):
            rows = self._render(requests)
            done = {row.index: self._overflow(row) for row in rows if not self._fits(row)}
            homes = self._homes if self.memories[0].cache.max_bytes else None
            shares = _shares([row for row in rows if row.index not in done], self.replicas.free, homes)
            jobs = [(share, number, self._period) for number, share in enumerate(shares)]
            for sampled in self.replicas.map(LocalEngine._sample_share, self, jobs):
                done |= {index: self._completion(rows[index], found) for index, found in sampled.items()}
            return [done[index] for index in range(len(requests))]

    def _render(self, requests: Sequence[Request]) -> list[Prompted]:
        prompts: dict[tuple[Any, ...], tuple[str, tuple[int, ...]]] = {}
        rows = []
        for index, request in enumerate(requests):
            said = self._said.get(request.context[:2], {})
            key = tuple(tuple(message.items()) for message in request.messages), request.context[:2] if said else None
            if key not in prompts:
                text, ids = render(self.tokenizer, request.messages, said=said)
                prompts[key] = text, tuple(ids)
            rows.append(Prompted(index, request, *prompts[key]))
        return rows

    def _fits(self, row: Prompted) -> bool:
        return len(row.prompt_ids) + row.request.sampling.max_tokens <= self.context_length

    def _overflow(self, row: Prompted) -> Completion:
        version = self.version(row.request.policy)
        return Completion(row.prompt, row.prompt_ids, (), (), "", StopReason.context_overflow, version)

    @torch.no_grad()
    def _sample_share(self, rows: Sequence[Prompted], number: int, period: int) -> dict[int, Sampled]:
        """What one process samples: by index, ids, log-probs and the seconds of the batch.

        The cache goes by the share's number, so that where one process computes all shares the bits are the same.
        """
        by_policy: dict[str | None, list[Prompted]] = {}
        for row in rows:
            by_policy.setdefault(row.request.policy, []).append(row)
        found: dict[int, Sampled] = {}
        memory = self.memories[number]
        memory.drafts.enter(period)
        for policy, policy_rows in by_policy.items():
            memory.cache.enter(period, policy)
            with self.activate(policy) as model, _evaluating(model):
                for batch in _batches(policy_rows, self.max_batch_tokens):
                    started = time.perf_counter()
                    sampled = decode(model, self.tokenizer, batch, self.end_ids, memory if self.branches else None)
                    seconds = time.perf_counter() - started
                    found |= {row.index: (*one, seconds) for row, one in zip(batch, sampled, strict=True)}
        return found

    def _completion(self, row: Prompted, sampled: Sampled) -> Completion:
        ids, logprobs, seconds = sampled
        text, stopped = cut(decode_action(self.tokenizer, ids, self.end_ids), row.request.sampling.stop)
        stop = StopReason.stop if stopped or ids[-1] in self.end_ids else StopReason.length
        if row.request.context[0]:
            said = ids[:-1] if ids[-1] in self.end_ids else ids
            self._said.setdefault(row.request.context[:2], {})[row.prompt + text] = row.prompt_ids + said
            if len(self._said) > _MAX_SAID:
                del self._said[next(iter(self._said))]
        version = self.version(row.request.policy)
        return Completion(row.prompt, row.prompt_ids, ids, logprobs, text, stop, version, seconds)


_MAX_SAID = 2**14  # attempts whose ids are remembered for their next turns


def _one_thread() -> ThreadPoolExecutor:
    # One: calls queue up instead of switching adapters under one another, and the event loop stays free.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-engine")


def _shares(rows: Sequence[Prompted], num: int, homes: dict[Home, int] | None = None) -> list[list[Prompted]]:
    """`rows` for as many processes, about equally many each: those of a policy, and of like prompts, stay together.

    With `homes`, a policy's rows of a task go where those before them went, and new ones are entered.
    """
    if num == 1 or not rows:
        return [list(rows)] if rows else []
    together: dict[Home, list[Prompted]] = {}
    for row in sorted(rows, key=lambda row: (row.request.policy or "", row.prompt_ids)):
        task = "" if homes is None else row.request.context[0]
        together.setdefault((row.request.policy, task or row.prompt_ids), []).append(row)
    homes = {} if homes is None else homes
    shares: list[list[Prompted]] = [[] for _ in range(num)]
    number = 0
    for home in sorted(together, key=lambda home: home not in homes):  # those that are bound come first
        if home not in homes:
            while number < num - 1 and len(shares[number]) + len(together[home]) / 2 > len(rows) / num:
                number += 1
            homes[home] = number
        shares[homes[home]] += together[home]
    while not shares[-1]:
        shares.pop()
    return shares


def _batches(rows: Sequence[Prompted], max_batch_tokens: int) -> Iterator[list[Prompted]]:
    """`rows` in order, cut where the padded batch would exceed the budget; a row alone may."""
    batch: list[Prompted] = []
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
