"""The commands `gruppo bench | compare | mistakes | judge`. It parses and prints; no work is done here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gruppo.config import load, parse_overrides
from gruppo.errors import ConfigError
from gruppo.log import Log

OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}

ConfigFiles = Annotated[
    list[Path] | None, typer.Option("--config", "-c", help="TOML file; several are laid over each other.")
]
RunPath = Annotated[Path, typer.Argument(help="A run folder.")]


def bench(
    context: typer.Context,
    task: Annotated[list[str] | None, typer.Option(help="A benchmark, as gpqa; repeat for more. Default: all.")] = None,
    run: Annotated[Path | None, typer.Option(help="A run folder: its config and its newest weights.")] = None,
    config: ConfigFiles = None,
    data: Annotated[Path, typer.Option(help="The folder with the benchmarks' files.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="Where the items go; what is there is not played again.")] = Path("bench"),
    limit: Annotated[int | None, typer.Option(min=1, help="The most items of each.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """The ten benchmarks of the AgentFlow table: ten steps, 300 seconds, temperature 0; every item counts."""
    from gruppo import assess
    from gruppo.data.selection import Place
    from gruppo.evaluation.benchmarks import bench_table

    own = assess.bench_config(config or [], run, parse_overrides(context.args))
    found = assess.bench(own, task or [], Place(data), out, run, limit, Log())
    print(json.dumps(found, indent=2) if as_json else bench_table(found), end="\n" if as_json else "")
    print(f"a line for each item, with its answer: {out}/NAME.jsonl", file=sys.stderr)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs of the same tasks, each with a seed of its own.")],
    mode: Annotated[str, typer.Option(help="greedy or sampled (temperature 1).")] = "greedy",
    k: Annotated[int, typer.Option(min=1, help="The k of accuracy@k.")] = 1,
    page: Annotated[Path | None, typer.Option(help="Also write an HTML page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Before training, after demonstrations, after GRPO, over several seeds: a table with intervals and verdicts."""
    from gruppo import assess
    from gruppo.evaluation.comparison import text_table, write_comparison

    found = assess.compare_runs(runs, mode, k)
    if page:
        write_comparison(page, found, f"{len(runs)} runs, {mode}")
    print(json.dumps(found, indent=2) if as_json else text_table(found), end="\n" if as_json else "")


def mistakes(
    context: typer.Context,
    run: RunPath,
    mode: Annotated[str, typer.Option(help="greedy or sampled (temperature 1).")] = "greedy",
    judge: Annotated[
        str, typer.Option(help="An OpenAI-compatible address, whose model is asked where the rules can't tell.")
    ] = "",
    model: Annotated[str, typer.Option(help="The judge's name there. Its options: --judge.max_calls 100, ...")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """What goes wrong in a run's evaluations, by kind, before and after training."""
    from gruppo import assess
    from gruppo.evaluation.mistakes import mistake_report

    options = parse_overrides(context.args)
    if bool(judge) != bool(model) or (options and not judge):
        raise ConfigError("--judge: the judge is an address and a model's name there: --judge URL --model NAME")
    found = assess.mistakes_of(run, mode, assess.mistake_judge(judge, model, options) if judge else None)
    print(json.dumps(found, indent=2) if as_json else mistake_report(found), end="\n" if as_json else "")


judges = typer.Typer(help="The language model that judges answers.", no_args_is_help=True)


@judges.command("calibrate", context_settings=OVERRIDES)
def calibrate_judge(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="JSON lines: question, gold, prediction, perhaps correct.")],
    config: ConfigFiles = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """How far can the judge be trusted? Against answers of known worth, and against itself with the order swapped."""
    from gruppo.rewards.calibration import examine, table_of
    from gruppo.run import RunConfig, find_judge

    found = examine(find_judge(load(RunConfig, config or [], parse_overrides(context.args))), file)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table("what", "value", title=f"the judge on {file}")
    for row in table_of(found):
        table.add_row(*row)
    Console().print(table)


assessing: dict[Callable[..., None], dict[str, bool]] = {bench: OVERRIDES, compare: {}, mistakes: OVERRIDES}
"""The commands of their own, and what typer is to know of them."""
