"""bounded_json.py: what is read out of damaged text, and that reading it ends and evaluates nothing."""

from __future__ import annotations

import json
import time

import pytest

from gruppo.bounded_json import MAX_CHARACTERS, guessed, literal, parse_json, tidied


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": "a}", "score": 1, "extra": null}',
        'Since {x} holds:\n```json\n{"answer": "a}", "score": 1.0}\n```\nthat is {it}.',
        '<think>{"answer": "no", "score": 0}</think> {"answer": "a}", "score": 1}',
        '{"draft": {}} then {"answer": "a}", "score": 1}',
        "```\n{'answer': 'a}', 'score': 1,}\n```",
        '{"answer": "a}", "score": 1, "tags": {"x": 1},}',
        'code {x}: ```json\n{"answer": "a}", score: 1}\n```',
    ],
)
def test_parse_json(text: str) -> None:
    value = parse_json(text, {"answer": str, "score": float})
    assert value == {"answer": "a}", "score": 1.0}
    assert type(value["score"]) is float


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"answer": "a"}', r"missing field 'score' \(float\)"),
        ('{"answer": "a", "score": "high"}', "field 'score' must be float, got str 'high'"),
        ('{"answer": "a", "score": true}', "field 'score' must be float, got bool"),
        ('{"answer": "a", "tags": {"x": 1},}', "missing field 'score'"),
        ("nothing here", "no JSON object"),
        ("{}{" * 40_000, "the limit is 100000"),
        ("{" * 1000, "nested deeper than 100"),
        ("<think>{}", "unterminated reasoning"),
        (json.dumps({"answer": "a", "score": float("inf")}), "not JSON compliant"),
    ],
)
def test_parse_json_names_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(text, {"answer": str, "score": float})


def test_valid_text_is_never_rewritten_and_literals_are_never_run() -> None:
    assert tidied('{"a": "x, ]\\n", "b": [1, 2,],}') == {"a": "x, ]\n", "b": [1, 2]}
    assert literal("{'a': (1, 'x'), 'b': {'c': true, 'd': None}}") == {"a": [1, "x"], "b": {"c": True, "d": None}}
    for hostile in ("__import__('os').system('true')", "[x for x in ()]", "{1: 2}", "{'a': 1, 'a': 2}", "f'{1}'", "1 +",
                    "{1, 2}", "b'x'", "{**{}}", "-" * 50_000 + "1", "(" * 200 + ")" * 200):  # fmt: skip
        with pytest.raises(ValueError):
            literal(hostile)


def test_a_key_with_two_values_is_an_error() -> None:
    assert parse_json('{"a": 1, "a": 1}', {"a": int}) == {"a": 1}
    with pytest.raises(ValueError, match="'a' is given twice"):
        parse_json('{"a": 1, "a": 2}', {"a": int})


@pytest.mark.parametrize("piece", ['"', "\\", "'", '{"', ",", ", ", "\\n", "{'a'", "[", "(", "-", "\\'", '\\"', "{,"])
def test_hostile_text_is_refused_in_time(piece: str) -> None:
    text = ("{" + piece * MAX_CHARACTERS)[: MAX_CHARACTERS - 1] + "}"
    started = time.process_time()
    for read in (tidied, guessed, literal):
        try:
            read(text)
        except ValueError:
            pass
    assert time.process_time() - started < 3
