"""The commands `gruppo data list | show | prepare | check`. It parses and prints; no work is done here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from gruppo.config import load, parse_overrides
from gruppo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gruppo.data.quality import Measure

OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}

data = typer.Typer(help="Task sets: what there is, how a row looks, preparing them, what is wrong with them.",
                   no_args_is_help=True)  # fmt: skip

Reference = Annotated[str, typer.Argument(help="A data set, gym:NAME, file or folder, as in gsm8k:train[:1000].")]
Folder = Annotated[Path, typer.Option(help="Where the files of known data sets are.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch from the hub what is not there.")]


@data.command("list")
def list_sets(
    folder: Folder = Path("data"),
    gym: Annotated[bool, typer.Option("--gym", help="reasoning-gym's generators.")] = False,
) -> None:
    """The known data sets: their splits, how many rows were published, and whether their files are here."""
    from gruppo.data.gym import gym_names
    from gruppo.data.sources import SOURCES, find_files

    if gym:
        print("\n".join(f"gym:{name}" for name in gym_names()))
        return
    table = Table("data set", "split", "rows", "on the hub", "here")
    for name, source in SOURCES.items():
        for split, rows in source.num_rows.items():
            table.add_row(name, split, f"{rows:,}", source.hub, "yes" if find_files(name, split, folder) else "no")
    Console().print(table)


@data.command()
def show(
    reference: Reference,
    view: Annotated[str, typer.Option(help="task, sft or rl.")] = "task",
    count: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 3,
    model: Annotated[str, typer.Option(help="Whose chat template the views are in.")] = "tiny",
    folder: Folder = Path("data"),
    download: Download = False,
) -> None:
    """The first tasks as JSON lines: as they are, or as the rows of other trainers."""
    from gruppo.data.selection import Place, tasks_of
    from gruppo.data.views import rl_row, sft_row

    if view not in ("task", "sft", "rl"):
        raise ConfigError(f"--view {view}: expected task, sft or rl")
    tasks = tasks_of(reference, Place(folder, download), "train", count)
    tokenizer = None if view == "task" else _tokenizer(model)
    for task in tasks:
        row = vars(task) if tokenizer is None else (sft_row if view == "sft" else rl_row)(task, tokenizer)
        print(json.dumps(row, ensure_ascii=False, default=str))


@data.command()
def prepare(
    sources: Annotated[list[str], typer.Argument(help="Data sets or files, in their order before the shuffle.")],
    out: Annotated[Path, typer.Option(help="Gets train/combined_train.parquet and val/NAME.parquet.")] = Path("data"),
    folder: Folder = Path("data"),
    download: Download = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the shuffle.")] = 42,
    validation: Annotated[str, typer.Option(help="The validation file's data set; empty: none.")] = "aime24",
    unique: Annotated[bool, typer.Option("--unique", help="Leave out questions that came up before.")] = False,
) -> None:
    """One shuffled training file out of several data sets, and a validation file, with a count after every stage."""
    from gruppo.data.preparation import prepare as write
    from gruppo.data.selection import Place

    write(sources, out, Place(folder, download, seed=seed), print, validation, unique)


@data.command(context_settings=OVERRIDES)
def check(
    context: typer.Context,
    reference: Reference,
    against: Annotated[str, typer.Option(help="The evaluation tasks that must not be in it.")] = "",
    model: Annotated[str, typer.Option(help="Count tokens of this model; else characters are counted.")] = "",
    limit: Annotated[int | None, typer.Option("--context", min=1, help="The most that fits the model.")] = None,
    folder: Folder = Path("data"),
    download: Download = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """What is wrong with a data set; exit code 1 where a limit is passed, as in --limits.duplicate 0.

    Columns of your own file are mapped by --columns.result NAME.
    """
    from gruppo.data.quality import CheckConfig, Measure
    from gruppo.data.quality import check as look
    from gruppo.data.selection import Place, readings_of, tasks_of

    own = load(CheckConfig, [], parse_overrides(context.args))
    place = Place(folder, download, own.columns)
    measure = _measure(model, limit) if model else Measure(context=limit)
    evaluation = list(tasks_of(against, place, "test", own.num_tasks)) if against else []
    found = look(readings_of(reference, place, own.num_tasks), reference, evaluation, measure)
    print(json.dumps(found.as_dict(), ensure_ascii=False, default=str) if as_json else found.text())
    if not found.num_rows:
        raise DataError(f"{reference}: no rows to look at")
    if failures := found.failures(own.limits):
        print("failed: " + "; ".join(failures), file=sys.stderr)
        sys.exit(1)


def _tokenizer(model: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    from gruppo.training.model import ModelConfig, base_of

    with base_of(ModelConfig(base=model)) as source:
        return AutoTokenizer.from_pretrained(source, local_files_only=True)


def _measure(model: str, limit: int | None) -> Measure:
    from gruppo.chat import render
    from gruppo.data.quality import Measure

    tokenizer = _tokenizer(model)

    def length(question: str) -> int:
        return len(render(tokenizer, [{"role": "user", "content": question}])[1])

    return Measure(length, "tokens", limit, tuple(map(str, tokenizer.all_special_tokens)))
