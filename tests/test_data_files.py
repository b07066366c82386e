"""Task sets and task files: order, epochs, fingerprints, and one line for every row that is wrong."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from gruppo.data.base import TaskSet
from gruppo.data.files import read_tasks
from gruppo.errors import DataError
from gruppo.types import Task


def numbered(count: int) -> TaskSet:
    return TaskSet([Task(str(index), f"question {index}", str(index)) for index in range(count)], "numbered")


def ids(tasks) -> list[str]:
    return [task.id for task in tasks]


def test_a_task_set_is_a_sequence():
    tasks = numbered(5)
    assert len(tasks) == 5 and tasks[1].id == "1" and tasks[-1].id == "4" and tasks[0] in tasks
    assert isinstance(tasks[:2], TaskSet) and ids(tasks[:2]) == ["0", "1"] and ids(tasks[::-2]) == ["4", "2", "0"]
    assert ids(tasks[:1].concat(tasks[3:], tasks[1:2])) == ["0", "3", "4", "1"]


def test_shuffling_is_seeded_and_leaves_the_original():
    tasks = numbered(50)
    assert ids(tasks.shuffle(1)) == ids(tasks.shuffle(1)) != ids(tasks.shuffle(2))
    assert sorted(ids(tasks.shuffle(1))) == sorted(ids(tasks)) and ids(tasks)[:3] == ["0", "1", "2"]
    assert ids(numbered(5).shuffle(0)) == ["2", "0", "3", "4", "1"], "the order of a seed is part of a run: keep it"


def test_the_fingerprint_follows_content_and_order_only():
    tasks = numbered(3)
    assert tasks.fingerprint == TaskSet(list(tasks), "other name").fingerprint
    assert len({tasks.fingerprint, tasks[::-1].fingerprint, tasks[:2].fingerprint}) == 3
    one, same = (TaskSet([Task("1", "q", "r", extra_info=info)]) for info in ({"a": 1, "b": [2]}, {"b": [2], "a": 1}))
    assert one.fingerprint == same.fingerprint
    assert tasks.fingerprint == "5a9c768590d1b3c8a24a0cf15c633cc899fa2593e1535938cb1549452c730762"


def test_what_is_no_task_set():
    with pytest.raises(DataError, match="numbered: no tasks"):
        numbered(0)
    with pytest.raises(DataError, match="rows 2 and 3 have the same id 'a'"):
        TaskSet([Task("b", "q", "r"), Task("a", "q", "r"), Task("a", "q", "r")])
    with pytest.raises(DataError, match=r"numbered \+ numbered: rows 1 and 3 have the same id '0'"):
        numbered(2).concat(numbered(2))


@given(count=st.integers(1, 12), size=st.integers(1, 30), seed=st.integers(0, 5))
def test_batches_walk_through_whole_epochs(count, size, seed):
    tasks = numbered(count)
    walked = [id for step in range(count) for id in ids(tasks.batch(step, size, seed))]
    assert len(walked) == count * size
    for epoch in range(size):
        assert sorted(walked[epoch * count : (epoch + 1) * count]) == sorted(ids(tasks))


def test_a_batch_depends_on_nothing_but_its_step():
    tasks = numbered(100)
    late = ids(tasks.batch(77, 8, seed=3))
    assert late == ids(numbered(100).batch(77, 8, seed=3)) != ids(tasks.batch(77, 8, seed=4))
    first, second = ids(tasks.batch(0, 100, 0)), ids(tasks.batch(1, 100, 0))
    assert first != second, "each epoch has its own order"
    for step, size in ((-1, 1), (0, 0)):
        with pytest.raises(ValueError, match="expected step >= 0 and size >= 1"):
            tasks.batch(step, size, 0)


ROWS = [
    {"id": "a", "question": "2+2?", "chain": "2+2=4", "result": "4", "source": "mine", "extra_info": {"level": 1}},
    {"id": "b", "question": 'é,\n"x"?', "chain": "", "result": "1,234", "source": "mine", "extra_info": {"level": 2}},
]
TASKS = [Task(**row) for row in ROWS]


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(row | {"extra_info": json.dumps(row["extra_info"])} for row in rows)
    return path


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.json", "tasks.csv", "tasks.PARQUET", "tasks.parquet"])
def test_every_kind_of_file_gives_the_same_tasks(tmp_path, name):
    path = write(tmp_path / name.lower(), ROWS).rename(tmp_path / name)
    tasks = read_tasks(path)
    assert list(tasks) == TASKS and tasks.fingerprint == TaskSet(TASKS).fingerprint


def test_a_folder_is_read_by_split(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / f"{split}-00000-of-00002.parquet", [ROWS[0] | {"id": f"{split} 0"}])
        write(tmp_path / f"{split}-00001-of-00002.parquet", [ROWS[1] | {"id": f"{split} 1"}])
    assert (
        ids(read_tasks(tmp_path)) == ["train 0", "train 1"] and ids(read_tasks(tmp_path, split="test"))[0] == "test 0"
    )
    with pytest.raises(DataError, match=r"no split 'tset': did you mean test\?"):
        read_tasks(tmp_path, split="tset")


def save_as_datasets_does(folder: Path, rows: list[dict], **state: object) -> None:
    """What `Dataset.save_to_disk` writes: Arrow streams and a state that names them in their order."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05d}-of-00002.arrow" for n in range(2)]
    for name, part in zip(names, (rows[:1], rows[1:]), strict=True):
        table = pyarrow.Table.from_pylist(part)
        with pyarrow.OSFile(str(folder / name), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    files = [{"filename": name} for name in names]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_fingerprint": "f"} | state))
    (folder / "dataset_info.json").write_text("{}")


def test_a_data_set_that_was_saved_to_disk(tmp_path):
    save_as_datasets_does(tmp_path / "one", ROWS)
    assert list(read_tasks(tmp_path / "one")) == TASKS
    for split in ("train", "test"):
        save_as_datasets_does(tmp_path / "both" / split, ROWS if split == "test" else ROWS[::-1])
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert (
        list(read_tasks(tmp_path / "both")) == TASKS[::-1]
        and list(read_tasks(tmp_path / "both", split="test")) == TASKS
    )
    save_as_datasets_does(tmp_path / "indexed", ROWS, _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match=r"indexed: saved with an index beside it; save it again after flatten_indices"):
        read_tasks(tmp_path / "indexed")
    (tmp_path / "one" / "data-00000-of-00002.arrow").write_bytes(b"text")
    with pytest.raises(DataError, match="data-00000-of-00002.arrow: not an Arrow file"):
        read_tasks(tmp_path / "one")


@pytest.mark.slow
def test_what_datasets_itself_saves_is_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs datasets, which comes with gruppo[parity]")
    own = datasets.Dataset.from_list(ROWS)
    own.save_to_disk(tmp_path / "one", num_shards=2)
    datasets.DatasetDict({"train": own, "test": own.select([1])}).save_to_disk(tmp_path / "both")
    assert (
        list(read_tasks(tmp_path / "one")) == TASKS and list(read_tasks(tmp_path / "both", split="test")) == TASKS[1:]
    )


def test_columns_are_mapped_the_rest_kept_and_ids_filled_in(tmp_path):
    rows = [
        {"problem": "q1", "final": 3, "level": 5, "extra_info": {"x": 1}},
        {"problem": "q2", "final": ["a", 2.5]},
        {"problem": "q3", "final": "c", "id": 12, "chain": None},
    ]
    tasks = read_tasks(write(tmp_path / "t.jsonl", rows), columns={"question": "problem", "result": "final"})
    assert list(tasks) == [
        Task("1", "q1", "3", extra_info={"level": 5, "x": 1}),
        Task("2", "q2", "a; 2.5"),
        Task("12", "q3", "c"),
    ]


GOOD = '{"question": "q", "result": "r"}\n'


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("t.jsonl", "", ": no tasks"),
        ("t.jsonl", " \n\n", ": no tasks"),
        ("t.json", "[]", ": no tasks"),
        ("t.csv", "", ": no tasks"),
        ("t.csv", "question,result\n", ": no tasks"),
        ("t.json", "", " is not JSON: Expecting value"),
        ("t.jsonl", GOOD + "{oops", ": row 2 is not JSON: "),
        ("t.jsonl", GOOD + "\n" + GOOD, ": row 2 is not JSON: "),
        ("t.jsonl", "[" * 100_000, ": row 1 is not JSON: "),
        ("t.jsonl", '["q"]', ": row 1: expected an object with named columns, not [\'q\']"),
        ("t.json", '{"question": "q"}', ": expected a list of objects, not dict"),
        ("t.jsonl", GOOD + '{"questoin": "q", "result": "r"}', ": row 2: no column 'question': did you mean questoin?"),
        ("t.jsonl", '{"question": "q", "label": "r"}', ": row 1: no column 'result': known are label, question"),
        ("t.jsonl", '{"question": " ", "result": "r"}', ": row 1: column 'question' is empty"),
        ("t.jsonl", '{"question": 3, "result": "r"}', ": row 1: column 'question': expected text, not 3"),
        ("t.jsonl", '{"question": "\\ud800", "result": "r"}', ": row 1: column 'question': holds half a character"),
        ("t.jsonl", '{"question": "q", "result": null}', ": row 1: column 'result' is empty"),
        ("t.jsonl", '{"question": "q", "result": []}', ": row 1: column 'result' is empty"),
        ("t.jsonl", '{"question": "q", "result": ["a", ""]}', ": row 1: column 'result' is empty"),
        ("t.jsonl", '{"question": "q", "result": NaN}', ": row 1: column 'result': expected text, a number or a list"),
        ("t.jsonl", '{"question": "q", "result": true}', ": row 1: column 'result': expected text, a number or a list"),
        ("t.jsonl", '{"question": "q", "result": "r", "id": 1.5}', ": row 1: column 'id': expected text, not 1.5"),
        ("t.jsonl", '{"question": "q", "result": "r", "extra_info": "x"}', ": row 1: column 'extra_info' is not JSON"),
        ("t.jsonl", '{"question": "q", "result": "r", "extra_info": [1]}', ": row 1: column 'extra_info': expected"),
        ("t.jsonl", GOOD + '{"id": "1", "question": "q", "result": "r"}', ": rows 1 and 2 have the same id '1'"),
        ("t.csv", "question,result\nq,r\nq\n", ": row 2 has 1 values for 2 columns"),
        ("t.csv", "question,result,question\nq,r,s\n", ": column 'question' is in the header twice"),
        ("t.csv", 'question,result\nq,"r', ": line 2 is not CSV: "),
        ("t.parquet", "text", ": not a Parquet file: "),
        ("t.txt", GOOD, ": unknown kind of file '.txt'"),
        ("t.jsonI", GOOD, ": unknown kind of file '.jsoni': did you mean .json?"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}{expected}") and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_or_wrongly_mapped(tmp_path):
    path = write(tmp_path / "tasks.jsonl", ROWS)
    with pytest.raises(DataError, match=r"task.jsonl: no such file: did you mean tasks.jsonl\?$"):
        read_tasks(tmp_path / "task.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no .jsonl, .json, .csv, .parquet, .arrow in it, and no data set saved"):
        read_tasks(tmp_path / "empty")
    with pytest.raises(DataError, match=r"a file has no split 'test'; leave it out, as in .*tasks.jsonl\[:100\]"):
        read_tasks(path, split="test")
    with pytest.raises(DataError, match=r"columns: 'results' is not a column of a task: did you mean result\?"):
        read_tasks(path, {"results": "x"})
    with pytest.raises(DataError, match=r"row 1: no column 'sauce': did you mean source\?"):
        read_tasks(path, {"source": "sauce"})
    path.write_bytes(GOOD.encode() + b"\xff")
    with pytest.raises(DataError, match=f"byte {len(GOOD)} is not UTF-8 text"):
        read_tasks(path)
