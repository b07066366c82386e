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

from gruppo.cli_assess import OVERRIDES, ConfigFiles, RunPath
from gruppo.config import parse_overrides

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


@search.command("check", context_settings=OVERRIDES)
def check_training(
    context: typer.Context,
    config: ConfigFiles = None,
    rounds: Annotated[
        Path | None, typer.Option(help="The checkpoints folder of searches. Default: tasks.rounds.folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Before a training: are there states, does the model load, does one group differ? Exit code 1 for a problem."""
    from gruppo.searching import checking

    own = checking.config_of(config or [], rounds, parse_overrides(context.args))
    found = []
    for finding in checking.check(own):
        found.append(finding)
        if not as_json:
            print(finding)
    if as_json:
        print(json.dumps([{"ok": each.is_ok, "text": each.text} for each in found], ensure_ascii=False, indent=2))
    if not all(finding.is_ok for finding in found):
        raise typer.Exit(1)


@search.command("merge")
def merge_checkpoints(
    run: RunPath,
    step: Annotated[list[int] | None, typer.Option(help="A checkpoint; repeat for more. Default: all of GRPO.")] = None,
    policy: Annotated[str, typer.Option(help="The policy whose adapters are merged.")] = "executor",
    out: Annotated[Path | None, typer.Option(help="Gets {base}-grpo-step{N}/. Default: RUN/merged.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Add a run's adapters into the base: a whole model for each checkpoint, written on the CPU, never over another."""
    from gruppo.searching import merging

    found = merging.merge(run, step or [], policy, out, (lambda text: None) if as_json else print)
    if as_json:
        print(json.dumps([dataclasses.asdict(each) | {"folder": str(each.folder)} for each in found], indent=2))
