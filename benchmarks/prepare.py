"""How long `prepare` takes and how much memory, on generated rows of the full size and shape of NQ and DeepMath-103K.

    python benchmarks/prepare.py [--nq 79168] [--deepmath 103022] [--folder FOLDER] [--seed 42] [--json FILE]

NQ is JSON lines as FlashRAG has it; DeepMath is Parquet with its three long solutions, which are never read. Both are
prepared twice, each time in a process of its own, whose peak of resident memory the system tells; the two files have to
be the same.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow
from pyarrow import parquet

MAX_SECONDS, MAX_BYTES = 90, 1.5 * 10**9
WORDS = "the of river film who first was king did which city when number series author in song team year play".split()
LIMIT = r"Evaluate the limit: \[ \lim_{{x \to {0}}} \frac{{x^{1} - {2}}}{{\sqrt{{x + {3}}} - {4}}} \]"
SUM = r"Find the value of \( \sum_{{n={0}}}^{{\infty}} \frac{{{1}}}{{n^{2} + {3}}} \) for the group of order {4}."
ROWS_AT_ONCE = 2000


def nq_rows(count: int, seed: int) -> Iterator[dict]:
    """Rows as of FlashRAG's nq/train.jsonl: questions of eight to twelve words without a question mark."""
    draw = random.Random(seed)
    for index in range(count):
        question = " ".join(draw.choices(WORDS, k=draw.randint(8, 12))) + f" {index}"
        answers = [" ".join(draw.choices(WORDS, k=2)) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
        yield {"id": f"train_{index}", "question": question, "golden_answers": answers}


def deepmath_rows(count: int, seed: int) -> Iterator[dict]:
    """Rows as of DeepMath-103K, with solutions of some 3,000 characters each."""
    draw = random.Random(seed)
    working = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=60_000))
    for index in range(count):
        numbers = [draw.randint(1, 99) for _ in range(4)] + [index]
        starts = [draw.randrange(50_000) for _ in range(3)]
        answer = draw.choice(("Yes", "No", r"\frac{1}{2}", r"\infty", str(index), str(draw.randint(-9, 9))))
        yield {
            "question": draw.choice((LIMIT, SUM)).format(*numbers),
            "final_answer": answer,
            "difficulty": draw.randint(6, 18) / 2,
            "topic": "Mathematics -> Calculus -> Limits",
            **{f"r1_solution_{n + 1}": working[start : start + 3000] for n, start in enumerate(starts)},
        }


def generate(folder: Path, num_nq: int, num_deepmath: int, seed: int) -> None:
    """Write both sets where `prepare` looks for them."""
    (folder / "nq" / "nq").mkdir(parents=True)
    with (folder / "nq" / "nq" / "train.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in nq_rows(num_nq, seed))
    path = folder / "deepmath" / "data" / "train-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    rows = deepmath_rows(num_deepmath, seed)
    writer = None
    while batch := [row for _, row in zip(range(ROWS_AT_ONCE), rows, strict=False)]:
        table = pyarrow.Table.from_pylist(batch)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer:
        writer.close()


CHILD = """
import sys
from pathlib import Path
from gruppo.data.preparation import prepare
from gruppo.data.selection import Place
out, folder, seed = sys.argv[1:]
found = prepare(["nq", "deepmath"], Path(out), Place(Path(folder), seed=int(seed)), print)
print(found[0].num_rows, found[0].fingerprint)
"""


def prepare_once(folder: Path, out: Path, seed: int) -> dict:
    """Prepare in a process of its own: seconds, its peak of resident bytes, rows and fingerprint."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", CHILD, str(out), str(folder), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    num_rows, fingerprint = done.stdout.split()[-2:]
    return {
        "seconds": seconds,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_bytes": after.ru_maxrss * 1024,  # of the largest child so far
        "num_rows": int(num_rows),
        "fingerprint": fingerprint,
    }


def main() -> None:
    """Generate, prepare twice, compare, print; exit code 1 where a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nq", type=int, default=79168)
    parser.add_argument("--deepmath", type=int, default=103022)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--folder", type=Path, help="where the generated sets are kept; default: a temporary folder")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        if not (folder / "nq").exists():
            generate(folder, given.nq, given.deepmath, given.seed)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        runs = [prepare_once(folder, Path(temporary) / f"out{n}", given.seed) for n in range(2)]
    peak = max(run["peak_bytes"] for run in runs)
    slowest = max(run["seconds"] for run in runs)
    kept = {
        "rows": runs[0]["num_rows"] == given.nq + given.deepmath,
        "the same twice": runs[0]["fingerprint"] == runs[1]["fingerprint"],
        f"at most {MAX_SECONDS} s": slowest <= MAX_SECONDS,
        f"at most {MAX_BYTES / 1e9:g} GB": peak <= MAX_BYTES,
    }
    cpu = max(run["cpu_seconds"] for run in runs)
    print(
        f"{runs[0]['num_rows']:,} rows from {size / 1e6:,.0f} MB: {slowest:.1f} s ({cpu:.1f} s of processor), "
        f"peak {peak / 1e6:,.0f} MB"
    )
    print(", ".join(f"{name}: {'yes' if is_kept else 'NO'}" for name, is_kept in kept.items()))
    if given.json:
        given.json.write_text(json.dumps({"runs": runs, "input_bytes": size, "kept": kept}, indent=2) + "\n")
    sys.exit(0 if all(kept.values()) else 1)


if __name__ == "__main__":
    main()
