"""What a step costs as it grows: `scaling.py --json FILE`. Cost should follow the tokens that differ, not all tokens.

One thing grows at a time: attempts per prompt, tokens of the prompt, turns, and the model. The whole step of each size
is measured (as `ours.py` takes it), and beside it stand the tokens of all turns' sequences and the unique ones among
them (the nodes of their prefix tree), each relative to the smallest size. Sizes alternate over the repeats; one step of
each warms up. A random base says something else at every attempt; with a trained one, attempts that came out alike are
trained once, or not at all. Runs gruppo alone; `step.py` compares.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from ours import Ours, Taken
from timing import machine, options_of, table, write
from workload import SHAPES, Workload, add_options, folder_of, workload_of

AXES: Mapping[str, Sequence[int]] = {
    "attempts": (2, 4, 8, 16, 32),
    "prompt_tokens": (128, 256, 512, 1024, 2048),
    "turns": (1, 2, 4, 8, 16),
}
QUICK: Mapping[str, Sequence[int]] = {"attempts": (2, 8), "prompt_tokens": (128, 256), "turns": (1, 2)}
MODELS = ("tiny", *SHAPES)
FIELDS = {"rollout": lambda taken: taken.sampling, "training": lambda taken: taken.seconds - taken.sampling}


def measure(workloads: Mapping[str, Workload], repeats: int) -> dict[str, list[Taken]]:
    """Steps of each workload, taken in turns after one that warms up."""
    sides = {size: Ours(workload) for size, workload in workloads.items()}
    taken: dict[str, list[Taken]] = {size: [] for size in workloads}
    for number in range(repeats + 1):
        for size, side in sides.items():
            step = side.step(number)
            taken[size] += [step] if number else []
    for side in sides.values():
        side.assembly.close()
    return taken


def lines_of(taken: Mapping[str, Sequence[Taken]]) -> list[dict[str, Any]]:
    """Medians of each size, and how often the smallest size goes into them."""
    lines = []
    for size, steps in taken.items():
        line: dict[str, Any] = {"size": size, "seconds": median(step.seconds for step in steps)}
        line |= {name: median(map(seconds, steps)) for name, seconds in FIELDS.items()}
        line |= {"all_tokens": median(step.computed_tokens for step in steps)}
        line |= {"unique_tokens": median(step.unique_tokens for step in steps)}
        lines.append(line)
    smallest = lines[0]
    relative = ("seconds", *FIELDS, "all_tokens", "unique_tokens")
    return [line | {f"{name}_x": line[name] / smallest[name] for name in relative} for line in lines]


def summary(axis: str, lines: Sequence[dict[str, Any]]) -> list[str]:
    """How the training and the step grow from the smallest size to the largest, against the unique tokens."""
    first, last = lines[0], lines[-1]
    unique = last["unique_tokens_x"]
    return [
        f"{name} {last['size']} over {first['size']} {axis.replace('_', ' ')}: time {last[key]:.2f}, "
        f"unique tokens {unique:.2f}, quotient {last[key] / unique:.2f}"
        for name, key in (("training", "training_x"), ("rollout", "rollout_x"), ("step", "seconds_x"))
    ]


def table_of(axis: str, lines: Sequence[dict[str, Any]]) -> str:
    """Markdown of one axis."""
    names = ("seconds", "rollout", "training", "unique_tokens", "seconds_x", "all_tokens_x", "unique_tokens_x")
    header = [axis.replace("_", " "), "step, s", "rollout, s", "training, s", "unique tokens"]
    rows = [[line["size"], *(float(line[name]) for name in names)] for line in lines]
    return table([*header, "step, x", "all tokens, x", "unique tokens, x"], rows)


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, base="random-4m", new_tokens=32, threads=1)
    parser.add_argument("--quick", action="store_true", help="two sizes of each")
    axes = [*AXES, "model"]
    parser.add_argument("--axes", nargs="+", choices=axes, default=axes, help="what grows (default: all, one by one)")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="the bases of the axis `model`")
    options = options_of(parser)
    workload, found = workload_of(options), {}
    for axis in options.axes:
        if axis == "model":
            grown = {base: replace(workload, base=base) for base in options.models[: 2 if options.quick else None]}
        else:
            sizes = (QUICK if options.quick else AXES)[axis]
            grown = {str(size): replace(workload, **{axis: size}) for size in sizes}
        for one in grown.values():
            folder_of(one.base)
        found[axis] = lines_of(measure(grown, options.repeats))
        print(f"{table_of(axis, found[axis])}\n", flush=True)
        if axis != "model":
            print("\n".join(summary(axis, found[axis])), end="\n\n", flush=True)
    settings = asdict(workload) | {"repeats": options.repeats, "machine": machine()}
    write(options.json, {"axes": found, "settings": settings})


if __name__ == "__main__":
    main()
