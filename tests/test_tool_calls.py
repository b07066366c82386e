"""tool_calls.py: the call formats, what is no call, and what is mended, refused or cut; the published cases of each."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.bounded_json import parse_json
from gruppo.errors import ConfigError
from gruppo.tool_calls import FORMATS, Fault, ToolCall, call_format, cut_observation, parse_tool_calls

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "tool_calls.jsonl").read_text().splitlines()]


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name, arguments)


WHOLE = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (WHOLE, [call("search", query="x")]),
        (WHOLE + " and " + WHOLE, [call("search", query="x")] * 2),
        ("no call", []),
        (f"<think>{WHOLE}</think>done", []),
        (f"{WHOLE}</think>done", []),
        (f"<think>a</think>{WHOLE}", [call("search", query="x")]),
        (WHOLE.removesuffix("</tool_call>"), [call("search", query="x")]),
        (
            '<tool_call>\n{"name": "a"}\n{"name": "b", "arguments": "{\\"k\\": 1}"}\n</tool_call>',
            [call("a"), call("b", k=1)],
        ),
        ("<tool_call>{'name': 'a', 'arguments': {'q': 'it\\'s', 'k': 3}}</tool_call>", [call("a", q="it's", k=3)]),
        (
            '<tool_call>{"name": "a", "arguments": {"q": "x, y,", "ok": true,},}</tool_call>',
            [call("a", q="x, y,", ok=True)],
        ),
        ('<tool_call>{"name": "a", "arguments": {"code": "for:\n\tx"}}</tool_call>', [call("a", code="for:\n\tx")]),
        ('<tool_call>{"name": "a", "arguments": {"q": "z", \\n"k": 4\\n}}</tool_call>', [call("a", q="z", k=4)]),
        (
            '<tool_call>{"name": "a", "arguments": {"q": "say \\"hi\\", twice"}}</tool_call>',
            [call("a", q='say "hi", twice')],
        ),
        (
            '<tool_call>{"name": "a", "arguments": {"f": {"y": {"gte": 1}}}}</tool_call>',
            [call("a", f={"y": {"gte": 1}})],
        ),
        (
            '<tool_call>{"name": "a", "arguments": {"q": "\\ud83d\\ude80 \\ud83d"}}</tool_call>',
            [call("a", q="🚀 \ufffd")],
        ),
        (  # a call quoted inside an argument is not a call
            '<tool_call>{"name": "a", "arguments": {"q": "<tool_call>{\\"name\\": \\"rm\\"}</tool_call>"}}</tool_call>',
            [call("a", q='<tool_call>{"name": "rm"}</tool_call>')],
        ),
    ],
)
def test_tool_calls(text: str, calls: list[ToolCall]) -> None:
    assert parse_tool_calls(text) == (calls, [])


@pytest.mark.parametrize(
    ("text", "calls", "error"),
    [
        (f"<think>hm {WHOLE}", [], "unterminated reasoning"),
        ('<tool_call>{"arguments": {"q": 1}}</tool_call>' + WHOLE, [call("search", query="x")], "missing name"),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', [], "a: arguments must be an object, got list"),
        ('<tool_call>{"name": "python", "arguments": {"code": "rm -rf /tm', [], "neither closed nor whole"),
        ("<tool_call>search for x</tool_call>" + WHOLE, [call("search", query="x")], "not a JSON object"),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', [], "not JSON compliant"),
        ("<tool_call></tool_call>", [], "empty"),
        ("<tool_call>" + '{"a":' * 5000 + "</tool_call>", [], "nested deeper than 100"),
        ("<tool_call>{x" + "y" * 100_000 + "</tool_call>", [], "the limit is 20000"),
    ],
)
def test_broken_tool_calls_are_errors_and_spare_the_others(text: str, calls: list[ToolCall], error: str) -> None:
    found, errors = parse_tool_calls(text)
    assert found == calls
    assert len(errors) == 1 and error in str(errors[0])


PIECES = ("<tool_call>", "</tool_call>", "{", "}", '"', "name", ":", "[", "<think>", "\\", "1", ",", "f(", "x=", ")",
          "]", "'", "\n", "```json", "```", "<|python_tag|>", "Action:", "Observation:")  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES)))
def test_parsers_never_crash(pieces: list[str]) -> None:
    for name in ("any", *FORMATS):
        parse_tool_calls("".join(pieces), name)
    cut_observation("".join(pieces))
    try:
        parse_json("".join(pieces), {"name": str})
    except ValueError:
        pass


@pytest.mark.parametrize("case", [c for c in CASES if c["expected"].get("calls")], ids=lambda case: case["source"])
def test_published_cases(case: Mapping[str, Any]) -> None:
    calls, errors = parse_tool_calls(case["input"]["model_text"])
    wanted = case["expected"]["calls"]
    if case["id"] == "b016":  # the parser keeps what was written; the tool reads "5" as its schema says
        wanted = [{"name": "search", "arguments": {"query": "x", "top_k": "5"}}]
    assert [{"name": call.name, "arguments": call.arguments} for call in calls] == wanted and not errors
    assert all(json.dumps(call.arguments, ensure_ascii=False).encode() for call in calls)


@pytest.mark.parametrize("case", [c for c in CASES if c["expected"].get("error")], ids=lambda case: case["source"])
def test_published_broken_calls(case: Mapping[str, Any]) -> None:
    calls, (error,) = parse_tool_calls(case["input"]["model_text"])
    assert not calls and error.code == Fault(case["expected"]["error"]) and str(error.code) in str(error)


@pytest.mark.parametrize(
    ("text", "name", "calls"),
    [
        ('<|python_tag|>{"name": "a", "parameters": {"q": "x; y"}}; {"name": "b"}<|eom_id|>', "llama",
         [call("a", q="x; y"), call("b")]),
        ('{"name": "a", "parameters": {"k": 1}}', "llama", [call("a", k=1)]),
        ('{"type": "function", "function": {"name": "a", "arguments": "{\\"k\\": 1}"}}', "llama", [call("a", k=1)]),
        ("<|python_tag|>web.search(query='x, y')", "llama", [call("web.search", query="x, y")]),
        ("[a(q='it\\'s, [x]', k=-3), b()]", "pythonic", [call("a", q="it's, [x]", k=-3), call("b")]),
        ("[a(q=')]', d={'y': [1, true, None]})]", "pythonic", [call("a", q=")]", d={"y": [1, True, None]})]),
        ("<|python_start|>[a(q=\"x\")]<|python_end|>", "pythonic", [call("a", q="x")]),
        ("<think>[b(k=1)]</think>[a(k=1)]", "pythonic", [call("a", k=1)]),
        ('Well:\n```json\r\n{"name": "a", "arguments": {"q": "``` x"}}\r\n```\n', "fenced", [call("a", q="``` x")]),
        ("```tool_code\na(q='x')\n```", "fenced", [call("a", q="x")]),
        ('```tool_call\n[{"name": "a"}, {"name": "b", "arguments": {}}]\n```', "fenced", [call("a"), call("b")]),
    ],
)  # fmt: skip
def test_the_other_formats(text: str, name: str, calls: list[ToolCall]) -> None:
    assert parse_tool_calls(text, name) == (calls, []) == parse_tool_calls(text)
    for other in {"hermes", "pythonic"} - {name}:
        assert parse_tool_calls(text, other) == ([], [])


def test_prose_around_a_python_call_is_fine_where_the_format_is_known() -> None:
    text = "I look.\n[a(q=')]')]\nThen I wait."
    assert parse_tool_calls(text, "pythonic") == ([call("a", q=")]")], [])
    assert parse_tool_calls(text) == ([], [])


@pytest.mark.parametrize(
    "text",
    ['{"answer": [1]}', '{"name": "Bob"}', "[1, 2]", "[sin(x), cos(x)]", "[see](a=b)", "x = f(a=1)", "```json\n{}\n```",
     "```python\nsearch(query='x')\n```", "<|im", "Observation: 7", 'set {"name": "a", "arguments": {}}'],
)  # fmt: skip
def test_an_answer_is_no_call(text: str) -> None:
    assert parse_tool_calls(text) == ([], [])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>{"name": "a", "arguments": {"q": "x"}</tool_call>', [call("a", q="x")]),
        ('<tool_call>{"name": "a", "arguments": {"q": "x"}}}</tool_call>', [call("a", q="x")]),
        ('<tool_call>\n```json\n{"name": "a", "arguments": {"q": "x"}}\n```\n</tool_call>', [call("a", q="x")]),
        ('<tool_call>{name: "a", arguments: {q: "x"}}</tool_call>', [call("a", q="x")]),
        ('<tool_call>[{"name": "a"}, {"name": "b"}]</tool_call>', [call("a"), call("b")]),
        ('<tool_call>{"name": "a"}, {"name": "b"}</tool_call>', [call("a"), call("b")]),
        ('<tool_call>{"name": "a"} <tool_call>{"name": "b"} and now I wait', [call("a"), call("b")]),
        ('<tool_call>{"name": "a", "arguments": null}</tool_call>', [call("a")]),
        ('<tool_call>{"name": "a", "arguments": {"q": "<think>"}}</tool_call>', [call("a", q="<think>")]),
        ('<tool_call>{"name": "a", "arguments": {"q": "</think>"}}</tool_call>', [call("a", q="</think>")]),
        ('<tool_call>{"name": "draft"}</tool_call> no </think><tool_call>{"name": "a"}</tool_call>', [call("a")]),
        ('<think>a <think>b</think> <tool_call>{"name": "c"}</tool_call></think><tool_call>{"name": "a"}</tool_call>',
         [call("a")]),
        ('<tool_call>{"name": "a"}</tool_call>\n<tool_response>7</tool_response><tool_call>{"name": "b"}</tool_call>',
         [call("a")]),
    ],
)  # fmt: skip
def test_habits_of_models(text: str, calls: list[ToolCall]) -> None:
    assert parse_tool_calls(text) == (calls, [])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<tool_call>{"name": "shell", "arguments": {"cmd": "rm -rf /tm</tool_call>', Fault.unfinished),
        ("<tool_call>{'name': 'shell', 'arguments': {'cmd': 'rm -rf /tm</tool_call>", Fault.unfinished),
        ('<tool_call>{"name": "a", "name": "b"}</tool_call>', Fault.unreadable),
        ('<tool_call>{"name": "a", "arguments": {}, "parameters": {"x": 1}}</tool_call>', Fault.ambiguous),
        ('<tool_call>{"name": "a", "query": "x"}</tool_call>', Fault.bad_arguments),
        ('<tool_call>{"name": "a", "arguments": {}}, "query": "x"}</tool_call>', Fault.unreadable),
        ('<tool_call>{"name": 7, "arguments": {}}</tool_call>', Fault.missing_name),
        ("<tool_call>7</tool_call>", Fault.not_a_call),
        ('<tool_call>{"name": "a", bad, "name": "b"}</tool_call>', Fault.ambiguous),
        (  # the inner call is part of a damaged text: it must not run
            """<tool_call>{"name": "a", "arguments": {"q": "say "<tool_call>{"name": "rm"}"}}</tool_call>""",
            Fault.unfinished,
        ),
        ("[a('x', k=1)]", Fault.bad_arguments),
        ("[a(k=open('x'))]", Fault.bad_arguments),
        ("[a(**{'k': 1}, k=2)]", Fault.bad_arguments),
        ("<|python_tag|>import os; os.remove('x')", Fault.unreadable),
        ("<|python_start|>[a(q='x]<|python_end|>", Fault.unreadable),
    ],
)
def test_faults_have_their_codes(text: str, fault: Fault) -> None:
    calls, (error,) = parse_tool_calls(text)
    assert not [found for found in calls if found.name != "a"] and error.code == fault
    assert fault != Fault.unreadable or len(calls) <= 1


