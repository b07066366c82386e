"""Losses: from a token's log-prob and advantage to its loss, and the sums over tokens that become metrics.

All have one signature: loss(new_N, tokens, settings) -> (losses_N, sums). new_N are the log-probs of N action tokens
with gradient, under softmax(logits / temperature) at the temperature they were sampled at. Losses are minimised: a
positive advantage pushes its token up. Sums have no gradient: "clipped" (tokens on which a bound changed the loss),
"ratio", "kl_old" (old - new). What a token weighs in an optimizer step is the aggregation's business.

Named algorithms without a function here: GSPO (arXiv 2507.18071) is ppo_clip with ratio_level "sequence", bounds like
3e-4 and 4e-4, and aggregation seq_mean_token_mean; LUSPO (2602.05261) the same with 2e-3, 2.5e-3 and
seq_mean_token_sum; TRL's RLOO is ppo_clip with "sequence_sum"; GPG (2504.02546) is reinforce.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.algorithms.corrections import CorrectionSettings, correction_weights, on_policy_enough
from gruppo.algorithms.kl import KLS
from gruppo.algorithms.ratios import RATIOS, Tokens, log_ratio, sequence_mean, sequence_product, token_ratio


@dataclass(frozen=True)
class LossSettings:
    """The constants of all losses; each loss reads its own."""

    ratio_level: str = "token"  # one of RATIOS, for ppo_clip, cispo, sapo, clip_cov, kl_cov
    clip_low: float = 0.2  # the ratio is clipped below at 1 - clip_low
    clip_high: float = 0.28  # and above at 1 + clip_high
    dual_clip: float | None = None  # bounds a negative advantage's loss at this many times its size
    ratio_cap: float | None = None  # caps the ratio in the unclipped branch: TRL's delta, 4 in INTELLECT-2
    cispo_cap: float = 5.0  # absolute: verl's 1 + clip_high is cap 1.28
    cispo_floor: float = 0.0  # absolute: verl's 1 - clip_low is floor .8
    sapo_temperature_positive: float = 1.0
    sapo_temperature_negative: float = 1.05
    gmpo_clip: float = 0.4  # of the log-ratio
    vespo_k_positive: float = 2.0  # for advantages >= 0
    vespo_lambda_positive: float = 3.0
    vespo_k_negative: float = 3.0
    vespo_lambda_negative: float = 2.0
    dppo_delta: float = 0.2  # how far a probability may move
    dppo_cap: float = 3.0  # of the weight
    dro_beta: float = 0.1
    kl_cov_coefficient: float = 1.0

    def __post_init__(self) -> None:
        if self.ratio_level not in RATIOS:
            raise ValueError(f"ratio_level = {self.ratio_level!r}: not one of {', '.join(RATIOS)}")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ValueError(f"dual_clip = {self.dual_clip}: must be above 1, or every negative advantage is bounded")
        if self.ratio_cap is not None and not self.ratio_cap > 1 + self.clip_high:
            raise ValueError(f"ratio_cap = {self.ratio_cap}: must be above 1 + clip_high = {1 + self.clip_high}")


Sums = dict[str, Tensor]
Loss = Callable[[Tensor, Tokens, LossSettings], tuple[Tensor, Sums]]


def sums_of(new_N: Tensor, tokens: Tokens, ratio_N: Tensor, clipped_N: Tensor | None = None) -> Sums:
    """The sums of a loss whose bounds touched `clipped_N` (bool; None: it has none)."""
    clipped_N = torch.zeros_like(new_N) if clipped_N is None else clipped_N
    kl_old_N = -log_ratio(new_N.detach(), tokens.old_N)
    return {"clipped": clipped_N.sum(), "ratio": ratio_N.detach().sum(), "kl_old": kl_old_N.sum()}


def ppo_clip(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A).

    Sources: arXiv 1707.06347; two bounds: 2503.14476 (DAPO); dual clip: 1912.09729; ratio cap: 2505.07291
    (INTELLECT-2), for both signs of A.
    """
    ratio_N, advantages_N = RATIOS[settings.ratio_level](new_N, tokens), tokens.advantages_N
    bounded_N = ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    free_N = ratio_N if settings.ratio_cap is None else ratio_N.clamp(max=settings.ratio_cap)
    losses_N = -torch.minimum(free_N * advantages_N, bounded_N * advantages_N)
    if settings.dual_clip is not None:
        losses_N = torch.minimum(
            losses_N, settings.dual_clip * advantages_N.abs()
        )  # losses of good tokens are negative
    return losses_N, sums_of(new_N, tokens, ratio_N, losses_N != -(ratio_N * advantages_N))


