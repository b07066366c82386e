"""The program `gruppo`, also as `python -m gruppo`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point: the command line, in a process that gets its memory in huge pages."""
    with_huge_pages()
    from gruppo import cli

    cli.main()


def with_huge_pages() -> None:
    """Start the program anew with huge pages, which the C library gives only from the start of a process on.

    Large tensors come and go all the time: in small pages a sixth of a training step is spent on getting them.
    """
    given = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and "glibc.malloc.hugetlb" not in given:
        os.environ["GLIBC_TUNABLES"] = f"{given}:glibc.malloc.hugetlb=1".lstrip(":")
        os.execv(sys.executable, sys.orig_argv)


if __name__ == "__main__":
    main()
