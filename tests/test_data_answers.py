"""Answers as data sets hold them, the instruction to mark them, kinds of answers, and texts that are no questions."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.data.answer_text import ROUTES, answer_type, answers_of, joined, number_text, plain_number
from gruppo.data.gsm8k import read_gsm8k, split_answer
from gruppo.data.instruction import ANSWER_INSTRUCTION, with_instruction, without_instruction
from gruppo.data.mathematics import official_answer, read_aime, read_deepmath
from gruppo.data.non_questions import not_a_question
from gruppo.data.open_questions import asked, read_nq
from gruppo.data.overlap import repetitions
from gruppo.data.quality import check
from gruppo.data.selection import Reading
from gruppo.errors import DataError
from gruppo.rewards.answers import equal
from gruppo.types import Task

numpy = pytest.importorskip("numpy")
CASES = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parent / "cases" / "datasets.jsonl").read_text("utf-8").splitlines())
}


def given_case(name: str) -> tuple[dict, dict]:
    return CASES[name]["input"], CASES[name]["expected"]


def pairs(rows: list[list[str]]) -> list[Reading]:
    return [Reading(n, Task(str(n), question, gold)) for n, (question, gold) in enumerate(rows, 1)]


# ---- the shared cases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f001", "f004"])
def test_shared_gold_after_the_mark(name: str) -> None:
    case, expected = given_case(name)
    task = read_gsm8k({"question": "q", "answer": case["answer"]}, 0)
    assert task.result == expected["gold"] and task.extra_info["full_answer"] == case["answer"]
    assert task.chain == case["answer"].partition("\n####")[0] and task.chain.encode().decode() == task.chain


def test_shared_boolean_is_kept() -> None:
    case, expected = given_case("f006")
    task = read_deepmath({"question": "Is it?", **case}, 0)
    assert isinstance(task, Task) and task.result == "No" and expected["kept"]
    assert answer_type(task.result) == expected["answer_type"]


def test_shared_official_answer() -> None:
    case, expected = given_case("f008")
    assert official_answer(case["row"]) == expected["gold"]
    task = read_aime({"ID": case["row"], "Problem": "p", "Solution": "s", "Answer": 384}, 11)
    assert task.result == expected["gold"] and task.extra_info["published_answer"] == "384"


@pytest.mark.parametrize("name", ["f010", "f011"])
def test_shared_duplicates(name: str) -> None:
    case, expected = given_case(name)
    found = check(pairs(case["rows"]), name)
    assert found.num_unique == expected.get("unique_prompts", expected.get("unique"))
    assert len(found.findings["duplicate"]) == expected.get("duplicates_reported", 1)


def test_shared_shapes_of_answers() -> None:
    case, expected = given_case("f012")
    assert answers_of(case["golden_answers"]) == expected["answers"]
    case, expected = given_case("f013")
    assert [joined(value).replace("; ", ";") or None for value in case["values"]] == expected["joined"]


@pytest.mark.parametrize("name", ["f015", "f016"])
def test_shared_comparisons(name: str) -> None:
    case, expected = given_case(name)
    assert bool(equal(case["prediction"], case["gold"]).correct) is expected["match"]
    assert equal(case["gold"], case["gold"]).correct and not equal("8.540", "9.540").correct


def test_shared_kinds_of_answers() -> None:
    case, expected = given_case("f018")
    assert equal(r"\pm 7", case["gold"]).correct is expected["comparer_strips_lhs"]
    assert equal("y = 2x + 1", "y = 2x + 1").correct and answer_type("y = 2x + 1") == "equation"
    case, expected = given_case("f019")
    assert answer_type(case["gold"]) == expected["answer_type"]
    assert ROUTES[expected["answer_type"]] == expected["route"]


def test_shared_not_a_question() -> None:
    case, expected = given_case("f020")
    found = check(pairs([[case["problem"], case["answer"]]]), "f020")
    assert not_a_question(case["problem"]) and len(found.findings["not_a_question"]) == 1
    assert expected["flag"] == "not a question"


# ---- our own cases of the same kinds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["a", "b"], "a; b"), (("a", "b"), "a; b"), (numpy.array(["a", "b"]), "a; b"), (numpy.array("a"), "a"),
        (numpy.array([1, 2]), "1; 2"), (numpy.array([[1], [2]]), "1; 2"), (numpy.array([1.0, numpy.nan]), "1"),
        (numpy.array(["a", None], dtype=object), "a"), (numpy.float64(3.0), "3"), (numpy.int64(7), "7"),
        (numpy.float64("nan"), ""), (numpy.str_("x "), "x"), (numpy.bool_(True), "True"), (numpy.array([]), ""),
        ([["a"], ["b", ["c"]]], "a; b; c"), ([None, float("nan"), "a"], "a"), ([" ", "a "], "a"), ({"b", "a"}, "a; b"),
        ("a", "a"), (" a ", "a"), ("", ""), ("  ", ""), (None, ""), (float("nan"), ""), (Decimal("NaN"), ""), ([], ""),
        (3, "3"), (3.0, "3"), (-0.0, "0"), (2.5, "2.5"), (1e20, "1" + "0" * 20), (1e-7, "0.0000001"), (0, "0"),
        (Decimal("2.50"), "2.50"), (Decimal("1E+3"), "1000"), (Fraction(1, 2), "1/2"), (True, "True"), (False, "False"),
        (10**30, "1" + "0" * 30), ('["a", "b"]', "a; b"), ('["a", null]', "a"), ("[1, 2]", "[1, 2]"), ("[a", "[a"),
        ('["a", 1]', '["a", 1]'), (['["a"]'], '["a"]'), ("None of them", "None of them"), (b"a", "a"),
        (datetime.date(1969, 7, 20), "1969-07-20"),
    ],
)  # fmt: skip
def test_every_shape_of_answers(value: object, expected: str) -> None:
    assert joined(value) == expected


@pytest.mark.parametrize("value", [{"value": "a"}, object(), float("inf"), [float("-inf")]])
def test_what_is_no_answer_is_refused(value: object) -> None:
    with pytest.raises(DataError, match="expected an answer"):
        joined(value)


@pytest.mark.slow
def test_answers_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="comes with gruppo[parity]")
    assert joined(pandas.NA) == joined(pandas.NaT) == ""
    assert read_nq({"question": "q", "golden_answers": pandas.NA}, 0) == "no answer"


@given(st.integers(-(10**12), 10**12))
def test_whole_numbers_are_one_answer_in_every_form(number: int) -> None:
    forms = [number, float(number), str(number), [number], Decimal(number), numpy.int64(number)]
    assert {joined(form) for form in forms} == {str(number)}
    assert plain_number(f"{number:,}") == plain_number(f" ${number:,}. ") == number_text(number)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2,125", "2125"), ("192,000,000", "192000000"), ("$18", "18"), ("-$5", "-5"), ("$-5", "-5"),
        ("1,234.50", "1234.50"),
        ("+7", "7"), ("7.", "7"), ("073", "73"), ("0", "0"), ("000", "0"), (".5", "0.5"), ("-0.25", "-0.25"),
        ("50%", "50"),
        ("\u22125", "-5"), ("12,34,567", "1234567"), ("1\u202f000", "1000"), ("1 000", "1000"), ("\u20ac9.99", "9.99"),
        ("2,12", None), ("1,5", None), ("12,3456", None), ("1/2", None), ("", None), ("5 apples", None),
        ("\u0665", None),
        ("1.2.3", None), ("--5", None), ("1,000,00", None), ("x", None), ("1e5", None), ("\u00b2", None),
        ("$", None), (".", None),
    ],
)  # fmt: skip
def test_plain_numbers(text: str, expected: str | None) -> None:
    assert plain_number(text) == expected


@pytest.mark.parametrize(
    ("answer", "chain", "gold"),
    [
        ("a\n#### 72", "a", "72"), ("a\n####72", "a", "72"), ("a\n#### 72\n", "a", "72"), ("a #### 72", "a", "72"),
        ("a\n#### 1\nb\n#### 2", "a\n#### 1\nb", "2"), ("a\n#### 5\n####", "a", "5"), ("#### 5", "", "5"),
        ("a\n#### 5\n\nDone.", "a", "5"), ("##### A heading\n#### 9", "##### A heading", "9"),
        ("a\n####  -3 ", "a", "-3"),
        ("a\n#### $1,000.", "a", "1000"), ("a\n#### x = 5", "a", "x = 5"), ("a\r\n#### 8\r\n", "a", "8"),
        ("\u00a35 \u00d7 2 = \u00a310\n#### 10", "\u00a35 \u00d7 2 = \u00a310", "10"), ("a\n#### \u22125", "a", "-5"),
        ("a\n#### 007", "a", "7"), ("a\n####\t6", "a", "6"), ("a\n#### 3.50", "a", "3.50"),
        ("a\n#### 2,12", "a", "2,12"),
        ("### Step\n<<1+1=2>>2\n#### 2", "### Step\n<<1+1=2>>2", "2"), ("a\n#### 4 #### 5", "a\n#### 4", "5"),
    ],
)  # fmt: skip
def test_the_last_mark_with_something_after_it(answer: str, chain: str, gold: str) -> None:
    assert split_answer(answer) == (chain, gold)


@pytest.mark.parametrize("answer", ["", "no mark", "####", "a\n####  \n", "##### 5", "### 5"])
def test_an_answer_without_a_mark_is_an_error(answer: str) -> None:
    with pytest.raises(DataError):
        read_gsm8k({"question": "q", "answer": answer}, 0)


THEIRS = (
    "When ready, output the final answer enclosed in <answer> and </answer> tags. "
    "Do not generate any content after the </answer> tag."
)


@pytest.mark.parametrize(
    "problem", ["Find $m+n$.", "Who was it?", "Is 0.5 > 0.25", "Find\n\\[x^2\\]", "It is 3.14! So?"]
)
@pytest.mark.parametrize(
    "ending",
    ["", f"\n\n{THEIRS}", THEIRS, f" {THEIRS} ", f"\n\n{ANSWER_INSTRUCTION}", f"\n\n{THEIRS}\n\n{ANSWER_INSTRUCTION}",
     "\nPut your final answer within \\boxed{}.",
     "\nPlease reason step by step, and put your final answer in \\boxed{}."],
)  # fmt: skip
def test_the_instruction_is_there_once(problem: str, ending: str) -> None:
    given = problem + (f". {ending}" if ending[:1] not in ("\n", "") and problem[-1].isalnum() else ending)
    bare = problem if given.startswith(problem) else given
    once = with_instruction(given)
    assert with_instruction(once) == once and once.count("</answer>") == 1 and once.endswith(ANSWER_INSTRUCTION)
    assert without_instruction(once).rstrip(".") == bare.rstrip(".") and "\\boxed" not in once


@pytest.mark.parametrize(
    "text", ["What is the answer?", "Which tag is <b>? The answer is one word.", THEIRS, "The answer: ?"]
)
def test_no_more_than_the_instruction_is_taken(text: str) -> None:
    assert without_instruction(text) in (text, THEIRS.partition(". ")[0] + ".")


@pytest.mark.parametrize(
    ("question", "expected"),
    [("who is it", "who is it?"), ("who is it?", "who is it?"), (" who ? ", "who ?"), ("what??", "what??"), ("", ""),
     ('is it "who?"', 'is it "who?"'), ("\u8c01\uff1f", "\u8c01\uff1f"), ("(who?)", "(who?)"),
     ("list all.", "list all.?")],
)  # fmt: skip
def test_a_question_mark_is_added_once(question: str, expected: str) -> None:
    assert asked(question) == expected == asked(expected)


KIND_CASES = {
    "number": "5|-3.5|1,000|1/2|50%|\\frac{1}{2}|\\dfrac12|$18|073|18 dollars|3 cm|-\\frac{3}{4}|2.5 \\times 10^{-3}"
    "|90^\\circ"
    "|\u22125|$\\frac{1}{2}$|\\boxed{7}|5 km/h|1; 2; 3|\\text{12}",
    "boolean": "Yes|No|True|False|yes.|NO|\\text{Yes}|true|$\\text{No}$|\\boxed{False}|Yes!",
    "choice": "A|B|(C)|D.|(E).|\\text{(B)}|\\text{A}|\\boxed{D}|A; B",
    "list": "(1, 2)|[0, 1)|\\{1, 2, 3\\}|1, 2, 3|(-\\infty, 3]|\\left( 1, \\frac{1}{2} \\right)|x, y",
    "equation": "m = \\pm 7|y = 2x + 1|x=5|f(x) = x^2|a \\equiv 3 \\pmod 7|y=-\\frac{3}{2}x+2",
    "expression": "x^2 + 1|\\sqrt{2}|\\infty|e^{i\\pi}|2\\pi|\\frac{\\pi}{4}|\\ln 2|n!-1|x|2x|\\sin x|\\mathbb{Z}/2"
    "|\\pm 7",
    "text": "All real numbers.|Paris|James Madison|March 29, 2018|egalitarian|One World, One Dream|3 apples and 5 pears"
    "|1:41.614 in the race|Does not exist|The limit diverges|x is even|a; Paris|caf\u00e9|no solution|Vitamin B12",
    "none": "|nan|None|null|NaN|N/A",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in KIND_CASES.items() for text in texts.split("|")]
)
def test_kinds_of_answers(kind: str, text: str) -> None:
    assert answer_type(text) == kind


@given(st.text(max_size=40))
def test_every_answer_has_a_kind_and_every_text_a_verdict(text: str) -> None:
    assert answer_type(text) in ROUTES and isinstance(not_a_question(text), str)


NO_QUESTIONS = """I am sorry, but I cannot make that problem.|I'm sorry, but I can't help with that.
Lorem ipsum dolor sit amet
I\u2019m sorry, I can\u2019t assist|Sorry, I am unable to generate a problem.|I cannot create that problem.|[image]
...|???|-
I can't provide a solution.|As an AI language model, I do not|I apologize, but this is too hard.
My apologies for the mistake.
We're sorry, but we are not able to do that.|Unfortunately, I cannot solve it.|Sure! Here is a problem for you:|null
NaN|TODO
Certainly, here's a rewritten version.|Of course! I can help with that.|N/A|[deleted]|None|https://example.org/q/1
<image>
{question}|Error: rate limit exceeded|Traceback (most recent call last):|ValueError: bad row|404 Not Found|\U0001f937
HTTP 503 Service Unavailable|<!DOCTYPE html><html>|Here is a new problem: find x.|I am unable to solve this.
I'm afraid I can't.
I do not have access to the figure.|Insert problem here|"I am sorry, I cannot answer that."|www.example.org|\u2014"""
QUESTIONS = """What is 2 + 2?|I am sorry to ask, but what is 2 + 2?
"I'm sorry," said Tom to his 3 friends. How many are there?|2+2
Tom cannot reach the shelf. How tall is it?|Why can't penguins fly?|who wrote sorry seems to be the hardest word|4^3=
\u8c01\uff1f
What is an error of type I?|Error bars show what?|Is null a number?|how many people will not vote
Test whether the series converges.
where is the missing link|Sure Thing is a play by whom?|Here are 5 apples. How many are left if I eat 2?|x
who sang i can't help myself
Find all n such that n does not divide 404.|Question 5: what is x?|i cannot tell a lie was said by whom
problem of induction who
Certainly a fair die is thrown. What is the chance of a 6?|What does HTTP 404 mean?
Prove that it cannot exist: a largest prime."""


def parts(text: str) -> list[str]:
    return [part for line in text.splitlines() for part in line.split("|")]


@pytest.mark.parametrize("text", parts(NO_QUESTIONS))
def test_what_is_no_question(text: str) -> None:
    assert not_a_question(text)


@pytest.mark.parametrize("text", parts(QUESTIONS))
def test_what_may_be_a_question(text: str) -> None:
    assert not_a_question(text) == ""


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("What is 2+2?", "what is 2+2", True), ("caf\u00e9?", "cafe\u0301?", True), ("a  b", "a b", True),
        ("\ufb01x", "fix", True),
        ("Find x.", f"Find x.\n\n{ANSWER_INSTRUCTION}", True), ("Find x.", f"Find x.{THEIRS}", True),
        ("a\u00a0b", "a b", True),
        ("a\nb", "a b", True), ("4^3=", "4^3=", True), ("\uff12+2", "2+2", True), ("STRASSE", "stra\u00dfe", True),
        ("2+2", "2-2", False), ("8.540", "9.540", False), ("x^2", "x2", False), ("What is 12?", "What is 1 2?", False),
        ("a < b", "a > b", False), ("-5", "5", False), ("x = y", "x \u2260 y", False),
    ],
)  # fmt: skip
def test_which_questions_are_the_same(one: str, other: str, are_same: bool) -> None:
    assert (repetitions([one, other]) == [(0, 1)]) is are_same


@pytest.mark.parametrize("contest", ["I", "II"])
def test_all_official_answers_are_found_by_every_way_of_naming_a_problem(contest: str) -> None:
    for number in range(1, 16):
        gold = official_answer(f"2024-{contest}-{number}")
        place = f"/index.php/2024_AIME_{contest}_Problems/Problem_{number}"
        rows = [{"ID": f"2024-{contest}-{number}", "Problem": "p", "Answer": int(gold)},
                {"id": 5, "problem": "p", "answer": gold.zfill(3), "url": place, "year": "2024"},
                {"id": f"2024-{contest}-{number:02d}", "problem": "p", "answer": None}]  # fmt: skip
        assert {read_aime(row, 0).result for row in rows} == {gold}
        assert "published_answer" not in read_aime(rows[1], 0).extra_info
