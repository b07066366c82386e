"""GRPO in one file: the embedded model learns to write `print(12 + 30)` for "12 plus 30". CPU, one or two minutes.

The executor of the quickstart team on its own, with the same words as the package: a Task is tried by a Group of
attempts, each gets a reward, `grpo` turns a group's rewards into advantages, and `ppo_clip` with `token_mean` turns
those into a gradient on LoRA weights. The base knows the format and makes tempting mistakes (no print, another
operation), so some attempts of a group are better than others. That difference is all GRPO needs.

    python examples/grpo_in_one_file.py --steps 30

Read it from `main` upwards. It needs torch and transformers only, and leaves out what the package is for: several
roles and turns, real tools, failures that are nobody's fault, microbatches, run folders and resuming.
"""

from __future__ import annotations

import argparse
import ast
import operator
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedTokenizerBase

TINY = Path(__file__).parents[1] / "gruppo" / "models" / "tiny"
SYSTEM, USER = "Write the command.", "Tool: python\nSub-goal: {sub_goal}"
OPERATIONS = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}
NODES = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow}


# ---- tasks and their reward ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One problem: the sub-goal in words, and the number that the command has to print."""

    question: str
    result: int


def draw_tasks(count: int, seed: str, held_out: bool) -> list[Task]:
    """`count` different tasks. Held-out ones have a first operand that no training task has."""
    random_numbers, tasks = random.Random(seed), {}
    while len(tasks) < count:
        word = random_numbers.choice(["plus", "minus", "times", "square"])
        a, b = random_numbers.randrange(100, 900), random_numbers.randrange(11, 100)
        if word == "times":
            a, b = random_numbers.randrange(11, 100), random_numbers.randrange(2, 10)
        if word == "square":
            a = random_numbers.randrange(10, 100)
            task = Task(f"square of {a}", a * a)
        else:
            task = Task(f"{a} {word} {b}", OPERATIONS[word](a, b))
        if (a % 5 == 0) == held_out:
            tasks[task.question] = task
    return list(tasks.values())


def value_of(node: ast.expr) -> int:
    """What an expression of small numbers comes to. ValueError for anything else: a model's code is never just run."""
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**6:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in NODES:
        left, right = value_of(node.left), value_of(node.right)
        if isinstance(node.op, ast.Pow) and not 0 <= right <= 4:
            raise ValueError("a large power")
        return NODES[type(node.op)](left, right)
    raise ValueError("not arithmetic")


def reward(task: Task, text: str) -> float:
    """1.0 if the text is one `print(...)` of the right value, else 0.0."""
    try:
        statement = ast.parse(text.strip(), mode="eval").body
        is_print = (
            isinstance(statement, ast.Call) and isinstance(statement.func, ast.Name) and statement.func.id == "print"
        )
        if not is_print or len(statement.args) != 1 or statement.keywords:
            return 0.0
        return float(value_of(statement.args[0]) == task.result)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # whatever a parser makes of what a model wrote
        return 0.0


# ---- the algorithm: from rewards to a loss ---------------------------------------------------------------------------


def grpo(rewards_G: Sequence[float], epsilon: float = 1e-6) -> list[float]:
    """(r - mean) / (std + epsilon) within one group: better than its siblings is positive (arXiv 2402.03300)."""
    if max(rewards_G) - min(rewards_G) <= 1e-6 * max(1.0, *map(abs, rewards_G)):
        return [0.0] * len(rewards_G)  # all equal: nothing to learn from this group
    mean, std = statistics.fmean(rewards_G), statistics.stdev(rewards_G)
    return [(reward - mean) / (std + epsilon) for reward in rewards_G]


def ppo_clip(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """-min(ratio A, clip(ratio) A) per token: no reason to move a token's probability further than the clip allows."""
    log_ratio_BT = torch.where(mask_BT, logprobs_BT - old_logprobs_BT, 0.0).clamp(-20, 20)
    ratio_BT = log_ratio_BT.exp()
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    return torch.where(mask_BT, -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT), 0.0)


