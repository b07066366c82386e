"""How much of what the machine can do is reached: `roofline.py --base smollm2-135m --json FILE`.

First the machine: matrix products of the base's own shapes (float32 and bfloat16), copying, and matrix times vector,
with one thread and with all. Then gruppo's own parts on the base: reading prompts, decoding, and the training step.
Their operations are counted from shapes and their bytes from weights and key-values, on the tokens that are really
computed: a share of 1 would be the fastest product, or the fastest copy, and nothing else. (A cache that holds the
weights, as that of a large CPU may, can be read faster than memory is copied.)

Decoding is bound by whichever of the two takes longer, so both shares are given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
from ours import POLICY, Ours
from timing import clock, machine, options_of, table, write
from transformers import AutoConfig
from workload import RANK, Workload, add_options, folder_of, workload_of

from gruppo.algorithms.batching import merge, microbatches, rows_of
from gruppo.types import Group, Request, Sampling

ENOUGH = 0.2  # seconds that one measurement takes at least
ROWS = 2048  # of a matrix product, as many as a microbatch has tokens
COPIED = 256 * 2**20  # bytes: more than any cache holds


@dataclass(frozen=True)
class Counts:
    """What the base computes for a token, and holds."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int

    @classmethod
    def of(cls, base: str) -> Counts:
        """From the base's config."""
        config = AutoConfig.from_pretrained(folder_of(base))
        size = config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
        return cls(
            config.hidden_size,
            config.intermediate_size,
            config.num_hidden_layers,
            config.num_attention_heads,
            config.num_key_value_heads,
            size,
            config.vocab_size,
        )

    @property
    def layer_shapes(self) -> list[tuple[int, int]]:
        """(in, out) of the linear layers of one block: q, k, v, o, gate, up, down."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = [(self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden)]
        return [*attention, *[(self.hidden, self.intermediate)] * 2, (self.intermediate, self.hidden)]

    @property
    def block_weights(self) -> int:
        """Weights in the linear layers of all blocks."""
        return self.layers * sum(rows * columns for rows, columns in self.layer_shapes)

    @property
    def head_weights(self) -> int:
        """Weights of the head."""
        return self.hidden * self.vocabulary

    @property
    def adapter_weights(self) -> int:
        """Weights of one LoRA adapter."""
        return self.layers * sum(RANK * (rows + columns) for rows, columns in self.layer_shapes)

    def attention(self, seen: float) -> float:
        """Operations of one token's attention to `seen` others, in all blocks."""
        return 4.0 * seen * self.heads * self.head_size * self.layers

    @property
    def kv_values(self) -> int:
        """Numbers that one token's keys and values are."""
        return 2 * self.layers * self.kv_heads * self.head_size


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = options_of(parser)
    found = roofline(workload_of(options), options.repeats)
    print(f"{peaks_table(found['peaks'])}\n\n{parts_table(found['parts'])}")
    write(options.json, found)


def roofline(workload: Workload, repeats: int) -> dict[str, Any]:
    """Everything that is written to the JSON file."""
    counts = Counts.of(workload.base)
    threads = [1] if workload.threads == 1 or workload.device != "cpu" else [1, workload.threads]
    peaks = [line for number in threads for line in measure_peaks(counts, workload, number, repeats)]
    own = [line for line in peaks if line["threads"] == threads[-1]]
    products = max(line["gemm"] for line in own if line["dtype"] == workload.dtype)
    bandwidth = max(line["copy"] for line in own)
    parts = measure_parts(counts, workload, repeats)
    for part in parts:
        part["operations_share"] = part["operations"] / part["seconds"] / products
        part["bytes_share"] = part["bytes"] / part["seconds"] / bandwidth
    settings = asdict(workload) | {"repeats": repeats, "machine": machine()}
    return {"peaks": peaks, "parts": parts, "base": asdict(counts), "settings": settings}


