"""The training tool's data: action "load_dataset", rows of every kind as tasks, and `format_math_dataset`.

A test that is named after a parameter is its proof: docs/hello_agents.md points at it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tool_runs import SUMS, Trainings, trainings

from gruppo.data.selection import Place
from gruppo.errors import ConfigError, DataError
from gruppo.tool import GSM8KDataset, create_rl_dataset, create_sft_dataset, format_math_dataset
from gruppo.tool.datasets import Wanted, as_lines, choose, reference_of, tasks_from
from gruppo.tool.translation import read

__all__ = ["trainings"]

PROMPT = "<|im_start|>user\nWhat is 2 plus 2?<|im_end|>\n<|im_start|>assistant\n"
COMPLETION = "Step 1: We add 2 and 2.\nStep 2: 2+2=4\n\nFinal Answer: 4<|im_end|>"
SFT_ROW = {"prompt": PROMPT, "completion": COMPLETION, "text": PROMPT + COMPLETION}
RL_ROW = {
    "prompt": PROMPT, "ground_truth": "4", "question": SUMS[0]["question"], "full_answer": SUMS[0]["answer"],
}  # fmt: skip


def load(trainings: Trainings, **given: Any) -> dict[str, Any]:
    found = json.loads(trainings.tool.run({"action": "load_dataset", "model_name": "tiny", "dataset": "sums", **given}))
    assert found["status"] == "success", found
    return found


# ---- action load_dataset ---------------------------------------------------------------------------------------------


def test_format_is_that_of_sft_or_rl(trainings: Trainings) -> None:
    assert load(trainings, format="sft")["sample"] == SFT_ROW
    found = load(trainings, format="rl")
    assert found["sample"] == RL_ROW and found["sample_keys"] == list(RL_ROW) and found["format"] == "rl"
    said = trainings.refused(action="load_dataset", format="sfd")
    assert said.startswith("format = \"sfd\": expected 'sft' or 'rl'")


def test_dataset_is_a_name_or_a_reference(trainings: Trainings, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("question,result\nOne?,1\nTwo?,2\n")
    assert load(trainings, dataset=str(tmp_path / "mine.csv"))["dataset_size"] == 2
    assert load(trainings)["dataset"] == "sums"
    assert "did you mean gsm8k?" in trainings.refused(action="load_dataset", dataset="gms8k")


def test_custom_dataset_takes_rows(trainings: Trainings) -> None:
    assert load(trainings, dataset=None, custom_dataset=SUMS[:2])["dataset_size"] == 2


def test_split_is_a_part_of_a_set(trainings: Trainings, tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    for split, rows in (("train", SUMS), ("test", SUMS[:3])):
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = {"dataset": "gsm8k", "data_folder": str(tmp_path)}
    sizes = {"": 8, "train": 8, "test": 3, "train[:5]": 5, "train[-2:]": 2, "[2:4]": 2}
    assert {split: load(trainings, **known, split=split)["dataset_size"] for split in sizes} == sizes
    assert "no split 'dev'" in trainings.refused(action="load_dataset", **known, split="dev")
    said = trainings.refused(action="load_dataset", data_folder=str(tmp_path), dataset="gsm8k:test", split="train")
    assert said.endswith("says which part is meant already; leave one out")


def test_max_samples_is_the_most_and_none_all(trainings: Trainings) -> None:
    many = [{"question": f"{n}?", "answer": str(n)} for n in range(110)]
    given = {"dataset": None, "custom_dataset": many}
    sizes = [
        load(trainings, **given, **more)["dataset_size"] for more in ({}, {"max_samples": 7}, {"max_samples": None})
    ]
    assert sizes == [100, 7, 110]


def test_model_name_is_whose_template_the_prompts_have(trainings: Trainings) -> None:
    said = trainings.refused(action="load_dataset", dataset="sums", model_name="./no/model")
    assert said.startswith("model_name = './no/model': no such folder")
    assert load(trainings, model_name=str(trainings.sft().out))["sample"] == SFT_ROW, "that of the run's base"


def test_data_folder_is_where_known_sets_are(trainings: Trainings, tmp_path: Path) -> None:
    said = trainings.refused(action="load_dataset", data_folder=str(tmp_path))
    assert said.startswith(f"gsm8k: no {tmp_path}/gsm8k/main/train-*.parquet; put the file")


def test_allow_download_is_named_where_it_would_help(trainings: Trainings) -> None:
    assert trainings.refused(action="load_dataset").endswith("or let it be fetched with allow_download")
    asked = read("load_dataset", {"allow_download": True})
    assert trainings.tool._wanted(asked, None).place.download and not Place().download  # test_data_hub.py


def test_seed_is_of_what_a_generator_draws(trainings: Trainings) -> None:
    assert trainings.tool._wanted(read("load_dataset", {"seed": 7}), None).place.seed == 7  # test_data_gym.py
    assert reference_of(Wanted("gym:chain_sum", "test", 5, Place())) == ("gym:chain_sum", "test")
    said = trainings.refused(action="load_dataset", dataset="gym:chain_sum", max_samples=None)
    assert "say how many tasks are taken" in said
    assert "a generator's splits are" in trainings.refused(action="load_dataset", dataset="gym:x", split="train[:5]")


# ---- rows of every kind ----------------------------------------------------------------------------------------------


def test_rows_of_every_kind_are_one_task() -> None:
    raw, rl = tasks_from([SUMS[0]], "x")[0], tasks_from([RL_ROW], "x")[0]
    assert (raw.question, raw.result, raw.chain) == (rl.question, rl.result, rl.chain)
    assert raw.chain == "Step 1: We add 2 and 2.\nStep 2: 2+2=<<2+2=4>>4" and raw.source == "x"
    (sft,) = tasks_from([SFT_ROW], "x")
    assert sft.extra_info["prompt"] == PROMPT and sft.extra_info["completion"] == COMPLETION
    (plain,) = tasks_from([{"question": "3 * 4?", "answer": 12, "topic": "times"}], "x")
    assert (plain.result, plain.chain, plain.extra_info["topic"]) == ("12", "", "times")
    (own,) = tasks_from([{"id": "a", "question": "q", "result": "r", "chain": "Step 1: it is r", "source": "s"}], "x")
    assert (own.id, own.chain, own.source) == ("a", "Step 1: it is r", "s")
    (prompted,) = tasks_from([{"prompt": "2 + 2?", "ground_truth": 4}], "x")
    assert (prompted.question, prompted.result) == ("2 + 2?", "4")
    (latex,) = tasks_from([{"question": "q", "answer": "We have\n\\[ x = 1 \\]\n#### 1"}], "x")
    assert latex.chain == "We have\n\\[ x = 1 \\]", "formulas over several lines are left as they are"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "x: no rows"),
        ([SUMS[0], {"question": "q"}], "x: row 2: columns are question; expected question and answer"),
        ([{"question": "q", "answer": "#### "}], "x: row 1: no '####' with an answer after it"),
        ([{"question": "", "answer": "1"}], "x: row 1: column 'question' is empty"),
        ([{"question": "q", "ground_truth": None}], "x: row 1: column 'ground_truth' is empty"),
        ([{"prompt": PROMPT, "ground_truth": "4"}], "x: row 1: its prompt is in a chat template already"),
        (["text"], "x: row 1: expected columns and values, not str"),
    ],
)
def test_broken_rows_are_named(rows: list[Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        tasks_from(rows, "x")
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    tasks = choose(Wanted("sums", "", None, Place()), {"sums": SUMS})
    (tmp_path / "tasks.jsonl").write_text(as_lines(tasks))
    again = choose(Wanted(str(tmp_path / "tasks.jsonl"), "", None, Place()), {})
    assert again.fingerprint == tasks.fingerprint


def test_registered_names_can_not_hide_known_sets(trainings: Trainings) -> None:
    for name in ("gsm8k", "", "a:b"):
        with pytest.raises(ConfigError, match="can't be a name"):
            trainings.tool.register_dataset(name, SUMS)
    with pytest.raises(DataError, match="row 1"):
        trainings.tool.register_dataset("mine", [{"q": 1}])


# ---- format_math_dataset ---------------------------------------------------------------------------------------------


def test_format_math_dataset_keeps_the_kind_of_its_rows() -> None:
    assert format_math_dataset(SUMS[:1], format_type="sft", model_name="tiny") == [SFT_ROW]
    assert format_math_dataset(SUMS[:1], format_type="rl", model_name="tiny") == [RL_ROW]
    with pytest.raises(DataError, match="format_type = 'dpo': no such format"):
        format_math_dataset(SUMS, "dpo", "tiny")
    datasets = pytest.importorskip("datasets")
    found = format_math_dataset(datasets.Dataset.from_list(SUMS), "rl", "tiny")
    assert isinstance(found, datasets.Dataset) and found[0] == RL_ROW and len(found) == 8


def test_rows_that_were_formatted_can_be_trained_on(trainings: Trainings) -> None:
    direct, rows = trainings.sft(), format_math_dataset(SUMS, "sft", "tiny")
    assert trainings.sft(dataset=None, custom_dataset=rows).learns_as(direct), "the same ids"
    rl = format_math_dataset(SUMS, "rl", "tiny")
    assert trainings.sft(dataset=None, custom_dataset=rl).learns_as(direct)


def test_gsm8k_as_rows(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SUMS))
    place = {"data_folder": str(tmp_path), "model_name": "tiny"}
    assert list(create_sft_dataset(2, **place)) == [SFT_ROW, GSM8KDataset(max_samples=2, **place)[1]]
    assert create_rl_dataset(1, **place)[0] == RL_ROW and len(create_rl_dataset(None, **place)) == 8
