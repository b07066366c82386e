"""Rewards, tools and teams of the user's that misbehave: the run says whose fault it was, or goes on and counts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import QUICKSTART, Command, groups_of, refused, training

from gruppo.store import Run

# Rewards -------------------------------------------------------------------------------------------------------------

REWARDS = """
def raises(task, episodes):
    raise KeyError("no price list")

def raises_for_one(task, episodes):
    if task.id == "train-0":
        raise KeyError("no price list")
    return [float(place) for place, _ in enumerate(episodes)]

def nan(task, episodes):
    return [float("nan")] * len(episodes)

def infinite(task, episodes):
    return [float("inf")] * len(episodes)

def short(task, episodes):
    return [1.0]

def text(task, episodes):
    return "good"
"""


def with_reward(tmp_path: Path, name: str, **changes: str) -> list[str]:
    """A run whose one reward function is `name` of a file of the user's."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    lookups = {"tasks__num_train": "2", "tasks__families": '["lookup"]', "tools__names": '["wikipedia"]'}
    return training(rewards=f'{{"rewards.py:{name}" = 1.0}}', **lookups, **changes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("infinite", "returned inf for task", marks=pytest.mark.slow),
        pytest.param("short", "returned 1 scores for 2 episodes of task", marks=pytest.mark.slow),
        pytest.param("text", "returned str for task", marks=pytest.mark.slow),
        ("raises", "KeyError: 'no price list'"),
        ("nan", "returned NaN"),
        ("missing", "rewards.py has no 'missing'"),
    ],
)
def test_a_reward_function_that_breaks_its_contract(gruppo: Command, tmp_path: Path, name: str, expected: str) -> None:
    ended = gruppo(*with_reward(tmp_path, name))
    refused(ended, expected)
    assert "rewards.py" in ended.line


def test_a_reward_function_that_fails_for_some_tasks_is_counted(gruppo: Command, tmp_path: Path) -> None:
    assert gruppo(*with_reward(tmp_path, "raises_for_one")).code == 0
    (record,) = Run.open("run").read_metrics()
    assert record["unscorable"] == 2 and record["episodes"] == 4 and record["infrastructure"] == 0
    scores = {group.task.id: group.episodes[0].scores["rewards.py:raises_for_one"] for group in groups_of("run")}
    assert scores["train-0"].value is None and scores["train-0"].reason == "raised KeyError: 'no price list'"
    assert scores["train-1"].value == 0.0 and record["rows/planner"] > 0


# Tools and teams -----------------------------------------------------------------------------------------------------

TOOLS = """
import os, time
from gruppo.tools.base import tool

@tool(seconds=0.5)
def hang() -> str:
    "Never comes back."
    time.sleep(60)

@tool(max_output=100)
def flood() -> str:
    "Says too much."
    return "x" * 10_000_000

@tool
def die() -> str:
    "Ends its process."
    os._exit(7)

@tool
def fail() -> str:
    "Raises."
    raise KeyError("no such train")

def plain() -> str:
    "Is no tool."
"""

TEAM = """
from gruppo.teams.base import Prompt

class Caller:
    roles = ("agent",)
    prompts = {"agent": Prompt("{question}")}

    async def play(self, task, cast):
        action = await cast["agent"].act(str, question=task.question)
        for name in cast.tools:
            await cast.call(name, {})
        return action.text

class Broken(Caller):
    async def play(self, task, cast):
        await cast["agent"].act(str, question=task.question)
        raise KeyError("no plan")

class Bigger(Caller):
    async def play(self, task, cast):
        await cast["judge"].act(str, question=task.question)
"""

OWN_TEAM = """
[policies.agent]
[roles.agent]
policy = "agent"
max_tokens = 8
[tools]
names = []
"""


def with_team(tmp_path: Path, name: str, **changes: str) -> list[str]:
    """A run of a team of the user's."""
    for file, text in {"team.py": TEAM, "own.toml": OWN_TEAM, "tools.py": TOOLS}.items():
        (tmp_path / file).write_text(text)
    words = training(team__program=f"team.py:{name}", **changes)
    words[words.index(str(QUICKSTART))] = "own.toml"
    return words


def test_tools_that_hang_flood_die_or_raise_are_events_of_an_episode_that_goes_on(
    gruppo: Command, tmp_path: Path
) -> None:
    names = json.dumps([f"tools.py:{name}" for name in ("hang", "flood", "die", "fail")])
    ended = gruppo(*with_team(tmp_path, "Caller", tools__names=names, train__tasks_per_step="1"))
    assert ended.code == 0, ended.err
    episodes = [episode for group in groups_of("run") for episode in group.episodes]
    assert [str(episode.outcome) for episode in episodes] == ["completed"] * 2
    for episode in episodes:
        hang, flood, die, fail = (event.result for event in episode.events)
        assert hang.timed_out and hang.error == "timed out after 0.5 s"
        assert flood.ok and len(flood.output) <= 100
        assert die.error == "the process of tool 'die' died with exit status 7"
        assert fail.error == "KeyError: 'no such train'"
        assert episode.answer is not None and episode.retries == 0


def test_a_function_that_is_no_tool(gruppo: Command, tmp_path: Path) -> None:
    words = with_team(tmp_path, "Caller", tools__names='["tools.py:plain"]')
    refused(gruppo(*words), "'tools.py:plain'")
    assert not (tmp_path / "run").exists()


def test_a_team_that_fails_in_all_episodes(gruppo: Command, tmp_path: Path) -> None:
    refused(gruppo(*with_team(tmp_path, "Broken")), "the team failed in all 4 episodes: KeyError: 'no plan'")


def test_a_team_that_asks_for_a_role_that_the_config_lacks(gruppo: Command, tmp_path: Path) -> None:
    refused(gruppo(*with_team(tmp_path, "Bigger")), "role 'judge', which the config lacks: add [roles.judge]")
