"""Several systems on the same tasks and seeds, as base, SFT and GRPO: what each does, and what each gained.

One plain-data comparison, shown as a text table, as JSON, or as a page in the style of the run's report. Episodes in;
plays nothing and reads no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gruppo.data.base import family_of
from gruppo.evaluation.measures import MEASURES, Measure, difficulty, measure, plain
from gruppo.evaluation.metrics import Success, solved, success_by_task
from gruppo.evaluation.page import page, section, table, write_page
from gruppo.evaluation.plots import Mark, Row, interval_rows, text
from gruppo.evaluation.statistics import (
    crossed_gain,
    detectable_gain,
    holm,
    mcnemar,
    paired_bootstrap,
    seed_spread,
    wilson_of_tasks,
)
from gruppo.evaluation.wording import bound, interval, percent, points, verdict
from gruppo.types import Group, Task

Plain = Mapping[str, Any]
RIGHT = "\N{RIGHTWARDS ARROW}"
RATES = ("accuracy", "accuracy_at_k", "format_correctness", "tool_call_validity")
TITLES: Mapping[str, str] = {
    "accuracy": "accuracy",
    "accuracy_at_k": "accuracy@k",
    "mean_numerical_error": "mean error",
    "median_numerical_error": "median error",
    "average_length": "tokens",
    "average_steps": "steps",
    "average_turns": "turns",
    "format_correctness": "format ok",
    "tool_call_validity": "calls ok",
    "seconds_per_task": "s/task",
    "tokens_per_task": "tokens/task",
}


@dataclass(frozen=True)
class System:
    """A system by its name, with its groups for each training seed; an untrained one has a single entry."""

    name: str
    by_seed: Mapping[int, Sequence[Group]]


def compare_systems(
    systems: Sequence[System], names: Sequence[str] = (), k: int = 1, success: Success = solved
) -> dict[str, Any]:
    """What each system does and what each gained over the first and over the one before it, in plain JSON-able data.

    All systems played the same tasks, each with the same seeds or with a single one, which then stands beside each of
    the others'. A figure is the mean over seeds; the interval of the accuracy is that of seeds and tasks together. A
    gain with one seed has the bootstrap interval over tasks and McNemar's exact p-value; with several seeds, those of
    `crossed_gain`. `p_adjusted` is Holm's for all gains of the table; `detectable` is the gain that as many tasks would
    have shown with a power of 0.8. Raises ValueError for systems that can't be set side by side.
    """
    names = list(names or MEASURES)
    rates = {system.name: _rates(system, success) for system in systems}
    if len(rates) != len(systems) or not systems:
        raise ValueError("a comparison needs systems, each with a name of its own")
    _check_alike(rates)
    gains = [_gain(before, after, rates[before], rates[after]) for before, after in _pairs(list(rates))]
    for gain, adjusted in zip(gains, holm([gain["p_value"] for gain in gains]), strict=True):
        gain |= {"p_adjusted": adjusted, "comparisons": len(gains)}
        gain["verdict"] = verdict(gain)
    first = next(iter(rates[systems[0].name].values()))
    return {
        "n": len(first),
        "seeds": max(len(by_seed) for by_seed in rates.values()),
        "k": k,
        "systems": [_system(system, names, k, success) for system in systems],
        "gains": gains,
    }


def text_table(comparison: Plain) -> str:
    """The comparison for a terminal: a line per system, a verdict per gain."""
    names = _shown(comparison)
    rows = [["", *(TITLES[name] for name in names)]]
    for system in comparison["systems"]:
        rows.append([system["name"], *(_figure(name, system["measures"][name]) for name in names)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if not place else cell.rjust(width) for place, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    lines += [f"{gain['after']} against {gain['before']}: {gain['verdict']}" for gain in comparison["gains"]]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def markdown_table(comparison: Plain) -> str:
    """The comparison for a document: a row per system with every seed's accuracy, then a verdict per gain."""
    systems = comparison["systems"]
    known = ("accuracy", "accuracy_at_k") if comparison["k"] == 1 else ("accuracy",)
    names = [name for name in _shown(comparison) if name not in known]
    seeds = list(systems[0].get("accuracy_by_seed", {}))
    rows = [
        ["", "accuracy (95 % interval)", *(f"seed {seed}" for seed in seeds), *(["between seeds"] if seeds else [])]
    ]
    rows[0] += [TITLES[name] for name in names]
    rows.append(["---"] * len(rows[0]))
    for system in systems:
        own = [percent(rate) for rate in system.get("accuracy_by_seed", {}).values()]
        own += [f"\N{PLUS-MINUS SIGN} {100 * system['seed_stdev']:.1f}"] if seeds else []
        measures = [_figure(name, system["measures"][name]) for name in names]
        rows.append([system["name"], _figure("accuracy", system["measures"]["accuracy"]), *own, *measures])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    verdicts = "\n".join(
        f"- {gain['after']} against {gain['before']}: {gain['verdict']}" for gain in comparison["gains"]
    )
    return f"{table}\n\n{verdicts}\n" if verdicts else f"{table}\n"


