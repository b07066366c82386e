"""The prefix cache: what is sampled with it is what is sampled without, whatever it holds, lost or must not hold."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_run import config_of
from test_local_engine import SHAPE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gruppo import replicas
from gruppo.engines.decoding import Memory, Prompted
from gruppo.engines.local import Home, LocalEngine, _shares
from gruppo.engines.prefix_cache import PrefixCache
from gruppo.replicas import Replicas
from gruppo.run import assemble
from gruppo.types import Completion, Request, Sampling, StopReason

PLENTY = 2**28
LETTERS = string.ascii_letters + string.digits + " \n!_"
Stamp = Callable[[str | None], int]


def always(policy: str | None) -> int:
    return 0


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One id per letter: what is sampled is spelled the same in the next prompt."""
    raw = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["<s>", "<e>", *LETTERS])}, unk_token="_"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<e>", pad_token="<e>", bos_token="<s>")
    tokenizer.chat_template = (
        "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}<e>\n{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
    )
    return tokenizer


TOKENIZER = make_tokenizer()
CONFIGS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def make_model(architecture: str = "llama", **options: Any) -> torch.nn.Module:
    torch.manual_seed(3)
    config, model = CONFIGS[architecture]
    shape = {key: value for key, value in SHAPE.items() if key != "head_dim" or architecture != "qwen2"}
    made = model(config(vocab_size=len(TOKENIZER), **{**shape, "max_position_embeddings": 1024, **options})).eval()
    made.lm_head.register_forward_hook(
        lambda _, args, logits: logits.index_fill(-1, torch.tensor([0]), -30.0)
    )  # no <s>
    return made


def make_engine(model: torch.nn.Module, max_bytes: int = PLENTY, stamp: Stamp = always, **options: Any) -> LocalEngine:
    return LocalEngine(
        model,
        TOKENIZER,
        **{"activate": lambda policy: nullcontext(model), "version": lambda policy: 0, **options},
        memory=lambda: Memory(PrefixCache(max_bytes, stamp)),
    )


@contextmanager
def counted(model: torch.nn.Module) -> Iterator[list[int]]:
    """The sizes of the inputs of every forward inside that reads more than one id a row."""
    sizes: list[int] = []

    def look(module: torch.nn.Module, args: Any, kwargs: dict[str, Tensor]) -> None:
        if kwargs["input_ids"].shape[1] > 1:
            sizes.append(kwargs["input_ids"].numel())

    handle = model.register_forward_pre_hook(look, with_kwargs=True)
    yield sizes
    handle.remove()


class Conversations:
    """Tasks times four attempts that tell their engine of themselves as episodes do, and diverge as they go on."""

    def __init__(self, policies: Sequence[str | None] = (None,), **sampling: Any) -> None:
        self.sampling = Sampling(**{"max_tokens": 8, **sampling})
        self.said = {
            (policy, f"task {number}", attempt): [{"role": "user", "content": "what is the answer" * 8 + "q" * number}]
            for policy in policies
            for number in range(2)
            for attempt in range(4)
        }

    def requests(self, turn: int) -> list[Request]:
        return [
            Request(list(messages), self.sampling, 100 * turn + attempt, policy, (task, attempt, "agent", turn))
            for (policy, task, attempt), messages in self.said.items()
        ]

    def hear(self, completions: Sequence[Completion], turn: int) -> None:
        for (_, _, attempt), messages, done in zip(self.said, self.said.values(), completions, strict=True):
            messages.append({"role": "assistant", "content": done.text})
            messages.append({"role": "tool", "content": f"result {turn}" + "!" * (attempt % 2)})


def play(
    engine: LocalEngine, told: Conversations, turns: int = 4, after: Callable[[], None] = lambda: None
) -> list[Completion]:
    found = []
    for turn in range(turns):
        completions = engine.sample(told.requests(turn))
        told.hear(completions, turn)
        found += completions
        after()
    return found


async def play_on_a_loop(engine: LocalEngine, told: Conversations) -> list[Completion]:
    found = []
    for turn in range(3):
        completions = await engine.generate(told.requests(turn))
        told.hear(completions, turn)
        found += completions
    return found


def bits(completions: Sequence[Completion]) -> list[tuple[object, ...]]:
    return [(done.ids, done.logprobs) for done in completions]


def assert_same(completions: Sequence[Completion], others: Sequence[Completion]) -> None:
    assert [done.prompt_ids for done in completions] == [done.prompt_ids for done in others]
    assert [done.ids for done in completions] == [done.ids for done in others]
    for done, other in zip(completions, others, strict=True):
        assert done.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize(
    ("architecture", "sampling"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("llama", {"temperature": 0.0}),
        ("qwen2", {"stop": ("e", "a")}),
    ],
    ids=["llama", "qwen2", "qwen3", "greedy", "stop"],
)
def test_a_conversation_is_the_same_and_reads_only_what_is_new(architecture: str, sampling: dict[str, Any]) -> None:
    model = make_model(architecture)
    with counted(model) as all_of_it:
        without = play(make_engine(model, 0), Conversations(**sampling))
    with counted(model) as new:
        assert_same(play(make_engine(model), Conversations(**sampling)), without)
    assert len(new) == len(all_of_it) and new[0] == all_of_it[0]
    assert sum(new[1:]) < 0.6 * sum(all_of_it[1:])


