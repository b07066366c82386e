"""The merged model computes what the adapters beside the base compute: log-probs, gradients, samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_learner import SHAPE, TWO, logprobs, make, sample, save_base, some_rows, train
from torch.nn import Embedding
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from gruppo.algorithms.batching import Pack, collate
from gruppo.training.learner import Learner
from gruppo.training.logprobs import token_logprobs
from gruppo.training.merged import Merged, MergedLinear, _product
from gruppo.training.model import PolicyConfig


def gradients(learner: Learner, policy: str, merged: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log-probs of some rows, and the gradients of a weighted sum of them."""
    batch = collate([Pack.of([row]) for row in some_rows()], learner.pad_id)
    with (learner.learning if merged else learner.activate)(policy) as model:
        found_N = token_logprobs(model, batch, learner.comes_apart)[0]
    parameters = list(learner.parameters(policy).values())
    return found_N.detach(), list(torch.autograd.grad((found_N * batch.advantages_N).sum(), parameters))


def check_equal(learner: Learner, policy: str) -> None:
    """Merged gives what the adapter beside its base gives."""
    values, factors = gradients(learner, policy, merged=True)
    expected_values, expected_factors = gradients(learner, policy, merged=False)
    torch.testing.assert_close(values, expected_values, rtol=1e-5, atol=1e-5)
    for found, expected in zip(factors, expected_factors, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.fixture(scope="module", params=["qwen3", "llama", "biased"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param != "biased":
        return save_base(folder, request.param, tied=request.param == "qwen3")
    save_base(folder, "llama")
    vocabulary = LlamaForCausalLM.from_pretrained(folder).config.vocab_size
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, vocab_size=vocabulary, attention_bias=True, mlp_bias=True))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def test_log_probs_and_gradients_are_those_of_the_adapter_beside_its_base(base: Path) -> None:
    learner = make(base)
    for policy in TWO:
        train(learner, policy, steps=3)
        check_equal(learner, policy)


def test_only_what_has_an_adapter_is_held_twice(base: Path) -> None:
    learner = make(base)
    assert learner._merged is not None
    own = {place.data_ptr() for place in learner.model.parameters()}
    twice = {name for name, place in learner._merged.model.named_parameters() if place.data_ptr() not in own}
    layers = {name for name, layer in learner._merged.model.named_modules() if isinstance(layer, MergedLinear)}
    assert twice == {f"{name}.weight" for name in layers} and len(layers) == 14


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_an_adapter_on_a_tied_head_leaves_the_embedding_alone(tmp_path: Path) -> None:
    policies = {"planner": PolicyConfig(rank=4, target_modules=["lm_head", "q_proj"])}
    learner = make(save_base(tmp_path, "qwen3", tied=True), policies)
    train(learner, "planner")
    assert learner._merged is not None
    check_equal(learner, "planner")
    embedding = learner._merged.model.get_input_embeddings()
    assert isinstance(embedding, Embedding)
    assert torch.equal(embedding.weight, learner.model.get_input_embeddings().weight)


def test_what_is_not_linear_is_not_merged() -> None:
    config = GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    base = GPT2LMHeadModel(config)
    merged = Merged(base)
    lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    assert not merged.pair(get_peft_model(base, lora))


def test_a_gradient_is_refused_once_other_weights_were_merged(base: Path) -> None:
    learner = make(base)
    loss = learner.logprobs("planner", collate([Pack.of([row]) for row in some_rows()], learner.pad_id)).sum()
    sample(learner, [None], merged=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_wide_head_gives_the_same_logits_some_at_a_time(tmp_path: Path) -> None:
    save_base(tmp_path, "llama")
    shape = {**SHAPE, "vocab_size": 5000, "tie_word_embeddings": True}
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(tmp_path)
    learner = make(tmp_path)
    ids = torch.arange(12).view(3, 4)
    with learner.sampling(None) as merged, learner.activate(None) as plain:
        torch.testing.assert_close(merged(ids).logits, plain(ids).logits, rtol=1e-5, atol=1e-5)
        assert type(merged.lm_head).__name__ == "_Wide" and merged.lm_head.weight is merged.model.embed_tokens.weight


def test_few_rows_and_many_weights_are_multiplied_the_other_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    weight, bias, inputs = torch.randn(640, 512), torch.randn(640), torch.randn(2, 3, 512)
    for own in (None, bias):
        expected = torch.nn.functional.linear(inputs, weight, own)
        torch.testing.assert_close(_product(inputs, weight, own), expected, rtol=1e-5, atol=1e-4)
    assert _product(inputs, weight, bias).is_contiguous()


def test_it_follows_every_change_of_the_weights(base: Path) -> None:
    learner = make(base)
    for _ in range(2):
        before = learner.snapshot()
        start = logprobs(learner, "planner", some_rows())
        train(learner, "planner")
        assert logprobs(learner, "planner", some_rows()) != start
        learner.restore(before)
        assert logprobs(learner, "planner", some_rows()) == start
