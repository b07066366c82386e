"""What saves work changes nothing: packed rows, logits in pieces and kept key-values against plain forwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from test_local_engine import TOKENIZER, ask
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from gruppo.algorithms.batching import Pack, Row, collate, microbatches
from gruppo.chat import render
from gruppo.engines.decoding import Memory
from gruppo.engines.local import LocalEngine
from gruppo.engines.prefix_cache import PrefixCache
from gruppo.training.logprobs import comes_apart, token_logprobs
from gruppo.tree_attention import TREES, attending, computes_trees, takes_trees
from gruppo.types import Completion, Request

SHAPE = {
    **{"vocab_size": len(TOKENIZER), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256},
    **{"initializer_range": 0.3, "eos_token_id": 1, "pad_token_id": 1, "bos_token_id": 0},
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "gemma2": {**SLIDING, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "gemma3_text": {**SLIDING, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2},
    "gemma2 full": {
        "layer_types": ["full_attention"] * 2,
        "tie_word_embeddings": False,
        "final_logit_softcapping": 2.0,
    },
    "cohere": {"logit_scale": 0.3},
    "granite": {"logits_scaling": 3.0},
    "phi": {},  # its head has a bias
}
SLIDES = {"gemma2", "gemma3_text"}


def make(name: str) -> Any:
    torch.manual_seed(5)
    config = AutoConfig.for_model(name.split()[0], **{**SHAPE, **ARCHITECTURES[name]})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager" if "gemma2" in name else "sdpa")
    with torch.no_grad():
        for parameter in model.parameters():  # biases are 0 at first
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval()


def adapted(model: Any, *modules: str) -> Any:
    lora = LoraConfig(r=3, target_modules=list(modules), init_lora_weights=False, task_type="CAUSAL_LM")
    return get_peft_model(model, lora).eval()


MODELS = {name: make(name) for name in ARCHITECTURES}
MODELS["llama with adapters"] = adapted(make("llama"), "q_proj", "down_proj")
MODELS["gemma2 full with an adapted head"] = adapted(make("gemma2 full"), "v_proj", "lm_head")


# ---- log-probs ------------------------------------------------------------------------------------------------------


def plain(model: Any, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies, one row at a time, of all positions of the model's own forward."""
    found = []
    for row in rows:
        logits = model(input_ids=torch.tensor([row.prompt_ids + row.action_ids])).logits[
            0, len(row.prompt_ids) - 1 : -1
        ]
        logprobs = (logits / row.temperature).log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(row.action_ids)[:, None])[:, 0]
        found.append(torch.stack((chosen, -(logprobs.exp() * logprobs).sum(-1))))
    return tuple(torch.cat(found, dim=1))


