"""Bases of every kind: quantized, bfloat16, recomputed, trained as a whole; and how much of one is trained."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Command
from test_learner import FULL, TWO, logprobs, row_of, sample, save_base, some_rows
from torch import Tensor
from transformers import Qwen2Config

from gruppo.algorithms.batching import Pack, Row, collate
from gruppo.config import load
from gruppo.errors import ConfigError
from gruppo.run import RunConfig
from gruppo.training.learner import Learner
from gruppo.training.model import ModelConfig, PolicyConfig, count_parameters

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
NF4, INT8 = {"quantization": "nf4"}, {"quantization": "int8"}
PLAIN_SCALES = {**NF4, "double_quantization": False}
HALF = {"dtype": "bfloat16"}
RARE = ("nf4-plain-scales", "int8-bfloat16")  # what only they have is small: make test-all tries them
QUANTIZED = [
    pytest.param(how, id=name, marks=[needs_bitsandbytes, *([pytest.mark.slow] if name in RARE else [])])
    for name, how in {
        "nf4": NF4,
        "nf4-plain-scales": PLAIN_SCALES,
        "int8": INT8,
        "nf4-bfloat16": NF4 | HALF,
        "int8-bfloat16": INT8 | HALF,
    }.items()
]
KINDS = [pytest.param({}, id="float32"), pytest.param(HALF, id="bfloat16"), *QUANTIZED]
SOME = [kind for kind in KINDS if kind.id in ("bfloat16", "nf4", "int8", "nf4-bfloat16")]
# Of a token's log-prob as sampled and as learnt from: bfloat16 keeps 8 bits, and adds up otherwise in another batch.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.15}


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("qwen3"), "qwen3", tied=True)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("llama"), "llama")


def make(base: Path, how: dict[str, Any], policies: dict[str, PolicyConfig] = TWO, seed: int = 0) -> Learner:
    learner = Learner(ModelConfig(base=str(base), threads=1, **how), policies, seed)
    learner.start_optimizers(dict.fromkeys(policies, 1e-2))
    return learner


def loss_of(learner: Learner, policy: str, rows: list[Row] | None = None) -> Tensor:
    batch = collate([Pack.of([row]) for row in rows or some_rows()], learner.pad_id)
    return -(learner.logprobs(policy, batch) * batch.advantages_N).sum() / 50


def train(learner: Learner, policy: str, steps: int = 4) -> None:
    for _ in range(steps):
        loss_of(learner, policy).backward()
        assert 0 < learner.step(policy, 1.0, 1.0) < float("inf")


def gradient(learner: Learner, policy: str) -> Tensor:
    """Of the loss, flat, and cleared."""
    loss_of(learner, policy).backward()
    grads = []
    for parameter in learner.parameters(policy).values():
        assert parameter.grad is not None
        grads.append(parameter.grad.flatten())
        parameter.grad = None
    return torch.cat(grads)


# ---- adapters on every kind of base ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", KINDS)
def test_an_adapter_learns_in_float32_and_leaves_the_rest_alone(qwen3: Path, how: dict[str, Any]) -> None:
    learner = make(qwen3, how)
    rows = some_rows()
    others = learner.fingerprint("executor"), logprobs(learner, "executor", rows), logprobs(learner, None, rows)
    start = loss_of(learner, "planner")
    start.backward()
    parameters = learner.parameters("planner").values()
    assert {p.dtype for p in parameters} == {p.grad.dtype for p in parameters if p.grad is not None} == {torch.float32}
    assert start.dtype == torch.float32
    learner.step("planner", 1.0, 1.0)
    train(learner, "planner")
    sample(learner, ("planner", None), merged=True)
    assert loss_of(learner, "planner") < start - 0.5
    assert others == (
        learner.fingerprint("executor"),
        logprobs(learner, "executor", rows),
        logprobs(learner, None, rows),
    )
    assert learner.fingerprint(None) == learner.base_fingerprint


@pytest.mark.parametrize("how", SOME)
def test_what_is_sampled_is_what_is_learnt_from(llama: Path, how: dict[str, Any]) -> None:
    learner = make(llama, how)
    for policy in TWO:
        train(learner, policy, steps=2)
    policies = ("planner", None, "executor")
    played = [pair for merged in (True, False) for pair in sample(learner, policies, merged)]
    for policy in policies:
        own = [row_of(request, done) for request, done in played if request.policy == policy]
        for row, found in zip(own, logprobs(learner, policy, own), strict=True):
            assert row.sampled == pytest.approx(found, abs=TOLERANCE[learner.config.dtype])


@pytest.mark.parametrize("how", SOME)
def test_an_adapter_is_saved_and_comes_back(qwen3: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    learner, other = make(qwen3, how), make(qwen3, how, seed=9)
    assert other.base_fingerprint == learner.base_fingerprint
    for policy in TWO:
        train(learner, policy, steps=2)
    learner.save(tmp_path)
    other.load(tmp_path, learner.versions)
    for policy in TWO:
        train(learner, policy, steps=1)
        train(other, policy, steps=1)
        assert other.fingerprint(policy) == learner.fingerprint(policy)
        assert logprobs(other, policy, some_rows()) == logprobs(learner, policy, some_rows())


@pytest.mark.parametrize("how", QUANTIZED)
def test_linear_layers_are_quantized_and_nothing_is_held_twice(qwen3: Path, how: dict[str, Any]) -> None:
    learner = make(qwen3, how)
    held = torch.uint8 if learner.config.quantization == "nf4" else torch.int8
    own = {name: p for name, p in learner.model.named_parameters() if ".lora_" not in name}
    dtypes = {name: p.dtype for name, p in own.items() if not p.requires_grad}
    assert dtypes.keys() == own.keys()
    small = {name for name, dtype in dtypes.items() if dtype == held}
    assert small == {name for name in own if name.endswith("_proj.base_layer.weight")} and len(small) == 14
    rest = {dtype for name, dtype in dtypes.items() if name not in small}
    assert rest == {torch.float32 if learner.config.dtype == "float32" else torch.bfloat16}
    assert learner._merged is None
    if learner.config.quantization == "nf4":
        states = [own[name].quant_state for name in small]
        assert {state.quant_type for state in states} == {"nf4"}
        assert {state.nested for state in states} == {learner.config.double_quantization}


@pytest.mark.parametrize("how", [kind for kind in QUANTIZED if "bfloat16" not in str(kind.id)])
def test_gradients_are_those_of_the_weights_that_the_codes_stand_for(qwen3: Path, how: dict[str, Any]) -> None:
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight

    learner, plain = make(qwen3, how), make(qwen3, {})
    train(learner, "planner", steps=2)
    theirs = dict(plain.model.named_modules())
    with torch.no_grad():
        for name, module in learner.model.named_modules():
            if name.endswith("base_layer"):
                state = module.state if how is INT8 else None
                theirs[name].weight.copy_(dequantize_bnb_weight(module.weight, state))
        for mine, other in zip(*(one.parameters("planner").values() for one in (learner, plain)), strict=True):
            other.copy_(mine)
    found, expected = gradient(learner, "planner"), gradient(plain, "planner")
    assert (found - expected).norm() < 1e-5 * expected.norm()


@needs_bitsandbytes
def test_four_bit_layers_stay_as_they_are_where_the_processor_would_repack_them(qwen3: Path) -> None:
    learner = make(qwen3, NF4)
    expected = gradient(learner, "planner")
    layers = [module for name, module in learner.model.named_modules() if name.endswith("base_layer")]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = True
    sample(learner, ("planner", None), merged=True)
    assert torch.equal(gradient(learner, "planner"), expected)
    assert layers and learner.fingerprint(None) == learner.base_fingerprint


# ---- the whole model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.filterwarnings("ignore"))])
def test_the_whole_model_learns_in_its_own_dtype(qwen3: Path, dtype: str) -> None:
    learner = make(qwen3, {"dtype": dtype}, FULL)
    before = loss_of(learner, "solo")
    before.backward()
    parameters = learner.parameters("solo").values()
    grads = {parameter.grad.dtype for parameter in parameters if parameter.grad is not None}
    assert before.dtype == torch.float32
    assert {str(parameter.dtype) for parameter in parameters} == {str(grad) for grad in grads} == {f"torch.{dtype}"}
    learner.step("solo", 1.0, 1.0)
    train(learner, "solo")
    assert loss_of(learner, "solo") < before - 0.5
    assert learner.fingerprint(None) == learner.base_fingerprint


def test_a_whole_model_in_bfloat16_is_warned_of(qwen3: Path) -> None:
    with pytest.warns(UserWarning, match="policies.solo.full = true .* small learning rates change next to nothing"):
        make(qwen3, HALF, FULL)


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_combinations_that_cannot_work_are_refused(qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match='full = true: the weights of model.quantization = "nf4" can\'t be trained'):
        make(qwen3, NF4, FULL)
    for how in ({}, INT8):
        given = {f"model.{key}": str(value) for key, value in how.items()}
        with pytest.raises(ConfigError, match='double_quantization = false: only quantization = "nf4"'):
            load(RunConfig, [], {**given, "model.double_quantization": "false"})
    with pytest.raises(ConfigError, match="model.device = 'nowhere'"):
        make(qwen3, {"device": "nowhere"})
    for name in ("bitsandbytes", "bitsandbytes.nn"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r'"int8" needs bitsandbytes: pip install "gruppo\[quant\]"'):
        make(qwen3, INT8)


@needs_bitsandbytes
@pytest.mark.parametrize("how", [NF4, INT8], ids=["nf4", "int8"])
def test_a_device_that_cannot_quantize_is_found_before_the_base_is_loaded(tmp_path: Path, how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match='model.quantization = "(nf4|int8)" on meta in bfloat16: '):
        make(tmp_path / "missing", how | HALF | {"device": "meta"})


# ---- no dropout, and layers that are computed again -----------------------------------------------------------------

RECOMPUTED = {"gradient_checkpointing": True}
STILL = [
    *((kind, TWO) for kind in ({}, HALF, RECOMPUTED)),
    *((kind, FULL) for kind in ({}, RECOMPUTED)),
    *(pytest.param(kind, TWO, marks=needs_bitsandbytes) for kind in (NF4, INT8, NF4 | RECOMPUTED)),
]


@pytest.mark.parametrize(("how", "policies"), STILL)
def test_no_dropout_is_ever_active(llama: Path, tmp_path: Path, how: dict[str, Any], policies: Any) -> None:
    drops = save_base(tmp_path, "llama")
    settings = json.loads((drops / "config.json").read_text())
    (drops / "config.json").write_text(json.dumps({**settings, "attention_dropout": 0.5}))
    learner, plain = make(drops, how, policies), make(llama, how, policies)
    for policy in policies:
        train(learner, policy, steps=1)
        train(plain, policy, steps=1)
        sample(learner, [policy], merged=True)
        assert torch.equal(gradient(learner, policy), gradient(plain, policy))
    assert not [m for m in learner.model.modules() if isinstance(m, torch.nn.Dropout) and m.p and m.training]
    (learner._merged or learner).model.train()
    assert not torch.equal(loss_of(learner, policy), loss_of(plain, policy)), "this base does have a dropout"


def saved_bytes(learner: Learner, policy: str) -> int:
    """Of the activations that one forward keeps for its backward."""
    kept: dict[int, Tensor] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in learner.model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(learner, policy, some_rows(20))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    ("how", "policies"),
    [
        pytest.param({}, TWO, id="adapters"),
        pytest.param({}, FULL, id="full"),
        pytest.param(NF4, TWO, id="nf4", marks=needs_bitsandbytes),
    ],
)
def test_layers_computed_again_give_the_same_gradient_from_less_memory(qwen3: Path, how: Any, policies: Any) -> None:
    plain, again = make(qwen3, how, policies), make(qwen3, how | RECOMPUTED, policies)
    for policy in policies:
        for learner in (plain, again):
            train(learner, policy, steps=2)
        torch.testing.assert_close(gradient(again, policy), gradient(plain, policy), rtol=0, atol=1e-6)
        assert saved_bytes(again, policy) < 0.5 * saved_bytes(plain, policy)
        again.freeze_reference(policy)
        batch = collate([Pack.of([row]) for row in some_rows()], again.pad_id)
        frozen = again.reference_logprobs(policy, batch)
        loss = loss_of(again, policy)
        again.reference_logprobs(policy, batch)
        loss.backward()
        again.step(policy, 1.0, 1.0)
        assert torch.equal(again.reference_logprobs(policy, batch), frozen), "a copy computes with its own weights"
        assert not torch.equal(again.logprobs(policy, batch), frozen)


def test_a_layer_is_not_computed_again_with_the_adapter_of_another_policy(qwen3: Path) -> None:
    learner = make(qwen3, RECOMPUTED)
    loss = loss_of(learner, "planner")
    logprobs(learner, None, some_rows())
    logprobs(learner, "executor", some_rows())
    with pytest.raises(AssertionError, match="another policy was activated"):
        loss.backward()


# ---- counting -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shape of Qwen2-1.5B, without weights."""
    shape = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "vocab_size": 151_936}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True}
    folder = tmp_path_factory.mktemp("qwen2")
    Qwen2Config(**shape, **heads).save_pretrained(folder)
    return folder


