"""The command `gruppo search "question" --corpus DIR`. It parses and prints; no work is done here.

`search` is a group whose first words, if they are no command of it, are those of `ask`.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gruppo.cli_assess import OVERRIDES, ConfigFiles
from gruppo.config import parse_overrides
from gruppo.errors import ConfigError
from gruppo.log import Log

DEFAULT = "ask"


class Asking(TyperGroup):
    """A group with a command that needs no name: `search "question"` is `search ask "question"`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # Any: the context is typer's own, or click's
        """Put the name where it is left out."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


search = typer.Typer(
    cls=Asking,
    no_args_is_help=True,
)


@search.callback()
def searching() -> None:
    """Deep search in your documents: gruppo search "question" --corpus DIR, the same as search ask."""


@search.command(DEFAULT, context_settings=OVERRIDES)
def ask_question(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="What to find out.")],
    corpus: Annotated[str, typer.Option(help='A folder of .txt and .md files, a .jsonl of passages, or "world".')],
    out: Annotated[Path, typer.Option(help="Gets checkpoints/{question}/run_{n}/ and index/.")] = Path("."),
    config: ConfigFiles = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Search round by round and answer; by rules, or by the models that a config gives the roles."""
    from gruppo.searching import asking

    own = asking.config_of(corpus, out, config or [], parse_overrides(context.args))
    found = asking.ask(question, own)
    if as_json:
        rows = [dataclasses.asdict(document) for document in found.documents]
        print(json.dumps(dataclasses.asdict(found.meta) | {"documents": rows}, ensure_ascii=False, indent=2))
        return
    print(found.meta.answer or "no answer was found")
    for document in found.documents:
        if document.label != "IRRELEVANT":
            print(f"  {document.label}  [{document.id}] {document.title}")
    print(f"{len(found.meta.rounds) - 1} rounds: {found.folder}")


@search.command("train", context_settings=OVERRIDES)
def train_executor(
    context: typer.Context,
    rounds: Annotated[Path, typer.Option(help="The checkpoints folder of searches to learn from.")] = Path(
        "checkpoints"
    ),
    evaluation: Annotated[Path | None, typer.Option(help="Searches of other questions, all for evaluation.")] = None,
    config: ConfigFiles = None,
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/executor"),
    epochs: Annotated[int | None, typer.Option(min=1, help="How often each state is taken.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, with its own config.")] = False,
) -> None:
    """Train the executor, who writes the search clues, on the SEARCH rounds of earlier searches; the rest is frozen."""
    from gruppo.searching import training

    overrides = parse_overrides(context.args)
    if resume and (overrides or config or epochs or evaluation):
        raise ConfigError("--resume: a resumed run goes on with its own config; give --out alone")
    if resume:
        summary = training.resume(out, Log())
    else:
        summary = training.train(training.config_of(rounds, evaluation, config or [], overrides, epochs), out, Log())
    print(json.dumps({key: value for key, value in summary.items() if key != "notes"}, indent=2))
    print(f"report: {out / 'report.html'}")
