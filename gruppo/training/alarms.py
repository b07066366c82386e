"""Alarms: signs in the metrics that a training run is going wrong, each with its limit, its action and its advice.

Reads the records of `metrics.jsonl` one by one and says which alarms they raise; what is then done is the loop's part.
It computes no metric that the record could have given, draws nothing and needs no tensor. The limits are those of the
field: verl's documentation for the ratio and the effective sample size, arXiv 2504.20073 (the spread of rewards falls
before a collapse), 2505.22617 and 2503.14476 (entropy), 2510.18855 (sampler against learner); the others are practice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from statistics import fmean
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator

from gruppo.config import Config, suggest

_TRUNCATED = ("max_tokens", "context_overflow")  # outcomes

Action = Literal["log", "skip", "restore", "stop"]
"""What an alarm asks of the loop: say it; also leave the step's update out; go back to a checkpoint; end the run."""


class Finding(NamedTuple):
    """The figure that a test looked at, and in words why it is one to report."""

    value: float
    words: str


Test = Callable[[Sequence[float], int, float], Finding | None]
"""(values, oldest first and finite, window, threshold) -> what is wrong. A value that is not finite comes alone."""


def above(values: Sequence[float], window: int, threshold: float) -> Finding | None:
    """The mean of the last `window` values is above the threshold."""
    mean = fmean(values[-window:])
    is_wrong = len(values) >= window and mean > threshold
    return Finding(mean, f"{_mean(mean, window)}, above {threshold:g}") if is_wrong else None


def below(values: Sequence[float], window: int, threshold: float) -> Finding | None:
    """The mean of the last `window` values is below the threshold."""
    mean = fmean(values[-window:])
    is_wrong = len(values) >= window and mean < threshold
    return Finding(mean, f"{_mean(mean, window)}, below {threshold:g}") if is_wrong else None


def fell_from_start(values: Sequence[float], window: int, threshold: float) -> Finding | None:
    """The last window's mean is lower than the first one's by more than the share `threshold` of it."""
    start, recent = values[:window], values[-window:]
    is_wrong = len(values) > window and _fall(start, recent) > threshold * abs(fmean(start))
    return _change(start, recent, "at the start") if is_wrong else None


