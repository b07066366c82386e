"""The one-call training tool of HelloAgents' chapter on agentic RL, on gruppo: docs/hello_agents.md.

It translates; the work is done by the rest of gruppo.
"""

from gruppo.tool.datasets import GSM8KDataset, create_rl_dataset, create_sft_dataset, format_math_dataset
from gruppo.tool.reward_functions import (
    AccuracyReward,
    CombinedReward,
    LengthPenaltyReward,
    MathRewardFunction,
    StepReward,
    create_accuracy_reward,
    create_combined_reward,
    create_length_penalty_reward,
    create_step_reward,
)
from gruppo.tool.training_tool import Result, RLTrainingTool

__all__ = [
    "AccuracyReward",
    "CombinedReward",
    "GSM8KDataset",
    "LengthPenaltyReward",
    "MathRewardFunction",
    "RLTrainingTool",
    "Result",
    "StepReward",
    "create_accuracy_reward",
    "create_combined_reward",
    "create_length_penalty_reward",
    "create_rl_dataset",
    "create_sft_dataset",
    "create_step_reward",
    "format_math_dataset",
]
