"""A memory group of the kernel (cgroup v1 or v2) for the python tool: what holds down the sum of many processes.

Made below the group that this process is in, so every limit above stays in force, and only where we may. The zygote
makes one group per supervisor inside; nothing here knows what runs in them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "gruppo-"


def make_group(owner: int | None) -> str:
    """The folder of a new group, given to the user `owner` (None: ours), with the group "zygote" in it; "" if none can
    be made here."""
    for parent in candidates():
        remove_stale(parent)
        group = parent / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            (group / "zygote").mkdir(parents=True)
            if (group / "cgroup.subtree_control").exists():  # version 2
                (group / "cgroup.subtree_control").write_text("+memory")
            if owner is not None:
                for path in (group, *group.glob("cgroup.*"), group / "zygote", group / "zygote" / "cgroup.procs"):
                    os.chown(path, owner, owner)
            return str(group)
        except OSError:  # not ours to make: the next place, or none
            remove_group(str(group))
    return ""


def candidates() -> Iterator[Path]:
    """Folders of groups below which one for memory may be made: our own, in version 2 also the one above it."""
    try:
        own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in mounts:
        found = re.fullmatch(r"\S+ \S+ \S+ (\S+) (\S+) .* - (cgroup2?) \S+ (\S+)", line)
        if not found:
            continue
        root, place, kind, options = found.groups()
        if kind == "cgroup" and "memory" in options.split(","):
            path = own.get("memory")
        elif kind == "cgroup2":
            path = own.get("")
        else:
            continue
        if path is None or os.path.relpath(path, root).startswith(".."):
            continue
        folder = Path(os.path.normpath(os.path.join(place, os.path.relpath(path, root))))
        if kind == "cgroup":
            yield folder
        else:  # a group with processes of its own may not divide its memory, so the one above is the likelier
            yield from (group for group in (folder, folder.parent) if divides_memory(group))


def divides_memory(group: Path) -> bool:
    try:
        return "memory" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def remove_stale(parent: Path) -> None:
    """Remove the groups of processes that were killed before they could."""
    for group in parent.glob(f"{PREFIX}*-*"):
        owner = group.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            remove_group(str(group), seconds=0)


def remove_group(group: str, seconds: float = 2.0) -> None:
    """Remove it and what is in it, once the processes there have ended; for `seconds` at most."""
    deadline = time.monotonic() + seconds
    while group:
        try:
            for inner in [path for path in Path(group).iterdir() if path.is_dir()]:
                inner.rmdir()
            Path(group).rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # a process is still ending
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)