def token_mean(losses_BT: Tensor, num_tokens: int) -> Tensor:
    """One normaliser for the whole optimizer step: every token weighs the same, however the batch is cut."""
    return losses_BT.sum() / max(1, num_tokens)


# ---- the policy: LoRA weights on a frozen base -----------------------------------------------------------------------


class LoRA(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices, which starts at zero (arXiv 2106.09685)."""

    def __init__(self, base: nn.Linear, rank: int, scale: float = 2.0) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + self.scale * (inputs @ self.down.T) @ self.up.T


def add_lora(model: nn.Module, rank: int) -> list[nn.Parameter]:
    """Freeze the model and put a LoRA around each linear layer but the output; returns what is trained."""
    model.requires_grad_(False)
    linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"]
    for name in linear:
        parent, _, child = name.rpartition(".")
        layer = LoRA(model.get_submodule(name), rank)
        setattr(model.get_submodule(parent), child, layer)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class Attempt:
    """One sampled action, its ids exactly as they were drawn: text is for the reward, ids are for the gradient."""

    prompt_ids: list[int]
    action_ids: list[int]
    text: str


@dataclass(frozen=True)
class Group:
    """All attempts at one task by the same weights, and the reward of each: what a baseline is taken over."""

    task: Task
    attempts: list[Attempt]
    rewards: list[float]


def encode(tokenizer: PreTrainedTokenizerBase, task: Task) -> list[int]:
    """The prompt as the chat template renders it."""
    user = {"role": "user", "content": USER.format(sub_goal=task.question)}
    messages = [{"role": "system", "content": SYSTEM}, user]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def padded(rows: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows aligned at their right end: ids_BS, attention_BS (0 on padding) and positions_BS."""
    width = max(map(len, rows))
    ids_BS = torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows])
    attention_BS = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids_BS, attention_BS, (attention_BS.cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def sample(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]], max_tokens: int = 20
) -> list[Attempt]:
    """One action per prompt, all drawn side by side, a token at a time, until each has said its end-of-turn token."""
    ids_BS, attention_BS, positions_BS = padded(prompts, tokenizer.pad_token_id)
    drawn, cache = [], DynamicCache(config=model.config)
    finished_B = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(max_tokens):
        output = model(ids_BS, attention_mask=attention_BS, position_ids=positions_BS, cache=cache, use_cache=True)
        logits_BV = output.logits[:, -1].float()
        ids_B1 = torch.multinomial(logits_BV.softmax(-1), 1)
        drawn.append(ids_B1)
        finished_B |= ids_B1[:, 0] == tokenizer.eos_token_id
        if finished_B.all():
            break
        ids_BS, positions_BS = ids_B1, positions_BS[:, -1:] + 1
        attention_BS = torch.cat([attention_BS, torch.ones_like(ids_B1)], dim=1)
    attempts = []
    for prompt_ids, ids in zip(prompts, torch.cat(drawn, dim=1).tolist(), strict=True):
        stop = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
        text = tokenizer.decode(ids[:stop], skip_special_tokens=True)
        attempts.append(Attempt(prompt_ids, ids[:stop], text))
    return attempts


def logprobs(model: nn.Module, attempts: Sequence[Attempt], pad_id: int) -> tuple[Tensor, Tensor]:
    """logprobs_BT of the sampled ids, aligned at their right end, and mask_BT: true on those ids, and only there."""
    ids_BS, attention_BS, positions_BS = padded([a.prompt_ids + a.action_ids for a in attempts], pad_id)
    num_actions = max(len(attempt.action_ids) for attempt in attempts)
    logits_BTV = model(
        ids_BS, attention_mask=attention_BS, position_ids=positions_BS, logits_to_keep=num_actions + 1
    ).logits[:, :-1]
    logprobs_BT = logits_BTV.float().log_softmax(-1).gather(-1, ids_BS[:, -num_actions:, None])[..., 0]
    from_the_end_T = torch.arange(num_actions, 0, -1)
    lengths_B1 = torch.tensor([[len(attempt.action_ids)] for attempt in attempts])
    return logprobs_BT, from_the_end_T <= lengths_B1


