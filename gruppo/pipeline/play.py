"""A pipeline from beginning to end: prepare, SFT, evaluate, GRPO, evaluate, save. Only what is not up to date plays.

The training stages are ordinary runs (`stages.train`), GRPO's starting from SFT's weights: together they give, bit by
bit, what one `gruppo train` gives. A step that was killed goes on; a gate that fails ends the pipeline.
"""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gruppo.assess import compare_runs
from gruppo.config import dump
from gruppo.data.base import TaskSet, family_of
from gruppo.data.quality import check as look
from gruppo.data.selection import Reading
from gruppo.demonstrations import choose_demonstrations
from gruppo.errors import CheckpointError, GateError, GruppoError, StoreError, boundary
from gruppo.evaluation.comparison import markdown_table
from gruppo.evaluation.metrics import compare, summarise
from gruppo.export import export, num_same
from gruppo.log import Log
from gruppo.monitors import check_monitors
from gruppo.pipeline.recipe import Recipe, run_config
from gruppo.pipeline.results import FILE, Entry, Results, read_results, write_results
from gruppo.pipeline.steps import STEPS, Standing, inputs_of, paths_of, read_tasks, standings
from gruppo.run import RunConfig, assemble
from gruppo.stages import Stages, report, start_from, train
from gruppo.store import Checkpoint, Run
from gruppo.training.grpo import check
from gruppo.tuning.trial import claim
from gruppo.types import Turn

PATIENCE = 10.0  # seconds that a killed pipeline's processes may take to end
UNEVALUATED = {"eval": {"stages": False}}  # a training stage of a pipeline leaves evaluating to the others
Metrics = dict[str, Any]


@dataclass(frozen=True)
class Pipeline:
    """What every step works with."""

    recipe: Recipe
    out: Path
    tasks: Mapping[str, TaskSet]  # by split
    log: Log


