"""Groups to numbers: who counts as solved, what failure does to a rate, pairing, and a training step's record."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from gruppo.evaluation.metrics import compare, rollout_metrics, solved, summarise
from gruppo.evaluation.statistics import wilson
from gruppo.types import Episode, Group, Outcome, Sampling, Score, StopReason, Task, ToolEvent, ToolResult, Turn


def _turn(role: str = "planner", tokens: int = 3, error: str = "") -> Turn:
    ids = tuple(range(tokens))
    return Turn(role, role, 0, "p", (1,), ids, (-1.0,) * tokens, Sampling(), StopReason.stop, "text", error=error)


def _episode(exact: float | None, outcome: Outcome = Outcome.completed, **fields: object) -> Episode:
    episode = Episode("t", "t", 0, 0, outcome=outcome, reward=exact, scores={"exact": Score(exact)})
    for name, value in fields.items():
        setattr(episode, name, value)
    return episode


def _group(task_id: str, *episodes: Episode, **extra: object) -> Group:
    return Group(task_id, Task(task_id, "q", "r", extra_info=extra), list(episodes))


def _family(task: Task) -> str:
    return str(task.extra_info.get("family", "all"))


def _evaluation(rates: Sequence[float]) -> list[Group]:
    return [_group(f"t{i}", _episode(rate)) for i, rate in enumerate(rates)]


def test_solved_takes_exact_then_reward() -> None:
    assert solved(Episode("t", "g", 0, 0, reward=1.0, scores={"exact": Score(0.0)})) is False
    assert solved(Episode("t", "g", 0, 0, reward=1.0, scores={"exact": Score(None, "judge down")})) is None
    assert solved(Episode("t", "g", 0, 0, reward=1.0)) is True
    assert solved(Episode("t", "g", 0, 0, reward=0.9)) is False
    assert solved(Episode("t", "g", 0, 0)) is None


def test_success_is_a_mean_over_tasks_not_episodes() -> None:
    often = _group("often", *[_episode(1.0)] * 9, _episode(0.0))
    never = _group("never", _episode(0.0))
    summary = summarise([often, never], _family)
    assert summary["success"] == pytest.approx(0.45)
    assert (summary["n"], summary["episodes"]) == (2, 11)
    assert summary["ci95"] == pytest.approx(wilson(0.9, 2))


def test_failures_count_as_unsolved_and_are_told() -> None:
    groups = [
        _group("a", _episode(1.0)),
        _group("b", _episode(1.0, Outcome.timeout)),  # a score that was left behind can't make a failure a success
        _group("c", _episode(None)),
        _group("d"),
    ]
    summary = summarise(groups, _family)
    assert (summary["success"], summary["n"], summary["infrastructure"], summary["missing"]) == (0.25, 4, 1, 2)
    assert summary["success_scorable"] == 1.0
    assert "success_scorable" not in summarise(groups[:1], _family)


def test_behaviour_leaves_out_what_the_infrastructure_failed() -> None:
    events = [ToolEvent(0, "calc", {}, ToolResult(True, "2")), ToolEvent(0, "calc", {}, ToolResult(False, error="x"))]
    sound = _episode(1.0, turns=[_turn(), _turn("executor", 5, error="no JSON")], events=events)
    broken = _episode(None, Outcome.engine_failed, turns=[_turn(tokens=100)])
    summary = summarise([_group("a", sound), _group("b", broken)], _family)
    assert (summary["turns"], summary["tool_calls"], summary["action_tokens"]) == (2.0, 2.0, 8.0)
    assert (summary["tool_calls_ok"], summary["turns_parsed"]) == (0.5, 0.5)


def test_parts_are_ordered_and_only_there_if_the_tasks_say_so() -> None:
    groups = [
        _group("a", _episode(1.0), family="ratio", steps=10, wording="seen"),
        _group("b", _episode(0.0), family="ratio", steps=2, wording="unseen"),
        _group("c", _episode(1.0, Outcome.completed), family="change"),
    ]
    summary = summarise(groups, _family)
    assert list(summary["by_steps"]) == ["2", "10"]  # as numbers, not as text
    assert summary["by_steps"]["10"] == {"n": 1, "success": 1.0, "ci95": list(wilson(1, 1))}
    assert summary["by_wording"]["unseen"]["success"] == 0.0
    assert {name: part["n"] for name, part in summary["by_family"].items()} == {"change": 1, "ratio": 2}
    assert summary["outcomes"] == {"completed": 3}
    assert summarise(groups[2:], _family).keys().isdisjoint({"by_steps", "by_wording"})


@pytest.mark.parametrize("groups", [[], [_group("a")], [_group("a", _episode(None, Outcome.judge_failed))]])
def test_empty_sets_hold_no_nan(groups: list[Group]) -> None:
    summary = summarise(groups, _family)
    json.dumps([summary, rollout_metrics(groups), compare(groups, groups)], allow_nan=False)
    assert {"turns", "tool_calls_ok", "success_scorable"}.isdisjoint(summary)


def test_compare_pairs_by_task_whatever_the_order() -> None:
    before, after = _evaluation([0, 0, 1, 1]), _evaluation([1, 1, 1, 0])
    comparison = compare(before, after[::-1])
    assert (comparison["n"], comparison["fixed"], comparison["broken"]) == (4, 2, 1)
    assert comparison["gain"] == pytest.approx(0.25)
    low, high = comparison["gain_ci95"]
    assert -0.75 <= low < 0.25 < high <= 1.0
    assert compare(before, after) == compare(before, after)


def test_compare_refuses_what_it_cannot_pair() -> None:
    with pytest.raises(ValueError, match="1 ids are in only one, as 't2'"):
        compare(_evaluation([0, 1]), _evaluation([0, 1, 1]))
    with pytest.raises(ValueError, match="'t0' comes more than once"):
        compare(_evaluation([0]) + _evaluation([1]), _evaluation([0]))


def test_rollout_metrics_of_a_step() -> None:
    turns = [_turn(tokens=4), _turn("executor", 6), _turn("executor", 8, error="bad")]
    groups = [
        _group("a", _episode(1.0, turns=turns, turn_rewards=[0.5] * 4), _episode(0.0, retries=2, turns=turns[:1])),
        _group("b", _episode(1.0), _episode(None, Outcome.timeout, turns=turns)),
    ]
    metrics = rollout_metrics(groups)
    assert metrics["reward/mean"] == pytest.approx(2 / 3)
    assert metrics["reward/std"] == pytest.approx(math.sqrt(2 / 9))
    assert metrics["reward/group_std"] == pytest.approx(0.25)  # 0.5 in one group, 0 in the other
    assert metrics["reward_of/executor"] == 0.5
    of_family = rollout_metrics(groups, family=lambda task: task.id)
    assert (of_family["success_of/a"], of_family["success_of/b"]) == (0.5, 1.0) and "success_of/a" not in metrics
    assert metrics["success"] == pytest.approx(2 / 3)
    assert (metrics["outcomes/completed"], metrics["outcomes/timeout"]) == (0.75, 0.25)
    assert (metrics["unscorable"], metrics["infrastructure"], metrics["retries"]) == (1, 1, 2)
    assert metrics["turns/mean"] == pytest.approx(4 / 3)
    assert (metrics["turns/executor"], metrics["tokens/executor"]) == (pytest.approx(2 / 3), 7)
    assert metrics["turns_parsed"] == 0.75
    assert all(isinstance(value, float) for value in metrics.values())
