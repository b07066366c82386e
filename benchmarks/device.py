"""All comparisons on one GPU, within six minutes: `device.py --json FILE`.

`step.py` in bfloat16 on the device, one and three turns, and `roofline.py`; sizes that a GPU has something to do with.
When time runs short, what is missing is left out and said so. `--device cpu --base tiny` shows that it runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import roofline
import step
import torch
from timing import machine, options_of, write
from workload import add_options, folder_of, workload_of


def main() -> None:
    """Parse, run, print, write after each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(
        parser, base="random-135m", device="cuda", dtype="bfloat16", prompts=8, prompt_tokens=512, turns=3, threads=8
    )
    parser.add_argument("--seconds", type=float, default=360.0, help="of the whole script (default: 360)")
    parser.add_argument("--variants", nargs="+", choices=step.ON_GPU, default=["whole", "continuous"])
    options = options_of(parser)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(f"--device {options.device}: there is none here; --device cpu --base tiny runs anywhere")
    workload, until = replace(workload_of(options), turns=1), time.monotonic() + options.seconds
    folder_of(workload.base)
    found: dict[str, Any] = {"machine": machine()}

    def play(
        name: str, least: float, work: Callable[[], dict[str, Any]], shown: Callable[[dict[str, Any]], str]
    ) -> None:
        """One part, if `least` seconds are left for it."""
        left = until - time.monotonic()
        if left < least:
            found[name] = {"left_out": f"{left:.0f} s were left"}
            print(f"{name}: left out, {left:.0f} s were left", flush=True)
            return
        found[name] = work()
        found[name]["elapsed"] = round(options.seconds - (until - time.monotonic()), 1)
        print(f"{name}\n\n{shown(found[name])}\n", flush=True)
        write(options.json, found)  # what comes later may not be waited for

    play("roofline", 0, lambda: roofline.roofline(workload, options.repeats), shown_roofline)
    play(
        "step",
        0.4 * options.seconds,
        lambda: step.compare(workload, options.turns, options.repeats, options.variants),
        step.table_of,
    )
    write(options.json, found)


def shown_roofline(found: dict[str, Any]) -> str:
    """Both tables."""
    return f"{roofline.peaks_table(found['peaks'])}\n\n{roofline.parts_table(found['parts'])}"


if __name__ == "__main__":
    main()
