"""Attention along paths: each sequence sees what it would see alone, whatever lies beside it, and so do gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from gruppo import tree_attention
from gruppo.prefix_tree import prefix_tree
from gruppo.training.model import recompute_layers
from gruppo.tree_attention import TREES, Paths, attend, attending, computes_trees

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=8)
SHAPE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def alone(query: Tensor, key: Tensor, value: Tensor, softcap: float | None) -> Tensor:
    """Causal attention of one sequence, [H, T, D] by [J, T, D], as the formula has it."""
    key, value = (states.repeat_interleave(len(query) // len(key), dim=0) for states in (key, value))
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize("softcap", [None, 2.0])
@given(st.lists(SEQUENCES, min_size=1, max_size=3), st.integers(0, 99))
def test_every_sequence_sees_its_own_path(softcap: float | None, rows, seed) -> None:
    torch.manual_seed(seed)
    trees = [prefix_tree(sequences, [0] * len(sequences)) for sequences in rows]
    width = max(map(len, trees))
    states = [torch.randn(len(trees), heads, width, 4, requires_grad=True) for heads in (4, 2, 2)]
    found, _ = attend(torch.nn.Module(), *states, None, softcap=softcap, tree_paths=Paths.of(trees))
    assert found.shape == (len(trees), width, 4, 4)
    pull, pulled, by_hand = torch.randn_like(found), torch.zeros(()), torch.zeros(())
    for row, tree in enumerate(trees):
        for path in tree.paths:
            places = torch.tensor([width - len(tree) + node for node in path])
            expected = alone(*(each[row][:, places] for each in states), softcap).transpose(0, 1)
            torch.testing.assert_close(found[row, places], expected, rtol=1e-4, atol=1e-5)
            pulled = pulled + (found[row, places] * pull[row, places]).sum()
            by_hand = by_hand + (expected * pull[row, places]).sum()
    for one, other in zip(torch.autograd.grad(pulled, states), torch.autograd.grad(by_hand, states), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_products_are_of_sequences_of_like_length_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = prefix_tree([(0,) * 50 + (number,) * 5 for number in range(1, 30)] + [(9, 9, 9)], [0] * 30)
    shapes = [tuple(bucket.key_RK.shape) for bucket in Paths.of([tree]).buckets]
    assert shapes == [(1, 55), (29, 55)], "the first brings the whole prompt, the others five nodes each or three"
    assert Paths.of([tree]).buckets[0].bias_RQK is None
    monkeypatch.setattr(tree_attention, "_MAX_SCORES", 5 * 55 * 10)
    assert [len(bucket.query_RQ) for bucket in Paths.of([tree]).buckets] == [1, 10, 10, 9]


def test_computed_are_the_products_of_a_sequence_and_no_others() -> None:
    """Of 32 attempts at a long prompt: new ids times what they see, where a mask would have the square of all."""
    prompt, new, attempts = 1000, 20, 32
    tree = prefix_tree([(0,) * prompt + (number,) * new for number in range(1, attempts + 1)], [0] * attempts)
    scores = sum(b.query_RQ.numel() * b.key_RK.shape[1] for b in Paths.of([tree]).buckets)
    assert scores == (prompt + new) ** 2 + (attempts - 1) * new * (prompt + new) < 0.65 * len(tree) ** 2


def test_layers_computed_again_attend_along_the_same_paths() -> None:
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=2, **SHAPE)).eval()
    assert computes_trees(model)
    tree = prefix_tree([(3, 4, 5, 6), (3, 4, 7), (8, 9), (3, 4, 5, 6, 1, 2)], [0] * 4)
    inputs = {"input_ids": torch.tensor([tree.ids]), "position_ids": torch.tensor([tree.positions])}
    gradients = []
    for _ in range(2):
        model.zero_grad()
        with attending(model.config, TREES):
            logits = model(**inputs, use_cache=False, tree_paths=Paths.of([tree])).logits
        F.log_softmax(logits, -1)[..., 7].sum().backward()  # outside: the config names another attention again
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        recompute_layers(model)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_config_attends_as_before_whatever_happens_inside() -> None:
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=50, **SHAPE))
    before = model.config._attn_implementation
    with pytest.raises(ZeroDivisionError), attending(model.config, TREES):
        raise ZeroDivisionError
    assert model.config._attn_implementation == before == "sdpa"
