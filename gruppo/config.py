"""Configuration: the strict base class of every component's settings, and how files and flags become one of them.

TOML files (or JSON ones, `x.json`) are laid over one another from left to right, then `--dotted.key value` flags; the
result is validated as a whole. This module knows no component: each keeps its own `Config` subclass beside the code
that reads it.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import pydantic
import tomli_w
from pydantic_core import PydanticUndefined, to_json, to_jsonable_python

from gruppo.errors import ConfigError, boundary

KeyPath = tuple[Any, ...]
"""Where a value sits: names of tables and keys, and indices into arrays."""

_FLAG = re.compile(r"--([\w-]+(?:\.[\w-]+)*)(?:=(.*))?", re.DOTALL)
_MAX_LISTED = 12
_MAX_SHOWN = 80


class Config(pydantic.BaseModel):
    """Base of all settings: frozen, no unknown keys, no conversions (TOML `"3"` or `true` is not an int).

    A docstring below a field documents it. So that a table given in part means the same everywhere, and a dump loads
    back equal, defaults are plain: None where a field may be None (TOML has no null), `SomeConfig()` for a sub-config
    (other defaults: a subclass), and no entries for a dictionary of sub-configs.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            default = field.get_default(call_default_factory=True)
            if NoneType in get_args(field.annotation) and default is not None:
                raise TypeError(f"{cls.__name__}.{name} may be None, so its default has to be None")
            is_own_table = isinstance(default, Config) and default.model_fields_set
            is_filled = isinstance(default, dict) and default and _submodels(field.annotation)
            if is_own_table or is_filled:
                raise TypeError(f"{cls.__name__}.{name}: give its default values in the sub-config's class, not here")


SomeConfig = TypeVar("SomeConfig", bound=Config)


def load(
    cls: type[SomeConfig], files: Sequence[str | Path] = (), overrides: Mapping[str, str] | None = None
) -> SomeConfig:
    """The `cls` that `files`, then `overrides` (dotted key -> text as typed) describe.

    An override is read as TOML (number, boolean, array, inline table, quoted string), else as the text it is.

    Raises:
        ConfigError: on one line the first problem, where it came from, and how many more there are.
    """
    data: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    overrides = overrides or {}
    layers = [(str(file), _read_table(Path(file))) for file in files]
    layers += [("command line", _nest(key, _parse_value(key, text))) for key, text in overrides.items()]
    for origin, layer in layers:
        data = _merge(data, layer)
        origins.update(dict.fromkeys(_paths(layer), origin))
    for _ in range(2):
        try:
            return cls.model_validate_json(to_json(data))
        except pydantic.ValidationError as error:
            problems = _problems(error, data)
        # What looked like a number or a boolean may have been meant as text: `--name 7`.
        for problem in problems:
            key = _dotted(problem.path)
            if problem.wants_text and key in overrides:
                data = _merge(data, _nest(key, overrides[key]))
    raise ConfigError(_describe(cls, problems, origins))


def parse_overrides(args: Sequence[str]) -> dict[str, str]:
    """`--a.b value`, `--a.b=value` and the bare flag `--a.b` (true) as dotted key -> text.

    Raises:
        ConfigError: a stray positional argument, a malformed key, or a key that is given twice.
    """
    overrides: dict[str, str] = {}
    waiting: str | None = None  # the key whose value may come next
    for arg in args:
        if not arg.startswith("--") and waiting is not None:
            overrides[waiting], waiting = arg, None
            continue
        flag = _FLAG.fullmatch(arg)
        if flag is None:
            raise ConfigError(f"unexpected argument {arg!r}: write --key value, --key=value or --key")
        key, value = flag.groups()
        if key in overrides:
            raise ConfigError(f"--{key} is given twice: {overrides[key]!r} and again; keep one")
        overrides[key] = "true" if value is None else value
        waiting = key if value is None else None
    return overrides


def dump(config: Config) -> str:
    """`config` as TOML text that loads back equal; None is left out."""
    return tomli_w.dumps(to_jsonable_python(config, exclude_none=True))


class SchemaRow(NamedTuple):
    """One key of a config class, as text. `<name>` in `key` stands for a name that the user chooses."""

    key: str
    type: str
    default: str
    doc: str


