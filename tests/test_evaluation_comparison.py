"""Base, SFT and GRPO on the same tasks and seeds: figures, gains with their verdicts, the table and the page."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gruppo.evaluation.comparison import System, compare_systems, render_comparison, text_table, write_comparison
from gruppo.evaluation.metrics import compare
from gruppo.evaluation.wording import verdict
from gruppo.types import Episode, Group, Task

WORDS = ["he adds.\nhe takes away.", "a\nb\nc", "a\nb\nc\nd\ne\nf"]


def evaluated(rate: float, seed: int, n: int = 120) -> list[Group]:
    """Tasks of three difficulties and two families; the same seed draws the same luck."""
    draw, groups = random.Random(seed), []
    for number in range(n):
        task = Task(f"t{number}", "q", "5", WORDS[number % 3], source="ab"[number % 2])
        good = draw.random() < rate
        episode = Episode(task.id, task.id, 0, 0, answer="5" if good else "7", reward=float(good), seconds=0.5)
        groups.append(Group(task.id, task, [episode]))
    return groups


def three(**seeds: Sequence[int]) -> list[System]:
    rates = {"base": 0.3, "SFT": 0.5, "GRPO": 0.8}
    return [
        System(name, {seed: evaluated(rate, 100 * place + seed) for seed in seeds.get(name, (1, 2, 3))})
        for place, (name, rate) in enumerate(rates.items())
    ]


def test_three_systems_three_seeds() -> None:
    found = compare_systems(three(base=(0,)), k=1)
    assert (found["n"], found["seeds"]) == (120, 3)
    assert [system["name"] for system in found["systems"]] == ["base", "SFT", "GRPO"]
    assert [(gain["before"], gain["after"]) for gain in found["gains"]] == [
        ("base", "SFT"), ("base", "GRPO"), ("SFT", "GRPO"),
    ]  # fmt: skip
    grpo, gain = found["systems"][2], found["gains"][1]
    assert grpo["measures"]["accuracy"]["value"] == pytest.approx(sum(grpo["accuracy_by_seed"].values()) / 3)
    assert grpo["seed_stdev"] > 0 and set(grpo["accuracy_by_seed"]) == {"1", "2", "3"}
    base = found["systems"][0]["measures"]["accuracy"]["value"]
    assert gain["gain"] == pytest.approx(grpo["measures"]["accuracy"]["value"] - base)
    assert gain["ci95"][0] < gain["gain"] < gain["ci95"][1] and gain["p_adjusted"] >= gain["p_value"]
    assert gain["verdict"].endswith("n 120, 3 seeds: better")
    assert list(grpo["by_difficulty"]) == ["1-2", "3-4", "5+"] and grpo["by_difficulty"]["5+"]["n"] == 40
    assert list(grpo["by_family"]) == ["a", "b"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_one_seed_is_the_reports_own_comparison() -> None:
    before, after = evaluated(0.4, 1), evaluated(0.5, 2)
    (gain,) = compare_systems([System("base", {0: before}), System("SFT", {7: after})])["gains"]
    known = compare(before, after)
    assert (gain["gain"], gain["ci95"]) == (known["gain"], known["gain_ci95"])
    assert (gain["fixed"], gain["broken"], gain["p_value"]) == (known["fixed"], known["broken"], known["p_value"])
    assert gain["p_adjusted"] == gain["p_value"] and gain["seeds"] == 1


def test_tasks_are_paired_by_id_whatever_their_order() -> None:
    systems = three()
    shuffled = [System(s.name, {seed: groups[::-1] for seed, groups in s.by_seed.items()}) for s in systems[:1]]
    found, other = compare_systems(systems), compare_systems([*shuffled, *systems[1:]])
    assert found["gains"][0]["gain"] == pytest.approx(other["gains"][0]["gain"])
    assert found["gains"][0]["ci95"] == pytest.approx(other["gains"][0]["ci95"])
    accuracies = [one["systems"][0]["measures"]["accuracy"] for one in (found, other)]
    assert accuracies[0]["ci95"] == pytest.approx(accuracies[1]["ci95"])


def test_many_checkpoints_without_a_gain_are_not_called_one() -> None:
    systems = [System("base", {0: evaluated(0.5, 20)})]
    systems += [System(f"step {n}", {0: evaluated(0.5, 20 + n)}) for n in range(1, 7)]
    gains = compare_systems(systems, ["accuracy"])["gains"]
    assert len(gains) == 11 and not [gain for gain in gains if gain["verdict"].endswith(("better", "worse"))]


LUCK = evaluated(0.5, 1)


@pytest.mark.parametrize(
    ("systems", "said"),
    [
        ([], "needs systems"),
        ([System("a", {}), System("b", {0: []})], "no evaluation"),
        ([System("a", {0: []}), System("a", {0: []})], "a name of its own"),
        ([System("a", {1: LUCK, 2: LUCK}), System("b", {1: LUCK, 3: LUCK})], "same seeds"),
        ([System("a", {0: evaluated(0.5, 1)}), System("b", {0: evaluated(0.5, 1, 119)})], "'t119'"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_side_by_side(systems: list[System], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare_systems(systems)


GAIN = {"gain": 0.062, "ci95": [0.011, 0.114], "n": 300, "seeds": 3, "p_adjusted": 0.02, "comparisons": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "gain +6.2 points, 95 % interval 1.1…11.4, n 300, 3 seeds: better"),
        ({"seeds": 1, "n": 1200}, "gain +6.2 points, 95 % interval 1.1…11.4, n 1,200, 1 seed: better"),
        ({"gain": -0.062, "ci95": [-0.1, -0.02]}, "gain −6.2 points, 95 % interval −10.0…−2.0, n 300, 3 seeds: worse"),
        (
            {"ci95": [-0.01, 0.1], "detectable": 0.08},
            ": no gain is shown; only 8.0 points or more would be seen 4 times in 5",
        ),
        ({"p_adjusted": 0.2, "comparisons": 20}, ": not beyond chance (p 0.2, for 20 comparisons)"),
        ({"n": 20}, ": too few tasks for a conclusion"),
    ],
)
def test_verdicts_are_never_stronger_than_the_figures(changes: dict, said: str) -> None:
    assert verdict(GAIN | changes).endswith(said)


def test_text_table() -> None:
    table = text_table(compare_systems(three(base=(0,)), ["accuracy", "average_length", "seconds_per_task"]))
    lines = table.splitlines()
    assert lines[0].split() == ["accuracy", "s/task"]  # nobody shows tokens: no such column
    assert [line.split()[0] for line in lines[1:4]] == ["base", "SFT", "GRPO"]
    assert lines[4].startswith("SFT against base: gain +") and len(lines) == 7


class _Balance(HTMLParser):
    """Tags that are open; `loose` those that closed nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loose: list[str] = []

    def handle_startendtag(self, tag, attrs) -> None:
        pass

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.loose.append(tag)


def test_the_page_is_whole_and_escaped(tmp_path: Path) -> None:
    systems = three(base=(0,))
    found = compare_systems([*systems[:2], System("<GRPO> & co", systems[2].by_seed)])
    write_comparison(tmp_path / "deep" / "c.html", found, "Is <b>it</b> better?")
    page = (tmp_path / "deep" / "c.html").read_text()
    assert page == render_comparison(found, "Is <b>it</b> better?")
    assert "Is &lt;b&gt;it&lt;/b&gt; better?" in page and "<GRPO>" not in page and "&lt;GRPO&gt; &amp; co" in page
    assert page.count('<svg class="track"') >= 3 + 3 + 2 and "By difficulty" in page and "By family" in page
    balance = _Balance()
    balance.feed(page)
    assert not balance.open and not balance.loose
    assert "http" not in page.replace("http-equiv", "")
    # A row for each measure, a column for each system: as many columns as fit beside the margin.
    assert "<thead><tr><th></th><th>base</th><th>SFT</th><th>&lt;GRPO&gt; &amp; co</th></tr></thead>" in page
    assert max(row.count("<td>") for row in page.split("<tr>")) == 6
