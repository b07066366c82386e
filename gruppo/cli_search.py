"""The commands `gruppo search "question" --corpus DIR | run | eval | compare | audit`. It parses and prints; no work is
done here.

`search` is a group whose first words, if they are no command of it, are those of `ask`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gruppo.cli_assess import OVERRIDES, ConfigFiles, RunPath
from gruppo.config import load, parse_overrides
from gruppo.errors import ConfigError, StoreError
from gruppo.log import Log
from gruppo.search_tables import one_line

DEFAULT = "ask"
Rounds = Annotated[Path, typer.Option(help="The checkpoints folder of searches to learn from.")]
Evaluation = Annotated[Path | None, typer.Option(help="Searches of other questions, all for evaluation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]


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
    as_json: AsJson = False,
) -> None:
    """Search round by round and answer; by rules, or by the models that a config gives the roles."""
    from gruppo.searching import asking

    own = asking.config_of(corpus, out, config or [], parse_overrides(context.args))
    found = asking.ask(question, own)
    if as_json:
        rows = [dataclasses.asdict(document) for document in found.documents]
        print(json.dumps(dataclasses.asdict(found.meta) | {"documents": rows}, ensure_ascii=False, indent=2))
        return
    print("\n".join(one_line(line, 10_000) for line in (found.meta.answer or "no answer was found").splitlines()))
    for document in found.documents:
        if document.label != "IRRELEVANT":
            print(f"  {document.label}  [{one_line(document.id, 200)}] {one_line(document.title, 200)}")
    print(f"{len(found.meta.rounds) - 1} rounds: {found.folder}")


@search.command("check", context_settings=OVERRIDES)
def check_training(
    context: typer.Context,
    rounds: Rounds = Path("checkpoints"),
    evaluation: Evaluation = None,
    config: ConfigFiles = None,
    as_json: AsJson = False,
) -> None:
    """Before `search train`: are there states, does the model load, does a group differ? Exit code 1 for a problem."""
    from gruppo.searching import checking, training

    found = []
    for finding in checking.check(training.config_of(rounds, evaluation, config or [], parse_overrides(context.args))):
        found.append(finding)
        if not as_json:
            print(finding)
    if as_json:
        print(json.dumps([{"ok": each.is_ok, "text": each.text} for each in found], ensure_ascii=False, indent=2))
    if not all(finding.is_ok for finding in found):
        raise typer.Exit(1)


@search.command("train", context_settings=OVERRIDES)
def train_executor(
    context: typer.Context,
    rounds: Rounds = Path("checkpoints"),
    evaluation: Evaluation = None,
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


@search.command("run", context_settings=OVERRIDES)
def run_searches(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Gets checkpoints/ and results.jsonl; what is there is not played again.")],
    config: ConfigFiles = None,
    split: Annotated[str, typer.Option(help="train, validation or test: whose questions are played.")] = "test",
    attempts: Annotated[int, typer.Option(min=1, help="Runs of each question.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Play whole searches of many questions with a config's team; trains nothing."""
    from gruppo.evaluation.search_runs import measure, measure_text
    from gruppo.run import RunConfig
    from gruppo.searching import playing

    own = load(RunConfig, config or [], parse_overrides(context.args))
    found = measure(playing.play_all(own, out, split, attempts, Log()))
    print(json.dumps(found, ensure_ascii=False, indent=2) if as_json else measure_text(found))
    print(f"a line for each run: {out / playing.RESULTS}", file=sys.stderr)


@search.command("eval", context_settings=OVERRIDES)
def evaluate_executor(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="RUN...", help="A run folder, or one for each training seed.")],
    baseline: Annotated[bool, typer.Option("--baseline", help="The team as the run began.")] = False,
    checkpoint: Annotated[int | None, typer.Option(help="A step's; default: the newest.")] = None,
    mode: Annotated[str, typer.Option(help="greedy or sampled (temperature 1).")] = "greedy",
    attempts: Annotated[int, typer.Option(min=1, help="Sets of clues per state.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Gets every attempt and the questions' rewards, as JSON.")] = None,
    as_json: AsJson = False,
) -> None:
    """How well a run's executor searches, on its evaluation states; with neither or both flags: before and after.

    Settings are laid over the run's own, as --tools.corpus of the evaluation's documents."""
    from gruppo.searching import assessing

    runs = [Path(word) for word in itertools.takewhile(lambda word: not word.startswith("--"), words)]
    if not runs:
        raise ConfigError(f"{words[0]}: name the runs before other settings: gruppo search eval RUN... --key value")
    overrides, sides = parse_overrides(words[len(runs) :]), assessing.sides_of(baseline, checkpoint)
    if out:
        require_writable(out)
    if len(runs) == 1:
        found = assessing.evaluate(runs[0], sides, mode, attempts, Log(), overrides)
        brief, text = _brief(found), assessing.evaluation_text(found)
    else:
        found = assessing.evaluate_seeds(runs, sides, mode, attempts, Log(), overrides)
        brief, text = found | {"runs": [_brief(each) for each in found["runs"]]}, assessing.seeds_text(found)
    if out:
        write_json(out, found)
    print(json.dumps(brief, ensure_ascii=False, indent=2) if as_json else text)


def _brief(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "attempts"}


@search.command("compare")
def compare_searches(
    before: Annotated[list[Path], typer.Option(help="A folder of search run; one for each seed, or one for all.")],
    after: Annotated[list[Path], typer.Option(help="The same, of the other side.")],
    as_json: AsJson = False,
) -> None:
    """Whole searches before and after, paired by question: answers, documents, recall, rounds, tokens."""
    from gruppo.evaluation.search_runs import compare_text
    from gruppo.searching import playing

    found = playing.compare_sides(before, after)
    print(json.dumps(found, ensure_ascii=False, indent=2) if as_json else compare_text(found))


@search.command("audit")
def audit_training(run: RunPath, as_json: AsJson = False) -> None:
    """Where a run's reward rose and the checker was wrong, of all that was played in its training."""
    from gruppo.evaluation.search_audit import audit_text
    from gruppo.searching import assessing

    found = assessing.audit_run(run)
    print(json.dumps(found, ensure_ascii=False, indent=2) if as_json else audit_text(found))


@search.command("merge")
def merge_checkpoints(
    run: RunPath,
    step: Annotated[list[int] | None, typer.Option(help="A checkpoint; repeat for more. Default: all of GRPO.")] = None,
    policy: Annotated[str, typer.Option(help="The policy whose adapters are merged.")] = "executor",
    out: Annotated[Path | None, typer.Option(help="Gets {base}-grpo-step{N}/. Default: RUN/merged.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add a run's adapters into the base: a whole model for each checkpoint, written on the CPU, never over another."""
    from gruppo.searching import merging

    found = merging.merge(run, step or [], policy, out, (lambda text: None) if as_json else print)
    if as_json:
        print(json.dumps([dataclasses.asdict(each) | {"folder": str(each.folder)} for each in found], indent=2))


def require_writable(path: Path) -> None:
    """Raises StoreError where a file can't be written, before there is something to write; leaves it as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise StoreError(f"--out {path}: can't be written: {error.strerror}") from None


def write_json(path: Path, value: Any) -> None:
    """Raises StoreError where it can't be written."""
    try:
        path.write_bytes(json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "replace"))
    except OSError as error:
        raise StoreError(f"--out {path}: can't be written: {error.strerror}") from None