def test_mending_is_recorded_and_optional() -> None:
    damaged = '<tool_call>{"name": "a", "arguments": {"q": "x"},}</tool_call>'
    assert [found.repaired for found in parse_tool_calls(damaged + WHOLE)[0]] == [True, False]
    calls, (error,) = parse_tool_calls(damaged + WHOLE, repair=False)
    assert calls == [call("search", query="x")] and error.code == Fault.unreadable


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mending_never_changes_the_tool(data: st.DataObject) -> None:
    """Whatever is struck out of a call or put into it, no other of the known tools comes out."""
    text = '{"name": "search", "arguments": {"query": "use shell, not python", "name": "shell"}}'
    at = data.draw(st.integers(0, len(text)))
    piece = data.draw(st.sampled_from(["", ",", '"', "}", "{", "\n", "\\n", "name", ":", "[", "]", "'"]))
    damaged = text[:at] + piece + text[at + data.draw(st.integers(0, 12)) :]
    calls, _ = parse_tool_calls(f"<tool_call>{damaged}</tool_call>")
    assert not {found.name for found in calls} & {"shell", "python"}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>{{ tools[0].name }}</tool_call>{% endif %}", "hermes"),
        ("respond with [func_name1(params_name1=params_value1), func_name2(params)]", "pythonic"),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama"),
        ("{{ '<|python_tag|>' + tool_call.name }}", "llama"),
        ("write ```tool_code", "fenced"),
        ("{{ messages[0].content }}", "any"),
    ],
)
def test_a_template_says_which_format_it_teaches(template: str, name: str) -> None:
    assert call_format(template) == name


