"""What turns rewards into a gradient, as settings: which functions, and their constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from gruppo.algorithms.advantages import ADVANTAGES, AdvantageSettings
from gruppo.algorithms.aggregations import AGGREGATIONS
from gruppo.algorithms.corrections import CORRECTIONS
from gruppo.algorithms.credit import CreditConfig
from gruppo.algorithms.kl import KLS
from gruppo.algorithms.losses import LOSSES, TREATS_CHOSEN_APART
from gruppo.algorithms.presets import PRESETS
from gruppo.config import Config, suggest

MENUS: Mapping[str, Iterable[str]] = {
    "preset": PRESETS, "advantage": ADVANTAGES, "loss": LOSSES, "aggregation": AGGREGATIONS, "kl_estimator": KLS,
    "correction": CORRECTIONS,
}  # fmt: skip


RATIO_LOSSES = frozenset({"ppo_clip", "cispo", "sapo", "clip_cov", "kl_cov"})  # those that read `ratio_level`


class AlgorithmConfig(Config):
    """Which functions turn rewards into a gradient, and their constants."""

    preset: str | None = None
    """A published algorithm, whose values stand where the config gives none: docs/algorithms.md lists them."""

    advantage: str = "grpo"
    """How the rewards of a group, or of a batch of groups, become advantages."""
    advantage_ddof: int = Field(1, ge=0, le=1)
    """1: sample standard deviation; 0: that of a population."""
    advantage_epsilon: float = Field(1e-6, gt=0)
    """Added to the standard deviation."""
    passk_std: bool = True
    """Whether "passk" divides by the standard deviation."""
    gpg_scale: float = Field(0.0, ge=0)
    """Factor of "gpg"; 0: samples / samples with a gradient."""
    whitening_unbiased: bool = True
    """Whether the variance that "reinforce++" and its baseline divide by is over the weight - 1, or all of it."""
    whitening_by_tokens: bool = True
    """Whether every token counts once in that whitening, or every episode."""
    rae_decay: float = Field(0.95, ge=0, lt=1)
    """What a new reward leaves of the moving average that is the baseline of "rae"."""

    loss: str = "ppo_clip"
    """The loss of a token."""
    ratio_level: Literal["token", "turn", "sequence", "sequence_token", "sequence_sum"] = "token"
    """What the policy ratio is taken over: a token; a turn; all turns of a role in an episode (geometric mean; per
    token with a stopped gradient; or their product)."""
    aggregation: str = "token_mean"
    """How token losses become the loss of one optimizer step."""
    length_norm: int = Field(1024, ge=1)
    """The constant length of "token_sum_norm"."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(0.28, gt=0)
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: float = Field(0.0, ge=0)
    """Bounds the loss of a negative advantage at this many times its size; 0: no bound, else above 1."""
    ratio_cap: float = Field(0.0, ge=0)
    """Caps the ratio in the unclipped branch (TRL's delta); 0: no cap, else above 1 + clip_high."""
    cispo_cap: float = Field(5.0, gt=0)
    """Absolute cap of CISPO's weight."""
    cispo_floor: float = Field(0.0, ge=0)
    """Absolute floor of CISPO's weight."""
    sapo_temperature_positive: float = Field(1.0, gt=0)
    """Of SAPO's gate, for positive advantages."""
    sapo_temperature_negative: float = Field(1.05, gt=0)
    """Of SAPO's gate, for negative advantages."""
    gmpo_clip: float = Field(0.4, gt=0)
    """GMPO clips log-ratios at this."""
    vespo_k_positive: float = Field(2.0, ge=0)
    """Of VESPO's weight, for advantages from 0 on: the power of a low ratio that silences it."""
    vespo_lambda_positive: float = Field(3.0, ge=0)
    """The same, for a high ratio: the rate at which it fades."""
    vespo_k_negative: float = Field(3.0, ge=0)
    """As `vespo_k_positive`, for negative advantages."""
    vespo_lambda_negative: float = Field(2.0, ge=0)
    """As `vespo_lambda_positive`, for negative advantages."""
    dppo_delta: float = Field(0.2, gt=0, lt=1)
    """DPPO drops tokens whose probability moved further than this."""
    dppo_cap: float = Field(3.0, gt=0)
    """Cap of DPPO's weight."""
    dro_beta: float = Field(0.1, gt=0)
    """Weight of DRO's quadratic term."""
    cov_share: float = Field(2e-4, gt=0, le=1)
    """Share of tokens that "clip_cov" and "kl_cov" pick, at least one."""
    cov_low: float = 1.0
    """"clip_cov" picks among tokens whose part in the covariance of log-prob and advantage is from this,"""
    cov_high: float = 5.0
    """to this."""
    kl_cov_coefficient: float = Field(1.0, ge=0)
    """Weight of the KL of the tokens that "kl_cov" picks."""
    high_entropy_share: float = Field(1.0, gt=0, le=1)
    """Only this share of tokens, those of highest entropy, is trained on; 1: all."""

    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL from the reference; 0 computes no reference log-probs."""
    kl_estimator: str = "k3"
    """How that KL is estimated from a token's log-probs."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where it is added: to the loss, or, summed over an episode's tokens, taken off the reward."""
    kl_target: float = Field(0.0, ge=0)
    """The coefficient adapts so that the KL comes near this; 0: it is constant."""
    kl_horizon: int = Field(10_000, ge=1)
    """Episodes over which it adapts."""
    kl_reference: Literal["start", "base"] = "start"
    """The reference: a frozen copy of the policy as RL starts (so the KL starts at 0), or the bare base."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of an entropy bonus."""
    entropy_target: float = Field(0.0, ge=0)
    """The bonus's weight rises by `entropy_step` while the entropy is below this, and falls above; 0: constant."""
    entropy_step: float = Field(0.005, gt=0)
    """See `entropy_target`."""

    correction: str = "off"
    """What is done about a sampler whose probabilities differ from the learner's."""
    correction_high: float = Field(2.0, gt=0)
    """Its upper bound."""
    correction_low: float = Field(0.0, ge=0)
    """Its lower bound."""
    off_policy_mask: float = Field(0.0, ge=0)
    """Sequences with a negative advantage whose mean log-prob fell by more than this are dropped; 0: none."""

    truncated: Literal["mask", "zero", "soft_overlong", "none"] = "none"
    """An episode cut off for its length: left out of the loss but not of the baseline, paid nothing, paid less and
    less as it gets long, or paid as usual."""
    overlong_length: int = Field(1024, ge=1)
    """Tokens of a role in an episode beyond which "soft_overlong" takes off 1."""
    overlong_cache: int = Field(256, ge=1)
    """The last tokens before that, over which the penalty grows."""
    filter_groups: Literal["none", "zero_std", "range"] = "none"
    """Groups that are played again with other tasks: where all have the same raw reward, or a mean out of range."""
    filter_low: float = 0.0
    """A group is in range if its mean reward is above this,"""
    filter_high: float = 1.0
    """and below this."""
    max_rounds: int = Field(1, ge=1)
    """Rounds of sampling in a step; what is still missing then is missing."""
    max_staleness: int = Field(-1, ge=-1)
    """Actions whose policy has taken more optimizer steps since than this are not trained on; -1: all are."""

    @property
    def settings(self) -> AdvantageSettings:
        """The constants of the advantage functions."""
        return AdvantageSettings(
            self.advantage_ddof,
            self.advantage_epsilon,
            divide_by_std=self.passk_std,
            gpg_alpha=self.gpg_scale or None,
            unbiased=self.whitening_unbiased,
            token_weighted=self.whitening_by_tokens,
        )

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("preset") in PRESETS:
            return {**PRESETS[values["preset"]], **values}
        return values

    @field_validator(*MENUS)
    @classmethod
    def _is_on_the_menu(cls, value: str | None, info: Any) -> str | None:
        names = list(MENUS[info.field_name])
        if value is not None and value not in names:
            raise ValueError(f"no such {info.field_name}{suggest(value, names)}; one of {', '.join(names)}")
        return value


