"""Rows as the tool's users have them, as tasks and back: raw questions and answers, SFT rows, RL rows, known data sets.

Both views of a row have the same prompt, by the model's own chat template. Reading files and rendering are done
elsewhere (`gruppo.data`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer

from gruppo.config import suggest
from gruppo.data.base import TaskSet
from gruppo.data.files import task_of
from gruppo.data.gsm8k import read_gsm8k, split_answer
from gruppo.data.selection import GYM, Place, tasks_of
from gruppo.data.sources import SOURCES, usual_split
from gruppo.data.splits import reference
from gruppo.data.views import rl_row, sft_row
from gruppo.errors import DataError
from gruppo.tool.parameters import BASE_MODEL
from gruppo.training.model import ModelConfig, base_of
from gruppo.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Row = Mapping[str, Any]
VIEWS = {"sft": sft_row, "rl": rl_row}
GYM_SPLITS = ("train", "validation", "test")

_STEP = re.compile(r"^\W*step\s*[0-9]", re.IGNORECASE | re.MULTILINE)
_RENDERED = re.compile(r"<\|\w+\|>|\[INST\]|<start_of_turn>")


@dataclass(frozen=True)
class Wanted:
    """Which tasks: a registered name or a reference of docs/data.md, or rows; a part of them; the most that are."""

    dataset: str
    split: str
    max_samples: int | None
    place: Place
    rows: Iterable[Row] | None = None
    usual: str = "train"  # the split of a known set that is meant where none is named


def choose(wanted: Wanted, registered: Mapping[str, Iterable[Row]]) -> TaskSet:
    """The tasks that are wanted, each with its working in steps. Raises DataError for what is not there."""
    rows, name = wanted.rows, "custom_dataset"
    if rows is None and wanted.dataset in registered:
        rows, name = registered[wanted.dataset], wanted.dataset
    if rows is None:
        text, split = reference_of(wanted)
        tasks: Sequence[Task] = tasks_of(text, wanted.place, split, wanted.max_samples)
        return TaskSet(map(in_steps, tasks), text)
    tasks = tasks_from(rows, name)
    meant = reference("rows" + (wanted.split if wanted.split[:1] in ("", "[") else f":{wanted.split}"))
    if meant.split not in ("", "train"):
        raise DataError(f"split = {wanted.split!r}: {name} has rows of one split, train; leave it out")
    of_split = meant.rows.rows(len(tasks))
    return TaskSet([tasks[index] for index in of_split][: wanted.max_samples], name)


def reference_of(wanted: Wanted) -> tuple[str, str]:
    """What is wanted as a reference, and the split of a generator."""
    name, split = wanted.dataset, wanted.split
    if name.startswith(GYM):
        if split and split not in GYM_SPLITS:
            raise DataError(f"split = {split!r}: a generator's splits are {', '.join(GYM_SPLITS)}; set max_samples too")
        return name, split or wanted.usual
    meant = reference(name)
    if split and (meant.split or not meant.rows.is_all):
        raise DataError(f"split = {split!r}: dataset = {name!r} says which part is meant already; leave one out")
    is_file = Path(name).is_file()
    if not split and name in SOURCES:
        split = wanted.usual if wanted.usual in SOURCES[name].files else usual_split(name)
    if is_file and split.partition("[")[0] == "train":
        split = split.removeprefix("train")
    return name + (split if split[:1] in ("", "[") else f":{split}"), ""


def tasks_from(rows: Iterable[Row], name: str) -> list[Task]:
    """Rows of any of the four kinds as tasks: question and answer (worked, or the answer alone); RL rows with
    ground_truth; SFT rows with prompt and completion; our own columns. Other columns are kept in extra_info.

    Raises DataError that names the first broken row.
    """
    found = [_task(f"{name}: row {number}", number, row) for number, row in enumerate(rows, 1)]
    if not found:
        raise DataError(f"{name}: no rows; at least one is needed")
    return [in_steps(replace(task, source=task.source or name)) for task in found]


def _task(place: str, number: int, row: Row) -> Task:
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: expected columns and values, not {type(row).__name__}")
    own = dict(row)
    if "ground_truth" in own:
        task = task_of(place, number, own, {"question": _question_of(place, own), "result": "ground_truth"})
        full = own.get("full_answer") or own.get("answer")
        return replace(task, chain=task.chain or _working(str(full or "")))
    if {"prompt", "completion"} <= own.keys():
        task = task_of(place, number, own, {"question": "prompt", "result": "completion"})
        return replace(task, extra_info={**task.extra_info, "prompt": own["prompt"], "completion": own["completion"]})
    if "result" not in own and {"question", "answer"} <= own.keys():
        if not isinstance(own["answer"], str) or "####" not in own["answer"]:
            return task_of(place, number, own, {"result": "answer"})
        try:
            task = read_gsm8k(own, number - 1)
        except DataError as error:
            raise DataError(f"{place}: {error}") from error
        others = {key: value for key, value in own.items() if key not in ("question", "answer", "id")}
        return replace(task, id=str(own.get("id", number)), source="", extra_info={**others, **task.extra_info})
    if {"question", "result"} <= own.keys():
        return task_of(place, number, own, {})
    there = ", ".join(map(str, own)) or "none"
    kinds = "question and answer; question and ground_truth; or prompt and completion"
    raise DataError(f"{place}: columns are {there}; expected {kinds}")


def _question_of(place: str, row: Row) -> str:
    if "question" in row:
        return "question"
    if "prompt" not in row:
        raise DataError(f"{place}: no column 'question'{suggest('question', map(str, row))}")
    if _RENDERED.search(str(row["prompt"])):
        raise DataError(f"{place}: its prompt is in a chat template already; add the bare text as column 'question'")
    return "prompt"


def _working(full_answer: str) -> str:
    """What stands before the final answer."""
    if "####" in full_answer:
        return split_answer(full_answer)[0]
    return full_answer.partition("Final Answer:")[0].strip()


def in_steps(task: Task) -> Task:
    """The task, each line of its working begun with "Step n: "; formulas over several lines are left as they are."""
    lines = [line.strip() for line in task.chain.splitlines() if line.strip()]
    if not lines or _STEP.search(task.chain) or "\\" in task.chain or "$$" in task.chain:
        return task
    return replace(task, chain="\n".join(f"Step {number}: {line}" for number, line in enumerate(lines, 1)))


def as_lines(tasks: Iterable[Task]) -> str:
    """The content of a file that `tasks.train` may name."""
    rows = (asdict(replace(task, extra_info=dict(task.extra_info))) for task in tasks)
    return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


def tokenizer_of(model_name: str, allow_download: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a base. Raises ConfigError if it is not here."""
    with base_of(ModelConfig(base=model_name, allow_download=allow_download)) as source:
        return AutoTokenizer.from_pretrained(source, local_files_only=not allow_download)