@contextmanager
def threads_of(number: int) -> Iterator[None]:
    """Torch threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_of(work: Callable[[], object], device: str, repeats: int) -> float:
    """Median seconds of `work`, each measurement over as many calls as take a while; one call warms up."""
    work()
    started = clock(device)
    work()
    calls = max(1, int(ENOUGH / max(clock(device) - started, 1e-7)))
    found = []
    for _ in range(repeats):
        started = clock(device)
        for _ in range(calls):
            work()
        found.append((clock(device) - started) / calls)
    return median(found)


def measure_peaks(counts: Counts, workload: Workload, threads: int, repeats: int) -> list[dict[str, Any]]:
    """For each dtype operations a second of the fastest product, and bytes a second of copy and matrix times vector."""
    device, lines = workload.device, []
    shapes = sorted({*counts.layer_shapes, (counts.hidden, counts.vocabulary)})
    with threads_of(threads):
        for dtype in ("float32", "bfloat16"):
            made = {"device": device, "dtype": getattr(torch, dtype)}
            line: dict[str, Any] = {"threads": threads, "dtype": dtype}
            for rows, columns in shapes:
                left, right = torch.randn(ROWS, rows, **made), torch.randn(columns, rows, **made)
                seconds = seconds_of(lambda a=left, b=right: a @ b.T, device, repeats)
                line[f"gemm_{rows}x{columns}"] = 2.0 * ROWS * rows * columns / seconds
            line["gemm"] = max(value for name, value in line.items() if name.startswith("gemm_"))
            source = torch.zeros(COPIED // made["dtype"].itemsize, **made)
            target = torch.empty_like(source)
            line["copy"] = 2.0 * COPIED / seconds_of(lambda a=source, b=target: b.copy_(a), device, repeats)
            matrix, vector = source.view(-1, 4096), torch.zeros(4096, **made)
            line["gemv"] = COPIED / seconds_of(lambda a=matrix, b=vector: a @ b, device, repeats)
            lines.append(line)
    return lines


def measure_parts(counts: Counts, workload: Workload, repeats: int) -> list[dict[str, Any]]:
    """Prefill, one decoding step and the training step: seconds, operations and bytes."""
    side = Ours(replace(workload, turns=1))
    item = getattr(torch, workload.dtype).itemsize
    alone = requests_of(side)  # prompts that share nothing, so that the number of computed tokens is known
    first = [replace(request, sampling=replace(request.sampling, max_tokens=1)) for request in alone]
    reading = seconds_of(lambda: side.engine.engine.sample(first), workload.device, repeats)
    whole = seconds_of(lambda: side.engine.engine.sample(alone), workload.device, repeats)
    rows, steps, length = len(alone), workload.new_tokens - 1, workload.prompt_tokens
    tokens, middle = rows * length, length + workload.new_tokens / 2
    weights = counts.block_weights + counts.head_weights
    prefill = {
        "part": "prefill",
        "seconds": reading,
        "operations": tokens * (2.0 * counts.block_weights + counts.attention(length / 2))
        + rows * 2.0 * counts.head_weights,
        "bytes": float(item) * (weights + tokens * counts.kv_values),
    }
    decode = {
        "part": "decode, a token",
        "seconds": max(whole - reading, 1e-9) / max(steps, 1),
        "operations": rows * (2.0 * weights + counts.attention(middle)),
        "bytes": float(item) * (weights + rows * middle * counts.kv_values),
    }
    learning, computed, asked, seen = train(side, repeats)
    forward = computed * (2.0 * counts.block_weights + counts.attention(seen)) + asked * 2.0 * counts.head_weights
    adapter = computed * 2.0 * counts.adapter_weights
    training = {
        "part": "training step",
        "seconds": learning,
        # Backward: as much for the inputs' gradients as forward; the frozen weights have none, the adapter's have.
        "operations": 2 * forward + computed * counts.attention(seen) + 3 * adapter,
        "bytes": float(item) * 2 * (weights + counts.adapter_weights),
        "computed_tokens": computed,
        "tokens_with_logits": asked,
    }
    side.assembly.close()
    return [prefill, decode, training]


def requests_of(side: Ours) -> list[Request]:
    """As many requests as a step has rows, each with a prompt of its own."""
    questions = [task.question for step in side.steps for task in step][: side.workload.rows]
    sampling = Sampling(max_tokens=side.workload.new_tokens)
    return [
        Request([{"role": "user", "content": text}], sampling, number, POLICY) for number, text in enumerate(questions)
    ]


def train(side: Ours, repeats: int) -> tuple[float, int, int, float]:
    """Median seconds of what follows a rollout; the positions computed, those with logits, and what each one sees."""
    seconds = []
    for number in range(repeats + 1):
        groups = side.sample(number)
        started = clock(side.workload.device)
        side.learn(groups, number)
        seconds.append(clock(side.workload.device) - started)
    trees = [pack.tree for packs in packed(side, groups) for pack in packs]
    if not trees:
        raise SystemExit("all attempts came out alike, so nothing was trained: more --new-tokens, or a random base")
    positions = [position for tree in trees for position in tree.positions]
    return median(seconds[1:]), len(positions), sum(tree.num_asked for tree in trees), sum(positions) / len(positions)


def packed(side: Ours, groups: Sequence[Group]) -> list[list[Any]]:
    """The rows as the update lays them out."""
    rows = merge(rows_of(groups, POLICY))
    return microbatches(rows, side.config.train.microbatch_tokens, side.assembly.learner.can_share)


def peaks_table(peaks: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    rows = [
        [line["threads"], line["dtype"], *(line[name] / 1e9 for name in ("gemm", "copy", "gemv"))] for line in peaks
    ]
    return table(["threads", "dtype", "products, GFLOP/s", "copy, GB/s", "matrix x vector, GB/s"], rows)


def parts_table(parts: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    rows = [
        [
            part["part"],
            part["seconds"],
            part["operations"] / part["seconds"] / 1e9,
            f"{100 * part['operations_share']:.0f} %",
            part["bytes"] / part["seconds"] / 1e9,
            f"{100 * part['bytes_share']:.0f} %",
        ]
        for part in parts
    ]
    return table(["", "seconds", "GFLOP/s", "of the fastest product", "GB/s", "of the fastest copy"], rows)


if __name__ == "__main__":
    main()
