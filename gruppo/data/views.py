"""A task as the rows that the ecosystem's trainers take, for supervised fine-tuning and for reinforcement learning.

Both have the same prompt, by the model's own chat template; the completion ends with its end-of-turn token, from which
a model learns to stop. gruppo itself trains on ids (`example_ids`): where a question holds the text of a control token,
only they are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gruppo.chat import encode_action, end_of_turn_ids, render
from gruppo.data.gsm8k import without_calculations
from gruppo.types import Message, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def sft_row(task: Task, tokenizer: PreTrainedTokenizerBase, system: str = "") -> dict[str, str]:
    """`prompt`, `completion` and both as `text`. Raises ConfigError if the tokenizer has no chat template."""
    prompt, _ = render(tokenizer, messages_of(task, system))
    completion = solution_of(task) + str(tokenizer.decode([end_of_turn_ids(tokenizer)[0]]))
    return {"prompt": prompt, "completion": completion, "text": prompt + completion}


def rl_row(task: Task, tokenizer: PreTrainedTokenizerBase, system: str = "") -> dict[str, str]:
    """`prompt`, `ground_truth`, `question` and `full_answer`. Raises ConfigError as `sft_row` does."""
    prompt, _ = render(tokenizer, messages_of(task, system))
    full = str(task.extra_info.get("full_answer") or solution_of(task))
    return {"prompt": prompt, "ground_truth": task.result, "question": task.question, "full_answer": full}


def example_ids(task: Task, tokenizer: PreTrainedTokenizerBase, system: str = "") -> tuple[list[int], list[int]]:
    """The ids of the prompt and of the completion, end of turn included."""
    _, prompt_ids = render(tokenizer, messages_of(task, system))
    return prompt_ids, encode_action(tokenizer, solution_of(task))


def brought_ids(task: Task, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int] | None, list[int]]:
    """The ids of the prompt and of the completion that a task brings with it (`extra_info`), as `sft_row` writes them.

    The prompt's control tokens are such; None if it brings no prompt, or one without any: a question like any other.
    A task that brings no completion has its solution.
    """
    prompt, completion = task.extra_info.get("prompt"), task.extra_info.get("completion")
    is_rendered = isinstance(prompt, str) and any(token in prompt for token in map(str, tokenizer.all_special_tokens))
    ids = tokenizer.encode(prompt, add_special_tokens=False, split_special_tokens=False) if is_rendered else None
    end = str(tokenizer.decode([end_of_turn_ids(tokenizer)[0]]))
    solution = completion.rstrip().removesuffix(end) if isinstance(completion, str) else solution_of(task)
    return ids, encode_action(tokenizer, solution)


def messages_of(task: Task, system: str = "") -> list[Message]:
    """What the model is shown: the question, after a system message if there is one."""
    own = [{"role": "system", "content": system}] if system else []
    return [*own, {"role": "user", "content": task.question}]


def solution_of(task: Task) -> str:
    """The working, without calculator marks, and the answer where a grader finds it."""
    chain = without_calculations(task.chain).strip()
    return "\n\n".join([*([chain] if chain else []), f"Final Answer: {task.result}"])