def format_math_dataset(
    dataset: Any,
    format_type: str = "sft",
    model_name: str = BASE_MODEL,
    tokenizer: PreTrainedTokenizerBase | None = None,
    allow_download: bool = False,
) -> Any:
    """Rows with `question` and `answer` ("working #### answer") as rows for SFT or RL, by a model's chat template.

    A `datasets.Dataset` comes back as one; of any other rows, a list. `tokenizer` goes before `model_name`.
    Raises DataError for a broken row or format, ConfigError for a model that is not here.
    """
    if format_type not in VIEWS:
        raise DataError(f"format_type = {format_type!r}: no such format{suggest(format_type, VIEWS)}")
    tokenizer = tokenizer or tokenizer_of(model_name, allow_download)
    rows = [VIEWS[format_type](task, tokenizer) for task in tasks_from(dataset, "dataset")]
    return rows if isinstance(dataset, list | tuple) else type(dataset).from_list(rows)


class GSM8KDataset(Sequence[dict[str, str]]):
    """GSM8K as rows for SFT or RL; its files are below `data_folder`, or fetched if `allow_download`."""

    def __init__(
        self,
        split: str = "train",
        max_samples: int | None = None,
        format_type: str = "sft",
        model_name: str = BASE_MODEL,
        data_folder: str = "data",
        allow_download: bool = False,
    ) -> None:
        place = Place(Path(data_folder), allow_download)
        tasks = choose(Wanted("gsm8k", split, max_samples, place), {})
        tokenizer = tokenizer_of(model_name, allow_download)
        self.rows = [VIEWS[format_type](task, tokenizer) for task in tasks]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]


def create_sft_dataset(max_samples: int | None = 1000, split: str = "train", **options: Any) -> GSM8KDataset:
    """GSM8K's rows for SFT; `options` as of GSM8KDataset."""
    return GSM8KDataset(split, max_samples, "sft", **options)


def create_rl_dataset(max_samples: int | None = 500, split: str = "train", **options: Any) -> GSM8KDataset:
    """GSM8K's rows for RL; `options` as of GSM8KDataset."""
    return GSM8KDataset(split, max_samples, "rl", **options)
