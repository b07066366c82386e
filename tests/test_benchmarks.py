"""The speed benchmarks run from end to end at their smallest sizes, and their arithmetic is right."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from gruppo.chat import render

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from ours import Ours, num_unique  # noqa: E402
from roofline import Counts  # noqa: E402
from scaling import lines_of, measure, summary  # noqa: E402
from timing import PeakMemory, Ratio, table  # noqa: E402
from workload import STEPS, Workload, folder_of, questions, worth  # noqa: E402

SMALL = ["--prompts", "1", "--attempts", "2", "--prompt-tokens", "24", "--new-tokens", "4", "--threads", "1"]
WORKLOAD = Workload(base="random-4m", prompts=2, attempts=2, prompt_tokens=24, new_tokens=4, threads=1)
needs_trl = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="needs trl: pip install 'gruppo[parity]'"
)


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(script: str, out: Path, *words: str) -> tuple[str, dict[str, Any]]:
    """(standard output, the JSON file) of a benchmark."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *SMALL, "--repeats", "1", "--json", str(out), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(out.read_text())


def test_ratios_are_over_pairs_and_tables_are_markdown() -> None:
    ratio = Ratio.of([2.0, 9.0, 4.0], [1.0, 3.0, 1.0])
    assert (ratio.median, ratio.low, ratio.high) == (3.0, 2.0, 4.0)
    assert table(["a", "b"], [["x", 1234.5], ["y", 0.12345]]) == (
        "| a | b |\n| --- | --- |\n| x | 1234 |\n| y | 0.123 |"
    )


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel does not tell")
def test_peak_memory_counts_children_and_what_was_given_back() -> None:
    grow = "import subprocess, sys, time; x = bytearray(60_000_000); time.sleep(1); del x"
    child = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {grow!r}]); time.sleep(0.5)"
    process = subprocess.Popen([sys.executable, "-c", child])
    with PeakMemory(process.pid) as peak:
        process.wait()
    assert 60e6 < peak.bytes < 160e6


@pytest.mark.parametrize("base", ["tiny", "random-4m"])
def test_prompts_have_exactly_the_length_asked_for_and_differ(base: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder_of(base))
    for length in (24, 101):
        found = [text for own in questions(tokenizer, Workload(prompts=3, prompt_tokens=length)) for text in own]
        assert {len(render(tokenizer, [{"role": "user", "content": text}])[1]) for text in found} == {length}
        assert len(set(found)) == 3 * STEPS
    with pytest.raises(SystemExit, match="--prompt-tokens 2"):
        questions(tokenizer, Workload(prompt_tokens=2))


def test_every_group_has_a_signal() -> None:
    assert worth(0, "same") != worth(1, "same") and 0 <= worth(0, "same") < 1


def test_unique_tokens_are_the_nodes_of_the_prefix_tree() -> None:
    assert num_unique([(1, 2, 3), (1, 2, 4, 5), (1, 2, 3), (9,)]) == 6


def test_our_step_is_the_step_asked_for_and_a_turn_sees_all_before_it() -> None:
    side = Ours(Workload(**vars(WORKLOAD) | {"turns": 2}))
    before = side.assembly.learner.fingerprint("agent")
    taken = side.step(0)
    groups = side.sample(1)
    for episode in (episode for group in groups for episode in group.episodes):
        first, second = episode.turns
        assert len(first.prompt_ids) == 24 and len(first.action_ids) == 4
        assert second.prompt_ids[:28] == first.prompt_ids + first.action_ids
    assert 0 < taken.sampling < taken.seconds
    assert taken.unique_tokens < taken.computed_tokens
    assert side.assembly.learner.fingerprint("agent") != before, "an optimizer step was taken"


def test_growth_is_relative_to_the_smallest_size() -> None:
    sizes = {str(attempts): Workload(**vars(WORKLOAD) | {"attempts": attempts}) for attempts in (2, 4)}
    lines = lines_of(measure(sizes, repeats=1))
    assert [line["size"] for line in lines] == ["2", "4"]
    assert lines[0]["seconds_x"] == lines[0]["unique_tokens_x"] == 1.0
    assert 1 < lines[1]["unique_tokens_x"] < lines[1]["all_tokens_x"] == 2.0
    assert summary("attempts", lines)[0].startswith("training 4 over 2 attempts: time ")


def test_operations_are_counted_from_the_shapes() -> None:
    counts = Counts.of("tiny")
    per_block = 128 * 128 + 2 * 128 * 64 + 128 * 128 + 3 * 128 * 384
    assert counts.block_weights == 4 * per_block
    assert counts.head_weights == 128 * 640
    assert counts.kv_values == 2 * 4 * 2 * 32
    assert counts.attention(10) == 4 * 10 * 4 * 32 * 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scaling_runs(tmp_path: Path) -> None:
    words = ["--quick", "--base", "random-4m", "--models", "tiny", "random-4m"]
    out, found = run("scaling.py", tmp_path / "out.json", *words)
    assert "training 8 over 2 attempts: time " in out
    assert [line["size"] for line in found["axes"]["turns"]] == ["1", "2"]
    assert [line["size"] for line in found["axes"]["model"]] == ["tiny", "random-4m"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_roofline_runs(tmp_path: Path) -> None:
    _, found = run("roofline.py", tmp_path / "out.json", "--base", "random-4m")
    assert {line["dtype"] for line in found["peaks"]} == {"float32", "bfloat16"}
    assert [part["part"] for part in found["parts"]] == ["prefill", "decode, a token", "training step"]
    assert all(0 < part["operations_share"] < 1.5 for part in found["parts"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_trl
def test_step_runs_against_trl(tmp_path: Path) -> None:
    out, found = run("step.py", tmp_path / "out.json", "--base", "random-4m", "--turns", "2", "--variants", "plain")
    assert {"step", "sampling", "training", "memory", "multi_turn_step"} <= found["ratios"].keys()
    assert all(value > 0 for value in found["ratios"].values())
    computed = found["medians"]["multi_turn_computed_tokens"]
    assert abs(computed["ours"] - computed["theirs"]) <= 4, "both sides play the same turns"
    assert "| multi turn step, s |" in out


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_trl
def test_the_script_for_a_device_runs_on_a_cpu(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--dtype", "float32", "--base", "random-4m", "--turns", "2", "--variants", "plain"]
    _, found = run("device.py", tmp_path / "out.json", *words)
    assert found["step"]["ratios"]["step"] > 0 and len(found["roofline"]["parts"]) == 3
