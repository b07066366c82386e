"""The tool of `episodes.py --tool-seconds`: it waits, as for a server. A file of its own, imported fast."""

from __future__ import annotations

import time

from gruppo.tools import tool


@tool(seconds=600)
def wait(seconds: float) -> str:
    """Wait, and say so."""
    time.sleep(seconds)
    return f"waited {seconds:g} s"
