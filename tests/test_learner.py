"""The learner on small random models: independent adapters, exact log-probs, saving, references, the full model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gruppo.algorithms.batching import Pack, Row, collate
from gruppo.algorithms.kl import k3
from gruppo.engines.local import LocalEngine
from gruppo.errors import CheckpointError, ConfigError
from gruppo.store import Checkpoint
from gruppo.training.grpo import load as load_checkpoint
from gruppo.training.learner import Learner
from gruppo.training.model import ModelConfig, PolicyConfig, load_base
from gruppo.types import Completion, Request, Sampling

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # logits that differ: the default gives a random model that is nearly uniform
    **{"eos_token_id": 1, "pad_token_id": 1},
}
SPECIAL = ["<|im_start|>", "<|im_end|>"]
START, END = 0, 1  # END also pads: masks have to come from lengths
LORA = PolicyConfig(rank=4, alpha=8)
TWO = {"planner": LORA, "executor": LORA}
FULL = {"solo": PolicyConfig(full=True)}


def save_base(folder: Path, architecture: str, seed: int = 3, tied: bool = False) -> Path:
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    raw = Tokenizer(models.BPE(vocab={word: place for place, word in enumerate(words)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    shape = {**SHAPE, "vocab_size": len(tokenizer), "tie_word_embeddings": tied}
    is_llama = architecture == "llama"
    model = LlamaForCausalLM(LlamaConfig(**shape)) if is_llama else Qwen3ForCausalLM(Qwen3Config(**shape))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["qwen3", pytest.param("llama", marks=pytest.mark.slow)])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("one"), "qwen3", tied=True)


def make(base: Path, policies=TWO, seed: int = 0, start: bool = True) -> Learner:
    learner = Learner(ModelConfig(base=str(base), threads=1), policies, seed)
    if start:
        learner.start_optimizers(dict.fromkeys(policies, 1e-2))
    return learner


def some_rows(count: int = 6, seed: int = 0) -> list[Row]:
    random = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        ids = torch.randint(2, 200, (4 + 3 * number + 2 + number,), generator=random).tolist()
        rows.append(Row(tuple(ids[: 4 + 3 * number]), (*ids[4 + 3 * number :], END), (), advantage=(-1.0) ** number))
    return rows


def train(learner: Learner, policy: str, steps: int = 2, seed: int = 0) -> None:
    for step in range(steps):
        batch = collate([Pack.of([row]) for row in some_rows(seed=seed + step)], learner.pad_id)
        loss = -(learner.logprobs(policy, batch) * batch.advantages_N).sum() / 50
        loss.backward()
        norm = learner.step(policy, 1.0, 1.0)
        assert 0 < norm < float("inf")


def logprobs(learner: Learner, policy: str | None, rows: Sequence[Row]) -> list[list[float]]:
    """Each row's log-probs from one padded batch."""
    batch = collate([Pack.of([row]) for row in rows], learner.pad_id)
    with torch.no_grad():
        found = iter(learner.logprobs(policy, batch).tolist())
    return [list(islice(found, len(row.action_ids))) for row in rows]


# ---- adapters -------------------------------------------------------------------------------------------------------


def test_training_one_policy_leaves_the_other_and_the_base_as_they_were(base: Path) -> None:
    learner = make(base)
    start = {policy: learner.fingerprint(policy) for policy in (*TWO, None)}
    assert start[None] == learner.base_fingerprint and len(set(start.values())) == 3
    for trained, kept in (("executor", "planner"), ("planner", "executor")):
        before = {policy: learner.fingerprint(policy) for policy in TWO}
        others = logprobs(learner, kept, some_rows()), logprobs(learner, None, some_rows())
        mine = logprobs(learner, trained, some_rows())
        train(learner, trained)
        assert learner.fingerprint(trained) != before[trained] and learner.fingerprint(kept) == before[kept]
        assert (logprobs(learner, kept, some_rows()), logprobs(learner, None, some_rows())) == others
        assert logprobs(learner, trained, some_rows()) != mine
    assert learner.fingerprint(None) == learner.base_fingerprint
    assert learner.versions == {"planner": 2, "executor": 2}
    assert [learner.version(policy) for policy in ("planner", "executor", None)] == [2, 2, 0]