def gradients(model: Any, values: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Of a random loss of the values, by every parameter that has one."""
    generator = torch.Generator().manual_seed(seed)
    loss = sum((value * torch.randn(len(value), generator=generator)).sum() for value in values)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        gradient
        for gradient in torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        if gradient is not None
    ]


def same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Equal to 1e-5 of the largest."""
    largest = max(float(tensor.detach().abs().max()) for tensor in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * largest)


@st.composite
def trees(draw: st.DrawFn) -> list[Row]:
    """Rows that begin alike for random lengths; some are repeated, some begin others."""
    ids = st.lists(st.integers(2, len(TOKENIZER) - 1), min_size=1, max_size=8)
    known: list[tuple[int, ...]] = [tuple(draw(ids))]
    for _ in range(draw(st.integers(1, 5))):
        base = draw(st.sampled_from(known))
        known.append(base[: draw(st.integers(0, len(base)))] + tuple(draw(st.one_of(ids, st.just([])))))
    known = [one for one in known if len(one) > 1] or [(2, 3)]
    chosen = draw(st.lists(st.sampled_from(known), min_size=2, max_size=6))
    cuts = [draw(st.integers(1, len(one) - 1)) for one in chosen]
    temperatures = st.sampled_from([1.0, 0.6])
    return [Row(one[:cut], one[cut:], temperature=draw(temperatures)) for one, cut in zip(chosen, cuts, strict=True)]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(trees(), st.integers(0, 3))
def test_packed_rows_have_the_log_probs_entropies_and_gradients_of_plain_forwards(name: str, rows, seed) -> None:
    model = MODELS[name]
    packs = [pack for part in microbatches(rows, 1000, computes_trees(model)) for pack in part]
    batch, ordered = collate(packs, pad_id=1), [row for pack in packs for row in pack.rows]
    expected = plain(model, ordered)
    whole = len(batch.label_N) * len(TOKENIZER)
    assert comes_apart(model)
    wanted = gradients(model, expected, seed)
    for apart, max_logits in ((True, whole), (True, whole // 3), (False, whole // 3)):  # at once, or in pieces
        found = token_logprobs(model, batch, apart, entropy=True, max_logits=max_logits)
        same(found, expected)
        same(gradients(model, found, seed), wanted)
    with torch.no_grad():
        same(token_logprobs(model, batch, True, max_logits=whole // 3), expected[:1])


def test_trees_are_computed_only_where_a_mask_of_ours_is_obeyed() -> None:
    assert {name for name, model in MODELS.items() if not takes_trees(model)} == SLIDES
    assert {name for name, model in MODELS.items() if not computes_trees(model)} == SLIDES
    window = {"num_key_value_heads": 2, "sliding_window": 4}
    assert not takes_trees(AutoModelForCausalLM.from_config(AutoConfig.for_model("mistral", **{**SHAPE, **window})))
    bloom = AutoConfig.for_model("bloom", vocab_size=50, hidden_size=32, n_layer=1, n_head=4)
    assert not computes_trees(AutoModelForCausalLM.from_config(bloom).eval()), "its positions are in the mask"
    mamba = AutoConfig.for_model("mamba", vocab_size=50, hidden_size=32, num_hidden_layers=1, state_size=4)
    assert not computes_trees(AutoModelForCausalLM.from_config(mamba).eval()), "it has no attention"


class Shifting(LlamaForCausalLM):
    """Makes more of its hidden states than each by itself: logits depend on the ids once more."""

    def forward(self, input_ids: Tensor, **options: Any) -> Any:  # type: ignore[override]
        output = super().forward(input_ids=input_ids, **options)
        kept = input_ids[:, -output.logits.shape[1] :]
        output.logits = output.logits + torch.nn.functional.one_hot(kept, output.logits.shape[-1])
        return output


def test_a_model_that_does_not_come_apart_computes_its_own_logits() -> None:
    torch.manual_seed(0)
    model = Shifting(LlamaConfig(**SHAPE)).eval()
    assert not comes_apart(model)
    rows = [Row((2, 3, 4), (5, 6, 7)), Row((2, 3, 4), (5, 9), temperature=1.0)]
    found = token_logprobs(model, collate([Pack.of(rows)], 1), apart=False, entropy=True)
    same(found, plain(model, rows))
    assert "forward" not in vars(model.model), "it is left as it was"


@pytest.mark.parametrize("modules", [["q_proj"], ["q_proj", "lm_head"]], ids=["frozen head", "adapted head"])
def test_a_gradient_in_pieces_does_not_mind_what_was_computed_in_between(modules: list[str]) -> None:
    model = adapted(make("llama"), *modules)
    batch = collate([Pack.of([Row((2, 3, 4), (5, 6, 7, 9, 8)), Row((2, 3), (8, 9, 1))])], pad_id=1)
    found = []
    for max_logits in (10**9, 2 * len(TOKENIZER)):
        value_N = token_logprobs(model, batch, apart=True, max_logits=max_logits)[0]
        with model.disable_adapter(), torch.no_grad():
            assert not torch.equal(value_N, token_logprobs(model, batch, apart=True)[0])
        found.append(gradients(model, [value_N], seed=0))
    same(found[1], found[0])


# ---- what is kept, what is computed ---------------------------------------------------------------------------------


def kept_bytes(model: Any, compute: Callable[[], Any]) -> int:
    """Bytes that wait for the backward pass, parameters apart."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: list[weakref.ref[Tensor]] = []  # some belong to graphs that are gone before the end

    def keep(tensor: Tensor) -> Tensor:
        alone = tensor.detach()  # else an output that its own graph saves would never be freed
        saved.append(weakref.ref(alone))
        return alone

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = compute()
    storages = {one.untyped_storage() for reference in saved if (one := reference()) is not None}
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in own}
    assert found[0].requires_grad
    return sum(sizes.values())


@pytest.mark.parametrize("head", ["frozen", "trained"])
def test_what_is_kept_for_the_backward_pass_does_not_grow_with_the_vocabulary(head: str) -> None:
    random = Random(0)
    prompt = tuple(random.choices(range(200), k=20))
    rows = [Row(prompt, tuple(random.choices(range(200), k=30))) for _ in range(6)]
    batch = collate([Pack.of(rows)], pad_id=1)
    num_tokens, (_, num_positions) = len(batch.label_N), batch.ids_BS.shape
    for vocabulary in (300, 6000):
        model: Any = LlamaForCausalLM(LlamaConfig(**{**SHAPE, "vocab_size": vocabulary})).eval()
        if head == "frozen":
            model = adapted(model, "q_proj")
        inputs = {"input_ids": batch.ids_BS, "tree_paths": batch.paths, "position_ids": batch.positions_BS}
        with attending(model.config, TREES):
            decoder = kept_bytes(model, partial(model.get_decoder(), **inputs, use_cache=False))
        compute = partial(token_logprobs, model, batch, True)
        in_pieces = kept_bytes(model, partial(compute, max_logits=20 * vocabulary)) - decoder
        at_once = kept_bytes(model, partial(compute, max_logits=10**9)) - decoder
        assert in_pieces < 4 * 4 * num_positions * SHAPE["hidden_size"], "a few times the hidden states"
        assert at_once > 4 * num_tokens * vocabulary, "else this measures nothing"


def unique_tokens(rows: Sequence[Row]) -> int:
    """Distinct beginnings of what is computed."""
    sequences = [row.prompt_ids + row.action_ids[:-1] for row in rows]
    return len({sequence[:end] for sequence in sequences for end in range(1, len(sequence) + 1)})


def group(prompt: int, attempts: int, new: int, seed: int = 0) -> list[Row]:
    random = Random(seed)
    ids = tuple(random.choices(range(2, 600), k=prompt))
    return [Row(ids, tuple(random.choices(range(2, 600), k=new))) for _ in range(attempts)]


def computed(rows: Sequence[Row], max_tokens: int = 16384) -> int:
    """Positions of all forwards, padding included."""
    return sum(collate(packs, 0).ids_BS.numel() for packs in microbatches(rows, max_tokens))


@pytest.mark.parametrize("attempts", [2, 8, 32])
def test_a_group_over_a_long_prompt_costs_its_unique_tokens(attempts: int) -> None:
    for prompt, new in ((256, 64), (512, 64), (1000, 20)):
        rows = group(prompt, attempts, new)
        assert computed(rows) <= 1.1 * unique_tokens(rows)


def test_short_rows_are_not_padded_to_long_ones() -> None:
    rows = group(700, 4, 50) + [row for seed in range(20) for row in group(40, 1, 20, seed + 1)]
    assert len(microbatches(rows, 100_000)) == 1 and computed(rows, 100_000) == unique_tokens(rows)
    assert computed(rows, 1000) <= 1.1 * unique_tokens(rows)


def test_a_shared_row_keeps_to_the_budget_of_a_microbatch() -> None:
    rows = group(100, 8, 50)
    for max_tokens in (200, 400, 10_000):
        parts = microbatches(rows, max_tokens)
        assert all(sum(len(pack.tree) for pack in part) <= max_tokens for part in parts)
        assert sum(len(pack.rows) for part in parts for pack in part) == 8
    assert len(parts) == len(parts[0]) == 1


def test_rows_that_are_sequences_of_their_own_share_what_they_begin_with() -> None:
    rows = group(200, 6, 20)
    assert [len(part) for part in microbatches(rows, 4096, whole=True)] == [1]


# ---- sampling -------------------------------------------------------------------------------------------------------


def drawn(model: Any, done: Completion, request: Request, end_ids: Sequence[int]) -> tuple[list, list]:
    """Ids and log-probs by a whole forward, from the same numbers of the seed.

    Of each token, given those before it: if one differs, or the completion ends too early, the ids differ from there.
    """
    ids, logprobs, random, sampling = [], [], Random(request.seed), request.sampling
    with torch.no_grad():
        logits_SV = model(input_ids=torch.tensor([done.prompt_ids + done.ids])).logits[0, len(done.prompt_ids) - 1 :]
    for logits in logits_SV[: sampling.max_tokens]:
        logprobs_V = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
        cumulative_V = logprobs_V.exp().double().cumsum(-1)
        place = int(torch.searchsorted(cumulative_V, random.random() * cumulative_V[-1], right=True))
        ids.append(place if sampling.temperature else int(logits.argmax()))
        logprobs.append(float(logprobs_V[ids[-1]]))
        if ids[-1] in end_ids:
            break
    return ids, logprobs


@pytest.mark.parametrize("name", [name for name in MODELS if "adapt" not in name])
def test_sampling_with_shared_and_kept_key_values_equals_a_forward_at_every_token(name: str) -> None:
    model = MODELS[name]
    engine = LocalEngine(
        model,
        TOKENIZER,
        activate=lambda policy: nullcontext(model),
        version=lambda policy: 0,
        memory=lambda: Memory(PrefixCache(2**26)),
    )
    cold, warm = {"temperature": 0.4, "max_tokens": 7}, {"temperature": 0.9, "max_tokens": 5}
    first = [ask("what is the answer", seed, **cold) for seed in range(4)] + [ask("the question", 4, temperature=0.0)]
    done = engine.sample(first)
    second = [  # the next turn: prompts that begin with what was just computed
        Request([*old.messages, {"role": "assistant", "content": one.text}, *ask("and?", 0).messages], new.sampling, n)
        for n, (old, one) in enumerate(zip(first, done, strict=True), 9)
        for new in [ask("", 0, **warm)]
    ]
    for request, completion in zip(first + second, done + engine.sample(second), strict=True):
        assert list(completion.prompt_ids) == list(render(TOKENIZER, request.messages)[1])
        ids, logprobs = drawn(model, completion, request, engine.end_ids)
        assert list(completion.ids) == ids
        assert completion.logprobs == pytest.approx(logprobs, rel=1e-5, abs=2e-5)
