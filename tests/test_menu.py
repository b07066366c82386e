"""The menu in the hub: every choice plays and trains, what clashes is refused, presets show all their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from small_run import config_of, fingerprints, noise, parts_of, play

from gruppo.algorithms import ADVANTAGES, LOSSES, PRESETS, AlgorithmConfig, CreditConfig, clashes
from gruppo.algorithms.advantages import moving_average
from gruppo.config import dump, load
from gruppo.errors import ConfigError, UserError
from gruppo.run import RunConfig, assemble
from gruppo.store import Run
from gruppo.training.grpo import check, grpo
from gruppo.training.update import Coefficients
from gruppo.types import Completion, Engine, Episode, Request, Task

ONE = {"train__steps": "1", "train__warmup_steps": "0"}


def trained(record: dict[str, float]) -> bool:
    """Whether the planner took a step on finite numbers."""
    return math.isfinite(record["loss/planner"]) and record["grad_norm/planner"] > 0 and not record["skipped/planner"]


COMMON = ("agentic", "cispo", "dapo", "gspo", "reinforce++", "rloo")  # each with functions of its own


@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=[] if name in COMMON else pytest.mark.slow) for name in sorted(PRESETS)]
)
def test_every_preset_trains_and_its_values_stand_in_the_resolved_config(tmp_path: Path, preset: str) -> None:
    config = config_of(tmp_path, algorithm__preset=preset)
    for key, value in PRESETS[preset].items():
        assert getattr(config.algorithm, key) == value
    file = tmp_path / "resolved.toml"
    file.write_text(dump(config))
    assert load(RunConfig, [file]) == config and "clip_low" in file.read_text()
    assert not list(clashes(config.algorithm, config.credit))
    _, metrics = play(tmp_path, "run", algorithm__preset=preset, algorithm__truncated="none", **ONE)  # most are
    assert trained(metrics[0])


def test_what_is_given_goes_before_the_preset(tmp_path: Path) -> None:
    algorithm = config_of(tmp_path, algorithm__preset="dapo", algorithm__clip_high="0.4").algorithm
    assert (algorithm.clip_high, algorithm.filter_groups) == (0.4, "zero_std")


MENU = {
    "remax": {"algorithm__advantage": "remax"},
    "gdpo": {"algorithm__advantage": "gdpo"},
    "kl in reward": {
        "algorithm__kl_coefficient": "0.1",
        "algorithm__kl_in": "reward",
        "algorithm__kl_reference": "base",
    },
    "high entropy": {"algorithm__high_entropy_share": "0.3"},
    "clip_cov": {"algorithm__loss": "clip_cov", "algorithm__cov_share": "0.1"},
    "kl_cov": {"algorithm__loss": "kl_cov", "algorithm__cov_share": "0.1"},
    "gspo, two updates": {"algorithm__preset": "gspo", "train__updates": "2"},
    "turn ratio, two updates": {"algorithm__ratio_level": "turn", "train__updates": "2"},
    "entropy bonus": {"algorithm__entropy_coefficient": "0.01", "algorithm__entropy_target": "0.5"},
    "adaptive kl": {"algorithm__kl_coefficient": "0.1", "algorithm__kl_target": "0.01"},
    "correction": {"algorithm__correction": "token_truncate"},
    "state": {"credit__compare": "task+state", "credit__outcome": "discounted"},
    "turn": {"credit__compare": "turn", "credit__outcome": "to_go", "credit__turn_rewards": '{"parsed" = 0.5}'},
}


@pytest.mark.parametrize("choice", sorted(MENU))
def test_every_choice_trains(tmp_path: Path, choice: str) -> None:
    _, metrics = play(tmp_path, "run", **ONE | MENU[choice])
    assert trained(metrics[0])


def test_coefficients_adapt_and_come_back_with_a_checkpoint(tmp_path: Path) -> None:
    options = {"algorithm__kl_coefficient": "0.1", "algorithm__kl_target": "0.01", "algorithm__kl_horizon": "8"}
    options |= {"algorithm__entropy_coefficient": "0.01", "algorithm__entropy_target": "0.1"}
    play(tmp_path, "run", **options)
    checkpoint = Run.open(tmp_path / "run").latest_checkpoint()
    assert checkpoint is not None
    found = checkpoint.state["coefficients"]["planner"]
    assert found["kl"] == pytest.approx(0.1 * 0.8 * 0.8)  # below its target twice
    assert found["entropy"] == 0.0  # a random policy's entropy is above the target: 0.01 - 2 x 0.005


def test_moving_averages_are_the_baseline_and_come_back_with_a_checkpoint(tmp_path: Path) -> None:
    rae = {"algorithm__advantage": "rae", "algorithm__rae_decay": "0.9"}
    whole, metrics = play(tmp_path, "whole", **rae)
    first, second = (Run.open(tmp_path / "whole").read_episodes(f"grpo-00000{step}") for step in (1, 2))
    seen = [episode.reward for group in first for episode in group.episodes]
    average = moving_average(0.0, [reward for reward in seen if reward is not None], 0.9)
    for groups, baseline in ((first, 0.0), (second, average)):
        given = [(e.reward - baseline, e.credits[0].advantage) for group in groups for e in group.episodes]
        assert [value for value, _ in given] == pytest.approx([value for _, value in given], abs=1e-6)
    assert trained(metrics[0]) and whole.averages["planner"].keys() == {"lookup"} and average != 0
    play(tmp_path, "parts", **rae, train__steps="1")
    config = config_of(tmp_path, **rae)
    with parts_of(config, tmp_path / "parts", resume=True) as parts:
        grpo(parts, config.train)
        assert (parts.averages, fingerprints(parts)) == (whole.averages, fingerprints(whole))


class Older:
    """An engine whose answers come from the weights of one optimizer step before."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [replace(found, version=found.version - 1) for found in await self.engine.generate(requests)]