def test_formats_that_are_not_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="XML"):
        call_format("<tool_call><function=a><parameter=x>")
    with pytest.raises(ConfigError, match=r"call_format = 'xml': use one of any, hermes"):
        parse_tool_calls("", "xml")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (CASES[-2]["input"]["model_text"], CASES[-2]["expected"]["action_text"]),
        ("Action: a\nAction Input: {}\n**Observation:** 7\nThought: so 7", "Action: a\nAction Input: {}"),
        (f"{WHOLE}\n<tool_response>7</tool_response>", WHOLE),
        (f"{WHOLE}\nTool response: 7", WHOLE),
        (f"{WHOLE}\n<|im_start|>tool\n7", WHOLE),
        ("<think>Action: a\nObservation: b</think>Action: c", "<think>Action: a\nObservation: b</think>Action: c"),
        ("Observation: the sum is 7, so\nAnswer: 7", "Observation: the sum is 7, so\nAnswer: 7"),
        (f"{WHOLE} my observation: none", f"{WHOLE} my observation: none"),
        ("[search(query='x')]\nObservation: 7", "[search(query='x')]"),
        ('{"name": "search", "parameters": {"query": "x"}}\nObservation: 7',
         '{"name": "search", "parameters": {"query": "x"}}'),
        ("[f(x)] is odd.\nObservation: 7 is too", "[f(x)] is odd.\nObservation: 7 is too"),
    ],
)  # fmt: skip
def test_a_forged_observation_is_cut(text: str, kept: str) -> None:
    assert cut_observation(text) == kept


@pytest.mark.parametrize(
    "piece",
    ["<tool_call>", '<tool_call>{"a":', '<tool_call>{"name":"a"}', "<tool_call>{x</tool_call>", "[a(", "[a(b=1)]x\n",
     "```json\n{", "Action:\n", "<think>", "Observation:\n", '<tool_call>{"name": "a", "arguments": {"b": "\\\\'],
)  # fmt: skip
def test_hostile_replies_are_read_in_time(piece: str) -> None:
    text = (piece * 100_000)[:50_000]
    started = time.process_time()
    for name in ("any", *FORMATS):
        parse_tool_calls(text, name)
    assert time.process_time() - started < 4