def cispo(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-clip(ratio, cispo_floor, cispo_cap) A new, the weight without gradient, so that no token is ever silenced.

    Source: arXiv 2506.13585; cap 5 and no floor: 2510.13786 (ScaleRL). The value holds a log-prob: compare gradients.
    """
    ratio_N = RATIOS[settings.ratio_level](new_N, tokens).detach()
    weights_N = ratio_N.clamp(settings.cispo_floor, settings.cispo_cap)
    return -weights_N * tokens.advantages_N * new_N, sums_of(new_N, tokens, ratio_N, weights_N != ratio_N)


def sapo(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-(4 / t) sigmoid(t (ratio - 1)) A: a gate that closes smoothly; t differs with the sign of A.

    Source: arXiv 2511.20347. At ratio 1 the value is -2 A / t, the gradient that of -ratio A.
    """
    ratio_N, advantages_N = RATIOS[settings.ratio_level](new_N, tokens), tokens.advantages_N
    positive, negative = settings.sapo_temperature_positive, settings.sapo_temperature_negative
    temperature_N = torch.where(advantages_N > 0, ratio_N.new_tensor(positive), negative)
    gate_N = torch.sigmoid(temperature_N * (ratio_N - 1)) * 4 / temperature_N
    return -gate_N * advantages_N, sums_of(new_N, tokens, ratio_N)


def gmpo(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-r A with r the geometric mean over the sequence of token ratios, each bounded on the side A pushes to.

    Source: arXiv 2507.20673, with aggregation seq_mean_token_mean. Log-ratios are bounded at ±gmpo_clip.
    """
    sign_N, log_ratio_N = tokens.advantages_N.sign(), log_ratio(new_N, tokens.old_N)
    bounded_N = sign_N * (sign_N * log_ratio_N).clamp(max=settings.gmpo_clip)
    ratio_N = sequence_mean(bounded_N, tokens.sequence_N).exp()
    clipped_N = sign_N * log_ratio_N > settings.gmpo_clip
    return -ratio_N * tokens.advantages_N, sums_of(new_N, tokens, ratio_N, clipped_N)


def vespo(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-phi A new, phi = exp(lambda + k log W - lambda W) without gradient, W the sequence's probability ratio.

    Source: arXiv 2602.10693. Departs from TRL, which takes the sampler's mismatch into W; here the correction weighs
    the loss as it does everywhere.
    """
    product_N = sequence_product(new_N, tokens).detach()
    is_up_N, by = tokens.advantages_N >= 0, settings
    k_N = torch.where(is_up_N, new_N.new_tensor(by.vespo_k_positive), by.vespo_k_negative)
    lambda_N = torch.where(is_up_N, new_N.new_tensor(by.vespo_lambda_positive), by.vespo_lambda_negative)
    phi_N = (lambda_N + k_N * product_N.log() - lambda_N * product_N).exp()
    return -phi_N * tokens.advantages_N * new_N, sums_of(new_N, tokens, product_N)


def reinforce(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-A new: the policy gradient itself, right for the first update after sampling."""
    return -tokens.advantages_N * new_N, sums_of(new_N, tokens, token_ratio(new_N, tokens))


def dppo_tv(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-min(ratio, dppo_cap) A new, without tokens whose probability moved by more than dppo_delta where A pushes.

    Source: arXiv 2602.04879. Unlike a bound on the ratio, it lets rare tokens grow. The weight has no gradient.
    """
    ratio_N = token_ratio(new_N, tokens).detach()
    moved_N = new_N.detach().exp() - tokens.old_N.exp()
    far_N = tokens.advantages_N.sign() * moved_N > settings.dppo_delta
    weights_N = torch.where(far_N, 0.0, ratio_N.clamp(max=settings.dppo_cap))
    return -weights_N * tokens.advantages_N * new_N, sums_of(new_N, tokens, ratio_N, weights_N != ratio_N)


def clip_cov(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """ppo_clip without the chosen tokens, those of `clip_cov_tokens`. Source: arXiv 2505.22617."""
    assert tokens.chosen_N is not None
    losses_N, sums = ppo_clip(new_N, tokens, settings)
    return losses_N.masked_fill(tokens.chosen_N, 0.0), sums


def kl_cov(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-ratio A, and for the chosen tokens, those of `kl_cov_tokens`, + kl_cov_coefficient |new - old|.

    Source: arXiv 2505.22617, whose code takes |new - old| for the KL, as here.
    """
    assert tokens.chosen_N is not None
    ratio_N = RATIOS[settings.ratio_level](new_N, tokens)
    penalty_N = settings.kl_cov_coefficient * log_ratio(new_N, tokens.old_N).abs()
    losses_N = torch.where(tokens.chosen_N, penalty_N, 0.0) - ratio_N * tokens.advantages_N
    return losses_N, sums_of(new_N, tokens, ratio_N)


def dro(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-(A new - dro_beta / 2 (new - old)²). Source: arXiv 2405.19107, per token as in verl."""
    pull_N = log_ratio(new_N, tokens.old_N).square() * settings.dro_beta / 2
    return pull_N - tokens.advantages_N * new_N, sums_of(new_N, tokens, token_ratio(new_N, tokens))


def sft(new_N: Tensor, tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Sums]:
    """-new: the cross-entropy of shown tokens, whatever their advantage."""
    return -new_N, sums_of(new_N, tokens, token_ratio(new_N, tokens))


LOSSES: Mapping[str, Loss] = {
    "ppo_clip": ppo_clip,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "vespo": vespo,
    "reinforce": reinforce,
    "dppo_tv": dppo_tv,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "dro": dro,
    "sft": sft,
}

# Before the first update, new = old, the gradient of these is exactly linear in the advantage, so that rows with equal
# tokens may be merged by summing advantages. Not so with a KL, an entropy bonus, a correction or tokens chosen.
LINEAR_ON_POLICY = frozenset({"ppo_clip", "cispo", "sapo", "gmpo", "vespo", "reinforce", "dppo_tv", "dro"})

TREATS_CHOSEN_APART = frozenset({"clip_cov", "kl_cov"})  # the other losses are of the chosen tokens only, if any are


# ---- which tokens are chosen, over the whole optimizer step --------------------------------------------------------


def high_entropy_tokens(entropy_N: Tensor, share: float) -> Tensor:
    """bool: tokens whose entropy is at or above the (1 - share) quantile. Source: arXiv 2506.01939 (share .2)."""
    sorted_N, place = entropy_N.sort().values, (1 - share) * (len(entropy_N) - 1)
    if not len(sorted_N):
        return torch.zeros_like(entropy_N, dtype=torch.bool)
    # Not torch.quantile, which takes no more than 2²⁴ values.
    threshold = torch.lerp(sorted_N[math.floor(place)], sorted_N[math.ceil(place)], place % 1)
    return entropy_N >= threshold


def covariance(logprobs_N: Tensor, advantages_N: Tensor) -> Tensor:
    """Each token's part in the covariance of log-prob and advantage, which drives the entropy down."""
    return (advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())


def clip_cov_tokens(
    logprobs_N: Tensor,
    advantages_N: Tensor,
    generator: torch.Generator,
    share: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> Tensor:
    """bool: share x N tokens, at least one, drawn from those whose covariance is within [low, high]."""
    values_N = covariance(logprobs_N, advantages_N)
    eligible = ((low <= values_N) & (values_N <= high)).nonzero()[:, 0]
    drawn = torch.randperm(len(eligible), generator=generator)[: max(1, int(share * len(values_N)))]
    return torch.zeros_like(values_N, dtype=torch.bool).index_fill(0, eligible[drawn.to(eligible.device)], True)


def kl_cov_tokens(logprobs_N: Tensor, advantages_N: Tensor, share: float = 2e-4) -> Tensor:
    """bool: the share x N tokens, at least one, of largest covariance."""
    values_N = covariance(logprobs_N, advantages_N)
    largest = values_N.topk(min(len(values_N), max(1, int(share * len(values_N))))).indices
    return torch.zeros_like(values_N, dtype=torch.bool).index_fill(0, largest, True)


# ---- the whole objective of a token --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ObjectiveSettings:
    """A loss and what goes with it."""

    loss: str = "ppo_clip"
    constants: LossSettings = LossSettings()
    correction: str = "off"
    bounds: CorrectionSettings = CorrectionSettings()
    kl_estimator: str = "k3"
    kl_coefficient: float = 0.0  # 0: no reference is looked at
    entropy_coefficient: float = 0.0


def objective(new_N: Tensor, tokens: Tokens, settings: ObjectiveSettings) -> tuple[Tensor, Sums]:
    """correction x loss + kl_coefficient x KL - entropy_coefficient x entropy, per token, and all sums.

    Tokens that a correction rejects or that were not chosen have a loss of exactly 0, even where it isn't finite; KL
    and entropy are of all tokens. Raises ValueError for a correction without the sampler's log-probs.
    """
    losses_N, sums = LOSSES[settings.loss](new_N, tokens, settings.constants)
    weights_N, counted = correction_weights(settings.correction, tokens, settings.bounds)
    if settings.bounds.off_policy_mask is not None:
        weights_N = weights_N * on_policy_enough(new_N, tokens, settings.bounds.off_policy_mask)
    if tokens.chosen_N is not None and settings.loss not in TREATS_CHOSEN_APART:
        weights_N = weights_N * tokens.chosen_N
    losses_N = torch.where(weights_N == 0, 0.0, losses_N * weights_N)
    if settings.kl_coefficient:
        assert tokens.reference_N is not None
        kl_N = KLS[settings.kl_estimator](new_N, tokens.reference_N, tokens.old_N)
        losses_N = losses_N + settings.kl_coefficient * kl_N
        counted["kl"] = kl_N.detach().sum()
    if settings.entropy_coefficient:
        assert tokens.entropy_N is not None
        losses_N = losses_N - settings.entropy_coefficient * tokens.entropy_N
    return losses_N, sums | counted
