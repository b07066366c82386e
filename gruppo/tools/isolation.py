"""The ladder of sandbox levels: what each is, which hold on this machine, and the start of the one that is asked for.

A level is tried by running something in it; none is taken in place of another unless the caller said "auto", and then
never one without walls. The levels themselves are `sandbox.py` with its zygote, and `monty.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from gruppo.errors import ConfigError, ToolError
from gruppo.tools.monty import Monty
from gruppo.tools.sandbox import Limits, Zygote

Level = Literal["process", "monty", "landlock", "namespaces"]
"""From the weakest to the strongest: limits only; a part of Python without a system; closed files and network; a world
of its own."""

LEVELS: tuple[Level, ...] = get_args(Level)
AUTOMATIC: tuple[Level, ...] = ("namespaces", "landlock")
STARTS: dict[str, Callable[[str, Limits], Zygote | Monty]] = {
    "namespaces": Zygote,
    "landlock": Zygote,
    "monty": Monty,
    "process": Zygote,
}


def start(level: str, min_level: str, limits: Limits) -> Zygote | Monty:
    """The sandbox of this level, or for "auto" of the best that holds here.

    Raises ConfigError naming what is missing if there is none that is at least `min_level`.
    """
    for key, value, known in (("level", level, ("auto", *LEVELS)), ("min_level", min_level, LEVELS)):
        if value not in known:
            raise ConfigError(f"tools.{key} = {value!r}: no such level; use one of {', '.join(known)}")
    least = LEVELS.index(min_level)
    if level != "auto" and LEVELS.index(level) < least:
        raise ConfigError(
            f"tools.level = {level!r} is below tools.min_level = {min_level!r}: set tools.min_level = {level!r} as well"
        )
    asked = [level] if level != "auto" else [name for name in AUTOMATIC if LEVELS.index(name) >= least]
    failed = []
    for name in asked:
        try:
            return STARTS[name](name, limits)
        except ToolError as error:
            failed.append(f"{name}: {error}")
    why = "; ".join(failed) or f"only by name: tools.level = {min_level!r}"
    raise ConfigError(
        f"no sandbox for the python tool at tools.level = {level!r}, tools.min_level = {min_level!r} ({why});"
        " `gruppo doctor` shows what holds here; tools.level = 'monty' runs calculator-type code on any machine"
    )


@dataclass(frozen=True)
class Standing:
    """Whether a level holds here, and its walls in words, or why it does not."""

    level: str
    holds: bool
    words: str


def standings() -> list[Standing]:
    """Every level, the strongest first, tried out."""
    found = []
    for level in reversed(LEVELS):
        try:
            sandbox = STARTS[level](level, Limits(concurrent=1))
        except ToolError as error:
            found.append(Standing(level, False, str(error)))
            continue
        sandbox.close()
        found.append(Standing(level, True, sandbox.isolation))
    return found