def test_parameters_of_qwen2_are_counted_by_shape(qwen2: Path, gruppo: Command, tmp_path: Path) -> None:
    seven = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    base = 1_543_714_304
    counted = count_parameters(ModelConfig(base=str(qwen2)), {"planner": PolicyConfig(rank=16, target_modules=seven)})
    assert counted == {"planner": (18_464_768, base + 18_464_768)}
    assert count_parameters(ModelConfig(base=str(qwen2)), FULL) == {"solo": (base, base)}
    file = tmp_path / "run.toml"
    file.write_text(f'[model]\nbase = "{qwen2}"\n[policies.planner]\nrank = 8\n')
    ended = gruppo("model", "parameters", "-c", str(file), "--policies.planner.rank", "16")
    (row,) = [line for line in ended.out.splitlines() if "planner" in line]
    assert ended.code == 0 and row.replace("│", "").split() == ["planner", "18,464,768", "1,562,179,072", "1.1820"]
    assert gruppo("model", "parameters").line.startswith("error: no [policies]: nothing is trained")


@pytest.mark.parametrize("policies", [TWO, FULL, {"one": PolicyConfig(rank=3, target_modules=["q_proj"])}])
def test_what_is_counted_is_what_is_trained(qwen3: Path, policies: dict[str, PolicyConfig]) -> None:
    learner = make(qwen3, {}, policies)
    counts = count_parameters(ModelConfig(base=str(qwen3)), policies)
    assert {name: trained for name, (trained, _) in counts.items()} == {
        name: sum(parameter.numel() for parameter in learner.parameters(name).values()) for name in policies
    }
    with pytest.raises(ConfigError, match="policies.one.target_modules = .'nothing'."):
        count_parameters(ModelConfig(base=str(qwen3)), {"one": PolicyConfig(target_modules=["nothing"])})
