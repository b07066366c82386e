"""docs/algorithms.md against the code: every name has an entry, no entry names what is not there, tables are as made.

`python tests/test_docs.py` writes the tables of presets and alarms anew.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from gruppo.algorithms import ADVANTAGES, AGGREGATIONS, CORRECTIONS, KLS, LOSSES, PRESETS, AlgorithmConfig, CreditConfig
from gruppo.algorithms.ratios import RATIOS
from gruppo.rewards.turns import TURN_REWARDS
from gruppo.training import alarms
from gruppo.training.alarms import ALARMS, AlarmsConfig
from gruppo.training.grpo import GRPOConfig

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
TEXT = PAGE.read_text()
PACKAGE = list((ROOT / "gruppo").rglob("*.py"))
CONFIGS = {"": AlgorithmConfig, "credit": CreditConfig, "alarms": AlarmsConfig, "train": GRPOConfig}
ARXIV = re.compile(r"\b[12]\d{3}\.\d{5}\b")
HEADINGS = ["idea", "formula", "settings", "metrics", "departures"]


def literals(config: type, field: str) -> tuple[str, ...]:
    return get_args(config.model_fields[field].annotation)


SECTIONS = {
    "Presets": PRESETS,
    "Advantages": ADVANTAGES,
    "What a turn is judged by": literals(CreditConfig, "outcome"),
    "What it is compared with": literals(CreditConfig, "compare"),
    "Turn rewards": TURN_REWARDS,
    "Truncation": literals(AlgorithmConfig, "truncated"),
    "Group filters": literals(AlgorithmConfig, "filter_groups"),
    "Curriculum": get_args(GRPOConfig.model_fields["curriculum"].annotation),
    "Losses": LOSSES,
    "Ratio levels": RATIOS,
    "Aggregations": AGGREGATIONS,
    "KL estimators": KLS,
    "Corrections": CORRECTIONS,
}
SETTINGS = {"Who is paid": CreditConfig, "Further terms": AlgorithmConfig}  # whose entries are settings themselves


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def entries(title: str) -> list[tuple[str, str]]:
    """(name, text) of each entry of a section."""
    return re.findall(r"^\*\*`(.+?)`\*\* (.+?)(?=\n\n|\Z)", section(title), re.MULTILINE | re.DOTALL)


def parts(entry: str) -> dict[str, str]:
    """Heading -> text."""
    _, *pieces = re.split(r"\*(\w+)\*", entry)
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


ENTRIES = [(title, name, text) for title in SECTIONS | SETTINGS if title != "Presets" for name, text in entries(title)]


@pytest.mark.parametrize("title", SECTIONS)
def test_every_name_has_its_entry_and_no_entry_is_of_something_else(title: str) -> None:
    assert sorted(name for name, _ in entries(title)) == sorted(SECTIONS[title])


@pytest.mark.parametrize("title", SETTINGS)
def test_entries_of_settings_are_settings(title: str) -> None:
    names = [name for name, _ in entries(title)]
    assert names and len(set(names)) == len(names) and set(names) <= SETTINGS[title].model_fields.keys()


def test_every_entry_has_the_five_headings_in_their_order() -> None:
    assert {name: list(parts(text)) for _, name, text in ENTRIES if list(parts(text)) != HEADINGS} == {}


def test_settings_are_named_with_their_defaults_and_none_is_left_out() -> None:
    told = [parts(text)["settings"] for _, _, text in ENTRIES]
    told += re.findall(r"^(?:Chosen by|Bounds are|\*settings\*) .+?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    named = dict(pair for text in told for pair in re.findall(r"`([a-z_.]+) = ([^`]+)`", text))
    for key, value in named.items():
        table, _, field = key.rpartition(".")
        assert tomllib.loads(f"value = {value}")["value"] == CONFIGS[table].model_fields[field].get_default(), key
    ours = {table: config.model_fields for table, config in CONFIGS.items() if table != "train"}
    keys = {f"{table}.{field}".removeprefix(".") for table, fields in ours.items() for field in fields}
    assert keys - named.keys() == {"preset"}  # which has no default


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in PACKAGE}


def test_metrics_are_written_somewhere(trees: dict[Path, ast.Module]) -> None:
    constants = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    written = {node.value.rstrip("/") for node in constants if isinstance(node.value, str)}
    named = {metric for _, _, text in ENTRIES for metric in re.findall(r"`([\w/]+)`", parts(text)["metrics"])}
    assert named and named <= written


def test_what_no_setting_reaches_is_what_the_page_says(trees: dict[Path, ast.Module]) -> None:
    ours = [tree for path, tree in trees.items() if path.parent.name == "algorithms"]
    defined = {node.name for tree in ours for node in tree.body if isinstance(node, ast.FunctionDef)}
    called = {node.id for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Name)}
    first_cells = re.findall(r"^\| (`.+?) \|", section("Not in the trainer yet"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(first_cells))) == defined - called


def test_papers_of_the_code_are_cited_and_every_citation_is_a_link() -> None:
    ours = [path.read_text() for path in PACKAGE if path.parent.name == "algorithms"]
    code = {number for text in ours for number in ARXIV.findall(text)}
    links = dict(re.findall(rf"^\[({ARXIV.pattern})\]: (.+)$", TEXT, re.MULTILINE))
    used = set(re.findall(rf"\[({ARXIV.pattern})\](?!:)", TEXT))
    assert code <= used and used == links.keys() and set(ARXIV.findall(TEXT)) == used
    assert all(url == f"https://arxiv.org/abs/{number}" for number, url in links.items())
    anchors = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", TEXT, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(.+?)\)", TEXT)) <= anchors


def test_the_example_of_a_new_loss_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (patch,) = re.findall(r"^```diff\n(.+?)^```", TEXT, re.MULTILINE | re.DOTALL)
    for name in re.findall(r"^\+\+\+ b/(.+)$", patch, re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    done = subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spec = importlib.util.spec_from_file_location("patched_losses", tmp_path / "gruppo" / "algorithms" / "losses.py")
    assert spec and spec.loader
    patched = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "patched_losses", patched)  # where dataclasses look for it
    spec.loader.exec_module(patched)
    assert len(patched.LOSSES.keys() - LOSSES.keys()) == 1


# ---- the tables -----------------------------------------------------------------------------------------------------


def table(*rows: Sequence[str]) -> str:
    """Markdown, the first row being the head."""
    head, *lines = [f"| {' | '.join(cells)} |\n" for cells in rows]
    return "".join([head, "|---" * len(rows[0]) + "|\n", *lines])


def presets() -> str:
    default, rows = AlgorithmConfig(), []
    apart = {"preset", "advantage", "loss", "aggregation", "clip_low", "clip_high"}
    apart |= {"kl_coefficient", "kl_estimator", "kl_in"}
    for name in (None, *PRESETS):
        own = AlgorithmConfig(preset=name)
        bounds = f"{own.clip_low:g}, {own.clip_high:g}" if own.loss in ("ppo_clip", "clip_cov") else "-"
        kl = f"{own.kl_coefficient:g} `{own.kl_estimator}` in the {own.kl_in}" if own.kl_coefficient else "-"
        changed = {key: value for key, value in own if value != getattr(default, key) and key not in apart}
        also = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in changed.items())
        chosen = [f"`{word}`" for word in (own.advantage, own.loss, own.aggregation)]
        rows.append([f"`{name}`" if name else "(none)", *chosen, bounds, kl, also or "-"])
    return table(["preset", "advantage", "loss", "aggregation", "clip low, high", "KL", "also"], *rows)


RINGS = {
    alarms.above: "{mean} above {limit:g}",
    alarms.below: "{mean} below {limit:g}",
    alarms.fell_from_start: "{mean} fell by more than {limit:.0%} from its start",
    alarms.fell_from_peak: "{mean} fell by more than {limit:g} from its best",
    alarms.rose: "{mean} rose by more than {limit:.0%} within a window",
    alarms.in_a_row: "above 0 for {limit:g} values in a row",
    alarms.not_finite: "not finite",
}
WHILE = {None: "", "up": ", while the reward rises", "not up": ", while the reward does not rise"}


def alarm_table() -> str:
    rows = []
    for alarm in ALARMS:
        mean = {None: "mean", 1: "value"}.get(alarm.window, f"mean of {alarm.window}")
        rings = RINGS[alarm.test].format(mean=mean, limit=alarm.threshold) + WHILE[alarm.reward]
        rows.append([f"`{alarm.name}`", f"`{alarm.metric}`", rings, alarm.action, alarm.advice])
    return table(["alarm", "metric", "formula: rings when", "action", "idea: what to do"], *rows)


TABLES = {"presets": presets, "alarms": alarm_table}


def block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name}: begin -->\n).*?(?=<!-- {name}: end -->)", re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_the_code(name: str) -> None:
    assert block(name).findall(TEXT) == [TABLES[name]()], "write it anew: python tests/test_docs.py"


if __name__ == "__main__":
    for name, make in TABLES.items():
        TEXT = block(name).sub(lambda _, make=make: make(), TEXT)
    PAGE.write_text(TEXT)