def test_the_ids_that_were_sampled_are_not_read_again() -> None:
    model = make_model()
    told = Conversations(max_tokens=120, temperature=2.0)
    engine = make_engine(model)
    first = engine.sample(told.requests(0))
    assert len({len(done.ids) for done in first}) > 5, "some left the batch long before others"
    told.hear(first, 0)
    with counted(model) as sizes:
        second = engine.sample(told.requests(1))
    said = [len(b.prompt_ids) - len(a.prompt_ids) - len(a.ids) for a, b in zip(first, second, strict=True)]
    assert sizes == [len({done.prompt_ids for done in second}) * (max(said) + 1)]  # of what was sampled, the last id


def test_a_branch_has_the_ids_of_the_row_that_went_on_longest() -> None:
    model = make_model()
    engine, messages = make_engine(model), [{"role": "user", "content": "what"}]
    long, _ = engine.sample([Request(messages, Sampling(temperature=0.0, max_tokens=n), 0) for n in (40, 1)])
    messages = [*messages, {"role": "assistant", "content": long.text}]
    with counted(model) as sizes:
        [after] = engine.sample([Request(messages, Sampling(max_tokens=1), 0)])
    assert sizes == [len(after.prompt_ids) - len(long.prompt_ids) - len(long.ids) + 1]


def test_batches_padding_overflow_and_sliding_windows() -> None:
    model = make_model()
    without = play(make_engine(model, 0, context_length=270), Conversations())
    assert without[-1].stop_reason == StopReason.context_overflow != without[0].stop_reason
    for max_batch_tokens in (1, 700):
        engine = make_engine(model, context_length=270, max_batch_tokens=max_batch_tokens)
        assert_same(play(engine, Conversations()), without)
    sliding = make_model(
        "qwen3", use_sliding_window=True, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    )
    with counted(sliding) as all_of_it:
        without = play(make_engine(sliding, 0), Conversations())
    with counted(sliding) as read:
        assert bits(play(make_engine(sliding), Conversations())) == bits(without), "off: not all is there to keep"
    assert read == all_of_it


class Weights:
    """A model for each of two policies, of which one changes; and how often each did."""

    def __init__(self, is_honest: bool = True) -> None:
        self.models = {None: make_model(), "planner": make_model("qwen3")}
        self.changes = dict.fromkeys(self.models, 0)
        self.is_honest = is_honest

    def activate(self, policy: str | None) -> Any:
        return nullcontext(self.models[policy])

    def stamp(self, policy: str | None) -> int:
        return self.changes[policy] if self.is_honest else 0

    @torch.no_grad()
    def learn(self) -> None:
        self.changes["planner"] += 1
        for parameter in self.models["planner"].parameters():
            parameter.mul_(1.1)


def played_while_learning(weights: Weights, max_bytes: int = PLENTY) -> list[Completion]:
    engine = make_engine(weights.models[None], max_bytes, weights.stamp, activate=weights.activate)
    return play(engine, Conversations((None, "planner")), after=weights.learn)


def test_policies_do_not_mix_and_what_other_weights_computed_is_not_used() -> None:
    without = played_while_learning(Weights(), 0)
    weights = Weights()
    with counted(weights.models[None]) as base, counted(weights.models["planner"]) as planner:
        assert_same(played_while_learning(weights), without)
    del base[: len(base) - len(planner)]  # what the engine tried the model on, when it was made
    assert all(few < many / 1.5 for few, many in zip(base[1:], planner[1:], strict=True)), "the base never changes"
    stale = played_while_learning(Weights(is_honest=False))
    assert stale[0].logprobs == without[0].logprobs and bits(stale) != bits(without), "the stamp is what tells"


@pytest.mark.parametrize("max_bytes", [2**19, 2**20])
def test_a_small_cache_forgets_and_the_results_are_the_same(max_bytes: int) -> None:
    model = make_model()
    without = play(make_engine(model, 0), Conversations(max_tokens=12))
    engine = make_engine(model, max_bytes)
    assert_same(play(engine, Conversations(max_tokens=12)), without)
    assert engine.memories[0].cache.num_bytes <= max_bytes


def test_what_was_not_used_for_longest_goes_first() -> None:
    def states(rows: int) -> list[tuple[Tensor, Tensor]]:
        return [(torch.zeros(rows, 1, 8, 1), torch.zeros(rows, 1, 8, 1))]

    cache = PrefixCache(3 * 64)
    cache.enter(0, None)
    for first in (10, 20, 30):
        cache.keep(None, [(0, tuple(range(first, first + 8)))], states(1))
    assert cache.beginnings(None, [(10, 11, 12, 13, 99)]), "the first is used"
    cache.keep(None, [(0, tuple(range(40, 48)))], states(1))
    held = [
        first for first in (10, 20, 30, 40) if cache.beginnings(None, [(first, first + 1, first + 2, first + 3, 99)])
    ]
    assert (held, cache.num_bytes) == ([10, 30, 40], 192)
    cache.keep(None, [(0, tuple(range(50 + n, 58 + n))) for n in range(4)], states(4))
    assert cache.num_bytes == 192, "what is larger than the cache is not kept, and nothing goes for it"


