"""Lesson 8, evaluation: the base, after SFT and after GRPO on the same problems, by several measures.

    python examples/hello_agents/08_evaluation.py
    python examples/hello_agents/08_evaluation.py --model Qwen/Qwen3-0.6B --dataset gsm8k --download

Every problem counts: one without an answer is wrong. accuracy_at_k is the chance that one of k drawn answers is right,
what a model could do; accuracy is what it does. With sixteen problems the intervals are wide, and say so.
"""

from __future__ import annotations

from lesson import call, earlier, settings, tool_for
from word_problems import NUM_TEST

METRICS = ["accuracy", "accuracy_at_k", "mean_numerical_error", "average_length", "average_steps", "format_correctness"]


def main() -> None:
    """A column for each model, a line for each measure."""
    chosen = settings(__doc__, problems=NUM_TEST)
    tool = tool_for(chosen)
    after_sft = earlier("06_sft.py", "sft", tool, chosen)
    models = {"base": chosen.model, "SFT": after_sft, "GRPO": earlier("07_grpo.py", "grpo", tool, chosen)}
    found = {}
    for name, path in models.items():
        asked = {"action": "evaluate", "model_path": path, "dataset": chosen.test, "max_samples": chosen.problems}
        found[name] = call(tool, {**asked, "max_new_tokens": chosen.tokens, "metrics": METRICS, "k": 3})

    print(f"{found['base']['num_samples']} problems{'':>11}" + "".join(f"{name:>10}" for name in found))
    for metric in METRICS:
        print(f"{metric:>24}" + "".join(f"{figure(one[metric]):>10}" for one in found.values()))
    for name, one in found.items():
        low, high = one["ci95"]["accuracy"]
        print(f"{name}: accuracy {one['accuracy']:.1%}, 95% interval {low:.1%} to {high:.1%}")
        for metric, reason in one["reasons"].items():
            print(f"  {metric}: {reason}")


def figure(value: float | None) -> str:
    """A number, or a dash where there is none; the reason follows."""
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
