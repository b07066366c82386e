"""From a typed, documented Python function to the JSON schema that a model reads, and from a schema to argument checks.

Pure: it calls nothing. `coerced` reads "5" as 5 where the schema asks for an integer; what does not fit after that is
named by `check_arguments`. Of JSON Schema it knows what the types of Python say, and of a server's schema no more.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def cut(text: str, limit: int) -> str:
    """At most `limit` characters: the middle of a longer text gives way to a marker that tells the whole length."""
    if len(text) <= limit:
        return text
    marker = f"\n... [cut: {len(text)} characters in all] ...\n"
    kept = max(0, limit - len(marker))
    return (text[: (kept + 1) // 2] + marker + text[len(text) - kept // 2 :])[:limit]


def schema_of_type(annotation: Any) -> dict[str, Any]:
    """The JSON schema of a Python type. Raises ValueError for a type that JSON can't carry."""
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    if annotation is Any:
        return {}
    if annotation in plain:
        return {"type": plain[annotation]}
    origin, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of_type(argument) for argument in arguments]}
    if origin is list:
        return {"type": "array", **({"items": schema_of_type(arguments[0])} if arguments else {})}
    if origin is dict and (not arguments or arguments[0] is str):
        return {"type": "object", **({"additionalProperties": schema_of_type(arguments[1])} if arguments else {})}
    raise ValueError(f"{annotation!r}: use str, int, float, bool, list, dict[str, ...], Literal or a union of these")


def parse_docstring(text: str, names: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """(description, text per argument), from a Google-style `Args:` section or plain `name: text` lines."""
    summary: list[str] = []
    described: dict[str, str] = {}
    current = None
    for line in inspect.cleandoc(text).splitlines():
        entry = re.match(r"\s*(\w+)\s*(?:\([^)]*\))?\s*:\s+(.*)", line)
        if entry and entry[1] in names:
            current = entry[1]
            described[current] = entry[2].strip()
        elif re.match(r"(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):\s*$", line):
            current = ""
        elif current and line.startswith(" "):
            described[current] += " " + line.strip()
        elif current is None:
            summary.append(line)
    return "\n".join(summary).strip(), described


def schema_of(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """(description, JSON schema of the arguments). Raises ValueError for what a model could not be told."""
    name = function.__name__
    if not function.__doc__:
        raise ValueError(f"tool {name!r} has no docstring: it is what the model reads")
    parameters = inspect.signature(function).parameters
    description, described = parse_docstring(function.__doc__, tuple(parameters))
    hints = typing.get_type_hints(function)
    properties: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"tool {name!r}: argument {key!r} can't be passed by name; use plain arguments")
        if key not in hints:
            raise ValueError(f"tool {name!r}: argument {key!r} has no type; annotate it, e.g. {key}: str")
        try:
            properties[key] = schema_of_type(hints[key])
        except ValueError as error:
            raise ValueError(f"tool {name!r}: argument {key!r} is {error}") from None
        if key in described:
            properties[key]["description"] = described[key]
        if parameter.default is not parameter.empty:
            properties[key]["default"] = parameter.default
    required = [key for key, parameter in parameters.items() if parameter.default is parameter.empty]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return description, schema


def expected(schema: Mapping[str, Any]) -> str:
    """The schema in words, for an error message."""
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value) for value in schema["enum"])
    if options := _options(schema):
        return " or ".join(expected(option) for option in options)
    if "items" in schema:
        return f"a list (each: {expected(schema['items'])})"
    return NAMES.get(schema.get("type", ""), "anything")


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a JSON value is what the schema says; nothing is converted, except that an integer is a number."""
    if "enum" in schema:
        return any(value == option and type(value) is type(option) for option in schema["enum"])
    if options := _options(schema):
        return any(fits(value, option) for option in options)
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in KINDS:
        return True
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if not isinstance(value, KINDS[kind]):
        return False
    if kind == "array":
        return all(fits(item, schema.get("items", {})) for item in value)
    if kind == "object":
        return all(isinstance(key, str) for key in value) and not misfit(schema, value)
    return True


KINDS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def _options(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The members of a union, however it is written; empty if it is none."""
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": kind} for kind in schema["type"]]
    return list(schema.get("anyOf", schema.get("oneOf", ())))


def _of_property(schema: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """The schema of an object's property; None if it may not be there."""
    others = schema.get("additionalProperties", True)
    other = None if others is False else {} if others is True else others
    return schema.get("properties", {}).get(key, other)


def coerced(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` read as the schema says where a text or number says just that: "5" as 5, "[1]" as a list, 2.0 as 2.

    Whatever does not fit even then stays as it is. A number never becomes text, a value never a list of itself.
    """
    if isinstance(value, dict):
        return {key: coerced(each, _of_property(schema, str(key)) or {}) for key, each in value.items()}
    if isinstance(value, list) and not _options(schema):
        return [coerced(each, schema.get("items", {})) for each in value]
    if fits(value, schema):
        return value
    candidates = [coerced(value, option) for option in _options(schema)]
    if isinstance(value, str):
        read = _read(value)
        candidates.append(coerced(read, schema) if isinstance(read, list | dict) else read)
    elif isinstance(value, float) and value.is_integer():
        candidates.append(int(value))
    return next((found for found in candidates if found is not value and fits(found, schema)), value)


def _read(text: str) -> Any:
    """The JSON value that a short text is, in any case of true, false and null; the text itself if it is none."""
    text = text.strip()
    word = text.lower().replace("none", "null")
    try:
        value = json.loads(word if word in ("true", "false", "null") else text.removeprefix("+"), parse_constant=str)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, float) and not math.isfinite(value) else value


def check_arguments(schema: Mapping[str, Any], arguments: Any) -> str:
    """What is wrong with the arguments: which, its value, what is expected. Empty if nothing is."""
    if not isinstance(arguments, Mapping):
        return f"the arguments are {cut(repr(arguments), 200)}, expected an object"
    return misfit(schema, arguments)


def misfit(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """As `check_arguments`, for what is an object."""
    properties = schema.get("properties", {})
    for key in arguments:
        if _of_property(schema, key) is None:
            return f"unknown argument {cut(repr(key), 200)}, expected {', '.join(map(repr, properties)) or 'none'}"
    for key in schema.get("required", ()):
        if key not in arguments:
            return f"argument {key!r} is missing, expected {expected(properties.get(key, {}))}"
    for key, value in arguments.items():
        if not fits(value, _of_property(schema, key) or {}):
            return f"argument {key!r} is {cut(repr(value), 200)}, expected {expected(properties.get(key, {}))}"
    return ""
