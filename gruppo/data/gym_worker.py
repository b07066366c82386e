"""The other side of `gym_process.py`: makes and scores reasoning-gym's tasks, one request after another.

Some of its scorers evaluate what the agent wrote, as Python (`eval`) or through sympy, which evaluates too. In their
modules those names are replaced here: `eval` reads literals only, and sympy is shown arithmetic alone.
"""

from __future__ import annotations

import ast
import json
import re
import resource
import signal
import sys
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

CPU_SECONDS = 20  # of one score: then the system ends this process, and there is no score
MAX_MEMORY = 4 * 2**30  # bytes
MAX_EXPRESSION = 300  # characters

EVALUATING = (
    "algorithmic.string_insertion",
    "algorithmic.spiral_matrix",
    "algorithmic.binary_matrix",
    "games.n_queens",
)
"""Modules whose scorer calls `eval` on the answer."""
PARSING = {
    "games.countdown": "parse_expr",
    "games.puzzle24": "parse_expr",
    "algebra.simple_integration": "sympy",
    "algebra.intermediate_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
}
"""Modules whose scorer gives the answer to sympy's parse_expr -> the name they know it by."""

_CHARACTERS = frozenset("0123456789.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-*/(), \n")
_ATTRIBUTE = re.compile(r"[A-Za-z)]\s*\.|\.\s*[A-Za-z]")
_NAMES = frozenset("sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt pi Abs Integral".split())
_TOWER = re.compile(r"\*\*[-+(\s]*[0-9A-Za-z.]+\s*\*\*")
_POWER = re.compile(r"(\)?)\s*\*\*[-+(\s]*([0-9]*)")


def main() -> None:
    """Answer requests until the other side hangs up."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies, sys.stdout = sys.stdout, sys.stderr  # what a generator prints is no reply
    guard()

    def send(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    send({"value": "ready"})
    for line in sys.stdin:
        try:
            send({"value": answered(json.loads(line))})
        except Exception as error:  # a generator may raise anything
            send({"error": f"{type(error).__name__}: {error}"})


def answered(request: dict[str, Any]) -> Any:
    """The value of one request: names, tasks or a score."""
    from reasoning_gym.factory import DATASETS

    if request["do"] == "names":
        return sorted(DATASETS.keys() - {"composite"})  # which is a mixture of the others
    dataset = _dataset(request["name"], json.dumps(request["settings"]), request["seed"], request["size"])
    if request["do"] == "make":
        entries = [dataset[index] for index in range(request["start"], request["stop"])]
        return [
            {"question": entry["question"], "answer": None if entry["answer"] is None else str(entry["answer"])}
            for entry in entries
        ]
    entry = dataset[request["index"]]
    if entry["question"] != request["question"]:
        raise ValueError("made anew, the task is another one: was it made by another version of reasoning-gym?")
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        return float(dataset.score_answer(request["answer"], entry))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@lru_cache(maxsize=64)
def _dataset(name: str, settings: str, seed: int, size: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(settings))


def guard() -> None:
    """Take from the scorers what evaluates text."""
    for name in EVALUATING:
        import_module(f"reasoning_gym.{name}").__dict__["eval"] = ast.literal_eval
    for name, known_as in PARSING.items():
        module = import_module(f"reasoning_gym.{name}")
        known = module.__dict__[known_as]
        if isinstance(known, ModuleType):
            copy = ModuleType(known.__name__)
            copy.__dict__.update(known.__dict__)
            copy.__dict__["parse_expr"] = _guarded(known.__dict__["parse_expr"])
            module.__dict__[known_as] = copy
        else:
            module.__dict__[known_as] = _guarded(known)


def _guarded(parse: Any) -> Any:
    def parse_arithmetic(text: str, *arguments: Any, **options: Any) -> Any:
        if not is_arithmetic(text):
            raise ValueError("not plain arithmetic")
        return parse(text, *arguments, **options)

    return parse_arithmetic


def is_arithmetic(text: str) -> bool:
    """Whether a text is numbers, single letters, functions and operators alone, with powers of a bounded size."""
    if len(text) > MAX_EXPRESSION or not _CHARACTERS.issuperset(text):
        return False
    if _ATTRIBUTE.search(text) or _TOWER.search(text):
        return False
    if any(len(name) > 1 and name not in _NAMES for name in re.findall(r"[A-Za-z]+", text)):
        return False
    nested, size = 1, 1  # a power of a power is at most as large as the product of its exponents
    for closed, exponent in _POWER.findall(text):
        number = max(int(exponent[:9] or 1), 1)
        nested, size = (nested * number, size) if closed else (nested, max(size, number))
    return nested * size <= 1000 and max(map(len, re.findall(r"[0-9]+", text)), default=0) <= 30


if __name__ == "__main__":
    main()
