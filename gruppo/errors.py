"""The errors of gruppo: a flat family, named by the boundary that was crossed, and `boundary()` that attaches them.

Tool, reward and team authors raise plain Python errors; the boundary names whose they were. A `UserError` is one that
the person at the keyboard can mend: the command line prints its one line and exits with 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class GruppoError(Exception):
    """Base of all; the message says what, which value, and what instead."""


class UserError(GruppoError):
    """Something the user can mend."""


class ConfigError(UserError):
    """A key, a value or a combination in the configuration."""


class DataError(UserError):
    """A task file or one of its rows."""


class RewardError(UserError):
    """A reward function that broke its contract."""


class CheckpointError(UserError):
    """A checkpoint that does not fit or can't be read."""


class StoreError(UserError):
    """The run folder: locked, full, or not a run folder."""


class TeamError(UserError):
    """A team program that failed on every episode, or asks for a role that the config lacks."""


class EngineError(GruppoError):
    """The engine failed; the episode is `engine_failed`, retried, then excluded."""


class GateError(GruppoError):
    """A stage of a pipeline whose result is not good enough for the next: the user's program ran as it should."""


class ToolError(GruppoError):
    """The tool's host failed (not: the tool reported an error); the episode is `tool_failed`."""


@contextmanager
def boundary(error: type[GruppoError], what: str) -> Iterator[None]:
    """Re-raise any plain exception of the block as `error`, its message led by `what`; gruppo's own pass through."""
    try:
        yield
    except (GruppoError, asyncio.CancelledError):
        raise
    except Exception as cause:  # the point of a boundary: foreign code may raise anything
        raise error(f"{what}: {type(cause).__name__}: {cause}") from cause
