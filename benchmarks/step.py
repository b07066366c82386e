"""One training step, side by side with TRL's GRPOTrainer: `step.py --base smollm2-135m --json FILE`.

Both sides get the same weights, prompts, lengths, LoRA, dtype, threads and group size, and take one optimizer step per
rollout. Each lives in a process of its own; steps alternate (ours, theirs, ours, ...) after one that warms up, so that
what the machine does besides hits both. Reported are medians, and as a ratio the median over pairs with its lowest and
highest pair; above 1, gruppo is ahead. Memory is the most that a fresh process and its children held up to the end of
its first step (on a GPU: the most that was allocated there).

TRL is run in several ways (`against/trl_step.py` says which, and states each setting), the fastest of which is compared
against. `memory` is against that one too, `memory_least` against the one that takes least.

Several turns: each turn sees all before it; TRL plays its tool loop, gruppo its team of one. Needs `trl` (pip install
"gruppo[parity]").
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import ours
from timing import PeakMemory, Ratio, gigabytes, machine, options_of, table, write
from workload import Workload, add_options, folder_of, workload_of

VARIANTS = ("default", "plain", "whole")  # of TRL; named here too, so that its import stays in its own process
ON_GPU = (*VARIANTS, "continuous")
PATIENCE = 5.0  # seconds for a side to end


def serve_trl(connection: Connection, workload: Workload, variant: str) -> None:
    """TRL's side; imported in its own process only."""
    from against.trl_step import serve

    serve(connection, workload, variant)


@dataclass
class Side:
    """A process that takes steps. `first` is what its first step took, `memory` the bytes up to its end."""

    connection: Connection
    memory: int = 0
    first: dict[str, Any] = field(default_factory=dict)
    taken: list[dict[str, Any]] = field(default_factory=list)

    def step(self, number: int) -> dict[str, Any]:
        """Ask for a step and wait for it. RuntimeError if the process died of it."""
        try:
            self.connection.send(number)
            return dict(self.connection.recv())
        except (EOFError, ConnectionError):
            raise RuntimeError("the side's process has ended; its words are above") from None


