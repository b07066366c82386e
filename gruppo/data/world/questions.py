"""Question families over the world: which steps a question needs, how it is worded, its gold plan and answer.

A family is named by its steps: "lookup-compute" is a look-up whose result goes into a calculation. A gold plan lists
{"tool", "sub_goal", "command", "result"}, which the real tools must reproduce (the test suite replays them all).
Wordings marked unseen come up in the test split only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gruppo.config import suggest
from gruppo.data.base import TaskSet
from gruppo.data.world.encyclopedia import RELATIONS, World
from gruppo.errors import ConfigError
from gruppo.types import Task

Step = dict[str, str]


@dataclass(frozen=True)
class Draw:
    """One drawn question: its wordings' common parts and its plan; the answer is the last step's value."""

    wordings: tuple[str, ...]  # all ways to ask it; the last of them is the unseen one
    steps: tuple[Step, ...]
    answer: str


@dataclass(frozen=True)
class Source:
    """Where questions are drawn from: one split of a world, one random stream."""

    world: World
    split: str
    rng: random.Random

    def entity(self, kind: str) -> str:
        return self.rng.choice(self.world.entities[kind, self.split])

    def year(self) -> int:
        return int(self.entity("year").rsplit(" ", 1)[1])

    def fact(self, kind: str, value_kinds: Sequence[str]) -> tuple[str, str, str]:
        """A (relation, subject, value) whose subject is of `kind` and whose value is of one of `value_kinds`."""
        relations = [relation for relation, value in RELATIONS[kind].items() if value in value_kinds]
        return self.about(self.entity(kind), relations)

    def about(self, subject: str, relations: Sequence[str]) -> tuple[str, str, str]:
        relation = self.rng.choice(relations)
        return relation, subject, self.world.facts[subject, relation]


def lookup(world: World, relation: str, subject: str) -> Step:
    """The gold step that finds one fact."""
    goal = f"{relation} of {subject}"
    return {"tool": "wikipedia", "sub_goal": goal, "command": goal, "result": world.sentences[subject, relation]}


def compute(operation: str, a: int, b: int) -> tuple[Step, int]:
    """The gold step of one calculation, and its value. `b` is not used by "square"."""
    goal, code, value = {
        "plus": (f"{a} plus {b}", f"print({a} + {b})", a + b),
        "minus": (f"{a} minus {b}", f"print({a} - {b})", a - b),
        "times": (f"{a} times {b}", f"print({a} * {b})", a * b),
        "square": (f"square of {a}", f"print({a} ** 2)", a * a),
    }[operation]
    return {"tool": "python", "sub_goal": goal, "command": code, "result": str(value)}, value


def _spoken(operation: str, a: str, b: int) -> tuple[str, str]:
    """Two ways to say a calculation on `a`, which may be a number or a phrase."""
    return {
        "plus": (f"{a} plus {b}", f"the sum of {a} and {b}"),
        "minus": (f"{a} minus {b}", f"{b} less than {a}"),
        "times": (f"{a} times {b}", f"the product of {a} and {b}"),
        "square": (f"the square of {a}", f"{a} squared"),
    }[operation]


def _operands(rng: random.Random) -> tuple[str, int, int]:
    operation = rng.choice(("plus", "minus", "times", "square"))
    if operation == "square":
        return operation, rng.randrange(10, 100), 0
    if operation == "times":
        return operation, rng.randrange(11, 100), rng.randrange(2, 10)
    high, low = rng.randrange(100, 900), rng.randrange(11, 100)
    return operation, high, low


def _reach(source: Source, start: int | None = None) -> tuple[str, int, int, int]:
    """A calculation (from `start` if given) that ends in a year of the split: operation, operands, year."""
    while True:
        year = source.year()
        root = round(year**0.5)
        if start is None and root * root == year and source.rng.random() < 0.5:
            return "square", root, 0, year
        operation, b = source.rng.choice(("plus", "minus")), source.rng.randrange(11, 100)
        a = start if start is not None else (year - b if operation == "plus" else year + b)
        reached = a + b if operation == "plus" else a - b
        if f"the year {reached}" in source.world.entities["year", source.split] and 0 < a < 1000:
            return operation, a, b, reached


def _compute(source: Source) -> Draw:
    operation, a, b = _operands(source.rng)
    step, value = compute(operation, a, b)
    first, second = _spoken(operation, str(a), b)
    return Draw(
        (f"What is {first}?", f"Compute {second}.", f"Work out {first}.", f"Tell me {second}."), (step,), str(value)
    )


def _lookup(source: Source) -> Draw:
    kind = source.rng.choice(("city", "person", "invention", "year"))
    relation, subject, value = source.fact(kind, ("number", "city", "person", "event"))
    told = f"the {relation} of {subject}"
    wordings = (f"What is {told}?", f"Find {told}.", f"Look up {told}.", f"Tell me {told}.")
    return Draw(wordings, (lookup(source.world, relation, subject),), value)


def _compute_lookup(source: Source) -> Draw:
    operation, a, b, year = _reach(source)
    step, _ = compute(operation, a, b)
    first, second = _spoken(operation, str(a), b)
    wordings = (
        f"Compute {first}, then find the event of that year.",
        f"What is the event of the year {second}?",
        f"Work out {second}. What is the event of that year?",
        f"Tell me the event of the year that is {first}.",
    )
    subject = f"the year {year}"
    return Draw(wordings, (step, lookup(source.world, "event", subject)), source.world.facts[subject, "event"])


def _lookup_compute(source: Source) -> Draw:
    kind = source.rng.choice(("city", "person", "invention"))
    relation, subject, value = source.fact(kind, ("number",))
    operation, b = source.rng.choice(
        (("plus", source.rng.randrange(11, 100)), ("minus", source.rng.randrange(11, 100)))
    )
    if source.rng.random() < 0.3:
        operation, b = "times", source.rng.randrange(2, 10)
    step, result = compute(operation, int(value), b)
    told = f"the {relation} of {subject}"
    first, second = _spoken(operation, told, b)
    third, _ = _spoken(operation, "it", b)
    wordings = (f"What is {first}?", f"Compute {second}.", f"Find {told}. What is {third}?", f"Tell me {first}.")
    return Draw(wordings, (lookup(source.world, relation, subject), step), str(result))


def _chain(source: Source, hops: int) -> tuple[list[tuple[str, str, str]], str]:
    """A path of `hops` facts, each about the value of the one before, and its phrase "the a of the b of X"."""
    kind = source.rng.choice(("person", "invention", "city") if hops == 2 else ("invention", "city"))
    facts = [source.fact(kind, ("city", "person"))]
    while len(facts) < hops:
        kind = RELATIONS[kind][facts[-1][0]]
        last = len(facts) == hops - 1
        options = [name for name, value in RELATIONS[kind].items() if last or value in ("city", "person")]
        facts.append(source.about(facts[-1][2], options))
    phrase = facts[0][1]
    for relation, _, _ in facts:
        phrase = f"the {relation} of {phrase}"
    return facts, phrase


def _lookups(hops: int) -> Callable[[Source], Draw]:
    def draw(source: Source) -> Draw:
        facts, phrase = _chain(source, hops)
        first, inner = facts[0], f"the {facts[0][0]} of {facts[0][1]}"
        rest = " of ".join(f"the {relation}" for relation, _, _ in reversed(facts[1:]))
        wordings = (
            f"What is {phrase}?",
            f"Find {phrase}.",
            f"Find {inner}, then {rest} of that {RELATIONS_KIND[first[0]]}.",
            f"Tell me {phrase}.",
        )
        steps = tuple(lookup(source.world, relation, subject) for relation, subject, _ in facts)
        return Draw(wordings, steps, facts[-1][2])

    return draw


RELATIONS_KIND = {relation: value for relations in RELATIONS.values() for relation, value in relations.items()}


def _lookups_compute(source: Source) -> Draw:
    while True:
        facts, phrase = _chain(source, 2)
        if RELATIONS_KIND[facts[-1][0]] == "number":
            break
    operation, b = source.rng.choice(("plus", "minus")), source.rng.randrange(11, 100)
    step, result = compute(operation, int(facts[-1][2]), b)
    first, second = _spoken(operation, phrase, b)
    third, _ = _spoken(operation, "it", b)
    wordings = (f"What is {first}?", f"Compute {second}.", f"Find {phrase}. What is {third}?", f"Tell me {first}.")
    steps = tuple(lookup(source.world, relation, subject) for relation, subject, _ in facts)
    return Draw(wordings, (*steps, step), str(result))


def _after(source: Source, facts: list[tuple[str, str, str]], phrase: str) -> Draw:
    """What happened some years before or after the year that a chain of facts ends in."""
    operation, a, b, year = _reach(source, int(facts[-1][2]))
    step, _ = compute(operation, a, b)
    first, second = _spoken(operation, phrase, b)
    third, _ = _spoken(operation, "it", b)
    wordings = (
        f"What is the event of the year {first}?",
        f"Compute {second}, then find the event of that year.",
        f"Find {phrase}. What is the event of the year {third}?",
        f"Tell me the event of the year {second}.",
    )
    subject = f"the year {year}"
    steps = [lookup(source.world, relation, name) for relation, name, _ in facts]
    return Draw(wordings, (*steps, step, lookup(source.world, "event", subject)), source.world.facts[subject, "event"])


def _lookup_compute_lookup(source: Source) -> Draw:
    subject, relation = source.rng.choice(
        ((source.entity("city"), "founding year"), (source.entity("person"), "birth year"))
    )
    fact = (relation, subject, source.world.facts[subject, relation])
    return _after(source, [fact], f"the {relation} of {subject}")


def _lookups_compute_lookup(source: Source) -> Draw:
    while True:
        facts, phrase = _chain(source, 2)
        if facts[-1][0] in ("founding year", "birth year"):
            return _after(source, facts, phrase)


FAMILIES: dict[str, Callable[[Source], Draw]] = {
    "compute": _compute,
    "lookup": _lookup,
    "compute-lookup": _compute_lookup,
    "lookup-compute": _lookup_compute,
    "lookup-lookup": _lookups(2),
    "lookup-lookup-lookup": _lookups(3),
    "lookup-lookup-compute": _lookups_compute,
    "lookup-compute-lookup": _lookup_compute_lookup,
    "lookup-lookup-compute-lookup": _lookups_compute_lookup,
}
"""Family name -> how one of its questions is drawn. The number of steps is the number of words in the name."""


def world_tasks(world: World, split: str, count: int, families: Sequence[str], seed: int = 0) -> TaskSet:
    """`count` different tasks of a split, the families in equal turn; the same arguments give the same tasks.

    A calculation that some split could ask belongs to exactly one of them, as entities do. Raises ConfigError for an
    unknown family, or if there are not `count` different questions.
    """
    for family in families:
        if family not in FAMILIES:
            raise ConfigError(f"tasks.families: no family {family!r}{suggest(family, FAMILIES)}")
    source = Source(world, split, random.Random(f"questions-{world.seed}-{split}-{seed}"))
    tasks: dict[str, Task] = {}
    draws = 0
    while len(tasks) < count:
        draws += 1
        if draws > 200 * count:
            raise ConfigError(
                f"the world has no {count} different {split} questions of {', '.join(families)}: ask for fewer"
            )
        family = families[len(tasks) % len(families)]
        draw = FAMILIES[family](source)
        if not _owns(split, draw):
            continue
        unseen = split == "test" and source.rng.random() < 0.25
        question = draw.wordings[-1] if unseen else source.rng.choice(draw.wordings[:-1])
        info = {
            "family": family,
            "steps": len(draw.steps),
            "wording": "unseen" if unseen else "seen",
            "plan": list(draw.steps),
        }
        if question not in tasks:
            tasks[question] = Task(f"{split}-{len(tasks)}", question, draw.answer, source="world", extra_info=info)
    return TaskSet(list(tasks.values()))


def _owns(split: str, draw: Draw) -> bool:
    """Whether the split may ask this: a question of calculation only is given to a split by its digits' sum."""
    if any(step["tool"] != "python" for step in draw.steps):
        return True
    digits = sum(map(int, filter(str.isdigit, draw.steps[0]["sub_goal"])))
    return {"test": 0, "validation": 1}.get(split, 2) == (digits % 5 if digits % 5 < 2 else 2)