def write_comparison(path: Path | str, comparison: Plain, title: str) -> None:
    """Write the comparison as a self-contained page."""
    write_page(path, render_comparison(comparison, title))


def render_comparison(comparison: Plain, title: str) -> str:
    """The comparison as one HTML page that needs no other file."""
    systems, gains = comparison["systems"], comparison["gains"]
    seeds = comparison["seeds"]
    lead = f"{len(systems)} systems on the same {comparison['n']:,} tasks, {seeds} seed{'s' if seeds > 1 else ''}."
    colours = {system["name"]: _colour(place, len(systems)) for place, system in enumerate(systems)}
    own = [(system["name"], system["measures"]["accuracy"]) for system in systems]
    rows = [Row(name, [_mark(name, one, colours[name])], percent(one["value"])) for name, one in own]
    names = _shown(comparison)
    # A row for each measure: there are many, and few systems, so it fits.
    cells = [[TITLES[name], *(text(_figure(name, s["measures"][name])) for s in systems)] for name in names]
    verdicts = [[text(f"{g['after']} against {g['before']}"), *map(text, _gain_cells(g))] for g in gains]
    said = "".join(f"<li>{text(g['after'])} against {text(g['before'])}: {text(g['verdict'])}</li>" for g in gains)
    sections = [
        section("Accuracy", "Dots are means over seeds, whiskers 95% intervals.", interval_rows(rows)),
        section("Measures", "Every task counts.", table(["", *(text(s["name"]) for s in systems)], cells)),
        section(
            "Gains",
            "Paired over tasks; p-values adjusted (Holm) for all that are here.",
            (table(["", "Points", "95% interval", "Fixed", "Broken", "p", "p, adjusted"], verdicts) if gains else "")
            + (f'<ul class="notes">{said}</ul>' if said else ""),
        ),
        *(
            section(f"By {part}", _keys(colours), _part_rows(systems, f"by_{part}", colours))
            for part in ("difficulty", "family")
        ),
    ]
    return page(title, f'<h1>{text(title)}</h1><p class="lead">{lead}</p>', sections)


def _rates(system: System, success: Success) -> dict[int, dict[str, float]]:
    """Seed -> task -> share of its attempts that solved it."""
    if not system.by_seed:
        raise ValueError(f"system {system.name!r} has no evaluation")
    return {seed: success_by_task(groups, success) for seed, groups in system.by_seed.items()}


def _check_alike(rates: Mapping[str, Mapping[int, Mapping[str, float]]]) -> None:
    seeds = {frozenset(by_seed) for by_seed in rates.values() if len(by_seed) > 1}
    if len(seeds) > 1:
        told = "; ".join(f"{name}: {sorted(by_seed)}" for name, by_seed in rates.items())
        raise ValueError(f"systems to compare need the same seeds, or a single one: {told}")
    first = next(iter(next(iter(rates.values())).values())).keys()
    for name, by_seed in rates.items():
        for seed, by_task in by_seed.items():
            if odd := sorted(by_task.keys() ^ first):
                raise ValueError(f"{name}, seed {seed}: other tasks: {len(odd)} ids are in only one, as {odd[0]!r}")