@contextmanager
def started(serve: Callable[..., None], *arguments: Any) -> Iterator[Side]:
    """A side in a fresh process that has taken its first step."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, *arguments))
    process.start()
    there.close()
    side = Side(here)
    try:
        assert process.pid is not None, "it was started"
        with PeakMemory(process.pid) as peak:
            try:
                here.recv()  # it is ready
            except EOFError:
                raise RuntimeError("the side's process did not start; its words are above") from None
            side.first = side.step(0)
        side.memory = side.first["gpu_bytes"] or peak.bytes
        yield side
        here.send(None)
        process.join(PATIENCE)
    finally:
        if process.is_alive():
            process.terminate()
            process.join()


def fastest(workload: Workload, variants: Sequence[str]) -> tuple[str, dict[str, dict[str, float]]]:
    """The way of running TRL whose first step is the shortest, and what each one took."""
    found: dict[str, dict[str, float]] = {}
    for variant in variants:
        try:
            with started(serve_trl, workload, variant) as side:
                found[variant] = {"first_step_seconds": side.first["seconds"], "memory": side.memory}
        except RuntimeError as error:  # it may not fit into memory
            print(f"TRL, {variant}: {error}", flush=True)
            continue
        print(f"TRL, {variant}: first step {side.first['seconds']:.2f} s, {gigabytes(side.memory)} GB", flush=True)
    if not found:
        raise SystemExit("TRL took no step in any way it was run")
    return min(found, key=lambda variant: found[variant]["first_step_seconds"]), found


def pairs(workload: Workload, variant: str, repeats: int) -> tuple[Side, Side]:
    """Our side and theirs after alternating steps."""
    with started(ours.serve, workload) as our, started(serve_trl, workload, variant) as their:
        for number in range(1, repeats + 1):
            for name, side in (("gruppo", our), ("TRL", their)):
                side.taken.append(side.step(number))
                took = side.taken[-1]
                print(f"{name:7} {took['seconds']:8.3f} s, sampling {took['sampling']:8.3f} s", flush=True)
    return our, their


PARTS: dict[str, Callable[[dict[str, Any]], float]] = {
    "step": lambda taken: taken["seconds"],
    "sampling": lambda taken: taken["sampling"],
    "training": lambda taken: taken["seconds"] - taken["sampling"],
}


def compared(our: Side, their: Side, prefix: str = "") -> tuple[dict[str, Ratio], dict[str, dict[str, float]]]:
    """Ratio and medians of each part of a step."""
    ratios, medians = {}, {}
    for part, seconds in PARTS.items():
        own, other = list(map(seconds, our.taken)), list(map(seconds, their.taken))
        ratios[prefix + part] = Ratio.of(other, own)
        medians[prefix + part] = {"ours": median(own), "theirs": median(other)}
    medians[prefix + "computed_tokens"] = {
        "ours": median(taken["computed_tokens"] for taken in our.taken),
        "theirs": median(taken["computed_tokens"] for taken in their.taken),
    }
    return ratios, medians


def compare(workload: Workload, turns: int, repeats: int, variants: Sequence[str] = VARIANTS) -> dict[str, Any]:
    """Everything that is written to the JSON file."""
    with started(ours.serve, workload) as alone:  # memory, as TRL's: with no other side that pages could be shared with
        print(f"gruppo: first step {alone.first['seconds']:.2f} s, {gigabytes(alone.memory)} GB", flush=True)
    variant, ways = fastest(workload, variants)
    our, their = pairs(workload, variant, repeats)
    ratios, medians = compared(our, their)
    medians["memory"] = {"ours": alone.memory, "theirs": ways[variant]["memory"]}
    medians["memory_least"] = {"ours": alone.memory, "theirs": min(way["memory"] for way in ways.values())}
    if alone.memory:
        ratios |= {name: _single(medians[name]["theirs"] / alone.memory) for name in ("memory", "memory_least")}
    if turns > 1:
        more = compared(*pairs(replace(workload, turns=turns), variant, repeats), prefix="multi_turn_")
        ratios, medians = ratios | more[0], medians | more[1]
    settings = asdict(workload) | {"multi_turns": turns, "repeats": repeats, "trl_way": variant, "machine": machine()}
    return {
        "ratios": {name: ratio.median for name, ratio in ratios.items()},
        "spread": {name: [ratio.low, ratio.high] for name, ratio in ratios.items()},
        "medians": medians,
        "trl_ways": ways,
        "unique_tokens": our.first["unique_tokens"],
        "settings": settings,
    }


def _single(value: float) -> Ratio:
    return Ratio(value, value, value)


def table_of(found: dict[str, Any]) -> str:
    """Markdown: what each part takes on both sides, and the ratio with its spread."""
    rows: list[list[object]] = []
    for name, ratio in found["ratios"].items():
        unit, own, other = "s", found["medians"][name]["ours"], found["medians"][name]["theirs"]
        if name.startswith("memory"):
            unit, own, other = "GB", gigabytes(own), gigabytes(other)
        low, high = found["spread"][name]
        spread = "" if low == high else f"{low:.2f} to {high:.2f}"
        rows.append([f"{name.replace('_', ' ')}, {unit}", own, other, f"{ratio:.2f}", spread])
    return table(["", "gruppo", f"TRL ({found['settings']['trl_way']})", "ratio", "spread over pairs"], rows)


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, turns=3)
    parser.add_argument("--variants", nargs="+", choices=ON_GPU, default=list(VARIANTS), help="ways of running TRL")
    options = options_of(parser)
    folder_of(options.base)  # made, or missed, before two processes ask for it
    found = compare(replace(workload_of(options), turns=1), options.turns, options.repeats, options.variants)
    print(table_of(found))
    write(options.json, found)


if __name__ == "__main__":
    main()
