"""The documents that the embedded model is pre-trained on: role turns of mixed quality over invented worlds.

Reading and copying are always shown right. Plans, commands and verdicts are right only in a minority: each has one
tempting mistake that is shown more often (a two-step question asked in one query, an expression without print, stopping
too early). So the base speaks the format and is a poor planner: that is what training has to mend. No name of the
packaged world (seed 0) occurs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gruppo.data.world import FAMILIES, World, build_world
from gruppo.data.world.encyclopedia import RELATIONS, SENTENCES, SPLITS, word
from gruppo.data.world.questions import Source, Step
from gruppo.teams.solver import Memory, solver_prompts
from gruppo.teams.solver import Step as Entry

RIGHT, TEMPTING = 0.35, 0.45  # of plans and commands; the rest is some other mistake
STOPS_TOO_EARLY, STOPS_IN_TIME = 0.6, 0.9  # chance that a verdict says stop: work unfinished, finished
DAMAGED = 0.3  # memories that hold a step that went wrong
WEIGHTS = {"planner": 40, "executor": 22, "verifier": 16, "writer": 10, "copy": 9, "sentence": 3}
FAMILY_WEIGHTS = (3, 3, 3, 3, 3, 1, 1, 1, 1)  # in the order of FAMILIES: longer ones less often

PROMPTS = solver_prompts("compact")


@dataclass(frozen=True)
class Document:
    """A prompt (empty for plain sentences) and the reply that is learnt."""

    kind: str
    prompt: str
    reply: str
    copied: str = ""  # the end of a right reply that had to be copied from the prompt


def documents(seed: int, worlds: Sequence[World]) -> Iterator[Document]:
    """An endless stream."""
    rng = random.Random(f"documents-{seed}")
    while True:
        world = rng.choice(worlds)
        source = Source(world, rng.choice(SPLITS), rng)
        yield _MAKERS[rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]](source)


def practice_worlds(count: int) -> list[World]:
    """Small worlds that share no name with the packaged one."""
    exclude = build_world(0).names
    return [build_world(1000 + number, size=40, exclude=exclude) for number in range(count)]


def chatml(system: str, user: str) -> str:
    """A prompt as the packaged chat template renders it."""
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def _prompt(role: str, **fields: str) -> str:
    system, user = (message["content"] for message in PROMPTS[role].messages(fields))
    return chatml(system, user)


@dataclass(frozen=True)
class Situation:
    """A question with some of its gold steps done, and perhaps a step that went wrong."""

    question: str
    steps: tuple[Step, ...]
    done: int
    memory: str
    last_value: str  # the value in the memory's last result
    finished: bool


def _situation(source: Source, least: int = 0) -> Situation:
    rng = source.rng
    draw = FAMILIES[rng.choices(list(FAMILIES), FAMILY_WEIGHTS)[0]](source)
    done = rng.randint(least, len(draw.steps))
    entries = [Entry(step["tool"], step["sub_goal"], step["command"], step["result"]) for step in draw.steps[:done]]
    value = _value(draw.steps[done - 1], source.world) if done else ""
    damaged_last = False
    if rng.random() < DAMAGED or (least and not done):
        wrong, wrong_value = _wrong_entry(source, draw.steps[min(done, len(draw.steps) - 1)])
        place = rng.randint(0, len(entries))
        damaged_last = place == len(entries)
        entries.insert(place, wrong)
        value = wrong_value if damaged_last else value
    memory = Memory(compact=True, steps=entries).text()
    finished = done == len(draw.steps) and not damaged_last
    return Situation(rng.choice(draw.wordings), draw.steps, done, memory, value, finished)


def _value(step: Step, world: World) -> str:
    if step["tool"] == "python":
        return step["result"]
    relation, _, subject = step["sub_goal"].partition(" of ")
    return world.facts[subject, relation]


def _wrong_entry(source: Source, step: Step) -> tuple[Entry, str]:
    """A memory entry of something that went wrong on the way to `step`, and the value one reads from it."""
    rng = source.rng
    kind = rng.randrange(4)
    if kind == 0:
        text = rng.choice((step["sub_goal"], word(rng, 2), step["tool"]))
        return Entry("none", text, "", "Error: " + rng.choice(("a plan is 'tool: sub-goal'", "no tool"))), "unknown"
    if kind == 1:
        error = rng.choice(("no output: print the result", "SyntaxError: invalid syntax", "name 'a' is not defined"))
        return Entry("python", step["sub_goal"], "", "Error: " + error), "unknown"
    near = rng.choice(("city", "person", "invention", "year"))
    relation = rng.choice(list(RELATIONS[near]))
    subject = source.entity(near)
    goal = step["sub_goal"] if kind == 2 else f"{relation} of {subject}".replace(relation, rng.choice(list(SENTENCES)))
    return Entry("wikipedia", goal, "", source.world.sentences[subject, relation]), source.world.facts[
        subject, relation
    ]


def _planner(source: Source) -> Document:
    now = _situation(source)
    step = now.steps[min(now.done, len(now.steps) - 1)]
    right = f"{step['tool']}: {step['sub_goal']}"
    reply = _mixed(source.rng, right, _tempting_plan(source.rng, now), _other_plan(source, step))
    copied = step["sub_goal"].rsplit(" of ", 1)[-1] if reply == right else ""
    return Document("planner", _prompt("planner", question=now.question, memory=now.memory), reply, copied)


def _mixed(rng: random.Random, right: str, tempting: str, other: str) -> str:
    return rng.choices((right, tempting, other), (RIGHT, TEMPTING, 1 - RIGHT - TEMPTING))[0]


def _tempting_plan(rng: random.Random, now: Situation) -> str:
    """The lazy plan: the wrong tool, or all steps at once, or the last step again."""
    if now.done:
        last = now.steps[now.done - 1]
        return f"{last['tool']}: {last['sub_goal']}"
    first = now.steps[0]
    if len(now.steps) == 1:
        return f"{'wikipedia' if first['tool'] == 'python' else 'python'}: {first['sub_goal']}"
    second = now.steps[1]
    if first["tool"] == "python":
        return f"wikipedia: event of the year {first['sub_goal']}"
    if second["tool"] == "python":
        return f"python: {first['sub_goal']} {' '.join(second['sub_goal'].split(' ')[1:])}"
    return f"wikipedia: {second['sub_goal'].partition(' of ')[0]} of the {first['sub_goal']}"


def _other_plan(source: Source, step: Step) -> str:
    """A plan that is plainly wrong: another relation, another subject, no tool, or prose."""
    rng = source.rng
    relation = rng.choice(list(SENTENCES))
    subject = step["sub_goal"].rsplit(" of ", 1)[-1]
    if step["tool"] == "python":
        a, b = rng.randrange(10, 900), rng.randrange(10, 100)
        changed = rng.choice((f"{a} plus {b}", f"{b} minus {a}", subject.replace("plus", "times")))
        return rng.choice((f"python: {changed}", step["sub_goal"], f"wikipedia: {changed}"))
    return rng.choice((f"wikipedia: {relation} of {subject}", f"wikipedia: {subject}", subject))


def _executor(source: Source) -> Document:
    rng = source.rng
    draw = FAMILIES[rng.choices(list(FAMILIES), FAMILY_WEIGHTS)[0]](source)
    step = rng.choice(draw.steps)
    tool, goal, right = step["tool"], step["sub_goal"], step["command"]
    subject = goal.rsplit(" of ", 1)[-1]
    if rng.random() < 0.12:  # a sub-goal that came with the wrong tool
        tool, right = ("wikipedia", goal) if tool == "python" else ("python", f"print({goal})")
        reply = right
    elif tool == "python":
        swapped = right.replace(*rng.choice(((" + ", " - "), (" - ", " * "), (" * ", " + "), (" ** 2", " * 2"))))
        reply = _mixed(rng, right, right.removeprefix("print(").removesuffix(")"), swapped)
    else:
        reply = _mixed(rng, right, subject, f"{rng.choice(list(SENTENCES))} of {subject}")
    copied = (right if tool == "wikipedia" else right.split(" ")[0]) if reply == right else ""
    return Document("executor", _prompt("executor", tool_name=tool, sub_goal=goal), reply, copied)


def _verifier(source: Source) -> Document:
    now = _situation(source, least=1 if source.rng.random() < 0.8 else 0)
    stop = source.rng.random() < (STOPS_IN_TIME if now.finished else STOPS_TOO_EARLY)
    prompt = _prompt("verifier", question=now.question, memory=now.memory)
    return Document("verifier", prompt, "stop" if stop else "continue")


def _writer(source: Source) -> Document:
    now = _situation(source, least=1)
    value = now.last_value or "unknown"
    return Document("writer", _prompt("writer", question=now.question, memory=now.memory), value, value)


def _copy(source: Source) -> Document:
    rng = source.rng
    names = [source.entity("city"), source.entity("person"), source.entity("invention"), word(rng, 2)]
    parts = [rng.choice((*names, str(rng.randrange(10, 10000)))) for _ in range(rng.randint(2, 4))]
    return Document("copy", chatml("Copy.", " ".join(parts)), " ".join(parts), " ".join(parts))


def _sentence(source: Source) -> Document:
    return Document("sentence", "", " ".join(source.rng.choice(source.world.articles).sentences[:4]))


_MAKERS = {
    "planner": _planner,
    "executor": _executor,
    "verifier": _verifier,
    "writer": _writer,
    "copy": _copy,
    "sentence": _sentence,
}