def clashes(algorithm: AlgorithmConfig, credit: CreditConfig) -> Iterator[str]:
    """What in these settings can't work together, each as one line that says what to do instead."""
    yield from _of_credit(algorithm, credit)
    yield from _of_bounds(algorithm)
    level = algorithm.ratio_level
    if algorithm.loss == "sft":
        yield "algorithm.loss = 'sft' learns what is shown, whatever its advantage; use 'reinforce', or gruppo sft"
    if level != "token" and algorithm.loss not in RATIO_LOSSES:
        yield (
            f"algorithm.ratio_level = {level!r}: loss {algorithm.loss!r} has a ratio of its own; "
            f"use 'token', or a loss of {', '.join(sorted(RATIO_LOSSES))}"
        )
    if algorithm.loss in TREATS_CHOSEN_APART and algorithm.high_entropy_share < 1:
        yield f"algorithm.high_entropy_share: loss {algorithm.loss!r} picks tokens itself; leave it at 1"
    if algorithm.kl_target and algorithm.kl_in == "reward":
        yield "algorithm.kl_target: only a KL in the loss is measured at each step; set algorithm.kl_in to 'loss'"
    if algorithm.kl_target and not algorithm.kl_coefficient:
        yield "algorithm.kl_target: a coefficient of 0 can't adapt; give algorithm.kl_coefficient where it starts"
    if algorithm.truncated == "soft_overlong" and algorithm.overlong_cache > algorithm.overlong_length:
        yield (
            f"algorithm.overlong_cache = {algorithm.overlong_cache} is longer than "
            f"algorithm.overlong_length = {algorithm.overlong_length}"
        )
    if algorithm.max_rounds > 1 and algorithm.filter_groups == "none":
        yield "algorithm.max_rounds: nothing is filtered, so there is no second round; set algorithm.filter_groups"


