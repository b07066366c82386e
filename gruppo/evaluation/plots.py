"""The report's drawings, as inline SVG and HTML that stretch to the page: line charts, interval dots, divided bars.

Positions along x are percentages and text keeps its size, so one drawing reads at every width. Colours are CSS classes
of `report.html`. Computes no statistics and knows no episode; all text that comes in is escaped here.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeGuard

_HEIGHT = 150  # px, of a line chart's plotting area
_LANE, _ROW_GAP = 12, 14  # px: between the intervals of one row, and between rows

Axis = Literal["free", "unit", "percent"]


class Line(NamedTuple):
    """One curve: (step, value) points, where a value that is None or not finite breaks it; `spread` is +- per point."""

    name: str
    colour: str
    points: Sequence[tuple[float, float | None]]
    spread: Sequence[float | None] = ()


class Mark(NamedTuple):
    """A value with its interval, as a dot with whiskers; `at` is the step in a line chart, unused in a row."""

    label: str
    value: float
    low: float
    high: float
    colour: str = "ink"
    hollow: bool = False
    at: float = 0.0


class Row(NamedTuple):
    """One line of an interval plot: label and figures are text, marks are fractions in [0, 1]."""

    label: str
    marks: Sequence[Mark]
    figures: str
    note: str = ""
    flag: str = ""


@dataclass(frozen=True)
class Chart:
    """A titled line chart over training steps; `unit` says what the y axis counts.

    `axis`: "unit" pins it to 0..1 if the values keep to it, "percent" does so and writes shares as percentages.
    `healthy` is the range that values should keep to: a quiet band as far as the axis reaches, which it never changes.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    marks_name: str = ""
    axis: Axis = "free"
    healthy: tuple[float, float] | None = None


def text(value: object) -> str:
    """Any value as text that is safe in HTML content and in quoted attributes."""
    return html.escape(str(value), quote=True)


def number(value: float) -> str:
    """Three significant digits, thousands with commas, a true minus sign."""
    rounded = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return rounded.replace("-", "\N{MINUS SIGN}")


def ticks(low: float, high: float, count: int = 5, least: float = 0.0) -> list[float]:
    """Round values, about `count` steps of 1, 2 or 5 times a power of ten (not below `least`), around [low, high]."""
    raw = max((high - low) / count, least, 1e-12)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def line_chart(chart: Chart) -> str:
    """A figure with title, unit, legend with last values, y and x axes; empty text if there is nothing to draw."""
    steps = [step for line in chart.lines for step, value in line.points if finite(value)]
    steps += [mark.at for mark in chart.marks]
    if not steps:
        return ""
    first, last = min(steps), max(steps)
    if first == last:
        first, last = first - 1, last + 1
    marks = ticks(*_y_range(chart))
    scale = _Scale(first, last, marks[0], marks[-1])
    curves = _healthy(chart, scale) + "".join(_band(line, scale) for line in chart.lines)
    curves += "".join(_curve(line, scale) for line in chart.lines)
    dots = "".join(_end(line, scale) for line in chart.lines) + "".join(_whisker(mark, scale) for mark in chart.marks)
    return (
        f'<figure class="chart"><figcaption><b>{text(chart.title)}</b> <span>{text(chart.unit)}</span>'
        f'{_legend(chart)}</figcaption><svg class="plot" height="{_HEIGHT + 34}" role="img" '
        f'aria-label="{text(_in_words(chart))}">{_y_axis(marks, scale, chart.axis)}{_x_axis(scale)}'
        f'<svg width="100%" height="{_HEIGHT}" viewBox="0 0 1000 1000" preserveAspectRatio="none">{curves}</svg>'
        f"{dots}</svg></figure>"
    )


def interval_rows(rows: Iterable[Row]) -> str:
    """Rows of dots with whiskers over one axis from 0 to 100 %, label at the left and figures at the right."""
    body = "".join(
        f'<div class="row"><span class="label">{text(row.label)}{_flag(row.flag)}</span>{_track(row.marks)}'
        f'<span class="figures">{text(row.figures)} <small>{text(row.note)}</small></span></div>'
        for row in rows
    )
    axis = "".join(
        f'<text x="{tick}%" y="14" class="middle">{tick}{"%" if tick == 100 else ""}</text>'
        for tick in (0, 25, 50, 75, 100)
    )
    return (
        f'<div class="rows">{body}<div class="row axis"><span></span><svg class="track" height="20">{axis}</svg>'
        f"<span></span></div></div>"
    )


