"""The training tool's one call: JSON with numbers, faults as results that say what to mend, defaults, names."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tool_runs import GRPO, SUMS, Trainings, trainings

from gruppo.errors import ConfigError, UserError
from gruppo.log import Log
from gruppo.tool import Result, RLTrainingTool
from gruppo.tool.parameters import ACTIONS
from gruppo.tool.translation import speak, toml

__all__ = ["trainings"]


@pytest.fixture
def heard() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def tool(heard: io.StringIO) -> RLTrainingTool:
    return RLTrainingTool(Log(Console(file=heard, width=1000)), model_name="tiny")


# ---- results ---------------------------------------------------------------------------------------------------------


def test_a_result_is_json_and_can_be_read_at_once(trainings: Trainings) -> None:
    sft = trainings.sft()
    text = trainings.tool.run(
        {"action": "evaluate", "model_path": str(sft.out), "dataset": "sums", "max_new_tokens": 2}
    )
    found = json.loads(text)
    assert text["accuracy"] == found["accuracy"] == 0.0 and f"{text['average_reward']:.4f}" == "0.0000"
    assert text[0] == "{" and isinstance(text, str)
    with pytest.raises(KeyError):
        text["acuracy"]


def test_what_training_gives_back(trainings: Trainings) -> None:
    sft, grpo = trainings.sft().result, trainings.grpo().result
    shared = {"status", "algorithm", "model", "model_path", "output_dir", "dataset", "dataset_size", "num_epochs"}
    shared |= {"num_steps", "final_loss", "evaluations", "device", "seconds", "hints"}
    assert set(sft) == shared and set(grpo) == shared | {"average_reward", "final_reward"}
    assert (sft["algorithm"], grpo["algorithm"], sft["device"]) == ("sft", "grpo", "cpu")


def test_a_fault_is_a_result_and_is_said(tool: RLTrainingTool, heard: io.StringIO) -> None:
    found = tool.run({"action": "train", "lerning_rate": 1e-5})
    line = "unknown parameter lerning_rate = 1e-05: did you mean learning_rate?"
    assert json.loads(found) == {"status": "error", "error": "ConfigError", "message": line}
    assert heard.getvalue() == f"error: {line}\n"
    with pytest.raises(UserError, match="unknown parameter lerning_rate"):
        found["output_dir"]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("train", "parameters: expected a dictionary, not str"),
        ({}, "action = None: expected one of create_reward, evaluate, load_dataset, train"),
        ({"action": "trian"}, "action = 'trian': expected one of"),
        ({"action": "train", "algorithm": "ppo"}, "algorithm = 'ppo': expected sft or grpo"),
        ({"action": "train", "num_generations": 4}, "num_generations = 4: train sft does not take it; train grpo does"),
        ({"action": "evaluate", "learning_rate": 1}, "learning_rate = 1: evaluate does not take it; train sft and"),
        ({"action": "train", "batch_size": "4"}, 'batch_size = "4": expected a valid integer'),
        ({"action": "train", "num_epochs": 0}, "num_epochs = 0: expected greater than or equal to 1"),
        ({"action": "train", "learning_rate": float("nan")}, 'learning_rate = "NaN": expected a valid number'),
        ({"action": "train", "use_lora": "yes"}, 'use_lora = "yes": expected a valid boolean'),
        ({"action": "train", "seed": object()}, "seed: expected a plain value, not object"),
        ({"action": "train", "custom_reward": len}, "custom_reward"),
        ({"action": "load_dataset", "custom_dataset": []}, "custom_dataset: no rows"),
    ],
)
def test_faults_are_one_line_about_the_parameter(tool: RLTrainingTool, parameters: Any, said: str) -> None:
    found = json.loads(tool.run(parameters))
    assert found["status"] == "error" and found["message"].startswith(said), found
    assert "\n" not in found["message"] and "command line" not in found["message"]


def test_a_bug_is_raised(tool: RLTrainingTool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gruppo.tool.training_tool.components_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tool.run({"action": "create_reward"})


def test_a_users_function_that_fails_is_the_users_fault(trainings: Trainings) -> None:
    def broken(completions: list[str], **columns: Any) -> list[float]:
        raise KeyError("no price list")

    asked = {"action": "train", "algorithm": "grpo", **GRPO, "output_dir": str(trainings.folder / "broken")}
    assert "KeyError: 'no price list'" in trainings.refused(**asked, custom_reward=broken)


# ---- defaults --------------------------------------------------------------------------------------------------------


def test_keywords_are_defaults_where_an_action_has_them(heard: io.StringIO) -> None:
    quiet = Log(Console(file=heard))
    tool = RLTrainingTool(quiet, model_name="tiny", dataset="sums", format="rl", max_samples=2)
    tool.register_dataset("sums", SUMS)
    found = json.loads(tool.run({"action": "load_dataset"}))
    assert (found["format"], found["dataset"], found["dataset_size"]) == ("rl", "sums", 2)
    assert json.loads(tool.run({"action": "load_dataset", "format": "sft"}))["format"] == "sft"
    assert json.loads(tool.run({"action": "create_reward"}))["status"] == "success"
    with pytest.raises(ConfigError, match="unknown parameter lora_rnk = 8: did you mean lora_rank?"):
        RLTrainingTool(lora_rnk=8)


def test_none_is_as_if_left_out(tool: RLTrainingTool) -> None:
    tool.register_dataset("sums", SUMS)
    given = {"action": "load_dataset", "dataset": "sums", "format": None, "split": None}
    assert json.loads(tool.run(given))["format"] == "sft"


# ---- words -----------------------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(PLAIN)
def test_values_come_through_as_they_are(value: Any) -> None:
    import tomllib

    assert tomllib.loads(f"value = {toml('value', value)}") == {"value": value}


def test_paths_are_text(tmp_path: Path) -> None:
    assert json.loads(toml("output_dir", tmp_path)) == str(tmp_path)


def test_messages_speak_of_parameters() -> None:
    said = "policies.agent.rank = 0 and train.attempts; sft.learning_rate, policies.agent.ranking"
    assert speak(said, ACTIONS["train grpo"]) == (
        "lora_rank = 0 and num_generations; sft.learning_rate, policies.agent.ranking"
    )
    assert speak("sft.learning_rate = 1: no", ACTIONS["train sft"]) == "learning_rate = 1: no"


def test_a_result_without_its_key_is_a_key_error() -> None:
    assert Result('{"status": "success", "a": 1}')["a"] == 1
    with pytest.raises(KeyError):
        Result('{"status": "success"}')["a"]
