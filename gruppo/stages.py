"""A run from beginning to end: evaluate the base, cold start, evaluate, reinforcement learning, evaluate, report.

Each finished stage is on disk before the next begins, so a resumed run starts at the first one that is not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gruppo.config import dump, load
from gruppo.data.base import TaskSet, family_of
from gruppo.demonstrations import choose_demonstrations, demonstrate
from gruppo.errors import CheckpointError, ConfigError, StoreError, UserError, boundary
from gruppo.evaluation.evaluate import evaluate
from gruppo.evaluation.metrics import compare, rollout_metrics, solved, summarise
from gruppo.evaluation.report import Example, ReportData, Stage, write_report
from gruppo.evaluation.wording import points
from gruppo.lints import lint
from gruppo.log import Log
from gruppo.monitors import check_monitors, watch
from gruppo.run import Assembly, RunConfig, assemble, make_tasks, of_families
from gruppo.store import Checkpoint, Run
from gruppo.training.alarms import Alarms
from gruppo.training.grpo import Parts, check, grpo
from gruppo.training.grpo import load as load_checkpoint
from gruppo.training.learner import Learner
from gruppo.training.sft import Shown, sft, short_enough
from gruppo.types import Group, Reward

STAGES: Mapping[str, str] = {"base": "before training", "sft": "after demonstrations", "final": "after GRPO"}
NUM_EXAMPLES = 3


def train(
    config: RunConfig, out: Path, resume: bool, log: Log, rewards: Mapping[str, Reward] = MappingProxyType({})
) -> dict[str, Any]:
    """Play all stages of a run in the folder `out`; returns the summary, which is also its report.json.

    `rewards` are functions of the caller's that [rewards] may name beside the built-in ones.
    Raises UserError for whatever the user can mend; nothing is written before the config has been put together.
    """
    started = time.monotonic()
    check_monitors(config.monitors, config.monitor)
    assembly = assemble(config, rewards)
    check(config.train, assembly.rollout, config.algorithm, config.credit)
    held_out = config.sft.eval_every if config.sft.steps else 0
    splits = {"train": True, "validation": config.train.eval_every or held_out, "test": config.eval.stages}
    tasks = {split: make_tasks(config, split) for split, used in splits.items() if used}
    shown = choose_demonstrations(config, tasks["train"]) if config.sft.steps else None
    tasks["train"] = of_families(tasks["train"], config.train.families, "train.families")
    begins = not (resume and Run.open(out).list_checkpoints())
    for found in lint(config) if begins else ():
        log.say(f"hint: {found}")
    if config.start_from and begins:
        start_from(Path(config.start_from), assembly.learner)
    try:
        with (
            Run.resume(out) if resume else Run.create(out, dump(config)) as run,
            watch(config.monitors, config.monitor, out, config, log.say, run.read_metrics()) as run.tell,
        ):
            stages = Stages(config, assembly, tasks, run, log)
            if begins:
                start = {policy: assembly.learner.fingerprint(policy) for policy in config.policies}
                run.write_json("start.json", start)
            start = run.read_json("start.json")
            stages.evaluate("base")
            checkpoint = run.latest_checkpoint()
            if shown and (checkpoint is None or checkpoint.state.get("stage") == "sft"):
                cold_start(stages, shown, checkpoint)
            if shown:
                stages.evaluate("sft")
            grpo(parts_of(stages), config.train)
            stages.evaluate("final")
            facts = {
                "seconds": round(time.monotonic() - started, 1),
                "resumed": resume,
                "changed": {
                    policy: assembly.learner.fingerprint(policy) != start[policy] for policy in config.policies
                },
                "base_unchanged": assembly.learner.fingerprint(None) == assembly.learner.base_fingerprint,
                "isolation": assembly.isolation,
            }
            run.write_json("facts.json", facts)
            return report(run)
    finally:
        assembly.close()


def start_from(path: Path, learner: Learner, key: str = "start_from") -> None:
    """Give the policies the weights of another run's newest checkpoint. Raises ConfigError, naming `key`, if they can't
    have them."""
    try:
        checkpoint = Run.open(path).latest_checkpoint()
        if checkpoint is None:
            raise CheckpointError(f"{path}: the run has no checkpoint yet")
        load_checkpoint(learner, checkpoint, only_policies=True)
    except (StoreError, CheckpointError) as error:
        raise ConfigError(f"{key}: {error}") from error


@dataclass(frozen=True)
class Stages:
    """What every stage of a run works with."""

    config: RunConfig
    assembly: Assembly
    tasks: Mapping[str, TaskSet]  # by split, those that the run uses
    run: Run
    log: Log

    def evaluate(self, stage: str) -> None:
        """Play the test split as the team now is, in the modes that are not on disk; between the ends, in the first."""
        modes = self.config.eval.modes if stage != "sft" else self.config.eval.modes[:1]
        missing = [mode for mode in modes if f"eval-{stage}-{mode}" not in self.run.list_episodes()]
        if not self.config.eval.stages or not missing:
            return
        for mode, groups in play(
            self.assembly, self.tasks["test"], missing, self.config, self.log, STAGES[stage]
        ).items():
            self.run.write_episodes(f"eval-{stage}-{mode}", groups)
            self.log.say(f"{STAGES[stage]}, {mode}: {sentence(groups)}")


def play(
    assembly: Assembly, tasks: TaskSet, modes: Sequence[str], config: RunConfig, log: Log, title: str
) -> dict[str, list[Group]]:
    """Evaluate with a progress bar over episodes; groups by mode."""
    attempts = config.eval.attempts
    with log.progress(f"{title}, {' and '.join(modes)}", len(tasks) * len(modes) * attempts, noun="episode") as bar:
        rollout = replace(assembly.rollout, on_episode=lambda episode: bar.advance(num_episodes=1))
        return evaluate(rollout, tasks, modes, attempts)


def sentence(groups: Sequence[Group]) -> str:
    """An evaluation in a few words."""
    found = summarise(groups, family_of)
    low, high = found["ci95"]
    return f"success {found['success']:.1%} (95% interval {low:.1%} to {high:.1%}) on {found['n']} tasks"


def cold_start(stages: Stages, chosen: TaskSet, checkpoint: Checkpoint | None) -> None:
    """Learn the demonstrations, from a checkpoint of doing so if there is one."""
    config, learner, run, own = stages.config, stages.assembly.learner, stages.run, stages.config.sft
    shown = demonstrate(config, stages.assembly, chosen)
    rows = short_enough(shown, own.max_length)
    if left_out := sum(map(len, shown.values())) - sum(map(len, rows.values())):
        stages.log.say(f"sft.max_length = {own.max_length}: {left_out} demonstrations are longer, and left out")
    held_out = demonstrate(config, stages.assembly, stages.tasks["validation"]) if own.eval_every else {}
    learner.start_optimizers(dict.fromkeys(rows, own.learning_rate))
    if checkpoint:
        load_checkpoint(learner, checkpoint)
    done = checkpoint.step if checkpoint else 0
    run.truncate_metrics(lambda record: record.get("stage") != "sft" or record["step"] <= done)
    for record in sft(learner, Shown(rows, held_out), own, config.seed, stages.log, done):
        run.append_metrics(record)
        if own.save_every and record["step"] % own.save_every == 0:
            said = {"stage": "sft", "versions": dict(learner.versions), "base": learner.base_fingerprint}
            run.save_checkpoint(record["step"], learner.save, said)
            run.prune(config.train.keep_last)


def parts_of(stages: Stages) -> Parts:
    """What the reinforcement learning loop works with."""
    config, assembly = stages.config, stages.assembly

    def validate(step: int) -> dict[str, float]:
        held_out = stages.tasks["validation"]
        groups = play(assembly, held_out, ["greedy"], config, stages.log, f"validation at step {step}")
        found = summarise(groups["greedy"], family_of)
        return {"eval/success": found["success"], "eval/n": found["n"]}

    return Parts(
        run=stages.run,
        learner=assembly.learner,
        rollout=assembly.rollout,
        tasks=stages.tasks["train"],
        algorithm=config.algorithm,
        credit=config.credit,
        alarms=Alarms(config.alarms, config.train.attempts, config.train.updates),
        seed=config.seed,
        log=stages.log,
        measure=partial(rollout_metrics, family=family_of),
        evaluate=validate,
    )


def evaluate_run(path: Path, step: int | None, mode: str, log: Log) -> dict[str, Any]:
    """`gruppo eval`: a run's checkpoint (default: the newest) against the team it began with, on its test split."""
    with Run.open(path) as run:
        config = load(RunConfig, [path / "config.toml"])
        checkpoint = run.latest_checkpoint() if step is None else run.checkpoint(step)
        if checkpoint is None:
            raise ConfigError(f"{path}: the run has no checkpoint yet")
        assembly = assemble(config)
        try:
            begin_again(run, config, assembly.learner)
            tasks = make_tasks(config, "test")
            before = play(assembly, tasks, [mode], config, log, STAGES["base"])[mode]
            load_checkpoint(assembly.learner, checkpoint)
            after = play(assembly, tasks, [mode], config, log, f"step {checkpoint.step}")[mode]
        finally:
            assembly.close()
        found = {"before": summarise(before, family_of), "after": summarise(after, family_of)}
        return {"step": checkpoint.step, "mode": mode, **found, "comparison": compare(before, after)}