def schema_rows(cls: type[Config]) -> list[SchemaRow]:
    """Every key that `cls` knows, in order of definition, sub-configs in place; the default of a required key is
    "required", that of an optional one without a value is empty."""
    rows: dict[str, SchemaRow] = {}
    for name, field in cls.model_fields.items():
        inner = [
            row._replace(key=".".join((name, *inside, row.key)))
            for inside, model in _submodels(field.annotation)
            for row in schema_rows(model)
        ]
        default = field.get_default(call_default_factory=True)
        text = "required" if default is PydanticUndefined else "" if default is None else _show(default)
        own = SchemaRow(name, _type_name(field.annotation), text, " ".join((field.description or "").split()))
        for row in inner or [own]:
            rows.setdefault(row.key, row)  # members of a union share keys
    return list(rows.values())


def suggest(name: str, names: Iterable[str], listed: bool = True) -> str:
    """What to say after an unknown `name`: the nearest of `names`, else (if `listed`) some of them, else nothing."""
    known = sorted(set(names))
    if close := difflib.get_close_matches(name, known, n=1):
        return f": did you mean {close[0]}?"
    return _list(known) if listed else ""


def _list(names: Sequence[str]) -> str:
    more = ", …" if len(names) > _MAX_LISTED else ""
    return f": known are {', '.join(names[:_MAX_LISTED])}{more}" if names else ""


def missing_file(path: Path) -> str:
    """The message for a file that is not there, with the nearest name in its folder."""
    if not path.parent.is_dir():
        return f"{path}: no such file, and no folder {path.parent}"
    return f"{path}: no such file" + suggest(path.name, (entry.name for entry in path.parent.iterdir()), listed=False)


def load_object(reference: str) -> Any:
    """The object that `reference` names: "path/file.py:name" or "package.module:name".

    Raises:
        ConfigError: no such file, module or name (with the nearest one), or a module that fails when imported.
    """
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise ConfigError(f"{reference!r}: expected file.py:name or package.module:name")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    if name not in vars(module):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(f"{place} has no {name!r}{suggest(name, public)}")
    return vars(module)[name]


def _load_file(path: Path) -> ModuleType:
    """Import a file once; a second reference to it gives the same objects."""
    if not path.is_file():
        raise ConfigError(missing_file(path))
    module_name = f"gruppo_user_file:{path.resolve()}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look their module up while it is being run
    try:
        with boundary(ConfigError, f"{path} can't be imported"):
            spec.loader.exec_module(module)
    except BaseException:  # whatever stopped it, a half-run module may not be found by the next call
        del sys.modules[module_name]
        raise
    return module


def _load_module(name: str) -> ModuleType:
    with boundary(ConfigError, f"{name} can't be imported"):
        return importlib.import_module(name)


def _read_table(path: Path) -> dict[str, Any]:
    """What is in a TOML file, or in a JSON file, where null stands for a key that is not there."""
    if not path.exists():
        raise ConfigError(missing_file(path))
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text, object_hook=_without_nulls) if kind == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # its syntax, bytes that are not UTF-8, or JSON too deep to be read
        raise ConfigError(f"{path}: not a {kind} file: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected a table of keys, not {_show(found)}")
    return found


def _without_nulls(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _parse_value(key: str, text: str) -> Any:
    if not text.isascii() and text != text.encode("utf-8", "replace").decode():
        raise ConfigError(f"{key} = {text!r}: not valid Unicode text")
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    is_one_plain_value = len(table) == 1 and isinstance(table["value"], bool | int | float | str | list | dict)
    return table["value"] if is_one_plain_value else text


def _nest(key: str, value: Any) -> dict[str, Any]:
    """{"a": {"b": value}} for "a.b"."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `under`: tables are merged key by key, anything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _paths(table: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    for key, value in table.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from _paths(value, (*prefix, key))


def _submodels(annotation: Any, inside: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], type[Config]]]:
    """The config classes in a field's annotation, each with a `<name>` per dictionary or list around it."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [(inside, annotation)]
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping | Sequence):
        inside = (*inside, "<name>")
    return [found for argument in get_args(annotation) for found in _submodels(argument, inside)]


class _Problem(NamedTuple):
    path: KeyPath
    kind: str
    expected: list[str]
    value: Any

    @property
    def wants_text(self) -> bool:
        return self.kind in ("string_type", "literal_error") and not isinstance(self.value, str)


