"""A child process: Python of ours at the other end of a socket, in a session of its own, and its end.

What the two say to one another is the business of who starts it: the workers of tools, and of math-verify.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys


def start(program: str, *arguments: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that runs `program`, and our end of its socket; the number of its own is its first argument.

    It finds the modules that we find, and has nothing to read or write but the socket. Raises OSError.
    """
    ours, theirs = socket.socketpair()
    null = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(theirs.fileno()), *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                "PYTHONHASHSEED": "0",  # what sympy finds, and whether it ends, depends on the order of its sets
            },
            pass_fds=[theirs.fileno()],
            stdin=null,
            stdout=null,
            stderr=null,
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def end(process: subprocess.Popen[bytes], connection: socket.socket) -> int:
    """Kill a process and its children; its status, which is its own if it had ended."""
    connection.close()
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)  # not yet waited for, so the group's number is still its own
    return process.wait()
