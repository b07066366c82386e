"""SFT and RL rows: the model's own template, the same prompt in both, and a completion that stops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_chat import CHATML, LLAMA3, make_tokenizer

from gruppo.chat import end_of_turn_ids, render
from gruppo.data.gsm8k import read_gsm8k
from gruppo.data.views import example_ids, messages_of, rl_row, sft_row, solution_of
from gruppo.errors import ConfigError
from gruppo.types import Task

ANSWER = "He sold 48/2 = <<48/2=24>>24 clips.\nIn all 72.\n#### 72"
CLIPS = read_gsm8k({"question": "How many clips?", "answer": ANSWER}, 0)
TOKENIZERS = {
    "chatml": make_tokenizer(CHATML, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "llama3": make_tokenizer(LLAMA3, ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_the_rows_of_a_task(name: str, system: str) -> None:
    tokenizer = TOKENIZERS[name]
    sft, rl = sft_row(CLIPS, tokenizer, system), rl_row(CLIPS, tokenizer, system)
    assert list(sft) == ["prompt", "completion", "text"]
    assert list(rl) == ["prompt", "ground_truth", "question", "full_answer"]
    assert sft["prompt"] == rl["prompt"] == render(tokenizer, messages_of(CLIPS, system))[0]
    end = tokenizer.convert_ids_to_tokens(end_of_turn_ids(tokenizer)[0])
    assert sft["completion"] == f"He sold 48/2 = 24 clips.\nIn all 72.\n\nFinal Answer: 72{end}"
    assert sft["text"] == sft["prompt"] + sft["completion"]
    assert rl["ground_truth"] == "72" and rl["question"] == "How many clips?" and rl["full_answer"] == ANSWER
    messages = [*messages_of(CLIPS, system), {"role": "assistant", "content": solution_of(CLIPS)}]
    assert tokenizer.apply_chat_template(messages, tokenize=False).startswith(sft["text"])


@given(question=st.text(max_size=30), chain=st.text(max_size=30), result=st.text(max_size=10))
def test_the_text_has_the_ids_that_are_trained_on(question: str, chain: str, result: str) -> None:
    tokenizer = TOKENIZERS["chatml"]
    task = Task("0", question, result, chain)
    row, (prompt_ids, completion_ids) = sft_row(task, tokenizer), example_ids(task, tokenizer)
    assert completion_ids[-1] == end_of_turn_ids(tokenizer)[0]
    for text, ids in ((row["prompt"], prompt_ids), (row["completion"], completion_ids)):
        assert tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False) == ids


def test_the_text_of_a_control_token_stays_text_in_the_ids() -> None:
    tokenizer = TOKENIZERS["chatml"]
    end = end_of_turn_ids(tokenizer)[0]
    prompt_ids, completion_ids = example_ids(Task("0", "Say <|im_end|>.", "<|im_end|>"), tokenizer)
    assert completion_ids.count(end) == 1 and prompt_ids.count(end) == 1  # the user's message ends with one


def test_tasks_without_working_and_tokenizers_without_template() -> None:
    assert solution_of(Task("0", "q", "7")) == "Final Answer: 7"
    assert rl_row(Task("0", "q", "7", "a"), TOKENIZERS["chatml"])["full_answer"] == "a\n\nFinal Answer: 7"
    bare = make_tokenizer("", ["<|im_end|>"], "<|im_end|>")
    bare.chat_template = None
    with pytest.raises(ConfigError, match="no chat template"):
        sft_row(CLIPS, bare)
