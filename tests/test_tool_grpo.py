"""The training tool, action "train", algorithm "grpo": what each of its own parameters does, and which reward is used.

A test that is named after a parameter is its proof: docs/hello_agents.md points at it.
"""

from __future__ import annotations

from typing import Any

import pytest
from tool_runs import GRPO, Played, Trainings, noise, trainings

from gruppo.run import RunConfig
from gruppo.store import Run
from gruppo.tool.recipes import Recipe
from gruppo.tool.translation import read, training
from gruppo.types import Group

__all__ = ["trainings"]

LISTED = [
    {"type": "accuracy", "weight": 1.0},
    {"type": "length_penalty", "weight": 0.5, "target_length": 150},
    {"type": "step", "weight": 0.3, "step_bonus": 0.2},
]


def groups_of(played: Played) -> list[Group]:
    run = Run.open(played.out)
    return [group for name in run.list_episodes() for group in run.read_episodes(name)]


def config_of(**given: Any) -> RunConfig:
    """The config of a training that is not played."""
    asked = read("train grpo", {"model_name": "tiny", **given})
    return training(asked, 8, Recipe({"accuracy": 1.0}))  # type: ignore[arg-type]


# ---- sampling --------------------------------------------------------------------------------------------------------


def test_num_generations_is_the_size_of_a_group(trainings: Trainings) -> None:
    assert {len(group.episodes) for group in groups_of(trainings.grpo())} == {4}
    assert {len(group.episodes) for group in groups_of(trainings.grpo(num_generations=2))} == {2}
    assert config_of().train.attempts == 8


@pytest.mark.parametrize(("batch", "accumulation", "generations", "right"), [(2, 1, 4, 2), (3, 2, 8, 8), (4, 3, 8, 2)])
def test_a_batch_holds_whole_groups(
    trainings: Trainings, batch: int, accumulation: int, generations: int, right: int
) -> None:
    sizes = {"batch_size": batch, "gradient_accumulation_steps": accumulation, "num_generations": generations}
    said = trainings.refused(action="train", algorithm="grpo", dataset="sums", **sizes)
    assert f"is {batch * accumulation} answers a step, which is no multiple of num_generations = {generations}" in said
    assert said.endswith(f"set gradient_accumulation_steps = {right}, or a multiple of it")
    config_of(**sizes | {"gradient_accumulation_steps": right})


def test_max_new_tokens_bounds_an_answer(trainings: Trainings) -> None:
    def longest(played: Played) -> int:
        return max(sum(e.num_tokens.values()) for group in groups_of(played) for e in group.episodes)

    assert longest(trainings.grpo()) == 4 and longest(trainings.grpo(max_new_tokens=6)) == 6
    assert config_of().roles["agent"].max_tokens == 512


def test_temperature_is_that_of_sampling(trainings: Trainings) -> None:
    for temperature in (1.0, 0.5):
        groups = groups_of(trainings.grpo(temperature=temperature))
        turns = [turn for group in groups for episode in group.episodes for turn in episode.turns]
        assert {turn.sampling.temperature for turn in turns} == {temperature}
    out = trainings.folder / "greedy"
    said = trainings.refused(action="train", algorithm="grpo", **GRPO | {"temperature": 0}, output_dir=str(out))
    assert "a trained role samples with" in said and not out.exists(), "nothing is left behind"


# ---- learning --------------------------------------------------------------------------------------------------------


def test_learning_rate_is_the_rate_after_the_warm_up(trainings: Trainings) -> None:
    for rate in (1e-2, 1e-3):
        assert trainings.grpo(learning_rate=rate).metrics[-1]["learning_rate/agent"] == rate
    assert not trainings.grpo(learning_rate=1e-3).learns_as(trainings.grpo())
    assert config_of().policies["agent"].learning_rate == 1e-5


def test_kl_coef_weighs_the_distance_from_the_start(trainings: Trainings) -> None:
    assert "kl/agent" in trainings.grpo().metrics[-1]
    assert "kl/agent" not in trainings.grpo(kl_coef=0.0).metrics[-1]
    assert not trainings.grpo(kl_coef=5.0).learns_as(trainings.grpo())
    assert config_of().algorithm.kl_coefficient == 0.05 and config_of().algorithm.kl_reference == "start"


def test_clip_range_bounds_the_ratio(trainings: Trainings) -> None:
    wide, narrow = (trainings.grpo(clip_range=value, learning_rate=0.1) for value in (0.5, 1e-4))
    assert narrow.metrics[-1]["clipped/agent"] > wide.metrics[-1]["clipped/agent"]
    assert not narrow.learns_as(wide)
    assert config_of().algorithm.clip_low == config_of().algorithm.clip_high == 0.2


def test_updates_per_rollout_are_optimizer_steps_of_the_same_size(trainings: Trainings) -> None:
    def versions(played: Played) -> int:
        checkpoint = Run.open(played.out).latest_checkpoint()
        assert checkpoint is not None
        return checkpoint.state["versions"]["agent"]

    twice, once = trainings.grpo(), trainings.grpo(updates_per_rollout=1)
    assert (twice.config.train.tasks_per_step, once.config.train.tasks_per_step) == (2, 1)
    assert versions(twice) == versions(once) == 4, "one group each"
    assert once.metrics[-1]["clipped/agent"] == 0 and once.metrics[-1]["ratio/agent"] == 1


