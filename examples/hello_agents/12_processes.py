"""Lesson 12, several processes: the same training in one and in two, and what a larger batch asks of the learning rate.

    python examples/hello_agents/12_processes.py

Trainers of the Accelerate kind start a copy of the script for each GPU, with its own share of the batch and a mean of
its own: what a step does then depends on how many there are. gruppo is one program. With `model.processes = 2` a forked
process plays and learns beside it on the same weights, and the loss is one sum over all tokens, divided once, however
it was split; so two processes take the steps that one takes, and there is no launcher and no file of its settings.

It runs on one machine, on its CPU or on one GPU: there is no DDP over GPUs and no ZeRO yet. What does not fit is held
in 4 or 8 bits (`model.quantization`) or computed again (`model.gradient_checkpointing`); ask `gruppo estimate` first.
"""

from __future__ import annotations

import math
import shutil
from argparse import Namespace

from lesson import earlier, settings, tool_for

from gruppo.config import load
from gruppo.estimate import estimate
from gruppo.log import Log
from gruppo.run import RunConfig
from gruppo.stages import train
from gruppo.store import Run

CHANGES = {"sft.steps": "4", "sft.warmup_steps": "0", "monitors": "[]", "reward.grading": "completion"}
CHANGES |= {"train.steps": "2", "train.warmup_steps": "0", "train.tasks_per_step": "8", "train.attempts": "4"}
CHANGES |= {"policies.agent.learning_rate": "1e-3", "rewards.accuracy": "1.0"}


def config_of(start: str, tokens: int, processes: int) -> RunConfig:
    """Four steps of SFT and two of GRPO from where lesson 6 ended, by the config of its run with a few keys changed."""
    own = {"start_from": start, "roles.agent.max_tokens": str(tokens), "model.device": "cpu"}
    return load(RunConfig, [f"{start}/config.toml"], {**CHANGES, **own, "model.processes": str(processes)})


def norms(chosen: Namespace, config: RunConfig) -> list[float]:
    """The norms of the gradients of a training, step by step."""
    out = chosen.out / f"processes_{config.model.processes}"
    shutil.rmtree(out, ignore_errors=True)
    seconds = train(config, out, False, Log())["seconds"]
    found = [one["grad_norm/agent"] for one in Run.open(out).read_metrics() if "grad_norm/agent" in one]
    print(f"{config.model.processes} in parallel: {seconds} s, gradient norms {[round(norm, 4) for norm in found]}")
    return found


def main() -> None:
    """What the training will take, the training in one and two processes, and the rates of larger batches."""
    chosen = settings(__doc__)
    start = earlier("06_sft.py", "sft", tool_for(chosen), chosen)
    found = estimate(config_of(start, chosen.tokens, 2))
    print(f"at most {found.peak / 1e6:.0f} MB, {found.episodes} episodes, {found.sampled_tokens:,} sampled tokens")

    alone, together = (norms(chosen, config_of(start, chosen.tokens, processes)) for processes in (1, 2))
    if not alone or not all(math.isclose(*pair, rel_tol=1e-3) for pair in zip(alone, together, strict=True)):
        raise SystemExit("error: two processes took other steps than one")
    print("two processes took the same steps as one")

    # Total batch: sequences at once x processes x accumulated batches; 4 x 1 x 4 and 4 x 4 x 1 are the same step. With
    # Adam the rate follows the square root of the batch, with plain SGD the batch itself.
    for total in (16, 64):
        print(f"{total} sequences a step: learning rate {5e-5 * math.sqrt(total / 16):.1e}")


if __name__ == "__main__":
    main()
