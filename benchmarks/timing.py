"""What the speed benchmarks share: clocks, pairs of times, peak memory, tables and files. It knows neither side."""

from __future__ import annotations

import argparse
import json
import os
import platform
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch

SHORTEST_PAUSE = 0.01  # seconds between two looks at the memory


def clock(device: str = "cpu") -> float:
    """Seconds, once all that was asked of the device is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True)
class Ratio:
    """How many times as much they take: median over pairs, and the lowest and highest pair."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, theirs: Sequence[float], ours: Sequence[float]) -> Ratio:
        """From paired measurements, in their order."""
        pairs = [their / our for their, our in zip(theirs, ours, strict=True)]
        return cls(median(pairs), min(pairs), max(pairs))


class PeakMemory:
    """Within the block, the most bytes that a process and its descendants held at once.

    All that is resident of the process, and of each descendant what it shares with nobody: what it has in common with
    the process is there already. Looked at some hundred times a second, less often if looking takes long. `bytes` is 0
    where the kernel does not tell (elsewhere than on Linux).
    """

    def __init__(self, pid: int) -> None:
        self.bytes, self._pid = 0, pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._over.wait(pause):
            started = time.perf_counter()
            self.bytes = max(self.bytes, _resident(self._pid) + sum(map(_unshared, _descendants(self._pid))))
            pause = max(SHORTEST_PAUSE, 20 * (time.perf_counter() - started))  # reading costs the process time too


def _resident(pid: int) -> int:
    return sum(_kilobytes(Path(f"/proc/{pid}/status"), ("VmRSS:",))) * 1024


def _unshared(pid: int) -> int:
    return sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup"), ("Private_Clean:", "Private_Dirty:"))) * 1024


def _kilobytes(path: Path, names: tuple[str, ...]) -> list[int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:  # the process has just ended, or there is no such file here
        return []
    return [int(line.split()[1]) for line in lines if line.startswith(names)]


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = [int(child) for child in children.read_text().split()]
        except OSError:  # the thread has just ended
            continue
        found += [*own, *(grandchild for child in own for grandchild in _descendants(child))]
    return found


def gigabytes(size: float) -> float:
    """Bytes in units of 1e9."""
    return round(size / 1e9, 3)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown; floats with three significant digits."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """What the figures were measured on and with."""
    installed = {name: metadata.version(name) for name in ("torch", "transformers", "peft")}
    processor = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    return {
        "processor": processor or platform.processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "load": [round(value, 2) for value in os.getloadavg()],
        **installed,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The parsed options; every speed benchmark also has `--repeats` and `--json`."""
    parser.add_argument("--repeats", type=int, default=5, help="measurements that a median is taken of (default: 5)")
    parser.add_argument("--json", type=Path, help="where to write the result")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least one")
    return options


def write(path: Path | None, content: dict[str, Any]) -> None:
    """The result as JSON, if a file was asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2, default=_plain) + "\n")


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Ratio) else str(value)
