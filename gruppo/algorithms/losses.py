"""Losses: from log-probs and advantages to a loss per token, and from those to the loss of one optimizer step.

Shapes: B rows, T action tokens (padded), log-probs and advantages float32, mask bool. Masked positions are replaced
before exp, so nothing under the mask, not even NaN, can reach the loss or its gradient. Losses are minimised.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp beyond this is no ratio any more


def masked(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`values_BT` where the mask is true, and 0 elsewhere, whatever stood there."""
    return torch.where(mask_BT, values_BT, torch.zeros_like(values_BT))


def ppo_clip(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) per token, and sums over tokens for the metrics.

    Source: arXiv 1707.06347; separate bounds: arXiv 2503.14476. Returns (losses_BT, sums of
    "clipped", "ratio", "kl_old").
    """
    log_ratio_BT = masked(logprobs_BT - old_logprobs_BT, mask_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    advantages_BT = masked(advantages_BT, mask_BT)
    ratio_BT = log_ratio_BT.exp()
    free_BT, clipped_BT = ratio_BT * advantages_BT, ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_BT
    losses_BT = masked(-torch.minimum(free_BT, clipped_BT), mask_BT)
    with torch.no_grad():
        sums = {
            "clipped": ((clipped_BT < free_BT) & mask_BT).float().sum(),
            "ratio": masked(ratio_BT, mask_BT).sum(),
            "kl_old": masked(-log_ratio_BT, mask_BT).sum(),
        }
    return losses_BT, sums


def k3(logprobs_BT: Tensor, reference_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The k3 estimate of KL(policy || reference) per token: exp(-d) + d - 1, d = log policy - log reference."""
    delta_BT = masked(logprobs_BT - reference_logprobs_BT, mask_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return masked(torch.exp(-delta_BT) + delta_BT - 1, mask_BT)


def negative_logprob(logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Supervised fine-tuning: the cross-entropy of each shown token."""
    return masked(-logprobs_BT, mask_BT)


def token_mean(losses_BT: Tensor, num_tokens: int) -> Tensor:
    """Sum over the tokens of a microbatch / the token count of the whole optimizer step.

    Microbatch results add up to the step's loss, however the step is split. Source: arXiv 2503.14476; the scope of the
    mean is the optimizer step.
    """
    return losses_BT.sum() / max(1, num_tokens)