def divided_bar(parts: Sequence[tuple[str, int, str]]) -> str:
    """One bar divided by (label, count, colour), with the counts in words below; parts of 0 are left out."""
    total = sum(count for _, count, _ in parts)
    if not total:
        return ""
    shown = [part for part in parts if part[1]]
    bar = "".join(f'<i class="{colour}" style="flex:{count}"></i>' for _, count, colour in shown)
    key = "".join(
        f'<span><i class="dot {colour}"></i><b>{count}</b> {text(label)}</span>' for label, count, colour in shown
    )
    return f'<div class="bar" aria-hidden="true">{bar}</div><p class="legend">{key}</p>'


def finite(value: float | None) -> TypeGuard[float]:
    """True for a number that can be drawn."""
    return value is not None and math.isfinite(value)


class _Scale(NamedTuple):
    first: float
    last: float
    low: float
    high: float

    def x(self, step: float) -> float:
        """0 at the left, 100 at the right."""
        return round(100 * (step - self.first) / (self.last - self.first), 2)

    def y(self, value: float) -> float:
        """0 at the top, 100 at the bottom."""
        return round(100 * (self.high - value) / (self.high - self.low), 2)


def _y_range(chart: Chart) -> tuple[float, float]:
    """From zero to the data, or 0..1 where that is asked for and fits (the band is cut there)."""
    values = [value for line in chart.lines for _, value in line.points if finite(value)]
    values += [bound for mark in chart.marks for bound in (mark.low, mark.high)]
    if chart.axis != "free" and 0 <= min(values) and max(values) <= 1:
        return 0.0, 1.0
    values += [bound for line in chart.lines for triple in _spreads(line) for bound in triple[1:]]
    return min(0.0, *values), max(0.0, *values)


def _spreads(line: Line) -> list[tuple[float, float, float]]:
    """(step, low, high) where both the value and its spread are known."""
    if not line.spread:
        return []
    pairs = zip(line.points, line.spread, strict=True)
    return [(step, value - by, value + by) for (step, value), by in pairs if finite(value) and finite(by)]


def _band(line: Line, scale: _Scale) -> str:
    edges = _spreads(line)
    if not edges:
        return ""
    corners = [(step, high) for step, _, high in edges] + [(step, low) for step, low, _ in reversed(edges)]
    outline = " ".join(f"{10 * scale.x(step):g},{10 * scale.y(value):g}" for step, value in corners)
    return f'<polygon class="band {line.colour}" points="{outline}"/>'


def _healthy(chart: Chart, scale: _Scale) -> str:
    low, high = chart.healthy or (math.inf, -math.inf)
    low, high = max(low, scale.low), min(high, scale.high)
    if low >= high:
        return ""
    top, bottom = 10 * scale.y(high), 10 * scale.y(low)
    return f'<rect class="band healthy" width="1000" y="{top:g}" height="{bottom - top:g}"/>'


def _curve(line: Line, scale: _Scale) -> str:
    path, pen = [], "M"
    for step, value in line.points:
        if not finite(value):
            pen = "M"
            continue
        # After a move, a stroke of no length makes a lone point visible through its round cap.
        path.append(f"{pen}{10 * scale.x(step):g},{10 * scale.y(value):g}" + ("h0" if pen == "M" else ""))
        pen = "L"
    return f'<path class="line {line.colour}" d="{"".join(path)}"/>'


def _end(line: Line, scale: _Scale) -> str:
    known = [(step, value) for step, value in line.points if finite(value)]
    if not known:
        return ""
    step, value = known[-1]
    return f'<circle class="end {line.colour}" cx="{scale.x(step)}%" cy="{scale.y(value) / 100 * _HEIGHT:g}" r="3"/>'


def _whisker(mark: Mark, scale: _Scale) -> str:
    x, low, high, y = (f"{scale.x(mark.at)}%", *(scale.y(v) / 100 * _HEIGHT for v in (mark.low, mark.high, mark.value)))
    return (
        f'<g class="{_style(mark)}"><title>{text(mark.label)}</title>'
        f'<line x1="{x}" x2="{x}" y1="{low:g}" y2="{high:g}"/><circle cx="{x}" cy="{y:g}" r="4"/></g>'
    )


