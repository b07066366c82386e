"""What a report's figures allow to say, in words: the headline, the statements under the notes, numbers as people read.

Never stronger than the interval. Pure text: computes no interval itself (`statistics`, `metrics`), lays out nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Plain = Mapping[str, Any]

_FEW_TASKS = 30  # below this a percentile bootstrap is clearly too narrow: it knows only the outcomes it has seen


def headline(summary: Plain) -> str:
    """The result of report.json in one HTML sentence or two."""
    before, after, gain = summary.get("before"), summary.get("after"), summary.get("gain")
    if after is None:
        return "No evaluation was made."
    n = summary.get("n")
    sentence = f"The trained team solves <b>{percent(after)}</b> of {f'{n:,}' if n else 'the'} held-out tasks"
    if before is None:
        return f"{sentence}."
    way = "up from" if after > before else "down from" if after < before else "as before:"
    sentence += f", {way} <b>{percent(before)}</b>"
    if gain is None or not summary.get("gain_ci95"):
        return f"{sentence}."
    low, high = summary["gain_ci95"]
    change = f"a paired change of <b>{points(gain)} points</b> (95% interval {points(low)} to {points(high)})."
    return " ".join([f"{sentence}: {change}", *_claims(low, high, n)])


def statements(stages: Sequence[tuple[str, Plain, Plain | None]], comparison: Plain | None) -> list[str]:
    """What the intervals on the page do and do not show; `stages` and `comparison` as in `ReportData`. Plain text."""
    said = []
    if comparison and "gain_ci95" in comparison:
        low, high = comparison["gain_ci95"]
        said.append(
            "The gain is paired: both teams played the same tasks. Its interval is a percentile bootstrap over tasks "
            f"and {'includes' if low <= 0 <= high else 'excludes'} zero. It says nothing of other training seeds."
        )
    if stages:
        said.append("An episode that the infrastructure failed, or that nobody could judge, counts as not solved.")
    if len(stages) > 1 and (families := stages[-1][1].get("by_family")):
        apart = _apart(stages[0][1].get("by_family", {}), families)
        found = f"are apart in {', '.join(apart)}" if apart else "overlap in every family"
        said.append(
            f"The intervals of {stages[0][0]} and {stages[-1][0]} {found}. Many families are compared at once: "
            "read a single one as a hint."
        )
    return said


def verdict(gain: Plain) -> str:
    """One line on a gain of `comparison.compare_systems`: what it is, how sure, and what the figures allow to say."""
    (low, high), adjusted = gain["ci95"], gain["p_adjusted"]
    said = (
        f"gain {points(gain['gain'])} points, 95 % interval {bound(low)}\N{HORIZONTAL ELLIPSIS}{bound(high)}, "
        f"n {gain['n']:,}, {gain['seeds']} seed{'s' if gain['seeds'] > 1 else ''}"
    )
    if gain["n"] < _FEW_TASKS:
        return f"{said}: too few tasks for a conclusion"
    if low <= 0 <= high:
        missed = gain.get("detectable")
        least = f"; only {100 * missed:.1f} points or more would be seen 4 times in 5" if missed else ""
        return f"{said}: no gain is shown{least}"
    if adjusted >= 0.05:
        counted = f", for {gain['comparisons']} comparisons" if gain["comparisons"] > 1 else ""
        return f"{said}: not beyond chance (p {adjusted:.2g}{counted})"
    return f"{said}: {'better' if low > 0 else 'worse'}"


def bound(value: float) -> str:
    """A bound of a gain in percentage points, with a true minus sign."""
    return f"{100 * value:.1f}".replace("-", "\N{MINUS SIGN}")


def percent(rate: float, digits: int = 1) -> str:
    """A fraction as a percentage."""
    return f"{100 * rate:.{digits}f}%"


def interval(bounds: Sequence[float]) -> str:
    """Two fractions as a range of percentages."""
    return f"{100 * bounds[0]:.1f}\N{EN DASH}{100 * bounds[1]:.1f}%"


def points(gain: float) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return f"{100 * gain:+.1f}".replace("-", "\N{MINUS SIGN}")


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _claims(low: float, high: float, n: int | None) -> list[str]:
    """What the reader must be told of an interval that holds zero, lies below it, or rests on little."""
    claims = []
    if low <= 0 <= high:
        claims.append("The interval includes zero: this run shows no gain.")
    elif high < 0:
        claims.append("Training made the team worse.")
    if n and n < _FEW_TASKS:
        claims.append("So few tasks carry no conclusion.")
    return claims


def _apart(first: Mapping[str, Plain], last: Mapping[str, Plain]) -> list[str]:
    both = [name for name in last if "ci95" in last[name] and "ci95" in first.get(name, {})]
    return [n for n in both if last[n]["ci95"][0] > first[n]["ci95"][1] or last[n]["ci95"][1] < first[n]["ci95"][0]]
