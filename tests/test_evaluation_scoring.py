"""Benchmark items: which option an answer names, and that nothing is made up; Game of 24; free answers."""

from __future__ import annotations

import pytest

from gruppo.evaluation.scoring import expression_in, grade_choice, grade_expression, grade_free, option_of
from gruppo.types import Episode, Score, Task

CITIES = ["Paris", "London", "Rome", "42 m/s"]


def answered(answer: str | None, **fields: object) -> Episode:
    return Episode("t", "t", 0, 0, answer=answer, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"), ("(B)", "B"), ("b", "B"), ("(b)", "B"), ("B.", "B"), ("d)", "D"), ("**B**", "B"),
        (r"\boxed{B}", "B"), (r"\boxed{\text{B}}", "B"), (r"Final answer: \boxed{D}", "D"), ("<answer>C</answer>", "C"),
        ("<answer>(C) Rome</answer>", "C"), ("The answer is (B)", "B"), ("Answer: **C**", "C"), ("Option C", "C"),
        ("I choose option C.", "C"), ("Therefore, choice D", "D"), ("B) London", "B"), ("C: Rome", "C"),
        ("C - Rome", "C"), ("The correct option is C, Rome.", "C"), ("London", "B"), ("The answer is London.", "B"),
        ("The capital of Italy is Rome", "C"), ("42", "D"), ("42.0 m/s", "D"), ("The answer is D. 42 m/s", "D"),
        ("The answer is C because London is in England.", "C"), ("The answer is C, since Paris is not it.", "C"),
        ("<think>A, surely A</think>C", "C"), ("It could be A. The answer is C", "C"),
        ("Answer: C\n\nExplanation: Paris is in France.", "C"), ("We know this.\n\n(C)", "C"),
    ],
)  # fmt: skip
def test_the_option_that_is_named(answer: str, letter: str) -> None:
    assert option_of(answer, CITIES)[0] == letter


@pytest.mark.parametrize(
    "answer",
    [
        "", "   ", "E", "none of these", "A and B", "A or B", "Both A and B", "Paris and Rome", "B. Rome",
        "A fever is likely", "I", "I think so", "(A) is wrong since it rains. So (C).", "A, B, C and D",
        "<think>The answer is A", "4", "the second one", "Berlin",
    ],
)  # fmt: skip
def test_where_none_or_several_are_named_none_is_made_up(answer: str) -> None:
    letter, reason = option_of(answer, CITIES)
    assert letter is None and reason


def test_texts_that_hold_one_another_or_look_like_letters() -> None:
    illnesses = ["type 1 diabetes", "diabetes", "type 1", "type 10"]
    assert [option_of(text, illnesses)[0] for text in ("diabetes", "It is type 10.", "type 1 diabetes")] == [
        "B",
        "D",
        "A",
    ]
    groups = ["A", "B", "AB", "O"]
    assert [option_of(text, groups)[0] for text in ("A", "AB", "The blood group is AB.", "O")] == ["A", "C", "C", "D"]
    numbers = [r"\frac{1}{2}", "0.25", "2", r"\sqrt{2}"]
    assert [option_of(text, numbers)[0] for text in ("1/2", r"\boxed{\frac12}", "2", "0.25")] == ["A", "A", "C", "B"]


def test_choice_is_read_first_and_graded_then() -> None:
    task = Task("t", "q", "C", extra_info={"choices": CITIES})
    assert grade_choice(task, answered("I say Rome.")).correct
    wrong = grade_choice(task, answered("London"))
    assert (wrong.correct, wrong.read) == (False, "B")
    unread = grade_choice(task, answered("It is hard to say; 4 of them might be."))
    assert (unread.correct, unread.read) == (False, "")  # not the first option, nor one that shares a digit
    assert not grade_choice(task, answered(None)).correct
    assert grade_choice(Task("t", "q", "Rome", extra_info={"choices": CITIES}), answered("(C)")).correct
    assert not grade_choice(Task("t", "q", "Oslo", extra_info={"choices": CITIES}), answered("A")).correct
    assert not grade_choice(Task("t", "q", "A"), answered("A")).correct


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("(8-4)*(7-1)", True), ("(8-4)*(7-1)=24", True), (r"\boxed{(8-4)\times(7-1)}", True),
        ("(8 − 4) × (7 − 1) = 24", True), (r"$(8-4) \cdot (7-1)$", True), ("The answer is (8 - 4) x (7 - 1).", True),
        ("<answer>(8-4)*(7-1)</answer>", True), ("8-4=4, 7-1=6, 4*6=24\n(8-4)*(7-1) = 24", True),
        ("Solution: (1-7)*(4-8)", True), ("8*4-7-1", True), (r"\boxed{8 \cdot 4 - 7 - 1}", True),
        ("24", False), ("", False), ("4*6", False), ("(8-4)*(7-1)*1", False), ("8*4-7", False), ("8*4-7-1-0", False),
        ("(8-4)*(7-1) = 25", False), ("8/(4-4)", False), ("__import__('os').getpid()", False), ("8**4-7-1", False),
        ("84/7+1", False), ("(8-4)*(7-1", False), ("len('4781')*6", False), ("3*8", False),
    ],
)  # fmt: skip
def test_game_of_24(answer: str, is_right: bool) -> None:
    task = Task("t", "q", "", extra_info={"numbers": [4, 7, 8, 1]})
    assert grade_expression(task, answered(answer)).correct is is_right


def test_long_nonsense_is_read_in_time() -> None:
    assert option_of("(A) " * 50_000, CITIES)[0] in ("A", None)
    assert expression_in("(" * 100_000) == ""
    assert not grade_expression(Task("t", "q", "", extra_info={"numbers": [1]}), answered("1+" * 50_000)).correct


def test_free_answers_and_the_runs_judge() -> None:
    task = Task("t", "q", "Klohoul; Kloh")
    assert grade_free(task, answered("the Klohoul")).correct
    assert grade_free(Task("t", "q", "12"), answered("So the answer is 12.")).correct
    assert not grade_free(task, answered("144")).correct
    assert not grade_free(Task("t", "q", "1"), answered("144")).correct  # a short result is in many an answer
    said = answered("The town of K.", scores={"judge": Score(1.0)})
    assert grade_free(task, said).correct and grade_free(task, said).reason == "right for the judge"
    assert not grade_free(task, answered("K.", scores={"judge": Score(None, "no verdict: down")})).correct