def _track(marks: Sequence[Mark]) -> str:
    height = _LANE * len(marks) + _ROW_GAP
    grid = "".join(f'<line class="grid" x1="{x}%" x2="{x}%" y1="0" y2="{height}"/>' for x in (0, 25, 50, 75, 100))
    drawn = []
    for lane, mark in enumerate(marks):
        y = _ROW_GAP // 2 + _LANE * lane + _LANE // 2
        drawn.append(
            f'<g class="{_style(mark)}"><title>{text(mark.label)}</title>'
            f'<line x1="{100 * mark.low:.2f}%" x2="{100 * mark.high:.2f}%" y1="{y}" y2="{y}"/>'
            f'<circle cx="{100 * mark.value:.2f}%" cy="{y}" r="4.5"/></g>'
        )
    words = "; ".join(mark.label for mark in marks)
    return f'<svg class="track" height="{height}" role="img" aria-label="{text(words)}">{grid}{"".join(drawn)}</svg>'


def _style(mark: Mark) -> str:
    return f"mark {mark.colour}{' hollow' if mark.hollow else ''}"


def _flag(flag: str) -> str:
    return f' <span class="flag" title="{text(flag)}">\N{DAGGER}</span>' if flag else ""


def _y_axis(marks: Sequence[float], scale: _Scale, axis: Axis) -> str:
    lines = []
    for value in marks:
        y = scale.y(value) / 100 * _HEIGHT
        kind = "base" if math.isclose(value, 0, abs_tol=1e-12) else "grid"
        label = _value(0.0 if kind == "base" else value, axis)
        lines.append(f'<line class="{kind}" x1="0" x2="100%" y1="{y:g}" y2="{y:g}"/>')
        lines.append(f'<text class="end" x="-8" y="{y + 4:g}">{label}</text>')
    return "".join(lines)


def _x_axis(scale: _Scale) -> str:
    shown = [tick for tick in ticks(scale.first, scale.last, 8, least=1.0) if scale.first <= tick <= scale.last]
    labels = "".join(
        f'<text class="middle" x="{scale.x(tick)}%" y="{_HEIGHT + 16}">{number(tick)}</text>' for tick in shown
    )
    return labels + f'<text class="middle axis-name" x="50%" y="{_HEIGHT + 31}">training step</text>'


def _value(value: float, axis: Axis) -> str:
    return f"{number(100 * value)}%" if axis == "percent" else number(value)


def _legend(chart: Chart) -> str:
    keys = []
    for line in chart.lines:
        known = [value for _, value in line.points if finite(value)]
        broken = sum(value is not None and not math.isfinite(value) for _, value in line.points)
        name = f"{text(line.name)} " if line.name else "last "
        warning = f' <em class="bad">{broken} not finite</em>' if broken else ""
        last = f"<b>{_value(known[-1], chart.axis)}</b>" if known else ""
        keys.append(f'<span><i class="dot {line.colour}"></i>{name}{last}{warning}</span>')
    if chart.marks:
        keys.append(f'<span><i class="dot {_style(chart.marks[0])}"></i>{text(chart.marks_name)}</span>')
    if chart.healthy:
        keys.append(f'<span><i class="dot healthy"></i>{_range(chart)}</span>')
    return f'<span class="legend">{"".join(keys)}</span>'


def _range(chart: Chart) -> str:
    low, high = (_value(bound, chart.axis) for bound in chart.healthy or ())
    return f"healthy range {low}\N{EN DASH}{high}"


def _in_words(chart: Chart) -> str:
    """The chart for those who can't see it."""
    said = []
    for line in chart.lines:
        known = [(step, value) for step, value in line.points if finite(value)]
        if known:
            (first, start), (last, end) = known[0], known[-1]
            name = f"{line.name} " if line.name else ""
            said.append(
                f"{name}{_value(start, chart.axis)} at step {first:g}, {_value(end, chart.axis)} at step {last:g}"
            )
    if chart.healthy:
        said.append(_range(chart))
    return f"{chart.title}, {chart.unit}: " + "; ".join(said)
