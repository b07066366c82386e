"""What a supervisor counts and clears away: processes, their memory, files.

Imported by `python_zygote.py`, which runs outside the package: the standard library only. It kills nothing.
"""

from __future__ import annotations

import os
import resource

MAX_FILES = 10_000


def children(proc: int, pid: str) -> list[str]:
    """The processes that a process has started or adopted, as the /proc behind `proc` numbers them."""
    found: list[str] = []
    try:
        tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
        try:
            for task in os.listdir(tasks):
                with open(os.open(f"{task}/children", os.O_RDONLY, dir_fd=tasks)) as listed:
                    found += listed.read().split()
        finally:
            os.close(tasks)
    except OSError:  # it ended meanwhile
        pass
    return found


def descendants(proc: int) -> list[str]:
    """All processes that stem from this one."""
    found: list[str] = []
    waiting = children(proc, "self")
    while waiting:
        found.append(waiting.pop())
        waiting += children(proc, found[-1])
    return found


def resident(proc: int) -> int:
    """Bytes of memory that the descendants have for themselves."""
    total = 0
    for pid in descendants(proc):
        try:
            with open(os.open(f"{pid}/statm", os.O_RDONLY, dir_fd=proc)) as file:
                _, pages, shared, *_ = map(int, file.read().split())
                total += (pages - shared) * resource.getpagesize()
        except OSError:  # it ended meanwhile
            continue
    return total


def size_of(folder: str, most: int) -> int:
    """Bytes on disk below `folder`; counts no further than `most`, and a huge number of files as too many bytes."""
    total = count = 0
    waiting = [folder]
    while waiting and total <= most:
        try:
            for entry in os.scandir(waiting.pop()):
                count += 1
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
        except OSError:  # it went meanwhile, or is locked
            continue
        total += (count > MAX_FILES) * most
    return total


def tasks_of(user: int) -> int:
    total = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == user:
                total += len(os.listdir(f"/proc/{process}/task"))
        except OSError:  # it ended meanwhile
            continue
    return total


def empty(folder: str) -> None:
    """Empty a tree however deep or locked: what a folder holds is moved up first, so paths stay short."""
    os.chmod(folder, 0o700)
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for inner in list(os.scandir(entry.path)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)
                os.rename(inner.path, f"{folder}/{os.urandom(8).hex()}")
            os.rmdir(entry.path)
