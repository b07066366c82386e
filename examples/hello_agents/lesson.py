"""What the lessons share: their command line, a tool that knows their problems, and one call of it."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

from word_problems import HELD_OUT, NUM_TEST, problems

from gruppo.tool import RLTrainingTool

warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")  # their own house-keeping
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]  # of attention, of the MLP
TEST_OF = {"lesson": "lesson-test", "gsm8k": "gsm8k"}  # whose test split is taken unless another is named


def settings(about: str | None, samples: int = 24, epochs: int = 8, **more: Any) -> argparse.Namespace:
    """The command line of a lesson, `more` being its own options; by default the packaged model, and seconds."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--model", default="tiny", help="a folder or a hub id, such as Qwen/Qwen3-0.6B")
    parser.add_argument("--dataset", default="lesson", choices=TEST_OF, help="our own problems, or ./data/gsm8k")
    parser.add_argument("--download", action="store_true", help="fetch a model or data set that is not here")
    parser.add_argument("--samples", type=int, default=samples, help="training problems")
    parser.add_argument("--epochs", type=int, default=epochs, help="times that SFT sees each")
    parser.add_argument("--tokens", type=int, help="of the longest answer; 56 of the packaged model, else 512")
    parser.add_argument("--out", type=Path, default=Path("runs/hello_agents"), help="the folder for what is trained")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    chosen = parser.parse_args()
    is_tiny = chosen.model == "tiny"
    is_ours = chosen.dataset == "lesson"
    chosen.validation = {"dataset": "lesson-validation"} if is_ours else {"dataset": "gsm8k", "split": "train[-200:]"}
    chosen.test, chosen.tokens = TEST_OF[chosen.dataset], chosen.tokens or (56 if is_tiny else 512)
    # A model of less than a million weights takes, and needs, larger steps than an LLM would survive.
    chosen.sft_rate, chosen.grpo_rate = (1e-2, 1e-3) if is_tiny else (1e-4, 1e-5)
    return chosen


def tool_for(chosen: argparse.Namespace) -> RLTrainingTool:
    """A tool that knows our problems by name, in three parts; a lesson that is run again begins anew."""
    tool = RLTrainingTool(allow_download=chosen.download, overwrite=True)
    tool.register_dataset("lesson", problems(chosen.samples))
    tool.register_dataset("lesson-validation", problems(NUM_TEST, 2 * HELD_OUT))
    tool.register_dataset("lesson-test", problems(NUM_TEST, HELD_OUT))
    return tool


def call(tool: RLTrainingTool, parameters: dict[str, Any]) -> dict[str, Any]:
    """What the tool answers, as a dictionary; a mistake of ours ends the lesson with the tool's own line."""
    found = json.loads(tool.run(parameters))
    return found if found["status"] != "error" else sys.exit(f"error: {found['message']}")


def earlier(script: str, folder: str, tool: RLTrainingTool, chosen: argparse.Namespace) -> str:
    """The model that an earlier lesson left in `folder`; its `train` is called here if it has not been run."""
    if not any((chosen.out / folder / name).exists() for name in ("report.json", "model.safetensors")):
        runpy.run_path(str(Path(__file__).with_name(script)))["train"](tool, chosen)
    return str(chosen.out / folder)
