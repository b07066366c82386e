"""The limits of CONTRIBUTING.md, counted: sizes, annotations, docstrings, dependencies, names. Complexity is ruff's."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("scripts", "examples", "benchmarks", "tests")
PACKAGE = sorted((ROOT / "gruppo").rglob("*.py"))
SOURCES = [*PACKAGE, *(path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py")))]
HUBS = {"grpo"}  # functions that read as a story from top to bottom
FORBIDDEN = {"utils", "helpers", "common", "registry", "factory", "manager", "base_trainer", "callbacks"}
MACHINE_PATH = re.compile(r"(?<![\w.~])/(work|home|root|Users|mnt|workspace)/\w")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Nodes = dict[Path, list[ast.AST]]


@pytest.fixture(scope="module")
def nodes() -> Nodes:
    """Of each source file, the nodes that are looked at; the first is the module."""
    kinds = ast.Module | Function | ast.ExceptHandler | ast.Name
    found = {path: ast.walk(ast.parse(path.read_text())) for path in SOURCES}
    return {path: [node for node in all_of_it if isinstance(node, kinds)] for path, all_of_it in found.items()}


def functions(paths: Sequence[Path], nodes: Nodes) -> Iterator[tuple[str, Function]]:
    for path in paths:
        for node in nodes[path]:
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def parameters(function: Function) -> list[ast.arg]:
    """All but self and cls."""
    own = function.args
    variadic = [argument for argument in (own.vararg, own.kwarg) if argument]
    listed = (*own.posonlyargs, *own.args, *own.kwonlyargs, *variadic)
    return [argument for argument in listed if argument.arg not in ("self", "cls")]


def num_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def tracked_files() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_files_are_short() -> None:
    assert not {str(path.relative_to(ROOT)): num_lines(path) for path in SOURCES if num_lines(path) > 400}
    assert num_lines(ROOT / "gruppo" / "training" / "grpo.py") <= 320
    assert num_lines(ROOT / "README.md") <= 200


def test_functions_are_short_and_take_few_parameters(nodes: Nodes) -> None:
    found = list(functions(SOURCES, nodes))
    sizes = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in found if node.name not in HUBS}
    hubs = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in found if node.name in HUBS}
    counts = {name: len(parameters(node)) for name, node in found}
    assert not {name: size for name, size in sizes.items() if size > 60}
    assert not {name: size for name, size in hubs.items() if size > 120}
    assert not {name: count for name, count in counts.items() if count > 8}


def test_functions_are_annotated_and_modules_say_what_they_are(nodes: Nodes) -> None:
    found = dict(functions(PACKAGE, nodes))
    is_bare = {
        name: node.returns is None or None in [a.annotation for a in parameters(node)] for name, node in found.items()
    }
    bare = [name for name, missing in is_bare.items() if missing]
    assert len(bare) <= 0.05 * len(found), bare
    assert not [str(path.relative_to(ROOT)) for path, (tree, *_) in nodes.items() if not ast.get_docstring(tree)]


def test_core_dependencies_are_few() -> None:
    assert len(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]) <= 12


def test_no_file_is_named_after_nothing() -> None:
    assert not [path for path in tracked_files() if {path.stem, path.parent.name} & FORBIDDEN]


def test_no_bare_except_and_little_probing(nodes: Nodes) -> None:
    handlers = [node for own in nodes.values() for node in own if isinstance(node, ast.ExceptHandler)]
    assert handlers and not [ast.unparse(handler) for handler in handlers if handler.type is None]
    names = [(path, node) for path in PACKAGE for node in nodes[path] if isinstance(node, ast.Name)]
    probes = [f"{path}:{node.lineno}" for path, node in names if node.id in ("getattr", "hasattr")]
    assert len(probes) <= sum(map(num_lines, PACKAGE)) / 1000, probes


def test_no_file_knows_this_machine() -> None:
    found = []
    for path in tracked_files():
        content = path.read_bytes()
        text = "" if b"\0" in content else content.decode("utf-8", "replace")  # weights hold no text
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
    assert not found
