"""A trial: `gruppo train` in a process and a folder of its own, watched through its metrics.jsonl.

A trial that was interrupted goes on where its run was. It knows no search space and judges no figures.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from gruppo.errors import StoreError
from gruppo.store import Run

POLL_SECONDS = 0.5
GRACE_SECONDS = 30.0  # from an interrupt to a kill

Records = Sequence[Mapping[str, Any]]
Judge = Callable[[Records], str]
"""Gets all metrics so far; why the trial should end now, or nothing."""


def claim(path: Path) -> TextIO | None:
    """The lock file of a trial, held until it is closed or this process ends; None while another process has it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def play(folder: Path, files: Sequence[Path], max_seconds: float, judge: Judge) -> str:
    """Train in `folder` on the config `files` laid over one another, or go on there; output goes to <folder>.log.

    Returns why it failed or what `judge` said, nothing if it ended well.
    """
    deadline = time.monotonic() + max_seconds
    while _is_in_use(folder):  # by a run whose study was killed: it is still the same trial
        if time.monotonic() > deadline:
            return f"another process still trains in it after {max_seconds:g} s"
        if reason := judge(records(folder)):
            return reason
        time.sleep(POLL_SECONDS)
    if (folder / "report.json").exists():
        judge(records(folder))
        return ""
    log = folder.with_name(f"{folder.name}.log")
    how = [word for file in files for word in ("--config", str(file))]
    if (folder / "config.toml").exists():
        how = ["--resume"]
    command = [sys.executable, "-m", "gruppo", "train", "--out", str(folder), *how]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None:
                if reason := judge(records(folder)):
                    return reason
                if time.monotonic() > deadline:
                    return f"not done after {max_seconds:g} s"
                _wait(process, POLL_SECONDS)
        finally:
            end(process)
    if process.returncode:
        return f"exit code {process.returncode}: {last_line(log)}"
    judge(records(folder))
    return ""


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a run, which closes what it has open; kill it and all it started if that takes too long."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        _wait(process, GRACE_SECONDS)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def records(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run so far, those of the cold start left out; none if it has not begun."""
    try:
        return [record for record in Run.open(folder).read_metrics() if record.get("stage") == "grpo"]
    except StoreError:
        return []


def last_line(log: Path) -> str:
    """What a process said last."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


def _is_in_use(folder: Path) -> bool:
    if not (folder / "run.lock").exists():
        return False
    lock = claim(folder / "run.lock")
    if lock is None:
        return True
    lock.close()
    return False
