"""The program as the shell starts it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRINTS = "import os; from gruppo.__main__ import with_huge_pages as w; w(); print(os.environ.get('GLIBC_TUNABLES'))"


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.perturb=7", "glibc.malloc.perturb=7:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_it_asks_for_huge_pages_once_unless_told_otherwise(given: str | None, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    environment |= {"GLIBC_TUNABLES": given} if given else {}
    command = [sys.executable, "-c", PRINTS]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.stdout.strip(), ended.stderr) == (expected, "")
