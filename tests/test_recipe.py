"""The recipe of a pipeline: what a user can get wrong in it, and the keys of the chapter's config.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, refused
from test_pipeline import THRESHOLD, put_files

from gruppo.cli_pipeline import apart
from gruppo.errors import ConfigError, StoreError
from gruppo.pipeline.recipe import Recipe, read_recipe, run_config
from gruppo.pipeline.results import FILE
from gruppo.pipeline.steps import changes, contents, inputs_of, read_tasks
from gruppo.run import check
from gruppo.store import fingerprint


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["recipe.toml", "--pipelin.save=merged"], "unknown key pipelin"),
        (["recipe.toml", "--pipeline.sft_acuracy_threshold=0.5"], "did you mean pipeline.sft_accuracy_threshold?"),
        (["recipe.toml", f"--{THRESHOLD}=40"], f"{THRESHOLD} = 40: expected less than or equal to 1"),
        (["recipe.toml", "--pipeline.sft_output=../x"], "expected a folder of its own inside --out"),
        (["recipe.toml", "--pipeline.sft_output=sft"], "expected a folder of its own inside --out"),
        (["recipe.toml", "--pipeline.sft_output=models/grpo/a"], "expected two folders side by side"),
        (["recipe.toml", "--sft.steps=0"], "sft.steps = 0: a pipeline begins with SFT"),
        (["recipe.toml", "--train.steps=0"], "train.steps = 0: a pipeline ends with GRPO"),
        (["recipe.toml", "--eval.stages=false"], "eval.stages = false: a pipeline evaluates"),
        (["recipe.toml", '--eval.modes=["sampled"]'], 'put "greedy" first'),
        (["recipe.toml", "--tasks.train=none.jsonl"], "none.jsonl: no such file"),
        (["recipe.toml", "--tasks.train=gsm8k"], "gsm8k: no data/gsm8k/main/train-*.parquet; put the file"),
        (["recipe.toml", "--algorithm.loss=ppo_clop"], "did you mean ppo_clip?"),
        (["recipe.toml", "--roles.planner.top_p=0.5"], "a trained role samples with top_p = 1"),
        (["recipe.toml", "--start_from=nowhere"], "nowhere is not a run folder"),
        (["recipes.toml"], "recipes.toml: no such file: did you mean recipe.toml?"),
        (["recipe.toml", "--seeds", "0", "1", "0"], "--seeds: 0 is given twice"),
        (["recipe.toml", "--seeds", "0", "1", "--seed", "2"], "--seed and --seeds: keep one"),
        (["recipe.toml", "stray"], "unexpected argument 'stray'"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_nothing_is_written(
    gruppo: Command, tmp_path: Path, words: list[str], expected: str
) -> None:
    put_files(tmp_path)
    refused(gruppo("pipeline", "run", *words, "--out", "new"), expected)
    assert not (Path("new") / FILE).exists()


def test_seeds_are_the_numbers_that_no_flag_stands_before() -> None:
    words = ["--train.steps", "3", "1", "--seed", "--sft.steps=2", "4", "name", "-5"]
    assert apart(words) == ([1, 4, -5], ["--train.steps", "3", "--seed", "--sft.steps=2", "name"])


# What counts --------------------------------------------------------------------------------------------------------


def test_every_setting_counts_somewhere_or_is_known_not_to() -> None:
    """So that a key that comes up one day can't change a result without its step being played again."""
    recipe = Recipe(train={"eval_every": 1})  # type: ignore[arg-type]
    used = {key for inputs in inputs_of(recipe, read_tasks(recipe)).values() for key in inputs}
    keys = set(flat(recipe.model_dump(exclude_none=True)))
    free = {key for key in keys - used if not key.startswith(("tasks.", "monitor."))}
    assert free == {"title", "monitors", THRESHOLD}


def flat(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]


def test_changes_and_contents(tmp_path: Path) -> None:
    before = {"a": 1, "b": [2], "file x": "0", "sft": "1"}
    assert changes("grpo", before, {"a": 2, "c": 3, "file x": "1", "sft": "2"}) == (
        "changed: a (1 to 2), b ([2] to unset), file x and 1 more"
    )
    assert changes("grpo", before, {**before, "sft": "2"}) == ""
    file = tmp_path / "own.py"
    file.write_text("x = 1")
    found = contents({f"rewards.{file}:x": 1.0, "tools.names": ["python", f"{file}:x"], "title": "a" * 5000, "n": "\0"})
    assert found == {f"file {file}": fingerprint(file)}
    with pytest.raises(StoreError, match="not a run folder"):
        contents({"start_from": str(tmp_path)})


