"""What a training or an evaluation found, as plain JSON-able data: metrics by name, every task and every error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from gruppo.evaluation.measures import Measure, difficulty, measure, measure_parts, reference_steps
from gruppo.evaluation.metrics import solved
from gruppo.evaluation.mistakes import find_mistakes
from gruppo.rewards.terms import text_of
from gruppo.types import Group

OF_SAMPLES = "accuracy_at_k"


def training_of(metrics: Sequence[Mapping[str, Any]], stage: str) -> dict[str, Any]:
    """The end of a training, and its evaluations on the way, from its records. None where there is no figure."""
    own = [record for record in metrics if record.get("stage") == stage]
    losses = [record["loss/agent"] for record in own if record.get("loss/agent") is not None]
    found = {"num_steps": len(own), "final_loss": losses[-1] if losses else None}
    if stage == "grpo":
        rewards = [record["reward/mean"] for record in own if record.get("reward/mean") is not None]
        found |= {"average_reward": fmean(rewards) if rewards else None}
        found |= {"final_reward": rewards[-1] if rewards else None}
    key, name = ("eval/loss/agent", "loss") if stage == "sft" else ("eval/success", "accuracy")
    return found | {"evaluations": [{"step": one["step"], name: one[key]} for one in own if key in one]}


def metrics_of(groups: Sequence[Group], samples: Sequence[Group], names: Sequence[str], k: int) -> dict[str, Any]:
    """Each metric as a number, or None with its reason; intervals apart. `samples` are the k answers to each task.

    Raises ConfigError for a metric that there is not.
    """
    plain = [name for name in dict.fromkeys(("accuracy", *names)) if name != OF_SAMPLES]
    found: dict[str, Measure] = measure(groups, plain, attempts=1)
    if OF_SAMPLES in names:
        found |= measure(samples, [OF_SAMPLES], k, attempts=k)
    rewards = [episode.reward for group in groups for episode in group.episodes if episode.reward is not None]
    return {
        **{name: one.value for name, one in found.items()},
        "average_reward": fmean(rewards) if rewards else None,
        "ci95": {name: list(one.ci95) for name, one in found.items() if one.ci95},
        "reasons": {name: one.reason for name, one in found.items() if one.reason},
        **({"k": k} if OF_SAMPLES in names else {}),
    }


def details_of(groups: Sequence[Group]) -> dict[str, Any]:
    """Every task with its answer, the wrong ones with the kind of their error, and accuracy by difficulty."""
    details, errors = [], []
    for group in groups:
        (episode,) = group.episodes
        is_right = bool(solved(episode))
        asked = {"question": group.task.question, "prediction": episode.answer, "ground_truth": group.task.result}
        said = {"completion": text_of(episode), "correct": is_right, "reward": episode.reward}
        steps = {"ground_truth_steps": reference_steps(group.task), "difficulty": difficulty(group.task)}
        details.append({**asked, **said, **steps})
        if not is_right:
            found = find_mistakes(group.task, episode)
            kind = str(found[0].kind) if found else str(episode.outcome)
            errors.append({**asked, "completion": text_of(episode), "type": kind})
    parts = measure_parts(groups, ["accuracy"], difficulty)
    return {
        "details": details,
        "errors": errors,
        "error_types": dict(Counter(error["type"] for error in errors).most_common()),
        "by_difficulty": {
            name: {"accuracy": own["accuracy"].value, "n": own["accuracy"].n} for name, own in parts.items()
        },
    }