def test_a_gradient_reaches_its_policy_though_the_base_computed_in_between(base: Path) -> None:
    learner = make(base)
    for policy, other in (("planner", "executor"), ("executor", "planner")):
        loss = -learner.logprobs(policy, collate([Pack.of([row]) for row in some_rows()], learner.pad_id)).sum()
        logprobs(learner, None, some_rows())
        loss.backward()
        grads = {name: [p.grad for p in learner.parameters(name).values()] for name in TWO}
        assert all(grad is not None for grad in grads[policy]) and any(grad.abs().sum() > 0 for grad in grads[policy])
        assert all(grad is None for grad in grads[other])
        learner.step(policy, 1.0, 1.0)


def test_the_same_seed_gives_the_same_adapters(base: Path) -> None:
    first, again, other = (make(base, seed=seed) for seed in (0, 0, 1))
    for learner in (first, again, other):
        train(learner, "planner")
    prints = [(learner.fingerprint("planner"), learner.fingerprint("executor")) for learner in (first, again, other)]
    assert prints[0] == prints[1] and prints[0][0] != prints[2][0] and prints[0][1] != prints[2][1]
    alone = make(base, {"executor": LORA})
    assert alone.fingerprint("executor") == first.fingerprint("executor"), "an adapter starts as its name and seed say"
    assert logprobs(make(base), "planner", some_rows()) == logprobs(make(base), None, some_rows()), (
        "it starts at the base"
    )


@pytest.mark.parametrize("name", ["model", "layers", "self_attn", "weight", "default"])
def test_a_policy_may_have_any_plain_name(qwen3: Path, name: str) -> None:
    learner = make(qwen3, {name: LORA, "other": LORA})
    assert all(".lora_" in parameter for parameter in learner.parameters(name))
    assert len(learner.parameters(name)) == len(learner.parameters("other")) > 0
    train(learner, name)
    assert learner.fingerprint(None) == learner.base_fingerprint


# ---- log-probs ------------------------------------------------------------------------------------------------------


def sample(learner: Learner, policies: Sequence[str | None], merged: bool) -> list[tuple[Request, Completion]]:
    activate = learner.sampling if merged else learner.activate
    engine = LocalEngine(learner.model, learner.tokenizer, activate=activate, version=learner.version)
    requests = [
        Request([{"role": "user", "content": text}], Sampling(temperature, max_tokens=12), seed, policy)
        for policy in policies
        for seed, text in enumerate(("q", "what is the answer", "a longer question than the others, what of it?"))
        for temperature in (1.0, 0.7)
    ]
    return list(zip(requests, asyncio.run(engine.generate(requests)), strict=True))


def row_of(request: Request, done: Completion) -> Row:
    return Row(done.prompt_ids, done.ids, done.logprobs, temperature=request.sampling.temperature)


def check_samples(learner: Learner, policies: Sequence[str | None]) -> None:
    played = [*sample(learner, policies, merged=True), *sample(learner, policies, merged=False)]
    for policy in policies:
        own = [row_of(request, done) for request, done in played if request.policy == policy]
        assert all(done.version == learner.version(policy) for request, done in played if request.policy == policy)
        for row, found in zip(own, logprobs(learner, policy, own), strict=True):
            assert row.sampled == pytest.approx(found, abs=1e-4)


def test_sampled_logprobs_are_those_of_the_learner(base: Path) -> None:
    learner, rows = make(base), some_rows()
    for policy in TWO:
        train(learner, policy, steps=3)
    assert abs(logprobs(learner, "planner", rows)[0][0] - logprobs(learner, "executor", rows)[0][0]) > 1e-3
    check_samples(learner, ("planner", None, "executor"))
    train(learner, "planner", seed=5)
    check_samples(learner, ("planner", None, "executor"))


def test_padding_is_told_by_length_though_the_pad_token_ends_turns(base: Path) -> None:
    learner = make(base)
    assert learner.pad_id == learner.tokenizer.eos_token_id == END
    train(learner, "planner")
    rows = [*some_rows(), Row((END, START, 7, END), (9, END), ()), Row((START, END), (END,), ())]
    together = logprobs(learner, "planner", rows)
    for row, found in zip(rows, together, strict=True):
        assert len(found) == len(row.action_ids)
        ids = torch.tensor([[*row.prompt_ids, *row.action_ids]])
        with torch.no_grad(), learner.activate("planner") as model:
            logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        plain = logits.gather(1, torch.tensor(row.action_ids)[:, None])[:, 0].tolist()
        assert found == pytest.approx(plain, abs=1e-5)


