"""Batching: flat tokens, prefix trees, budgets, merging."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gruppo.algorithms.batching import Pack, Row, collate, merge, microbatches, shares_of


def rows(*specs: tuple[int, int]) -> list[Row]:
    return [Row(tuple(range(p)), tuple(range(100, 100 + a)), (-1.0,) * a, advantage=a / 3) for p, a in specs]


def test_tokens_come_out_flat_whatever_the_padding() -> None:
    packs = [Pack.of([Row((5, 6), (7, 0), (-1.0, -2.0), 2.0)]), Pack.of([Row((5,), (0, 0, 3), ())])]
    batch = collate(packs, pad_id=0)
    assert batch.ids_BS.tolist() == [[5, 6, 7], [5, 0, 0]]  # the last id predicts nothing
    assert batch.num_predictors == 3
    assert batch.pack_N.tolist() == [0, 0, 1, 1, 1]
    assert batch.predictor_N.tolist() == [1, 2, 0, 1, 2]
    assert batch.label_N.tolist() == [7, 0, 0, 0, 3]
    assert batch.sequence_N.tolist() == [0, 0, 1, 1, 1]
    assert batch.advantages_N.tolist() == [2, 2, 1, 1, 1]
    assert batch.sampled_N[:2].tolist() == [-1, -2] and batch.sampled_N[2:].isnan().all()
    assert batch.old_N.isnan().all() and batch.chosen_N.all()
    assert batch.positions_BS.tolist() == [[0, 1, 2], [0, 1, 2]]
    short = collate([Pack.of([Row((5, 6, 7), (1,))]), Pack.of([Row((5,), (1,))])], pad_id=0)
    assert short.mask_BS.tolist() == [[1, 1, 1], [0, 0, 1]] and short.paths is None
    assert short.positions_BS.tolist() == [[0, 1, 2], [0, 0, 0]]


def test_rows_that_begin_alike_share_a_tree_in_which_no_action_sees_another() -> None:
    pack = Pack.of([Row((5, 6), (7, 8, 2), (), 1.0, sequence="s"), Row((5, 6), (9,), (), -2.0, sequence="s")])
    batch = collate([pack, Pack.of([Row((4,), (3, 2))])], pad_id=0)
    assert batch.ids_BS.tolist() == [[5, 6, 7, 8], [0, 0, 4, 3]]
    assert batch.positions_BS.tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]
    assert batch.num_predictors == 3
    assert batch.pack_N.tolist() == [0, 0, 0, 0, 1, 1]
    assert batch.predictor_N.tolist() == [0, 1, 2, 0, 1, 2]
    assert batch.label_N.tolist() == [7, 8, 2, 9, 3, 2]
    assert batch.sequence_N.tolist() == [0, 0, 0, 0, 1, 1]
    assert batch.advantages_N.tolist() == [1, 1, 1, -2, 1, 1]
    assert batch.paths is not None
    (bucket,) = batch.paths.buckets
    own = "places in the flat batch, padded on the left; the second action's prompt has no node that no other brought"
    assert bucket.key_RK.tolist() == bucket.query_RQ.tolist() == [[0, 1, 2, 3], [6, 6, 6, 7]], own


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 10)), min_size=1, max_size=30), st.integers(1, 200))
def test_microbatches_keep_every_row_once_within_the_budget(specs, budget) -> None:
    for share in (False, True):
        parts = microbatches(rows(*specs), budget, share)
        kept = [row for part in parts for pack in part for row in pack.rows]
        assert sorted(row.num_tokens for row in kept) == sorted(p + a for p, a in specs)
        for part in parts:
            assert len(part) == 1 or len(part) * max(len(pack.tree) for pack in part) <= budget


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=20))
def test_the_rows_of_a_sequence_stay_in_one_microbatch(specs) -> None:
    own = [replace(rows((p, a))[0], sequence=s) for p, a, s in specs]
    parts = microbatches(own, 64, share=True, whole=True)
    places = [{row.sequence for pack in part for row in pack.rows} for part in parts]
    assert sum(map(len, places)) == len({s for _, _, s in specs})


def test_merge_sums_weighted_advantages_of_equal_rows_and_drops_what_cancels() -> None:
    a, b = Row((1,), (2,), (-0.1,), 1.0), Row((1,), (3,), (-0.2,), -0.5)
    merged = merge([a, b, replace(a, weight=0.5), Row((1,), (3,), (-0.2,), 0.5)])
    assert [(row.action_ids, row.advantage, row.weight) for row in merged] == [((2,), 1.5, 1.0)]


def test_shares_keep_groups_whole() -> None:
    own = [Row((1,), (n,), episode=(group, n)) for n, group in enumerate("aabbcca")]
    assert [[row.episode[0] for row in share] for share in shares_of(own, 2)] == [["a", "a", "c", "c", "a"], ["b", "b"]]
    assert len(shares_of(own[:2], 3)) == 1
