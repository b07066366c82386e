"""Tools an agent may call: functions, the python sandbox, search. Each keeps the `Tool` protocol of `gruppo.types`."""

from __future__ import annotations

from gruppo.tools.base import FunctionTool, tool

__all__ = ["FunctionTool", "tool"]
