"""gruppo: train teams of tool-using LLM agents with GRPO-family reinforcement learning."""

__version__ = "0.1.0"
