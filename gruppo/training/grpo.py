"""The hub: reinforcement learning of a team, from tasks to better policies, read top to bottom.

Take tasks, roll out, filter groups, credit every turn, batch, log-probs and loss, step, sync the engine, log, save,
evaluate. It knows no algorithm: those are functions chosen by name in what it calls. Every draw is a function of
(seed, step), so a run that is killed and resumed goes the same way as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from gruppo.algorithms import NEEDS_AVERAGE, AlgorithmConfig, CreditConfig, clashes
from gruppo.algorithms.batching import rows_of, shares_of
from gruppo.algorithms.credit import Terms, assign, followed, leave_out_stale
from gruppo.config import Config, suggest
from gruppo.data.base import TaskSet
from gruppo.errors import CheckpointError, ConfigError, UserError
from gruppo.log import Log
from gruppo.rollout import Rollout
from gruppo.store import Checkpoint, Run
from gruppo.training.alarms import Alarms, AlarmsConfig
from gruppo.training.curriculum import Curriculum, Kind
from gruppo.training.learner import Learner
from gruppo.training.sampling import collect, kl_penalties
from gruppo.training.update import Coefficients, Step, adapted, update
from gruppo.types import Group

PATIENCE = 10  # steps in a row without any signal before the run stops with a hint


class GRPOConfig(Config):
    """The loop's sizes and rhythm."""

    steps: int = Field(40, ge=0)
    """Rollouts and, with `updates` 1, optimizer steps of each policy."""
    episodes: int = Field(0, ge=0)
    """Training ends with the step that reaches this many episodes, whatever `steps` says; 0: no such limit."""
    families: list[str] = []
    """Question families that tasks are taken from; empty: all."""
    curriculum: Kind = "none"
    """"none": every task comes as often as any other. Else a step's tasks are dealt to the families by what the last
    steps tell of them: "signal", by the chance that a group holds both successes and failures; "learnability", by the
    variance of success; "failures", by the share that fails, which soon finds a family's first successes."""
    tasks_per_step: int = Field(16, ge=1)
    """Groups per step."""
    attempts: int = Field(8, ge=2)
    """Episodes per group: a group of one has no baseline."""
    updates: int = Field(1, ge=1)
    """Optimizer steps per rollout, each on its own share of the groups; 1 is on-policy."""
    warmup_steps: int = Field(2, ge=0)
    """Steps over which the learning rate rises."""
    decay_steps: int = Field(0, ge=0)
    """The last of `steps`, over which it falls towards 0; between the two it is constant."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    microbatch_tokens: int = Field(16384, ge=1)
    """Padded tokens of one forward pass."""
    save_every: int = Field(10, ge=1)
    """Steps between checkpoints; the last step is always saved."""
    keep_last: int = Field(2, ge=1)
    """Checkpoints kept."""
    eval_every: int = Field(0, ge=0)
    """Steps between evaluations on the validation split; 0: none."""


@dataclass(frozen=True)
class Parts:
    """What the loop works with; `run.py` puts it together."""

    run: Run
    learner: Learner
    rollout: Rollout
    tasks: TaskSet
    algorithm: AlgorithmConfig
    credit: CreditConfig
    seed: int
    log: Log
    measure: Callable[[Sequence[Group]], dict[str, float]]  # rollouts -> metrics
    evaluate: Callable[[int], dict[str, float]]  # step -> metrics on held-out tasks
    alarms: Alarms = field(default_factory=lambda: Alarms(AlarmsConfig(), attempts=1))
    # These two change as training goes on, and are part of a checkpoint.
    coefficients: dict[str, Coefficients] = field(default_factory=dict)  # by policy
    averages: dict[str, Mapping[str, float]] = field(default_factory=dict)  # of rewards: role -> family -> average


def grpo(parts: Parts, config: GRPOConfig) -> None:
    """Train until `config.steps` or `config.episodes`, from the newest checkpoint of the run if there is one.

    Raises CheckpointError for a checkpoint of another base, UserError when nothing can be learnt.
    """
    run, learner, algorithm = parts.run, parts.learner, parts.algorithm
    size, whole = (config.tasks_per_step, config.attempts), algorithm.ratio_level.startswith("sequence")
    (start, episodes), idle = begin(parts), 0
    tasks = Curriculum(config.curriculum, parts.tasks, config.attempts, grpo_records(run))
    with parts.log.progress("grpo", config.steps, start) as progress:
        for step in range(start, config.steps):
            if config.episodes and episodes >= config.episodes:
                break
            started = time.monotonic()
            played, kept, greedy = collect(parts.rollout, tasks, algorithm, step, size, parts.seed)
            record: dict[str, Any] = {"stage": "grpo", "step": step + 1, **parts.measure(played)}
            record["seconds/rollout"] = time.monotonic() - started

            undo = way_back(parts) if parts.alarms.may_skip else None
            record |= credit_turns(parts, config, kept, greedy, step)
            rows = {policy: rows_of(kept, policy, whole) for policy in learner.policies}
            record["groups/dropped"] = len(played) - len({row.episode[0] for own in rows.values() for row in own})

            scale = rate_at(step, config)
            for policy, own in rows.items():
                how = Step(
                    algorithm, parts.coefficients[policy], scale, config.max_grad_norm, config.microbatch_tokens, step
                )
                record |= update(learner, policy, shares_of(own, config.updates), how)
                record[f"learning_rate/{policy}"] = learner.policies[policy].learning_rate * scale
                parts.coefficients[policy] = adapted(parts.coefficients[policy], algorithm, record, policy)

            # No engine to sync: the learner hands the local one the new weights when it next samples this version.
            idle = 0 if any(rows.values()) else idle + 1
            if idle == PATIENCE:
                raise UserError(
                    f"no group had a signal in {PATIENCE} steps: all rewards equal; easier tasks or more attempts?"
                )
            record["seconds/step"] = time.monotonic() - started
            run.write_episodes(f"grpo-{step + 1:06d}", played)
            if config.eval_every and (step + 1) % config.eval_every == 0:
                record |= parts.evaluate(step + 1)
            stop = obey(parts, record, undo)
            run.append_metrics(record)
            tasks.observe(record)
            episodes += int(record["episodes"])
            last = step + 1 == config.steps or episodes >= config.episodes > 0
            if (step + 1) % config.save_every == 0 or last or stop:
                run.save_checkpoint(step + 1, learner.save, state(parts, step + 1))
                run.prune(config.keep_last)
            if stop:
                raise UserError(f"stopped at step {step + 1}: {stop}")
            progress.advance(
                num_episodes=sum(len(group.episodes) for group in played),
                reward_mean=record.get("reward/mean"),
                reward_std=record.get("reward/std"),
            )


def grpo_records(run: Run) -> list[dict[str, Any]]:
    """The metrics of the steps done."""
    return [record for record in run.read_metrics() if record.get("stage") == "grpo"]


def rate_at(step: int, config: GRPOConfig) -> float:
    """The share of the learning rate that is used at a step (from 0): up, level, and down to just above 0."""
    return min(1.0, (step + 1) / (config.warmup_steps + 1), (config.steps - step) / (config.decay_steps + 1))


def taught(parts: Parts, step: int) -> list[str]:
    """The roles that learn at this step: all that are trained, or those of the policy whose turn it is."""
    roles = [role for role in parts.rollout.roles.values() if role.trainable]
    policies = [policy for policy in parts.learner.policies if any(role.policy == policy for role in roles)]
    if parts.credit.alternate:
        policies = [policies[step // parts.credit.alternate % len(policies)]]
    return [role.name for role in roles if role.policy in policies]


def credit_turns(
    parts: Parts, config: GRPOConfig, groups: Sequence[Group], greedy: Mapping[str, float], step: int
) -> dict[str, float]:
    """Give each turn that this step learns from its advantage, then let the averages of rewards move on.

    Returns counts for the metrics.
    """
    algorithm, roles, terms = parts.algorithm, taught(parts, step), terms_of(parts, config, groups, greedy)
    found = assign(groups, roles, parts.credit, algorithm.advantage, algorithm.settings, terms)
    if algorithm.advantage in NEEDS_AVERAGE:
        parts.averages.update(followed(groups, roles, parts.averages, algorithm.rae_decay))
    return found | leave_out_stale(groups, parts.learner.versions, algorithm.max_staleness)


def terms_of(parts: Parts, config: GRPOConfig, groups: Sequence[Group], greedy: Mapping[str, float]) -> Terms:
    """What the algorithm and the run say of rewards before they are compared."""
    algorithm, penalties = parts.algorithm, {}
    if algorithm.kl_coefficient and algorithm.kl_in == "reward":
        kl = {policy: coefficients.kl for policy, coefficients in parts.coefficients.items()}
        penalties = kl_penalties(parts.learner, groups, algorithm, kl, config.microbatch_tokens)
    return Terms(
        truncated=algorithm.truncated,
        max_length=algorithm.overlong_length,
        cache=algorithm.overlong_cache,
        reward_weights={name: weight for name, (_, weight) in parts.rollout.rewards.items()},
        greedy=greedy,
        penalties=penalties,
        averages=parts.averages,
    )


def way_back(parts: Parts) -> Callable[[], None]:
    """A function that makes weights, optimizers, coefficients and averages again what they are now."""
    weights, coefficients, averages = parts.learner.snapshot(), dict(parts.coefficients), dict(parts.averages)

    def undo() -> None:
        parts.learner.restore(weights)
        put_back(parts, coefficients, averages)

    return undo


def put_back(
    parts: Parts, coefficients: Mapping[str, Coefficients], averages: Mapping[str, Mapping[str, float]]
) -> None:
    """Replace what changes beside the weights."""
    parts.coefficients.update(coefficients)
    parts.averages.clear()  # a role or family that came up since has none
    parts.averages.update(averages)


def obey(parts: Parts, record: dict[str, Any], undo: Callable[[], None] | None) -> str:
    """Say the alarms that a record raises, and do what they ask for; returns why the run must stop, or nothing."""
    raised = parts.alarms.check(record)
    if not raised:
        return ""
    record["alarms"] = ", ".join(alarm.name for alarm in raised)
    for alarm in raised:
        parts.log.say(f"alarm {alarm.name} at step {record['step']}: {alarm.message}")
    actions = {alarm.action for alarm in raised}
    if "restore" in actions and (checkpoint := parts.run.latest_checkpoint()):
        go_back(parts, checkpoint)
    elif "skip" in actions and undo is not None:
        undo()
    return "; ".join(alarm.message for alarm in raised if alarm.action == "stop")


def begin(parts: Parts) -> tuple[int, int]:
    """Optimizers, references and weights as the first step to come needs them; returns (steps, episodes) done."""
    learner, run = parts.learner, parts.run
    learner.start_optimizers({name: policy.learning_rate for name, policy in learner.policies.items()})
    checkpoint = run.latest_checkpoint()
    if checkpoint is None or checkpoint.state.get("stage") == "sft":
        if parts.algorithm.kl_coefficient and parts.algorithm.kl_reference == "start":
            for policy in learner.policies:
                learner.freeze_reference(policy)
        first = Coefficients(parts.algorithm.kl_coefficient, parts.algorithm.entropy_coefficient)
        parts.coefficients.update(dict.fromkeys(learner.policies, first))
        run.save_checkpoint(0, learner.save, state(parts, 0))
        return 0, 0
    go_back(parts, checkpoint)
    if checkpoint.state["tasks"] != parts.tasks.fingerprint:
        raise CheckpointError(f"{checkpoint.path}: was trained on other tasks; start a new run with --out")
    run.truncate_metrics(lambda record: record.get("stage") != "grpo" or record["step"] <= checkpoint.step)
    done = grpo_records(run)
    parts.alarms.replay(done)
    return checkpoint.step, sum(int(record["episodes"]) for record in done)


def go_back(parts: Parts, checkpoint: Checkpoint) -> None:
    """Weights, optimizers, coefficients and averages as a checkpoint has them."""
    load(parts.learner, checkpoint)
    coefficients = {policy: Coefficients(**values) for policy, values in checkpoint.state["coefficients"].items()}
    put_back(parts, coefficients, checkpoint.state.get("averages", {}))


def load(learner: Learner, checkpoint: Checkpoint, only_policies: bool = False) -> None:
    """Put a checkpoint into the learner. Raises CheckpointError if it stands on another base."""
    if checkpoint.state["base"] != learner.base_fingerprint:
        raise CheckpointError(
            f"{checkpoint.path}: was trained on another base than model.base = {learner.config.base!r} "
            f"(weights {checkpoint.state['base'][:12]}, here {learner.base_fingerprint[:12]})"
        )
    versions = {name: version for name, version in checkpoint.state["versions"].items() if name in learner.policies}
    learner.load(checkpoint.path, versions, only_policies)


def state(parts: Parts, step: int) -> dict[str, Any]:
    """What a checkpoint says of itself. Draws depend on (seed, step) alone, so this is the data position too."""
    learner = parts.learner
    return {
        "step": step,
        "seed": parts.seed,
        "versions": dict(learner.versions),
        "base": learner.base_fingerprint,
        "tasks": parts.tasks.fingerprint,
        "coefficients": {policy: vars(coefficients) for policy, coefficients in parts.coefficients.items()},
        "averages": dict(parts.averages),
    }


def check(config: GRPOConfig, rollout: Rollout, algorithm: AlgorithmConfig, credit: CreditConfig) -> None:
    """Refuse what can't be trained. Raises ConfigError."""
    trained = {role.name for role in rollout.roles.values() if role.trainable}
    for role in rollout.roles.values():
        if role.trainable and (role.sampling.top_p < 1 or role.sampling.temperature == 0):
            raise ConfigError(
                f"roles.{role.name}: a trained role samples with top_p = 1 and temperature > 0, "
                f"not top_p = {role.sampling.top_p}, temperature = {role.sampling.temperature}"
            )
    if not trained:
        raise ConfigError("no role is trained: give one a policy, as in [roles.planner] policy = 'planner'")
    for table, roles in (("team", credit.team), ("own", credit.own)):
        for name in roles:
            if name not in trained:
                raise ConfigError(f"credit.{table}.{name}: no trained role{suggest(name, trained)}")
    if any(credit.own.values()) and not credit.turn_rewards:
        raise ConfigError("credit.own: turns have no rewards of their own; name some in credit.turn_rewards")
    if config.attempts < credit.min_group:
        raise ConfigError(
            f"train.attempts = {config.attempts}: no group would have credit.min_group = {credit.min_group} episodes"
        )
    for reason in clashes(algorithm, credit):
        raise ConfigError(reason)