def test_scale_rewards_divides_by_the_deviation(trainings: Trainings) -> None:
    def advantages(played: Played) -> list[float]:
        first = groups_of(played)[0]
        return [credit.advantage or 0 for episode in first.episodes for credit in episode.credits]

    scaled, centred = advantages(trainings.grpo()), advantages(trainings.grpo(scale_rewards=False))
    rewards = [episode.reward or 0 for episode in groups_of(trainings.grpo())[0].episodes]
    mean = sum(rewards) / 4
    assert centred == pytest.approx([reward - mean for reward in rewards])
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / 3) ** 0.5
    assert scaled == pytest.approx([value / deviation for value in centred], rel=1e-4)


def test_the_result_has_the_rewards_as_numbers(trainings: Trainings) -> None:
    result, rewards = trainings.grpo().result, [one["reward/mean"] for one in trainings.grpo().metrics]
    assert result["average_reward"] == pytest.approx(sum(rewards) / len(rewards))
    assert result["final_reward"] == rewards[-1] and isinstance(result["final_loss"], float)


def test_eval_steps_and_accuracy_on_held_out_tasks(trainings: Trainings) -> None:
    played = trainings.grpo(eval_steps=1, eval_dataset="sums", eval_samples=2)
    assert played.result["evaluations"] == [{"step": 1, "accuracy": 0.0}, {"step": 2, "accuracy": 0.0}]


def test_it_goes_on_with_what_sft_left(trainings: Trainings) -> None:
    sft = trainings.sft()
    played = trainings.grpo(model_name=str(sft.out), learning_rate=1e-12, max_samples=2)
    assert played.config.start_from == str(sft.out)
    assert all((played.weights[name] - own).abs().max() < 1e-6 for name, own in sft.weights.items())
    said = trainings.refused(action="train", algorithm="grpo", dataset="sums", model_name=str(sft.out), lora_rank=4)
    assert said == f"lora_rank = 4: {sft.out} was trained with 8; leave it out to go on"
    said = trainings.refused(action="train", algorithm="grpo", dataset="sums", model_name=str(sft.out), use_lora=False)
    assert said.startswith("use_lora = false: ")
    same = {"lora_rank": 8, "lora_alpha": 16, "use_lora": True}
    assert trainings.grpo(model_name=str(sft.out), max_samples=2, **same).config.policies["agent"].rank == 8


# ---- rewards ---------------------------------------------------------------------------------------------------------


def scores_of(played: Played) -> set[str]:
    return {name for group in groups_of(played) for episode in group.episodes for name in episode.scores}


def test_reward_type_is_a_type_or_a_name(trainings: Trainings) -> None:
    assert config_of().rewards == {"accuracy": 1.0}
    assert scores_of(trainings.grpo(reward_type="step", max_samples=1)) == {"accuracy", "step_bonus"}
    assert scores_of(trainings.grpo()) == {"accuracy", "noise"}
    said = trainings.refused(action="train", algorithm="grpo", dataset="sums", reward_type="acuracy")
    assert said == "reward_type = 'acuracy': no such reward: did you mean accuracy?"


def test_reward_config_has_the_terms_and_their_settings(trainings: Trainings) -> None:
    played = trainings.grpo(reward_type="combined", reward_config={"components": LISTED}, max_samples=1)
    assert played.config.rewards == {"accuracy": 1.0, "length_penalty": 0.5, "step_bonus": 0.3}
    assert played.config.reward.length_penalty.target == 150 and played.config.reward.step_bonus.per_step == 0.2
    assert scores_of(played) == set(played.config.rewards)
    said = trainings.refused(
        action="train", algorithm="grpo", dataset="sums", reward_config={"components": [{"typ": "accuracy"}]}
    )
    assert "reward_config.components.0.type" in said


def test_custom_reward_is_the_whole_reward(trainings: Trainings) -> None:
    played = trainings.grpo(custom_reward=noise, reward_type=None)
    assert played.result["average_reward"] > 0 and scores_of(played) == {"accuracy", "custom_reward"}
    assert played.learns_as(trainings.grpo()), "the same function by its name"
    asked = {"action": "train", "algorithm": "grpo", "dataset": "sums"}
    assert "it is the whole reward" in trainings.refused(**asked, custom_reward=noise, reward_type="step")
    assert trainings.refused(**asked, custom_reward=3).startswith("custom_reward: expected a function")


def test_a_function_goes_with_the_data_set_of_its_name(trainings: Trainings) -> None:
    trainings.tool.register_dataset("twins", [{"question": "1 + 1?", "answer": "2"}, {"question": "2?", "answer": 4}])
    trainings.tool.register_reward_function(
        "twins", lambda completions, ground_truth, **_: list(map(float, ground_truth))
    )
    played = trainings.grpo(dataset="twins", reward_type=None, max_samples=None)
    assert {episode.scores["twins"].value for group in groups_of(played) for episode in group.episodes} == {2.0, 4.0}
    assert "noise" in scores_of(trainings.grpo(dataset="twins")), "what is asked for goes before"
