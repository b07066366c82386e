"""Fixtures that several test files use."""

from command_line import gruppo

__all__ = ["gruppo"]
