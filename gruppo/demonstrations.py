"""Demonstrations: the rows that the cold start learns, played by the gold plans of tasks or written in their solutions.

Every demonstration is what the policy would have been asked, and would have sampled, end of turn included. It trains
nothing.
"""

from __future__ import annotations

from dataclasses import replace

from gruppo.algorithms.batching import Row, row_of
from gruppo.chat import encode_action, render
from gruppo.data.base import TaskSet
from gruppo.data.views import brought_ids
from gruppo.data.world import gold_reply
from gruppo.engines.scripted import ScriptedEngine
from gruppo.errors import DataError
from gruppo.rewards.rules import exact
from gruppo.run import Assembly, RunConfig, of_families
from gruppo.teams.solo import Solo, opening


def choose_demonstrations(config: RunConfig, tasks: TaskSet) -> TaskSet:
    """The tasks to demonstrate. Raises ConfigError for a family without tasks, DataError for a task without a plan."""
    wanted = of_families(tasks, config.sft.families, "sft.families")
    chosen = wanted.shuffle(config.seed)[: config.sft.demonstrations]
    for task in chosen if config.team.program != "solo" else ():
        gold_reply(task, "planner", 0, compact=True)
    return chosen


def demonstrate(config: RunConfig, assembly: Assembly, chosen: TaskSet) -> dict[str, list[Row]]:
    """Policy -> rows of gold episodes, played through the real tools; of an agent alone, of written solutions.

    Raises DataError if a gold plan fails.
    """
    if isinstance(assembly.rollout.team, Solo):
        return write_out(assembly, assembly.rollout.team, chosen)
    compact = config.team.solver.prompts == "compact"
    by_id = {task.id: task for task in chosen}
    tokenizer = assembly.learner.tokenizer
    gold = ScriptedEngine(
        lambda request: gold_reply(by_id[request.context[0]], request.context[2], request.context[3], compact),
        encode=lambda text: encode_action(tokenizer, text),
        render=lambda messages: render(tokenizer, messages),
    )
    roles = {name: replace(role, engine="gold") for name, role in assembly.rollout.roles.items()}
    rollout = replace(assembly.rollout, roles=roles, engines={"gold": gold}, troupe=None)
    rows: dict[str, list[Row]] = {}
    for group in rollout.collect(chosen, 1, config.seed, "demonstrations"):
        (episode,) = group.episodes
        if exact(group.task, [episode]) != [1.0] or not all(event.result.ok for event in episode.events):
            results = [event.result.text for event in episode.events]
            raise DataError(f"task {group.task.id!r}: its gold plan fails: {episode.error or results}")
        for turn in episode.turns:
            if turn.policy is not None:
                rows.setdefault(turn.policy, []).append(row_of(turn))
    return rows


def write_out(assembly: Assembly, team: Solo, tasks: TaskSet) -> dict[str, list[Row]]:
    """Policy -> rows of an agent alone that writes each task's solution down, prompted as it will be."""
    tokenizer, tools = assembly.learner.tokenizer, list(assembly.rollout.tools.values())
    rows: dict[str, list[Row]] = {}
    for role in assembly.rollout.roles.values():
        for task in tasks if role.policy is not None else ():
            prompt_ids, action_ids = brought_ids(task, tokenizer)
            asked = opening(role.prompt, task, tools, team.call_format)
            prompt_ids = render(tokenizer, asked)[1] if prompt_ids is None else prompt_ids
            rows.setdefault(str(role.policy), []).append(Row(tuple(prompt_ids), tuple(action_ids)))
    return rows
