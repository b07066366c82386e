"""The index of a large collection, measured: `search_index.py --documents 100000 --clues 64 --json FILE`.

Documents of random words whose frequencies fall as those of a language do (Zipf), a fifth of them Chinese. Seconds to
build the index on disk, to open it memory-mapped, and to search for all clues; clues of rare and of common words, and
the slowest single one. CPU seconds stand beside those of the clock, since other work on the machine counts in the
latter. `--limits` fails (exit code 1) beyond 60 s of building or 1 s for 64 clues.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from gruppo.tools.documents import SearchOrchestrator
from gruppo.tools.search import BM25Index, Passage

NUM_WORDS = 50_000
BUILD_SECONDS, CLUES_SECONDS = 60.0, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--words", type=int, default=100, help="per document")
    parser.add_argument("--clues", type=int, default=64)
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    language = Language(0)
    rows = list(language.passages(options.documents, options.words))
    clues = [language.clue(number) for number in range(options.clues)]
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder) / "index.db", rows, clues)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {options.documents} documents, {len(clues)} clues")
    for name, figure in found.items():
        print(f"{name:>24} {figure:10.3f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.limits and (found["build_s"] > BUILD_SECONDS or found["clues_s"] > CLUES_SECONDS):
        sys.exit("failed: beyond the limits")


class Language:
    """Invented words by rank, and texts that use them as often as their rank says."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self.words = ["".join(self.rng.choices(letters, k=self.rng.randint(3, 10))) for _ in range(NUM_WORDS)]
        self.weights = list(accumulate(1 / (rank + 2.7) for rank in range(NUM_WORDS)))
        self.characters = [chr(0x4E00 + number) for number in range(3_000)]

    def text(self, count: int) -> str:
        return " ".join(self.rng.choices(self.words, cum_weights=self.weights, k=count))

    def passages(self, count: int, words: int) -> Iterator[Passage]:
        for number in range(count):
            if number % 5 == 4:
                text = "，".join("".join(self.rng.choices(self.characters, k=12)) for _ in range(words // 10))
            else:
                text = self.text(words)
            yield Passage(f"{number:07}", self.text(3), text)

    def clue(self, number: int) -> str:
        """A clue of four to eight words; every eighth is Chinese."""
        if number % 8 == 7:
            return "".join(self.rng.choices(self.characters, k=6))
        return self.text(4 + number % 5)


def measure(path: Path, rows: list[Passage], clues: list[str]) -> dict[str, Any]:
    """Seconds, and the size of the file in MB."""
    build = timed(lambda: BM25Index(rows, path).close())
    opening = timed(lambda: BM25Index.open(path).close())
    index = BM25Index.open(path)
    orchestrator = SearchOrchestrator(index)
    each = [timed(lambda clue=clue: orchestrator.search([clue])) for clue in clues]
    is_mapped = str(path) in Path("/proc/self/maps").read_text()
    hits = sum(len(orchestrator.search([clue]).hits) for clue in clues)
    index.close()
    return {
        "build_s": build[0],
        "build_cpu_s": build[1],
        "open_s": opening[0],
        "clues_s": sum(wall for wall, _ in each),
        "clues_cpu_s": sum(cpu for _, cpu in each),
        "slowest_clue_s": max(wall for wall, _ in each),
        "file_mb": path.stat().st_size / 2**20,
        "memory_mapped": is_mapped,
        "hits": hits,
    }


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of the CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
