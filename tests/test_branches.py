"""Branches: attention that reads a prompt once gives what a whole forward of every sequence gives."""

from __future__ import annotations

import functools
import itertools
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_local_engine import ask
from test_packing import MODELS, TOKENIZER, drawn
from torch import Tensor

from gruppo.engines import decoding
from gruppo.engines.branches import BRANCHES, Places, computes_branches
from gruppo.engines.draws import quantile
from gruppo.engines.local import LocalEngine
from gruppo.tree_attention import attending
from gruppo.types import Request

# Sliding windows, or an attention of their own.
WHOLE = {"gemma2", "gemma3_text", "gemma2 full", "gemma2 full with an adapted head"}


@functools.cache  # making one tries its model
def engine_of(name: str) -> LocalEngine:
    model = MODELS[name]
    return LocalEngine(model, TOKENIZER, activate=lambda policy: nullcontext(model), version=lambda policy: 0)


def test_which_models_compute_branches() -> None:
    assert {name for name, model in MODELS.items() if not computes_branches(model)} == WHOLE


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi", "gemma2 full"])
@settings(max_examples=6, deadline=None)
@given(
    groups=st.lists(st.tuples(st.sampled_from(["q", "what is it", "a longer question, this one"]), st.integers(1, 4))),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    seed=st.integers(0, 99),
)
def test_any_groups_are_sampled_as_if_each_were_alone(
    name: str, groups: list[tuple[str, int]], lengths: list[int], seed: int
) -> None:
    engine, length = engine_of(name), itertools.cycle(lengths)
    questions = [f"{text} {number}" for number, (text, attempts) in enumerate(groups) for _ in range(attempts)]
    requests: list[Request] = [
        ask(question, seed + number, temperature=0.5, max_tokens=next(length))
        for number, question in enumerate(questions)
    ]
    for request, completion in zip(requests, engine.sample(requests), strict=True):
        ids, logprobs = drawn(MODELS[name], completion, request, engine.end_ids)
        assert list(completion.ids) == ids
        assert completion.logprobs == pytest.approx(logprobs, rel=1e-5, abs=2e-5)


def test_a_prompt_is_held_once_and_let_go_with_its_last_branch() -> None:
    places = Places(torch.ones(4, 3, dtype=torch.long), torch.float32)
    places.follow(torch.tensor([0, 0, 0, 1, 2, 3, 3]))
    assert (places.num_prompts, places.width, places.full) == (4, 3, False)
    assert places.slot_U.tolist() == [0, 1, 2, 3, 6, 9, 10] and places.kept_R is None
    rows_UX = torch.arange(14.0).view(7, 2)
    assert torch.equal(places.gathered(places.spread(rows_UX)), rows_UX)
    places.follow(torch.tensor([0, 1, 5, 6]))
    assert places.kept_R is not None and places.kept_R.tolist() == [0, 3]
    assert (places.num_prompts, places.width, places.full) == (2, 2, True)
    assert places.prompt_U.tolist() == [0, 0, 1, 1]


def test_the_models_own_attention_is_back_afterwards() -> None:
    model = MODELS["llama"]
    before = model.config._attn_implementation
    with pytest.raises(RuntimeError, match="fails"), attending(model.config, BRANCHES):
        assert model.config._attn_implementation != before
        raise RuntimeError("fails")
    assert model.config._attn_implementation == before


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.integers(0, 9), st.sampled_from([0.1, 2.0, 30.0]))
def test_a_quantile_is_where_the_whole_cumulative_sum_says(size: int, seed: int, peak: float) -> None:
    random = torch.Generator().manual_seed(seed)
    probs_BV: Tensor = (torch.randn(16, size, generator=random) * peak).softmax(-1)
    probs_BV[:, 1::2] = 0.0  # as a nucleus leaves them
    share_B1 = torch.rand(16, 1, generator=random, dtype=torch.float64)
    share_B1[0], share_B1[1] = 0.0, 1 - 2.0**-53
    found_B1 = quantile(probs_BV, share_B1)
    cumulative_BV = probs_BV.cumsum(-1, dtype=torch.float64)
    expected_B1 = torch.searchsorted(cumulative_BV, share_B1 * cumulative_BV[:, -1:], right=True)
    assert torch.equal(found_B1[2:], expected_B1[2:])
    alive_B1 = cumulative_BV[:, -1:] > 0
    assert (probs_BV.gather(1, found_B1)[alive_B1] > 0).all()


def test_small_products_are_decoded_by_one_thread_and_large_ones_by_all() -> None:
    engine, before, seen = engine_of("llama"), torch.get_num_threads(), []
    hook = MODELS["llama"].register_forward_hook(lambda *arguments: seen.append(torch.get_num_threads()))
    largest = max(weight.numel() for weight in MODELS["llama"].parameters())
    try:
        torch.set_num_threads(2)
        for worth in (largest + 1, largest):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(decoding, "_WORTH_SHARING", worth)
                engine.sample([ask("q", 0, max_tokens=3)])
                assert torch.get_num_threads() == 2
        assert seen == [2, 1, 1, 2, 2, 2]  # reading the prompt has many rows
    finally:
        hook.remove()
        torch.set_num_threads(before)