def _pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each with the first; each but the second also with the one before it."""
    for place in range(1, len(names)):
        yield names[0], names[place]
        if place > 1:
            yield names[place - 1], names[place]


def _gain(
    before: str, after: str, earlier: Mapping[int, Mapping[str, float]], later: Mapping[int, Mapping[str, float]]
) -> dict[str, Any]:
    several = later if len(later) > 1 else earlier
    rows = []
    for seed in several:
        old, new = (side[seed] if len(side) > 1 else next(iter(side.values())) for side in (earlier, later))
        rows.append([new[task] - old[task] for task in old])
    means = [fmean(column) for column in zip(*rows, strict=True)]
    fixed, broken = sum(value > 0 for value in means), sum(value < 0 for value in means)
    found: dict[str, Any] = {"before": before, "after": after, "n": len(means), "seeds": len(rows)}
    if len(rows) > 1 and len(means) > 1:
        gain = crossed_gain(rows)
        mean, low, high, p_value = gain.mean, max(-1.0, gain.low), min(1.0, gain.high), gain.p_value
        found["by_seed"] = {str(seed): fmean(row) for seed, row in zip(several, rows, strict=True)}
    else:
        mean, low, high = paired_bootstrap(means, seed=0)
        p_value = mcnemar(fixed, broken)
    found |= {"gain": mean, "ci95": [low, high], "fixed": fixed, "broken": broken, "p_value": p_value}
    if len(means) > 1 and (spread := stdev(means)) > 0:
        found["detectable"] = detectable_gain(len(means), spread)
    return found


def _system(system: System, names: Sequence[str], k: int, success: Success) -> dict[str, Any]:
    runs = [measure(groups, names, k, success=success) for groups in system.by_seed.values()]
    rates = _columns(system, [group.task.id for group in next(iter(system.by_seed.values()))], success)
    measures = {"accuracy": _accuracy(rates, system)} | {
        name: _over_seeds([run[name] for run in runs]) for name in names if name != "accuracy"
    }
    found: dict[str, Any] = {"name": system.name, "measures": plain(measures)}
    if len(rates) > 1:
        of_seeds = [fmean(row) for row in rates]
        found["accuracy_by_seed"] = dict(zip(map(str, system.by_seed), of_seeds, strict=True))
        found["seed_stdev"] = seed_spread(of_seeds).stdev
    for key, part in (("by_difficulty", difficulty), ("by_family", family_of)):
        if parts := _parts(system, part, success):
            found[key] = parts
    return found


def _accuracy(rates: Sequence[Sequence[float]], system: System) -> Measure:
    """The mean over seeds and tasks. With one seed, Wilson's interval; else that of seeds and tasks, where it has a
    width."""
    attempts = max([1, *(len(group.episodes) for groups in system.by_seed.values() for group in groups)])
    means = [fmean(column) for column in zip(*rates, strict=True)]
    bounds = wilson_of_tasks(means, attempts if len(rates) == 1 else 1)
    if len(rates) > 1 and len(means) > 1 and (found := crossed_gain(rates)).low < found.high:
        bounds = max(0.0, found.low), min(1.0, found.high)
    return Measure(fmean(means), len(means), bounds)


def _over_seeds(measures: Sequence[Measure]) -> Measure:
    """The mean over seeds, without an interval where there are several; as it is where one has no value."""
    known = [one.value for one in measures if one.value is not None]
    if len(measures) == 1 or len(known) < len(measures):
        return next((one for one in measures if one.value is None), measures[0])
    reason = "; ".join(dict.fromkeys(one.reason for one in measures if one.reason))
    return Measure(fmean(known), measures[0].n, reason=reason)


def _parts(system: System, part: Callable[[Task], str | None], success: Success) -> dict[str, Any]:
    """Part of the tasks -> accuracy in it, all seeds together."""
    ids: dict[str, list[str]] = {}
    for group in next(iter(system.by_seed.values())):
        if (label := part(group.task)) is not None:
            ids.setdefault(label, []).append(group.task.id)
    found = {label: _accuracy(_columns(system, ids[label], success), system) for label in sorted(ids)}
    return plain(found)


def _columns(system: System, ids: Sequence[str], success: Success) -> list[list[float]]:
    """A row of rates per seed, a column per task id."""
    return [[rates[id_] for id_ in ids] for rates in _rates(system, success).values()]


def _shown(comparison: Plain) -> list[str]:
    """The measures that some system has a value of."""
    found = [system["measures"] for system in comparison["systems"]]
    return [name for name in found[0] if any(measures[name]["value"] is not None for measures in found)]


def _figure(name: str, one: Plain) -> str:
    if one["value"] is None:
        return "n/a"
    if name not in RATES:
        return f"{one['value']:.4g}"
    bounds = f" ({interval(one['ci95'])})" if name == "accuracy" else ""
    return percent(one["value"]) + bounds


def _gain_cells(gain: Plain) -> list[str]:
    low, high = map(bound, gain["ci95"])
    counts = [str(gain["fixed"]), str(gain["broken"])]
    return [points(gain["gain"]), f"{low} to {high}", *counts, f"{gain['p_value']:.2g}", f"{gain['p_adjusted']:.2g}"]


def _mark(label: str, one: Plain, colour: str) -> Mark:
    said = f"{label}: {percent(one['value'])} ({interval(one['ci95'])}, n {one['n']})"
    low, high = one["ci95"]
    return Mark(said, one["value"], low, high, colour)


def _part_rows(systems: Sequence[Plain], key: str, colours: Mapping[str, str]) -> str:
    """A row per part of the tasks, a mark in it per system."""
    rows = []
    for label in systems[0].get(key, {}):
        own = {system["name"]: system[key][label] for system in systems}
        marks = [_mark(f"{label}, {name}", one, colours[name]) for name, one in own.items()]
        figures = f" {RIGHT} ".join(percent(one["value"], 0) for one in own.values())
        rows.append(Row(label, marks, figures, f"n {next(iter(own.values()))['n']:,}"))
    return interval_rows(rows) if len(rows) > 1 else ""


def _keys(colours: Mapping[str, str]) -> str:
    return "".join(f'<span class="key"><i class="dot {c}"></i> {text(name)}</span> ' for name, c in colours.items())


def _colour(place: int, total: int) -> str:
    """The first grey, the last the page's own; in between the roles' colours."""
    return "s0" if place == 0 else "s2" if place == total - 1 else "s1" if total == 3 else f"r{place % 6}"