@pytest.mark.parametrize(("limit", "lost"), [("-1", None), ("0", 16), ("1", 0)])
def test_what_an_older_policy_did_is_not_trained_on(tmp_path: Path, limit: str, lost: int | None) -> None:
    config = config_of(tmp_path, **ONE, algorithm__max_staleness=limit)
    with parts_of(config, tmp_path / "run") as parts:
        engines = {**parts.rollout.engines, "local": Older(parts.rollout.engines["local"])}
        grpo(replace(parts, rollout=replace(parts.rollout, engines=engines)), config.train)
        (record,) = parts.run.read_metrics()
    assert (record.get("rows/stale/planner"), record["rows/planner"]) == (lost, 16 - (lost or 0))
    assert record["groups/dropped"] == (2 if lost else 0)


def test_policies_take_turns(tmp_path: Path) -> None:
    parts, metrics = play(tmp_path, "run", credit__alternate="1", roles__planner__max_tokens="9")
    assert [record["rows/planner"] > 0 for record in metrics] == [True, False]
    assert metrics[0]["rows/executor"] == 0 and parts.learner.versions["planner"] == 1


def test_filtered_groups_are_played_again_with_other_tasks(tmp_path: Path) -> None:
    def odd(task: Task, episodes: Sequence[Episode]) -> list[float]:
        return noise(task, episodes) if int(task.id.rpartition("-")[2]) % 2 else [1.0] * len(episodes)

    options = {"algorithm__filter_groups": "zero_std", "algorithm__max_rounds": "4", "tasks__num_train": "12"}
    _, metrics = play(tmp_path, "run", odd, **ONE | options)
    groups = Run.open(tmp_path / "run").read_episodes("grpo-000001")
    with_signal = [group for group in groups if int(group.task.id.rpartition("-")[2]) % 2]
    assert len(with_signal) == 2 < len(groups) and metrics[0]["groups/dropped"] == len(groups) - 2
    assert metrics[0]["episodes"] == 4 * len(groups), "metrics are of all that was played"
    plain = next(group for group in groups if group not in with_signal)
    assert all(credit.advantage is None for episode in plain.episodes for credit in episode.credits)


def test_what_a_turn_was_given_is_on_disk(tmp_path: Path) -> None:
    play(tmp_path, "run", **ONE, credit__turn_rewards='{"parsed" = 1.0}', credit__own='{"planner" = 0.5}')
    (group, *_) = Run.open(tmp_path / "run").read_episodes("grpo-000001")
    for episode in group.episodes:
        planner = [place for place, turn in enumerate(episode.turns) if turn.role == "planner"]
        mean = sum(episode.turn_rewards[place] or 0.0 for place in planner) / len(planner)
        for place in planner:
            given = episode.credits[place]
            assert given.shaped == given.return_ == pytest.approx(episode.reward + 0.5 * mean)
            assert given.advantage is not None


