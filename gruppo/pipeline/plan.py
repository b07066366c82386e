"""The plan: which steps of a pipeline would play, why, and what that takes. It plays nothing but, if asked, a probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gruppo.estimate import Estimate, Measured, estimate, measure, megabytes
from gruppo.evaluation.wording import duration
from gruppo.log import Log
from gruppo.pipeline.play import Pipeline, gate, standing_in
from gruppo.pipeline.recipe import Recipe, run_config
from gruppo.pipeline.results import Results
from gruppo.pipeline.steps import read_tasks


@dataclass(frozen=True)
class Line:
    """One step of a plan. `episodes` and `tokens` (sampled) are at most what it takes; None where it plays none.

    `seconds` are those of a probe, else of the last time; None where nobody knows.
    """

    step: str
    plays: bool
    reason: str
    episodes: int | None = None
    tokens: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Plan:
    """All steps, and the most memory and disk that any takes, in bytes."""

    folder: str
    lines: Sequence[Line]
    memory: int
    disk: int
    is_measured: bool
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def plan(recipe: Recipe, out: Path, log: Log, probe: bool = False) -> Plan:
    """What `play_pipeline` would do. Raises UserError as it does."""
    pipeline = Pipeline(recipe, out, read_tasks(recipe), log)
    found, results = standing_in(pipeline)
    config = run_config(recipe)
    costs = estimate(config)
    measured = measure(config, costs) if probe else None
    evaluated = recipe.eval.attempts * len(pipeline.tasks["test"])
    episodes = {
        "base": evaluated * len(recipe.eval.modes),
        "sft": min(recipe.sft.demonstrations, len(pipeline.tasks["train"])),
        "sft-eval": evaluated,
        "grpo": costs.episodes,
        "grpo-eval": evaluated * len(recipe.eval.modes),
    }
    of_one = costs.sampled_tokens_per_step // costs.episodes_per_step
    lines = [
        Line(
            step=standing.step,
            plays=bool(standing.reason),
            reason=standing.reason or _judged(pipeline, standing.step, results),
            episodes=episodes.get(standing.step),
            tokens=None if standing.step in ("prepare", "sft", "save") else of_one * episodes[standing.step],
            seconds=_seconds(standing.step, episodes, costs, measured, results),
        )
        for standing in found
    ]
    return Plan(str(out), lines, costs.peak, sum(costs.disk.values()), probe, costs.notes)


def _judged(pipeline: Pipeline, step: str, results: Results) -> str:
    message = gate(pipeline, step, results.steps[step])
    return f"up to date, but its gate fails: {message}" if message else "up to date"


def _seconds(
    step: str, episodes: dict[str, int], costs: Estimate, measured: Measured | None, results: Results
) -> float | None:
    """How long a step takes: as the probe says, which knows GRPO and evaluations; else as it took the last time."""
    if measured and step == "grpo":
        return costs.steps * measured.seconds_per_step
    if measured and step in ("base", "sft-eval", "grpo-eval") and costs.evaluation_episodes:
        of_one = (measured.seconds - costs.steps * measured.seconds_per_step) / costs.evaluation_episodes
        return of_one * episodes[step]
    return results.steps[step].seconds if step in results.steps else None


def words_of(line: Line) -> str:
    """A step for people: whether it plays, why, and what that takes."""
    if not line.plays:
        return f"{line.step:10} {line.reason}"
    costs = [f"{line.episodes:,} episodes"] if line.episodes is not None else []
    costs += [f"at most {line.tokens:,} sampled tokens"] if line.tokens is not None else []
    costs += [duration(line.seconds)] if line.seconds is not None else []
    return f"{line.step:10} plays: {line.reason}" + (f" ({', '.join(costs)})" if costs else "")


def totals(found: Plan) -> str:
    """What is to be played in all, on one line."""
    playing = [line for line in found.lines if line.plays]
    if not playing:
        return "everything is up to date: nothing would be played"
    episodes, tokens = sum(line.episodes or 0 for line in playing), sum(line.tokens or 0 for line in playing)
    known = [line.seconds for line in playing if line.seconds is not None]
    time = f", {duration(sum(known))} (of the steps whose time is known)" if known else ""
    return (
        f"to play: {episodes:,} episodes, at most {tokens:,} sampled tokens, {megabytes(found.memory)} of memory, "
        f"{megabytes(found.disk)} of disk{time}"
    )