def test_a_temperature_divides_the_logits_of_its_own_row(qwen3: Path) -> None:
    learner = make(qwen3)
    rows = [
        replace(row, temperature=temperature) for row, temperature in zip(some_rows(), (1, 0.5, 2) * 2, strict=True)
    ]
    with torch.no_grad(), learner.activate(None) as model:
        for row, found in zip(rows, logprobs(learner, None, rows), strict=True):
            logits = model(input_ids=torch.tensor([[*row.prompt_ids, *row.action_ids]])).logits[0, :-1]
            plain = (logits[-len(row.action_ids) :] / row.temperature).log_softmax(-1)
            assert found == pytest.approx(
                plain.gather(1, torch.tensor(row.action_ids)[:, None])[:, 0].tolist(), abs=1e-5
            )


# ---- saving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policies", [TWO, FULL], ids=["adapters", "full"])
def test_what_is_saved_comes_back_bit_for_bit_and_goes_on_alike(base: Path, tmp_path: Path, policies) -> None:
    learner, other = make(base, policies), make(base, policies, seed=9)
    for policy in policies:
        train(learner, policy)
    learner.save(tmp_path)
    first = next(iter(policies))
    train(other, first, seed=3)
    sample(other, [first], merged=True)  # as many steps, other weights: nothing of these may be left over
    other.load(tmp_path, learner.versions)
    check_samples(other, [first])
    assert other.versions == learner.versions
    for policy in policies:
        assert other.fingerprint(policy) == learner.fingerprint(policy)
        mine, theirs = learner._optimizer_tensors(policy), other._optimizer_tensors(policy)
        assert mine.keys() == theirs.keys() and len(mine) == 3 * len(learner.parameters(policy))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for one in (learner, other):
        for policy in policies:
            train(one, policy, seed=5)
    for policy in policies:
        assert other.fingerprint(policy) == learner.fingerprint(policy)
    assert other.fingerprint(None) == other.base_fingerprint == learner.base_fingerprint


def refused(learner: Learner, folder: Path, message: str) -> None:
    """Loading raises, and no weight has changed."""
    before = {policy: learner.fingerprint(policy) for policy in learner.policies}
    with pytest.raises(CheckpointError, match=message) as raised:
        learner.load(folder, {})
    assert "\n" not in str(raised.value)
    assert {policy: learner.fingerprint(policy) for policy in learner.policies} == before


def test_a_checkpoint_that_does_not_fit_is_refused_as_a_whole(qwen3: Path, tmp_path: Path) -> None:
    learner = make(qwen3, seed=1)
    train(learner, "planner")
    learner.save(tmp_path)
    fewer = PolicyConfig(rank=4, target_modules=["q_proj"])
    for policies, message in (
        ({**TWO, "executor": PolicyConfig(rank=8)}, r"'executor' has another shape: .*\(4, 64\) .*\(8, 64\)"),
        ({**TWO, "extra": LORA}, r"no adapter_model.safetensors for policy 'extra'; is \[policies\]"),
        ({**TWO, "executor": fewer}, "does not fit policy 'executor': .* other tensor names, such as"),
        (FULL, "no model.safetensors for policy 'solo'"),
    ):
        refused(make(qwen3, policies), tmp_path, message)
    file = tmp_path / "policies" / "executor" / "adapter_model.safetensors"
    save_file({}, file)
    refused(make(qwen3), tmp_path, "does not fit policy 'executor'")
    file.write_bytes(b"")
    refused(make(qwen3), tmp_path, "executor.*can't be read")


def test_a_checkpoint_of_another_base_is_refused(qwen3: Path, tmp_path: Path) -> None:
    other = make(save_base(tmp_path / "other", "qwen3", seed=4, tied=True))
    learner = make(qwen3)
    learner.save(tmp_path / "saved")
    state = {"base": learner.base_fingerprint, "versions": dict.fromkeys(TWO, 3)}
    load_checkpoint(learner, Checkpoint(7, tmp_path / "saved", state))
    assert learner.versions == dict.fromkeys(TWO, 3)
    with pytest.raises(CheckpointError, match="another base than model.base = .*other") as raised:
        load_checkpoint(other, Checkpoint(7, tmp_path / "saved", state))
    assert learner.base_fingerprint[:12] in str(raised.value) and other.base_fingerprint[:12] in str(raised.value)


# ---- references -----------------------------------------------------------------------------------------------------


def kl(learner: Learner, policy: str) -> float:
    batch = collate([Pack.of([row]) for row in some_rows()], learner.pad_id)
    with torch.no_grad():
        new_N = learner.logprobs(policy, batch)
        return k3(new_N, learner.reference_logprobs(policy, batch), new_N).sum().item()


