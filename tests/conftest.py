"""Fixtures that several test files use, and how patient property tests are: machines may be busy."""

from command_line import gruppo
from hypothesis import HealthCheck, settings

__all__ = ["gruppo"]

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