def fell_from_peak(values: Sequence[float], window: int, threshold: float) -> Finding | None:
    """The last window's mean is more than `threshold` lower than that of the best window before it."""
    last = len(values) - 2 * window
    if last < 0:
        return None
    starts = range(0, last + 1, max(1, window // 2))
    best = max((values[first : first + window] for first in starts), key=fmean)
    recent = values[-window:]
    return _change(best, recent, "at its best") if _fall(best, recent) > threshold else None


def rose(values: Sequence[float], window: int, threshold: float) -> Finding | None:
    """Within `window` values the mean of half a window grew by more than the share `threshold` of it."""
    half = window // 2
    before, recent = values[-window - half : -window], values[-half:]
    is_wrong = len(before) == half and _fall(recent, before) > threshold * abs(fmean(before))
    return _change(before, recent, f"{window} values ago") if is_wrong else None


def in_a_row(values: Sequence[float], window: int, threshold: float) -> Finding | None:
    """The last `threshold` values are all above zero."""
    count = next((index for index, value in enumerate(reversed(values)) if not value > 0), len(values))
    return Finding(count, f"is above 0, {count} steps in a row") if count >= threshold else None


def not_finite(values: Sequence[float], window: int, threshold: float) -> Finding | None:
    """The last value is NaN or infinite."""
    return None if math.isfinite(values[-1]) else Finding(values[-1], "is not finite")


def _fall(before: Sequence[float], after: Sequence[float]) -> float:
    """How far the mean fell, less what chance explains (two standard errors): a noisy metric is no alarm."""
    return fmean(before) - fmean(after) - 2 * math.hypot(_error(before), _error(after))


def _error(values: Sequence[float]) -> float:
    """The standard error of the mean."""
    mean = fmean(values)
    return math.hypot(*(value - mean for value in values)) / len(values)


def _mean(mean: float, window: int) -> str:
    return f"is {mean:.3g}" + (f" in the mean of {window} values" if window > 1 else "")


def _change(before: Sequence[float], after: Sequence[float], when: str) -> Finding:
    return Finding(fmean(after), f"{_mean(fmean(after), len(after))}, and was {fmean(before):.3g} {when}")


@dataclass(frozen=True)
class Alarm:
    """One row of the table: which metrics (`*` stands for a policy, role or family), which test of them, what to do."""

    name: str
    metric: str
    test: Test
    threshold: float
    advice: str
    action: Action = "log"
    window: int | None = None  # values; None: that of the config
    reward: Literal["up", "not up"] | None = None  # only while the training reward goes this way


# By default only what can't mend itself ends a run. `reward/group_std` falls in every good run too, as its tasks get
# solved: that is why it counts only while the reward does not rise.
ALARMS = (
    Alarm("loss_not_finite", "loss/*", not_finite, 0, "look for infinite rewards or log-probs"),
    Alarm("gradient_not_finite", "grad_norm/*", not_finite, 0, "the update was skipped; lower the learning rate"),
    Alarm("skips_in_a_row", "skipped/*", in_a_row, 5, "no update is finite; go back to a checkpoint", "stop"),
    Alarm("gradient_exploding", "grad_norm/*", above, 100, "lower the learning rate or max_grad_norm", window=1),
    Alarm("gradient_high", "grad_norm/*", above, 10, "every update is clipped hard; lower the learning rate"),
    Alarm("gradient_vanishing", "grad_norm/*", below, 0.01, "nothing is learnt; look at rewards and advantages"),
    Alarm("kl_high", "kl/*", above, 0.2, "the policy leaves its reference; raise kl_coefficient or learn more slowly"),
    Alarm("kl_low", "kl/*", below, 0.001, "the policy hardly moves; lower kl_coefficient or raise the learning rate"),
    Alarm("kl_old_high", "kl_old/*", above, 0.05, "a rollout moves the policy too far; fewer or smaller updates"),
    Alarm("ratio_high", "ratio/*", above, 2, "the policy is far from the one that sampled; fewer updates", window=1),
    Alarm("ratio_low", "ratio/*", below, 0.5, "the policy is far from the one that sampled; fewer updates", window=1),
    Alarm("clip_fraction_high", "clipped/*", above, 0.3, "much of the signal is lost; fewer or smaller updates"),
    Alarm("clip_fraction_zero", "clipped/*", below, 1e-6, "updates change nothing, or old log-probs aren't old"),
    Alarm("ess_low", "ess/*", below, 0.5, "few tokens carry the update; sample more often or truncate the weights"),
    Alarm("mismatch_high", "mismatch/*", above, 0.05, "sampler and learner disagree; compare their numerics"),
    Alarm("mismatch_biased", "mismatch_k1/*", above, 0.1, "the sampler plays another policy; sync it more often"),
    Alarm("weight_high", "weight/*", above, 2, "the sampler plays another policy; sync it more often"),
    Alarm("weight_low", "weight/*", below, 0.5, "much of the batch is cut away; sync the sampler more often"),
    Alarm("weights_scattered", "chi2_token/*", above, 1, "a few tokens carry the update; cap their weights lower"),
    Alarm("entropy_low", "entropy/*", below, 0.1, "the policy hardly explores; raise clip_high or the temperature"),
    Alarm("entropy_rising", "entropy/*", rose, 0.5, "the policy turns to noise; lower clip_high or the learning rate"),
    Alarm("spread_collapsed", "reward/group_std", fell_from_start, 0.5, "episodes become alike, unrewarded; lower the "
          "learning rate", reward="not up"),
    Alarm("no_signal", "groups/no_signal", above, 0.7, "the tasks are too easy or too hard; mix others in"),
    Alarm("truncated_high", "truncated", above, 0.1, "episodes are cut off; raise max_tokens or pay for brevity"),
    Alarm("tokens_vanishing", "tokens/*", below, 1.5, "actions are empty but for their end; look at the reward"),
    Alarm("role_silent", "turns/*", fell_from_start, 0.95, "the role is no longer called; look at who calls it"),
    Alarm("tool_calls_failing", "tool_calls_ok", fell_from_start, 0.2, "calls get worse; pay for valid ones"),
    Alarm("reward_hacking", "eval/success", fell_from_peak, 0.1, "the reward rises all the while, so it pays for "
          "something else; mend it", "stop", window=2, reward="up"),
    Alarm("family_forgotten", "success_of/*", fell_from_peak, 0.1, "the family is being forgotten; mix more of it in"),
    Alarm("canary_paid", "canary/reward", above, 0, "a task without a right answer is paid; mend the reward", "stop",
          window=1),
    Alarm("judge_gap_high", "judge_gap", above, 0.2, "the judge is kinder than answer matching; calibrate it"),
    Alarm("judge_injected", "injections", above, 0.05, "answers speak to the judge; look at them"),
)  # fmt: skip


@cache
def alarms_on(metric: str) -> tuple[Alarm, ...]:
    """The alarms that watch a metric, in the order of the table."""
    return tuple(alarm for alarm in ALARMS if fnmatchcase(metric, alarm.metric))


class AlarmsConfig(Config):
    """Which alarms ring when, and what follows."""

    enabled: bool = True
    """Whether the metrics are watched."""
    window: int = Field(20, ge=2)
    """Steps whose mean is judged; also how long an alarm that was raised keeps still."""
    actions: dict[str, Action] = {}
    """By alarm, instead of its default: "log" says it, "skip" also leaves the step's update out, "restore" also goes
    back to the newest checkpoint, "stop" ends the run."""
    thresholds: dict[str, float] = {}
    """By alarm, instead of its default."""

    @field_validator("actions", "thresholds")
    @classmethod
    def _names_alarms(cls, values: dict[str, Any], info: Any) -> dict[str, Any]:
        takes_all = info.field_name == "actions"
        names = [alarm.name for alarm in ALARMS if takes_all or alarm.test is not not_finite]
        for name in values:
            if name not in names:
                raise ValueError(f"no alarm {name!r} to set{suggest(name, names)}")
        return values


class Raised(NamedTuple):
    """An alarm that went off: on which metric, at what value, what is asked of the loop, and one line for a person."""

    name: str
    metric: str
    value: float
    action: Action
    message: str


class Alarms:
    """The alarms of one run and the values they have seen. The same records always raise the same alarms.

    `attempts` (episodes per group) tells the share of groups without signal; with `updates` 1 the clip fraction is
    always 0 and means nothing. Departure from the sources: falls and rises count beyond two standard errors only.
    """

    def __init__(self, config: AlarmsConfig, attempts: int, updates: int = 1) -> None:
        if attempts < 1 or updates < 1:
            raise ValueError(f"attempts = {attempts}, updates = {updates}: expected at least 1 of each")
        self.config, self.attempts, self.updates = config, attempts, updates
        self.replay([])

    @property
    def may_skip(self) -> bool:
        """Whether some alarm asks for a step's update to be left out."""
        return self.config.enabled and "skip" in self.config.actions.values()

    def replay(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Forget everything, then see `records` again: those that `check` saw, oldest first, null for NaN."""
        self._num_records = 0
        self._values: dict[str, list[float]] = defaultdict(list)
        self._quiet_until: dict[tuple[str, str], int] = {}
        for record in records:
            self.check(record)

    def check(self, record: Mapping[str, Any]) -> list[Raised]:
        """The alarms that a step's record raises, metric by metric. What it lacks raises none."""
        if not self.config.enabled:
            return []
        now = self._numbers(record)
        self._num_records += 1
        for metric, value in now.items():
            if math.isfinite(value):
                self._values[metric].append(value)
        found = [self._judge(alarm, metric, value) for metric, value in now.items() for alarm in alarms_on(metric)]
        return [raised for raised in found if raised]

    def _judge(self, alarm: Alarm, metric: str, value: float) -> Raised | None:
        if self._num_records < self._quiet_until.get((alarm.name, metric), 0):
            return None
        values = self._values[metric] if math.isfinite(value) else [value]
        threshold = self.config.thresholds.get(alarm.name, alarm.threshold)
        finding = alarm.test(values, alarm.window or self.config.window, threshold)
        if not finding or (alarm.reward and self._reward_is_up() != (alarm.reward == "up")):
            return None
        self._quiet_until[alarm.name, metric] = self._num_records + self.config.window
        action = self.config.actions.get(alarm.name, alarm.action)
        return Raised(alarm.name, metric, finding.value, action, f"{metric} {finding.words}: {alarm.advice}")

    def _reward_is_up(self) -> bool:
        """The training reward is above its start and has not fallen back from its best."""
        rewards, window = self._values["reward/mean"], self.config.window
        has_risen = len(rewards) > window and _fall(rewards[-window:], rewards[:window]) > 0
        return has_risen and not fell_from_peak(rewards, window, 0)

    def _numbers(self, record: Mapping[str, Any]) -> dict[str, float]:
        """The record's numbers and the shares that follow; a role that took turns before and takes none now took 0."""
        numbers = {
            name: float(value) if value is not None and math.isfinite(value) else math.nan
            for name, value in record.items()
            if value is None or isinstance(value, int | float)
        }
        if self.updates == 1:
            numbers = {name: value for name, value in numbers.items() if not name.startswith("clipped/")}
        episodes = numbers.get("episodes", 0)
        if episodes:
            numbers["truncated"] = sum(numbers.get(f"outcomes/{name}", 0) for name in _TRUNCATED)
        if episodes and "groups/dropped" in numbers:
            numbers["groups/no_signal"] = numbers["groups/dropped"] * self.attempts / episodes
        if episodes > numbers.get("infrastructure", 0):
            silent = (name for name in self._values if name.startswith("turns/") and name not in numbers)
            numbers |= dict.fromkeys(silent, 0.0)
        return numbers