# The chapter's config.json -------------------------------------------------------------------------------------------

CHAPTER = {
    "model": {"base_model": "Qwen/Qwen3-0.6B"},
    "data": {"max_samples": 100},
    "sft": {"output_dir": "./models/sft_model", "num_epochs": 2, "batch_size": 4},
    "grpo": {"output_dir": "./models/grpo_model", "num_epochs": 2, "batch_size": 2},
    "eval": {"max_samples": 20, "sft_accuracy_threshold": 0.4},
    "monitoring": {"use_wandb": False, "use_tensorboard": True, "wandb_project": None},
}


def chapter(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CHAPTER, **changes}))
    return file


def test_every_key_of_the_chapter_has_its_effect(tmp_path: Path) -> None:
    recipe = read_recipe(chapter(tmp_path), {})
    check(run_config(recipe))
    assert recipe.model.base == "Qwen/Qwen3-0.6B" and recipe.tasks.train == "gsm8k:train"
    assert (recipe.tasks.num_train, recipe.tasks.num_test) == (100, 20)
    assert (recipe.sft.steps, recipe.sft.batch_size, recipe.sft.demonstrations) == (50, 4, 100)
    assert (recipe.train.steps, recipe.train.tasks_per_step) == (100, 2)
    assert recipe.pipeline.sft_accuracy_threshold == 0.4
    assert (recipe.pipeline.sft_output, recipe.pipeline.grpo_output) == ("./models/sft_model", "./models/grpo_model")
    assert recipe.monitors == ["tensorboard"] and recipe.monitor.project == "gruppo"
    own = read_recipe(
        chapter(
            tmp_path,
            model={"base_model": "tiny"},
            data={"max_samples": None},
            sft={"num_epochs": 3},
            eval={},
            monitoring={"use_wandb": True, "wandb_project": "mine"},
        ),
        {"train.attempts": "8"},
    )
    assert own.model.base == "tiny" and own.train.attempts == 8
    assert (own.tasks.num_train, own.tasks.num_test, own.sft.steps) == (7473, 1319, 5605)
    assert own.monitors == ["wandb"] and own.monitor.project == "mine"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sft": {"num_epoch": 2}}, "unknown key sft.num_epoch = 2: did you mean sft.num_epochs?"),
        ({"grpoo": {}}, "unknown key grpoo: did you mean grpo?"),
        ({"data": {"max_samples": "100"}}, 'data.max_samples = "100": expected a valid integer'),
        ({"data": {"max_samples": 0}}, "data.max_samples = 0: expected greater than or equal to 1"),
        ({"sft": {"output_dir": "/models"}}, "sft.output_dir"),
        ({"eval": {"sft_accuracy_threshold": 40}}, "expected less than or equal to 1"),
    ],
)
def test_a_wrong_key_of_the_chapter_is_named(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_recipe(chapter(tmp_path, **changes), {})
    assert expected in str(refusal.value) and "config.json" in str(refusal.value)


def test_a_file_that_is_no_json_is_said_to_be_none(tmp_path: Path) -> None:
    for text, expected in (("{", "not a JSON file"), ("[1]", "expected a table of keys, not [1]")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match="config.json: ") as refusal:
            read_recipe(tmp_path / "config.json", {})
        assert expected in str(refusal.value)


@pytest.mark.slow
def test_the_chapters_file_runs_as_it_is(gruppo: Command, tmp_path: Path) -> None:
    rows = [
        {"question": f"{n} plus {n}?", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"} for n in range(4)
    ]
    for split in ("train", "test"):
        file = tmp_path / "data" / "gsm8k" / f"{split}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(map(json.dumps, rows)))
    chapter(
        tmp_path,
        model={"base_model": "tiny"},
        data={"max_samples": 4},
        monitoring={},
        eval={"max_samples": 2, "sft_accuracy_threshold": 0.0},
    )
    words = ["--model.threads=1", "--roles.agent.max_tokens=8", "--sft.steps=2", "--train.steps=1"]
    assert gruppo("pipeline", "run", "config.json", "--out", "out", *words).code == 0
    assert (tmp_path / "out" / "models" / "grpo_model" / "agent" / "adapter_model.safetensors").exists()


def test_held_out_tasks_of_sft_count_in_sft_alone() -> None:
    plain, held_out = (Recipe.model_validate({"sft": {"eval_every": every}}) for every in (0, 2))
    assert "validation" not in read_tasks(plain)
    found = inputs_of(held_out, read_tasks(held_out))
    assert "validation tasks" in found["sft"] and "validation tasks" not in found["grpo"]
