"""Lesson 7, GRPO: what a group of answers is judged by, and a training with every setting named.

    python examples/hello_agents/07_grpo.py
    python examples/hello_agents/07_grpo.py --model Qwen/Qwen3-0.6B --dataset gsm8k --download --samples 1000

It begins where lesson 6 ended (which is run first if need be). Each question is answered several times; an answer's
advantage is its reward less the mean of its group, so no value model is needed. A clipped ratio of new to old
probabilities bounds a step, and the KL from the model as it was at the start keeps what SFT taught.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from lesson import call, earlier, settings, tool_for

from gruppo.algorithms.advantages import centred, grpo
from gruppo.store import Run
from gruppo.tool import RLTrainingTool

REWARDS = [1.0, 1.0, 0.0, 0.8]  # of four answers to one question: right, right, wrong, right but long
TERMS = [
    {"type": "accuracy", "weight": 1.0},
    {"type": "length_penalty", "weight": 0.5, "target_length": 200},
    {"type": "step", "weight": 0.3, "step_bonus": 0.1},
]


def train(tool: RLTrainingTool, chosen: Namespace) -> dict[str, Any]:
    """The adapter of lesson 6, trained on; its folder is `out`/grpo."""
    return call(
        tool,
        {
            "action": "train",
            "algorithm": "grpo",
            "model_name": earlier("06_sft.py", "sft", tool, chosen),
            "dataset": chosen.dataset,
            "max_samples": chosen.samples,
            "output_dir": str(chosen.out / "grpo"),
            "num_epochs": 2,
            "batch_size": 8,
            "gradient_accumulation_steps": 2,  # 8 x 2 answers a step: whole groups of num_generations
            "num_generations": 4,
            "max_new_tokens": chosen.tokens,
            "temperature": 0.8,
            "learning_rate": chosen.grpo_rate,  # of an LLM 1e-6 to 1e-5: 5e-5 is known to destroy it
            "kl_coef": 0.05,
            "clip_range": 0.2,
            "reward_type": "combined",
            "reward_config": {"components": TERMS},
            "use_lora": True,
        },
    )


def main() -> None:
    """The worked example of a group, the training, and the figures to watch."""
    chosen = settings(__doc__)
    print(f"rewards {REWARDS}, less their mean {rounded(centred(REWARDS))}, by the deviation {rounded(grpo(REWARDS))}")

    trained = train(tool_for(chosen), chosen)
    for one in Run.open(trained["output_dir"]).read_metrics():
        kl, norm = one.get("kl/agent", 0.0), one.get("grad_norm/agent", 0.0)
        print(f"step {one['step']:>3}: reward {one['reward/mean']:.3f}, KL {kl:.4f}, gradient norm {norm:.2f}")
    print(f"mean reward {trained['average_reward']:.3f} in {trained['model_path']}")
    print("watch: the reward rises, the KL stays below 0.1, the gradient norm is neither near 0 nor above 100")


def rounded(numbers: list[float]) -> list[float]:
    """For print."""
    return [round(number, 2) for number in numbers]


if __name__ == "__main__":
    main()
