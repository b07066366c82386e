"""Answers are found and graded right: public fault reports, our own pairs, hostile text, workers, the command."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.errors import DataError, UserError
from gruppo.rewards import REWARDS
from gruppo.rewards.answers import answers, equal, grade
from gruppo.rewards.extraction import extract
from gruppo.rewards.grade import grade_file, summary
from gruppo.rewards.maths import worker
from gruppo.types import Episode, Task

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from grading import HOSTILE, plain_pairs  # noqa: E402

CASES = [json.loads(line) for line in (ROOT / "tests/cases/answers.jsonl").read_text().splitlines()]
OWN = [json.loads(line) for line in (ROOT / "tests/cases/own_answers.jsonl").read_text().splitlines()]
SLOW = {"an integral", "a nested integral", "a limit", "sums of sums", "a gold answer of the kind"}
INTEGRAL = r"\int_0^1 x\,dx"
HANGS = r"\int_0^1 x^{x^{x}} \, dx"
needs_math = pytest.mark.skipif(
    worker.find_spec("math_verify") is None, reason="needs math-verify: pip install 'gruppo[math]'"
)


# What is right --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['source'][8:]}")
def test_a_reported_fault(case: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    verdict = grade(case["input"]["prediction"], case["input"]["gold"], case["input"]["mode"])
    assert verdict.correct is case["expected"], verdict
    assert not list(tmp_path.iterdir()), "the answer was run"


@pytest.mark.parametrize("kind", sorted({pair["kind"] for pair in OWN}))
def test_pairs_that_are_equal_and_pairs_that_are_not(kind: str) -> None:
    pairs = [pair for pair in OWN if pair["kind"] == kind]
    assert {pair["expected"] for pair in pairs} == {True, False}
    wrong = []
    for pair in pairs:
        verdict = grade(pair["prediction"], pair["gold"], pair["mode"])
        if bool(verdict.correct) != pair["expected"]:
            wrong.append((pair, verdict))
    assert not wrong


WRITINGS = (
    "{}", "{}.", "{}.0", "+{}", "${}$", "\\boxed{{{}}}", "\\({}\\)", "\\text{{{}}}", "**{}**", "{:,}", "0{}",
    "{} dollars", "${}", "{}%", "x = {}", "{}/1", "\\frac{{{}}}{{1}}", "The answer is {}", "{} or {}",
)  # fmt: skip


@given(st.integers(0, 10**12), st.sampled_from(WRITINGS), st.sampled_from(WRITINGS))
@settings(max_examples=60, deadline=None)
def test_an_integer_is_equal_however_it_is_written(number: int, one: str, other: str) -> None:
    assert equal(one.format(number, number), other.format(number, number)).correct, (one, other)
    assert not equal(one.format(number + 1, number + 1), other.format(number, number)).correct


@given(st.fractions(max_denominator=10**4), st.fractions(max_denominator=10**4))
@settings(max_examples=60, deadline=None)
def test_fractions_are_compared_exactly(one: Fraction, other: Fraction) -> None:
    latex = rf"\frac{{{one.numerator}}}{{{one.denominator}}}"
    assert equal(str(one), latex).correct and equal(latex, str(one)).correct
    assert equal(str(one), str(other)).correct == (one == other)


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_lists_are_free_in_order_tuples_are_not(numbers: list[int], draw: object) -> None:
    shuffled = sorted(numbers, key=lambda number: (number * 7919) % 101)
    one, other = (", ".join(map(str, each)) for each in (numbers, shuffled))
    assert equal(one, other).correct and equal(rf"\{{{one}\}}", other).correct
    assert equal(f"({one})", f"({other})").correct == (numbers == shuffled)
    assert not equal(one, str(numbers[0])).correct and not equal(str(numbers[0]), one).correct


@given(st.text(max_size=60), st.text(max_size=60))
@settings(max_examples=120, deadline=None)
def test_any_text_gets_a_verdict(prediction: str, gold: str) -> None:
    for mode in ("completion", "answer"):
        assert grade(prediction, gold, mode).reason
    assert grade("", "5").correct is False and grade(prediction, "").correct is None


MATHS = st.lists(
    st.sampled_from(
        [*"0123456789.,;:+-*/^=<>()[]{}|!%$ xyei", "\\frac", "\\sqrt", "\\pi", "\\{", "\\}", "\\pm", "\\cup", "\\infty",
         "\\sin", "\\log_", "\\text{", " and ", " or ", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", "10^5", "cm"]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@given(MATHS, MATHS)
@settings(max_examples=120, deadline=None)
def test_scraps_of_notation_get_a_verdict_and_are_equal_to_themselves(prediction: str, gold: str) -> None:
    began = time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "math_verify", None)  # as if it were not installed
        assert equal(prediction, gold).reason
        assert equal(gold, gold).correct is not False
    assert time.process_time() - began < 1


# Where the answer is --------------------------------------------------------------------------------------------------

PROSE = st.text("abcdefghij .\n", max_size=200)


@given(
    PROSE, PROSE, st.integers(-(10**6), 10**6), st.sampled_from(["\\boxed{{{}}}", "#### {}\n", "<answer>{}</answer>"])
)
@settings(deadline=None)
def test_a_marked_answer_is_found_wherever_it_stands(before: str, after: str, number: int, marker: str) -> None:
    found = extract(f"{before} 7 \\boxed{{8}} {before}\n{marker.format(number)}{after}")
    assert found is not None and found.candidates == (str(number),)


@pytest.mark.parametrize(
    ("completion", "candidates"),
    [
        ("\\boxed{5} and no more", ("5",)),
        ("\\boxed{5}, \\boxed{6}", ("5, 6",)),
        ("\\boxed{5} or \\boxed{6}", ("5 or 6",)),
        ("\\boxed{\\frac{1}{2}}", ("\\frac{1}{2}",)),
        ("\\boxed{1", ("1",)),
        ("\\boxed{}", ("",)),
        ("<think>#### 5</think>", None),
        ("", None),
        ("#### Step 2\nNothing more.", ("2",)),
        ("The answer is 64, in total.", ("64, in total", "64")),
        ("It is 42 or 43.", ("42 or 43",)),
        ("It is not 5.", None),
    ],
)
def test_what_is_extracted(completion: str, candidates: tuple[str, ...] | None) -> None:
    found = extract(completion)
    assert (found.candidates if found else None) == candidates


# Hostile text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - SLOW))
def test_hostile_text_is_graded_in_time(name: str) -> None:
    began = time.process_time()  # no process is waited for, and the machine may be busy
    verdict = grade(*HOSTILE[name])
    assert time.process_time() - began < 5
    if HOSTILE[name][1] != "3":  # in many of them a 3 can be found
        assert not verdict.correct


def test_plain_numbers_are_graded_right() -> None:
    pairs = plain_pairs(300)
    found = [grade(completion, gold).correct for completion, gold in pairs]
    assert found == [gold in completion.replace(",", "").splitlines()[-1] for completion, gold in pairs]


# math-verify in its processes -----------------------------------------------------------------------------------------


@needs_math
def test_a_pair_that_hangs_is_killed_and_the_next_one_is_graded() -> None:
    assert grade(rf"\boxed{{{INTEGRAL}}}", r"\frac12").correct is True
    began = os.times().children_user
    hung = equal(HANGS, r"\int_0^1 e^{x^{x}} dx")
    assert os.times().children_user - began < 8  # with the start of the process that was ended
    assert hung.correct is False and hung.reason == "math-verify timed out"
    assert equal(INTEGRAL, r"\frac13").correct is False and equal(INTEGRAL, "0.5").correct is True


@needs_math
def test_math_verify_works_in_threads_in_event_loops_and_after_a_fork() -> None:
    with ThreadPoolExecutor(3) as threads:
        assert [v.correct for v in threads.map(equal, [INTEGRAL] * 3, ["1/2", "1/3", r"\frac{2}{4}"])] == [
            True,
            False,
            True,
        ]

    async def in_loop() -> bool | None:
        return equal(INTEGRAL, "1/2").correct

    assert asyncio.run(in_loop()) is True
    with multiprocessing.get_context("fork").Pool(1) as forked:
        assert forked.apply(equal, (INTEGRAL, "1/2")).correct is True
    assert equal(INTEGRAL, "1/2").correct is True


@needs_math
def test_the_processes_end_with_ours_and_when_they_are_closed() -> None:
    code = (
        "from gruppo.rewards.answers import equal; from gruppo.rewards.maths import worker;"
        rf"assert equal(r'{INTEGRAL}', '1/2').correct; print(*[one.process.pid for one in worker._pool.idle])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() and not [pid for pid in done.stdout.split() if Path(f"/proc/{pid}").exists()]
    worker.close()
    assert equal(INTEGRAL, "1/2").correct is True


def test_without_math_verify_there_is_no_score_and_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    verdict = equal(INTEGRAL, r"\frac12")
    assert verdict.correct is None and "pip install 'gruppo[math]'" in verdict.reason
    assert equal(r"\frac{2}{4}", "0.5").correct is True


# The reward and the command -------------------------------------------------------------------------------------------


def test_the_reward_says_1_0_or_nothing() -> None:
    episodes = [
        Episode("t", "g", place, 0, answer=answer) for place, answer in enumerate(["1/2", "\\boxed{0.5}", "2", None])
    ]
    assert REWARDS["answers"] is answers
    assert answers(Task("t", "?", "0.5; half"), episodes) == [1.0, 1.0, 0.0, 0.0]
    assert answers(Task("t", "?", ""), episodes[:1]) == [None]
    assert answers(Task("t", "?", "working\n#### 0.50"), episodes[:1]) == [1.0]


def lines_of(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def test_a_file_is_graded_line_by_line(tmp_path: Path) -> None:
    file = lines_of(
        tmp_path / "in.jsonl",
        {"id": 1, "prediction": "So \\boxed{5}", "gold": 5},
        {"prediction": "5", "gold": ["4", 5.0], "mode": "answer"},
        {"prediction": None, "gold": "5"},
        "",
        {"prediction": "5\u2028", "gold": "6"},
        {"prediction": "\ud800", "gold": ""},
    )
    counts = grade_file(file, file)
    graded = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["correct"] for row in graded] == [True, True, False, False, None]
    assert all(row["reason"] for row in graded) and graded[0]["id"] == 1 and graded[2]["prediction"] is None
    assert summary(counts) == "5 lines: 2 right, 2 wrong, 1 no score"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: expected an object"),
        ('{"gold": "5"}', "line 2: no 'prediction'"),
        ('{"prediction": "5"}', "line 2: no 'gold'"),
        ('{"prediction": 5, "gold": "5"}', "line 2: prediction is 5"),
        ('{"prediction": "5", "gold": null}', "line 2: gold is None"),
        ('{"prediction": "5", "gold": "5", "mode": "prose"}', "line 2: mode is 'prose'"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str, expected: str) -> None:
    file = lines_of(tmp_path / "in.jsonl", {"prediction": "5", "gold": "5"}, line)
    with pytest.raises(DataError, match=expected) as raised:
        grade_file(file, tmp_path / "out.jsonl")
    assert str(file) in str(raised.value) and not (tmp_path / "out.jsonl").exists()


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="in.jsonl"):
        grade_file(tmp_path / "in.jsonl")
    with pytest.raises(UserError, match="can't be written"):
        grade_file(lines_of(tmp_path / "in.jsonl", {"prediction": "5", "gold": "5"}), tmp_path / "no" / "out.jsonl")


def test_the_command(tmp_path: Path) -> None:
    file = lines_of(tmp_path / "in.jsonl", {"prediction": "So 5.", "gold": "5"})
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gruppo", "grade", *words]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=90)

    done = run(str(file))
    assert done.returncode == 0 and json.loads(done.stdout)["correct"] is True and done.stderr == "1 lines: 1 right\n"
    bad = run(str(lines_of(tmp_path / "bad.jsonl", "{")))
    assert bad.returncode == 2 and bad.stderr.startswith("error: ") and "bad.jsonl: line 1" in bad.stderr
