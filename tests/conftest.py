"""Fixtures that several test files use, and how tests run: one thread each, as there may be a process of them per core.

Property tests are patient (machines may be busy), and the same each time in `make test`; `make test-all` looks for new
examples, and for more of them.
"""

import gc
import os

from command_line import gruppo
from hypothesis import HealthCheck, settings
from sandbox_tools import brief, python

__all__ = ["brief", "gruppo", "python"]

gc.set_threshold(100_000, 20, 100)  # as the command line does: torch's and the tests' own objects stay
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch is not imported yet, see command_line.py
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # nothing here is compiled; bitsandbytes would load the compiler

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("searching", patient, max_examples=200)
settings.register_profile("repeatable", patient, max_examples=20, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """What stands before the first test stays: neither collections nor forks need look at it again."""
    gc.collect()
    gc.freeze()
