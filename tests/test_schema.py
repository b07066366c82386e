"""schema.py: what a model wrote is read as the schema says where it says just that, and else named, never dropped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.tools.schema import check_arguments, coerced, expected, fits

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "top_k": {"type": "integer"},
        "ratio": {"type": "number"},
        "exact": {"type": "boolean"},
        "sources": {"type": "array", "items": {"type": "integer"}},
        "filter": {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "order": {"enum": ["up", 2]},
        "page": {"type": ["integer", "null"]},
    },
    "required": ["query"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        ("top_k", "5", 5), ("top_k", " -5 ", -5), ("top_k", "+5", 5), ("top_k", 5.0, 5), ("ratio", "0.5", 0.5),
        ("ratio", "1e3", 1000.0), ("exact", "True", True), ("exact", "false", False), ("sources", "[1, 2]", [1, 2]),
        ("sources", ["1", 2], [1, 2]), ("filter", '{"year": "1999"}', {"year": 1999}), ("limit", "None", None),
        ("filter", {"year": "1999"}, {"year": 1999}), ("limit", "7", 7), ("order", "2", 2), ("page", "3", 3),
        ("page", None, None), ("query", "5", "5"), ("query", "null", "null"), ("query", "[1]", "[1]"),
    ],
)  # fmt: skip
def test_values_are_read_as_the_schema_says(name: str, written: Any, read: Any) -> None:
    found = coerced({"query": "x", name: written}, SCHEMA)
    assert found[name] == read and type(found[name]) is type(read)
    assert not check_arguments(SCHEMA, found)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("top_k", "five"), ("top_k", "5.5"), ("top_k", 5.5), ("top_k", True), ("top_k", "true"), ("top_k", ""),
        ("top_k", "0x5"), ("top_k", "9" * 5000), ("ratio", "nan"), ("ratio", "1e999"), ("exact", 1), ("exact", "yes"),
        ("sources", "1, 2"), ("sources", 1), ("query", 5), ("query", ["a", "b"]), ("query", None), ("order", "down"),
        ("filter", {"year": "soon"}), ("filter", {}), ("limit", "soon"), ("other", 1),
    ],
)  # fmt: skip
def test_what_does_not_fit_stays_and_is_named(name: str, written: Any) -> None:
    arguments = {"query": "x", name: written}
    assert coerced(arguments, SCHEMA) == arguments
    assert repr(name) in check_arguments(SCHEMA, coerced(arguments, SCHEMA))


def test_a_schema_of_somebody_else_is_read_as_far_as_it_is_understood() -> None:
    assert check_arguments({}, {"anything": 1}) == "" == check_arguments({"type": "object"}, {"a": []})
    assert fits(1, {"$ref": "#/x"}) and fits("x", {"type": "date"}) and fits(1, {"type": {}})
    assert expected({"oneOf": [{"type": "string"}, {"$ref": "#/x"}]}) == "a string or anything"
    assert "'a' is missing" in check_arguments({"required": ["a"]}, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(list(SCHEMA["properties"].values())), JSON)
def test_reading_twice_changes_nothing_and_what_fits_is_kept(schema: dict[str, Any], value: Any) -> None:
    once = coerced(value, schema)
    assert coerced(once, schema) == once
    assert not fits(value, schema) or once == value
