"""Lints: each rule on a setting that it is about and on one that it is not, and silence on what is known to work."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command

from gruppo.algorithms.presets import PRESETS
from gruppo.config import load
from gruppo.lints import RULES, lint
from gruppo.run import RunConfig

ROOT = Path(__file__).parents[1]
BASE = """
[model]
base = "some/model"
[policies.planner]
[roles.planner]
policy = "planner"
[sft]
steps = 0
"""
CASES = [  # rule, overrides, expected key, part of the advice; the value is that of the override for the key
    ("temperatures", {"roles.checker.temperature": "0.5", "team.program": "search_from_state"}, "on the same ground"),
    ("learning_rates", {"policies.planner.learning_rate": "5e-4"}, "collapse; begin at 1e-05"),
    ("learning_rates", {"policies.planner.learning_rate": "1e-7"}, "hardly moves"),
    ("learning_rates", {"policies.planner.learning_rate": "5e-5", "policies.planner.full": "true"}, "begin at 1e-06"),
    ("sft_learning_rate", {"sft.learning_rate": "2e-3", "sft.steps": "5"}, "0.0001 is usual"),
    ("sft_learning_rate", {"sft.learning_rate": "2e-4", "sft.steps": "5", "policies.planner.full": "true"}, "5e-05"),
    ("kl_coefficient", {"algorithm.kl_coefficient": "0.5"}, "tied to its reference"),
    ("kl_coefficient", {"algorithm.kl_coefficient": "1e-5"}, "use 0 or 0.001"),
    ("group_size", {"train.attempts": "2"}, "use 4 to 16"),
    ("group_size", {"train.attempts": "128"}, "more tasks"),
    ("adapters", {"policies.planner.rank": "2", "policies.planner.alpha": "4"}, "4 to 8 for simple"),
    ("adapters", {"policies.planner.rank": "256", "policies.planner.alpha": "256"}, "16 to 64"),
    ("adapters", {"policies.planner.alpha": "8"}, "here 16 or 32"),
    ("adapters", {"policies.planner.alpha": "128"}, "scales the learning rate"),
    ("lengths", {"roles.planner.max_tokens": "16"}, "cut off; 256 to 512"),
    ("lengths", {"algorithm.overlong_length": "4096", "algorithm.truncated": "soft_overlong"}, "at most 1280"),
    ("truncation", {"algorithm.truncated": "none", "roles.planner.max_tokens": "2048"}, "'mask' leaves it out"),
    ("temperatures", {"roles.planner.temperature": "0.3"}, "no signal"),
    ("temperatures", {"roles.planner.temperature": "1.5"}, "noise"),
    ("clip_range", {"algorithm.clip_low": "0.9", "train.updates": "2"}, "0.2 and 0.28"),
    ("clip_range", {"algorithm.clip_high": "0.1", "train.updates": "2"}, "below clip_low = 0.2"),
    (
        "clip_range",
        {"algorithm.clip_low": "0.2", "algorithm.ratio_level": "sequence", "train.updates": "2"},
        "3e-4 and 4e-4",
    ),
    ("schedule", {"train.warmup_steps": "20"}, "of 40 steps"),
    ("schedule", {"train.warmup_steps": "2", "train.decay_steps": "38"}, "no step of 40"),
    ("schedule", {"train.eval_every": "50"}, "only 40 steps"),
    ("batches", {"train.tasks_per_step": "1"}, "8 episodes"),
    ("batches", {"train.updates": "17"}, "16 of them make as many"),
    ("batches", {"train.updates": "20", "train.tasks_per_step": "32"}, "1 to 4"),
    ("batches", {"tasks.num_train": "8"}, "more than once"),
]


def config_of(tmp_path: Path, overrides: dict[str, str]) -> RunConfig:
    file = tmp_path / "run.toml"
    file.write_text(BASE)
    return load(RunConfig, [file], overrides)


@pytest.mark.parametrize(("rule", "overrides", "advice"), CASES, ids=lambda value: str(value)[:60])
def test_each_rule_says_what_is_odd_and_only_that(
    tmp_path: Path, rule: str, overrides: dict[str, str], advice: str
) -> None:
    config = config_of(tmp_path, overrides)
    (own,) = (one for one in RULES if one.__name__ == rule)
    key = next(iter(overrides))
    found = [one for one in own(config) if one.key == key]
    assert len(found) == 1 and advice in found[0].advice, list(own(config))
    assert f"{key} = " in str(found[0]) and "\n" not in str(found[0])
    value = config.model_dump()
    for part in key.split("."):
        value = value[part]
    assert found[0].value == value
    assert {one.key for one in lint(config)} <= set(overrides) | {"algorithm.clip_high"}


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _, _ in CASES} == {rule.__name__ for rule in RULES}


def test_the_defaults_and_what_is_known_to_work_are_left_alone(tmp_path: Path) -> None:
    assert lint(config_of(tmp_path, {})) == []
    assert lint(load(RunConfig, [ROOT / "gruppo/quickstart.toml"])) == []
    assert lint(load(RunConfig, [ROOT / "examples/llm.toml"])) == []
    for preset in PRESETS:
        assert lint(config_of(tmp_path, {"algorithm.preset": preset, "train.updates": "4"})) == [], preset


def test_roles_and_policies_that_learn_nothing_are_held_to_nothing(tmp_path: Path) -> None:
    odd = {"roles.writer.temperature": "0.0", "roles.writer.max_tokens": "4", "sft.learning_rate": "1.0"}
    assert lint(config_of(tmp_path, odd)) == []
    assert lint(config_of(tmp_path, {"train.steps": "0"})) == []
    assert lint(config_of(tmp_path, {"roles.planner.trained": "false", "roles.planner.temperature": "0.0"})) == []


def test_hints_are_printed_beside_the_config_and_stop_nothing(gruppo: Command, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(BASE)
    ended = gruppo("config", "-c", str(file), "--train.attempts", "2")
    assert ended.code == 0 and "hint" not in ended.out and "attempts = 2" in ended.out
    assert ended.line.startswith("hint: train.attempts = 2: ")