def begin_again(run: Run, config: RunConfig, learner: Learner) -> None:
    """Give fresh policies the weights that a run began with, those of `start_from` too. Raises ConfigError if that
    other run is not there any more, or has learnt since."""
    if not config.start_from:
        return
    start_from(Path(config.start_from), learner)
    if any(learner.fingerprint(policy) != began for policy, began in run.read_json("start.json").items()):
        raise ConfigError(f"start_from: {config.start_from} has learnt since {run.path} began with its weights")


def config_of(out: Path) -> Path:
    """The config file of an existing run."""
    return Run.open(out).path / "config.toml"


def report_of(path: Path, against: Sequence[Path]) -> dict[str, Any]:
    """`gruppo report`: as `report`, for a finished run. Raises UserError for one that is not."""
    if (path / "config.toml").is_file() and not (path / "facts.json").is_file():
        raise UserError(
            f"{path} has not ended, so there is no report yet: go on with gruppo train --resume --out {path}"
        )
    with Run.resume(Run.open(path).path) as run:  # opened first, whose error speaks of no resuming
        return report(run, against)


def report(run: Run, against: Sequence[Path] = ()) -> dict[str, Any]:
    """Write report.html and report.json from what the run has on disk; returns the latter.

    `against` are other runs of the same tasks; the summary then says how their trained teams did, task by task.
    """
    config = load(RunConfig, [run.path / "config.toml"])
    evaluations = {name: run.read_episodes(name) for name in run.list_episodes() if name.startswith("eval-")}
    summaries = {name.removeprefix("eval-"): summarise(groups, family_of) for name, groups in evaluations.items()}
    metrics = run.read_metrics()
    comparison = None
    if {"eval-base-greedy", "eval-final-greedy"} <= evaluations.keys():
        comparison = compare(evaluations["eval-base-greedy"], evaluations["eval-final-greedy"])
    summary = summarise_run(run, config, summaries, comparison, metrics)
    for other in against:
        set_against(summary, other, evaluations)
    run.write_json("report.json", summary)
    stages = [
        Stage(title, summaries[f"{name}-greedy"], summaries.get(f"{name}-sampled"))
        for name, title in STAGES.items()
        if f"{name}-greedy" in summaries
    ]
    demonstrated = set(config.sft.families) if config.sft.steps else set()
    data = ReportData(
        title=config.title,
        summary=summary,
        stages=stages,
        comparison=comparison,
        metrics=[record for record in metrics if record.get("stage") == "grpo"],
        examples=examples(evaluations),
        undemonstrated=set(config.tasks.families) - demonstrated if config.sft.families else set(),
    )
    write_report(run.path / "report.html", data)
    return summary


