"""Lesson 13, export: the adapter added into its base, proven equal, and written as a plain model folder.

    python examples/hello_agents/13_merge.py

An adapter is the two small factors of each layer's update; merged, it costs nothing when the model is used, and any
program that loads a Hugging Face model can load it. On a small machine hold a model in 8 or 4 bits instead:
`model.quantization = "int8"` or "nf4" (the extra gruppo[quant]).
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from lesson import call, earlier, settings, tool_for
from peft import PeftModel
from word_problems import HELD_OUT, problem

from gruppo.chat import render
from gruppo.store import Run
from gruppo.tool import RLTrainingTool
from gruppo.training.model import ModelConfig, load_base


def train(tool: RLTrainingTool, chosen: Namespace) -> Path:
    """The base with what lesson 7 taught, in the folder `out`/merged; nothing is trained here."""
    run = earlier("07_grpo.py", "grpo", tool, chosen)
    checkpoint = Run.open(run).latest_checkpoint()
    assert checkpoint is not None, "a training that has ended has one"
    tokenizer, base = load_base(ModelConfig(base=chosen.model, allow_download=chosen.download))
    adapted: Any = PeftModel.from_pretrained(base, str(checkpoint.path / "policies" / "agent")).eval()

    prompt, ids = render(tokenizer, [{"role": "user", "content": problem(HELD_OUT)["question"]}])
    with torch.inference_mode():
        beside = adapted(torch.tensor([ids])).logits
        merged = adapted.merge_and_unload()
        apart = (merged(torch.tensor([ids])).logits - beside).abs().max()
    print(f"the same question, adapter beside and merged: logits at most {apart:.1e} apart")
    if apart > 1e-3:
        raise SystemExit("error: the merged model is another one")

    target = chosen.out / "merged"
    merged.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def main() -> None:
    """Merge, then have the run and the folder answer the same problems."""
    chosen = settings(__doc__)
    tool = tool_for(chosen)
    target = train(tool, chosen)
    answers = []
    for name, path in (("adapter", chosen.out / "grpo"), ("merged", target)):
        asked = {"action": "evaluate", "model_path": str(path), "dataset": chosen.test, "max_samples": 8}
        found = call(tool, {**asked, "max_new_tokens": chosen.tokens, "return_details": True})
        answers.append([one["completion"] for one in found["details"]])
        print(f"{name:>8}: accuracy {found['accuracy']:.1%}, first answer {answers[-1][0]!r}")
    print(f"{sum(map(str.__eq__, *answers))} of {len(answers[0])} answers are the same, letter by letter")
    print(f"{target}: load it with transformers, or as gruppo's model.base")


if __name__ == "__main__":
    main()
