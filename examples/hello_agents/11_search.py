"""Lesson 11, search: the same three settings tried by grid, by chance, and by a model of what did well (Bayesian).

    python examples/hello_agents/11_search.py --trials 20       # the last part needs: pip install -e ".[tune]"

Here each trial runs in this process, so that the whole search can be read. For real work `gruppo tune` plays several at
once, goes on after a kill and cuts hopeless ones short: docs/tuning.md. The test problems are for the winner alone.
"""

from __future__ import annotations

import math
import random
from argparse import Namespace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lesson import LAYERS, call, settings, tool_for

from gruppo.tool import RLTrainingTool
from gruppo.tuning.space import Parameter, grid

SPACE = {
    "learning_rate": Parameter(low=3e-4, high=3e-3, log=True, points=2),  # of an LLM 1e-6 to 1e-4
    "kl_coef": Parameter(low=0.001, high=0.1, log=True, points=2),
    "lora_rank": Parameter(choice=[8, 16]),
}


def demonstrate(tool: RLTrainingTool, chosen: Namespace, rank: int) -> str:
    """The folder of an SFT with adapters of this rank, from which all trials of the rank begin."""
    sft = {"action": "train", "algorithm": "sft", "model_name": chosen.model, "num_epochs": chosen.epochs}
    sft |= {"dataset": chosen.dataset, "max_samples": chosen.samples, "learning_rate": chosen.sft_rate}
    sft |= {"gradient_accumulation_steps": 1, "lora_rank": rank, "lora_target_modules": LAYERS}
    return call(tool, {**sft, "output_dir": str(chosen.out / f"search_sft_{rank}")})["output_dir"]


def objective(tool: RLTrainingTool, chosen: Namespace, start: str, values: dict[str, Any]) -> float:
    """Validation accuracy after a short GRPO with these values."""
    grpo = {"action": "train", "algorithm": "grpo", "model_name": start, "num_epochs": 1, "num_generations": 4}
    grpo |= {"dataset": chosen.dataset, "max_samples": chosen.samples, "batch_size": 8, "warmup_ratio": 0.0}
    grpo |= {"max_new_tokens": chosen.tokens, "output_dir": str(chosen.out / "search_grpo"), **values}
    asked = {"action": "evaluate", "model_path": call(tool, grpo)["output_dir"], "max_new_tokens": chosen.tokens}
    return call(tool, {**asked, **chosen.validation})["accuracy"]


def by_chance(draw: random.Random) -> dict[str, Any]:
    """Each value on its own: numbers by their logarithm, a rank from the list."""
    ranges = {name: SPACE[name] for name in ("learning_rate", "kl_coef")}
    drawn = {name: math.exp(draw.uniform(math.log(own.low), math.log(own.high))) for name, own in ranges.items()}
    return {**drawn, "lora_rank": draw.choice(SPACE["lora_rank"].choice)}


def main() -> None:
    """`trials` of each method."""
    chosen = settings(__doc__, trials=2)
    tool, tried = tool_for(chosen), []
    starts = {rank: demonstrate(tool, chosen, rank) for rank in SPACE["lora_rank"].choice}

    def attempt(name: str, values: dict[str, Any]) -> float:
        tried.append((objective(tool, chosen, starts[values["lora_rank"]], values), name, values))
        print(f"{name}: accuracy {tried[-1][0]:.1%} with {values}", flush=True)
        return tried[-1][0]

    for number, values in zip(range(chosen.trials), grid(SPACE), strict=False):
        attempt("grid", values)
        attempt("random", by_chance(random.Random(number)))
    if find_spec("optuna"):
        optuna = import_module("optuna")
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        for trial in (study.ask() for _ in range(chosen.trials)):
            values = {"learning_rate": trial.suggest_float("learning_rate", 3e-4, 3e-3, log=True)}
            values |= {"kl_coef": trial.suggest_float("kl_coef", 0.001, 0.1, log=True)}
            study.tell(trial, attempt("bayesian", {**values, "lora_rank": trial.suggest_categorical("rank", [8, 16])}))
    print(f"best of {len(tried)}: {max(tried, key=lambda one: one[0])}")


if __name__ == "__main__":
    main()
