"""Slices of data sets and mixtures of them, by weight."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.data.base import TaskSet
from gruppo.data.mixing import apportioned, mix
from gruppo.data.selection import Place, mixture, readings, tasks_of
from gruppo.data.splits import reference
from gruppo.errors import DataError
from gruppo.types import Task


def put(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", range(10)), ("[:3]", range(3)), ("[7:]", range(7, 10)), ("[2:5]", range(2, 5)), ("[-2:]", range(8, 10)),
        ("[:-8]", range(2)), ("[10%:20%]", range(1, 2)), ("[:50%]", range(5)), ("[90%:]", range(9, 10)),
        ("[-20%:]", range(8, 10)),
        ("[:]", range(10)), ("[5:1000]", range(5, 10)), ("[ 1 : 2 ]", range(1, 2)), ("[:25%]", range(2)),
        ("[:35%]", range(4)),
        ("[0:100%]", range(10)), ("[-1000:2]", range(2)), ("[10%:3]", range(1, 3)),
    ],
)  # fmt: skip
def test_slices(tmp_path: Path, text: str, expected: range) -> None:
    put(tmp_path / "gsm8k" / "train.jsonl", [{"question": f"q{n}", "answer": f"#### {n}"} for n in range(10)])
    put(tmp_path / "tasks.jsonl", [{"question": f"q{n}", "result": n} for n in range(10)])
    for name in ("gsm8k:train", "gsm8k", str(tmp_path / "tasks.jsonl")):
        assert [int(task.result) for task in tasks_of(name + text, Place(tmp_path))] == list(expected)
    assert [reading.number for reading in readings("gsm8k" + text, Place(tmp_path))] == [n + 1 for n in expected]


@given(st.integers(0, 50), st.integers(-60, 60) | st.none(), st.integers(-60, 60) | st.none())
def test_a_slice_is_pythons(size: int, start: int | None, stop: int | None) -> None:
    text = f"train[{'' if start is None else start}:{'' if stop is None else stop}]"
    assert list(reference(f"set:{text}").rows.rows(size)) == list(range(size))[start:stop]


@given(st.integers(0, 1000), st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_percentages_part_a_table_without_gaps(size: int, cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), 100]
    found = [
        row for a, b in zip(bounds, bounds[1:], strict=False) for row in reference(f"set[{a}%:{b}%]").rows.rows(size)
    ]
    assert found == list(range(size))


@pytest.mark.parametrize("text", "nq:train[1000]|nq[a:b]|nq[:120%]|nq[1:2:3]|nq[:5|nq[:5]]|nq]|nq[]|[:5]|".split("|"))
def test_what_is_no_slice(text: str) -> None:
    with pytest.raises(DataError, match="expected|between"):
        reference(text)


def test_how_many_and_none(tmp_path: Path) -> None:
    put(tmp_path / "gsm8k" / "train.jsonl", [{"question": f"q{n}", "answer": f"#### {n}"} for n in range(10)])
    assert len(tasks_of("gsm8k", Place(tmp_path), count=3)) == 3
    with pytest.raises(DataError, match=r"gsm8k\[5:5\]: no tasks"):
        tasks_of("gsm8k[5:5]", Place(tmp_path))


# ---- mixtures --------------------------------------------------------------------------------------------------------


def numbered(name: str, count: int) -> TaskSet:
    return TaskSet([Task(str(n), f"{name} {n}", "r", source=name) for n in range(count)], name)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    count=st.integers(1, 60) | st.none(),
)
def test_a_mixture_has_its_shares_and_no_task_twice(sizes: list[int], weights: list[float], count: int | None) -> None:
    sets = {f"s{n}": numbered(f"s{n}", size) for n, size in enumerate(sizes)}
    shares = dict(zip(sets, weights, strict=False))
    try:
        mixed = mix(sets, shares, 0, count)
    except DataError as error:
        assert "hold none of" in str(error)
        return
    counts = Counter(task.source for task in mixed)
    assert len({task.id for task in mixed}) == len(mixed) <= sum(sizes) and (count is None or len(mixed) <= count)
    for name, weight in shares.items():
        assert abs(counts[name] - len(mixed) * weight / sum(shares.values())) < 1
    assert [task.id for task in mixed] == [task.id for task in mix(sets, shares, 0, count)]


def test_mixtures_of_files(tmp_path: Path) -> None:
    put(tmp_path / "gsm8k" / "train.jsonl", [{"question": f"q{n}", "answer": f"#### {n}"} for n in range(30)])
    put(tmp_path / "own.jsonl", [{"question": f"o{n}", "result": n} for n in range(100)])
    own = str(tmp_path / "own.jsonl")
    tasks = mixture({"gsm8k": 1, own: 3}, Place(tmp_path), "train", 40)
    assert Counter(task.source for task in tasks) == {"gsm8k": 10, "": 30} and tasks[0].id.startswith(("gsm8k/", own))
    assert len(mixture({"gsm8k": 1, own: 1}, Place(tmp_path), "train")) == 60
    with pytest.raises(DataError, match="weight of gsm8k = 0: expected a positive number"):
        mixture({"gsm8k": 0, own: 1}, Place(tmp_path), "train")
    assert apportioned(10, [1 / 3, 1 / 3, 1 / 3]) == [4, 3, 3]
