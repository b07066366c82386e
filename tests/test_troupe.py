"""Several processes play whole episodes: what one would play, each with tools of its own, which end with it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from small_run import config_of

from gruppo import replicas
from gruppo.engines.scripted import ScriptedEngine
from gruppo.replicas import Replicas
from gruppo.rewards import REWARDS
from gruppo.rollout import Rollout, RolloutConfig, collect_side_by_side
from gruppo.run import assemble, make_tasks
from gruppo.teams.base import Cast, Prompt, Role
from gruppo.toolbox import ToolsConfig, close_tools, make_tools, renew
from gruppo.troupe import Troupe
from gruppo.types import Episode, Group, Sampling, Task


class Reckoner:
    """Runs what its agent says; the answer tells in which process it played."""

    roles = ("agent",)
    prompts: Mapping[str, Prompt] = {"agent": Prompt("{question}")}

    async def play(self, task: Task, cast: Cast) -> str | None:
        said = await cast["agent"].act(str, question=task.question)
        result = await cast.call("python", {"code": said.text})
        total = await cast.call("double", {"number": int(task.result)})
        return f"{os.getpid()} {result.text.strip()} {total.text}"


TASKS = [Task(str(number), f"{number} squared", str(number**2)) for number in (3, 1, 4, 1, 5)]
TASKS[3] = replace(TASKS[3], id="1", question="once more")  # the same id twice: the second has draws of its own
DOUBLE = """from gruppo.tools import tool

@tool(seconds=60)
def double(number: int) -> int:
    \"\"\"Twice a number.

    number: any
    \"\"\"
    return 2 * number
"""


@pytest.fixture
def tools(tmp_path: Path) -> ToolsConfig:
    (tmp_path / "double.py").write_text(DOUBLE)
    return ToolsConfig(names=["python", f"{tmp_path / 'double.py'}:double"], python_seconds=60)


def reckoners(config: ToolsConfig) -> tuple[Rollout, Replicas]:
    engine = ScriptedEngine(lambda request: f"print(int({request.context[0]}) ** 2, {request.seed})")
    roles = {"agent": Role("agent", Reckoner.prompts["agent"], Sampling(), "local")}
    rewards = {"exact": (REWARDS["exact"], 1.0)}
    plain = Rollout(Reckoner(), roles, {"local": engine}, make_tools(config, {}, 0), rewards, RolloutConfig())
    processes = Replicas(3)
    return replace(plain, troupe=Troupe(plain, processes, partial(renew, config), close_tools)), processes


def told(groups: list[Group]) -> list[tuple[str, int, str]]:
    return [(g.id, e.attempt, (e.answer or "").partition(" ")[2]) for g in groups for e in g.episodes]


def test_processes_play_what_one_would_with_tools_of_their_own(
    tools: ToolsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rollout, processes = reckoners(tools)
    heard: list[Episode] = []
    rollouts = {
        label: replace(rollout, on_episode=heard.append, roles={"agent": replace(rollout.roles["agent"])})
        for label in ("a", "b")
    }
    found = collect_side_by_side(rollouts, TASKS, 2, seed=7)
    assert [group.id for group in found["a"]] == ["a/3", "a/1", "a/4", "a/1#2", "a/5"]
    assert [group.task for group in found["b"]] == TASKS
    players = [(e.answer or "").partition(" ")[0] for group in found["a"] for e in group.episodes]
    assert len(set(players)) == 3 and players[0] == players[6] == str(os.getpid())
    assert len(heard) == 20 and {id(e) for e in heard} == {id(e) for g in found.values() for x in g for e in x.episodes}
    assert {e.reward for e in heard} == {0.0}, "scored here"
    assert not [event.result for e in heard for event in e.events if not event.result.ok]
    assert len(list(tmp_path.glob("gruppo-python-*"))) == 3

    again = rollout.collect(TASKS, 2, seed=7, label="a")
    assert told(again) == told(found["a"]) == told(replace(rollout, troupe=None).collect(TASKS, 2, seed=7, label="a"))
    processes.stop()
    assert len(list(tmp_path.glob("gruppo-python-*"))) == 1, "a replica's tools end with it"
    assert told(rollout.collect(TASKS[:1], 2, seed=7, label="a")) == told(found["a"][:1])
    monkeypatch.setattr(replicas, "CAN_FORK", False)
    heard.clear()
    alone = collect_side_by_side(rollouts, TASKS, 2, seed=7)
    assert told(alone["b"]) == told(found["b"]) and len(heard) == 20
    close_tools(rollout.tools.values())
    assert not list(tmp_path.glob("gruppo-python-*"))


def test_a_failure_in_another_process_is_what_it_would_be_here(tools: ToolsConfig) -> None:
    class Broken(Reckoner):
        async def play(self, task: Task, cast: Cast) -> str | None:
            if task.id == "4":
                raise ZeroDivisionError("at four")
            return await super().play(task, cast)

    rollout, processes = reckoners(tools)
    plain = replace(rollout, team=Broken(), troupe=None)
    again = Replicas(3)
    troupe = Troupe(plain, again, partial(renew, tools), close_tools)
    found = replace(plain, troupe=troupe).collect(TASKS, 1, seed=0, label="x")
    assert [g.episodes[0].outcome.value for g in found] == ["completed"] * 2 + ["team_failed"] + ["completed"] * 2
    assert found[2].episodes[0].error == "ZeroDivisionError: at four"
    again.stop()
    processes.stop()
    close_tools(rollout.tools.values())


def test_replicas_play_with_the_newest_weights_and_name_their_version(tmp_path: Path) -> None:
    assembly = assemble(config_of(tmp_path, model__processes="2"))
    tasks = list(make_tasks(config_of(tmp_path), "train"))[:4]
    rollout, learner = assembly.rollout, assembly.learner
    assert rollout.troupe
    before = rollout.collect(tasks, 2, 0, "x")
    learner.start_optimizers({"planner": 0.1})
    for parameter in learner.parameters("planner").values():
        parameter.grad = torch.ones_like(parameter)
    learner.step("planner", 1.0, 1.0)
    after = rollout.collect(tasks, 2, 0, "x")
    alone = replace(rollout, troupe=None).collect(tasks, 2, 0, "x")
    assembly.close()
    for groups, version in ((before, 0), (after, 1)):
        assert {t.version for g in groups for e in g.episodes for t in e.turns if t.policy == "planner"} == {version}
    texts = [[t.text for g in groups for e in g.episodes for t in e.turns] for groups in (before, after, alone)]
    assert texts[1] == texts[2] != texts[0]


@pytest.mark.parametrize(
    ("settings", "apart"),
    [
        ({}, True),
        ({"model__processes": "1"}, False),
        ({"rollout__mode": "async"}, False),
        ({"tools__names": '["wikipedia", "examples/my_tool.py:calculate"]'}, True),
    ],
)
def test_who_plays_apart(tmp_path: Path, settings: dict[str, str], apart: bool) -> None:
    assembly = assemble(config_of(tmp_path, **{"model__processes": "2", **settings}))
    assembly.close()
    assert bool(assembly.rollout.troupe) == apart
