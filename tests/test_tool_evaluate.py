"""The training tool, action "evaluate": what each parameter does.

A test that is named after a parameter is its proof: docs/hello_agents.md points at it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tool_runs import SUMS, Trainings, noise, trainings

from gruppo.run import RunConfig
from gruppo.tool.parameters import EvaluateParameters
from gruppo.tool.recipes import Recipe
from gruppo.tool.translation import evaluation, read

__all__ = ["trainings"]

SHORT = {"max_new_tokens": 4, "dataset": "sums"}
ANSWERS = [{"question": f"Repeat: {n}", "answer": f"{n}"} for n in range(4)]


def evaluate(trainings: Trainings, path: Path | None = None, **given: Any) -> dict[str, Any]:
    asked = {"action": "evaluate", "model_path": str(path or trainings.base), **SHORT, **given}
    found = json.loads(trainings.tool.run(asked))
    assert found["status"] == "success", found
    return found


def config_of(path: object, **given: Any) -> RunConfig:
    """The config of an evaluation that is not played."""
    asked = read("evaluate", {"model_path": str(path), **given})
    assert isinstance(asked, EvaluateParameters)
    return evaluation(asked, Recipe({"accuracy": 1.0}))[0]


def test_model_path_is_a_base_or_what_was_trained(trainings: Trainings) -> None:
    sft = trainings.sft()
    base, trained = evaluate(trainings, return_details=True), evaluate(trainings, sft.out, return_details=True)
    assert [one["completion"] for one in base["details"]] != [one["completion"] for one in trained["details"]]
    assert (base["use_lora"], trained["use_lora"]) == (False, True)
    assert trainings.refused(action="evaluate", dataset="sums").startswith("missing key model_path")
    said = trainings.refused(action="evaluate", dataset="sums", model_path="./no/such")
    assert said.startswith("model_path = './no/such': no such folder")


def test_use_lora_leaves_the_adapters_on_or_off(trainings: Trainings) -> None:
    sft = trainings.sft()
    said = {
        name: [one["completion"] for one in evaluate(trainings, path, return_details=True, use_lora=use)["details"]]
        for name, path, use in (("base", None, False), ("off", sft.out, False), ("on", sft.out, True))
    }
    assert said["off"] == said["base"] != said["on"]
    assert "is no output_dir" in trainings.refused(
        action="evaluate", model_path=str(trainings.base), use_lora=True, **SHORT
    )
    whole = trainings.sft(use_lora=False, learning_rate=1e-3)
    assert "it has no adapters" in trainings.refused(
        action="evaluate", model_path=str(whole.out), use_lora=True, **SHORT
    )
    assert evaluate(trainings, whole.out)["use_lora"] is False


def test_dataset_is_a_name_or_a_reference(trainings: Trainings) -> None:
    found = evaluate(trainings)
    assert (found["dataset"], found["num_samples"]) == ("sums", 8)


def test_custom_dataset_takes_rows(trainings: Trainings) -> None:
    assert evaluate(trainings, dataset=None, custom_dataset=SUMS[:3])["num_samples"] == 3


def test_split_is_test_unless_given(trainings: Trainings, tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    for split, number in (("train", 4), ("test", 2)):
        rows = "".join(json.dumps(row) + "\n" for row in SUMS[:number])
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text(rows)
    known = {"dataset": "gsm8k", "data_folder": str(tmp_path)}
    assert evaluate(trainings, **known)["num_samples"] == 2
    assert evaluate(trainings, **known, split="train[1:]")["num_samples"] == 3
    assert evaluate(trainings, split="[:5]")["num_samples"] == 5


def test_data_folder_is_where_known_sets_are(trainings: Trainings, tmp_path: Path) -> None:
    said = trainings.refused(action="evaluate", model_path="tiny", data_folder=str(tmp_path))
    assert f"no {tmp_path}/gsm8k/" in said and said.endswith("or let it be fetched with allow_download")


def test_max_samples_is_the_most_and_none_all(trainings: Trainings) -> None:
    many = [{"question": f"{n}?", "answer": str(n)} for n in range(110)]
    given = {"dataset": None, "custom_dataset": many, "max_new_tokens": 1}
    assert evaluate(trainings, **given)["num_samples"] == 100, "unless given"
    assert evaluate(trainings, **given, max_samples=3)["num_samples"] == 3
    assert evaluate(trainings, **given, max_samples=None)["num_samples"] == 110


def test_metrics_are_numbers_by_name(trainings: Trainings) -> None:
    names = ["accuracy", "accuracy_at_k", "average_length", "average_steps", "format_correctness"]
    found = evaluate(trainings, metrics=names, max_samples=2)
    assert all(isinstance(found[name], float) for name in names) and found["average_reward"] == 0.0
    assert 1 <= found["average_length"] <= 4 and found["ci95"]["accuracy"][0] == 0
    assert "format_correctness" not in evaluate(trainings, max_samples=2)
    said = trainings.refused(action="evaluate", model_path="tiny", metrics=["acuracy"], **SHORT)
    assert said == "metrics: no metric 'acuracy': did you mean accuracy?"


def test_k_is_the_number_of_sampled_answers(trainings: Trainings) -> None:
    found = evaluate(trainings, metrics=["accuracy_at_k"], k=2, max_samples=2)
    assert found["k"] == 2 and evaluate(trainings, metrics=["accuracy_at_k"], max_samples=1)["k"] == 3
    said = trainings.refused(action="evaluate", model_path="tiny", k=2, **SHORT)
    assert said.startswith('k: only the metric "accuracy_at_k"')


def test_temperature_is_that_of_the_k_answers(trainings: Trainings) -> None:
    hits: dict[float, list[str]] = {}
    for temperature in (1e-4, 5.0):
        heard: list[str] = []

        def listen(completions: list[str], **columns: Any) -> list[float]:
            heard.extend(completions)  # noqa: B023
            return [0.0] * len(completions)

        asked = {"metrics": ["accuracy_at_k"], "k": 4, "temperature": temperature, "custom_reward": listen}
        evaluate(trainings, max_samples=1, **asked)
        hits[temperature] = heard
    assert len(set(hits[1e-4])) == 1, "all as the greedy one"
    assert len(hits[5.0]) == 5 and len(set(hits[5.0])) > 1
    said = trainings.refused(action="evaluate", model_path="tiny", temperature=0.5, **SHORT)
    assert said.startswith('temperature: only the metric "accuracy_at_k"')


def test_max_new_tokens_is_as_it_was_trained_unless_given(trainings: Trainings) -> None:
    out = trainings.grpo().out
    assert config_of(out).roles["agent"].max_tokens == 4
    assert config_of(out, max_new_tokens=9).roles["agent"].max_tokens == 9
    assert config_of("tiny").roles["agent"].max_tokens == 512
    lengths = [evaluate(trainings, metrics=["average_length"], max_new_tokens=n)["average_length"] for n in (1, 4)]
    assert lengths[0] == 1 < lengths[1]


def test_batch_size_is_how_many_are_answered_at_once(trainings: Trainings) -> None:
    assert config_of("tiny", batch_size=3).rollout.max_batch == 3  # what that does: test_rollout.py
    one, many = (evaluate(trainings, batch_size=size, return_details=True)["details"] for size in (1, 64))
    assert [own["completion"] for own in one] == [own["completion"] for own in many]


def test_return_details_has_every_task_and_every_error(trainings: Trainings) -> None:
    found = evaluate(trainings, return_details=True)
    first = found["details"][0]
    assert first["question"] == SUMS[0]["question"] and first["ground_truth"] == "4" and first["correct"] is False
    assert first["ground_truth_steps"] == 2 and first["difficulty"] == "1-2"
    assert len(found["details"]) == len(found["errors"]) == 8
    assert {"question", "prediction", "ground_truth", "type"} <= found["errors"][0].keys()
    assert sum(found["error_types"].values()) == 8
    assert found["by_difficulty"] == {"1-2": {"accuracy": 0.0, "n": 8}}
    assert "details" not in evaluate(trainings)


def test_reward_type_is_what_the_average_is_of(trainings: Trainings) -> None:
    assert evaluate(trainings)["average_reward"] == 0.0
    assert evaluate(trainings, reward_type="noise")["average_reward"] > 0
    assert evaluate(trainings, reward_type="noise")["accuracy"] == 0.0, "accuracy is that of the answers"


def test_reward_config_has_the_settings_of_the_type(trainings: Trainings) -> None:
    said = evaluate(trainings, Path("tiny"), return_details=True, max_new_tokens=12)["details"]
    right = next({"question": one["question"], "answer": one["prediction"]} for one in said if one["prediction"])
    asked = {"dataset": None, "custom_dataset": [right], "max_new_tokens": 12, "reward_type": "length_penalty"}
    cheap = {"target_length": 0, "penalty_weight": 0.01}
    found = evaluate(trainings, Path("tiny"), **asked, reward_config=cheap, metrics=["average_length"])
    assert found["accuracy"] == 1 and found["average_reward"] == pytest.approx(1 - 0.01 * found["average_length"])
    assert evaluate(trainings, Path("tiny"), **asked)["average_reward"] == 1


def test_custom_reward_is_called_with_the_answers(trainings: Trainings) -> None:
    assert evaluate(trainings, custom_reward=noise)["average_reward"] > 0


def test_use_bf16_is_as_it_was_trained(trainings: Trainings) -> None:
    half = trainings.sft(use_bf16=True)
    assert config_of(half.out).model.dtype == "bfloat16" and config_of(trainings.sft().out).model.dtype == "float32"
    assert config_of("tiny", use_bf16=True).model.dtype == "bfloat16"
    assert "was trained otherwise" in trainings.refused(
        action="evaluate", model_path=str(half.out), use_bf16=False, **SHORT
    )


def test_device_is_in_the_result(trainings: Trainings) -> None:
    assert evaluate(trainings, max_samples=1, device="cpu")["device"] == "cpu"


def test_seed_is_of_the_k_answers(trainings: Trainings) -> None:
    def said(seed: int) -> float:
        asked = {"metrics": ["accuracy_at_k"], "k": 4, "temperature": 3.0, "reward_type": "noise", "seed": seed}
        heard: list[str] = []

        def listen(completions: list[str], **columns: Any) -> list[float]:
            heard.extend(completions)
            return [0.0] * len(completions)

        evaluate(trainings, max_samples=1, **{**asked, "reward_type": None, "custom_reward": listen})
        return hash(tuple(heard))

    assert said(1) == said(1) != said(2)


def test_allow_download_is_the_models_and_the_data_sets() -> None:
    assert config_of("tiny", allow_download=True).model.allow_download
    assert not config_of("tiny").model.allow_download


@pytest.mark.parametrize("row", ANSWERS[:1])
def test_an_answer_is_looked_for_in_the_completion(row: dict[str, str]) -> None:
    from gruppo.rewards.menu import GRADINGS

    correct = GRADINGS["completion"]
    for said in ("0", "Final Answer: 0", "so 3 - 3 = 0", "Step 1: 5-5=0\n#### 0", "0.0"):
        assert correct(said, row["answer"]), said
    assert not correct("0 or 1", row["answer"]) and not correct("no idea", row["answer"])
