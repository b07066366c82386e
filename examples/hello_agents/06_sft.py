"""Lesson 6, SFT: what LoRA saves, training on worked solutions with every setting named, and what it changed.

    python examples/hello_agents/06_sft.py
    python examples/hello_agents/06_sft.py --model Qwen/Qwen3-0.6B --dataset gsm8k --download --samples 1000 --epochs 3

It teaches the form (steps, then "Final Answer:") and a first ability, without which RL would find nothing to reward.
For an LLM the usual rate is 5e-5 for all weights, 1e-4 for adapters; the packaged model needs far more.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from lesson import LAYERS, call, settings, tool_for

from gruppo.store import Run
from gruppo.tool import RLTrainingTool

RANK = 8


def adapter_size(inputs: int, outputs: int, rank: int) -> int:
    """Weights of the two factors that stand in for a layer's update: rows of one, columns of the other."""
    return rank * (inputs + outputs)


def train(tool: RLTrainingTool, chosen: Namespace) -> dict[str, Any]:
    """The adapter, trained; its folder is `out`/sft."""
    return call(
        tool,
        {
            "action": "train",
            "algorithm": "sft",
            "model_name": chosen.model,
            "dataset": chosen.dataset,
            "max_samples": chosen.samples,
            "output_dir": str(chosen.out / "sft"),
            "num_epochs": chosen.epochs,
            "batch_size": 4,  # held in memory at once
            "gradient_accumulation_steps": 1,  # 4 x 1 examples make an optimizer step
            "learning_rate": chosen.sft_rate,
            "warmup_ratio": 0.1,
            "weight_decay": 0.01,
            "optimizer": "adamw",
            "use_lora": True,
            "lora_rank": RANK,
            "lora_alpha": 2 * RANK,
            "lora_target_modules": LAYERS,
            "save_steps": 500,
        },
    )


def main() -> None:
    """LoRA's arithmetic, the training and its curves, and the base beside what came of it."""
    chosen = settings(__doc__)
    tool = tool_for(chosen)
    whole, own = 4096 * 4096, adapter_size(4096, 4096, RANK)
    print(f"a layer of 4096 x 4096: {whole:,} weights, its adapter of rank {RANK}: {own:,}, {whole // own} times fewer")

    trained = train(tool, chosen)
    records = [one for one in Run.open(trained["output_dir"]).read_metrics() if one["stage"] == "sft"]
    for one in records[:: max(1, len(records) // 6)]:
        print(f"step {one['step']:>3}: loss {one['loss/agent']:.3f}, gradient norm {one['grad_norm/agent']:.2f}")
    print(f"final loss {trained['final_loss']:.3f} in {trained['model_path']}")

    asked = {"action": "evaluate", "dataset": chosen.test, "max_samples": 16, "max_new_tokens": chosen.tokens}
    for name, path in (("base", chosen.model), ("after SFT", trained["output_dir"])):
        found = call(tool, {**asked, "model_path": path, "metrics": ["accuracy", "format_correctness"]})
        print(f"{name:>9}: accuracy {found['accuracy']:.1%}, well formed {found['format_correctness']:.1%}")


if __name__ == "__main__":
    main()