def play_pipelines(recipes: Mapping[Path, Recipe], out: Path, log: Log) -> dict[str, Any]:
    """Bring several pipelines, by their folders, up to date, one after the other: the same recipe with other seeds.

    Writes base, SFT and GRPO over all of them into `out`: comparison.md, and comparison.json, which is returned. Raises
    as `play_pipeline`.
    """
    for folder, recipe in recipes.items():
        play_pipeline(recipe, folder, log)
    found = compare_runs([folder / "evaluation" for folder in recipes], "greedy", 1)
    with boundary(StoreError, f"the comparison can't be written into {out}"):
        (out / "comparison.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (out / "comparison.md").write_text(markdown_table(found), encoding="utf-8")
    return found


def play_pipeline(recipe: Recipe, out: Path, log: Log) -> Results:
    """Bring the pipeline in `out` up to date with its recipe; returns the content of training_results.json.

    Raises GateError where a gate fails, UserError for whatever the user can mend.
    """
    pipeline = Pipeline(recipe, out, read_tasks(recipe), log)
    standing_in(pipeline)
    with in_use(out):
        found, results = standing_in(pipeline)
        if any(standing.reason for standing in found):
            check_all(pipeline)
        for standing in found:
            if standing.reason:
                log.say(f"{standing.step}: {STEPS[standing.step]} ({standing.reason})")
                results = play_step(pipeline, standing, results)
            else:
                log.say(f"{standing.step}: up to date")
            results = pass_gate(pipeline, standing.step, results)
    return results


def standing_in(pipeline: Pipeline) -> tuple[list[Standing], Results]:
    """Where the steps stand in the pipeline's folder. Raises StoreError for a folder that is none, or holds others'."""
    recipe, out = pipeline.recipe, pipeline.out
    results = read_results(out) or Results(schema_version=1, title=recipe.title, seed=recipe.seed, steps={})
    for step, paths in paths_of(recipe).items():
        if step not in results.steps and (there := [path for path in paths.values() if (out / path).exists()]):
            raise StoreError(f"{out / there[0]} is there, but no {FILE} knows of it: pass another --out")
    results = results.model_copy(update={"title": recipe.title, "seed": recipe.seed})
    return standings(out, inputs_of(recipe, pipeline.tasks), results), results


@contextmanager
def in_use(out: Path) -> Iterator[None]:
    """Inside, no other process plays in the folder. Raises StoreError if one does."""
    with boundary(StoreError, f"{out} can't be a pipeline's folder"):
        out.mkdir(parents=True, exist_ok=True)
        (out / "pipeline.lock").touch()
    deadline = time.monotonic() + PATIENCE
    while (lock := claim(out / "pipeline.lock")) is None:
        if time.monotonic() > deadline:
            raise StoreError(f"{out} is in use by another process; wait for it, or pass another --out")
        time.sleep(0.1)
    with lock:
        yield


def check_all(pipeline: Pipeline) -> None:
    """Refuse before anything is written what a later step would refuse. Raises UserError."""
    config = run_config(pipeline.recipe)
    check_monitors(config.monitors, config.monitor)
    choose_demonstrations(config, pipeline.tasks["train"])
    assembly = assemble(config)
    try:
        check(config.train, assembly.rollout, config.algorithm, config.credit)
    finally:
        assembly.close()


def play_step(pipeline: Pipeline, standing: Standing, results: Results) -> Results:
    """Play one step, or go on with it; its entry is on disk before it begins and when it ends, however it ends."""
    step, out, started = standing.step, pipeline.out, time.monotonic()
    before = results.steps.get(step)
    if before and not (standing.goes_on and step != "save"):
        results = put(out, results, step, before.model_copy(update={"status": "stale"}))
        for path in before.paths.values():
            remove(out / path)
    entry = Entry(
        status="running",
        fingerprint=standing.fingerprint,
        inputs=dict(standing.inputs),
        paths=paths_of(pipeline.recipe)[step],
    )
    results = put(out, results, step, entry)
    gc.collect()  # the step before had a model of its own
    try:
        metrics = PLAY[step](pipeline)
    except GruppoError as error:
        put(out, results, step, entry.model_copy(update={"status": "failed", "message": str(error)}))
        raise
    done = {"status": "done", "metrics": metrics, "seconds": round(time.monotonic() - started, 1)}
    return put(out, results, step, entry.model_copy(update=done))


def put(out: Path, results: Results, step: str, entry: Entry) -> Results:
    """The results with another entry, on disk."""
    results = results.having(step, entry)
    write_results(out, results)
    return results


def remove(path: Path) -> None:
    """Delete a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# The steps -----------------------------------------------------------------------------------------------------------


def prepare(pipeline: Pipeline) -> Metrics:
    """Look at the training tasks, and at what they share with those of the test."""
    own, recipe = pipeline.tasks["train"], pipeline.recipe
    rows = (Reading(number, task) for number, task in enumerate(own, 1))
    found = look(rows, own.name, list(pipeline.tasks["test"]))
    return {
        "rows": {split: len(tasks) for split, tasks in pipeline.tasks.items()},
        "found": {kind: len(rows) for kind, rows in found.findings.items() if rows},
        "failures": found.failures(recipe.pipeline.limits),
    }


def evaluate_base(pipeline: Pipeline) -> Metrics:
    """Play the test tasks before any training."""
    return evaluate(pipeline, "base", pipeline.recipe.start_from)


def sft(pipeline: Pipeline) -> Metrics:
    """Learn the demonstrations."""
    off = {"steps": 0, "eval_every": 0}
    records = train_in(pipeline, "sft", run_config(pipeline.recipe, train=off, **UNEVALUATED))
    return {"steps": len(records), "first": records[0], "last": records[-1]}


def evaluate_sft(pipeline: Pipeline) -> Metrics:
    """Play the test tasks after SFT."""
    return evaluate(pipeline, "sft", str(pipeline.out / "sft"))


def grpo(pipeline: Pipeline) -> Metrics:
    """Reinforcement learning from the weights of SFT on."""
    config = run_config(pipeline.recipe, sft={"steps": 0}, **UNEVALUATED)
    config = config.model_copy(update={"start_from": str(pipeline.out / "sft")})
    records = train_in(pipeline, "grpo", config)
    episodes = sum(int(record["episodes"]) for record in records)
    return {"steps": len(records), "episodes": episodes, "first": records[0], "last": records[-1]}


def evaluate_grpo(pipeline: Pipeline) -> Metrics:
    """Play the test tasks after GRPO, and write a report of the whole into GRPO's run."""
    found = evaluate(pipeline, "final", str(pipeline.out / "grpo"))
    with Run.open(pipeline.out / "evaluation") as evaluated, Run.resume(pipeline.out / "grpo") as run:
        for old in (run.path / "episodes").glob("eval-*"):
            old.unlink()
        for name in evaluated.list_episodes():
            run.write_episodes(name, evaluated.read_episodes(name))
        report(run)
    return found


def save(pipeline: Pipeline) -> Metrics:
    """Export the policies after SFT and after GRPO, and have each play one recorded turn again."""
    own, model, found = pipeline.recipe.pipeline, pipeline.recipe.model, {}
    for run, stage, folder in (("sft", "sft", own.sft_output), ("grpo", "final", own.grpo_output)):
        target = pipeline.out / folder
        policies = export(model, newest(pipeline.out / run), own.save, target)
        turns = greedy_turns(pipeline.out / "evaluation", stage)
        for policy in policies:
            turn = turns.get(policy)
            same = num_same(model, target / policy, turn) if turn else 0
            found[f"{folder}/{policy}"] = {"tokens": len(turn.action_ids) if turn else 0, "same": same}
    return {"form": own.save, "played again": found}


PLAY: Mapping[str, Callable[[Pipeline], Metrics]] = {
    "prepare": prepare,
    "base": evaluate_base,
    "sft": sft,
    "sft-eval": evaluate_sft,
    "grpo": grpo,
    "grpo-eval": evaluate_grpo,
    "save": save,
}


def train_in(pipeline: Pipeline, name: str, config: RunConfig) -> list[dict[str, Any]]:
    """Train in the run folder `name`, or go on there; returns its metrics."""
    folder = pipeline.out / name
    train(config, folder, (folder / "config.toml").exists(), pipeline.log)
    return [record for record in Run.open(folder).read_metrics() if record.get("stage") == name]


def evaluate(pipeline: Pipeline, stage: str, weights: str) -> Metrics:
    """Play the test tasks with the newest weights of the run `weights`, fresh ones without; figures by mode."""
    config, folder = run_config(pipeline.recipe), pipeline.out / "evaluation"
    assembly = assemble(config)
    try:
        if weights:
            start_from(Path(weights), assembly.learner)
        is_there = (folder / "config.toml").exists()
        with Run.resume(folder) if is_there else Run.create(folder, dump(config)) as run:
            Stages(config, assembly, pipeline.tasks, run, pipeline.log).evaluate(stage)
            names = {mode: f"eval-{stage}-{mode}" for mode in config.eval.modes}
            groups = {mode: run.read_episodes(name) for mode, name in names.items() if name in run.list_episodes()}
            base = run.read_episodes("eval-base-greedy")
    finally:
        assembly.close()
    found: Metrics = {mode: summarise(own, family_of) for mode, own in groups.items()}
    return found if stage == "base" else found | {"gain over base": compare(base, groups["greedy"])}


def newest(folder: Path) -> Checkpoint:
    """The newest checkpoint of a run. Raises CheckpointError if there is none."""
    checkpoint = Run.open(folder).latest_checkpoint()
    if checkpoint is None:
        raise CheckpointError(f"{folder}: the run has no checkpoint; remove the folder, and start the pipeline again")
    return checkpoint


def greedy_turns(folder: Path, stage: str) -> dict[str, Turn]:
    """Policy -> the first greedy turn that it played in an evaluation."""
    found: dict[str, Turn] = {}
    for group in Run.open(folder).read_episodes(f"eval-{stage}-greedy"):
        for turn in (turn for episode in group.episodes for turn in episode.turns):
            if turn.policy and turn.action_ids:
                found.setdefault(turn.policy, turn)
    return found


# Gates ---------------------------------------------------------------------------------------------------------------


def pass_gate(pipeline: Pipeline, step: str, results: Results) -> Results:
    """Judge what a step measured, each time anew; raises GateError if it is not enough to go on."""
    entry = results.steps[step]
    message = gate(pipeline, step, entry)
    judged = entry.model_copy(update={"status": "gate failed" if message else "done", "message": message})
    if judged != entry:
        results = put(pipeline.out, results, step, judged)
    if message:
        raise GateError(f"{pipeline.out}, {step}: {message}")
    return results


def gate(pipeline: Pipeline, step: str, entry: Entry) -> str:
    """Why what a step measured is not enough, or nothing. Raises StoreError for metrics that are no pipeline's."""
    with boundary(StoreError, f"{pipeline.out / FILE}: the metrics of {step} are damaged"):
        return GATES[step](pipeline.recipe, entry.metrics) if step in GATES else ""


def data_gate(recipe: Recipe, metrics: Mapping[str, Any]) -> str:
    """Why the tasks are not to be trained on."""
    failures = "; ".join(metrics["failures"])
    return f"{failures} (pipeline.limits); see gruppo data check, mend the tasks or raise the limit" if failures else ""


def accuracy_gate(recipe: Recipe, metrics: Mapping[str, Any]) -> str:
    """Why GRPO is not to begin."""
    found, least = metrics["greedy"], recipe.pipeline.sft_accuracy_threshold
    if found["success"] >= least:
        return ""
    low, high = found["ci95"]
    return (
        f"accuracy after SFT is {found['success']:.3f} (95% interval {low:.3f} to {high:.3f}, n {found['n']}), below "
        f"pipeline.sft_accuracy_threshold = {least:g}, so GRPO was not started; give SFT more steps, demonstrations or "
        "another learning rate, or lower the threshold (0 is no gate)"
    )


def save_gate(recipe: Recipe, metrics: Mapping[str, Any]) -> str:
    """Why what was saved is not what was trained."""
    for folder, played in metrics["played again"].items():
        if played["same"] < played["tokens"]:
            return (
                f"{folder} was saved and loaded, and plays another token than the policy did at place "
                f"{played['same'] + 1} of {played['tokens']}: do not use it"
                + ('; pipeline.save = "adapters" rounds nothing' if recipe.pipeline.save == "merged" else "")
            )
    return ""


GATES: Mapping[str, Callable[[Recipe, Mapping[str, Any]], str]] = {
    "prepare": data_gate,
    "sft-eval": accuracy_gate,
    "save": save_gate,
}
