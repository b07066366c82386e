"""The one-file example: its functions are the package's, its check runs no code, and a few steps learn something."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.algorithms import advantages, losses
from gruppo.algorithms.ratios import Tokens

ROOT = Path(__file__).parents[1]


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grpo_in_one_file", ROOT / "examples" / "grpo_in_one_file.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


example = load_example()


@given(st.lists(st.floats(-10, 10) | st.sampled_from([0.0, 1.0]), min_size=2, max_size=16))
def test_the_advantage_is_the_packages(rewards: list[float]) -> None:
    assert example.grpo(rewards) == advantages.grpo(rewards)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.05, 0.5), st.floats(0.05, 0.5))
def test_the_loss_and_its_gradient_are_the_packages(seed: int, clip_low: float, clip_high: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logprobs, old, advantage = (torch.randn(3, 5, generator=generator) for _ in range(3))
    mask = torch.rand(3, 5, generator=generator) < 0.7
    old[~mask] = float("nan")
    leaf, count = logprobs.clone().requires_grad_(), int(mask.sum())
    example.token_mean(example.ppo_clip(leaf, old, advantage, mask, clip_low, clip_high), count).backward()
    flat = logprobs[mask].clone().requires_grad_()
    tokens = Tokens(old[mask], advantage[mask], torch.arange(count))
    losses_N, _ = losses.ppo_clip(flat, tokens, losses.LossSettings(clip_low=clip_low, clip_high=clip_high))
    (losses_N / max(1, count)).sum().backward()
    assert torch.allclose(leaf.grad[mask], flat.grad, atol=1e-7) and not leaf.grad[~mask].any()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print(12 + 30)", 1.0),
        (" print(30+12) ", 1.0),
        ("print(42)", 1.0),
        ("12 + 30", 0.0),
        ("print(12 - 30)", 0.0),
        ("print(12 + 30", 0.0),
        ("print(12 + 30, 1)", 0.0),
        ("print(12 + 30); print(1)", 0.0),
        ("print(2 ** 99999999)", 0.0),
        ("print(9 ** 4 ** 4 ** 4)", 0.0),
        ("print(__import__('os').getpid())", 0.0),
        ("print(42.0)", 0.0),
        ("print(True * 42)", 0.0),
        ("exec('print(42)')", 0.0),
        ("print(" + "(" * 5000, 0.0),
        ("print(\0)", 0.0),
        ("", 0.0),
    ],
)
def test_the_reward_checks_without_running(text: str, expected: float) -> None:
    assert example.reward(example.Task("12 plus 30", 42), text) == expected


def test_held_out_tasks_share_nothing_with_training() -> None:
    training, held_out = example.draw_tasks(300, "a", held_out=False), example.draw_tasks(300, "b", held_out=True)
    assert not {task.question for task in training} & {task.question for task in held_out}
    assert all(example.reward(task, f"print({task.result})") == 1.0 for task in training)


def test_the_prompt_is_the_quickstarts() -> None:
    prompts = tomllib.loads((ROOT / "gruppo" / "teams" / "prompts" / "solver_compact.toml").read_text())
    prompt = prompts["executor"]
    assert example.SYSTEM == prompt["system"]
    assert example.USER == prompt["user"].replace("{tool_name}", "python")


def test_ids_are_trained_as_they_were_sampled() -> None:
    """Log-probs of a padded batch equal those of each attempt alone, and the mask is 1 on the sampled ids only."""
    torch.manual_seed(0)
    tokenizer = example.AutoTokenizer.from_pretrained(example.TINY)
    model = example.AutoModelForCausalLM.from_pretrained(example.TINY).eval()
    tasks = [example.Task("7 plus 8", 15), example.Task("square of 431", 185761)]
    (group, _) = example.collect(model, tokenizer, tasks, attempts=3)
    attempts = [*group.attempts, example.Attempt(group.attempts[0].prompt_ids, [5, 6], "")]
    with torch.no_grad():
        together, mask = example.logprobs(model, attempts, tokenizer.pad_token_id)
        assert mask.sum(1).tolist() == [len(attempt.action_ids) for attempt in attempts]
        for row, attempt in enumerate(attempts):
            alone, _ = example.logprobs(model, [attempt], tokenizer.pad_token_id)
            torch.testing.assert_close(together[row][mask[row]], alone[0])


@pytest.mark.slow
def test_a_few_steps_raise_the_success_on_held_out_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    found = example.main("--steps 12 --tasks 8 --attempts 8 --held-out 60".split())
    assert found["after"] > found["before"] + 0.1
    assert capsys.readouterr().out.count("reward") == 12
