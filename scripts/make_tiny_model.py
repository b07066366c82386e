"""Make the embedded model `base = "tiny"`: tokenizer and weights from the invented worlds' text alone.

    python scripts/make_tiny_model.py [--out gruppo/models/tiny] [--steps 2000] [--seed 0]

A Qwen3-architecture causal LM with a byte-level BPE tokenizer (digits one by one) and a ChatML template. Matrices are
trained with Muon, the rest with AdamW; the reply counts fully, the prompt a twentieth. The same seed gives the same
bytes on the same machine. It is accepted only if it copies unseen names and numbers in at least 97 of 100 replies.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from pathlib import Path

import torch
from tiny_documents import Document, documents, practice_worlds
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gruppo.data.world import build_world

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY, BATCH, POOL = 640, 32, 24
LEARNING_RATES = {"muon": 0.02, "adamw": 4e-3}
PROMPT_WEIGHT = 0.05
ACCEPT = 0.97


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over `texts`, digits split one by one, ChatML control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[PAD, START, END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    fast.chat_template = TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """The untrained network."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config).float()


def encode(tokenizer: PreTrainedTokenizerFast, document: Document) -> tuple[list[int], int]:
    """(ids, number of prompt ids)."""
    prompt = tokenizer(document.prompt, add_special_tokens=False)["input_ids"] if document.prompt else []
    reply = tokenizer(document.reply, add_special_tokens=False)["input_ids"]
    return [*prompt, *reply, tokenizer.eos_token_id], len(prompt)


def batches(tokenizer, stream, rng):  # noqa: ANN001, ANN201
    """Endless batches of BATCH documents of similar length: (ids_BT, weights_BT)."""
    while True:
        pool = sorted((encode(tokenizer, next(stream)) for _ in range(BATCH * POOL)), key=lambda pair: len(pair[0]))
        chunks = [pool[i : i + BATCH] for i in range(0, len(pool), BATCH)]
        rng.shuffle(chunks)
        for chunk in chunks:
            width = max(len(ids) for ids, _ in chunk)
            ids_BT = torch.full((BATCH, width), tokenizer.pad_token_id)
            weights_BT = torch.zeros(BATCH, width)
            for row, (ids, cut) in enumerate(chunk):
                ids_BT[row, : len(ids)] = torch.tensor(ids)
                weights_BT[row, : len(ids)] = 1.0
                weights_BT[row, :cut] = PROMPT_WEIGHT
            yield ids_BT, weights_BT


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by Newton-Schulz, in float32: torch's own casts to bfloat16, seven times slower here."""

    def __init__(self, matrices: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update of every matrix."""
        group = self.param_groups[0]
        for matrix in group["params"]:
            velocity = self.state[matrix].setdefault("velocity", torch.zeros_like(matrix))
            velocity.lerp_(matrix.grad, 1 - group["momentum"])
            update = matrix.grad.lerp(velocity, group["momentum"])
            tall = update.shape[0] > update.shape[1]
            x = update.T if tall else update
            x = x / (x.norm() + 1e-7)
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
            scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            matrix.add_(x.T if tall else x, alpha=-group["lr"] * scale)


def train(model, stream_of_batches, steps: int) -> None:  # noqa: ANN001
    """Muon on the layers' matrices, AdamW on embeddings and norms; warm-up, then linear decay over the last 60 %."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if not (p.ndim == 2 and "embed" not in name)]
    optimizers = [
        Muon(matrices, lr=LEARNING_RATES["muon"]),
        torch.optim.AdamW(rest, lr=LEARNING_RATES["adamw"], betas=(0.9, 0.95), weight_decay=0.0),
    ]
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    started = time.monotonic()
    for step, (ids_BT, weights_BT) in enumerate(itertools.islice(stream_of_batches, steps)):
        scale = min(1.0, (step + 1) / 100, (steps - step) / (0.6 * steps))
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * scale
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none")
        weights = weights_BT[:, 1:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.3f} {time.monotonic() - started:.0f} s", flush=True)


@torch.no_grad()
def copy_rates(model, tokenizer, count: int = 150) -> dict[str, float]:  # noqa: ANN001
    """Share of replies whose copied part is right in every token, by kind, on the packaged world's unseen names."""
    stream = documents(99, [build_world(0)])
    hits: dict[str, list[bool]] = {"planner": [], "executor": [], "writer": [], "copy": []}
    while any(len(found) < count for found in hits.values()):
        document = next(stream)
        if not document.copied or len(hits.get(document.kind, [None] * count)) >= count:
            continue
        ids, cut = encode(tokenizer, document)
        first = cut + len(tokenizer(document.reply[: document.reply.rindex(document.copied)])["input_ids"])
        predicted = model(input_ids=torch.tensor([ids])).logits[0, :-1].argmax(-1)
        start = first if document.kind != "executor" else first + 1  # its first token chooses between forms
        hits[document.kind].append(bool((predicted[start - 1 : -1] == torch.tensor(ids[start:-1])).all()))
    return {kind: sum(found) / len(found) for kind, found in hits.items()}


def main() -> None:
    """Make, check and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "gruppo" / "models" / "tiny")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    worlds = practice_worlds(150)
    stream = documents(args.seed, worlds)
    sample = [d.prompt + d.reply for d in itertools.islice(documents(args.seed + 1, worlds), 6000)]
    tokenizer = make_tokenizer(sample)
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    train(model, batches(tokenizer, stream, random.Random(args.seed)), args.steps)
    model.eval()
    rates = copy_rates(model, tokenizer)
    print(json.dumps(rates))
    if min(rates.values()) < ACCEPT:
        raise SystemExit(f"not accepted, nothing written: copies {rates}, wanted {ACCEPT} in each")
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
