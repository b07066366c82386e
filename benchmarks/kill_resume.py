"""Kill a small training run at random moments, resume it, and compare what it ends with: `kill_resume.py --kills 20`.

One run goes through undisturbed. Each trial starts the same run in a fresh folder, kills its process group with SIGKILL
at a moment drawn uniformly over the life of a run (from when its folder is its own; what goes before leaves nothing
behind), and resumes it. One trial in three (`--again`) is killed once more while it resumes. At the end the weights,
optimizer states and state of the last checkpoint are compared by SHA-256, and all metrics but the seconds.

A kill may come before the config is on disk. Such a run has nothing to resume and says so; it is started anew, as a
person would. The kernel is not stopped: what a power cut loses is not tried here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gruppo.store import Run, fingerprint

QUICKSTART = Path(__file__).parents[1] / "gruppo" / "quickstart.toml"
SMALL = {
    "model.threads": "1",
    "policies.executor.rank": "8",
    "tasks.families": '["compute", "lookup"]',
    "tasks.num_train": "64",
    "tasks.num_test": "3",
    "team.solver.max_steps": "1",
    "sft.families": "[]",
    "sft.demonstrations": "8",
    "sft.steps": "3",
    "sft.batch_size": "8",
    "train.steps": "4",
    "train.tasks_per_step": "4",
    "train.attempts": "4",
    "train.save_every": "2",
    "eval.modes": '["greedy"]',
}
DEADLINE = 300.0  # seconds, of one process


@dataclass(frozen=True)
class Ending:
    """What must be the same: (file, SHA-256) of the last checkpoint, and the metrics without their seconds."""

    files: dict[str, str]
    metrics: list[dict[str, Any]]


def command(out: Path, resume: bool) -> list[str]:
    """The command line of the small run, or of its resumption."""
    words = [sys.executable, "-m", "gruppo", "train", "--out", str(out)]
    if resume:
        return [*words, "--resume"]
    return [
        *words,
        "--config",
        str(QUICKSTART),
        *(word for key, value in SMALL.items() for word in (f"--{key}", value)),
    ]


def start(out: Path, resume: bool) -> subprocess.Popen[str]:
    """The run as a process group of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        command(out, resume),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until_it_owns(process: subprocess.Popen[str], out: Path) -> None:
    """Return when the run's folder is locked by `process`, or the process has ended."""
    lock, owner = out / "run.lock", f"process {process.pid} on"
    while process.poll() is None and not (lock.exists() and lock.read_text().startswith(owner)):
        time.sleep(0.002)


def finish(out: Path, resume: bool) -> float:
    """Let the run go to its end; returns the seconds of its life. SystemExit with its own words if it fails."""
    process = start(out, resume)
    wait_until_it_owns(process, out)
    began = time.monotonic()
    _, errors = process.communicate(timeout=DEADLINE)
    if process.returncode:
        raise SystemExit(f"{' '.join(command(out, resume))} ended with {process.returncode}:\n{errors}")
    return time.monotonic() - began


def kill(out: Path, resume: bool, after: float) -> bool:
    """Start or resume the run and kill its group `after` seconds into its life; False if it had ended by itself."""
    process = start(out, resume)
    wait_until_it_owns(process, out)
    try:
        process.wait(timeout=after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=DEADLINE)
    return process.returncode == -signal.SIGKILL


def can_resume(out: Path) -> bool:
    """Whether there is a run to go on with; without its config there is none."""
    return (out / "config.toml").exists()


def trial(moments: random.Random, again: float, seconds: float, folder: Path) -> dict[str, Any]:
    """One run killed once, with a chance of `again` twice, then played to its end in `folder`.

    `seconds` is the life of an undisturbed run.
    """
    # The kill comes within the run's life; should this run be faster than the first was, again and earlier.
    after = moments.uniform(0, seconds)
    while not kill(folder / "run", resume=False, after=after):
        (folder / "run").rename(folder / f"ended-{after:.3f}")
        after *= 0.9
    kills = [round(after, 3)]
    if moments.random() < again:
        after = moments.uniform(0, seconds - after)
        if kill(folder / "run", can_resume(folder / "run"), after):
            kills.append(round(after, 3))
    anew = not can_resume(folder / "run")
    finish(folder / "run", resume=not anew)
    return {"killed_after": kills, "started_anew": anew}


def ending_of(out: Path) -> Ending:
    """What a finished run has on disk."""
    run = Run.open(out)
    checkpoint = run.latest_checkpoint()
    assert checkpoint is not None, f"{out} has finished without a checkpoint"
    paths = [*sorted(checkpoint.path.rglob("*.safetensors")), checkpoint.path / "state.json"]
    metrics = [
        {key: value for key, value in record.items() if not key.startswith("seconds")} for record in run.read_metrics()
    ]
    return Ending({str(path.relative_to(checkpoint.path)): fingerprint(path) for path in paths}, metrics)


def differences(reference: Ending, found: Ending) -> list[str]:
    """In words, what is not the same; empty if all is."""
    names = sorted(reference.files.keys() | found.files.keys())
    different = [name for name in names if reference.files.get(name) != found.files.get(name)]
    steps, expected = ([(r["stage"], r["step"]) for r in end.metrics] for end in (found, reference))
    if steps != expected:
        return [*different, f"metrics of {steps} instead of {expected}"]
    pairs = zip(reference.metrics, found.metrics, strict=True)
    return different + [f"metrics of {old['stage']} step {old['step']}" for old, new in pairs if old != new]


def run_trials(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All trials; returns what is written to the JSON file."""
    seconds = finish(folder / "reference" / "run", resume=False)
    reference = ending_of(folder / "reference" / "run")
    if not any(reference.metrics[-1][key] for key in reference.metrics[-1] if key.startswith("rows/")):
        raise SystemExit("the last step of the small run had nothing to learn: its kills would prove little")
    print(f"undisturbed: {seconds:.1f} s, {len(reference.files)} files", flush=True)

    def play(number: int) -> dict[str, Any]:
        own = folder / f"trial-{number:02d}"
        found = trial(random.Random(f"kill {number} of {options.seed}"), options.again, seconds, own)
        found["different"] = differences(reference, ending_of(own / "run"))
        print(f"kill {number}/{options.kills}: {found}", flush=True)
        return found

    with ThreadPoolExecutor(options.parallel) as pool:
        trials = list(pool.map(play, range(1, options.kills + 1)))
    return {
        "kills": options.kills,
        "identical": sum(not found["different"] for found in trials),
        "killed_twice": sum(len(found["killed_after"]) > 1 for found in trials),
        "started_anew": sum(found["started_anew"] for found in trials),
        "seed": options.seed,
        "seconds": round(seconds, 2),
        "trials": trials,
    }


def main() -> None:
    """Parse, run, write; exit code 1 unless all endings are identical."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="runs to kill")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--again", type=float, default=1 / 3, help="chance of a second kill while the run resumes")
    parser.add_argument("--out", type=Path, help="a new folder to keep all runs in; default: a temporary one")
    parser.add_argument("--parallel", type=int, default=1, help="trials at once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-resume-") as temporary:
        folder = options.out or Path(temporary)
        found = run_trials(options, folder)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{found['identical']} of {found['kills']} identical")
    sys.exit(found["identical"] != found["kills"])


if __name__ == "__main__":
    main()
