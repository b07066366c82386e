"""Lesson 4, rewards: three kinds and their sum, what each pays for the same answers, and how an answer is found.

    python examples/hello_agents/04_rewards.py

Right or wrong is what counts. Length and steps are paid for in right answers alone, and are bounded: a reward for steps
as such would be earned by writing steps. No model is used here; the lengths below are words and signs, in a run tokens.
"""

from __future__ import annotations

from lesson import call, settings, tool_for

from gruppo.tool import (
    MathRewardFunction,
    create_accuracy_reward,
    create_combined_reward,
    create_length_penalty_reward,
    create_step_reward,
)

GOLD = "72"
STEPS = "Step 1: 48 / 2 = 24\nStep 2: 48 + 24 = 72\nStep 3: that is all of them\nFinal Answer: "
ANSWERS = {
    "right": f"{STEPS}72",
    "right, as 72.0": "Final Answer: 72.0",
    "right, after 500 words": f"{'well ' * 494}\nFinal Answer: 72",
    "wrong": "Final Answer: 73",
    "wrong, in steps": f"{STEPS}73",
}
TRAPS = {  # what the first number, the last line or the first marker would get wrong
    "Therefore, they earn 9 * 2 = 18 dollars.": "18",
    "Each gets 1/2 of it.": "1/2",
    "It costs 1,000 dollars": "1000",
    "Final Answer: 7\nNo, I forgot one.\nFinal Answer: 8": "8",
}


def main() -> None:
    """The tool's rewards by name, the same as functions, and the traps of finding an answer."""
    tool = tool_for(settings(__doc__))
    kinds = (
        {"reward_type": "accuracy", "tolerance": 0.01},
        {"reward_type": "length_penalty", "max_length": 200, "penalty_weight": 0.001},
        {"reward_type": "step", "step_bonus": 0.1},
    )
    for kind in kinds:  # each is kept under its name, which a training then gives as its reward_type
        made = call(tool, {"action": "create_reward", **kind})
        print(f"{made['name']}: {made['description']}")
    terms = [{"type": "accuracy", "weight": 1.0}, {"type": "length_penalty", "weight": 0.5, "target_length": 200}]
    terms += [{"type": "step", "weight": 0.3, "step_bonus": 0.1}]
    made = call(tool, {"action": "create_reward", "reward_type": "combined", "name": "balanced", "components": terms})
    print(f"{made['name']}: {made['description']}\n")

    accuracy = create_accuracy_reward(tolerance=0.01)
    brief = create_length_penalty_reward(accuracy, max_length=200, penalty_weight=0.001)
    stepwise = create_step_reward(accuracy, step_bonus=0.1)
    functions = {"accuracy": accuracy, "length": brief, "steps": stepwise}
    functions["their mean"] = create_combined_reward([(accuracy, 1 / 3), (brief, 1 / 3), (stepwise, 1 / 3)])
    print(f"{'':>24}" + "".join(f"{name:>12}" for name in functions))
    for name, said in ANSWERS.items():
        paid = [function([said], ground_truth=[GOLD])[0] for function in functions.values()]
        print(f"{name:>24}" + "".join(f"{reward:>12.2f}" for reward in paid))

    find = MathRewardFunction()
    for said, wanted in TRAPS.items():
        found = find.extract_answer(said)
        verdict = "right" if find.compare_answers(found or "", wanted) else "WRONG"
        print(f"{said!r}: {found}, {verdict}")


if __name__ == "__main__":
    main()
