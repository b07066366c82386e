"""What README.md and docs/ promise: the examples are what is printed there, they run, and what is named exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gruppo.config import load, load_object
from gruppo.data.files import read_tasks
from gruppo.run import RunConfig, make_team
from gruppo.store import Run

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "CONTRIBUTING.md", "docs/design.md", "docs/algorithms.md", "docs/world.md", "docs/results.md")
PAGES += ("docs/search.md", "docs/data.md", "docs/evaluation.md", "docs/tuning.md", "docs/monitoring.md")
PARTS = ("my_tasks.jsonl", "my_tool.py", "my_reward.py", "my_team.py")


@pytest.mark.parametrize("name", PARTS)
def test_the_readme_shows_each_example_as_it_is(name: str) -> None:
    content = (EXAMPLES / name).read_text()
    language = {".jsonl": "json", ".py": "python"}[Path(name).suffix]
    assert f"```{language}\n{content}```" in README
    assert len([line for line in content.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_each_example_config_is_short_and_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert len(path.read_text().splitlines()) <= 50
    config = load(RunConfig, [path])
    assert set(config.roles) <= set(make_team(config.team).roles)
    for reference in (*config.tools.names, *config.rewards):
        assert ":" not in reference or load_object(reference)
    assert config.tasks.train == "world" or len(read_tasks(config.tasks.train))


@pytest.mark.slow
def test_a_run_with_a_task_file_a_tool_a_reward_and_a_team_of_ones_own(tmp_path: Path) -> None:
    sizes = ["--train.steps", "3", "--eval.modes", '["greedy"]', "--model.threads", "1"]
    command = [sys.executable, "-m", "gruppo", "train", "--config", "examples/my_run.toml", "--out", str(tmp_path)]
    done = subprocess.run([*command, *sizes], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["n"] == 6 and report["roles"]["writer"]["changed"] and report["base_unchanged"]
    episodes = [episode for group in Run.open(tmp_path).read_episodes("grpo-000001") for episode in group.episodes]
    assert {event.tool for episode in episodes for event in episode.events} == {"calculate"}
    assert any(event.result.ok for episode in episodes for event in episode.events)
    assert all(episode.scores.keys() == {"exact", "examples/my_reward.py:brief"} for episode in episodes)


def test_every_module_is_in_the_readmes_tree() -> None:
    tree = README.partition("```text\ngruppo/\n")[2].partition("```")[0]
    missing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "gruppo").rglob("*.py")
        if not path.stem.startswith("__") and not re.search(rf"\b({path.stem}|{path.parent.name}/)(?!\w)", tree)
    ]
    assert not missing
    named = re.findall(r"[\w/]+\.(?:py|toml)\b", tree)
    assert named and not [name for name in named if not (ROOT / "gruppo" / name).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_points_at_exists(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert not [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "tests").glob("*.py")))
    assert set(re.findall(r"\btest_\w+(?!\.py|\w)", text)) <= set(re.findall(r"^def (test_\w+)", sources, re.MULTILINE))
