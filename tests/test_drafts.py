"""Drafts: what is guessed changes how many forwards it takes, and never what is sampled."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small_run import config_of
from test_local_engine import MIXED, ask
from test_packing import MODELS, TOKENIZER, drawn
from transformers import GPT2Config, GPT2LMHeadModel

from gruppo.engines.decoding import Memory
from gruppo.engines.drafts import Drafts
from gruppo.engines.local import LocalEngine
from gruppo.engines.prefix_cache import PrefixCache
from gruppo.run import assemble
from gruppo.types import Completion, Request


def engine_of(model: Any, drafted: int, cache_bytes: int = 0) -> LocalEngine:
    return LocalEngine(
        model,
        TOKENIZER,
        activate=lambda policy: nullcontext(model),
        version=lambda policy: 0,
        memory=lambda: Memory(PrefixCache(cache_bytes), Drafts(drafted)),
    )


ENGINES = {
    (name, drafted, cache): engine_of(MODELS[name], drafted, cache)
    for name in ("llama", "qwen2", "phi", "gemma2 full")
    for drafted, cache in ((1, 0), (64, 0), (64, 2**24))
}


def test_the_longest_and_newest_n_gram_is_followed() -> None:
    drafts = Drafts(64)
    drafts.learn("a", (1, 2, 3, 4, 5, 6))
    drafts.learn("a", (9, 3, 7, 8))
    assert drafts.after("a", (0, 3), 2) == (7, 8)  # one id: the newest
    assert drafts.after("a", (2, 3), 2) == (4, 5)  # two ids say more
    assert drafts.after("a", (5, 5, 5, 2, 3), 9) == (4, 5, 6, 9, 3, 7, 8)
    assert drafts.after("a", (8,), 2) == () == drafts.after("a", (), 2)
    assert drafts.after("b", (2, 3), 2) == () == drafts.after(None, (2, 3), 2)


def test_where_learning_starts_nothing_before_is_learnt() -> None:
    drafts = Drafts(64)
    drafts.learn(None, (1, 2, 3, 4), start=3)
    assert drafts.after(None, (1, 2), 1) == () and drafts.after(None, (2, 3), 1) == (4,)


def test_another_period_knows_nothing_and_nothing_is_learnt_when_off() -> None:
    drafts = Drafts(64)
    drafts.learn("a", (1, 2, 3))
    drafts.enter(0)
    assert drafts.after("a", (1,), 1) == (2,)
    drafts.count("a", 0, 1000)
    assert drafts.depth("a", 1) == 0
    drafts.enter(1)
    assert drafts.after("a", (1,), 1) == () and drafts.depth("a", 1) > 0
    off = Drafts(0)
    off.learn("a", (1, 2, 3))
    assert off.after("a", (1,), 1) == () and off.depth("a", 1) == 0


def test_the_more_branches_and_the_more_mistakes_the_fewer_guesses() -> None:
    drafts = Drafts(64)
    drafts.count("a", 995, 995)
    depths = [drafts.depth("a", num_branches) for num_branches in (1, 8, 16, 32, 63, 65)]
    assert depths == sorted(depths, reverse=True) and depths[0] > depths[-1] == 0
    before = drafts.depth("a", 16)
    drafts.count("a", 0, 1000)
    assert 0 < drafts.depth("a", 16) < before
    drafts.count("a", 0, 100_000)
    assert drafts.depth("a", 1) == 0


@pytest.mark.parametrize("key", sorted(ENGINES), ids=str)
@settings(max_examples=5, deadline=None, phases=(Phase.generate,))  # engines remember: a smaller case is another one
@given(
    groups=st.lists(
        st.tuples(st.sampled_from(["q", "what is it", "a longer question"]), st.integers(1, 4)), min_size=1, max_size=3
    ),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_what_is_sampled_is_what_it_would_be_without_guesses(
    key: tuple[str, int, int], groups: list[tuple[str, int]], lengths: list[int], temperature: float, seed: int
) -> None:
    engine, length = ENGINES[key], itertools.cycle(lengths)
    questions = [f"{text} {number}" for number, (text, attempts) in enumerate(groups) for _ in range(attempts)]
    requests: list[Request] = [
        ask(question, seed + number, temperature=temperature, max_tokens=next(length))
        for number, question in enumerate(questions)
    ]
    for part in (requests[::2], requests, requests[1::2]):  # what was said before is known and comes again
        for request, completion in zip(part, engine.sample(part), strict=True):
            ids, logprobs = drawn(MODELS[key[0]], completion, request, engine.end_ids)
            assert list(completion.ids) == ids
            assert completion.logprobs == pytest.approx(logprobs, rel=1e-5, abs=2e-5)


@pytest.mark.parametrize("name", ["llama", "phi"])
def test_stop_strings_end_tokens_and_limits_end_a_row_in_the_midst_of_right_guesses(name: str) -> None:
    model = MODELS[name]
    plain, drafted = engine_of(model, 0), engine_of(model, 64)
    whole = plain.sample([ask("say it", 3, temperature=0.7, max_tokens=24)])[0]
    ends = whole.ids[9]
    for engine in (plain, drafted):
        engine.sample([ask("say it", 3, temperature=0.7, max_tokens=24)])  # now the rest is known
        engine.end_ids = (*engine.end_ids, ends)
    requests = [
        ask("say it", 3, temperature=0.7, max_tokens=24),
        ask("say it", 3, temperature=0.7, max_tokens=24, stop=(whole.text[3:5],)),
        *[ask("say it", 3, temperature=0.7, max_tokens=number) for number in (1, 2, 4, 7)],
        *MIXED,
    ]
    for one, other in zip(plain.sample(requests), drafted.sample(requests), strict=True):
        assert (one.ids, one.text, one.stop_reason) == (other.ids, other.text, other.stop_reason)
        assert one.logprobs == pytest.approx(other.logprobs, rel=1e-5, abs=2e-5)


def forwards(engine: LocalEngine, model: torch.nn.Module, requests: list[Request]) -> tuple[int, list[Completion]]:
    """How many forwards a call takes, and what it gives."""
    calls = []
    hook = model.register_forward_hook(lambda *arguments: calls.append(1))
    found = engine.sample(requests)
    hook.remove()
    return len(calls), found


def test_what_was_said_before_takes_few_forwards_and_what_was_not_no_more_than_ever() -> None:
    model = MODELS["llama"]
    requests = [ask("say it", seed, temperature=0.7, max_tokens=28) for seed in range(3)]
    plain, expected = forwards(engine_of(model, 0), model, requests)
    engine = engine_of(model, 64)
    first, _ = forwards(engine, model, requests)
    again, found = forwards(engine, model, requests)
    assert plain == 28 and first <= plain and again < plain / 2
    assert [one.ids for one in found] == [one.ids for one in expected]
    engine.forget()
    assert forwards(engine, model, requests)[0] == first


def test_no_guess_lies_beyond_the_positions_of_a_model_that_has_learnt_them() -> None:
    torch.manual_seed(0)
    positions = 40
    model: Any = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(TOKENIZER), n_positions=positions, n_embd=16, n_layer=2, n_head=2)
    ).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)
    drafted, plain = engine_of(model, 64), engine_of(model, 0)
    room = positions - len(plain.sample([ask("q", 0, max_tokens=1)])[0].prompt_ids)
    requests = [ask("q", seed, temperature=0.0, max_tokens=room - seed) for seed in range(3)]
    expected = plain.sample(requests)
    for _ in range(2):
        assert [one.ids for one in drafted.sample(requests)] == [one.ids for one in expected]


def test_the_config_says_how_many_are_fed(tmp_path: Path) -> None:
    found = []
    for keys in ({"model__processes": "2"}, {"model__draft_tokens": "0"}):
        assembly = assemble(config_of(tmp_path, **keys))
        found.append([memory.drafts.at_once for memory in assembly.rollout.engines["local"].memories])
        assembly.close()
    assert found == [[64, 64], [0]]
