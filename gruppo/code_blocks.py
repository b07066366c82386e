"""Python out of a reply: the code in its fences. Candidates are compiled to tell which one is whole; nothing is run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from itertools import islice

from gruppo.bounded_json import without_reasoning

MAX_CHARACTERS = 100_000
MAX_READINGS = 100  # candidates that are compiled

_OPENING = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\n`]*)$", re.MULTILINE)
_CLOSING = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*$", re.MULTILINE)
_INLINE = re.compile(r"```[ \t]*(?:python|py)?[ \t]+([^\n`]+?)[ \t]*```", re.IGNORECASE)
_PYTHON = re.compile(r"\{?[ \t]*\.?(python|py)[\d.]*\b", re.IGNORECASE)


def extract_code(text: str) -> str:
    """The Python of a reply: its first block marked as Python, else its first unmarked one, else the whole reply.

    A fence inside a text of the program does not end it: of the places where a block can end, the first that leaves
    code that compiles is taken. Without a reading that compiles it is the first block as it stands. Reasoning is left
    out, line ends are "\\n". Raises ValueError for an overlong reply, for reasoning that never ends, and for blocks
    that are all in other languages.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"a reply of {len(text)} characters, the limit is {MAX_CHARACTERS}")
    text = without_reasoning(text.replace("\r\n", "\n").replace("\r", "\n"))
    readings = list(islice(_readings(text), MAX_READINGS))
    if not readings and "```" in text:
        raise ValueError("no block of Python in the reply: write ```python, the code, ```")
    readings = readings or [text.strip()]
    return next((code for code in readings if code and compiles(code)), readings[0])


def compiles(code: str) -> bool:
    """Whether Python would run it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<reply>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):  # the last two: the compiler's stack
        return False
    return True


def _readings(text: str) -> Iterator[str]:
    """What may be meant as code, the likeliest first."""
    fences = list(_OPENING.finditer(text))
    marked = [fence for fence in fences if _PYTHON.match(fence[3])]
    closings = list(_CLOSING.finditer(text))
    for opening in marked or [fence for fence in fences[::2] if not fence[3].strip()]:
        start = opening.end() + 1
        for closing in closings:
            if closing.start() >= start - 1 and closing[1].startswith(opening[2]):
                yield _code(text[start : closing.start()], opening[1])
        yield _code(text[start:], opening[1])  # cut off before its closing fence
    yield from _INLINE.findall(text)


def _code(block: str, indent: str) -> str:
    return re.sub(rf"^{indent}", "", block, flags=re.MULTILINE).strip("\n").rstrip()
