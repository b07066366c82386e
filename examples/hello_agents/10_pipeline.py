"""Lesson 10, the whole pipeline: prepare, SFT, evaluate, GRPO, evaluate, save, with a gate that really closes.

    python examples/hello_agents/10_pipeline.py
    python examples/hello_agents/10_pipeline.py --plan my_plan.json

A plan is one file, so that a result can say what it is a result of. GRPO on a model that solves nothing learns nothing:
if SFT does not reach the plan's threshold the pipeline stops there, says so, and ends with exit code 1.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from lesson import LAYERS, call, settings, tool_for
from word_problems import HELD_OUT, NUM_TEST, problems

from gruppo.data.gsm8k import read_gsm8k
from gruppo.data.quality import LimitsConfig, check
from gruppo.data.selection import Place, Reading, readings, tasks_of

PLAN = {
    "data": {"max_samples": 24},
    "sft": {"num_epochs": 8, "batch_size": 4, "gradient_accumulation_steps": 1, "lora_target_modules": LAYERS},
    "grpo": {"num_epochs": 1, "batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4},
    "eval": {"max_samples": 16, "sft_accuracy_threshold": 0.0},  # of an LLM 0.4
    "monitoring": {"use_tensorboard": False, "use_wandb": False},
}


def check_data(chosen: Namespace) -> str:
    """The quality of the training problems in words. Ends the pipeline where a row is broken or in the test set."""
    if chosen.dataset == "lesson":
        rows = [Reading(number, read_gsm8k(row, number)) for number, row in enumerate(problems(chosen.samples), 1)]
        held_out = [read_gsm8k(row, number) for number, row in enumerate(problems(NUM_TEST, HELD_OUT))]
    else:
        place = Place(download=chosen.download)
        rows, held_out = list(readings(chosen.dataset, place)), list(tasks_of("gsm8k:test", place))
    found = check(rows, chosen.dataset, held_out)
    if failures := found.failures(LimitsConfig(missing=0, empty=0, malformed=0, overlap=0)):
        sys.exit(f"stopped: {'; '.join(failures)}")
    return found.text().partition("\n")[0]


def main() -> None:
    """Six stages, one after another; what each found is in training_results.json at the end, also of a stopped one."""
    chosen = settings(__doc__, plan="")
    plan: dict[str, Any] = json.loads(Path(chosen.plan).read_text()) if chosen.plan else PLAN
    chosen.samples = plan["data"]["max_samples"]
    tool, results = tool_for(chosen), {"model": chosen.model, "plan": plan}
    base = {"action": "train", "dataset": chosen.dataset, **plan["data"], **plan["monitoring"]}

    asked = {"action": "evaluate", "dataset": chosen.test, "max_samples": plan["eval"]["max_samples"]}
    asked["max_new_tokens"] = chosen.tokens
    print(f"1/6 prepare: {check_data(chosen)}")
    sft = {"algorithm": "sft", "model_name": chosen.model, "output_dir": str(chosen.out / "plan_sft")}
    results["sft"] = call(tool, {**base, **sft, "learning_rate": chosen.sft_rate, **plan["sft"]})
    print(f"2/6 SFT: loss {results['sft']['final_loss']:.3f}")
    results["sft_evaluation"] = call(tool, {**asked, "model_path": sft["output_dir"]})
    accuracy, threshold = results["sft_evaluation"]["accuracy"], plan["eval"]["sft_accuracy_threshold"]
    print(f"3/6 evaluate: accuracy {accuracy:.1%}, wanted {threshold:.1%}")

    if accuracy >= threshold:
        grpo = {"algorithm": "grpo", "model_name": sft["output_dir"], "output_dir": str(chosen.out / "plan_grpo")}
        grpo |= {"learning_rate": chosen.grpo_rate, "max_new_tokens": chosen.tokens}
        results["grpo"] = call(tool, {**base, **grpo, **plan["grpo"]})
        print(f"4/6 GRPO: mean reward {results['grpo']['average_reward']:.3f}")
        results["grpo_evaluation"] = call(tool, {**asked, "model_path": grpo["output_dir"]})
        print(f"5/6 evaluate: accuracy {results['grpo_evaluation']['accuracy']:.1%}")
    (chosen.out / "training_results.json").write_text(json.dumps(results, indent=2))
    print(f"6/6 saved: {chosen.out / 'training_results.json'}")
    if accuracy < threshold:
        sys.exit(f"stopped before GRPO: accuracy {accuracy:.1%} after SFT is below {threshold:.1%}; train SFT longer")


if __name__ == "__main__":
    main()