# ---- refused ---------------------------------------------------------------------------------------------------------

REFUSED = [
    ({"algorithm__loss": "ppo"}, "no such loss.*one of ppo_clip"),
    ({"algorithm__preset": "dapoo"}, "no such preset: did you mean dapo"),
    ({"algorithm__loss": "sft"}, "'sft' learns what is shown"),
    ({"algorithm__loss": "gmpo", "algorithm__ratio_level": "sequence"}, "has a ratio of its own"),
    ({"credit__outcome": "to_go"}, "set credit.compare to 'turn' or 'state'"),
    ({"credit__compare": "turn", "algorithm__advantage": "remax"}, "judges whole episodes"),
    ({"credit__compare": "state", "algorithm__advantage": "rae"}, "judges whole episodes"),
    ({"algorithm__max_staleness": "-2"}, "max_staleness = -2: expected greater than or equal to -1"),
    ({"algorithm__rae_decay": "1"}, "rae_decay = 1: expected less than 1"),
    ({"algorithm__max_rounds": "3"}, "set algorithm.filter_groups"),
    ({"algorithm__kl_target": "0.1"}, "give algorithm.kl_coefficient"),
    ({"credit__own": '{"planner" = 1.0}'}, "name some in credit.turn_rewards"),
    ({"credit__own": '{"plannr" = 1.0}'}, "no trained role: did you mean planner"),
    ({"credit__turn_rewards": '{"parsd" = 1.0}'}, "no such reward: did you mean parsed"),
    ({"credit__min_group": "5"}, "no group would have credit.min_group = 5"),
    ({"algorithm__dual_clip": "0.5"}, "must be above 1"),
    ({"algorithm__cov_low": "6.0"}, "cov_low = 6.0 is above algorithm.cov_high = 5.0"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_clashes_is_refused_with_a_reason(tmp_path: Path, overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config = config_of(tmp_path, **overrides)
        check(config.train, assemble(config).rollout, config.algorithm, config.credit)


def test_every_pair_of_loss_and_advantage_is_legal_or_has_its_reason() -> None:
    for loss, advantage in itertools.product(LOSSES, ADVANTAGES):
        found = list(clashes(AlgorithmConfig(loss=loss, advantage=advantage), CreditConfig()))
        assert bool(found) == (loss == "sft"), (loss, advantage, found)


# ---- alarms in the loop ----------------------------------------------------------------------------------------------


def test_an_alarm_is_said_kept_and_obeyed(tmp_path: Path) -> None:
    ring = {"alarms__window": "2", "alarms__thresholds": '{"gradient_exploding" = 1e-9}', "train__save_every": "1"}
    _, metrics = play(tmp_path, "said", **ring)
    assert [record.get("alarms") for record in metrics][0] == "gradient_exploding"
    start = play(tmp_path, "start", train__steps="0")[0].learner.fingerprint("planner")
    skipped, metrics = play(tmp_path, "skip", **ONE | ring, alarms__actions='{"gradient_exploding" = "skip"}')
    assert skipped.learner.fingerprint("planner") == start and skipped.learner.versions["planner"] == 0
    adapting = {"algorithm__kl_coefficient": "0.1", "algorithm__kl_target": "0.01", "algorithm__advantage": "rae"}
    for action in ("skip", "restore"):  # also what is no weight
        options = ONE | ring | adapting | {"alarms__actions": f'{{"gradient_exploding" = "{action}"}}'}
        parts, _ = play(tmp_path, f"{action} all", **options)
        assert (parts.coefficients["planner"], parts.averages) == (Coefficients(0.1, 0.0), {}), action
    back, _ = play(tmp_path, "restore", **ONE | ring, alarms__actions='{"gradient_exploding" = "restore"}')
    assert back.learner.fingerprint("planner") == start
    with pytest.raises(UserError, match="stopped at step 1: grad_norm/.* lower the learning rate"):
        play(tmp_path, "stop", **ring | {"train__save_every": "10"}, alarms__actions='{"gradient_exploding" = "stop"}')
    assert Run.open(tmp_path / "stop").list_checkpoints() == [0, 1], "nothing is lost"
    with pytest.raises(ConfigError, match="no alarm 'gradient' to set"):
        config_of(tmp_path, alarms__actions='{"gradient" = "stop"}')
