"""Lesson 2, the first run: demonstrations (SFT), then reinforcement learning (GRPO), then an evaluation.

    python examples/hello_agents/02_first_run.py
    python examples/hello_agents/02_first_run.py --model Qwen/Qwen3-0.6B --dataset gsm8k --download

Every action of the training tool is one dictionary in and one JSON text out, numbers as numbers. A parameter that it
does not know is an error, not a surprise later. So short a training leaves the accuracy low: that it runs is the point.
"""

from __future__ import annotations

import json

from lesson import LAYERS, settings, tool_for


def main() -> None:
    """SFT of the base, GRPO of what came of it, and an evaluation on problems that neither has seen."""
    chosen = settings(__doc__, samples=10)
    tool = tool_for(chosen)
    both = {"dataset": chosen.dataset, "use_lora": True}

    answer = tool.run(
        {
            "action": "train",
            "algorithm": "sft",
            "model_name": chosen.model,
            "output_dir": str(chosen.out / "first_sft"),
            "max_samples": 10,
            "num_epochs": chosen.epochs,
            "batch_size": 2,
            "gradient_accumulation_steps": 1,
            "learning_rate": chosen.sft_rate,
            "lora_target_modules": LAYERS,
            **both,
        }
    )
    shown = json.loads(answer)
    print(f"SFT done: {shown['output_dir']}")

    answer = tool.run(
        {
            "action": "train",
            "algorithm": "grpo",
            "model_name": shown["output_dir"],  # goes on with what SFT left; chosen.model would start anew
            "output_dir": str(chosen.out / "first_grpo"),
            "max_samples": 5,
            "num_epochs": 1,
            "batch_size": 2,
            "gradient_accumulation_steps": 4,  # 2 x 4 completions per step: one whole group
            "num_generations": 8,
            "updates_per_rollout": 1,
            "max_new_tokens": chosen.tokens,
            "learning_rate": chosen.grpo_rate,
            **both,
        }
    )
    learnt = json.loads(answer)
    print(f"GRPO done: {learnt['output_dir']}")

    answer = tool.run(
        {
            "action": "evaluate",
            "model_path": learnt["output_dir"],
            "dataset": chosen.test,
            "max_samples": 10,
        }
    )
    found = json.loads(answer)
    print(f"accuracy {found['accuracy']:.1%}, mean reward {found['average_reward']:.3f} on {found['num_samples']}")


if __name__ == "__main__":
    main()
