"""Fixtures that several test files use, and how property tests run: patient (machines may be busy), and the same each
time in `make test`; `make test-all` looks for new examples."""

from command_line import gruppo
from hypothesis import HealthCheck, settings
from sandbox_tools import brief, python

__all__ = ["brief", "gruppo", "python"]

settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("searching"), derandomize=True)
settings.load_profile("repeatable")
