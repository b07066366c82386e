"""The data sets that are known by name: where their files belong, what they hold, and which reader understands them.

The table is all there is to it: a set is one entry here and one function from a row to a task. Nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gruppo.config import suggest
from gruppo.data.choices import read_gpqa, read_medqa
from gruppo.data.game24 import read_game24
from gruppo.data.gsm8k import read_gsm8k
from gruppo.data.mathematics import read_aime, read_amc, read_dapo, read_deepmath
from gruppo.data.open_questions import read_2wiki, read_bamboogle, read_gaia, read_hotpotqa, read_musique, read_nq
from gruppo.data.tables import Row, rows_of, saved_files
from gruppo.errors import DataError
from gruppo.types import Task

Reader = Callable[[Row, int], Task | str]
"""A row and its number (from 0) to its task, or to the reason why it is left out. Raises DataError for a broken row."""


@dataclass(frozen=True)
class Source:
    """A published data set.

    `files` says for each split, the usual one first, where the hub's repository `hub` has it; `num_rows` are the
    published counts (docs/data.md says where); `columns` are all that is read, where the others are large. `repeats`:
    the same problem is there many times, and is taken once.
    """

    read: Reader
    hub: str
    files: Mapping[str, str]
    num_rows: Mapping[str, int]
    columns: tuple[str, ...] = ()
    repeats: bool = False


FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
_BENCHMARK = "the file test/{name}/data/data.json of AgentFlow's repository"

SOURCES: dict[str, Source] = {
    "gsm8k": Source(
        read_gsm8k,
        "openai/gsm8k",
        {"train": "main/train-*.parquet", "test": "main/test-*.parquet"},
        {"train": 7473, "test": 1319},
    ),
    "deepmath": Source(
        read_deepmath,
        "zwhe99/DeepMath-103K",
        {"train": "data/train-*.parquet"},
        {"train": 103022},
        ("question", "Problem", "final_answer", "Answer", "difficulty", "topic"),
    ),
    "nq": Source(
        read_nq,
        FLASHRAG,
        {split: f"nq/{split}.jsonl" for split in ("train", "dev", "test")},
        {"train": 79168, "dev": 8757, "test": 3610},
        ("id", "question", "golden_answers"),
    ),
    "aime24": Source(read_aime, "Maxwell-Jia/AIME_2024", {"train": "aime_2024_problems.parquet"}, {"train": 30}),
    "dapo": Source(
        read_dapo,
        "BytedTsinghua-SIA/DAPO-Math-17k",
        {"train": "data/dapo-math-17k.parquet"},
        {"train": 1791700},
        repeats=True,
    ),
    "hotpotqa": Source(
        read_hotpotqa,
        FLASHRAG,
        {"dev": "hotpotqa/dev.jsonl", "train": "hotpotqa/train.jsonl"},
        {"dev": 7405, "train": 90447},
    ),
    "2wiki": Source(
        read_2wiki,
        FLASHRAG,
        {"dev": "2wikimultihopqa/dev.jsonl", "train": "2wikimultihopqa/train.jsonl"},
        {"dev": 12576, "train": 15000},
    ),
    "musique": Source(
        read_musique,
        FLASHRAG,
        {"dev": "musique/dev.jsonl", "train": "musique/train.jsonl"},
        {"dev": 2417, "train": 19938},
    ),
    "bamboogle": Source(read_bamboogle, FLASHRAG, {"test": "bamboogle/test.jsonl"}, {"test": 125}),
    # Beside it are the same rows again, by level: metadata.level1.parquet and so on.
    "gaia": Source(
        read_gaia, "gaia-benchmark/GAIA", {"validation": "2023/validation/metadata.parquet"}, {"validation": 165}
    ),
    "gpqa": Source(
        read_gpqa,
        "Idavidrein/gpqa",
        {name: f"gpqa_{name}.csv" for name in ("diamond", "main", "extended")},
        {"diamond": 198, "main": 448, "extended": 546},
    ),
    "medqa": Source(
        read_medqa,
        "GBaker/MedQA-USMLE-4-options",
        {"test": "phrases_no_exclude_test.jsonl", "train": "phrases_no_exclude_train.jsonl"},
        {"test": 1273, "train": 10178},
    ),
    "amc23": Source(read_amc, "math-ai/amc23", {"test": "test-*.parquet"}, {"test": 40}),
    "gameof24": Source(read_game24, "nlile/24-game", {"train": "data/train-*.parquet"}, {"train": 1362}),
}

BENCHMARK_ROWS = {
    "2wiki": 200,
    "aime24": 30,
    "amc23": 40,
    "bamboogle": 125,
    "gaia": 127,
    "gameof24": 300,
    "gpqa": 300,
    "hotpotqa": 100,
    "medqa": 300,
    "musique": 200,
}
"""How many rows AgentFlow's benchmark files have, which any of these readers takes as `benchmark` split. They are
test/<name>/data/data.json of lupantech/AgentFlow, counted."""


def source_of(name: str) -> Source:
    """The entry of a name. Raises DataError with the nearest name."""
    if name not in SOURCES:
        raise DataError(f"{name!r}: no such data set{suggest(name, SOURCES)}")
    return SOURCES[name]


def usual_split(name: str) -> str:
    """The split that is meant where none is named."""
    return next(iter(source_of(name).files))


def find_files(name: str, split: str, folder: Path) -> list[Path]:
    """The files of a split below `folder`/`name`, laid out as on the hub, or named after the split; none if there are
    none.

    Raises DataError for a split that the set does not have.
    """
    source, own = source_of(name), folder / name
    if split != "benchmark" and split not in source.files:
        raise DataError(f"{name}: no split {split!r}{suggest(split, [*source.files, 'benchmark'])}")
    if split == "benchmark":
        patterns = ["data/data.json", "data.json", "benchmark.*"]
    else:
        patterns = [
            source.files[split],
            Path(source.files[split]).name,
            f"{split}.*",
            f"{split}-*",
            f"{split}/state.json",
        ]
    for pattern in patterns:
        if found := sorted(own.glob(pattern)):
            return saved_files(found[0].parent) if found[0].name == "state.json" else found
    return []


def where_to_put(name: str, split: str, folder: Path) -> str:
    """One line for a person whose files are not there: which file is missing, where it is to be had."""
    source, own = source_of(name), folder / name
    if split == "benchmark":
        return f"{name}: put {_BENCHMARK.format(name=name)} at {own / 'data.json'}"
    place = own / source.files[split]
    return (
        f"{name}: no {place}; put the file {source.files[split]} of the hub's data set {source.hub} there, "
        f"or any {own / split}.jsonl, .json, .csv or .parquet of its columns; or let it be fetched with --download"
    )


def rows_in(name: str, files: list[Path]) -> Iterator[Row]:
    """The rows of these files, one after another, only the columns that the reader needs."""
    columns = source_of(name).columns
    for path in files:
        yield from rows_of(path, columns)