def _problems(error: pydantic.ValidationError, data: Mapping[str, Any]) -> list[_Problem]:
    """One problem per key, those of keys that are there first: a missing key may be a misspelled one."""
    found: dict[KeyPath, _Problem] = {}
    for detail in error.errors(include_url=False):
        path, kind, value = _locate(detail["loc"], data), detail["type"], detail["input"]
        context = detail.get("ctx", {})
        expected = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        if kind == "missing":
            path = (*path, detail["loc"][-1])
        elif kind == "union_tag_invalid":
            path, value, expected = (*path, context["discriminator"][1:-1]), context["tag"], context["expected_tags"]
            kind = "literal_error"
        elif kind == "union_tag_not_found":
            path, kind = (*path, context["discriminator"][1:-1]), "missing"
        found.setdefault(path, _Problem(path, kind, [], value)).expected.append(expected)
    return sorted(found.values(), key=lambda problem: problem.kind == "missing")


def _locate(location: KeyPath, data: Any) -> KeyPath:
    """`location` without the names of union members that pydantic puts between the keys."""
    path: list[Any] = []
    for part in location:
        is_key = isinstance(data, dict) and part in data
        is_index = isinstance(data, list) and isinstance(part, int)
        if is_key or is_index:
            path.append(part)
            data = data[part]
    return tuple(path)


def _describe(cls: type[Config], problems: list[_Problem], origins: Mapping[KeyPath, str]) -> str:
    problem = problems[0]
    key = _dotted(problem.path)
    shown = "" if isinstance(problem.value, dict) else f" = {_show(problem.value)}"
    expected = " or ".join(dict.fromkeys(problem.expected)).replace("an object", "a table").replace("array", "list")
    if problem.kind == "extra_forbidden":
        line = f"unknown key {key}{shown}{_suggest_key(cls, problem.path)}"
    elif problem.kind == "missing":
        row = next((row for row in schema_rows(cls) if _fill_names(row.key, problem.path) == key), None)
        line = f"missing key {key}" + (f": expected {row.type}. {row.doc}".rstrip(". ") if row else "")
    elif problem.kind in ("value_error", "assertion_error"):
        line = f"{key}{shown}: {expected}" if key else expected
    else:
        options = re.findall(r"'([^']*)'", expected) if problem.kind == "literal_error" else []
        line = f"{key}{shown}: expected {expected}" + suggest(str(problem.value), options, listed=False)
    prefixes = (problem.path[:length] for length in range(len(problem.path), 0, -1))
    origin = next((origins[prefix] for prefix in prefixes if prefix in origins), None)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return " ".join(line.split()) + (f" ({origin})" if origin else "") + more


def _suggest_key(cls: type[Config], path: KeyPath) -> str:
    """The nearest key in the same table, else one of that name elsewhere, else the keys of the table."""
    leaves = [_fill_names(row.key, path).split(".") for row in schema_rows(cls)]
    keys = {".".join(leaf[:length]) for leaf in leaves for length in range(1, len(leaf) + 1)}
    *parents, name = map(str, path)
    siblings = {key.rpartition(".")[2]: key for key in keys if key.split(".")[:-1] == parents}
    if close := difflib.get_close_matches(name, siblings, n=1):
        return f": did you mean {siblings[close[0]]}?"
    elsewhere = sorted(key for key in keys if key.rpartition(".")[2] == name)
    return f": did you mean {elsewhere[0]}?" if elsewhere else _list(sorted(siblings.values()))


def _fill_names(key: str, path: KeyPath) -> str:
    """`key` of a schema row with each `<name>` replaced by the name that `path` has there."""
    parts = key.split(".")
    for index, part in enumerate(path[: len(parts)]):
        if parts[index] == "<name>":
            parts[index] = str(part)
    return ".".join(parts)


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _show(value: Any) -> str:
    text = json.dumps(to_jsonable_python(value), ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return " | ".join(map(_show, arguments))
    if not arguments:
        return "any" if annotation is Any else str(annotation.__name__)
    names = [_type_name(argument) for argument in arguments if argument not in (Ellipsis, NoneType)]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"table of {names[-1]}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {names[0]}"
    return " | ".join(names)
