"""Deep search on a laptop: an executor learns to write search clues, and goes back into its system.

    python examples/deep_search/demo.py --out runs/search-demo

1. The system answers training questions over the train part of the world; its SEARCH rounds become training states.
2. For each seed the executor, and it alone, is trained on them.
3. It is compared with the untrained one in kept states of held-out questions, over another part of the world.
4. It is merged into its base, put back into the system by config, and the whole system answers the held-out questions.

With --wrong-labels 0.1 it learns from a checker that errs in a tenth of its labels, and what that paid for is audited.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from gruppo.config import load
from gruppo.evaluation import search_audit, search_rounds, search_runs
from gruppo.log import Log
from gruppo.run import RunConfig
from gruppo.searching import assessing, merging, playing, training

HERE = Path(__file__).parent


def system(part: str, **settings: str) -> RunConfig:
    """The whole system over one part of the world."""
    return load(RunConfig, [HERE / "search.toml"], {"tools.corpus": f"world:{part}", **settings})


def train(out: Path, seed: int, wrong_labels: float, log: Log) -> Path:
    """A run of the executor's training on the searches in `out`."""
    run = out / f"executor-{seed}"
    sides = out / "train" / "checkpoints", out / "test" / "checkpoints"
    files = [HERE / "search.toml", HERE / "train.toml"]
    own = {"seed": str(seed), "tools.corpus": "world:train", "team.search.wrong_labels": str(wrong_labels)}
    config = training.config_of(*sides, files, own)
    training.train(config, run, log)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/search-demo"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--wrong-labels", type=float, default=0.0, help="share of the checker's labels, in training")
    options = parser.parse_args()
    out, log, started = options.out, Log(), time.monotonic()

    for part in ("train", "test"):  # at temperature 1, so that the states show what the executor does now and then
        playing.play_all(system(part), out / part, part, 1, log)
    greedy = {"roles.executor.temperature": "0"}
    before = playing.play_all(system("test", **greedy), out / "before", "test", 1, log)

    untrained, trained, after, audits = [], [], [], []
    for seed in options.seeds:
        run = train(out, seed, options.wrong_labels, log)
        own = {"tools.corpus": "world:test", "team.search.wrong_labels": "0"}
        sides = assessing.play_states(run, (assessing.BASELINE, None), "greedy", 1, log, own)
        earlier, later = sides.values()
        untrained.append(earlier)
        trained.append(later)
        merged = merging.merge(run, [], "executor", None, log.say)[-1]  # of the last checkpoint
        swapped = {"engines.trained.folder": f"{merged.folder}", "roles.executor.engine": "trained", **greedy}
        after.append(playing.play_all(system("test", **swapped), out / f"after-{seed}", "test", 1, log))

        if options.wrong_labels:
            audits.append(f"seed {seed}, training: {search_audit.audit_text(assessing.audit_run(run)).splitlines()[0]}")

    states, systems = search_rounds.compare(untrained, trained), search_runs.compare([before], after)
    (out / "demo.json").write_text(json.dumps({"states": states, "systems": systems}, indent=2))
    print("\nThe executor in kept states of held-out questions, before and after training:")
    print("\n".join(search_rounds.gain_lines(search_rounds.named_gains(states))))
    print("\nThe whole system on the held-out questions, with the untrained executor and with the trained one merged:")
    print(search_runs.compare_text(systems))
    for audit in audits:
        print(audit)
    print(f"\n{time.monotonic() - started:.0f} s; all figures: {out / 'demo.json'}")


if __name__ == "__main__":
    main()
