"""The workload that both sides of a speed comparison get: the base, prompts of an exact length, and the reward.

Speed does not depend on the weights, so a base may be random: `random-135m` has SmolLM2-135M's shape. Its tokenizer has
one word per id, so that what was sampled reads back as the same ids and every length comes out as asked.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from gruppo.chat import render
from gruppo.training.model import TINY
from gruppo.types import Episode, Task

CACHE = Path.home() / ".cache" / "gruppo" / "models"
STEPS = 8  # steps with prompts of their own; then they come again
RANK, ALPHA = 16, 32
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Of a random base."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


SHAPES = {
    "random-4m": Shape(192, 512, 8, 3, 1, 4096),
    "random-24m": Shape(384, 1024, 12, 6, 2, 12288),
    "random-135m": Shape(576, 1536, 30, 9, 3, 49152),
}


@dataclass(frozen=True)
class Workload:
    """One step: `prompts` x `attempts` completions of exactly `new_tokens` tokens, in each of `turns` turns."""

    base: str = "tiny"
    prompts: int = 4
    attempts: int = 8
    prompt_tokens: int = 256
    new_tokens: int = 64
    turns: int = 1
    threads: int = 2
    processes: int = 1  # of ours only: the other side has none that share its weights
    dtype: str = "float32"
    device: str = "cpu"

    @property
    def rows(self) -> int:
        """Completions, or conversations, of a step."""
        return self.prompts * self.attempts

    @property
    def context(self) -> int:
        """Tokens that the longest conversation can have, with room for what the tools and the template add."""
        return self.prompt_tokens + self.turns * (2 * self.new_tokens + 64)


def add_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """An option for every field of the workload."""
    for field in fields(Workload):
        default = defaults.get(field.name, field.default)
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(default), default=default, help=f"default: {default}")


def workload_of(options: argparse.Namespace) -> Workload:
    """What the options say."""
    return Workload(**{field.name: getattr(options, field.name) for field in fields(Workload)})


def folder_of(base: str) -> Path:
    """The base's folder; a random one is made once. SystemExit if there is no such base here."""
    if base == "tiny":
        return TINY
    if base in SHAPES:
        return _random_base(base)
    folder = Path(base) if Path(base).is_dir() else CACHE / base
    if not (folder / "config.json").exists():
        raise SystemExit(f"--base {base}: not there; `gruppo model pull {base}`, or one of tiny, {', '.join(SHAPES)}")
    return folder


def _random_base(name: str) -> Path:
    shape = SHAPES[name]
    folder = Path(tempfile.gettempdir()) / "gruppo-benchmarks" / f"{name}-1"
    if folder.exists():
        return folder
    folder.parent.mkdir(exist_ok=True)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as half_done:  # another process may be making it too
        LlamaForCausalLM(config).save_pretrained(half_done)
        _words(shape.vocabulary).save_pretrained(half_done)
        if not folder.exists():
            made = Path(half_done).rename(folder)
            made.chmod(0o755)
            os.mkdir(half_done)  # which its context manager removes
    return folder


def _words(size: int) -> PreTrainedTokenizerFast:
    special = ["<pad>", "<|im_start|>", "<|im_end|>"]
    words = [*special, "<unknown>", "system", "user", "assistant", "tool"]
    vocabulary = {word: number for number, word in enumerate([*words, *(f"w{n}" for n in range(len(words), size))])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<unknown>",
        chat_template=CHAT,
        clean_up_tokenization_spaces=False,
    )


def questions(tokenizer: PreTrainedTokenizerBase, workload: Workload) -> list[list[str]]:
    """For each of `STEPS` steps its user messages; rendered, each is exactly `prompt_tokens` tokens long.

    SystemExit if the template alone is longer.
    """
    draw = random.Random(f"prompts of {workload.prompt_tokens}")
    words = _single_words(tokenizer, draw)
    return [[_question(tokenizer, workload, draw, words) for _ in range(workload.prompts)] for _ in range(STEPS)]


def _single_words(tokenizer: PreTrainedTokenizerBase, draw: random.Random) -> list[str]:
    """Plain words that are, behind another one, a single token."""

    def length_of(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    special = set(tokenizer.all_special_ids)
    ids = [id_ for id_ in range(len(tokenizer)) if id_ not in special]
    found = []
    for id_ in draw.sample(ids, len(ids)):
        word = str(tokenizer.decode([id_])).strip()
        if word.isascii() and word.isalnum() and length_of(f"a {word} {word}") == length_of("a") + 2:
            found.append(word)
        if len(found) == 500:
            break
    return found


def _question(tokenizer: PreTrainedTokenizerBase, workload: Workload, draw: random.Random, words: list[str]) -> str:
    def length(chosen: Sequence[str]) -> int:
        return len(render(tokenizer, [{"role": "user", "content": " ".join(chosen)}])[1])

    chosen = [draw.choice(words)]
    for _ in range(100):  # a word may join with what stands before it: look, and correct
        missing = workload.prompt_tokens - length(chosen)
        if not missing:
            return " ".join(chosen)
        if missing > 0:
            chosen += [draw.choice(words) for _ in range(missing)]
        elif len(chosen) <= -missing:
            break
        else:
            del chosen[missing:]
    raise SystemExit(f"--prompt-tokens {workload.prompt_tokens}: no message of exactly this length; try another")


def worth(place: int, text: str) -> float:
    """The reward of a completion at a place among others: a hash from 0 to 1, so that no group is without a signal."""
    return int.from_bytes(hashlib.blake2b(f"{place} {text}".encode(), digest_size=4).digest(), "big") / 2**32


def hashed(task: Task, episodes: Sequence[Episode]) -> list[float]:
    """`worth` as a reward function of gruppo."""
    said = ["\n".join(turn.text for turn in episode.turns) for episode in episodes]
    return [worth(place, text) for place, text in enumerate(said)]
