"""The scripted engine: exact ids, scripts by context and by role, and what a hole in the script says."""

from __future__ import annotations

import asyncio

import pytest

from gruppo.engines.scripted import ScriptedEngine, by_context, by_role
from gruppo.errors import EngineError
from gruppo.types import Completion, Request, Sampling, StopReason


def request(task: str = "t", attempt: int = 0, role: str = "solver", turn: int = 0) -> Request:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "é"}]
    return Request(messages, Sampling(), seed=0, context=(task, attempt, role, turn))


def play(engine: ScriptedEngine, *requests: Request) -> list[Completion]:
    return asyncio.run(engine.generate(requests))


def test_without_a_tokenizer_there_is_one_id_per_byte():
    engine = ScriptedEngine(lambda request: f"to {request.context[0]}", end_of_turn=256, version=3)
    first, second = play(engine, request("é"), request("b"))
    assert first.text == "to é" and first.ids == (*"to é".encode(), 256)
    assert first.logprobs == (0.0,) * 6
    assert first.prompt == "system: be brief\nuser: é" and first.prompt_ids == tuple(first.prompt.encode())
    assert (first.stop_reason, first.version, second.text) == (StopReason.stop, 3, "to b")


def test_a_tokenizer_and_a_template_are_used_as_given():
    engine = ScriptedEngine(
        lambda request: "a b", encode=lambda text: [len(word) for word in text.split()], render=lambda _: ("P", [7, 8])
    )
    (completion,) = play(engine, request())
    assert (completion.prompt, completion.prompt_ids, completion.ids) == ("P", (7, 8), (1, 1))


def test_a_script_by_context_can_hold_whole_completions():
    cut = Completion("p", (1,), (2,), (-0.5,), "cut", StopReason.length)
    engine = ScriptedEngine(by_context({("t", 0, "solver", 0): "one", ("t", 0, "solver", 1): cut}))
    assert play(engine, request(turn=1))[0] is cut
    assert play(engine, request())[0].text == "one"
    with pytest.raises(EngineError, match=r"no reply for \('t', 1, 'solver', 0\)"):
        play(engine, request(attempt=1))


def test_a_script_by_role_starts_anew_in_each_episode_and_retry():
    engine = ScriptedEngine(by_role({"planner": ["p0", "p1"], "solver": ["s0"]}))
    turns = [request(role="planner"), request(turn=1), request(role="planner", turn=2)]
    other = [request(attempt=1, role="planner")]
    assert [done.text for done in play(engine, *turns, *other)] == ["p0", "s0", "p1", "p0"]
    assert [done.text for done in play(engine, *turns)] == ["p0", "s0", "p1"]
    with pytest.raises(EngineError, match=r"\('t', 0, 'planner', 3\): 'planner' has 2 in all"):
        play(engine, request(role="planner", turn=3))
    with pytest.raises(EngineError, match="'judge' has 0"):
        play(engine, request(role="judge"))


def test_a_script_that_raises_is_an_engine_that_failed():
    with pytest.raises(EngineError, match=r"the script failed for \('t', 0, 'solver', 0\): ZeroDivisionError"):
        play(ScriptedEngine(lambda request: str(1 / 0)), request())
