"""The commands `gruppo pipeline plan | run`. It parses and prints; no work is done here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gruppo.config import parse_overrides
from gruppo.errors import ConfigError
from gruppo.log import Log

if TYPE_CHECKING:
    from gruppo.pipeline.recipe import Recipe

OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}

pipelines = typer.Typer(
    help="SFT, then GRPO, evaluated around each, with gates; again, it does only what changed: docs/pipeline.md.",
    no_args_is_help=True,
)

RecipeFile = Annotated[Path, typer.Argument(help="A run's TOML file, perhaps with a table [pipeline]; or config.json.")]
Out = Annotated[Path, typer.Option(help="The pipeline's folder; with --seeds one for each is in it.")]
Seeds = Annotated[list[int] | None, typer.Option(help="One pipeline for each of several seeds: --seeds 0 1 2.")]


@pipelines.command(context_settings=OVERRIDES)
def plan(
    context: typer.Context,
    config: RecipeFile,
    out: Out = Path("runs/pipeline"),
    seeds: Seeds = None,
    measure: Annotated[bool, typer.Option("--measure", help="Play a small probe, for time.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """What would be played, why, and what it takes; what is up to date. Plays nothing."""
    from gruppo.pipeline import plan as plans

    own = recipes(config, out, seeds, context.args)
    found = [plans.plan(recipe, folder, Log(), measure) for folder, recipe in own.items()]
    if as_json:
        print(json.dumps([one.to_json() for one in found] if seeds else found[0].to_json(), indent=2))
        return
    for one in found:
        print("\n".join([f"{one.folder}:", *map(plans.words_of, one.lines), plans.totals(one)]))
    for note in found[0].notes:
        print(note)


@pipelines.command(context_settings=OVERRIDES)
def run(context: typer.Context, config: RecipeFile, out: Out = Path("runs/pipeline"), seeds: Seeds = None) -> None:
    """Play what is not up to date, and end with a table. Exit code 1: a gate failed; 2: something to mend."""
    from gruppo.evaluation.comparison import text_table
    from gruppo.pipeline.play import play_pipelines

    own = recipes(config, out, seeds, context.args)
    try:
        found = play_pipelines(own, out, Log())
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        sys.exit(130)
    print(text_table(found), end="")
    print(f"table: {out / 'comparison.md'}")
    for folder in own:
        print(f"results: {folder / 'training_results.json'}")


def recipes(file: Path, out: Path, seeds: Sequence[int] | None, words: Sequence[str]) -> dict[Path, Recipe]:
    """The recipe of each seed by its folder; without --seeds, of the one in the file."""
    from gruppo.pipeline.recipe import read_recipe

    if not seeds:
        return {out: read_recipe(file, parse_overrides(words))}
    more, flags = apart(words)
    overrides, every = parse_overrides(flags), [*seeds, *more]
    if "seed" in overrides:
        raise ConfigError("--seed and --seeds: keep one")
    if twice := [seed for place, seed in enumerate(every) if seed in every[:place]]:
        raise ConfigError(f"--seeds: {twice[0]} is given twice; keep one")
    return {out / f"seed-{seed}": read_recipe(file, overrides | {"seed": str(seed)}) for seed in every}


def apart(words: Iterable[str]) -> tuple[list[int], list[str]]:
    """Whole numbers that no flag stands before, which are seeds, and all other words."""
    numbers: list[int] = []
    others: list[str] = []
    takes_value = False
    for word in words:
        if not takes_value and word.removeprefix("-").isdecimal():
            numbers.append(int(word))
            continue
        others.append(word)
        takes_value = word.startswith("--") and "=" not in word
    return numbers, others
