"""docs/hello_agents.md against the code: a row for each parameter of the training tool, and a test for each row.

`python tests/test_tool_docs.py` writes the tables anew.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gruppo.config import Config, schema_rows
from gruppo.run import RunConfig
from gruppo.tool.parameters import (
    ACTIONS,
    OBJECTS,
    CreateRewardParameters,
    EvaluateParameters,
    GRPOParameters,
    LoadDatasetParameters,
    SFTParameters,
    TrainParameters,
    keys_of,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "hello_agents.md"
TABLES: dict[str, tuple[str, list[type[Config]], str]] = {
    "train": ("Action `train`, both algorithms", [TrainParameters], "test_tool_sft.py"),
    "train sft": ("Action `train`, algorithm `sft`", [SFTParameters, TrainParameters], "test_tool_sft.py"),
    "train grpo": ("Action `train`, algorithm `grpo`", [GRPOParameters, TrainParameters], "test_tool_grpo.py"),
    "evaluate": ("Action `evaluate`", [EvaluateParameters], "test_tool_evaluate.py"),
    "load_dataset": ("Action `load_dataset`", [LoadDatasetParameters], "test_tool_data.py"),
    "create_reward": ("Action `create_reward`", [CreateRewardParameters], "test_tool_rewards.py"),
}
"""Table -> its title, the class whose parameters it has (less those of a second one), and where their tests are."""
WORDS = {
    "custom_dataset": "Rows, in place of `dataset`.",
    "custom_reward": "A function `fn(completions, **columns)` that returns a reward for each; the whole reward.",
}


def names_in(file: str) -> list[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def parameters_of(table: str) -> list[str]:
    _, kinds, _ = TABLES[table]
    names = [name for name in kinds[0].model_fields if not any(name in other.model_fields for other in kinds[1:])]
    return names + [name for name, actions in OBJECTS.items() if table in actions and (name, table) not in SHARED]


SHARED = {("custom_dataset", "train sft"), ("custom_dataset", "train grpo")}
ALSO = {"train": ["custom_dataset"]}


def proof_of(table: str, parameter: str) -> str:
    """The test that is named after a parameter; where several begin so, the first."""
    file = TABLES[table][2]
    found = next((name for name in names_in(file) if name.startswith(f"test_{parameter}_")), None)
    assert found, f"{table}: no test of {file} is named test_{parameter}_..."
    return f"`{found}`"


def rows(table: str) -> Iterator[list[str]]:
    _, kinds, _ = TABLES[table]
    keys: dict[str, list[str]] = {}
    for name, own in keys_of(kinds[0]):
        keys.setdefault(name, []).extend(f"*{key}*" if own.is_derived else f"`{key}`" for key in own.keys)
    for name in [*parameters_of(table), *ALSO.get(table, [])]:
        if name in OBJECTS:
            yield [f"`{name}`", "", WORDS[name], "", proof_of(table, name)]
            continue
        field = kinds[0].model_fields[name]
        default = field.get_default(call_default_factory=True)
        shown = (
            "required"
            if field.is_required()
            else ""
            if default in (None, "", [])
            else json.dumps(default, default=lambda _: "")
        )
        words = " ".join((field.description or "").split()).replace("|", "\\|")
        yield [f"`{name}`", shown.replace('""', ""), words, ", ".join(keys.get(name, [])), proof_of(table, name)]


def table(name: str) -> str:
    head = ["parameter", "default", "what it does", "sets", "test"]
    lines = [
        f"| {' | '.join(cells)} |\n".replace("|  |", "| |").replace("|  |", "| |") for cells in (head, *rows(name))
    ]
    return "".join([lines[0], "|---" * len(head) + "|\n", *lines[1:]])


def block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name}: begin -->\n).*?(?=<!-- {name}: end -->)", re.DOTALL)


def told(text: str) -> str:
    """The part of the page that is made here."""
    parts = [
        f"### {title}\n\n<!-- {name}: begin -->\n{table(name)}<!-- {name}: end -->\n"
        for name, (title, _, _) in TABLES.items()
    ]
    return "\n".join(parts)


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_the_code(name: str) -> None:
    assert block(name).findall(PAGE.read_text()) == [table(name)], "write it anew: python tests/test_tool_docs.py"


def test_every_parameter_is_in_a_table() -> None:
    told_of = {(action, name) for action in ACTIONS for name in [*parameters_of(action)]}
    told_of |= {(action, name) for action in ("train sft", "train grpo") for name in parameters_of("train")}
    assert told_of >= {(action, name) for action, kind in ACTIONS.items() for name in kind.model_fields}


def test_every_key_that_is_set_is_one_of_the_config() -> None:
    known = {row.key.replace("<name>", "agent") for row in schema_rows(RunConfig)} | {"reward"}
    named = {key for kind in ACTIONS.values() for _, own in keys_of(kind) for key in own.keys}
    assert named <= known, named - known


def test_every_parameter_says_what_it_does_and_no_test_is_named_after_nothing() -> None:
    for kind in ACTIONS.values():
        assert all((field.description or "").endswith(".") for field in kind.model_fields.values()), kind
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert named <= {name for _, _, file in TABLES.values() for name in names_in(file)}


if __name__ == "__main__":
    content = PAGE.read_text()
    if "<!-- train: begin -->" not in content:
        before, _, after = content.partition("@@TABLES@@\n")
        content = before + told(content) + after
    for own in TABLES:
        content = block(own).sub(lambda _, own=own: table(own), content)
    PAGE.write_text(content)
