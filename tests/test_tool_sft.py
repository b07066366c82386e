"""The training tool, action "train": what each parameter that both algorithms have does, and those of SFT alone.

A test that is named after a parameter is its proof: docs/hello_agents.md points at it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tool_runs import GRPO, SFT, SUMS, Played, Trainings, trainings

from gruppo.demonstrations import demonstrate
from gruppo.run import RunConfig, assemble, make_tasks
from gruppo.store import Run
from gruppo.tool import RLTrainingTool, format_math_dataset
from gruppo.tool.datasets import tokenizer_of
from gruppo.tool.translation import read, training

__all__ = ["trainings"]


def rates(played: Played) -> list[float]:
    return [record["learning_rate/agent"] for record in played.metrics]


def config_of(**given: Any) -> RunConfig:
    """The config of a training that is not played."""
    return training(read("train sft", {"model_name": "tiny", **given}), 8, None)  # type: ignore[arg-type]


# ---- the model -------------------------------------------------------------------------------------------------------


def test_model_name_is_the_base_or_the_run_that_goes_on(trainings: Trainings) -> None:
    first = trainings.sft()
    assert first.config.model.base == str(trainings.base) and not first.config.start_from
    further = trainings.sft(model_name=str(first.out), learning_rate=1e-12, num_epochs=1)
    assert further.config.start_from == str(first.out) and further.config.model.base == str(trainings.base)
    assert all(torch.allclose(first.weights[name], further.weights[name], atol=1e-6) for name in first.weights)


def test_output_dir_is_where_everything_is(trainings: Trainings) -> None:
    played = trainings.sft()
    assert played.result["model_path"] == played.result["output_dir"] == str(played.out)
    names = {path.name for path in played.out.iterdir()}
    assert names >= {"config.toml", "metrics.jsonl", "checkpoints", "tasks", "report.html", "monitors"}


def test_use_lora_trains_adapters_or_the_whole_model(trainings: Trainings) -> None:
    assert all(".lora_" in name for name in trainings.sft().weights)
    whole = trainings.sft(use_lora=False, learning_rate=1e-3)
    assert not [name for name in whole.weights if ".lora_" in name]
    assert "lora_rank: with use_lora = false" in trainings.refused(
        action="train", dataset="sums", use_lora=False, lora_rank=4
    )


def test_lora_rank_is_the_rank_of_the_adapters(trainings: Trainings) -> None:
    for rank in (8, 4):
        shapes = {min(tensor.shape) for tensor in trainings.sft(lora_rank=rank).weights.values()}
        assert shapes == {rank}
    assert trainings.refused(action="train", dataset="sums", lora_rank=0).startswith("lora_rank = 0: expected greater")


def test_lora_alpha_scales_the_update(trainings: Trainings) -> None:
    assert trainings.sft().config.policies["agent"].alpha == 16, "twice the rank"
    other = trainings.sft(lora_alpha=64)
    assert other.config.policies["agent"].alpha == 64 and not other.learns_as(trainings.sft())


def test_lora_target_modules_get_the_adapters(trainings: Trainings) -> None:
    def modules(played: Played) -> set[str]:
        return {name.partition(".lora_")[0].rpartition(".")[2] for name in played.weights}

    assert modules(trainings.sft()) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert modules(trainings.sft(lora_target_modules=["gate_proj"])) == {"gate_proj"}
    assert "lora_target_modules = ['no_proj']" in trainings.refused(
        action="train", dataset="sums", lora_target_modules=["no_proj"], output_dir=str(trainings.folder / "no")
    )


def test_use_bf16_holds_the_base_in_bfloat16(trainings: Trainings) -> None:
    half = trainings.sft(use_bf16=True)
    assert half.config.model.dtype == "bfloat16" and not half.learns_as(trainings.sft())


def test_gradient_checkpointing_is_the_models() -> None:
    assert config_of(gradient_checkpointing=True).model.gradient_checkpointing
    assert not config_of().model.gradient_checkpointing  # what it does: test_model.py


def test_device_is_a_torch_device(trainings: Trainings) -> None:
    assert config_of(device="cpu").model.device == "cpu" and config_of().model.device
    said = trainings.refused(action="train", dataset="sums", device="abacus", output_dir=str(trainings.folder / "a"))
    assert said.startswith("device = 'abacus'")


def test_processes_answer_and_learn_side_by_side(trainings: Trainings) -> None:
    assert trainings.sft().config.model.processes == 1
    both = trainings.sft(processes=2)
    assert both.config.model.processes == 2
    for name, tensor in trainings.sft().weights.items():
        torch.testing.assert_close(both.weights[name], tensor, atol=1e-4, rtol=1e-3)
    for value, said in [
        (0, "processes = 0: expected greater than or equal to 1"),
        (1.5, "processes = 1.5: expected a valid integer"),
        ("two", 'processes = "two": expected a valid integer'),
        (True, "processes = true: expected a valid integer"),
        ([2], "processes = [2]: expected a valid integer"),
    ]:
        assert trainings.refused(action="train", dataset="sums", processes=value) == said
    said = trainings.refused(action="train", dataset="sums", processes=2, device="cuda")
    assert said == "model: processes = 2: only on the CPU, not on device = 'cuda'; use 1"
    assert trainings.refused(action="evaluate", model_path="tiny", processes=2).startswith(
        "processes = 2: evaluate does"
    )
    said = trainings.refused(action="train", **SFT, processes=3, output_dir=str(trainings.sft().out), resume=True)
    assert said.startswith("processes: the run in")


def test_seed_is_of_every_draw(trainings: Trainings) -> None:
    assert trainings.sft(seed=7).config.seed == 7 and not trainings.sft(seed=7).learns_as(trainings.sft())


def test_allow_download_is_asked_for_in_the_call_for_the_tool_or_in_the_environment(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = config_of(allow_download=True)
    assert asked.model.allow_download and asked.tasks.download
    assert not config_of().model.allow_download and not config_of().tasks.download
    assert RLTrainingTool(allow_download=True).defaults == {"allow_download": True}
    said = trainings.refused(
        action="train", dataset="sums", model_name="no-one/nothing", output_dir=str(trainings.folder / "no")
    )
    assert said.endswith("or allow_download = true for a hub id")
    monkeypatch.setenv("GRUPPO_ALLOW_DOWNLOAD", "1")
    assert RLTrainingTool().defaults == {"allow_download": True}


def test_what_is_shown_what_is_asked_and_what_is_loaded_have_one_prompt(trainings: Trainings) -> None:
    loaded = json.loads(trainings.tool.run({"action": "load_dataset", "dataset": "sums", "format": "rl"}))
    groups = Run.open(trainings.grpo(max_samples=1).out).read_episodes("grpo-000001")
    assert {turn.prompt for group in groups for e in group.episodes for turn in e.turns} == {loaded["sample"]["prompt"]}
    log, tokenizer = trainings.sft(max_samples=1), tokenizer_of(str(trainings.base))
    shown = json.loads(trainings.tool.run({"action": "load_dataset", "dataset": "sums", "format": "sft"}))["sample"]
    ids = [tokenizer.encode(shown[part], add_special_tokens=False) for part in ("prompt", "completion")]
    assembly = assemble(log.config)
    (row,) = demonstrate(log.config, assembly, make_tasks(log.config, "train"))["agent"]
    assembly.close()
    assert [list(row.prompt_ids), list(row.action_ids)] == ids


# ---- how it is trained -----------------------------------------------------------------------------------------------


def test_learning_rate_is_the_rate_after_the_warm_up(trainings: Trainings) -> None:
    assert rates(trainings.sft())[-1] == 1e-2 and rates(trainings.sft(learning_rate=1e-3))[-1] == 1e-3
    assert not trainings.sft(learning_rate=1e-3).learns_as(trainings.sft())
    assert config_of().sft.learning_rate == 5e-5


def test_num_epochs_is_how_often_each_row_is_seen(trainings: Trainings) -> None:
    assert trainings.sft().result["num_steps"] == 4, "eight rows twice, four a step"
    assert trainings.sft(num_epochs=1).result["num_steps"] == 2


def test_batch_size_is_what_is_in_memory_and_multiplies(trainings: Trainings) -> None:
    small, large = trainings.sft(), trainings.sft(batch_size=4, gradient_accumulation_steps=1)
    assert small.config.sft.batch_size == large.config.sft.batch_size == 4
    assert large.config.sft.microbatch_tokens == 2 * small.config.sft.microbatch_tokens
    assert large.result["final_loss"] == pytest.approx(small.result["final_loss"], rel=1e-3)
    assert trainings.sft(batch_size=8).result["num_steps"] == 1


def test_gradient_accumulation_steps_are_the_batches_of_one_step(trainings: Trainings) -> None:
    assert trainings.sft(gradient_accumulation_steps=1).result["num_steps"] == 8
    assert config_of(batch_size=2, gradient_accumulation_steps=3).sft.batch_size == 6


def test_optimizer_takes_the_steps(trainings: Trainings) -> None:
    assert not trainings.sft(optimizer="sgd").learns_as(trainings.sft())
    said = trainings.refused(action="train", dataset="sums", optimizer="adam")
    assert said.startswith('optimizer = "adam": expected') and "adamw" in said


def test_weight_decay_makes_weights_smaller(trainings: Trainings) -> None:
    def size(played: Played) -> float:
        return sum(tensor.norm().item() for name, tensor in played.weights.items() if ".lora_A" in name)

    assert size(trainings.sft(weight_decay=5.0)) < 0.9 * size(trainings.sft(weight_decay=0.0))
    assert config_of().policies["agent"].weight_decay == 0.01


def test_warmup_ratio_is_the_share_of_steps_that_rise(trainings: Trainings) -> None:
    assert rates(trainings.sft(warmup_ratio=0.0)) == [1e-2] * 4
    assert rates(trainings.sft(warmup_ratio=1.0)) == pytest.approx([2e-3, 4e-3, 6e-3, 8e-3])


def test_max_grad_norm_clips(trainings: Trainings) -> None:
    clipped = trainings.sft(optimizer="sgd", max_grad_norm=1e-6)
    still = [tensor for name, tensor in clipped.weights.items() if ".lora_B" in name]
    assert all(tensor.abs().max() < 1e-6 for tensor in still)
    assert not clipped.learns_as(trainings.sft(optimizer="sgd"))


def test_max_length_leaves_longer_examples_out(trainings: Trainings) -> None:
    assert trainings.sft().config.sft.max_length == 2048
    rows, tokenizer = format_math_dataset(SUMS, "sft", str(trainings.base)), tokenizer_of(str(trainings.base))
    lengths = sorted(len(tokenizer.encode(row["text"], add_special_tokens=False)) for row in rows)
    losses = [trainings.sft(max_length=length).result["final_loss"] for length in (lengths[-1], lengths[3])]
    all_of_them = pytest.approx(trainings.sft().result["final_loss"], rel=1e-3)
    assert lengths[3] < lengths[-1] and losses[0] == all_of_them != losses[1]
    said = trainings.refused(action="train", max_length=5, output_dir=str(trainings.folder / "short"), dataset="sums")
    assert said.startswith("max_length = 5: the shortest demonstration has")


# ---- the tasks -------------------------------------------------------------------------------------------------------


def test_dataset_is_a_name_or_a_reference(trainings: Trainings, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "1 + 1?", "result": "2"}\n' * 3)
    played = trainings.sft(dataset=str(tmp_path / "mine.jsonl"), num_epochs=1)
    assert played.result["dataset_size"] == 3
    said = trainings.refused(action="train", dataset="sms")
    assert said == "dataset = 'sms': not registered, and no known set: did you mean sums?"


def test_custom_dataset_takes_rows(trainings: Trainings) -> None:
    raw = trainings.sft(custom_dataset=SUMS, dataset=None)
    assert raw.result["dataset_size"] == 8 and raw.learns_as(trainings.sft())
    rows = [{"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "completion": "Ho<|im_end|>"}]
    shown = trainings.sft(custom_dataset=rows, dataset=None)
    assert shown.result["num_steps"] == 1
    said = trainings.refused(action="train", custom_dataset=[{"q": 1}])
    assert said.startswith("custom_dataset: row 1: columns are q; expected question and answer")
    assert trainings.refused(action="train", custom_dataset=SUMS, dataset="sums").startswith("dataset: custom_dataset")


def test_split_is_a_part_of_the_rows(trainings: Trainings) -> None:
    played = trainings.sft(split="train[2:5]")
    asked = [json.loads(line)["question"] for line in (played.out / "tasks" / "train.jsonl").read_text().splitlines()]
    assert asked == [row["question"] for row in SUMS[2:5]]
    assert "has rows of one split" in trainings.refused(action="train", dataset="sums", split="test")


def test_max_samples_is_the_most_that_are_taken(trainings: Trainings) -> None:
    assert trainings.sft(max_samples=3).result["dataset_size"] == 3
    assert trainings.sft(max_samples=None).result["dataset_size"] == 8


def test_data_folder_is_where_known_sets_are(trainings: Trainings, tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SUMS))
    played = trainings.sft(dataset="gsm8k", data_folder=str(tmp_path), split="train[:50%]", num_epochs=1)
    assert played.result["dataset_size"] == 4 and played.config.tasks.folder == str(tmp_path)


# ---- on the way ------------------------------------------------------------------------------------------------------


def test_save_steps_is_how_often_it_is_saved(trainings: Trainings) -> None:
    assert config_of(save_steps=500).sft.save_every == 500  # what that does: test_sft.py
    assert Run.open(trainings.grpo(save_steps=1).out).list_checkpoints() == [1, 2]
    assert Run.open(trainings.grpo().out).list_checkpoints() == [0, 2]


def test_logging_steps_is_how_often_monitors_are_told(trainings: Trainings) -> None:
    def steps(played: Played) -> list[int]:
        (file,) = (played.out / "monitors" / "log").rglob("metrics.txt")
        return [int(line.split()[1]) for line in file.read_text().splitlines()]

    assert steps(trainings.sft()) == [1, 2, 3, 4] and steps(trainings.sft(logging_steps=3)) == [1, 3]


def test_eval_steps_is_how_often_held_out_tasks_are_looked_at(trainings: Trainings) -> None:
    trainings.tool.register_dataset("held out", SUMS[:3])
    played = trainings.sft(eval_steps=2, eval_dataset="held out")
    assert [one["step"] for one in played.result["evaluations"]] == [2, 4]
    assert all(one["loss"] > 0 for one in played.result["evaluations"])
    assert played.learns_as(trainings.sft()), "looking changes nothing"
    assert trainings.sft().result["evaluations"] == []
    assert "name held-out tasks with eval_dataset" in trainings.refused(action="train", dataset="sums", eval_steps=2)


def test_eval_dataset_is_what_is_held_out(trainings: Trainings) -> None:
    trainings.tool.register_dataset("held out", SUMS[:3])
    played = trainings.sft(eval_steps=2, eval_dataset="held out")
    held_out = (played.out / "tasks" / "validation.jsonl").read_text().splitlines()
    assert [json.loads(line)["source"] for line in held_out] == ["held out"] * 3
    assert "no such data set" in trainings.refused(action="train", dataset="sums", eval_steps=2, eval_dataset="hold")


def test_eval_samples_is_the_most_of_them(trainings: Trainings) -> None:
    trainings.tool.register_dataset("held out", SUMS[:3])
    played = trainings.sft(eval_steps=4, eval_dataset="held out", eval_samples=1)
    assert len((played.out / "tasks" / "validation.jsonl").read_text().splitlines()) == 1


def test_use_wandb_names_it_among_the_monitors(trainings: Trainings) -> None:
    assert "wandb" in config_of(use_wandb=True).monitors and "wandb" not in config_of().monitors  # test_monitors.py


def test_wandb_project_is_the_calls_else_the_environments(
    monkeypatch: pytest.MonkeyPatch, trainings: Trainings
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "lessons")
    assert config_of(use_wandb=True, wandb_project="mine").monitor.project == "mine"
    assert config_of(use_wandb=True).monitor.project == "lessons"
    assert "wandb_project: use_wandb is false" in trainings.refused(action="train", dataset="sums", wandb_project="x")


def test_wandb_online_sends_only_if_it_is_asked(trainings: Trainings) -> None:
    assert config_of(use_wandb=True, wandb_online=True).monitor.online
    assert not config_of(use_wandb=True).monitor.online
    assert "wandb_online: use_wandb is false" in trainings.refused(action="train", dataset="sums", wandb_online=True)


def test_use_tensorboard_writes_its_files_into_the_run(trainings: Trainings) -> None:
    pytest.importorskip("tensorboard")
    assert list(trainings.sft(use_tensorboard=True).out.rglob("events.out.tfevents.*"))
    assert not list(trainings.sft(use_tensorboard=False).out.rglob("events.out.tfevents.*"))
    assert "tensorboard" in config_of().monitors, "where it is installed"


# ---- again -----------------------------------------------------------------------------------------------------------


def test_overwrite_replaces_a_run_and_leaves_what_is_not_its_own(trainings: Trainings) -> None:
    out = trainings.folder / "again"
    first = trainings.sft(output_dir=str(out), num_epochs=1)
    (out / "notes.json").write_text("{}")
    asked = {"action": "train", **SFT, "num_epochs": 1, "output_dir": str(out)}
    assert trainings.refused(**asked).startswith(f"output_dir = '{out}': holds a run; pass \"resume\": True")
    found = json.loads(trainings.tool.run({**asked, "overwrite": True, "max_samples": 4}))
    assert found["status"] == "success" and found["num_steps"] == 1 < first.result["num_steps"]
    assert (out / "notes.json").exists()
    said = trainings.refused(**asked, overwrite=True, model_name=str(out))
    assert "is what model_name begins with" in said and (out / "config.toml").exists()


def test_resume_goes_on_with_the_same_run_only(trainings: Trainings) -> None:
    played = trainings.grpo(save_steps=1)
    asked = {"action": "train", "algorithm": "grpo", "output_dir": str(played.out), "resume": True}
    asked |= {"reward_type": "noise", **GRPO, "save_steps": 1}
    found = json.loads(trainings.tool.run(asked))
    assert found["status"] == "success" and found["final_reward"] == played.result["final_reward"]
    assert trainings.refused(**asked | {"kl_coef": 0.5}).startswith("kl_coef: the run in")
    other = [{"question": "What?", "answer": "It is so. #### 1"}] * 4
    said = trainings.refused(**asked | {"dataset": None, "custom_dataset": other})
    assert "the run in" in said and "was begun with another" in said
