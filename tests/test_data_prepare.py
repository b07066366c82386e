"""From published sets to one file: rows, counts, order, and what is left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet
from test_data_sets import SETS, deepmath, flashrag, put

from gruppo.data.files import read_tasks
from gruppo.data.instruction import ANSWER_INSTRUCTION
from gruppo.data.preparation import order, prepare
from gruppo.data.selection import Place
from gruppo.errors import DataError

ROOT = Path(__file__).parents[1]
PERMUTATION = [3, 4, 2, 7, 6, 1, 5, 0]  # of numpy.random.default_rng(42)


def write_sets(folder: Path) -> None:
    put(folder / "nq/nq/train.jsonl", [flashrag(n, f"who {n}", [f"n{n}", "x"] if n != 3 else []) for n in range(7)])
    put(folder / "deepmath/data/train-00000-of-00002.parquet", [deepmath(f"d{n}", f"m{n}") for n in range(3)])
    put(folder / "deepmath/data/train-00001-of-00002.parquet", [deepmath(f"d{n}", f"m{n}") for n in range(3, 5)])
    put(folder / "aime24" / SETS["aime24"][0], SETS["aime24"][1])


def test_the_two_files(tmp_path: Path) -> None:
    write_sets(tmp_path)
    lines: list[str] = []
    training, validation = prepare(["nq", "deepmath"], tmp_path, Place(tmp_path, seed=42), lines.append, "aime24")
    assert (
        training.path == tmp_path / "train/combined_train.parquet"
        and validation.path == tmp_path / "val/aime24.parquet"
    )
    assert lines[:5] == [
        "nq: 6 rows, 1 left out (no answer); 79,168 were published",
        "deepmath: 5 rows; 103,022 were published",
        "concatenated: 11 rows",
        "shuffled (seed 42): 11 rows",
        "numbered: ids 0 to 10",
    ]
    assert lines[5].startswith(
        f"written: {training.path}, 11 rows (mathhard 5, nq 6), rows' sha256 {training.fingerprint[:8]}"
    )
    table = parquet.read_table(training.path)
    assert table.column_names == ["id", "question", "chain", "result", "source", "extra_info"]
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == list(range(11)) and training.by_source == {"nq": 6, "mathhard": 5}
    unshuffled = [f"who {n}?" for n in range(7) if n != 3] + [f"d{n}" for n in range(5)]
    assert [row["question"] for row in rows] == [unshuffled[n] for n in order(11, 42)] != unshuffled
    (first,) = (row for row in rows if row["question"] == "who 4?")
    assert first == {"id": first["id"], "question": "who 4?", "chain": "", "result": "n4; x", "source": "nq",
        "extra_info": {"ground_truth": "n4; x", "idx": 4}}  # fmt: skip
    (row,) = (row for row in parquet.read_table(validation.path).to_pylist() if row["result"] == "385")
    assert row["question"] == f"Count.\n\n{ANSWER_INSTRUCTION}" and row["source"] == "aime2024"
    assert row["extra_info"] == {"ground_truth": "385", "idx": 1, "original_problem": "Count."}
    assert len(read_tasks(training.path)) == 11, "what is written is a task file"
    assert sorted(path.name for path in training.path.parent.iterdir()) == ["combined_train.parquet"]


def test_the_same_seed_gives_the_same_file_and_another_another(tmp_path: Path) -> None:
    write_sets(tmp_path)
    outs = [prepare(["nq", "deepmath"], tmp_path / out, Place(tmp_path, seed=seed), print)[0] for out, seed in
            (("a", 42), ("b", 42), ("c", 43))]  # fmt: skip
    assert outs[0].fingerprint == outs[1].fingerprint != outs[2].fingerprint
    assert outs[0].path.read_bytes() == outs[1].path.read_bytes()
    assert order(8, 42) == PERMUTATION, "the order of a seed is part of the file: keep it"


@pytest.mark.slow
def test_the_order_is_that_of_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets, which comes with gruppo[parity]")
    rows = datasets.Dataset.from_dict({"row": list(range(1000))}).shuffle(seed=42)
    assert rows["row"][:] == order(1000, 42)


def test_slices_files_of_ones_own_and_repetitions(tmp_path: Path) -> None:
    write_sets(tmp_path)
    own = put(
        tmp_path / "own.jsonl", [{"question": q, "result": r} for q, r in (("d1", "m1"), ("D1 ", "m2"), ("new", 3))]
    )
    lines: list[str] = []
    (found,) = prepare(["deepmath[:3]", str(own)], tmp_path, Place(tmp_path), lines.append, unique=True)
    assert found.num_rows == 4 and lines[:2] == [
        "deepmath[:3]: 3 rows",
        f"{own}: 1 rows, 2 left out (a question that came up before)",
    ]
    assert prepare(["deepmath[:3]", str(own)], tmp_path, Place(tmp_path), lines.append)[0].num_rows == 6


def test_broken_rows_are_counted_by_reason(tmp_path: Path) -> None:
    own = put(
        tmp_path / "own.jsonl", [{"question": "q", "result": "r"}, {"question": " ", "result": "r"}, {"question": "q"}]
    )
    lines: list[str] = []
    assert prepare([str(own)], tmp_path, Place(tmp_path), lines.append)[0].num_rows == 1
    assert (
        "2 left out" not in lines[0]
        and "1 left out (column 'question' is empty" in lines[0]
        and "no column 'result'" in lines[0]
    )


def test_what_can_not_be_prepared(tmp_path: Path) -> None:
    write_sets(tmp_path)
    for sources, expected in [
        ([], "nothing to prepare: name data sets, of gsm8k"),
        (["nq", "gsm8k"], "gsm8k: no .*; put the file"),
        (["nq", "gsm9k"], "no such data set: did you mean gsm8k"),
        (["nq[3:4]"], "not one sound row, 1 left out"),
    ]:
        said: list[str] = []
        with pytest.raises(DataError, match=expected):
            prepare(sources, tmp_path, Place(tmp_path), said.append)
        assert len(said) <= 1, "what is missing is said before the work begins"
    (tmp_path / "train").write_text("in the way")
    with pytest.raises(DataError, match=r"can't be written: "):
        prepare(["nq"], tmp_path, Place(tmp_path), print)


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "prepare.py"), "--nq", "40", "--deepmath", "60"]
    done = subprocess.run([*command, "--json", str(tmp_path / "out.json")], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("100 rows from"), done.stderr
