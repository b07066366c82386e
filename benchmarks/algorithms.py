"""Presets against each other on the embedded world: `algorithms.py --presets dapo gspo --seeds 0 1 2 3 4 --json FILE`.

Every run of a seed starts from the same cold start and plays the same number of episodes; only the algorithm differs.
What is compared is greedy success on held-out tasks of families of two and three steps, none of them demonstrated. The
interval of a preset is over its seeds (Student's t), and the difference from the first preset is paired by seed: one
whose interval holds 0 is called noise. `--only planner` leaves the other policies as they are after the demonstrations.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gruppo.algorithms import PRESETS
from gruppo.config import load
from gruppo.log import Log
from gruppo.run import RunConfig
from gruppo.stages import train
from gruppo.store import Run

QUICKSTART = Path(__file__).parents[1] / "gruppo" / "quickstart.toml"
DEMONSTRATED = ["compute", "lookup", "compute-lookup"]
HARD = ["lookup-lookup", "lookup-compute", "lookup-lookup-lookup", "lookup-compute-lookup", "lookup-lookup-compute"]
DEFAULT = ["agentic", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "sapo", "reinforce++_baseline"]
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # 95 %, by ddof


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=DEFAULT, choices=[*PRESETS, "none"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--episodes", type=int, default=20 * 128)
    parser.add_argument("--families", nargs="+", default=HARD)
    parser.add_argument("--only", nargs="*", default=[], help="roles to train; the others keep their policy")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings for every run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", nargs="+", type=Path, help="only print the table of these files, runs nothing")
    options = parser.parse_args()
    if options.table:
        print(table(gathered(options.table)))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in options.seeds:  # seed by seed, so that what is there when it is stopped is balanced
        with tempfile.TemporaryDirectory() as folder:
            demonstrate(seed, options, Path(folder) / "shown")
            for preset in options.presets:
                found.setdefault(preset, []).append(play(preset, seed, options, Path(folder)))
                print(preset, found[preset][-1], flush=True)
                if options.json:
                    content = {"options": vars(options), "runs": found}
                    options.json.write_text(json.dumps(content, indent=1, default=str))
    print(table(found))


def demonstrate(seed: int, options: argparse.Namespace, out: Path) -> None:
    """The cold start that all runs of a seed go on from."""
    overrides = {
        "seed": str(seed), "tasks.families": json.dumps(DEMONSTRATED), "train.steps": "0", "eval.stages": "false",
    }  # fmt: skip
    overrides |= dict(pair.split("=", 1) for pair in options.set)
    train(load(RunConfig, [QUICKSTART], overrides), out, False, Log())


def play(preset: str, seed: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run from the cold start in `folder`: its success before and after, and what it took."""
    overrides = {
        "seed": str(seed),
        "start_from": str(folder / "shown"),
        "sft.steps": "0",
        "train.episodes": str(options.episodes),
        "train.steps": str(options.episodes),
        "train.updates": "2",  # on-policy, most of these losses are one and the same
        "tasks.families": json.dumps(options.families),
        "tasks.num_test": str(60 * len(options.families)),
        "team.solver.max_steps": "4",
        "eval.modes": '["greedy"]',
    }
    if preset != "none":
        overrides["algorithm.preset"] = preset
    if options.only:
        roles = ("planner", "executor", "verifier")
        overrides |= {f"roles.{role}.trained": "false" for role in roles if role not in options.only}
    overrides |= dict(pair.split("=", 1) for pair in options.set)
    out = folder / preset
    summary = train(load(RunConfig, [QUICKSTART], overrides), out, False, Log())
    with Run.open(out) as run:
        steps = [record for record in run.read_metrics() if record.get("stage") == "grpo"]
    return {
        "seed": seed,
        "before": summary["before"],
        "after": summary["after"],
        "by_family": summary["by_family"]["final"],
        "steps": len(steps),
        "episodes": int(sum(record["episodes"] for record in steps)),
        "rewards": [round(record["reward/mean"], 4) for record in steps],
        "seconds": summary["seconds"],
    }


def gathered(files: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """The runs of several files, by preset and by who was trained, in the order of their seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for content in map(json.loads, (file.read_text() for file in files)):
        only = content["options"]["only"]
        for preset, runs in content["runs"].items():
            found.setdefault(f"{preset}, only {' and '.join(only)}" if only else preset, []).extend(runs)
    return {name: sorted(runs, key=lambda run: run["seed"]) for name, runs in found.items()}


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: success after training with its interval over seeds, and the paired difference from the first."""
    first = next(iter(found.values()))
    lines = ["| preset | success on the hard families | steps | against the first, points |", "|---|---|---|---|"]
    for preset, runs in found.items():
        by_seed = {run["seed"]: run["after"] for run in first}
        pairs = [run["after"] - by_seed[run["seed"]] for run in runs if run["seed"] in by_seed]
        low, high = interval(pairs)
        verdict = "" if runs is first else f"{100 * fmean(pairs):+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        verdict += ", noise" if verdict and low <= 0 <= high else ""
        steps = fmean(run["steps"] for run in runs)
        lines.append(f"| {preset} | {words([run['after'] for run in runs])} | {steps:.0f} | {verdict} |")
    return "\n".join(lines)


def words(rates: list[float]) -> str:
    """A mean in percent with its interval."""
    low, high = interval(rates)
    return f"{100 * fmean(rates):.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def interval(values: list[float]) -> tuple[float, float]:
    """The mean's 95 % interval over seeds by Student's t; unbounded for a single one."""
    if len(values) < 2:
        return -math.inf, math.inf
    by = STUDENT.get(len(values) - 1, 2.0) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - by, fmean(values) + by


if __name__ == "__main__":
    main()
