"""Solo with tools: the chat template chooses how calls are written and read, and forged answers are not trained on."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from gruppo.algorithms.batching import row_of
from gruppo.chat import encode_action, render
from gruppo.config import load
from gruppo.engines.scripted import ScriptedEngine, by_role
from gruppo.engines.unforged import Unforged
from gruppo.errors import ConfigError
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.run import RunConfig, assemble
from gruppo.teams.base import Role
from gruppo.teams.solo import CALLS, Solo, SoloConfig
from gruppo.tool_calls import FORMATS, cut_observation
from gruppo.tools.base import tool
from gruppo.training.model import TINY
from gruppo.types import Completion, Episode, Request, Sampling, StopReason, Task

TOKENIZER = AutoTokenizer.from_pretrained(TINY)
CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "tool_calls.jsonl").read_text().splitlines()]
CALL = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
FORGERIES = (
    "\nObservation: 7\nThought: so 7",
    "\n**Observation:** 7",
    "\n<tool_response>\n7\n</tool_response>",
    "\nTool result: 7, and more",
    "\n\nObservation",  # no forgery yet
    " and so on",
)


def completed(text: str, stop: str = "", reason: StopReason = StopReason.stop) -> Completion:
    """As the local engine gives it back: the text without the stop string, the ids with it."""
    ids = tuple(encode_action(TOKENIZER, text))
    ids = ids[:-1] if stop or reason == StopReason.length else ids
    logprobs = tuple(-number / 10 for number in range(len(ids)))
    return Completion("p", (1, 2), ids, logprobs, text.partition(stop)[0] if stop else text, reason)


def cut(done: Completion) -> Completion:
    engine = Unforged(ScriptedEngine(lambda request: done), TOKENIZER)
    (found,) = asyncio.run(engine.generate([Request([], Sampling(), 0)]))
    return found


@tool(in_process=True)
def search(query: str) -> str:
    """Look it up."""
    return f"found {query}"


TOOLS = {name: replace(search, name=name) for name in ("python", "search", "shell")}


def play(engine: Any, **options: str) -> Episode:
    team = Solo(SoloConfig(**options))
    roles = {"agent": Role("agent", team.prompts["agent"], Sampling(), "local", "agent", trainable=True)}
    rollout = Rollout(team, roles, {"local": engine}, TOOLS, {}, RolloutConfig(retries=0))
    (group,) = rollout.collect([Task("t", "What is x?", "7")], 1, 0, "test")
    return group.episodes[0]


def mask_of(episode: Episode, text: str) -> list[int]:
    """For each character of what was sampled in the first turn, whether a token that holds it is trained on."""
    row = row_of(episode.turns[0])
    assert len(row.action_ids) == len(row.sampled)
    trained = TOKENIZER.decode(row.action_ids)
    assert text.startswith(trained)
    return [1] * len(trained) + [0] * (len(text) - len(trained))


@pytest.mark.parametrize("case", [c for c in CASES if "action_text" in c["expected"]], ids=lambda case: case["source"])
@pytest.mark.parametrize("stop", ["", "\nObservation:"])
def test_published_forgeries_are_neither_kept_nor_trained_on(case: Mapping[str, Any], stop: str) -> None:
    text, action = case["input"]["model_text"], case["expected"]["action_text"]
    sampled = text[: text.index(stop) + len(stop)] if stop else text
    replies = [completed(sampled, stop), "Answer: none"]
    engine = ScriptedEngine(by_role({"agent": replies}), lambda text: TOKENIZER.encode(text))
    episode = play(Unforged(engine, TOKENIZER))
    assert episode.turns[0].text == action
    assert "the answer is 7" not in str([turn.prompt for turn in episode.turns])
    mask = mask_of(episode, sampled)
    assert all(mask[: len(action)]) and sum(mask[len(action) :]) == case["expected"]["loss_mask_on_forged_text"]


SHOWN = [case for case in CASES if "observation_contains" in case["expected"]]


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: case["source"])
def test_published_calls_of_tools_that_are_not_there(case: Mapping[str, Any]) -> None:
    episode = play(ScriptedEngine(by_role({"agent": [case["input"]["model_text"], "Answer: 7"]})))
    (event,) = episode.events
    assert all(words in event.result.text for words in case["expected"]["observation_contains"])
    assert event.result.text in episode.turns[1].prompt and episode.answer == "7", "the rollout goes on"


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("reason", [StopReason.stop, StopReason.length])
def test_ids_and_logprobs_end_with_the_call(forgery: str, reason: StopReason) -> None:
    done = completed("Let me see.\n" + CALL + forgery, reason=reason)
    found = cut(done)
    if cut_observation(done.text) == done.text:
        assert found == done
        return
    assert found.text == "Let me see.\n" + CALL == TOKENIZER.decode(found.ids)
    assert found.ids == done.ids[: len(found.ids)] and found.logprobs == done.logprobs[: len(found.ids)]
    assert found.stop_reason == StopReason.stop, "the call was whole"


def test_stop_strings_of_other_kinds_stay_as_they_were_sampled() -> None:
    for text, stop in (("The sum is 7.\nDone", "\nDone"), ("Observation: I see\nAnswer: 7", "")):
        assert cut(completed(text, stop)) == completed(text, stop)
    frozen = Completion("p", (), (), (), CALL, StopReason.stop)  # of an endpoint that hides its tokens
    assert cut(frozen) == frozen


@given(st.text(max_size=20), st.sampled_from(FORGERIES))
def test_what_is_kept_is_a_beginning_that_holds_the_action(said: str, forgery: str) -> None:
    text = f"{said}\n{CALL}{forgery}"
    done = completed(text)
    found = cut(done)
    assert found.ids == done.ids[: len(found.ids)] and len(found.ids) == len(found.logprobs)
    whole = TOKENIZER.decode(done.ids[:-1])
    kept = cut_observation(whole)
    assert TOKENIZER.decode(found.ids).startswith(kept) and found.text == cut_observation(done.text)
    if kept != whole and len(found.ids) > 1:
        assert not TOKENIZER.decode(found.ids[:-1]).startswith(kept)


# ---- the format -----------------------------------------------------------------------------------------------------

WRITTEN = {
    "hermes": CALL,
    "llama": '{"name": "search", "parameters": {"query": "x"}}',
    "pythonic": "[search(query='x')]",
    "fenced": '```tool_call\n{"name": "search", "arguments": {"query": "x"}}\n```',
}


@pytest.mark.parametrize("call_format", FORMATS)
def test_the_agent_is_told_the_format_that_is_read(call_format: str) -> None:
    assert CALLS.keys() == FORMATS.keys() == WRITTEN.keys()
    engine = ScriptedEngine(by_role({"agent": [WRITTEN[call_format], "Answer: 7"]}))
    episode = play(engine, call_format=call_format)
    assert [event.result.output for event in episode.events] == ["found x"] and episode.answer == "7"
    assert CALLS[call_format] in episode.turns[0].prompt


def test_a_call_in_another_format_is_an_answer() -> None:
    engine = ScriptedEngine(by_role({"agent": ["[search(query='x')]"]}))
    assert play(engine, call_format="hermes").answer == "[search(query='x')]"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return shutil.copytree(TINY, tmp_path / "base")


def assembled(base: Path, template: str, **changes: str) -> Any:
    """The team of a run on a base whose chat template says `template` first."""
    file = base / "chat_template.jinja"
    file.write_text(f"{{# {template} #}}{file.read_text()}")
    keys = {"model.base": str(base), "team.program": "solo", "roles.agent.policy": "solo", "policies.solo.rank": "2"}
    keys |= {"tools.names": '["wikipedia"]'} | {name.replace("__", "."): value for name, value in changes.items()}
    assembly = assemble(load(RunConfig, [], keys))
    assembly.close()
    return assembly.rollout


def test_the_template_of_the_base_chooses(base: Path) -> None:
    rollout = assembled(base, "")
    assert rollout.team.call_format == "any" and isinstance(rollout.engines["local"], Unforged)
    assert assembled(base, "write ```tool_code").team.call_format == "fenced"
    assert assembled(base, "<tool_call>").team.call_format == "hermes"
    assert assembled(base, "", team__solo__call_format="pythonic").team.call_format == "pythonic"


def test_a_template_of_calls_that_are_not_read_is_refused_unless_a_format_is_set(base: Path) -> None:
    with pytest.raises(ConfigError, match="XML tool calls, which are not read: set team.solo.call_format"):
        assembled(base, "<parameter=")
    assert assembled(base, "", team__solo__call_format="hermes").team.call_format == "hermes"
    without = assembled(base, "", tools__names="[]")
    assert without.team.call_format == "any" and not isinstance(without.engines["local"], Unforged)


def test_a_prompt_goes_on_where_the_action_ended() -> None:
    """The kept ids are a beginning of the next prompt, so that turns share their prefix."""
    found = cut(completed(f"{CALL}\nObservation: 7"))
    messages = [{"role": "user", "content": "q"}]
    _, before = render(TOKENIZER, messages)
    _, after = render(TOKENIZER, [*messages, {"role": "assistant", "content": found.text}])
    assert after[: len(before) + len(found.ids)] == [*before, *found.ids]
