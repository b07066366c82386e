"""Alarms: quiet on a healthy run, raised at the right step of a sick one, then still for a while; resumed alike."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.config import load
from gruppo.errors import ConfigError
from gruppo.training.alarms import (
    ALARMS,
    Alarms,
    AlarmsConfig,
    above,
    below,
    fell_from_peak,
    fell_from_start,
    in_a_row,
    not_finite,
    rose,
)

STEPS, ONSET, WINDOW = 60, 30, 20  # the last step that is healthy
POLICIES = ("planner", "executor")

# alarm: metric, its value after ONSET (or a function of the step), the steps at which the alarm has to go off
SICK = {
    "loss_not_finite": ("loss/planner", math.inf, [31, 51]),
    "gradient_not_finite": ("grad_norm/planner", math.nan, [31, 51]),
    "skips_in_a_row": ("skipped/planner", 1, [35, 55]),
    "gradient_exploding": ("grad_norm/planner", 150, [31, 51]),
    "gradient_high": ("grad_norm/planner", 19, [41]),  # 10 of 20 make the mean 10, 11 make it 10.9; again at 61
    "gradient_vanishing": ("grad_norm/planner", 0.0005, [50]),
    "kl_high": ("kl/planner", 0.4, [39, 59]),  # 0.05 + 0.35 n / 20 > 0.2 from n = 9 on
    "kl_low": ("kl/planner", 0.0, [50]),
    "kl_old_high": ("kl_old/planner", 0.11, [40, 60]),
    "ratio_high": ("ratio/planner", 2.5, [31, 51]),
    "ratio_low": ("ratio/planner", 0.4, [31, 51]),
    "clip_fraction_high": ("clipped/planner", 0.9, [36, 56]),
    "clip_fraction_zero": ("clipped/planner", 0.0, [50]),
    "ess_low": ("ess/planner", 0.05, [40, 60]),
    "mismatch_high": ("mismatch/planner", 0.11, [40, 60]),
    "mismatch_biased": ("mismatch_k1/planner", 0.26, [38, 58]),
    "weight_high": ("weight/planner", 3.1, [40, 60]),
    "weight_low": ("weight/planner", 0.0, [41]),
    "weights_scattered": ("chi2_token/planner", 2.1, [40, 60]),
    "entropy_low": ("entropy/planner", 0.0, [49]),
    "entropy_rising": ("entropy/planner", lambda step: 1.0 + 0.05 * (step - ONSET), [47]),
    "spread_collapsed": ("reward/group_std", 0.1, [47]),
    "no_signal": ("groups/dropped", 16, [43]),
    "truncated_high": ("outcomes/max_tokens", 0.3, [36, 56]),
    "tokens_vanishing": ("tokens/planner", 1.0, [50]),
    "role_silent": ("turns/planner", None, [50]),
    "tool_calls_failing": ("tool_calls_ok", 0.5, [44]),
    "reward_hacking": ("eval/success", lambda step: 0.25 if step % 5 == 0 else None, [40, 60]),
    "family_forgotten": ("success_of/lookup", 0.2, [42]),
    "canary_paid": ("canary/reward", 0.5, [31, 51]),
    "judge_gap_high": ("judge_gap", 0.41, [40, 60]),
    "judge_injected": ("injections", 0.11, [40, 60]),
}


HEALTHY = {  # metric, with * for each policy: its value in a run that goes well, its value at the end, its noise
    "loss/*": (0.01, 0.01, 0.1),
    "grad_norm/*": (1.0, 1.0, 0.5),
    "skipped/*": (0.0, 0.0, 0.0),
    "clipped/*": (0.05, 0.05, 0.1),
    "ratio/*": (1.0, 1.0, 0.02),
    "ess/*": (0.9, 0.9, 0.05),
    "kl/*": (0.05, 0.05, 0.1),
    "kl_old/*": (0.0, 0.01, 0.1),
    "mismatch/*": (0.0, 0.001, 0.1),
    "mismatch_k1/*": (0.0, 0.001, 0.1),
    "weight/*": (1.0, 1.0, 0.02),
    "chi2_token/*": (0.0, 0.01, 0.1),
    "entropy/*": (1.0, 0.7, 0.1),
    "tokens/*": (50.0, 40.0, 0.2),
    "turns/*": (2.0, 3.0, 0.2),
    "turns/mean": (4.0, 6.0, 0.2),
    "reward/mean": (0.4, 0.8, 0.1),
    "reward/group_std": (0.4, 0.15, 0.1),
    "success_of/lookup": (0.5, 0.7, 0.1),
    "eval/success": (0.5, 0.7, 0.1),
    "tool_calls_ok": (0.9, 0.9, 0.1),
    "canary/reward": (0.0, 0.0, 0.0),
    "judge_gap": (0.0, 0.02, 0.1),
    "injections": (0.0, 0.01, 0.1),
    "groups/dropped": (4.0, 8.0, 0.0),
    "outcomes/max_tokens": (0.02, 0.02, 0.1),
}


def healthy(step: int, noise: random.Random | None = None) -> dict[str, float | str]:
    """A record as the loop writes it. Without noise nothing changes at all, so that alarms can be worked out."""
    record: dict[str, float | str] = {"stage": "grpo", "step": step, "episodes": 128.0, "infrastructure": 1.0}
    for pattern, (start, end, spread) in HEALTHY.items():
        for metric in [pattern.replace("*", policy) for policy in (POLICIES if "*" in pattern else "-")]:
            trend = start + (end - start) * step / STEPS
            record[metric] = trend * (1 + noise.uniform(-spread, spread)) if noise else start
    if step % 5:
        del record["eval/success"]
    return record


def alarms(updates: int = 2, **settings) -> Alarms:
    return Alarms(AlarmsConfig(**settings), attempts=8, updates=updates)


def sick(name: str) -> list[dict[str, float | str]]:
    metric, value, _ = SICK[name]
    records = [healthy(step) for step in range(1, STEPS + 1)]
    for record in records[ONSET:]:
        found = value(record["step"]) if callable(value) else value
        record.pop(metric, None)
        record |= {} if found is None else {metric: found}
    for record in records:
        record["reward/mean"] = 0.4 + 0.005 * record["step"] if name == "reward_hacking" else 0.4
    return records


def steps_of(watch: Alarms, records, name: str) -> list[int]:
    return [record["step"] for record in records for raised in watch.check(record) if raised.name == name]


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_raises_nothing(seed: int) -> None:
    noise, watch = random.Random(seed), alarms()
    assert not [raised for step in range(1, STEPS + 1) for raised in watch.check(healthy(step, noise))]


def test_every_alarm_has_a_sick_run() -> None:
    assert list(SICK) == [alarm.name for alarm in ALARMS]


@pytest.mark.parametrize("name", SICK)
def test_a_sick_run_raises_its_alarm_at_the_right_step_and_then_once_per_window(name: str) -> None:
    metric, _, expected = SICK[name]
    judged = {"groups/dropped": "groups/no_signal", "outcomes/max_tokens": "truncated"}.get(metric, metric)
    watch = alarms()
    found = [(record["step"], raised) for record in sick(name) for raised in watch.check(record)]
    own = [(step, raised) for step, raised in found if raised.name == name]
    assert [step for step, _ in own] == expected
    assert {raised.metric for _, raised in found} == {judged}  # the other policy is well
    assert {raised.action for _, raised in own} == {
        "stop" if name in ("skips_in_a_row", "reward_hacking", "canary_paid") else "log"
    }
    assert all(len(raised.message) < 160 and "\n" not in raised.message for _, raised in own)


def test_a_message_says_what_how_much_and_what_to_do() -> None:
    watch = alarms(actions={"kl_high": "restore"})
    (raised,) = [raised for record in sick("kl_high") for raised in watch.check(record)][:1]
    assert raised.value == pytest.approx(0.2075) and raised.action == "restore"
    assert raised.message == (
        "kl/planner is 0.208 in the mean of 20 values, above 0.2: "
        "the policy leaves its reference; raise kl_coefficient or learn more slowly"
    )
    fallen = [raised.message for record in sick("tool_calls_failing") for raised in watch.check(record)]
    assert "is 0.62 in the mean of 20 values, and was 0.9 at the start" in fallen[0]


def test_settings_override_and_unknown_names_are_refused() -> None:
    strict = alarms(window=4, thresholds={"kl_high": 0.04}, actions={"kl_high": "stop"})
    assert [(raised.name, raised.action) for step in range(1, 5) for raised in strict.check(healthy(step))] == [
        ("kl_high", "stop")
    ] * len(POLICIES)
    assert not steps_of(alarms(enabled=False), sick("kl_high"), "kl_high")
    for key, text, reason in (
        ("actions", '{kl_hihg = "stop"}', "no alarm 'kl_hihg' to set: did you mean kl_high?"),
        ("thresholds", "{entropy = 1.0}", "no alarm 'entropy' to set"),
        ("thresholds", "{loss_not_finite = 1.0}", "no alarm 'loss_not_finite' to set"),  # it has no limit
        ("actions", '{kl_high = "panic"}', "actions.kl_high"),
    ):
        with pytest.raises(ConfigError) as caught:
            load(AlarmsConfig, overrides={key: text})
        assert reason in str(caught.value) and key in str(caught.value)
    with pytest.raises(ValueError, match="attempts = 0"):
        Alarms(AlarmsConfig(), attempts=0)


def test_absent_metrics_raise_nothing() -> None:
    watch = alarms()
    for step in range(1, STEPS):
        assert watch.check({"stage": "grpo", "step": step}) == []
        assert watch.check({"episodes": 8.0, "infrastructure": 8.0}) == []


def test_a_rollout_that_infrastructure_failed_silences_no_role() -> None:
    watch = alarms()
    for step in range(1, STEPS):
        assert watch.check(healthy(step)) == []
    for _ in range(STEPS):
        assert watch.check({"episodes": 128.0, "infrastructure": 128.0}) == []


def test_without_a_second_update_the_clip_fraction_means_nothing() -> None:
    assert steps_of(alarms(updates=1), sick("clip_fraction_zero"), "clip_fraction_zero") == []


def test_what_is_not_finite_raises_only_the_alarm_for_it() -> None:
    for broken in (math.nan, math.inf, -math.inf, None):
        watch = alarms()
        for step in range(1, ONSET):
            watch.check(healthy(step))
        numbers = [metric for metric in healthy(1) if metric not in ("stage", "step", "episodes")]
        found = watch.check(healthy(ONSET) | dict.fromkeys(numbers, broken))
        assert {raised.name for raised in found} == {"loss_not_finite", "gradient_not_finite"}
        assert len(found) == 2 * len(POLICIES) and "is not finite" in found[0].message


def test_the_spread_of_rewards_may_fall_while_the_reward_rises() -> None:
    records = sick("spread_collapsed")
    for record in records:
        record["reward/mean"] = 0.4 + 0.005 * record["step"]
    assert steps_of(alarms(), records, "spread_collapsed") == []


@pytest.mark.parametrize(("late_reward", "expected"), [(0.8, [60]), (0.5, [])])
def test_held_out_and_training_reward_falling_together_is_no_hacking(late_reward: float, expected: list[int]) -> None:
    records = [healthy(step) for step in range(1, STEPS + 1)]
    for step, record in enumerate(records, start=1):
        record["reward/mean"] = 0.3 if step <= 20 else 0.8 if step <= 40 else late_reward
        if step > 50 and "eval/success" in record:
            record["eval/success"] = 0.25
    assert steps_of(alarms(), records, "reward_hacking") == expected


def test_the_tests_on_worked_numbers() -> None:
    assert above([9, 1, 2, 3], 3, 1.9) and not above([9, 1, 2, 3], 3, 2) and not above([9, 9], 3, 1)
    assert below([9, 1, 2, 3], 3, 2.1) and not below([9, 1, 2, 3], 3, 2) and not below([0, 0], 3, 1)
    assert fell_from_start([10, 10, 7, 7], 2, 0.29) and not fell_from_start([10, 10, 7, 7], 2, 0.3)
    assert not fell_from_start([10, 7], 2, 0.1)
    assert fell_from_peak([1, 1, 5, 5, 3, 3], 2, 1.9) and not fell_from_peak([1, 1, 5, 5, 3, 3], 2, 2)
    assert fell_from_peak([1, 5, 5, 3, 3], 2, 1.9)
    assert rose([7, 1, 1, 9, 9, 2, 2], 4, 0.9) and not rose([0, 1, 1, 9, 9, 2, 2], 4, 1)
    assert not rose([1, 9, 9, 2, 2], 4, 0)
    assert in_a_row([1, 0, 1, 2], 9, 2) and not in_a_row([1, 0, 1, 2], 9, 3)
    assert not_finite([1, math.nan], 9, 0) and not not_finite([math.nan, 1], 9, 0)
    assert not fell_from_start([1.0, 9.0, 0.0, 8.0], 2, 0.1)  # a fall of a fifth, by chance


VALUES = st.one_of(st.floats(-2, 200), st.sampled_from([0.0, 1.0, math.nan, math.inf, None]))
METRICS = ("loss/a", "grad_norm/a", "skipped/a", "kl/a", "clipped/a", "turns/a", "reward/mean", "reward/group_std",
           "eval/success", "tool_calls_ok", "groups/dropped", "outcomes/max_tokens", "entropy/a")  # fmt: skip
RECORDS = st.lists(
    st.dictionaries(st.sampled_from(METRICS), VALUES).map(lambda record: {"stage": "grpo", "episodes": 16.0} | record),
    max_size=40,
)


@given(RECORDS, st.integers(0, 40), st.integers(2, 6))
def test_a_resumed_run_raises_what_one_that_was_not_killed_does(records, cut: int, window: int) -> None:
    whole, resumed = alarms(window=window), alarms(window=window)
    stored = json.loads(
        json.dumps([{key: _stored(value) for key, value in record.items()} for record in records[:cut]])
    )
    for record in records:
        resumed.check(record)  # forgotten by the replay
    resumed.replay(stored)
    raised_whole = [[raised[:2] for raised in whole.check(record)] for record in records]
    raised_resumed = [[raised[:2] for raised in resumed.check(record)] for record in records[cut:]]
    assert raised_whole[cut:] == raised_resumed
    last: dict[tuple[str, str], int] = {}
    for index, found in enumerate(raised_whole):
        for key in found:
            assert index - last.get(key, -window) >= window
            last[key] = index


def _stored(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
