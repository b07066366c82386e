"""Presets: published algorithms as values of the algorithm's config. Plain data.

`--algorithm.preset dapo` sets these; what the config says itself goes before. `gruppo config` shows the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Our recommendation for teams that use tools.
    "agentic": {"correction": "token_truncate", "correction_high": 2.0, "truncated": "mask", "clip_high": 0.28},
    # arXiv 2402.03300
    "grpo_paper": {
        "aggregation": "seq_mean_token_mean", "clip_high": 0.2, "kl_coefficient": 0.04, "truncated": "none",
    },
    # GRPOConfig of TRL 1.16 without vLLM
    "trl": {"advantage_epsilon": 1e-4, "clip_high": 0.2, "truncated": "none"},
    # verl's YAML
    "verl": {"clip_high": 0.2, "dual_clip": 3.0, "truncated": "none"},
    # arXiv 2503.14476
    "dapo": {
        "clip_high": 0.28, "dual_clip": 10.0, "truncated": "soft_overlong", "filter_groups": "zero_std",
        "max_rounds": 10,
    },
    # arXiv 2503.20783
    "dr_grpo": {"advantage": "centred", "aggregation": "token_sum_norm", "clip_high": 0.2, "truncated": "zero"},
    # arXiv 2507.18071
    "gspo": {
        "ratio_level": "sequence", "aggregation": "seq_mean_token_mean", "clip_low": 3e-4, "clip_high": 4e-4,
        "truncated": "none",
    },
    # arXiv 2506.13585, with the absolute cap of arXiv 2510.13786
    "cispo": {"loss": "cispo", "cispo_cap": 5.0, "truncated": "none"},
    # arXiv 2402.14740, as TRL's RLOOTrainer has it
    "rloo": {
        "advantage": "rloo", "ratio_level": "sequence_sum", "aggregation": "seq_mean_token_mean", "clip_high": 0.2,
        "kl_coefficient": 0.05, "kl_estimator": "k1", "kl_in": "reward", "truncated": "none",
    },
    # arXiv 2501.03262
    "reinforce++": {
        "advantage": "reinforce++", "clip_high": 0.2, "kl_coefficient": 0.01, "kl_estimator": "k1", "kl_in": "reward",
        "truncated": "none",
    },
    "reinforce++_baseline": {
        "advantage": "reinforce++_baseline", "clip_high": 0.2, "kl_coefficient": 0.001, "kl_estimator": "k2",
        "truncated": "none",
    },
    # arXiv 2511.20347
    "sapo": {"loss": "sapo", "aggregation": "seq_mean_token_mean", "truncated": "none"},
    # arXiv 2510.05592
    "flow_grpo": {
        "aggregation": "flow_grpo", "clip_high": 0.3, "kl_coefficient": 0.001, "truncated": "none",
    },
}  # fmt: skip
