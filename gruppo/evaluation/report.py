"""The report of a run: plain data in, one self-contained `report.html` out, readable on paper, phone and screen.

Lays out and words what others computed (`metrics`, the training loop); draws through `plots`, shows episodes through
`transcript`. Reads no run folder, loads nothing from anywhere, runs no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gruppo.evaluation.metrics import solved
from gruppo.evaluation.page import page, section, table, write_page
from gruppo.evaluation.plots import Axis, Chart, Line, Mark, Row, divided_bar, interval_rows, line_chart, text
from gruppo.evaluation.statistics import wilson
from gruppo.evaluation.transcript import side_by_side
from gruppo.evaluation.wording import duration, headline, interval, percent, statements
from gruppo.types import Episode, Task

Plain = Mapping[str, Any]


class Stage(NamedTuple):
    """The team at one point of its training, with what `metrics.summarise` says of it. Stages come in order of time."""

    name: str
    greedy: Plain
    sampled: Plain | None = None  # at temperature 1


class Example(NamedTuple):
    """One task played before and after training."""

    before: Episode
    after: Episode
    task: Task


@dataclass(frozen=True)
class ReportData:
    """What a report is made of; whatever is empty is left out of the page.

    `summary` is the content of report.json: `before`, `sft`, `after` (greedy success rates), `gain`, `gain_ci95`, `n`,
    `seconds`, `seed`, `roles` (`{name: {"rows": trained rows, "changed": did its weights change}}`) and `notes`.
    `comparison` is that of `metrics.compare`. `metrics` are training records: `step` and any of the keys in `_PANELS`,
    bare or per role (`tokens/planner`); a record with `eval/success` (and `eval/n`) is a held-out evaluation.
    `undemonstrated` names the families that no demonstration showed.
    """

    title: str
    summary: Plain
    stages: Sequence[Stage] = ()
    comparison: Plain | None = None
    metrics: Sequence[Plain] = ()
    examples: Sequence[Example] = ()
    undemonstrated: Set[str] = frozenset()


class _Panel(NamedTuple):
    title: str
    unit: str
    key: str  # the metric itself, or the part before "/<role>"
    spread: str = ""
    axis: Axis = "free"
    idle: float | None = None  # the chart is left out if this is all there is, as it is for a ratio on policy


_PANELS = (
    _Panel(
        "Reward",
        "mean per episode, band \N{PLUS-MINUS SIGN} one standard deviation",
        "reward/mean",
        "reward/std",
        "unit",
    ),
    _Panel("Success", "share of episodes solved", "success", axis="percent"),
    _Panel("Action length", "sampled tokens per turn", "tokens"),
    _Panel("Turns", "per episode", "turns"),
    _Panel("Gradient norm", "L2 norm over a policy's weights", "grad_norm"),
    _Panel("KL divergence", "from the reference, nats per token", "kl"),
    _Panel("Clip fraction", "share of tokens whose ratio was clipped", "clipped", idle=0.0),
    _Panel("Probability ratio", "new policy over old, mean of tokens", "ratio", idle=1.0),
    _Panel("Effective sample size", "share of the sequences", "ess"),
    _Panel("Entropy", "of the policy, nats per token", "entropy"),
    _Panel("Loss", "per optimizer step", "loss"),
    _Panel("Groups without signal", "dropped per step", "groups/dropped"),
)
_NUM_COLOURS = 6
HEALTHY: Mapping[str, tuple[float, float]] = {
    # Rules of thumb for full-size models; a tiny one may learn well outside of them. Ratio and effective sample size:
    # verl's documentation. The others are common practice, that of the KL where it is part of the loss.
    "kl": (0.01, 0.1),
    "grad_norm": (0.1, 10.0),
    "clipped": (0.001, 0.2),
    "ratio": (0.95, 1.05),
    "ess": (0.8, 1.0),
}
"""Metric, or its part before "/<policy>" -> the range that a healthy run keeps to."""


def write_report(path: Path | str, report: ReportData) -> None:
    """Write the report to `path` (folders are made). The file needs no network and no other file."""
    write_page(path, render(report))


def render(report: ReportData) -> str:
    """The whole page as HTML."""
    sections = [
        section("Held-out tasks", _success_caption(report.stages), _success(report)),
        section("By family", _family_caption(report), _parts(report, "by_family", "{}")),
        section("By length", "Success by the number of steps a task needs.", _parts(report, "by_steps", "{} steps")),
        section("By wording", "Phrasings that training showed, and new ones.", _parts(report, "by_wording", "{}")),
        section("Training", "One point per training step.", _curves(report)),
        section("How episodes went", "Greedy play on the held-out tasks. Tokens are sampled ones.", _behaviour(report)),
        section("Before and after", "The same tasks, greedy. Prompts unfold.", _examples(report), wide=True),
        section("Notes", "What to know before quoting a figure.", _notes(report)),
    ]
    header = f'<h1>{text(report.title)}</h1><p class="lead">{headline(report.summary)}</p>{_figures(report)}'
    return page(report.title, header, sections)


def _figures(report: ReportData) -> str:
    summary, comparison = report.summary, report.comparison or {}
    figures = [
        ("after demonstrations alone", percent(summary["sft"]) if summary.get("sft") is not None else None),
        ("tasks fixed", comparison.get("fixed")),
        ("tasks broken", comparison.get("broken")),
        ("wall-clock time", duration(summary["seconds"]) if summary.get("seconds") is not None else None),
        ("seed", summary.get("seed")),
    ]
    items = "".join(f"<div><dd>{text(v)}</dd><dt>{text(k)}</dt></div>" for k, v in figures if v is not None)
    return f'<dl class="figures">{items}</dl>' if items else ""


def _success_caption(stages: Sequence[Stage]) -> str:
    keys = '<span class="key"><i class="dot"></i> greedy</span> '
    if any(stage.sampled for stage in stages):
        keys += '<span class="key"><i class="dot hollow"></i> temperature 1</span> '
    return keys + "Dots are success rates, whiskers 95% Wilson intervals over tasks."


def _success(report: ReportData) -> str:
    if not report.stages:
        return ""
    rows, cells = [], []
    for index, (name, greedy, sampled) in enumerate(report.stages):
        colour = _stage_colour(index, len(report.stages))
        marks = _marks(f"{name}, greedy", greedy, colour) + _marks(
            f"{name}, temperature 1", sampled, colour, hollow=True
        )
        rows.append(Row(name, marks, percent(greedy["success"]) if "success" in greedy else ""))
        cells.append([text(name), _with_interval(greedy), _with_interval(sampled)])
    return interval_rows(rows) + table(["", "Greedy", "Temperature 1"], cells) + _paired(report.comparison)


def _paired(comparison: Plain | None) -> str:
    if not comparison:
        return ""
    n, fixed, broken = comparison["n"], comparison["fixed"], comparison["broken"]
    parts = [("fixed", fixed, "good"), ("unchanged", n - fixed - broken, "s0 pale"), ("broken", broken, "bad")]
    bar = divided_bar(parts)
    return f"<h3>Task by task, first stage against last, greedy</h3>{bar}" if bar else ""


def _family_caption(report: ReportData) -> str:
    if len(report.stages) < 2:
        return ""
    first, last = report.stages[0].name, report.stages[-1].name
    keys = "".join(
        f'<span class="key"><i class="dot {style}"></i> {text(name)}</span> '
        for name, style in ((first, "s0"), (last, "s2"))
    )
    shown = report.undemonstrated & report.stages[-1].greedy.get("by_family", {}).keys()
    dagger = '<span class="flag">\N{DAGGER}</span> no demonstration showed this family.' if shown else ""
    return keys + dagger


def _parts(report: ReportData, part: str, label: str) -> str:
    """First stage against last, greedy, for each part of the tasks."""
    if not report.stages:
        return ""
    last = report.stages[-1].greedy.get(part, {})
    first = report.stages[0].greedy.get(part, {}) if len(report.stages) > 1 else {}
    rows = []
    for name, result in last.items():
        earlier = first.get(name, {})
        marks = _marks(f"{name}, {report.stages[0].name}", earlier, "s0")
        marks += _marks(f"{name}, {report.stages[-1].name}", result, "s2")
        change = f"{percent(earlier['success'], 0)} \N{RIGHTWARDS ARROW} " if "success" in earlier else ""
        flag = "no demonstration showed this family" if part == "by_family" and name in report.undemonstrated else ""
        rows.append(
            Row(label.format(name), marks, f"{change}{percent(result['success'], 0)}", f"n {result['n']:,}", flag)
        )
    return interval_rows(rows) if rows else ""


def _curves(report: ReportData) -> str:
    colours = _role_colours(report)
    charts = "".join(line_chart(_chart(panel, report.metrics, colours)) for panel in _PANELS)
    return f'<div class="charts">{charts}</div>' if charts else ""


def _chart(panel: _Panel, records: Sequence[Plain], colours: Mapping[str, str]) -> Chart:
    keys = dict.fromkeys(
        key
        for record in records
        for key, value in record.items()
        if (key == panel.key or key.startswith(f"{panel.key}/")) and (panel.idle is None or value != panel.idle)
    )
    lines = []
    for key in keys:
        own = [record for record in records if key in record]
        points = [(float(record["step"]), record[key]) for record in own]
        spread = [record.get(panel.spread) for record in own] if panel.spread else ()
        name = key.removeprefix(panel.key).removeprefix("/")
        lines.append(Line(name, colours.get(name, "ink"), points, spread))
    marks = _held_out(records) if panel.key == "success" else []
    if marks and lines:
        lines[0] = lines[0]._replace(name="training rollouts")
    return Chart(panel.title, panel.unit, lines, marks, "held-out tasks", panel.axis, HEALTHY.get(panel.key))


def _held_out(records: Iterable[Plain]) -> list[Mark]:
    marks = []
    for record in records:
        if (rate := record.get("eval/success")) is not None:
            n = int(record.get("eval/n", 0))
            low, high = wilson(rate * n, n) if n else (rate, rate)
            label = f"held-out, step {record['step']}: {percent(rate)}"
            marks.append(Mark(label, rate, low, high, "s2", at=float(record["step"])))
    return marks


def _behaviour(report: ReportData) -> str:
    if not report.stages:
        return ""
    columns = (
        ("turns", "Turns", "{:.1f}"),
        ("action_tokens", "Tokens", "{:.0f}"),
        ("tool_calls", "Tool calls", "{:.1f}"),
        ("tool_calls_ok", "Calls ok", "{:.1%}"),
        ("turns_parsed", "Turns parsed", "{:.1%}"),
        ("missing", "Not judged", "{}"),
        ("infrastructure", "Infrastructure failed", "{}"),
    )
    shown = [column for column in columns if any(column[0] in stage.greedy for stage in report.stages)]
    rows = [
        [text(stage.name)] + [form.format(stage.greedy[key]) if key in stage.greedy else "" for key, _, form in shown]
        for stage in report.stages
    ]
    return table(["Per episode"] + [name for _, name, _ in shown], rows) + _outcomes(report.stages)


def _outcomes(stages: Sequence[Stage]) -> str:
    names = dict.fromkeys(name for stage in stages for name in stage.greedy.get("outcomes", {}))
    rows = []
    for name in names:
        cells = [text(name.replace("_", " "))]
        for stage in stages:
            count, episodes = stage.greedy.get("outcomes", {}).get(name, 0), stage.greedy.get("episodes", 0)
            share = 100 * count / episodes if episodes else 0
            cells.append(f'<span class="meter" style="--share:{share:.1f}%">{count}</span>')
        rows.append(cells)
    return table(["Episodes ended"] + [text(stage.name) for stage in stages], rows) if rows else ""


def _examples(report: ReportData) -> str:
    colours = _role_colours(report)
    names = (report.stages[0].name, report.stages[-1].name) if len(report.stages) > 1 else ("before", "after")
    return "".join(
        side_by_side(task, ((names[0], before, solved(before)), (names[1], after, solved(after))), colours)
        for before, after, task in report.examples
    )


def _notes(report: ReportData) -> str:
    notes = [*report.summary.get("notes", ()), *statements(report.stages, report.comparison)]
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return _roles(report.summary.get("roles", {})) + (f'<ul class="notes">{items}</ul>' if items else "")


def _roles(roles: Mapping[str, Plain]) -> str:
    rows = [
        [text(name), f"{role.get('rows', 0):,}", "yes" if role.get("changed") else "no"] for name, role in roles.items()
    ]
    return table(["Role", "Rows trained on", "Weights changed"], rows) if rows else ""


def _marks(label: str, result: Plain | None, colour: str, hollow: bool = False) -> list[Mark]:
    if not result or "success" not in result:
        return []
    low, high = result["ci95"]
    said = f"{label}: {percent(result['success'])} ({interval(result['ci95'])}, n {result['n']})"
    return [Mark(said, result["success"], low, high, colour, hollow)]


def _with_interval(result: Plain | None) -> str:
    if not result or "success" not in result:
        return "\N{EN DASH}"
    return f"{percent(result['success'])} <small>{interval(result['ci95'])}, n {result['n']:,}</small>"


def _stage_colour(index: int, total: int) -> str:
    """The first stage, any in between, the last: the same three colours on the whole page."""
    return "s0" if index == 0 and total > 1 else "s2" if index == total - 1 else "s1"


def _role_colours(report: ReportData) -> dict[str, str]:
    roles = dict.fromkeys(report.summary.get("roles", {}))
    for example in report.examples:
        roles |= dict.fromkeys(turn.role for turn in (*example.before.turns, *example.after.turns))
    return {role: f"r{index % _NUM_COLOURS}" for index, role in enumerate(roles)}
