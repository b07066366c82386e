"""Runs scripts as programs, each a process of its own, forked from one that has imported torch and the package once.

A job is a line of JSON on standard input: the script, its arguments, the folder it runs in, a file for all it writes,
and its deadline in seconds. The answer is a line with its exit code, null where the deadline ended it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
from pathlib import Path


def play(script: str, words: list[str], folder: str, output: str) -> None:
    """Be the script, as `python script words` would be in that folder."""
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setsid()
    os.chdir(folder)
    sys.argv, sys.path[0] = [script, *words], str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    """Serve until the input ends."""
    import gruppo.tool  # noqa: F401  what nearly all scripts take their time with

    fork = multiprocessing.get_context("fork")
    for line in sys.stdin:
        job = json.loads(line)
        process = fork.Process(target=play, args=(job["script"], job["words"], job["folder"], job["output"]))
        process.start()
        process.join(job["seconds"])
        if process.is_alive():
            os.killpg(process.pid, 9)  # and whatever it started
        process.join()
        print(json.dumps(process.exitcode if process.exitcode >= 0 else None), flush=True)


if __name__ == "__main__":
    main()
