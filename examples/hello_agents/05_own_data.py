"""Lesson 5, data and rewards of your own: three ways to give rows, and a reward function beside them.

    python examples/hello_agents/05_own_data.py
    python examples/hello_agents/05_own_data.py --model Qwen/Qwen3-0.6B --download

Rows need `question` and `answer` (a worked solution that ends in "#### 7", or the bare answer). A reward function gets
the completions as a list and every column of the rows as a list beside it; the right answers are `ground_truth`.
"""

from __future__ import annotations

from typing import Any

from lesson import LAYERS, call, settings, tool_for
from word_problems import problems

from gruppo.evaluation.measures import number_in
from gruppo.tool import format_math_dataset

MINE = [
    {"question": "What is 2 + 2?", "answer": "2 + 2 = 4. #### 4"},
    {"question": "What is 5 * 3?", "answer": "5 * 3 = 15. #### 15"},
    {"question": "What is 10 + 7?", "answer": "10 + 7 = 17. #### 17"},
]


def near_enough(completions: list[str], ground_truth: list[str], **columns: Any) -> list[float]:
    """1 for the right number, 0.5 for one less than 5 away from it, else 0."""
    rewards = []
    for said, gold in zip(completions, ground_truth, strict=True):
        found, wanted = number_in(said, is_prediction=True), number_in(gold, is_prediction=False)
        error = abs(found - wanted) if found is not None and wanted is not None else 5
        rewards.append(1.0 if error < 0.01 else 0.5 if error < 5 else 0.0)
    return rewards


def main() -> None:
    """Rows in both forms, rows as an argument, rows by a name; the function that goes with the name."""
    chosen = settings(__doc__, samples=12)
    tool = tool_for(chosen)

    # 1. As the rows that any trainer takes: prompts by the chat template of the model that will see them.
    for form in ("sft", "rl"):
        rows = format_math_dataset(MINE, form, chosen.model, allow_download=chosen.download)
        print(f"{form}: {rows[0]}")

    # 2. As an argument, for once.
    shown = {"action": "train", "algorithm": "sft", "model_name": chosen.model, "num_epochs": chosen.epochs}
    shown |= {"learning_rate": chosen.sft_rate, "output_dir": str(chosen.out / "own_sft")}
    mine = {"custom_dataset": MINE + problems(chosen.samples), "lora_target_modules": LAYERS}
    sft = call(tool, {**shown, **mine})
    print(f"SFT on {sft['dataset_size']} rows of our own: {sft['output_dir']}")

    # 3. By a name, for many trainings. A reward registered under the same name goes with the data set.
    tool.register_dataset("mine", problems(chosen.samples))
    tool.register_reward_function("mine", near_enough)
    print(f"three answers: {near_enough(['Final Answer: 72.0', '#### 70', 'no idea'], ['72', '72', '72'])}")
    learnt = {"action": "train", "algorithm": "grpo", "model_name": sft["output_dir"], "num_epochs": 1}
    learnt |= {"batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4}
    learnt |= {"max_new_tokens": chosen.tokens, "learning_rate": chosen.grpo_rate}
    grpo = call(tool, {**learnt, "dataset": "mine", "output_dir": str(chosen.out / "own_grpo")})
    print(f"GRPO with our own reward: mean reward {grpo['average_reward']:.3f}")


if __name__ == "__main__":
    main()