def test_little_is_not_worth_it_and_the_last_id_is_always_read() -> None:
    cache = PrefixCache(PLENTY)
    cache.enter(0, None)
    keys = torch.arange(8.0).reshape(1, 1, 8, 1)
    cache.keep(None, [(2, (1, 2, 3, 4, 5, 6))], [(keys, -keys)])
    assert cache.beginnings("other", [(1, 2, 3, 4)]) is None
    assert cache.beginnings(None, [(1, 9, 9, 9, 9, 9)]) is None
    num_new, [(found, negative)] = cache.beginnings(None, [(1, 2, 3, 4), (1, 2, 9)]) or (0, [])
    assert (num_new, found.shape) == (1, (2, 1, 3, 1))
    assert found[0, 0, :, 0].tolist() == [2, 3, 4] and found[1, 0, 1:, 0].tolist() == [2, 3]
    assert negative.equal(-found)


prompts_of_calls = st.lists(
    st.lists(
        st.lists(st.sampled_from(["aa", "bbbbbb", "c", "dddddddddd"]), max_size=6).map("".join), min_size=1, max_size=6
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=10, deadline=None)
@given(calls=prompts_of_calls, max_bytes=st.sampled_from([2**15, 2**17, PLENTY]))
def test_any_prompts_over_any_calls_give_what_they_give_without(calls: list[list[str]], max_bytes: int) -> None:
    with_cache = make_engine(MODEL, max_bytes, max_batch_tokens=300)
    for number, texts in enumerate(calls):
        requests = [
            Request([{"role": "user", "content": text}], Sampling(max_tokens=1 + seed % 5), seed)
            for seed, text in enumerate(texts, start=Random(number).randrange(99))
        ]
        assert_same(with_cache.sample(requests), WITHOUT.sample(requests))


MODEL = make_model()
WITHOUT = make_engine(MODEL, 0)


def test_a_rollout_gives_the_same_bits_whatever_was_played_before() -> None:
    """A run that was resumed has played nothing before; one that was not has."""
    model = make_model()
    veteran, fresh = make_engine(model), make_engine(model)
    once = asyncio.run(play_on_a_loop(veteran, Conversations()))
    with counted(model) as sizes:
        again = asyncio.run(play_on_a_loop(veteran, Conversations()))
    with counted(model) as sizes_of_fresh:
        assert bits(again) == bits(once) == bits(asyncio.run(play_on_a_loop(fresh, Conversations())))
    assert sizes == sizes_of_fresh and sizes[1] < 2 * sizes[0]
    with counted(model) as sizes:
        fresh.sample(Conversations().requests(0))
    assert sizes == [], "until a call comes from another loop, all is known but the last ids"


def play_in(num: int, can_fork: bool, monkeypatch: pytest.MonkeyPatch) -> list[Completion]:
    monkeypatch.setattr(replicas, "CAN_FORK", can_fork)
    model = make_model()
    engine = make_engine(model, replicas=Replicas(num))
    try:
        return play(engine, Conversations((None, "planner")))
    finally:
        engine.replicas.stop()
        used = [number for number, memory in enumerate(engine.memories) if memory.cache.num_bytes]
        assert used == ([0] if can_fork else list(range(num))), "each share fills its own, in its own process"


def test_processes_have_caches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    if not replicas.CAN_FORK:
        pytest.skip("nothing can be forked here")
    forked = play_in(3, True, monkeypatch)
    assert bits(forked) == bits(play_in(3, False, monkeypatch)), "bit for bit the same in one process"
    assert_same(forked, play_in(1, False, monkeypatch))


def test_a_task_stays_where_it_is_known() -> None:
    def rows(*tasks: str) -> list[Prompted]:
        sampling, policy = Sampling(), None
        return [
            Prompted(n, Request([], sampling, 0, policy, (task, n, "agent", 0)), "", (ord(task[-1]), n))
            for n, task in enumerate(tasks)
        ]

    def placed(*tasks: str) -> list[str]:
        return ["".join(row.request.context[0] for row in share) for share in _shares(rows(*tasks), 2, homes)]

    homes: dict[Home, int] = {}
    assert placed("a", "a", "b", "b", "c", "d") == ["aabb", "cd"]
    assert placed("d", "b", "c", "d") == ["b", "cdd"]
    assert placed("e", "c", "c", "f") == ["ef", "cc"]
    assert placed("d", "d") == ["", "dd"]


def test_the_config_turns_the_cache_on_for_every_process(tmp_path: Path) -> None:
    found = []
    for keys in ({"model__cache_mb": "0"}, {"model__cache_mb": "3", "model__processes": "2"}):
        assembly = assemble(config_of(tmp_path, **keys))
        found.append([memory.cache.max_bytes for memory in assembly.rollout.engines["local"].memories])
        assembly.close()
    assert found == [[0], [3 * 2**20] * 2]
