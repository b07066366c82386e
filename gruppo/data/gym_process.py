"""The process in which reasoning-gym runs: started when it is needed, asked by JSON lines, replaced when it hangs."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from typing import Any

from gruppo.errors import DataError

SECONDS = 120.0  # for one request: a hundred of the slowest tasks are made in less
START_SECONDS = 120.0  # to import reasoning-gym


class GymProcess:
    """One process, one request at a time, from any thread."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()

    def ask(self, request: dict[str, Any], may_fail: bool = False) -> Any:
        """The reply to a request.

        A process that does not reply in time is ended, and the next request starts another. That, and what the
        generator did not take, is a DataError, or its text as the reply if it `may_fail`.
        """
        with self._lock:
            try:
                reply = self._exchange(request)
            except (OSError, TimeoutError) as error:
                self.close()
                reply = {"error": f"reasoning-gym ended or hung: {error}"}
        if "error" not in reply:
            return reply["value"]
        if may_fail:
            return str(reply["error"])
        raise DataError(f"gym:{request.get('name', '')}: {' '.join(str(reply['error']).split())}")

    def close(self) -> None:
        """End the process; the next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = _start()
            self._received.clear()
            self._receive(self._process, START_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self._receive(self._process, self.seconds)

    def _receive(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        assert process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError(f"no reply in {seconds:g} s")
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise OSError("its process is gone")
            self._received += chunk
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        reply: dict[str, Any] = json.loads(line)
        return reply


def require_gym() -> None:
    """Raises DataError if reasoning-gym is not installed."""
    if find_spec("reasoning_gym") is None:
        raise DataError("gym: needs reasoning-gym, which is not installed: pip install 'gruppo[gym]'")


def _start() -> subprocess.Popen[bytes]:
    require_gym()
    # The order of sets decides what a few generators draw: one seed of hashing, the same tasks everywhere.
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gruppo.data.gym_worker"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


_shared = GymProcess()


def shared() -> GymProcess:
    """The process that all of a program use."""
    return _shared


def _forget() -> None:
    """In a forked child: the process belongs to the parent."""
    global _shared
    _shared = GymProcess()


atexit.register(lambda: _shared.close())
os.register_at_fork(after_in_child=_forget)
