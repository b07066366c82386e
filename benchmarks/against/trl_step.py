"""TRL's side of the speed comparison: one step of its `GRPOTrainer`, as its own loop takes it.

`trainer.train()` runs the loop; a callback holds it before each step until a step is asked for. What is measured lies
between its `on_step_begin` and `on_step_end`: generation, rewards, advantages, loss, backward, optimizer. Fetching the
prompts (from a list) lies before. Sampling is the time in `_generate_single_turn`, taken by a subclass that changes
nothing.

Settings, all at TRL 1.16's default but for these, each equal to gruppo's side or to TRL's advantage:

- one rollout per optimizer step (`steps_per_generation` = `gradient_accumulation_steps`, `num_iterations` 1, both
  default), so that no second forward for old log-probs is needed; `beta` 0 (default), so no reference model either;
- `bf16` follows the workload's dtype: float32 on a CPU, where TRL's default (autocast to bfloat16) is slower without
  hardware for it; TRL's default on a GPU;
- several ways of running are tried (`VARIANTS`), among them TRL's defaults of gradient checkpointing and 8 rows per
  forward; the others take more memory and less time. The fastest is compared against. Continuous batching is for GPUs
  (on a CPU it takes many times as long);
- dtype, LoRA (rank, alpha, all linear layers), learning rate, AdamW's betas, weight decay, gradient norm and clipping
  are those of the other side. The optimizer is TRL's default, fused AdamW;
- nothing ends a completion (the end-of-sequence id is one outside the vocabulary, on both sides): all have the same
  length, and no processor of logits has to suppress anything;
- no logging, saving, progress bar or hub; prompts unshuffled. The key-value cache is on in generation (default).

For several turns TRL's tool loop is used (`tools`). The bases speak no tool calls, so its parser of responses is told
that every completion is one: `tokenizer.parse_response` is replaced on the instance, and the template learns to render
calls, which TRL asks for (it renders them in a made-up conversation to find what follows a call, never in a prompt).
Each call's result is the sentence that gruppo's `solo` shows an agent that was cut off, so the context grows alike. TRL
appends the sampled ids as they are; so does gruppo, as long as the text reads back as the same ids.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from peft import LoraConfig
from timing import clock
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, logging
from trl import GRPOConfig, GRPOTrainer
from workload import ALPHA, RANK, Workload, folder_of, questions, worth

LEARNING_RATE = 1e-5
DEFAULT_ROWS = 8  # TRL's per_device_train_batch_size


@dataclass(frozen=True)
class Variant:
    """A way of running TRL."""

    checkpointing: bool  # whether activations are computed anew in the backward
    rows: int  # per forward; 0: all
    continuous: bool = False  # whether transformers' continuous batching generates


VARIANTS = {
    "default": Variant(True, DEFAULT_ROWS),
    "plain": Variant(False, DEFAULT_ROWS),
    "whole": Variant(False, 0),
    "continuous": Variant(False, 0, continuous=True),
}


class Ended(Exception):
    """No more steps are asked for."""


class TimedTrainer(GRPOTrainer):
    """TRL's trainer with the seconds of its generation added up."""

    device = "cpu"
    sampling = 0.0
    tokens = 0

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        started = clock(self.device)
        found = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self.sampling += clock(self.device) - started
        self.tokens += sum(map(len, prompt_ids)) + sum(map(len, found[0]))
        return found


class Paced(TrainerCallback):
    """Holds the loop until a step is asked for, and answers with what it took."""

    def __init__(self, connection: Connection, workload: Workload) -> None:
        self.connection, self.workload, self.started = connection, workload, 0.0
        self.trainer: TimedTrainer

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self.connection.recv() is None:
            raise Ended
        torch.set_num_threads(self.workload.threads)
        self.trainer.sampling, self.trainer.tokens = 0.0, 0
        self.started = clock(self.workload.device)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        seconds = clock(self.workload.device) - self.started
        lengths = self.trainer._metrics["train"]["completions/mean_length"][-1:]
        assert lengths == [self.workload.new_tokens * self.workload.turns], f"completions of {lengths} tokens"
        gpu = torch.cuda.max_memory_allocated() if self.workload.device.startswith("cuda") else 0
        taken = {"seconds": seconds, "sampling": self.trainer.sampling, "computed_tokens": self.trainer.tokens}
        self.connection.send(taken | {"gpu_bytes": gpu})


def tool_of(workload: Workload) -> Any:
    """A tool that says what `solo` says after an action that was cut off."""

    def go_on() -> str:
        """Tell the agent that it was cut off."""
        return f"Error: cut off at {workload.new_tokens} tokens"

    return go_on


def speak_tools(tokenizer: Any) -> None:
    """Let the tokenizer take every completion for a tool call."""
    content = r"message(?:\.content|\[(['\"])content\1\])"
    calls = "(message['content'] + (message['tool_calls'] | tojson if message['tool_calls'] is defined else ''))"
    tokenizer.chat_template = re.sub(content, lambda _: calls, tokenizer.chat_template)
    call = {"type": "function", "function": {"name": "go_on", "arguments": {}}}

    def parse(ids: list[int], **_: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": str(tokenizer.decode(ids)), "tool_calls": [call]}

    tokenizer.response_template, tokenizer.parse_response = {}, parse


def trainer_of(workload: Workload, variant: Variant, callback: Paced) -> TimedTrainer:
    """TRL's trainer for this workload."""
    folder = folder_of(workload.base)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    rows = [{"prompt": [{"role": "user", "content": text}]} for own in questions(tokenizer, workload) for text in own]
    tools = {}
    if workload.turns > 1:
        speak_tools(tokenizer)
        tools = {"tools": [tool_of(workload)]}
    dtype = getattr(torch, workload.dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    no_end = model.config.vocab_size
    trainer = TimedTrainer(
        model=model,
        args=arguments_of(workload, variant, no_end),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[callback],
        **tools,
    )
    trainer.eos_token_ids = [no_end]
    trainer.device, callback.trainer = workload.device, trainer
    return trainer


def arguments_of(workload: Workload, variant: Variant, no_end: int) -> GRPOConfig:
    """TRL's settings for this workload."""
    rows = workload.rows if not variant.rows else min(variant.rows, workload.rows)
    while workload.rows % rows:
        rows -= 1
    return GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "gruppo-benchmarks", "trl"),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=workload.rows // rows,
        num_generations=workload.attempts,
        max_completion_length=workload.context,
        generation_kwargs={"max_new_tokens": workload.new_tokens, "eos_token_id": no_end},
        max_tool_calling_iterations=workload.turns - 1,
        gradient_checkpointing=variant.checkpointing,
        use_transformers_continuous_batching=variant.continuous,
        bf16=workload.dtype == "bfloat16",
        use_cpu=workload.device == "cpu",
        epsilon_high=0.28,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_steps=1_000_000,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
    )


def reward(completions: list[Any], **_: Any) -> list[float]:
    """A hash of what was said."""
    said = [[message["content"] for message in all_ if message["role"] == "assistant"] for all_ in completions]
    return [worth(place, "\n".join(own)) for place, own in enumerate(said)]


def serve(connection: Connection, workload: Workload, variant: str) -> None:
    """Take a step for every number received, until None."""
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    trainer = trainer_of(workload, VARIANTS[variant], Paced(connection, workload))
    connection.send("ready")
    try:
        trainer.train()
    except Ended:
        pass