@pytest.mark.parametrize(("policies", "policy"), [(TWO, "executor"), (FULL, "solo")], ids=["adapters", "full"])
def test_a_frozen_reference_starts_at_the_policy_and_stays_there(base: Path, tmp_path: Path, policies, policy) -> None:
    learner = make(base, policies)
    assert kl(learner, policy) == pytest.approx(0, abs=1e-9), "without a copy the reference is the base"
    train(learner, policy)
    assert kl(learner, policy) > 1e-4
    learner.freeze_reference(policy)
    batch = collate([Pack.of([row]) for row in some_rows()], learner.pad_id)
    frozen = learner.reference_logprobs(policy, batch)
    assert kl(learner, policy) == 0 and not frozen.requires_grad
    train(learner, policy, seed=7)
    assert kl(learner, policy) > 1e-4 and torch.equal(learner.reference_logprobs(policy, batch), frozen)
    assert learner.fingerprint(None) == learner.base_fingerprint, "the base is still the base"
    learner.save(tmp_path)
    other = make(base, policies, seed=9)
    other.load(tmp_path, learner.versions)
    assert torch.equal(other.reference_logprobs(policy, batch), frozen) and kl(other, policy) == kl(learner, policy)
    assert other.fingerprint(None) == other.base_fingerprint
    assert not [name for name in other.parameters(policy) if "reference" in name]


def test_a_reference_between_forward_and_backward_does_not_swallow_the_gradient(base: Path) -> None:
    plain, with_reference = make(base), make(base)
    for policy in TWO:
        with_reference.freeze_reference(policy)
        batch = collate([Pack.of([row]) for row in some_rows()], plain.pad_id)
        norms = []
        for learner in (plain, with_reference):
            found_N = learner.logprobs(policy, batch)
            if learner is with_reference:
                learner.reference_logprobs(policy, batch)
            (-found_N).sum().backward()
            norms.append(learner.step(policy, 1.0, 1.0))
        assert norms[0] == norms[1] > 0
        assert plain.fingerprint(policy) == with_reference.fingerprint(policy)


# ---- the whole model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_the_whole_model_learns_and_the_base_stays(tmp_path: Path, tied: bool) -> None:
    learner = make(save_base(tmp_path, "qwen3", tied=tied), FULL)
    start, of_base = learner.fingerprint("solo"), logprobs(learner, None, some_rows())
    assert logprobs(learner, "solo", some_rows()) == of_base
    train(learner, "solo", steps=3)
    assert learner.fingerprint("solo") != start and learner.fingerprint(None) == learner.base_fingerprint
    assert logprobs(learner, None, some_rows()) == of_base != logprobs(learner, "solo", some_rows())
    check_samples(learner, ("solo", None))
    greedy = {
        policy: [done.ids for request, done in sample(learner, [policy], merged=True)] for policy in ("solo", None)
    }
    assert greedy["solo"] != greedy[None]


def test_a_whole_model_is_the_only_policy(qwen3: Path) -> None:
    with pytest.raises(ConfigError, match="policies.solo.full = true: .* the only policy; drop the others"):
        make(qwen3, {"planner": LORA, **FULL})


# ---- steps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(qwen3: Path, poison: float) -> None:
    learner = make(qwen3)
    train(learner, "planner")
    before, state = learner.fingerprint("planner"), learner._optimizer_tensors("planner")
    batch = collate([Pack.of([row]) for row in some_rows()], learner.pad_id)
    (learner.logprobs("planner", batch).sum() * poison).backward()
    norm = learner.step("planner", 1.0, 1.0)
    assert not norm < float("inf")
    assert (learner.fingerprint("planner"), learner.versions["planner"]) == (before, 2)
    assert all(torch.equal(value, state[name]) for name, value in learner._optimizer_tensors("planner").items())
    assert all(parameter.grad is None for parameter in learner.parameters("planner").values())
    train(learner, "planner")
    assert learner.fingerprint("planner") != before


# ---- bases ----------------------------------------------------------------------------------------------------------


def test_a_base_that_cannot_be_had_is_one_line_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder has no config.json"):
        load_base(ModelConfig(base=str(tmp_path)))
    with pytest.raises(ConfigError, match="no such folder, nor cached: use 'tiny'"):
        load_base(ModelConfig(base="nobody/nothing"))
    folder = save_base(tmp_path / "bare", "qwen3")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template; take an instruct model"):
        load_base(ModelConfig(base=str(folder)))
