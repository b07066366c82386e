"""Episodes with one mistake each, played with scripts through the real teams and rollout: is the kind recognised?

The teams are the solver on questions of the embedded world, with its encyclopedia, and a single agent on word problems.
`python tests/test_mistakes_injected.py` prints the confusion.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gruppo.data.world import world_of, world_tasks
from gruppo.engines.scripted import ScriptedEngine
from gruppo.evaluation.claims import evaluate
from gruppo.evaluation.mistakes import Kind, Mistake, find_mistakes
from gruppo.rewards import REWARDS
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.teams import Solo, Solver
from gruppo.teams.base import Role, Team
from gruppo.teams.solo import SoloConfig
from gruppo.teams.solver import SolverConfig
from gruppo.tools.base import tool
from gruppo.tools.search import BM25Index, Passage
from gruppo.tools.wikipedia import WikipediaTool
from gruppo.types import Completion, Group, Request, Sampling, StopReason, Task, Tool

EACH = 20
WORLD = world_of(0)
FAMILIES = ["lookup", "compute-lookup", "lookup-compute", "lookup-lookup", "lookup-compute-lookup"]


def calculated(code: str) -> str:
    return str(evaluate(re.findall(r"[0-9]+|\*\*|[-+*/()]", code.removeprefix("print"))))


@tool(name="python", in_process=True)
def calculate(code: str) -> str:
    """Run one print of plain arithmetic."""
    return calculated(code)


@tool(name="generator", in_process=True)
def guess(query: str) -> str:
    """Answer from memory."""
    return f"I believe it is {MADE_UP[len(query) % len(MADE_UP)]}."


MADE_UP = ("the siege of Karvold", "Ulm Hestrin", "the flood of Ostrava", "Brennick")
INDEX = BM25Index(
    [Passage(str(n), subject, sentence) for n, ((subject, _), sentence) in enumerate(WORLD.sentences.items())]
)
TOOLS: dict[str, Tool] = {"python": calculate, "wikipedia": WikipediaTool(INDEX), "generator": guess}


@dataclass(frozen=True)
class Script:
    """What a team says: steps of (tool, sub-goal, command) and the answer, or one text; `kind` is what is wrong."""

    task: Task
    kind: Kind | None
    steps: tuple[tuple[str, str, str], ...] = ()
    answer: str | Completion = ""


def reply_of(scripts: dict[str, Script]) -> Callable[[Request], str | Completion]:
    def reply(request: Request) -> str | Completion:
        task_id, _, role, index = request.context
        script = scripts[task_id]
        if role in ("writer", "agent"):
            return script.answer
        tool_name, goal, command = script.steps[min(index, len(script.steps) - 1)]
        last = index >= len(script.steps) - 1
        plan = f"{tool_name}: {goal}" if tool_name else goal
        return {"planner": plan, "executor": command, "verifier": "stop" if last else "continue"}[role]

    return reply


def play(team: Team, seats: Sequence[str], scripts: Sequence[Script], tools: dict[str, Tool]) -> list[Group]:
    roles = {name: Role(name, team.prompts[name], Sampling(max_tokens=400), "script") for name in seats}
    by_id = {script.task.id: script for script in scripts}
    engines = {"script": ScriptedEngine(reply_of(by_id))}
    rewards = {"answers": (REWARDS["answers"], 1.0)}
    return Rollout(team, roles, engines, tools, rewards, RolloutConfig(retries=0)).collect(
        [script.task for script in scripts], 1, 0, "injected"
    )


def played(scripts: Sequence[Script]) -> list[tuple[Script, list[Mistake], Group]]:
    """Every script with the mistakes that are found in its episode."""
    teams = [script for script in scripts if script.steps]
    alone = [script for script in scripts if not script.steps]
    solver = Solver(SolverConfig(prompts="compact", max_steps=5))
    groups = play(solver, ("planner", "executor", "verifier", "writer"), teams, TOOLS)
    groups += play(Solo(SoloConfig(max_turns=2)), ("agent",), alone, {})
    return [
        (script, find_mistakes(group.task, group.episodes[0]), group)
        for script, group in zip([*teams, *alone], groups, strict=True)
    ]


# Teams ---------------------------------------------------------------------------------------------------------------

Steps = tuple[tuple[str, str, str], ...]
NOTHINGS = (
    "Nothing happened in that year.", "No event took place then.", "There was no such event.", "None",
    "The year was uneventful.", "It did not happen.", "There is no mayor.", "Nobody was born there.",
    "It never took place.", "Nothing of note occurred that year.", "No battle was fought in it.",
    "That city does not exist.", "The person never existed.", "The city has no founder.",
)  # fmt: skip


def gold(task: Task) -> Steps:
    return tuple((step["tool"], step["sub_goal"], step["command"]) for step in task.extra_info["plan"])


def other(text: str, draw: random.Random) -> str:
    """A number or name unlike the given."""
    if text.lstrip("-").isdigit():
        return str(int(text) + draw.choice((-31, -9, 11, 27, 100)))
    return draw.choice(MADE_UP)


def wrong_order(task: Task, draw: random.Random) -> Script:
    steps = gold(task)
    first, second = steps[0], steps[1]
    assumed = [number for number in re.findall(r"[0-9]+", second[2]) if number not in task.question]
    moved = second[2].replace(assumed[0], other(assumed[0], draw)) if assumed else second[2]
    early = (second[0], moved, moved)
    return Script(task, Kind.wrong_order, (early, first), other(task.result, draw))


def premature(task: Task, draw: random.Random) -> Script:
    plan = task.extra_info["plan"]
    done = draw.randrange(1, len(plan))
    said = plan[done - 1]["result"]
    return Script(task, Kind.premature_answer, gold(task)[:done], draw.choice((said, f"It is {said}")))


def not_found(task: Task, draw: random.Random) -> Script:
    *before, last = gold(task)
    missing = ("wikipedia", "record of Zzyx", draw.choice(("Zzyx", "qqq www", "Xanthe Orrery")))
    return Script(task, Kind.not_found_as_nothing, (*before, missing), draw.choice(NOTHINGS))


def unverified(task: Task, draw: random.Random) -> Script:
    *before, last = gold(task)
    missing = ("wikipedia", last[1], "Zzyx qqq")
    asked = ("generator", last[1], last[2])
    answer = draw.choice(MADE_UP)
    if draw.random() < 0.5:
        return Script(task, Kind.unverified_claim, (*before, missing), f"It is {answer}")
    return Script(task, Kind.unverified_claim, (*before, asked), MADE_UP[len(last[2]) % len(MADE_UP)])


def repeated(task: Task, draw: random.Random) -> Script:
    steps = gold(task)
    place = draw.randrange(len(steps))
    twice = (*steps[: place + 1], (steps[place][0], "once more", steps[place][2]), *steps[place + 1 :])
    return Script(task, Kind.repeated_call, twice, draw.choice((task.result, other(task.result, draw))))


def ignored(task: Task, draw: random.Random) -> Script:
    steps = gold(task)
    if steps[0][0] == "python" and draw.random() < 0.6:
        value = task.extra_info["plan"][0]["result"]
        moved = steps[1][2].replace(value, other(value, draw))
        return Script(task, Kind.ignored_result, (steps[0], (steps[1][0], moved, moved)), other(task.result, draw))
    return Script(task, Kind.ignored_result, steps, draw.choice(("", "It is ")) + other(task.result, draw))


def misread(task: Task, draw: random.Random) -> Script:
    """A look-up of somebody else, or a calculation with other numbers, gone through to its end."""
    steps, said = list(gold(task)), ""
    subject = re.search(r"(?<= of )[A-Z]\w+(?: [A-Z]\w+)*", steps[0][1])
    someone = draw.choice([name for kind in ("city", "person") for name in WORLD.entities[kind, "train"]])
    if subject:
        asked = steps[0][1].replace(subject[0], someone)
        steps[0] = (steps[0][0], asked, asked)
        said = WORLD.sentences.get((someone, asked.partition(" of ")[0]), "")
    else:
        shift = draw.choice((7, 13, 40))
        moved = re.sub("[0-9]+", lambda number: str(int(number[0]) + shift), steps[0][2], count=1 + draw.randrange(2))
        steps[0] = (steps[0][0], moved, moved)
        said = calculated(moved) if steps[0][0] == "python" else draw.choice(MADE_UP)
    return Script(task, Kind.comprehension, tuple(steps[:1]), said or "no value")


def wrong_operation(task: Task, draw: random.Random) -> Script:
    *before, (name, _, command) = gold(task)
    swapped = {"+": "-", "-": "+", "*": "+", "**": "*"}
    moved = re.sub(r"\*\*|[-+*]", lambda sign: swapped[sign[0]], command)
    value = calculated(moved)
    return Script(task, Kind.reasoning, (*before, (name, moved, moved)), value)


def unreadable(task: Task, draw: random.Random) -> Script:
    if draw.random() < 0.5:
        return Script(task, Kind.wrong_format, gold(task), "")
    return Script(
        task, Kind.wrong_format, (("", draw.choice(("I shall look it up", "??", "oracle: ask it")), "x"),), ""
    )


def wrong_sum(task: Task, draw: random.Random) -> Script:
    """The last calculation done in the head, and wrong."""
    *before, (_, _, command) = gold(task)
    a, sign, b = re.findall(r"[0-9]+|[-+*]+", command)
    value = int(other(task.result, draw))
    return Script(task, Kind.calculation, gold(task), f"{a} {sign} {b} = {value}, so it is {value}")


# One agent -----------------------------------------------------------------------------------------------------------

STORIES = (
    ("A baker fills {a} trays with {b} rolls each and sells {c}. How many rolls are left?", "{a} * {b}", "{x} - {c}"),
    ("Mia saves {a} euros for {b} weeks and is given {c} euros. How much has she?", "{a} * {b}", "{x} + {c}"),
    ("Of {a} litres {b} leak out, then {c} litres are added. How much is in it?", "{a} - {b}", "{x} + {c}"),
    ("{a} boys and {b} girls each bring {c} books. How many books are there?", "{a} + {b}", "{x} * {c}"),
    ("Tom had {a} stamps, gave away {b} and then {c} more. How many has he now?", "{a} - {b}", "{x} - {c}"),
)


@dataclass(frozen=True)
class Story:
    task: Task
    lines: tuple[str, str]  # the two calculations as they should be
    values: tuple[int, int]


def story(number: int, draw: random.Random) -> Story:
    question, first, second = STORIES[number % len(STORIES)]
    a, b, c = draw.randrange(70, 99), draw.randrange(13, 29), draw.randrange(31, 49)
    one = first.format(a=a, b=b, c=c)
    x = int(evaluate(one.split()))
    two = second.format(x=x, c=c)
    y = int(evaluate(two.split()))
    chain = f"{one} = {x}\n{two} = {y}\n#### {y}"
    task = Task(f"story-{number}", question.format(a=a, b=b, c=c), str(y), chain)
    return Story(task, (one, two), (x, y))


def told(lines: Sequence[str], answer: str, draw: random.Random) -> str:
    styles = ("Step {n}: {line}", "First, then: {line}.", "{line}", "We get {line}.", "- {line}")
    style = draw.choice(styles)
    return "\n".join([*(style.format(n=n, line=line) for n, line in enumerate(lines, 1)), f"Answer: {answer}"])


def story_right(told_of: Story, draw: random.Random) -> Script:
    lines = [f"{line} = {value}" for line, value in zip(told_of.lines, told_of.values, strict=True)]
    return Script(told_of.task, None, (), told(lines, told_of.task.result, draw))


def story_miscalculated(told_of: Story, draw: random.Random) -> Script:
    slip = draw.choice((-10, 10, 1, -1, 100))
    if draw.random() < 0.5:
        lines = [f"{told_of.lines[0]} = {told_of.values[0]}", f"{told_of.lines[1]} = {told_of.values[1] + slip}"]
        return Script(told_of.task, Kind.calculation, (), told(lines, str(told_of.values[1] + slip), draw))
    x = told_of.values[0] + slip
    second = told_of.lines[1].replace(str(told_of.values[0]), str(x), 1)
    y = evaluate(second.split())
    return Script(
        told_of.task, Kind.calculation, (), told([f"{told_of.lines[0]} = {x}", f"{second} = {y}"], str(y), draw)
    )


def story_misread(told_of: Story, draw: random.Random) -> Script:
    a, sign, b = told_of.lines[0].split()
    first = draw.choice((f"{int(a) + 6} {sign} {b}", f"{a} {sign} {int(b) + 4}"))
    x = evaluate(first.split())
    second = told_of.lines[1].replace(str(told_of.values[0]), str(x), 1)
    y = evaluate(second.split())
    return Script(told_of.task, Kind.comprehension, (), told([f"{first} = {x}", f"{second} = {y}"], str(y), draw))


def story_misreasoned(told_of: Story, draw: random.Random) -> Script:
    a, sign, b = told_of.lines[0].split()
    swapped = {"*": "+", "+": "*", "-": "+"}
    if draw.random() < 0.4:  # stops half-way
        line = f"{told_of.lines[0]} = {told_of.values[0]}"
        return Script(told_of.task, Kind.reasoning, (), told([line], str(told_of.values[0]), draw))
    first = f"{a} {swapped[sign]} {b}"
    x = evaluate(first.split())
    second = told_of.lines[1].replace(str(told_of.values[0]), str(x), 1)
    y = evaluate(second.split())
    return Script(told_of.task, Kind.reasoning, (), told([f"{first} = {x}", f"{second} = {y}"], str(y), draw))


def story_unreadable(told_of: Story, draw: random.Random) -> Script:
    text = draw.choice(("Let us see. We could begin with the first of", "Well, hm, the trays,"))
    ids = tuple(text.encode())
    cut = Completion("p", (1,), ids, (0.0,) * len(ids), text, StopReason.length)
    broken = "<tool_call>python, please</tool_call>"
    return Script(told_of.task, Kind.wrong_format, (), draw.choice((cut, broken)))


# The set -------------------------------------------------------------------------------------------------------------

TEAM = (
    (wrong_order, ("compute-lookup", "lookup-compute")),
    (premature, ("compute-lookup", "lookup-lookup", "lookup-compute-lookup")),
    (not_found, ("lookup", "compute-lookup", "lookup-lookup")),
    (unverified, ("lookup", "compute-lookup", "lookup-lookup")),
    (repeated, tuple(FAMILIES)),
    (ignored, ("lookup", "compute-lookup", "lookup-compute")),
    (misread, ("lookup", "compute")),
    (wrong_operation, ("lookup-compute", "compute")),
    (unreadable, ("lookup", "compute-lookup")),
    (wrong_sum, ("lookup-compute",)),
)
ALONE = (story_miscalculated, story_misread, story_misreasoned, story_unreadable)
BOTH = {wrong_sum, misread, wrong_operation, unreadable}  # whose kinds single agents make too


def injected(seed: int) -> list[Script]:
    """EACH scripts of every kind."""
    draw, scripts = random.Random(seed), []
    for make, families in TEAM:
        count = EACH // 2 if make in BOTH else EACH
        tasks = world_tasks(WORLD, "test", count, list(families), seed)
        scripts += [make(replace(task, id=f"{make.__name__}-{task.id}"), draw) for task in tasks]
    for place, make in enumerate(ALONE):
        scripts += [make(story(EACH * (place + 1) + number, draw), draw) for number in range(EACH // 2)]
    return scripts


def clean(seed: int) -> list[Script]:
    """100 episodes in which all is well."""
    draw = random.Random(seed)
    tasks = world_tasks(WORLD, "test", 60, ["compute", *FAMILIES], seed)
    scripts = [Script(task, None, gold(task), draw.choice(("", "It is ")) + task.result) for task in tasks]
    return scripts + [story_right(story(number, draw), draw) for number in range(40)]


def confusion(found: Sequence[tuple[Script, list[Mistake], Group]]) -> Counter[tuple[str, str]]:
    return Counter((str(s.kind), str(mistakes[0].kind) if mistakes else "none") for s, mistakes, _ in found)


def test_nine_in_ten_of_200_are_recognised_and_show_their_words() -> None:
    found = played(injected(0))
    kinds = Counter(script.kind for script, _, _ in found)
    assert len(found) == 200 and kinds == dict.fromkeys(Kind, EACH)
    right = [bool(mistakes) and mistakes[0].kind is script.kind for script, mistakes, _ in found]
    assert sum(right) >= 180, sorted(confusion(found).items())
    for kind in Kind:
        own = [is_right for is_right, (script, _, _) in zip(right, found, strict=True) if script.kind is kind]
        assert sum(own) >= 0.8 * EACH, kind
    for _, mistakes, group in found:
        for one in mistakes:
            (episode,) = group.episodes
            said = [episode.turns[one.turn].text, episode.answer or ""]
            assert one.reason and any(one.quote in text for text in said)


def test_where_all_is_well_nearly_nothing_is_found() -> None:
    assert sum(bool(mistakes) for _, mistakes, _ in played(clean(0))) <= 2


if __name__ == "__main__":
    for seed in range(3):
        found = played(injected(seed))
        right = sum(bool(mistakes) and mistakes[0].kind is script.kind for script, mistakes, _ in found)
        print(f"seed {seed}: {right} of {len(found)}")
        for pair, count in sorted(confusion(found).items()):
            print("   ", *pair, count, "" if pair[0] == pair[1] else "<--")
        for script, mistakes, group in found:
            if not mistakes or mistakes[0].kind is not script.kind:
                print(group.task.question, "|", group.task.result, "|", script.steps, script.answer, mistakes)
        print("clean", sum(bool(mistakes) for _, mistakes, _ in played(clean(seed))))
        for script, mistakes, group in played(clean(seed)):
            if mistakes:
                print(group.task.question, "|", group.task.result, "|", script.steps, script.answer, mistakes)
