"""A ledger: cut anywhere it is gone on with, anything else in its place is refused in one line and left as it is."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.errors import StoreError
from gruppo.evaluation.ledger import open_ledger, read_ledger

HEADER = {"schema": "some/1", "tasks": "ab", "limits": (1, 2.5), "名": "值"}


@dataclass(frozen=True)
class Result:
    task: str
    attempt: int
    answer: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.attempt


RESULTS = [Result("a", 1, "x\n\u2028"), Result("a", 2), Result("b", 1, "杭州"), Result("a", 1, "again")]


def write(path: Path, results: list[Result], header: dict = HEADER) -> dict[tuple[str, int], Result]:
    """What there is once those that are not have been added."""
    with open_ledger(path, header, Result) as ledger:
        for result in results:
            ledger.append(result)
        return ledger.lines


def read(path: Path) -> dict[tuple[str, int], Result]:
    return read_ledger(path, "some/1", Result)[1]


def test_what_is_appended_comes_back_and_of_a_key_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "below" / "some.jsonl"
    lines = write(path, RESULTS)
    assert list(lines.values()) == [RESULTS[3], RESULTS[1], RESULTS[2]]
    assert read(path) == write(path, []) == lines and len(path.read_bytes().splitlines()) == 5
    assert read_ledger(path, "some/1", Result)[0] == json.loads(json.dumps(HEADER))
    assert write(path, [Result("b", 1)])["b", 1].answer is None
    write(path, [Result("c", 1, "\ud800")])
    assert read(path)["c", 1].answer == "?", "half a surrogate pair is in no file"
    odd = HEADER | {"名": "\ud800"}
    assert write(tmp_path / "odd", RESULTS[:1], odd) == write(tmp_path / "odd", [], odd)


def test_every_line_is_on_disk_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    with open_ledger(path, HEADER, Result) as ledger:
        for number, result in enumerate(RESULTS, 2):
            ledger.append(result)
            assert len(path.read_bytes().split(b"\n")[:-1]) == number
            assert read(path) == ledger.lines


def test_cut_at_any_byte_it_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    whole = write(path, RESULTS)
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at])
        num_kept = max(content[:at].count(b"\n") - 1, 0)
        assert write(path, RESULTS[num_kept:]) == whole and path.read_bytes() == content, at


@given(st.binary(), st.integers(0), st.booleans())
def test_bytes_from_elsewhere_are_refused_or_read_and_never_lost(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int, is_over: bool
) -> None:
    path = tmp_path_factory.mktemp("noise") / "some.jsonl"
    write(path, RESULTS)
    content = path.read_bytes()
    at %= len(content)
    spoilt = content[:at] + noise + content[at + len(noise) * is_over :]
    path.write_bytes(spoilt)
    try:
        write(path, [])
    except StoreError as error:
        assert "\n" not in str(error) and path.read_bytes() == spoilt
    else:
        assert path.read_bytes() == spoilt[: spoilt.rfind(b"\n") + 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tasks": "xy"}, 'holds results with another tasks: "ab", not "xy"; give another --out'),
        ({"limits": (1, 3)}, "another limits: [1, 2.5], not [1, 3]"),
        ({"more": True}, "another more: null, not true"),
        ({"tasks": "x" * 200}, f'"ab", not "{"x" * 28}…; give'),
        ({"schema": "other/1"}, "its first line is no header of other/1"),
    ],
)
def test_results_of_something_else_are_not_mixed(tmp_path: Path, change: dict, said: str) -> None:
    path = tmp_path / "some.jsonl"
    write(path, RESULTS)
    path.write_bytes(path.read_bytes() + b'{"half')
    before = path.read_bytes()
    with pytest.raises(StoreError, match=re.escape(said)):
        write(path, [], HEADER | change)
    with pytest.raises(StoreError, match="holds results with another 名"):
        write(path, [], {key: value for key, value in HEADER.items() if key != "名"})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b'{"mine": 1}', b'{"mine": 1}\n', b"[" * 100_000 + b"\n", b"\n", b"5\n", b"\xff\n"]
)
def test_a_foreign_file_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(content)
    for use in (write, lambda path, _: read(path)):
        with pytest.raises(StoreError, match="no header of some/1"):
            use(path, [])
    assert path.read_bytes() == content


@pytest.mark.parametrize("line", ["{oops", "", "[]", "7", '{"task": "a"}', '{"task": "a", "attempt": "1"}', "[" * 9999])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "some.jsonl"
    write(path, RESULTS[:1])
    path.write_text(f"{path.read_text()}{line}\n", encoding="utf-8")
    for use in (write, lambda path, _: read(path)):
        with pytest.raises(StoreError, match="line 3: .*; remove it, and its result is made again"):
            use(path, [])


def test_who_else_writes_it_or_can_not_be_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    with open_ledger(path, HEADER, Result), pytest.raises(StoreError, match="another process writes it"):
        write(path, [])
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another process writes it"):
            write(path, [])
    for place in (path / "below.jsonl", tmp_path):
        with pytest.raises(StoreError, match="can't be written: "):
            write(place, [])
    with pytest.raises(StoreError, match="can't be read: No such file"):
        read(tmp_path / "none.jsonl")


def test_a_full_disk_is_named_and_the_rest_is_added_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    write(path, RESULTS[:1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        with pytest.raises(StoreError, match=f"some.jsonl: can't be written: {os.strerror(27)}; the same command"):
            write(path, RESULTS[1:2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read(path) == {RESULTS[0].key: RESULTS[0]}
    write(path, RESULTS[1:])
    assert [line.key for line in read(path).values()] == [("a", 1), ("a", 2), ("b", 1)]
