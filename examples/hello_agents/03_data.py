"""Lesson 3, data: a worked problem, and the two forms that training wants it in.

    python examples/hello_agents/03_data.py
    python examples/hello_agents/03_data.py --dataset gsm8k --model Qwen/Qwen3-0.6B --download

SFT is shown prompt and solution, by the model's own chat template and up to the token that ends a turn: a model that
never sees that token never learns to stop. RL is shown the prompt alone; the right answer goes to the reward.
"""

from __future__ import annotations

from typing import Any

from lesson import call, settings, tool_for
from word_problems import HELD_OUT, NUM_TEST, problem, problems

from gruppo.data.gsm8k import read_gsm8k, split_answer, without_calculations
from gruppo.data.quality import check
from gruppo.data.selection import Reading


def main() -> None:
    """One problem, its SFT and RL rows, slices, and what is wrong with the data set."""
    chosen = settings(__doc__)
    tool = tool_for(chosen)

    row = problem(1)
    working, gold = split_answer(row["answer"])
    print(f"question: {row['question']}\nanswer:\n{row['answer']}")
    print(f"the final answer, after the last ####: {gold}")
    print(f"the working, without its calculator marks: {without_calculations(working)!r}\n")

    for form in ("sft", "rl"):
        found = call(tool, loading(chosen, format=form, max_samples=5))
        print(f"{form}: {found['dataset_size']} rows with {', '.join(found['sample_keys'])}")

    # Rows are taken as the `datasets` library would: "train[:1000]", "train[10%:20%]", "test". None: all of them.
    if chosen.dataset == "gsm8k":
        for split in ("train[:1000]", "test"):
            found = call(tool, loading(chosen, format="rl", split=split, max_samples=None))
            print(f"{split}: {found['dataset_size']} rows")

    # Before training: missing fields, empty ones, repetitions, and test questions among the training questions.
    # `gruppo data check gsm8k --against gsm8k:test` does the same for any data set, with limits that fail a build.
    readings = [Reading(number, read_gsm8k(own, number)) for number, own in enumerate(problems(chosen.samples))]
    held_out = [read_gsm8k(own, number) for number, own in enumerate(problems(NUM_TEST, HELD_OUT))]
    print("\n" + check(readings, "lesson", held_out).text())


def loading(chosen: Any, **own: Any) -> dict[str, Any]:
    """The parameters of loading the lesson's data set."""
    place = {"dataset": chosen.dataset, "model_name": chosen.model}
    return {"action": "load_dataset", **place, **own}


if __name__ == "__main__":
    main()
