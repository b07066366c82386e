"""The hub end to end on the embedded base: what a step records and changes, and that its loss knows no microbatches."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_run import config_of, fingerprints, noise, parts_of, play, quiet

from gruppo.algorithms import AlgorithmConfig
from gruppo.algorithms.batching import Row, merge, microbatches, rows_of
from gruppo.algorithms.credit import Terms, assign
from gruppo.errors import CheckpointError, ConfigError, UserError
from gruppo.run import assemble
from gruppo.stages import report_of, train
from gruppo.store import Run
from gruppo.training.grpo import GRPOConfig, Parts, begin, check, grpo, rate_at
from gruppo.training.update import Coefficients, Step, accumulate, update, weighted
from gruppo.types import Episode, Group, Task

# ---- the hub --------------------------------------------------------------------------------------------------------


def test_two_steps_train_both_roles_and_leave_everything_on_disk(tmp_path: Path) -> None:
    with parts_of(config_of(tmp_path), tmp_path / "start") as fresh:
        start = fingerprints(fresh)
    parts, metrics = play(tmp_path, "run", train__eval_every="2", roles__planner__max_tokens="9")
    assert [(record["stage"], record["step"]) for record in metrics] == [("grpo", 1), ("grpo", 2)]
    for record in metrics:
        assert {"reward/mean", "reward/std", "episodes", "seconds/rollout", "seconds/step"} <= record.keys()
        assert record["episodes"] == 8 and record["groups/dropped"] == 0
        assert record["turns/planner"] == 2
        for policy in ("planner", "executor"):
            own = {key.rpartition("/")[0]: value for key, value in record.items() if key.endswith(f"/{policy}")}
            if own["rows"] == 0:
                continue
            assert (own["ratio"], own["clipped"], own["kl_old"]) == (1, 0, 0), "on-policy"
            assert own["mismatch"] < 1e-4, "the learner sees what the sampler saw"
            assert own["grad_norm"] > 0 and own["skipped"] == 0 and math.isfinite(own["loss"])
            assert own["entropy"] > 0 and 0 < own["packs"] <= own["rows"] < own["trained_tokens"]
        assert record["rows/planner"] == 16
        assert (record["rows/spare"], record["trained_tokens/spare"], record["packs/spare"]) == (0, 0, 0)
        assert "loss/spare" not in record
    assert "eval/success" not in metrics[0] and metrics[1]["eval/success"] == 2
    assert parts.learner.versions["planner"] == 2 and parts.learner.versions["spare"] == 0
    after = fingerprints(parts)
    assert after["planner"] != start["planner"] and after["spare"] == start["spare"]
    assert parts.learner.fingerprint(None) == parts.learner.base_fingerprint
    run = Run.open(tmp_path / "run")
    assert run.list_episodes() == ["grpo-000001", "grpo-000002"]
    played = [
        turn for group in run.read_episodes("grpo-000002") for episode in group.episodes for turn in episode.turns
    ]
    assert {(turn.role, turn.policy, turn.version) for turn in played if turn.role == "planner"} == {
        ("planner", "planner", 1)
    }
    assert run.list_checkpoints() == [0, 2]
    checkpoint = run.latest_checkpoint()
    assert checkpoint is not None and checkpoint.state == {
        "step": 2,
        "seed": 0,
        "versions": parts.learner.versions,
        "base": parts.learner.base_fingerprint,
        "tasks": parts.tasks.fingerprint,
        "coefficients": {policy: {"kl": 0.0, "entropy": 0.0} for policy in ("planner", "executor", "spare")},
        "averages": {},
    }


def test_an_executor_that_acted_is_trained_by_its_own_rows(tmp_path: Path) -> None:
    with parts_of(config_of(tmp_path), tmp_path / "run") as parts:
        groups = sampled_groups(parts)
        for episode in (episode for group in groups for episode in group.episodes):
            # Whatever the base can do: two turns, the second of them an executor's.
            first, second = [turn for turn in episode.turns if turn.role == "planner"]
            episode.turns = [first, replace(second, role="executor", policy="executor")]
        rows = {policy: rows_for(parts, groups, policy) for policy in ("planner", "executor")}
        assert len(rows["planner"]) == len(rows["executor"]) == 8
        begin(parts)
        before = fingerprints(parts)
        found = update(parts.learner, "executor", [rows["executor"]], how(parts))
        assert found["rows/executor"] == 8 and found["grad_norm/executor"] > 0
        after = fingerprints(parts)
        assert {policy for policy in before if before[policy] != after[policy]} == {"executor"}


def test_the_same_seed_gives_the_same_adapters_in_one_go_or_resumed(tmp_path: Path) -> None:
    whole, _ = play(tmp_path, "whole")
    assert fingerprints(play(tmp_path, "again")[0]) == fingerprints(whole)
    other = fingerprints(play(tmp_path, "other", seed="1", train__steps="1")[0])
    assert other["planner"] != fingerprints(whole)["planner"]
    play(tmp_path, "parts", train__steps="1")
    config = config_of(tmp_path)
    with parts_of(config, tmp_path / "parts", resume=True) as parts:
        grpo(parts, config.train)
        assert fingerprints(parts) == fingerprints(whole) and parts.learner.versions == whole.learner.versions
        assert [record["step"] for record in parts.run.read_metrics()] == [1, 2]
    config = config_of(tmp_path, train__steps="3", tasks__num_train="5")
    with (
        parts_of(config, tmp_path / "parts", resume=True) as parts,
        pytest.raises(CheckpointError, match="was trained on other tasks; start a new run with --out"),
    ):
        grpo(parts, config.train)


def test_a_budget_of_episodes_ends_the_run_with_the_step_that_reaches_it(tmp_path: Path) -> None:
    """Also of a run that was killed, which counts the episodes of the steps it keeps, and of one that had ended."""
    whole, expected = play(tmp_path, "whole", train__steps="3")
    budget = {"train__steps": "5", "train__episodes": "17"}  # a step has 8
    parts, metrics = play(tmp_path, "budget", **budget)
    assert [record["step"] for record in metrics] == [1, 2, 3] and fingerprints(parts) == fingerprints(whole)
    assert Run.open(tmp_path / "budget").list_checkpoints() == [0, 3], "the last step is saved, whatever save_every"
    shutil.copytree(tmp_path / "budget", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "step-000003")  # the metrics of its three steps are there
    play(tmp_path, "half way", train__steps="2")
    for name in ("budget", "killed", "half way"):
        config = config_of(tmp_path, **budget)
        with parts_of(config, tmp_path / name, resume=True) as parts:
            grpo(parts, config.train)
            assert fingerprints(parts) == fingerprints(whole), name
            steps = [(record["step"], record["reward/mean"]) for record in parts.run.read_metrics()]
            assert steps == [(record["step"], record["reward/mean"]) for record in expected], name


def test_groups_without_signal_are_dropped_and_counted(tmp_path: Path) -> None:
    def one_group(task: Task, episodes: Sequence[Episode]) -> list[float]:
        return noise(task, episodes) if int(task.id.rpartition("-")[2]) % 2 else [1.0] * len(episodes)

    _, metrics = play(tmp_path, "run", one_group, train__steps="1", train__tasks_per_step="6", train__attempts="3")
    assert metrics[0]["groups/dropped"] == 3 and metrics[0]["rows/planner"] == 3 * 3 * 2


def test_a_batch_larger_than_the_task_set_takes_tasks_again(tmp_path: Path) -> None:
    parts, metrics = play(tmp_path, "run", train__steps="1", train__tasks_per_step="4", tasks__num_train="3")
    assert metrics[0]["episodes"] == 16 and metrics[0]["rows/planner"] == 32
    groups = Run.open(tmp_path / "run").read_episodes("grpo-000001")
    assert len({group.id for group in groups}) == 4


def test_ten_steps_without_any_signal_stop_the_run_with_a_hint(tmp_path: Path) -> None:
    flat: Callable[..., list[float]] = lambda task, episodes: [0.5] * len(episodes)  # noqa: E731
    options = {
        "train__steps": "12",
        "train__tasks_per_step": "1",
        "train__attempts": "2",
        "team__solver__max_steps": "1",
    }
    with pytest.raises(UserError, match="no group had a signal in 10 steps: .* easier tasks or more attempts"):
        play(tmp_path, "run", flat, **options)
    run = Run.open(tmp_path / "run")
    assert len(run.read_metrics()) == 9
    checkpoint = run.latest_checkpoint()
    assert checkpoint is not None and set(checkpoint.state["versions"].values()) == {0}


def test_two_updates_per_rollout_step_twice_and_leave_the_ratio(tmp_path: Path) -> None:
    parts, metrics = play(tmp_path, "run", train__updates="2", train__warmup_steps="0", train__steps="1")
    assert parts.learner.versions["planner"] == 2
    record = metrics[0]
    assert record["rows/planner"] == 16 and record["packs/planner"] > 0
    assert abs(record["ratio/planner"] - 1) > 1e-6 and record["kl_old/planner"] != 0
    assert math.isfinite(record["loss/planner"]) and record["skipped/planner"] == 0


def test_the_learning_rate_rises_stays_and_falls() -> None:
    config = GRPOConfig(steps=8, warmup_steps=1, decay_steps=3)
    assert [rate_at(step, config) for step in range(8)] == [0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert [rate_at(step, GRPOConfig(steps=4, warmup_steps=0)) for step in range(4)] == [1, 1, 1, 1]


def test_the_kl_starts_at_zero_and_changes_no_first_step(tmp_path: Path) -> None:
    _, (plain,) = play(tmp_path, "plain", train__steps="1", train__warmup_steps="0")
    assert "kl/planner" not in plain
    for reference, steps in (("start", 2), ("base", 1)):
        kl = {"algorithm__kl_coefficient": "0.5", "algorithm__kl_reference": reference, "train__warmup_steps": "0"}
        parts, metrics = play(tmp_path, reference, train__steps=str(steps), **kl)
        assert [record["kl/planner"] == 0 for record in metrics] == [True, False][:steps]
        assert metrics[0]["grad_norm/planner"] == pytest.approx(plain["grad_norm/planner"], rel=1e-4)
        assert parts.learner.versions["planner"] == steps


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    for override, message in (
        ({"roles__planner__temperature": "0.0"}, "roles.planner: a trained role samples with .* temperature = 0.0"),
        ({"roles__executor__top_p": "0.9"}, "roles.executor: a trained role samples with .* top_p = 0.9"),
        ({"roles__planner__trained": "false", "roles__executor__trained": "false"}, "no role is trained"),
    ):
        config = config_of(tmp_path, **override)
        with pytest.raises(ConfigError, match=message):
            check(config.train, assemble(config).rollout, config.algorithm, config.credit)


# ---- one update -----------------------------------------------------------------------------------------------------


def sampled_groups(parts: Parts) -> list[Group]:
    return parts.rollout.collect(parts.tasks.batch(0, 2, 0), 4, 0, "one")


def rows_for(parts: Parts, groups: Sequence[Group], policy: str) -> list[Row]:
    algorithm = parts.algorithm
    assign(groups, ["planner", "executor"], parts.credit, algorithm.advantage, algorithm.settings, Terms())
    return weighted(rows_of(groups, policy), algorithm)


def how(parts: Parts, algorithm: AlgorithmConfig | None = None, tokens: int = 16384) -> Step:
    algorithm = algorithm or parts.algorithm
    return Step(algorithm, Coefficients(algorithm.kl_coefficient, algorithm.entropy_coefficient), 1.0, 1.0, tokens)


def gradient(parts: Parts, rows: Sequence[Row], max_tokens: int, share: bool = True) -> tuple[torch.Tensor, float]:
    """The gradient and loss of one step over `rows`, split by `max_tokens`, in trees or each alone; takes no step."""
    learner = parts.learner
    loss = 0.0
    for part in microbatches(rows, max_tokens, share):
        loss += accumulate(learner, "planner", part, how(parts))["loss"]
    parameters = learner.parameters("planner").values()
    found = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    for parameter in parameters:
        parameter.grad = None
    return found, loss


def test_gradient_and_loss_are_the_same_however_the_step_is_split_or_merged(tmp_path: Path) -> None:
    with parts_of(config_of(tmp_path), tmp_path / "run") as parts:
        rows = rows_for(parts, sampled_groups(parts), "planner")
        rows += [replace(row, advantage=0.3 * row.advantage) for row in rows[:5]]  # equal but for the advantage
        assert len(rows) == 21 and len(merge(rows)) <= 16
        expected, loss = gradient(parts, rows, 10**6)
        assert expected.abs().max() > 0
        scale = max(1.0, expected.abs().max().item())
        for max_tokens in (1, 300):
            assert len(microbatches(rows, max_tokens)) > 1
            for some, share in ((rows, True), (rows, False), (merge(rows), True)):
                found, other_loss = gradient(parts, some, max_tokens, share)
                assert torch.allclose(found, expected, atol=1e-6 * scale, rtol=1e-5)
                assert other_loss == pytest.approx(loss, abs=1e-6)
        assert gradient(parts, merge(rows), 10**6)[1] == pytest.approx(loss, abs=1e-6)


def test_an_update_reports_and_does_the_same_for_any_microbatch_size(tmp_path: Path) -> None:
    with parts_of(config_of(tmp_path), tmp_path / "run") as parts:
        rows = rows_for(parts, sampled_groups(parts), "planner")
        rows += [replace(row, advantage=-row.advantage) for row in rows[:4]]  # these cancel, but their tokens count
        expected, loss = gradient(parts, weighted(rows, parts.algorithm), 10**6)
        for kl in (0.0, 0.1):
            found: list[Mapping[str, float]] = []
            for size in (100, 300, 100_000):
                begin(parts)  # back to the first checkpoint
                assert parts.learner.versions["planner"] == 0
                step = how(parts, AlgorithmConfig(kl_coefficient=kl), size)
                record = update(parts.learner, "planner", [rows], step)
                found.append({name: value for name, value in record.items() if name != "packs/planner"})
            assert found[0]["grad_norm/planner"] == pytest.approx(expected.norm().item(), rel=1e-4)
            assert found[0]["loss/planner"] == pytest.approx(loss, abs=1e-5)
            assert found[1] == pytest.approx(found[0], rel=1e-5, abs=1e-5)
            assert found[2] == pytest.approx(found[0], rel=1e-5, abs=1e-5)


def test_a_gradient_that_is_not_finite_is_counted_and_changes_nothing(tmp_path: Path) -> None:
    with parts_of(config_of(tmp_path), tmp_path / "run") as parts:
        rows = rows_for(parts, sampled_groups(parts), "planner")
        begin(parts)
        before = fingerprints(parts)
        broken = [replace(rows[0], advantage=math.inf), *rows[1:]]
        found = update(parts.learner, "planner", [broken], how(parts))
        assert found["skipped/planner"] == 1 and fingerprints(parts) == before
        assert parts.learner.versions["planner"] == 0
        found = update(parts.learner, "planner", [rows], how(parts))
        assert found["skipped/planner"] == 0 and parts.learner.versions["planner"] == 1
        assert fingerprints(parts)["planner"] != before["planner"]


# ---- all stages -----------------------------------------------------------------------------------------------------


def test_a_small_run_from_beginning_to_end_and_resumed_after_its_end(tmp_path: Path) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def noise(task, episodes):\n"
        "    if episodes[0].group_id.startswith('demonstrations'):\n"
        "        return [None] * len(episodes)\n"
        "    return [e.attempt + sum(sum(turn.action_ids) for turn in e.turns) % 97 / 97 for e in episodes]\n"
    )
    config = config_of(
        tmp_path,
        rewards=f'{{"exact" = 1.0, "{reward}:noise" = 0.5}}',
        tools__names='["python", "wikipedia"]',
        tasks__families='["compute", "lookup"]',
        tasks__num_test="4",
        sft__steps="2",
        sft__demonstrations="6",
        sft__batch_size="4",
        eval__modes='["greedy"]',
    )
    out = tmp_path / "run"
    summary = train(config, out, resume=False, log=quiet())
    assert {"before", "sft", "after", "gain", "gain_ci95", "n", "seconds", "seed", "roles"} <= summary.keys()
    assert summary["n"] == 4 and summary["base_unchanged"] is True
    assert summary["roles"]["planner"]["changed"] and summary["roles"]["executor"]["changed"]
    assert json.loads((out / "report.json").read_text()) == summary
    page = (out / "report.html").read_text()
    assert page.startswith("<!") and "gruppo run" in page and "http://" not in page.replace("http://www.w3.org", "")
    run = Run.open(out)
    metrics, checkpoints = run.read_metrics(), run.list_checkpoints()
    assert [record["stage"] for record in metrics] == ["sft", "sft", "grpo", "grpo"]
    evaluations = [f"eval-{stage}-greedy" for stage in ("base", "final", "sft")]
    assert run.list_episodes() == [*evaluations, "grpo-000001", "grpo-000002"]
    weights = run.latest_checkpoint()
    assert weights is not None
    files = {path: path.read_bytes() for path in weights.path.rglob("*") if path.is_file()}
    played = {path: path.stat().st_mtime_ns for path in (out / "episodes").iterdir()}

    again = train(config, out, resume=True, log=quiet())
    told = ("seconds", "notes")  # these may speak of the resumption
    assert {key: again[key] for key in again if key not in told} == {k: summary[k] for k in summary if k not in told}
    assert (run.read_metrics(), run.list_checkpoints()) == (metrics, checkpoints)
    assert {path: path.read_bytes() for path in files} == files
    assert {path: path.stat().st_mtime_ns for path in (out / "episodes").iterdir()} == played

    other = Path(shutil.copytree(out, tmp_path / "other"))
    found = report_of(out, [other])
    assert (found["against"][str(other)]["greedy"]["gain"], found["after"]) == (0, summary["after"])
    assert any("other (greedy) reaches" in note and "no measurable difference" in note for note in found["notes"])
    assert "no measurable difference" in (out / "report.html").read_text()
    for file in (other / "episodes").glob("eval-final-greedy*"):
        file.unlink()
    with pytest.raises(ConfigError, match="other: no evaluation of a trained team"):
        report_of(out, [other])
