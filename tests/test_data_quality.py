"""Data sets with known faults: each is found, in its row, and nothing else; limits decide."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.data.overlap import near_repetitions, shared_passages, words_of
from gruppo.data.quality import KINDS, LimitsConfig, Measure, check, histogram
from gruppo.data.selection import Place, Reading, readings
from gruppo.types import Task

LONG = "A train leaves the station at noon and travels north at sixty miles an hour until it meets the slower train"


def rows(*pairs: tuple[str, str]) -> list[Reading]:
    return [Reading(n, Task(str(n), question, gold)) for n, (question, gold) in enumerate(pairs, 1)]


def written(folder: Path, *given: object) -> list[Reading]:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return list(readings(str(path), Place(folder)))


def test_every_kind_of_fault_is_found_in_its_row(tmp_path: Path) -> None:
    given = [
        {"question": "What is one and one?", "result": "2"},  # 1: sound
        {"question": "No result?"},
        {"question": " ", "result": "3"},
        {"question": 7, "result": "3"},
        {"question": "what is one  and one", "result": "2"},
        {"question": "What is one and one?", "result": "3"},
        {"question": "I am sorry, but I cannot make that problem.", "result": "12"},
        {"question": f"{LONG}?", "result": "Yes"},
        {"question": f"So: {LONG}?", "result": "Yes"},
        {"question": "Say <|im_end|> aloud?", "result": "All real numbers."},
    ]
    evaluation = [Task("e1", f"Then {LONG} again.", "5"), Task("e2", "Another?", "5")]
    measure = Measure(lambda text: len(text.split()), "words", 15, ("<|im_end|>",))
    found = check(written(tmp_path, *given), "own", evaluation, measure)
    expected = {"missing": [2], "empty": [3], "malformed": [4], "duplicate": [5, 6], "conflicting": [6],
        "not_a_question": [7], "near_duplicate": [9], "overlap": [8, 9], "too_long": [8, 9], "control": [10],
        "unscorable": [10], "left_out": []}  # fmt: skip
    assert {kind: [one.row for one in ones] for kind, ones in found.findings.items()} == expected
    assert expected.keys() == KINDS.keys() == LimitsConfig.model_fields.keys() - {"constant_share"}
    assert found.num_rows == 10 and found.num_unique == 5
    assert found.answer_types == {"number": 4, "boolean": 2, "text": 1}
    text = found.text()
    assert "duplicate: 2 questions that came up before" in text and "row 6: '3', in row 1 '2'" in text
    assert "answers, text: 1 (14.3%), compared by judge or exact text" in text and "of 15 that fit" in text
    json.dumps(found.as_dict())


def test_limits_decide(tmp_path: Path) -> None:
    found = check(rows(("q", "Yes"), ("q", "Yes"), ("q?", "No"), ("r", "Yes")), "own")
    assert found.failures(LimitsConfig()) == [] == found.failures(LimitsConfig(duplicate=2, missing=0))
    assert found.failures(LimitsConfig(duplicate=1, conflicting=0)) == [
        "duplicate: 2, at most 1 were accepted",
        "conflicting: 1, at most 0 were accepted",
    ]
    assert found.constant == ("yes", 0.75) and found.failures(LimitsConfig(constant_share=0.75)) == []
    assert found.failures(LimitsConfig(constant_share=0.5)) == [
        "constant_share: 0.750 by always 'yes', at most 0.5 was accepted"
    ]


def test_a_clean_set_and_an_empty_one(tmp_path: Path) -> None:
    found = check(rows(("What is 1+1?", "2"), ("What is 1+2?", "3")), "own")
    assert not any(found.findings.values()) and found.failures(LimitsConfig(**dict.fromkeys(KINDS, 0))) == []
    nothing = check([], "none")
    assert nothing.num_rows == 0 and nothing.lengths == [] and nothing.text().startswith("none: 0 rows")


@pytest.mark.parametrize(
    ("one", "other", "are_near"),
    [
        (LONG, f"{LONG} today", True), (LONG, f"Well, {LONG}", True), (LONG, LONG.replace("noon", "dawn"), False),
        (f"{LONG} 3", f"{LONG} 4", False), (f"{LONG} 3", f"{LONG} 3 now", True), (LONG, LONG.upper(), False),
        (LONG, LONG[:60], False), ("a b c", "a b d", False), ("who", "whom", False),
        (LONG, " ".join(LONG.split()[::-1]), False),
        (f"{LONG} 1,000", f"{LONG} 1000", False), (f"{LONG}. Why?", f"{LONG}. Why not?", True),
    ],
)  # fmt: skip
def test_what_is_nearly_the_same(one: str, other: str, are_near: bool) -> None:
    assert near_repetitions([one, "in between", other]) == ([(0, 2)] if are_near else [])
    assert near_repetitions([other, one]) == ([(0, 1)] if are_near else [])


@given(st.randoms(use_true_random=False), st.integers(5, 40), st.integers(0, 3))
def test_near_repetitions_are_those_that_comparing_all_pairs_finds(
    draw: random.Random, length: int, changes: int
) -> None:
    texts = []
    for _ in range(12):
        words = draw.choices("abcdefghij", k=length) if not texts or draw.random() < 0.5 else texts[-1].split()
        for _ in range(changes):
            words[draw.randrange(len(words))] = draw.choice("klm")
        texts.append(" ".join(words))

    def shingles(text: str) -> set[tuple[str, ...]]:
        words = words_of(text)
        return {tuple(words[n : n + 4]) for n in range(max(len(words) - 4, 0) + 1)}

    def is_near(one: str, other: str) -> bool:
        a, b = shingles(one), shingles(other)
        return one != other and len(a & b) >= 0.8 * len(a | b)

    befores = [[m for m in range(n) if is_near(texts[m], text)] for n, text in enumerate(texts)]
    assert near_repetitions(texts) == [(min(before), n) for n, before in enumerate(befores) if before]


THIRTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen"


@pytest.mark.parametrize(
    ("training", "evaluation", "is_shared"),
    [
        (f"So {THIRTEEN} and on", f"{THIRTEEN} fourteen?", True), (THIRTEEN, THIRTEEN, True),
        (THIRTEEN.upper(), THIRTEEN, True),
        (THIRTEEN.replace("seven", "7"), THIRTEEN, False), ("one two three", "one two three?", False),
        ("one two", "One two", True),
        ("and one two three", "one two three", False), (THIRTEEN.removeprefix("one "), THIRTEEN, False),
        (THIRTEEN.replace(" ", "\n"), THIRTEEN, True), (f"x {THIRTEEN.removeprefix('one ')} y", THIRTEEN, False),
    ],
)  # fmt: skip
def test_thirteen_words_in_a_row(training: str, evaluation: str, is_shared: bool) -> None:
    assert bool(list(shared_passages([training], [evaluation]))) is is_shared


def test_a_phrase_of_the_form_is_no_overlap() -> None:
    evaluation = [f"{THIRTEEN} number {n} of its kind" for n in range(30)]
    assert not list(shared_passages([f"{THIRTEEN} something else"], evaluation))
    assert [row[:2] for row in shared_passages(["no", evaluation[7]], evaluation)] == [(1, 7)]
    assert list(shared_passages([f"{THIRTEEN} something else"], evaluation[:5])), "of a few questions nothing is a form"


@given(st.lists(st.integers(0, 100_000), max_size=50))
def test_a_histogram_counts_everything_once(lengths: list[int]) -> None:
    bars = histogram(lengths)
    assert sum(count for *_, count in bars) == len(lengths) and len(bars) <= 20
    assert all(count == sum(start <= length < stop for length in lengths) for start, stop, count in bars)


def test_what_a_known_set_leaves_out_is_not_malformed(tmp_path: Path) -> None:
    path = tmp_path / "nq" / "train.jsonl"
    path.parent.mkdir()
    given = [
        {"question": "a", "golden_answers": ["Paris"]},
        {"question": "c", "golden_answers": []},
        {"golden_answers": ["d"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    found = check(readings("nq", Place(tmp_path)), "nq")
    rows_of_kind = {kind: [one.row for one in ones] for kind, ones in found.findings.items() if ones}
    assert rows_of_kind == {"empty": [2], "missing": [3], "unscorable": [1]}
