"""The import direction of docs/design.md, read from the source: layers, no cycles, torch only where it computes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "gruppo").rglob("*.py")
}
LAYERS = """types errors | config log chat bounded_json episodes prefix_tree replicas child search_state words
    | search_tables store monitors doctor weights tool_calls code_blocks tree_attention
    | data tools engines rewards algorithms | teams toolbox | dispatch | rollout | troupe training evaluation
    | engine_room | run | lints demonstrations | stages | assess estimate tuning export | pipeline tool searching
    | cli_data cli_assess cli_pipeline | cli_search
    | cli | __main__"""
LEVEL = {name: level for level, names in enumerate(LAYERS.split("|")) for name in names.split()}
TORCH = re.compile(
    r"gruppo\.(tree_attention|engines\.(local|decoding|draws|branches|prefix_cache)|training\.\w+"
    r"|algorithms\.(losses|kl|corrections|ratios|batching))"
)


def imports(tree: ast.AST) -> set[str]:
    """Names of imported modules; of ours each as deep as there is a module of that name."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def test_imports_point_one_way_and_never_in_a_circle(trees: dict[str, ast.Module]) -> None:
    ours = {name: {other for other in imports(tree) if other in MODULES} for name, tree in trees.items()}
    for name, others in ours.items():
        for part, other in ((name.split(".")[1:2], other.split(".")[1:2]) for other in others):
            assert part == other or LEVEL[other[0]] < LEVEL[part[0]], f"{name} may not import {other[0]}"
    TopologicalSorter(ours).prepare()  # raises CycleError, which names the cycle


def test_torch_is_imported_only_where_it_computes(trees: dict[str, ast.Module]) -> None:
    using = {name for name, tree in trees.items() if "torch" in {other.split(".")[0] for other in imports(tree)}}
    assert using and not [name for name in using if not TORCH.fullmatch(name)]


def test_only_the_command_line_imports_our_code_late(trees: dict[str, ast.Module]) -> None:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [(name, node) for name, tree in trees.items() for node in ast.walk(tree) if isinstance(node, kinds)]
    late = {name for name, function in functions if imports(function) & trees.keys()}
    assert late == {"gruppo.cli", "gruppo.cli_assess", "gruppo.cli_data", "gruppo.cli_pipeline", "gruppo.cli_search"}


def test_help_imports_no_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gruppo.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "quickstart" in done.stdout
    assert not re.search(r"\| +(torch|transformers|pyarrow)$", done.stderr, re.MULTILINE)