# ---- the loop --------------------------------------------------------------------------------------------------------


def collect(model: nn.Module, tokenizer: PreTrainedTokenizerBase, tasks: Sequence[Task], attempts: int) -> list[Group]:
    """Try each task `attempts` times and reward what came out."""
    prompts = [encode(tokenizer, task) for task in tasks for _ in range(attempts)]
    found = sample(model, tokenizer, prompts)
    cut = [found[start : start + attempts] for start in range(0, len(found), attempts)]
    return [Group(task, own, [reward(task, a.text) for a in own]) for task, own in zip(tasks, cut, strict=True)]


def learn(
    model: nn.Module, groups: Sequence[Group], optimizer: torch.optim.Optimizer, updates: int, pad_id: int
) -> float:
    """`updates` optimizer steps on the groups that hold a signal; returns the share of such groups."""
    kept = [group for group in groups if any(grpo(group.rewards))]
    if not kept:
        return 0.0
    attempts = [attempt for group in kept for attempt in group.attempts]
    advantages_B1 = torch.tensor([[advantage] for group in kept for advantage in grpo(group.rewards)])
    old_logprobs_BT = None
    for _ in range(updates):
        logprobs_BT, mask_BT = logprobs(model, attempts, pad_id)
        if old_logprobs_BT is None:
            old_logprobs_BT = logprobs_BT.detach()  # of the weights that sampled: in the first update the ratio is 1
        losses_BT = ppo_clip(logprobs_BT, old_logprobs_BT, advantages_B1.expand_as(mask_BT), mask_BT, 0.2, 0.28)
        optimizer.zero_grad()
        token_mean(losses_BT, int(mask_BT.sum())).backward()
        optimizer.step()
    return len(kept) / len(groups)


def success(model: nn.Module, tokenizer: PreTrainedTokenizerBase, tasks: Sequence[Task]) -> float:
    """The share of tasks that one attempt, sampled as in training, solves."""
    return statistics.fmean(group.rewards[0] for group in collect(model, tokenizer, tasks, attempts=1))


def main(words: Sequence[str] | None = None) -> dict[str, float]:
    """Train, printing a curve of the reward; returns the success on held-out tasks before and after."""
    parser = argparse.ArgumentParser(description="GRPO in one file.")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=16, help="groups per step")
    parser.add_argument("--attempts", type=int, default=8, help="per group")
    parser.add_argument(
        "--updates", type=int, default=2, help="optimizer steps per rollout; beyond the first the clip matters"
    )
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--held-out", type=int, default=200, help="tasks of the test before and after")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    torch.manual_seed(options.seed)
    tokenizer, model = AutoTokenizer.from_pretrained(TINY), AutoModelForCausalLM.from_pretrained(TINY).eval()
    optimizer = torch.optim.AdamW(add_lora(model, rank=16), options.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    held_out = draw_tasks(options.held_out, "held out", held_out=True)
    training = draw_tasks(options.steps * options.tasks, f"training {options.seed}", held_out=False)

    before, started = success(model, tokenizer, held_out), time.monotonic()
    print(f"held-out success before: {before:.1%}")
    for step in range(options.steps):
        tasks = training[step * options.tasks : (step + 1) * options.tasks]
        groups = collect(model, tokenizer, tasks, options.attempts)
        with_signal = learn(model, groups, optimizer, options.updates, tokenizer.pad_token_id)
        mean = statistics.fmean(value for group in groups for value in group.rewards)
        bar = "█" * round(40 * mean)
        print(f"step {step + 1:3d}  reward {mean:.2f} {bar:<40}  {with_signal:4.0%} of groups with signal", flush=True)
    after = success(model, tokenizer, held_out)
    print(f"held-out success after: {after:.1%}, in {time.monotonic() - started:.0f} s")
    return {"before": before, "after": after}


if __name__ == "__main__":
    main()
