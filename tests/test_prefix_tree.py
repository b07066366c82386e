"""The prefix tree: what it shares, what sees what, and that a model computes in it what it computes alone."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from gruppo.prefix_tree import MAX_ROW, REACH, attention_of, common_length, prefix_tree, shared_rows, takes_trees

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=12)


@given(SEQUENCES, st.data())
def test_a_tree_holds_every_beginning_once_and_every_sequence_along_a_path(sequences, data) -> None:
    asked_from = [data.draw(st.integers(0, len(sequence) - 1)) for sequence in sequences]
    tree = prefix_tree(sequences, asked_from)
    assert len(tree) == len({sequence[:end] for sequence in sequences for end in range(1, len(sequence) + 1)})
    asked = set()
    for sequence, path, start in zip(sequences, tree.paths, asked_from, strict=True):
        assert tuple(tree.ids[node] for node in path) == sequence
        assert [tree.positions[node] for node in path] == list(range(len(sequence)))
        for depth, node in enumerate(path):
            seen = {j for j in range(len(tree)) if tree.enter[j] <= tree.enter[node] < tree.leave[j]}
            assert seen == set(path[: depth + 1])
        asked |= set(path[start:])
    assert asked == set(range(len(tree) - tree.num_asked, len(tree)))


@given(SEQUENCES)
def test_rows_hold_every_place_once(sequences) -> None:
    rows = shared_rows(sequences)
    assert sorted(place for row in rows for place in row) == list(range(len(sequences)))


def test_a_sequence_joins_a_row_if_what_it_shares_is_worth_what_is_masked() -> None:
    assert shared_rows([(number,) * 40 for number in range(5)]) == [[0], [1], [2], [3], [4]]
    short = [(1, 2, 3, 4, number) + (number,) * 15 for number in range(5, 100)]
    lengths = [len(prefix_tree([short[place] for place in row], [0] * len(row))) for row in shared_rows(short)]
    assert 200 < max(lengths) < REACH * 5 / 40 + 40
    long = [(9,) * 1000 + (number,) * 20 for number in range(200)]
    assert [len(row) for row in shared_rows(long)] == [200]
    whole = [(9,) * (MAX_ROW - 30) + (number,) * 20 for number in range(3)]
    assert shared_rows(whole) == [[0], [1], [2]], "no longer than a mask may be"
    assert common_length((1, 2, 3), (1, 2)) == 2 and common_length((1,), (2,)) == 0 and common_length((), (1,)) == 0


def test_a_model_computes_in_a_tree_what_it_computes_alone() -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=50, num_key_value_heads=2, head_dim=8, **shape)).eval()
    assert takes_trees(model)
    sequences = [(3, 4, 5, 6), (3, 4, 7), (8, 9), (3, 4, 5, 6, 1, 2)]
    tree = prefix_tree(sequences, [0] * 4)
    with torch.no_grad():
        together = model(
            input_ids=torch.tensor([tree.ids]),
            position_ids=torch.tensor([tree.positions]),
            attention_mask=attention_of(torch.tensor([tree.enter]), torch.tensor([tree.leave])),
        ).logits[0]
        for sequence, path in zip(sequences, tree.paths, strict=True):
            assert torch.allclose(together[path], model(input_ids=torch.tensor([sequence])).logits[0], atol=1e-5)
