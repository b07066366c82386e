"""The estimate: its counts by hand, and its memory against what a process really takes."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Command, refused
from one_layer import one_layer

from gruppo.config import load
from gruppo.engines.local import LocalEngine
from gruppo.estimate import MAX_BATCH_TOKENS, estimate, measure, shape_of, token_bytes, turns_of
from gruppo.run import RunConfig

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "gruppo/quickstart.toml"
TINY = 869_760  # parameters of the embedded model
RANK_16 = 16 * 4 * ((128 + 128) * 2 + (128 + 64) * 2 + (128 + 384) * 3)  # 4 layers: q and o, k and v, the MLP's three
FACTOR = 1.5  # between the estimated and the real memory of an update, either way
UPDATE = """
import json, random, sys
from pathlib import Path
from gruppo.algorithms import AlgorithmConfig
from gruppo.algorithms.batching import Row
from gruppo.training.learner import Learner
from gruppo.training.model import ModelConfig, PolicyConfig
from gruppo.training.update import Coefficients, Step, update

full, again, tokens = sys.argv[1] == "full", sys.argv[2] == "again", int(sys.argv[3])
learner = Learner(ModelConfig(threads=1, gradient_checkpointing=again), {"one": PolicyConfig(full=full)}, 0)
learner.start_optimizers({"one": 1e-5})
draw = random.Random(0)

