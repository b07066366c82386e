"""Lesson 9, mistakes: what the wrong answers have in common, and which problems are the hard ones.

    python examples/hello_agents/09_mistakes.py

Rules sort a wrong answer by what can be seen in it, and show it: arithmetic that is not so (calculation), numbers that
are not in the question (comprehension), nothing that could be read (format), a wrong conclusion without any of these
(reasoning). How hard a problem is follows from the steps of its reference. Then one knows what to change next.
"""

from __future__ import annotations

from lesson import call, earlier, settings, tool_for

NEXT = {
    "calculation": "more worked arithmetic in SFT, or a calculator as a tool (`tools` of a run)",
    "comprehension": "more kinds of wording in the training problems",
    "format": "more SFT, a longer max_new_tokens, or a larger kl_coef",
    "reasoning": "GRPO on problems of the difficulty that is solved now and then",
}


def main() -> None:
    """Count the mistakes of lesson 7's model, show one of each kind, and accuracy by difficulty."""
    chosen = settings(__doc__)
    tool = tool_for(chosen)
    asked = {"action": "evaluate", "model_path": earlier("07_grpo.py", "grpo", tool, chosen), "dataset": chosen.test}
    found = call(tool, {**asked, "max_new_tokens": chosen.tokens, "return_details": True})

    total = len(found["errors"])
    print(f"the model gives {total} wrong answers to {found['num_samples']} problems")
    for kind, number in found["error_types"].items():
        example = next(one for one in found["errors"] if one["type"] == kind)
        print(f"{kind}: {number} ({number / total:.1%}), as {example['completion'][:60]!r}")
        print(f"  what may help: {NEXT.get(kind, 'see docs/evaluation.md')}")
    for steps, own in found["by_difficulty"].items():
        print(f"{steps} steps: {own['accuracy']:.1%} of {own['n']}")

    # Of a run that evaluates itself `gruppo mistakes FOLDER` says it before and after, with intervals.


if __name__ == "__main__":
    main()
