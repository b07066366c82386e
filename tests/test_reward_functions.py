"""Reward functions of other people, by data set, with a range; and the tables [rewards], [reward] and [judge]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_agent_reward import episode, turn

from gruppo.config import load
from gruppo.engines.scripted import ScriptedEngine
from gruppo.errors import ConfigError, RewardError
from gruppo.rewards import REWARDS
from gruppo.rewards.functions import by_source, of_completions, takes_completions, within
from gruppo.rewards.judge import JudgeConfig
from gruppo.rewards.menu import RewardConfig, make_rewards
from gruppo.rewards.rules import ask, exact, is_async, score_group
from gruppo.types import Engine, Episode, Group, Outcome, Score, Task, ToolEvent, ToolResult

TASK = Task("t", "2+2?", "4", source="sums", extra_info={"level": 3})
TWO = [episode("4", [turn("It is 4", tokens=2)]), episode(None)]


def seen(function: Any, style: str = "text", task: Task = TASK, episodes: Sequence[Episode] = TWO) -> Any:
    return of_completions(function, style)(task, episodes)  # type: ignore[arg-type]


# ---- the ecosystem's signature --------------------------------------------------------------------------------------


def test_a_function_gets_every_column_as_a_list() -> None:
    def reward(completions: list[str], **columns: Any) -> list[float]:
        found.update(columns, completions=completions)
        return [1.0, 0.0]

    found: dict[str, Any] = {}
    assert seen(reward) == [1.0, 0.0]
    assert found["completions"] == ["It is 4", ""] and found["prompts"] == ["2+2?", "2+2?"]
    assert found["completion_ids"] == [[0, 1], []] and found["level"] == [3, 3]
    assert found["question"] == ["2+2?"] * 2 and found["id"] == ["t"] * 2 and found["source"] == ["sums"] * 2
    assert all(found[name] == ["4", "4"] for name in ("result", "ground_truth", "solution", "answer"))
    assert found["trainer_state"].global_step == 0
    found["log_metric"]("x", 1.0), found["log_extra"]("x", [1])


def test_a_column_of_the_task_is_not_replaced() -> None:
    task = Task("t", "?", "4", extra_info={"solution": "so", "result": "not this"})
    columns = seen(lambda completions, **columns: [(columns["solution"][0], columns["result"][0])], task=task)
    assert columns == [("so", "4")]


def test_a_function_without_keywords_gets_what_it_names() -> None:
    assert seen(lambda prompts, completions, ground_truth: [completions, ground_truth]) == [["It is 4", ""], ["4", "4"]]


def test_completions_are_messages_where_the_annotation_or_the_config_says_so() -> None:
    played = episode("4", [turn("call"), turn("It is 4")])
    played.events.append(ToolEvent(0, "python", {}, ToolResult(True, "4")))

    def annotated(completions: list[list[dict[str, str]]], prompts: Any) -> Any:
        return completions, prompts

    def bare(completions, prompts):  # noqa: ANN001, ANN202
        return completions, prompts

    for completions, prompts in (seen(annotated, episodes=[played]), seen(bare, "messages", episodes=[played])):
        assert [message["role"] for message in completions[0]] == ["assistant", "tool", "assistant"]
        assert completions[0][-1]["content"] == "It is 4" and prompts == [[{"role": "user", "content": "2+2?"}]]
    assert seen(annotated, episodes=[episode("4")])[0] == [[{"role": "assistant", "content": "4"}]]

    def text(completions: list[str]) -> Any:
        return completions

    assert seen(text, "messages", episodes=[played]) == ["call\nIt is 4"]


def test_the_training_step_is_that_of_the_group() -> None:
    one = Episode("t", "grpo-000007/t", 0, 0)
    assert seen(lambda completions, trainer_state: [trainer_state.global_step], episodes=[one]) == [6]


def test_functions_are_told_apart_by_their_signature() -> None:
    class Reward:
        def __call__(self, completions: list[str], **columns: Any) -> list[float]:
            return [1.0] * len(completions)

    assert takes_completions(lambda prompts, completions, **columns: []) and takes_completions(Reward())
    assert not takes_completions(exact) and not takes_completions(dict)
    assert seen(Reward()) == [1.0, 1.0]


def test_reward_functions_of_trl_run_unchanged() -> None:
    rewards = pytest.importorskip("trl.rewards")
    thoughts = [episode("4", [turn("<think>2 and 2</think>4")]), episode("4", [turn("4")])]
    assert seen(rewards.think_format_reward, episodes=thoughts) == [1.0, 0.0]
    overlong = rewards.get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    lengths = [episode("4", [turn(tokens=tokens)]) for tokens in (50, 90, 200)]
    assert seen(overlong, episodes=lengths) == [0.0, -0.5, -1.0]


# ---- asynchronous functions -----------------------------------------------------------------------------------------


async def slow(completions: list[str], **columns: Any) -> list[float | None]:
    await asyncio.sleep(0 if columns["id"][0] == "t" else 60)
    return [float(len(text)) if text else None for text in completions]


def scored(functions: dict[str, Any], task: Task = TASK, seconds: float = 5.0) -> Group:
    group = Group("g", task, [episode("4", [turn("four")]), episode(None)])
    functions = {name: (function, 1.0) for name, function in functions.items()}
    score_group(functions, group, asyncio.run(ask(functions, group, seconds)))
    return group


def test_an_asynchronous_function_stays_asynchronous_and_is_scored_like_any() -> None:
    wrapped = of_completions(slow)
    assert is_async(wrapped) and is_async(within(wrapped, 0, 9, "slow")) and not is_async(of_completions(takes_text))
    group = scored({"slow": wrapped, "exact": exact})
    assert [one.reward for one in group.episodes] == [5.0, 0.0]
    assert group.episodes[1].scores == {"slow": Score(None, "returned None"), "exact": Score(0.0)}


def takes_text(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)


def test_one_that_takes_too_long_has_failed_as_a_judge_and_spoils_no_other_score() -> None:
    group = scored({"slow": of_completions(slow), "exact": exact}, Task("late", "?", "4"), seconds=0.05)
    assert {one.outcome for one in group.episodes} == {Outcome.judge_failed}
    assert [one.reward for one in group.episodes] == [None, None], "what is left of a reward is not the reward"
    assert group.episodes[0].scores == {"slow": Score(None, "no verdict: it took too long"), "exact": Score(1.0)}
    assert group.episodes[0].error == "reward 'slow': no verdict: it took too long"


def test_one_that_raises_is_noted_and_one_of_weight_0_changes_nothing() -> None:
    async def broken(task: Task, episodes: Sequence[Episode]) -> list[float]:
        raise KeyError("x")

    async def mute(task: Task, episodes: Sequence[Episode]) -> list[Score]:
        return [Score(None, "asleep")] * len(episodes)

    group = scored({"broken": broken, "exact": exact})
    assert group.episodes[0].scores["broken"] == Score(None, "raised KeyError: 'x'")
    assert [one.reward for one in group.episodes] == [1.0, 0.0]
    functions = {"mute": (mute, 0.0), "exact": (exact, 1.0)}
    group = Group("g", TASK, [episode("4")])
    score_group(functions, group, asyncio.run(ask(functions, group, 5)))  # type: ignore[arg-type]
    assert (group.episodes[0].outcome, group.episodes[0].reward) == (Outcome.completed, 1.0)
    assert group.episodes[0].scores["mute"] == Score(None, "no verdict: asleep")
    functions = {"mute": (mute, 1.0), "exact": (exact, 0.0)}
    group = Group("g", TASK, [episode("4")])
    score_group(functions, group, asyncio.run(ask(functions, group, 5)))  # type: ignore[arg-type]
    assert group.episodes[0].reward is None, "a diagnosis of weight 0 is no reward"


def test_a_value_with_a_note_is_a_value() -> None:
    group = Group("g", TASK, [episode("4"), episode("5")])
    score_group({"noted": (lambda task, episodes: [Score(0.5, "fallback: x"), 1], 2.0)}, group)
    assert [one.reward for one in group.episodes] == [1.0, 2.0]
    assert group.episodes[0].scores["noted"] == Score(0.5, "fallback: x")
    with pytest.raises(RewardError, match="returned inf"):
        score_group({"noted": (lambda task, episodes: [Score(float("inf"))] * 2, 1.0)}, group)


def test_a_coroutine_from_a_plain_function_is_refused() -> None:
    with pytest.raises(RewardError, match="define it with async def"):
        scored({"slow": lambda task, episodes: slow([], id=["t"])})


# ---- by data set, with a range --------------------------------------------------------------------------------------


def test_the_data_set_chooses_the_function() -> None:
    chosen = by_source({"sums": exact, "open": lambda task, episodes: [0.5] * len(episodes)})
    assert chosen(TASK, TWO) == [1.0, 0.0] and chosen(Task("o", "?", "4", source="open"), TWO) == [0.5, 0.5]
    with pytest.raises(RewardError, match="no reward for its source 'web'; reward.by_source has 'sums', 'open'"):
        chosen(Task("x", "?", "4", source="web"), TWO)
    assert by_source({"*": exact})(Task("x", "?", "4", source="web"), TWO) == [1.0, 0.0]
    mixed = by_source({"sums": exact, "open": of_completions(slow)})
    assert is_async(mixed) and asyncio.run(mixed(TASK, TWO)) == [1.0, 0.0]  # type: ignore[arg-type]
    assert asyncio.run(mixed(Task("t", "?", "4", source="open"), TWO)) == [7.0, None]  # type: ignore[arg-type]


def test_a_value_out_of_its_range_ends_the_run() -> None:
    wide = within(lambda task, episodes: [0, None, Score(1.0), 1.5], 0, 1, "mine")
    with pytest.raises(RewardError, match=r"reward 'mine' returned 1.5 for task 't': expected 0 to 1, its range"):
        wide(TASK, [])
    assert within(lambda task, episodes: [0, None, Score(None, "x"), 1], 0, 1, "mine")(TASK, [])[0] == 0

    async def late(task: Task, episodes: Sequence[Episode]) -> list[float]:
        return [-0.5]

    with pytest.raises(RewardError, match=r"returned -0\.5"):
        scored({"late": within(late, 0, 1, "late")})  # type: ignore[arg-type]


# ---- the tables -----------------------------------------------------------------------------------------------------

OWN = """
def mine(completions, ground_truth, **columns):
    return [float(gold in text) for text, gold in zip(completions, ground_truth)]

