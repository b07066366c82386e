"""One optimizer step is one sum: its loss and gradient on 1, 2 and 4 real processes, however each splits its share.

Four processes on this machine speak gloo; a world of fewer ranks is a group of the first of them. Each rank knows the
shapes of all rows and the tokens of its own, back-propagates microbatch after microbatch, and all gradients are summed.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch import multiprocessing as processes

from gruppo.algorithms.aggregations import AGGREGATIONS, AggregationSettings, RowShape
from gruppo.algorithms.losses import LossSettings, ObjectiveSettings, objective
from gruppo.algorithms.ratios import Tokens

SETTINGS = {
    name: ObjectiveSettings(loss, LossSettings(level), "sequence_mask", kl_coefficient=0.1)
    for name, loss, level in (
        ("ppo_clip", "ppo_clip", "token"),
        ("ppo_clip over sequences", "ppo_clip", "sequence"),
        ("cispo", "cispo", "token"),
        ("gmpo", "gmpo", "token"),
    )
}
CASES = list(itertools.product(SETTINGS, AGGREGATIONS))
WORLDS, SPLITS = (1, 2, 4), (1, 2, 4)  # ranks; microbatches of each
NUM_SEQUENCES, NUM_WORDS = 18, 11  # 18: neither ranks nor microbatches get equally many
LENGTH = AggregationSettings(length_norm=7)

Parts = Sequence[Sequence[int]]  # microbatches, each a list of places in ROWS


@dataclass(frozen=True)
class Turn:
    """A row: what it is to an aggregation, and its tokens' values (float64) to the loss."""

    shape: RowShape
    before_N: Tensor  # the word that each token follows
    word_N: Tensor
    moved_N: Tensor  # log-prob now - before the update
    mismatch_N: Tensor  # log-prob before the update - as sampled
    reference_N: Tensor
    advantage: float


def make_rows() -> list[Turn]:
    """18 sequences of one to three turns of 1 to 6 tokens, two sequences to an episode; one turn sampled nothing."""
    draw, rows = torch.Generator().manual_seed(0), []
    advantages = torch.randn(NUM_SEQUENCES, generator=draw).tolist()
    for sequence in range(NUM_SEQUENCES):
        for turn in range(1 + sequence % 3):
            length = 0 if (sequence, turn) == (2, 1) else int(torch.randint(1, 7, (), generator=draw))
            before_N, word_N = torch.randint(NUM_WORDS, (2, length), generator=draw)
            moved_N, mismatch_N, reference_N = torch.randn(3, length, generator=draw, dtype=torch.float64)
            shape = RowShape(length, sequence // 2, sequence)
            values = 0.3 * moved_N, 0.2 * mismatch_N, reference_N - 2
            rows.append(Turn(shape, before_N, word_N, *values, advantages[sequence]))
    return rows


ROWS = make_rows()


def parts_of(rank: int, num_ranks: int, num_parts: int) -> Parts:
    """The microbatches of a rank: its sequences dealt out one by one, turns of a sequence together."""
    own = range(NUM_SEQUENCES)[rank::num_ranks]
    dealt = [own[part::num_parts] for part in range(num_parts)]
    return [[place for place, row in enumerate(ROWS) if row.shape.sequence in sequences] for sequences in dealt]


def make_model() -> torch.nn.Module:
    """A word's successor from the word alone: enough for every token's gradient to meet all others'."""
    torch.manual_seed(1)
    layers = torch.nn.Embedding(NUM_WORDS, 6), torch.nn.Tanh(), torch.nn.Linear(6, NUM_WORDS)
    return torch.nn.Sequential(*layers).double()


def backward(model: torch.nn.Module, rows: Sequence[Turn], weights: Sequence[float], case: str) -> Tensor:
    """Back-propagate a microbatch's part of the loss; returns the part."""
    before_N, word_N, moved_N, mismatch_N, reference_N = (
        torch.cat([vars(row)[name] for row in rows])
        for name in ("before_N", "word_N", "moved_N", "mismatch_N", "reference_N")
    )

    def each(values: Sequence[float]) -> Tensor:
        return torch.tensor(values).repeat_interleave(torch.tensor([row.shape.num_tokens for row in rows]))

    new_N = model(before_N).log_softmax(-1).gather(1, word_N[:, None])[:, 0]
    old_N = new_N.detach() - moved_N
    sequence_N = each([row.shape.sequence for row in rows]).unique(return_inverse=True)[1]
    advantages_N = each([row.advantage for row in rows]).double()
    tokens = Tokens(old_N, advantages_N, sequence_N, old_N - mismatch_N, reference_N)
    losses_N, _ = objective(new_N, tokens, SETTINGS[case])
    loss = (losses_N * each(weights).double()).sum()
    loss.backward()
    return loss.detach()


def step(parts: Parts, case: str, aggregation: str, known: Sequence[int] | None = None) -> Tensor:
    """[loss, *gradient] of some microbatches, with weights from the shapes of the `known` rows; None: of all."""
    model, known = make_model(), range(len(ROWS)) if known is None else known
    weights = dict(zip(known, AGGREGATIONS[aggregation]([ROWS[i].shape for i in known], LENGTH), strict=True))
    loss = sum(backward(model, [ROWS[i] for i in part], [weights[i] for i in part], case) for part in parts)
    return torch.cat([loss.view(1), *(parameter.grad.flatten() for parameter in model.parameters())])


def play(rank: int, folder: Path) -> None:
    """What one process does; the first saves {(ranks, microbatches): [loss, *gradient] of every case}."""
    torch.set_num_threads(1)
    rendezvous = f"file://{folder / 'rendezvous'}"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=max(WORLDS))
    groups = {size: distributed.new_group(range(size)) for size in WORLDS}
    found = {}
    for size, split in itertools.product(WORLDS, SPLITS):
        if rank < size:
            own = torch.stack([step(parts_of(rank, size, split), *names) for names in CASES])
            distributed.all_reduce(own, group=groups[size])
            found[size, split] = own
    if rank == 0:
        torch.save(found, folder / "found.pt")
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Tensor]:
    folder = tmp_path_factory.mktemp("ranks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads at a fork, which spares each rank its imports
        processes.start_processes(play, (folder,), nprocs=max(WORLDS), start_method="fork")
    return torch.load(folder / "found.pt")


@pytest.mark.parametrize(("case", "aggregation"), CASES)
def test_a_step_is_the_same_on_any_number_of_ranks_and_in_any_number_of_microbatches(found, case, aggregation) -> None:
    expected = step([range(len(ROWS))], case, aggregation)
    assert expected[0] != 0 and expected[1:].abs().max() > 1e-3
    for size, split in itertools.product(WORLDS, SPLITS):
        summed = found[size, split][CASES.index((case, aggregation))]
        assert torch.allclose(summed, expected, rtol=1e-6, atol=1e-9), f"{size} ranks, {split} microbatches each"


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS.keys() - {"token_sum"}))
def test_means_over_a_ranks_own_rows_would_have_been_noticed(aggregation) -> None:
    expected = step([range(len(ROWS))], "ppo_clip", aggregation)
    parts = [parts_of(rank, 4, 1)[0] for rank in range(4)]
    local = sum(step([part], "ppo_clip", aggregation, known=part) for part in parts) / 4
    assert not torch.allclose(local, expected, rtol=1e-3)
