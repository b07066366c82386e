"""The prefix tree: what it shares, and how rows are filled with sequences that begin alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gruppo.prefix_tree import common_length, num_distinct, prefix_tree, shared_rows

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
        asked |= set(path[start:])
    assert asked == set(range(len(tree) - tree.num_asked, len(tree)))


@given(SEQUENCES, st.integers(1, 40))
def test_rows_are_filled_and_hold_every_place_once(sequences, max_nodes) -> None:
    rows = shared_rows(sequences, max_nodes)
    assert sorted(place for row in rows for place in row) == list(range(len(sequences)))
    sizes = [num_distinct([sequences[place] for place in row]) for row in rows]
    assert all(size <= max_nodes or len(row) == 1 for size, row in zip(sizes, rows, strict=True))
    for row, after in zip(rows, rows[1:], strict=False):
        together = [sequences[place] for place in (*row, after[0])]
        assert num_distinct(together) > max_nodes, "the next one would have fitted in"


@given(SEQUENCES)
def test_distinct_nodes_are_those_of_the_tree(sequences) -> None:
    assert num_distinct(sequences) == len(prefix_tree(sequences, [0] * len(sequences)))


def test_common_length() -> None:
    assert common_length((1, 2, 3), (1, 2)) == 2 and common_length((1,), (2,)) == 0 and common_length((), (1,)) == 0
