"""The curriculum: families get tasks by the chance that they teach something, and a resumed run deals the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_run import config_of, parts_of

from gruppo.data.base import TaskSet, family_of
from gruppo.evaluation.metrics import rollout_metrics
from gruppo.training.curriculum import Curriculum, dealt
from gruppo.training.grpo import grpo
from gruppo.types import Task

TASKS = TaskSet(
    Task(f"{family}-{number}", "?", "!", extra_info={"family": family})
    for family in ("easy", "hard", "new")
    for number in range(24)
)


def counts(curriculum: Curriculum, step: int, size: int = 12) -> dict[str, int]:
    return dict(Counter(map(family_of, curriculum.batch(step, size, seed=1))))


def test_without_a_curriculum_tasks_come_as_from_the_task_set() -> None:
    plain = Curriculum("none", TASKS, 8, [{"success_of/easy": 1.0}])
    assert plain.batch(3, 12, 1) == TASKS.batch(3, 12, 1)


def test_families_with_a_signal_get_the_tasks() -> None:
    curriculum = Curriculum("signal", TASKS, 8)
    assert counts(curriculum, 0) == {"easy": 4, "hard": 4, "new": 4}
    curriculum.observe({"success_of/easy": 1.0, "success_of/hard": 0.4})
    # 1 - (1/8)^8 - (7/8)^8 = 0.656 for easy, 1 - 0.4^8 - 0.6^8 = 0.983 for hard, 1 - 2/2^8 = 0.992 for new
    assert counts(curriculum, 1) == {"easy": 3, "hard": 4, "new": 5}
    curriculum.observe({"success_of/easy": 0.0})  # the rate of easy is now 0.5
    assert counts(curriculum, 1) == {"easy": 4, "hard": 4, "new": 4}


def test_families_that_fail_get_the_tasks() -> None:
    curriculum = Curriculum("failures", TASKS, 8, [{"success_of/easy": 1.0, "success_of/hard": 0.0}])
    assert counts(curriculum, 1) == {"easy": 1, "hard": 7, "new": 4}  # weights 1/8, 7/8, 1/2
    curriculum.observe({"success_of/hard": 1.0})  # now at a half
    assert counts(curriculum, 1, size=9) == {"easy": 1, "hard": 4, "new": 4}


def test_a_batch_is_a_function_of_what_was_seen_and_not_ordered_by_family() -> None:
    seen = [{"success_of/easy": 1.0, "success_of/hard": 0.4}, {"success_of/new": 0.0}]
    one, two = Curriculum("signal", TASKS, 8, seen), Curriculum("signal", TASKS, 8)
    for record in seen:
        two.observe(record)
    batches = [one.batch(step, 12, 1) for step in range(10)]
    assert batches == [two.batch(step, 12, 1) for step in range(10)]
    assert all(len({task.id for task in batch}) == 12 for batch in batches)
    assert any(family_of(batch[0]) != family_of(batches[0][0]) for batch in batches)
    assert {task.id for batch in batches for task in batch} != {task.id for task in batches[0]}


@given(st.integers(0, 200), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_shares_add_up_and_are_within_one_of_exact(size: int, weights: list[float]) -> None:
    shares = dealt(size, weights)
    assert sum(shares) == size
    assert all(abs(share - size * weight / sum(weights)) < 1 for share, weight in zip(shares, weights, strict=True))


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_resumed_run_deals_the_same_tasks(tmp_path: Path, stop_after: int) -> None:
    settings = {"train__curriculum": "failures", "train__tasks_per_step": "4", "train__save_every": "1"}
    settings["tasks__families"] = '["lookup", "compute"]'
    config = config_of(tmp_path, **settings, train__steps="3")

    def asked(out: str, steps: int, resume: bool = False) -> list[list[str]]:
        with parts_of(config, tmp_path / out, resume=resume) as parts:
            measure = {"success_of/lookup": 0.0, "success_of/compute": 1.0}
            parts = replace(parts, measure=lambda groups: rollout_metrics(groups) | measure)
            grpo(parts, config.train.model_copy(update={"steps": steps}))
            return [[family_of(g.task) for g in parts.run.read_episodes(f"grpo-{n + 1:06d}")] for n in range(steps)]

    whole = asked("whole", 3)
    assert [step.count("lookup") for step in whole] == [2, 3, 3]
    asked("halted", stop_after)
    assert asked("halted", 3, resume=True) == whole
