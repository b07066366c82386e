"""What a study found: results.json, results.html and a table. Computes intervals; plays and reads no run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.resources import files
from string import Template
from typing import Any, Literal

from gruppo.evaluation.plots import Chart, Line, Mark, Row, interval_rows, line_chart, number, text
from gruppo.evaluation.statistics import wilson

State = Literal["done", "pruned", "failed", "unfinished"]
NUM_CURVES = 6
COLOURS = tuple(f"r{index}" for index in range(NUM_CURVES))


@dataclass(frozen=True)
class Result:
    """One trial: its settings, how it ended, and the objective with its 95 % interval where it has one."""

    number: int
    state: State
    values: Mapping[str, Any]
    reason: str = ""
    value: float | None = None
    interval: tuple[float, float] | None = None
    n: int | None = None  # tasks behind the value
    step: int | None = None  # at which it was measured
    seconds: float | None = None
    curve: tuple[tuple[int, float], ...] = field(default=(), repr=False)


def measured(records: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """`value`, `step`, and where the metric is a success rate `n` and `interval`, of the last record that has it."""
    found = [record for record in records if record.get(metric) is not None]
    if not found:
        return {}
    last = found[-1]
    value, n = float(last[metric]), last.get(f"{metric.rpartition('/')[0]}/n")
    result: dict[str, Any] = {"value": value, "step": int(last["step"])}
    if metric.rpartition("/")[2] == "success" and n and 0 <= value <= 1:
        result |= {"n": int(n), "interval": wilson(value * int(n), int(n))}
    return result


def curve_of(records: Sequence[Mapping[str, Any]], metric: str) -> tuple[tuple[int, float], ...]:
    """(step, value) where a record has the metric."""
    return tuple((int(r["step"]), float(r[metric])) for r in records if r.get(metric) is not None)


def ranked(results: Sequence[Result], maximize: bool) -> list[Result]:
    """The trials that are done, best first; of equal ones the earlier."""
    done = [result for result in results if result.state == "done" and result.value is not None]
    return sorted(done, key=lambda result: ((-1 if maximize else 1) * (result.value or 0.0), result.number))


def summary(results: Sequence[Result], metric: str, maximize: bool) -> dict[str, Any]:
    """The content of results.json. `as_good` are the trials whose interval holds the best value."""
    order = ranked(results, maximize)
    best = order[0] if order else None
    as_good = [
        other.number
        for other in order[1:]
        if best and best.value is not None and other.interval and other.interval[0] <= best.value <= other.interval[1]
    ]
    return {
        "metric": metric,
        "direction": "maximize" if maximize else "minimize",
        "best": asdict(best) if best else None,
        "as_good": as_good,
        "counts": {state: sum(one.state == state for one in results) for state in ("done", "pruned", "failed")},
        "trials": [asdict(result) for result in results],
    }


def verdict(found: Mapping[str, Any]) -> str:
    """The result in one or two sentences."""
    best = found["best"]
    if best is None:
        return "No trial was done: see why below."
    low_high = best["interval"]
    shown = f" (95% interval {number(low_high[0])} to {number(low_high[1])}, n {best['n']})" if low_high else ""
    others = len(found["as_good"])
    chance = f" {others} other trials are as good, as far as {best['n']} tasks can tell." if others else ""
    said = f"Best is trial {best['number']}: {found['metric']} {number(best['value'])}{shown}.{chance}"
    return f"{said} The best of many is picked for its luck too: measure it once more, on tasks of its own."


def words(values: Mapping[str, Any]) -> str:
    """Settings as "name value" on one line."""
    shown = {name: f"{value:.4g}" if type(value) is float else str(value) for name, value in values.items()}
    return ", ".join(f"{name} {value}".strip() for name, value in shown.items())


def page(title: str, found: Mapping[str, Any], results: Sequence[Result], curve: str) -> str:
    """The whole page as HTML, in the layout of a run's report; `curve` names the metric of the trials' curves."""
    order = ranked(results, found["direction"] == "maximize")
    rest = [result for result in results if result not in order]
    names = list(dict.fromkeys(name for result in results for name in result.values))
    sections = [
        _section(
            "Trials",
            f"{found['metric']} with its 95% interval, best first.",
            _rows(order, lambda one: f"trial {one.number}"),
        ),
        *(
            _section(
                name,
                "The same, ordered by this setting.",
                _rows(_by(order, name), partial(_setting, name)),
            )
            for name in names
        ),
        _section("Curves", f"{curve} of the best trials.", _curves(order, curve)),
        _section("All trials", "Those that were ended early or failed are last.", _table([*order, *rest], names)),
    ]
    template = Template(files("gruppo.evaluation").joinpath("report.html").read_text(encoding="utf-8"))
    header = f'<h1>{text(title)}</h1><p class="lead">{text(verdict(found))}</p>'
    return template.substitute(title=text(title), header=header, sections="".join(sections))


def _section(title: str, caption: str, body: str) -> str:
    head = f"<header><h2>{text(title)}</h2><p>{text(caption)}</p></header>"
    return f"<section>{head}<div>{body}</div></section>" if body else ""


def _rows(results: Sequence[Result], label: Callable[[Result], str]) -> str:
    """Dots with whiskers, for objectives that are shares."""
    rows = [
        Row(label(one), [Mark(words(one.values), one.value, *one.interval)], f"{100 * one.value:.1f}%")
        for one in results
        if one.value is not None and one.interval
    ]
    return interval_rows(rows) if rows else ""


def _setting(name: str, result: Result) -> str:
    """One setting of a trial, without its name."""
    return words({"": result.values[name]})


def _by(results: Sequence[Result], name: str) -> list[Result]:
    """The trials in the order of one setting; none if all have the same."""
    own = [result for result in results if name in result.values]
    if len({str(result.values[name]) for result in own}) < 2:
        return []
    numbers = all(type(result.values[name]) in (int, float) for result in own)
    return sorted(own, key=lambda result: result.values[name] if numbers else str(result.values[name]))


def _curves(results: Sequence[Result], metric: str) -> str:
    lines = [
        Line(f"trial {one.number}", colour, one.curve)
        for one, colour in zip(results, COLOURS, strict=False)
        if one.curve
    ]
    return line_chart(Chart(metric, "per step", lines)) if lines else ""


def _table(results: Sequence[Result], names: Sequence[str]) -> str:
    head = "".join(
        f"<th>{text(cell)}</th>" for cell in ("trial", *names, "value", "interval", "step", "seconds", "end")
    )
    rows = []
    for one in results:
        value = "" if one.value is None else number(one.value)
        bounds = f"{number(one.interval[0])} to {number(one.interval[1])}" if one.interval else ""
        own = [_setting(name, one) if name in one.values else "" for name in names]
        seconds = "" if one.seconds is None else f"{one.seconds:.0f}"
        ended = f"{one.state}: {one.reason}" if one.reason else one.state
        cells = (*own, value, bounds, "" if one.step is None else str(one.step), seconds, ended)
        rows.append(f"<tr><th>{one.number}</th>{''.join(f'<td>{text(cell)}</td>' for cell in cells)}</tr>")
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll">{body}</div>'