def step(count):
    rows = [Row(tuple(draw.choices(range(5, 640), k=192)), tuple(draw.choices(range(5, 640), k=64)), (), 1.0, 1.0,
                episode=(number // 8, number)) for number in range(count)]
    update(learner, "one", [rows], Step(AlgorithmConfig(), Coefficients(0, 0), 1.0, 1.0, tokens))
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

before = step(2)
Path("/proc/self/clear_refs").write_text("5")  # the peak of this process alone, not of the one it was forked from
print(json.dumps(step(tokens // 256) - before))
"""


def config_of(**overrides: str) -> RunConfig:
    return load(RunConfig, [QUICKSTART], {key.replace("__", "."): value for key, value in overrides.items()})


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("full", [False, True], ids=["adapter", "full"])
def test_the_memory_of_an_update_is_what_a_process_takes(full: bool, again: bool) -> None:
    tokens = 3072
    how = ["full" if full else "adapter", "again" if again else "kept"]
    command = [sys.executable, "-c", UPDATE, *how, str(tokens)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=110)
    config = config_of(model__processes="1", model__gradient_checkpointing=str(again).lower())
    if full:
        only = {"planner": config.policies["planner"].model_copy(update={"full": True})}
        config = config.model_copy(update={"policies": only})
    expected = tokens * token_bytes(config, shape_of(config))
    assert expected / FACTOR < json.loads(done.stdout) < FACTOR * expected


def test_parameters_and_weights_are_counted_by_shape() -> None:
    found = estimate(config_of())
    assert found.base == TINY
    assert found.policies == dict.fromkeys(("planner", "executor", "verifier"), RANK_16)
    assert found.memory["base weights"] == 4 * TINY and found.memory["adapters"] == 3 * 4 * RANK_16
    assert found.memory["optimizers"] == 2 * found.memory["adapters"]
    assert found.memory["gradients"] == 2 * found.memory["adapters"]  # in each of the two processes
    assert "references" not in found.memory
    assert found.peak == sum(found.memory.values()) + max(found.working.values())
    assert json.loads(json.dumps(found.to_json()))["peak"] == found.peak


def test_episodes_steps_and_tokens_are_counted() -> None:
    found = estimate(config_of(train__steps="22"))
    assert (found.steps, found.episodes_per_step, found.episodes) == (22, 128, 22 * 128)
    assert found.evaluation_episodes == (2 + 1 + 2) * 300
    assert found.sampled_tokens_per_step == 128 * (3 * (16 + 14 + 3) + 12)
    assert found.sampled_tokens == 22 * found.sampled_tokens_per_step
    assert estimate(config_of(train__episodes="200")).steps == 2  # of 128 episodes each
    assert (
        estimate(config_of(train__steps="22", train__eval_every="5")).evaluation_episodes
        == found.evaluation_episodes + 4 * 100
    )
    twice = estimate(config_of(algorithm__filter_groups='"zero_std"', algorithm__max_rounds="2"))
    assert twice.episodes_per_step == 2 * 128


def test_what_is_asked_for_is_seen_in_the_memory() -> None:
    base = estimate(config_of())
    kl = estimate(config_of(algorithm__kl_coefficient="0.1"))
    assert kl.memory["references"] == base.memory["adapters"] and kl.disk["checkpoints"] > base.disk["checkpoints"]
    assert estimate(config_of(model__cache_mb="64")).memory["kept key-values"] == 2 * 64 * 2**20
    less = estimate(config_of(train__microbatch_tokens="1024", sft__microbatch_tokens="1024"))
    again = estimate(config_of(model__gradient_checkpointing="true"))
    learning = "learning: activations and logits"
    assert less.working[learning] < base.working[learning] and again.working[learning] < base.working[learning]
    bf16 = estimate(config_of(model__dtype='"bfloat16"'))
    assert bf16.memory["base weights"] == 2 * TINY and "merged weights" not in bf16.memory
    nf4 = estimate(config_of(model__quantization='"nf4"'))
    assert nf4.memory["base weights"] < base.memory["base weights"] / 3
    undo = estimate(config_of(alarms__actions='{kl_high = "skip"}'))
    assert undo.memory["copy to undo a step"] == 3 * base.memory["adapters"]


def test_a_known_model_needs_only_its_config(tmp_path: Path) -> None:
    shape = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
        "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 40960,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    found = estimate(config_of(model__base=f'"{tmp_path}"', model__processes="1", model__dtype='"bfloat16"'))
    assert found.base == 596_049_920  # what the hub says of Qwen3-0.6B
    assert found.memory["base weights"] == 2 * 596_049_920
    keys = 2 * 28 * 8 * 128 * 2 * MAX_BATCH_TOKENS
    assert keys < found.working["sampling: key-values and logits"] < 1.2 * keys


def test_models_of_folders_are_counted_where_a_role_plays_on_them() -> None:
    sizes = {"model__processes": "2", "model__threads": "1", "model__cache_mb": "0"}
    entry = {**sizes, "engines__trained__folder": one_layer()}
    alone = estimate(config_of(**sizes))
    assert estimate(config_of(**entry)).memory == alone.memory and not alone.engines, "nobody sits there"
    seated = entry | {"roles__writer__engine": "trained"}
    found = estimate(config_of(**seated))
    shape = shape_of(config_of(model__base=one_layer()))
    (own,) = found.engines.values()
    assert found.memory == {**alone.memory, "weights of engine trained": 4 * own} and own < found.base
    rows = 300 * 2  # test tasks, both modes
    tokens = min(MAX_BATCH_TOKENS, rows * shape.context)
    more = tokens * 2 * shape.keys * 4 + rows * 4 * 4 * shape.vocabulary  # of one layer, in one process
    sampling = "sampling: key-values and logits"
    assert found.working[sampling] == alone.working[sampling] + more
    half = estimate(config_of(**{**seated, "engines__trained__dtype": "bfloat16", "model__cache_mb": "64"}))
    assert half.memory["weights of engine trained"] == 2 * own
    assert half.memory["kept key-values of engine trained"] == 64 * 2**20
    quantized = estimate(config_of(**{**seated, "engines__trained__quantization": "int8"}))
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    assert quantized.memory["weights of engine trained"] == 4 * embeddings + own - embeddings
    elsewhere = "engine trained is on cuda; the sum has its memory too."
    assert elsewhere not in found.notes
    assert elsewhere in estimate(config_of(**{**seated, "engines__trained__device": "cuda"})).notes


def test_constants_are_those_of_the_engine() -> None:
    assert inspect.signature(LocalEngine).parameters["max_batch_tokens"].default == MAX_BATCH_TOKENS


def test_a_team_of_ones_own_is_counted_once_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load(RunConfig, [ROOT / "examples/my_run.toml"])
    assert turns_of(config) == {"writer": 1, "checker": 1}
    assert any("only the team knows" in note for note in estimate(config).notes)


def test_a_probe_measures_time_and_lengths() -> None:
    sizes = {"model__processes": "1", "model__threads": "1", "tasks__num_train": "10", "train__attempts": "2"}
    config = config_of(**sizes, train__tasks_per_step="4", train__steps="3")
    bound = estimate(config)
    found = measure(config, replace(bound, evaluation_episodes=0))
    assert found.tasks == 2 and found.seconds == pytest.approx(3 * found.seconds_per_step)
    assert 0 < found.sampled_tokens_per_step <= bound.sampled_tokens_per_step
    assert found.episode_bytes > 0 and found.peak > bound.memory["base weights"]


def test_the_command_prints_tables_or_json(gruppo: Command) -> None:
    ended = gruppo("estimate", "-c", str(QUICKSTART))
    assert ended.code == 0, ended
    episodes = f"{estimate(config_of()).episodes:,}"
    for part in (f"{TINY:,}", f"{RANK_16:,} trained", "base weights", episodes, "checkpoints", "Bounds:"):
        assert part in ended.out, part
    found = json.loads(gruppo("estimate", "-c", str(QUICKSTART), "--json").out)
    assert found["base"] == TINY and found["peak"] > 0
    words = ["--engines.trained.folder", "nowhere", "--roles.writer.engine", "trained"]
    refused(gruppo("estimate", "-c", str(QUICKSTART), *words), "no model there; gruppo search merge writes one")
