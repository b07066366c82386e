"""The algorithms: an advantage, a loss and an aggregation, chosen by name. Pure functions, no I/O.

A new algorithm is one function in its file and one entry here; the trainer does not change.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gruppo.algorithms.advantages import centred, grpo
from gruppo.algorithms.losses import ppo_clip, token_mean
from gruppo.config import Config

ADVANTAGES = {"grpo": grpo, "centred": centred}
LOSSES = {"ppo_clip": ppo_clip}
AGGREGATIONS = {"token_mean": token_mean}


class AlgorithmConfig(Config):
    """Which functions turn rewards into a gradient, and their constants."""

    advantage: Literal["grpo", "centred"] = "grpo"
    """How a group's rewards become advantages."""
    loss: Literal["ppo_clip"] = "ppo_clip"
    """The token loss."""
    aggregation: Literal["token_mean"] = "token_mean"
    """How token losses become the loss of one optimizer step."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(0.28, gt=0)
    """The ratio is clipped above at 1 + clip_high."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the k3 estimate of KL(policy || reference) in the loss; 0 computes no reference log-probs."""
    kl_reference: Literal["start", "base"] = "start"
    """The reference: a frozen copy of the policy as RL starts (so the KL starts at 0), or the bare base."""
