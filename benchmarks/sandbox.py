"""What a call of the python tool costs at each level that holds here: `sandbox.py --calls 400 --json FILE`.

Calls one after another (milliseconds, the middle and the slow end), as many at once as there are slots (calls per
second), and calls of a session. Each is `print(1 + 1)`, so what is measured is the sandbox. It trains nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from gruppo.errors import ConfigError
from gruppo.tools.isolation import LEVELS
from gruppo.tools.python import PythonTool

CALL = {"code": "print(1 + 1)"}
COLUMNS = ("start_ms", "call_ms", "call_ms_p95", "session_ms", "calls_per_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(reversed(LEVELS)))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for level in options.levels:
        try:
            found[level] = measure(level, options.calls)
        except ConfigError as error:
            print(error)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the end, {options.calls} calls each")
    print("".join(f"{name:>13}" for name in ("level", *COLUMNS)))
    for level, figures in found.items():
        print(f"{level:>13}" + "".join(f"{figures[name]:13.1f}" for name in COLUMNS))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def measure(level: str, num_calls: int) -> dict[str, Any]:
    """The figures of one level. Raises ConfigError if it does not hold here."""
    started = time.perf_counter()
    python = PythonTool(level=level, min_level="process")
    start = time.perf_counter() - started
    alone = asyncio.run(one_by_one(python, num_calls))
    started = time.perf_counter()
    asyncio.run(all_at_once(python, num_calls))
    rate = num_calls / (time.perf_counter() - started)
    python.close()
    session = PythonTool(level=level, min_level="process", stateful=True)
    in_session = asyncio.run(one_by_one(session, num_calls))
    session.close()
    figures = (start, median(alone), quantiles(alone, n=20)[-1], median(in_session))
    return dict(zip(COLUMNS, (*(1000 * seconds for seconds in figures), rate), strict=True))


async def one_by_one(python: PythonTool, num_calls: int) -> list[float]:
    """Seconds of each call."""
    seconds = []
    for _ in range(num_calls):
        started = time.perf_counter()
        result = await python.call(CALL)
        seconds.append(time.perf_counter() - started)
        assert result.output == "2\n", result
    return seconds


async def all_at_once(python: PythonTool, num_calls: int) -> None:
    results = await asyncio.gather(*(python.call(CALL) for _ in range(num_calls)))
    assert all(result.output == "2\n" for result in results)


if __name__ == "__main__":
    main()