def _of_credit(algorithm: AlgorithmConfig, credit: CreditConfig) -> Iterator[str]:
    """What the advantage can't do with the credit as it is given."""
    name = algorithm.advantage
    if credit.outcome != "broadcast" and credit.compare == "task":
        yield (
            f"credit.outcome = {credit.outcome!r} gives each turn its own return, for which the episodes of a task are "
            "no baseline; set credit.compare to 'turn' or 'state'"
        )
    if name in ("remax", "gdpo", "opo", "rae") and credit.compare != "task":
        yield f"credit.compare = {credit.compare!r}: advantage {name!r} judges whole episodes; use 'task'"
    if name == "gdpo":
        shaping = {"credit.team": credit.team, "credit.own": credit.own, "algorithm.kl_in": algorithm.kl_in == "reward"}
        shaping["algorithm.truncated"] = algorithm.truncated in ("zero", "soft_overlong")
        for key in (key for key, is_set in shaping.items() if is_set):
            yield f"{key}: advantage 'gdpo' compares each reward function's scores, which that does not change"


def _of_bounds(algorithm: AlgorithmConfig) -> Iterator[str]:
    """Bounds that exclude one another."""
    if algorithm.dual_clip and algorithm.dual_clip <= 1:
        yield f"algorithm.dual_clip = {algorithm.dual_clip}: must be above 1, or 0 for none"
    if algorithm.ratio_cap and algorithm.ratio_cap <= 1 + algorithm.clip_high:
        yield f"algorithm.ratio_cap = {algorithm.ratio_cap}: must be above 1 + clip_high, or 0 for none"
    if algorithm.cov_low > algorithm.cov_high:
        yield f"algorithm.cov_low = {algorithm.cov_low} is above algorithm.cov_high = {algorithm.cov_high}"
    if not algorithm.correction_low <= 1 <= algorithm.correction_high:
        yield (
            f"algorithm.correction_low = {algorithm.correction_low}, correction_high = {algorithm.correction_high}: "
            "1, a perfect match, must lie between them"
        )