def summarise_run(
    run: Run, config: RunConfig, summaries: Mapping[str, Any], comparison: Any, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The content of report.json."""
    facts = run.read_json("facts.json")
    rates = {
        short: summaries[f"{stage}-greedy"]["success"]
        for short, stage in (("before", "base"), ("sft", "sft"), ("after", "final"))
        if f"{stage}-greedy" in summaries
    }
    roles = {
        name: {
            "rows": int(sum(record.get(f"rows/{role.policy}", 0) for record in metrics if record["stage"] == "grpo")),
            "changed": facts["changed"][role.policy],
            "trained": role.trained,
        }
        for name, role in config.roles.items()
        if role.policy is not None
    }
    summary: dict[str, Any] = {**rates, "n": 0, "seconds": facts["seconds"], "seed": config.seed, "roles": roles}
    if comparison:
        summary |= {key: comparison[key] for key in ("gain", "gain_ci95", "n")}
    sampled = {stage: summaries[f"{stage}-sampled"]["success"] for stage in STAGES if f"{stage}-sampled" in summaries}
    summary |= {"temperature_1": sampled, "base_unchanged": facts["base_unchanged"]}
    summary["by_family"] = {
        stage: {family: part["success"] for family, part in summaries[f"{stage}-greedy"].get("by_family", {}).items()}
        for stage in STAGES
        if f"{stage}-greedy" in summaries
    }
    summary["notes"] = notes(config, facts)
    return summary


def set_against(summary: dict[str, Any], other: Path, evaluations: Mapping[str, list[Group]]) -> None:
    """Add to a summary how another run's trained team does on the same tasks. Raises ConfigError if it has others."""
    with Run.open(other) as theirs:
        for mode in ("greedy", "sampled"):
            name = f"eval-final-{mode}"
            if name not in evaluations or name not in theirs.list_episodes():
                continue
            with boundary(ConfigError, f"--against {other}"):
                found = compare(theirs.read_episodes(name), evaluations[name])
            (low, high), rate = found["gain_ci95"], summarise(theirs.read_episodes(name), family_of)["success"]
            summary.setdefault("against", {}).setdefault(str(other), {})[mode] = {"success": rate, **found}
            verdict = "lower than here" if low > 0 else "higher than here" if high < 0 else "no measurable difference"
            summary["notes"].append(
                f"In comparison, {other.name} ({mode}) reaches {rate:.1%}: {verdict}. This run is ahead by "
                f"{points(found['gain'])} points (95% interval {points(low)} to {points(high)}, paired over "
                f"{found['n']} tasks)."
            )
    if str(other) not in summary.get("against", {}):
        raise ConfigError(f"--against {other}: no evaluation of a trained team that this run has too")


def notes(config: RunConfig, facts: Mapping[str, Any]) -> list[str]:
    """What a reader should know before quoting a figure."""
    frozen = [name for name, role in config.roles.items() if role.policy is None]
    kept = [name for name, role in config.roles.items() if role.policy is not None and not role.trained]
    found = [f"Base model: {config.model.base}. Python code ran in: {facts['isolation'] or 'no sandbox'}."]
    if facts["resumed"]:
        found.append("The run was resumed: the seconds are those of its last process.")
    if frozen:
        found.append(f"Played by the frozen base or a fixed engine: {', '.join(frozen)}.")
    if kept:
        found.append(f"Played by their policy but left alone by reinforcement learning: {', '.join(kept)}.")
    if not config.team.solver.answer_at_limit and config.team.program == "solver":
        found.append("An episode that runs out of steps has no answer and counts as failed.")
    return found


def examples(evaluations: Mapping[str, list[Group]]) -> list[Example]:
    """Tasks that the team failed before and solves now, of different families; else whatever there is."""
    before, after = (evaluations.get(f"eval-{stage}-greedy", []) for stage in ("base", "final"))
    earlier = {group.task.id: group.episodes[0] for group in before}
    pairs = [Example(earlier[g.task.id], g.episodes[0], g.task) for g in after if g.task.id in earlier]
    pairs.sort(key=lambda pair: -(bool(solved(pair.after)) - bool(solved(pair.before))))
    by_family: dict[str, Example] = {}
    for pair in pairs:
        by_family.setdefault(family_of(pair.task), pair)
    ranked = sorted(by_family.values(), key=lambda pair: -len(pair.after.turns))
    return ranked[:NUM_EXAMPLES]