def old(task, episodes):
    return [0.25] * len(episodes)

number = 3
"""


def made(weights: dict[str, float], judge: dict[str, Any] | None = None, **reward: Any) -> dict[str, Any]:
    def engine(name: str) -> tuple[Engine, str]:
        return ScriptedEngine(lambda request: '{"correct": true}'), name

    own = RewardConfig.model_validate_json(json.dumps(reward))
    return make_rewards(weights, REWARDS, own, JudgeConfig(**(judge or {})), engine)


def test_every_name_is_a_function(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    names = ["exact", "accuracy", "tolerance", "length_penalty", "step_bonus", "format", "judge", "by_source"]
    names += [f"{tmp_path}/own.py:{name}" for name in ("mine", "old")]
    found = made(dict.fromkeys(names, 1.0), {"engine": "e"}, by_source={"sums": "exact", "*": "judge"})
    assert list(found) == names
    right, wrong = scored({name: function for name, (function, _) in found.items()}).episodes
    values = {name.rpartition(":")[2]: (right.scores[name].value, wrong.scores[name].value) for name in names}
    assert values == dict.fromkeys(names[:3] + ["format", "judge", "by_source"], (1.0, 0.0)) | {
        "length_penalty": (0.0, 0.0),
        "step_bonus": (0.0, 0.0),
        "mine": (0.0, 0.0),
        "old": (0.25, 0.25),
    }


def test_the_agent_is_four_functions() -> None:
    found = made({"agent": 2.0}, agent={"completion": 0.6})
    weights = {name: weight for name, (_, weight) in found.items()}
    parts = {"completion": 1.2, "tool_accuracy": 0.4, "brevity": 0.3, "format": 0.3}
    assert weights == pytest.approx({f"agent/{part}": weight for part, weight in parts.items()})


def test_how_answers_are_compared_is_chosen() -> None:
    half = Group("g", Task("t", "?", "1/2"), [episode("\\frac{1}{2}")])
    for grading, expected in (("exact", 0.0), ("answers", 1.0)):
        score_group(made({"accuracy": 1.0}, grading=grading), half)
        assert half.episodes[0].reward == expected


@pytest.mark.parametrize(
    ("weights", "tables", "message"),
    [
        ({"exakt": 1.0}, {}, "rewards.exakt: no such reward: did you mean exact?"),
        ({"jugde": 1.0}, {}, "did you mean judge?"),
        ({"judge": 1.0}, {}, "judge.engine is missing"),
        ({"judge": 1.0}, {"judge": {"engine": "e", "highest": 5}}, "judge.highest = 5: only"),
        ({"judge": 1.0}, {"judge": {"engine": "e", "mode": "ranking", "fallback": True}}, "judge.fallback"),
        ({"exact": 1.0}, {"judge": {"engine": "e"}}, "judge: no function of [rewards] uses it"),
        ({"exact": 1.0}, {"agent": {"partial": 0.5}}, "reward.agent: no function of [rewards] uses it"),
        ({"exact": 1.0}, {"step_bonus": {"most": 1.0}}, "reward.step_bonus: no function"),
        ({"exact": 1.0}, {"by_source": {"a": "exact"}}, "reward.by_source: no function"),
        ({"by_source": 1.0}, {}, "reward.by_source is empty"),
        ({"by_source": 1.0}, {"by_source": {"a": "agent"}}, '"agent" is several functions'),
        ({"by_source": 1.0}, {"by_source": {"a": "by_source"}}, '"by_source" can\'t be its own'),
        ({"by_source": 1.0}, {"by_source": {"a": "exakt"}}, "rewards.exakt: no such reward"),
        ({"exact": 1.0}, {"grading": "answers"}, "reward.grading = 'answers'"),
        ({"exact": 1.0}, {"completions": "messages"}, "reward.completions = 'messages'"),
        ({"exact": 1.0}, {"ranges": {"exat": [0, 1]}}, "reward.ranges.exat: no such reward in [rewards]: did you mean"),
        ({"nowhere.py:f": 1.0}, {}, "nowhere.py"),
        ({"own.py:number": 1.0}, {}, "expected a function, got int"),
    ],
)
def test_what_can_not_be_put_together_is_refused(
    weights: dict[str, float], tables: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        made(weights, tables.get("judge"), **{name: value for name, value in tables.items() if name != "judge"})
    assert message in str(refused.value)


def test_a_range_has_two_ends_in_order(tmp_path: Path) -> None:
    for bounds in ("[1, 0]", "[1]", "[0, 1, 2]"):
        with pytest.raises(ConfigError, match="expected .lowest, highest."):
            load(RewardConfig, overrides={"ranges": f"{{exact = {bounds}}}"})
    found = made({"exact": 1.0}, ranges={"exact": [0, 0.5]})
    with pytest.raises(RewardError, match="expected 0 to 0.5"):
        scored({"exact": found["exact"][0]})
