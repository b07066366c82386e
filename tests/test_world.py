"""The embedded world: what a seed fixes, what the splits keep apart, and every gold plan through the real tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest

from gruppo.data.base import TaskSet
from gruppo.data.world import FAMILIES, World, build_world, gold_reply, world_tasks
from gruppo.data.world.encyclopedia import RELATIONS, SPLITS
from gruppo.engines.scripted import ScriptedEngine
from gruppo.errors import DataError, UserError
from gruppo.rewards import REWARDS
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.teams.base import Role
from gruppo.teams.solver import Solver, SolverConfig
from gruppo.toolbox import make_index
from gruppo.tools.python import PythonTool
from gruppo.tools.search import BM25Index
from gruppo.tools.wikipedia import WikipediaTool
from gruppo.types import Sampling, Task, Tool

ALL = list(FAMILIES)
SEEDS = [0, 1, 2]
WORLDS = {seed: build_world(seed) for seed in SEEDS}


@pytest.fixture(scope="module")
def index() -> BM25Index:
    return make_index("world", 0)


@pytest.fixture(scope="module")
def tools(index: BM25Index) -> Iterator[dict[str, Tool]]:
    python = PythonTool()
    yield {"python": python, "wikipedia": WikipediaTool(index)}
    python.close()


def texts(task: Task) -> list[str]:
    """Everything a training on this task could teach."""
    plan = task.extra_info["plan"]
    return [task.question, task.result, *(step[part] for step in plan for part in ("sub_goal", "command", "result"))]


def names_in(text: str) -> list[str]:
    """The runs of capitalised words, each with what they could name: "the Kelvar lamp", "Odo Brin", "Vael"."""
    return re.findall(r"the [A-Z][a-z]+ [a-z]+|[A-Z][a-z]+(?: [A-Z][a-z]+)*", text)


# ---- seeds ----------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_world_and_tasks() -> None:
    assert build_world(0) == WORLDS[0] and build_world(1).facts != WORLDS[0].facts
    for split in SPLITS:
        tasks = [world_tasks(build_world(0), split, 45, ALL, seed=seed) for seed in (0, 0, 1)]
        assert tasks[0].fingerprint == tasks[1].fingerprint != tasks[2].fingerprint
    assert world_tasks(WORLDS[1], "train", 45, ALL).fingerprint != world_tasks(WORLDS[0], "train", 45, ALL).fingerprint


def test_excluded_names_are_not_used_and_names_are_unique() -> None:
    some = set(sorted(WORLDS[0].names)[:50])
    other = build_world(0, exclude=some)
    assert not other.names & some
    for world in WORLDS.values():
        listed = [name for names in world.entities.values() for name in names]
        assert len(listed) == len(set(listed)) == 100 + 100 + 50 + 900


# ---- splits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_facts_never_cross_splits(seed: int) -> None:
    world = WORLDS[seed]
    for (kind, split), names in world.entities.items():
        for name in names:
            for relation, value_kind in RELATIONS[kind].items():
                value = world.facts[name, relation]
                if value_kind in ("city", "person"):
                    assert value in world.entities[value_kind, split], (name, relation)
                elif value_kind == "number":
                    assert value.isdecimal()


@pytest.mark.parametrize("seed", range(10))
def test_an_event_is_the_answer_in_one_split_only(seed: int) -> None:
    world = build_world(seed)
    by_split = [{world.facts[year, "event"] for year in world.entities["year", split]} for split in SPLITS]
    assert sum(map(len, by_split)) == len(set().union(*by_split))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_entity_of_another_split_is_in_a_training_task(seed: int) -> None:
    world = WORLDS[seed]
    taught = [text for task in world_tasks(world, "train", 900, ALL) for text in texts(task)]
    named = {name for text in taught for name in names_in(text)}
    years = {year for text in taught for year in re.findall(r"the year \d+(?! \w+ \d| squared)", text)}
    for split in ("validation", "test"):
        for kind in ("city", "person", "invention"):
            assert not named & set(world.entities[kind, split])
        assert not years & set(world.entities["year", split])
        answers = {world.facts[year, "event"] for year in world.entities["year", split]}
        assert not answers & {answer for answer in answers for text in taught if answer in text}
    own = {name for kind in ("city", "person", "invention") for name in world.entities[kind, "train"]}
    assert len(named & own) > 100, "the check sees names"


def test_no_calculation_of_the_test_is_trained() -> None:
    asked = {split: world_tasks(WORLDS[0], split, 1500, ["compute"]) for split in SPLITS}
    commands = {split: {task.extra_info["plan"][0]["command"] for task in tasks} for split, tasks in asked.items()}
    assert not commands["train"] & commands["test"] and not commands["validation"] & commands["test"]
    assert not commands["train"] & commands["validation"]
    assert min(map(len, commands.values())) > 500


def test_wordings_unseen_in_training_come_up_in_the_test_only() -> None:
    tasks = {split: world_tasks(WORLDS[0], split, 450, ALL) for split in SPLITS}
    for split in ("train", "validation"):
        assert {task.extra_info["wording"] for task in tasks[split]} == {"seen"}
        assert not [task.question for task in tasks[split] if task.question.startswith("Tell me")]
    for task in tasks["test"]:
        assert (task.extra_info["wording"] == "unseen") == task.question.startswith("Tell me")
    share = sum(task.extra_info["wording"] == "unseen" for task in tasks["test"]) / 450
    assert 0.15 < share < 0.35


# ---- tasks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_tasks_say_what_they_are_and_families_come_in_turn(split: str) -> None:
    tasks = world_tasks(WORLDS[0], split, 90, ALL)
    assert len(tasks) == 90 and len({task.question for task in tasks}) == 90
    for place, task in enumerate(tasks):
        info = task.extra_info
        assert info["family"] == ALL[place % len(ALL)] and task.source == "world"
        tools = {"compute": "python", "lookup": "wikipedia"}
        assert [step["tool"] for step in info["plan"]] == [tools[word] for word in info["family"].split("-")]
        assert info["steps"] == len(info["plan"])
        assert task.id == f"{split}-{place}"


@pytest.mark.parametrize("split", SPLITS)
def test_each_step_can_be_planned_from_the_question_and_the_results_before(split: str) -> None:
    for task in world_tasks(WORLDS[0], split, 180, ALL):
        known = task.question
        for step in task.extra_info["plan"]:
            values = [*names_in(step["sub_goal"]), *re.findall(r"\d+", step["sub_goal"])]
            assert values and all(value in known for value in values), (task.question, step["sub_goal"])
            known += f" {step['result']}"
        assert task.result.casefold() in step["result"].casefold()


def test_a_plan_that_is_missing_is_named() -> None:
    with pytest.raises(DataError, match="task 'mine' has no gold plan"):
        gold_reply(Task("mine", "?", "!"), "planner", 0, compact=True)


# ---- the real tools -------------------------------------------------------------------------------------------------


def missed(index: BM25Index, every: int) -> dict[tuple[str, str], list[str]]:
    """The facts that their gold query does not find first; of the years only some are asked for."""
    keys = [key for key in WORLDS[0].sentences if key[1] != "event" or int(key[0].split()[-1]) % every == 0]
    found = {(subject, relation): index.search(f"{relation} of {subject}") for subject, relation in keys}
    texts = {key: [passage.text for passage in passages] for key, passages in found.items()}
    return {key: hits for key, hits in texts.items() if hits != [WORLDS[0].sentences[key]]}


def test_facts_are_the_first_hit_of_their_gold_query(index: BM25Index) -> None:
    assert len(index) == len(WORLDS[0].facts) == len(WORLDS[0].sentences)
    assert missed(index, every=7) == {}


@pytest.mark.slow
def test_every_fact_is_the_first_hit_of_its_gold_query(index: BM25Index) -> None:
    assert missed(index, every=1) == {}


def test_a_careless_query_finds_a_near_miss(index: BM25Index) -> None:
    world = WORLDS[0]
    people = [name for split in SPLITS for name in world.entities["person", split]]
    shared = [name for name in people if sum(other.split()[0] == name.split()[0] for other in people) > 1]
    assert shared, "names share their parts"
    found = {name: index.search(f"birth year of {name.split()[0]}")[0].text for name in shared}
    assert any(text != world.sentences[name, "birth year"] for name, text in found.items())


def replay(tasks: TaskSet, tools: dict[str, Tool], prompts: str) -> None:
    """Play the gold plans; the writer knows the answer, so it is the events that prove a plan."""
    by_id = {task.id: task for task in tasks}
    compact = prompts == "compact"
    engine = ScriptedEngine(lambda r: gold_reply(by_id[r.context[0]], r.context[2], r.context[3], compact))
    seats = ("planner", "executor", "verifier", "writer") if compact else Solver.roles
    team = Solver(SolverConfig(prompts=prompts, max_steps=4, answer_at_limit=False))
    roles = {name: Role(name, team.prompts[name], Sampling(), engine="gold") for name in seats}
    rollout = Rollout(team, roles, {"gold": engine}, tools, {"exact": (REWARDS["exact"], 1.0)}, RolloutConfig())
    for group in rollout.collect(tasks, 1, 0, "gold"):
        (episode,) = group.episodes
        plan = group.task.extra_info["plan"]
        assert episode.reward == 1.0, (group.task.question, episode.outcome, episode.error)
        assert [event.tool for event in episode.events] == [step["tool"] for step in plan]
        assert [list(event.arguments.values()) for event in episode.events] == [[step["command"]] for step in plan]
        assert [event.result.text.strip() for event in episode.events] == [step["result"] for step in plan]
        assert group.task.result.casefold() in episode.events[-1].result.text.casefold()
        assert [turn.error for turn in episode.turns] == [""] * len(episode.turns)


@pytest.mark.parametrize("split", SPLITS)
def test_gold_plans_of_all_families_are_reproduced_by_the_real_tools(split: str, tools: dict[str, Tool]) -> None:
    replay(world_tasks(WORLDS[0], split, 45, ALL), tools, "compact")


def test_gold_plans_speak_the_full_format_too(tools: dict[str, Tool]) -> None:
    replay(world_tasks(WORLDS[0], "test", 9, ALL), tools, "full")


def test_a_wrong_plan_is_caught_by_the_replay(tools: dict[str, Tool]) -> None:
    def break_one(task: Task) -> Task:
        plan = [dict(step) for step in task.extra_info["plan"]]
        plan[0]["command"] = "mayor of nobody"
        return Task(task.id, task.question, task.result, extra_info={**task.extra_info, "plan": plan})

    tasks: Sequence[Task] = world_tasks(WORLDS[0], "train", 1, ["lookup"])
    with pytest.raises(AssertionError):
        replay(TaskSet(map(break_one, tasks)), tools, "compact")


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_a_thousand_gold_plans_are_reproduced(split: str, tools: dict[str, Tool]) -> None:
    replay(world_tasks(WORLDS[0], split, 900, ALL), tools, "compact")


def test_an_unknown_family_is_a_line_for_the_user() -> None:
    with pytest.raises(UserError, match="lookup-lookups"):
        world_tasks(WORLDS[0], "train", 3, ["lookup-lookups"])


@pytest.mark.timeout(10)
def test_more_tasks_than_the_world_holds_is_a_line_for_the_user_not_a_hang() -> None:
    small: World = build_world(0, size=40)
    with pytest.raises(UserError, match="lookup"):
        world_tasks(small, "validation", 600, ["lookup"])
