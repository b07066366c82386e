"""Mistakes: each rule beside what looks like one and is none, the evidence, the judge, before and after."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest

from gruppo.engines.scripted import ScriptedEngine
from gruppo.evaluation.claims import claims_in, evaluate, false_claim
from gruppo.evaluation.mistake_judge import judge_mistake, judged_mistakes, transcript
from gruppo.evaluation.mistakes import Kind, compare_mistakes, find_mistakes, mistake_rates, mistake_table
from gruppo.evaluation.premises import holds, reads_not_found, says_nothing, terms
from gruppo.rewards.judge import Judge, JudgeConfig
from gruppo.rewards.rules import is_equal
from gruppo.types import Episode, Group, Outcome, Request, Sampling, StopReason, Task, ToolEvent, ToolResult, Turn


def turn(text: str, error: str = "", role: str = "agent", stop: StopReason = StopReason.stop) -> Turn:
    return Turn(role, None, 0, "p", (), (), (), Sampling(), stop, text, error=error)


def event(place: int, tool: str, said: str, error: str = "", **arguments: object) -> ToolEvent:
    return ToolEvent(place, tool, arguments, ToolResult(not error, said, error))


def episode(
    *texts: str, answer: str | None, reward: float = 0.0, events: Sequence[ToolEvent] = (), **fields
) -> Episode:
    turns = [turn(text) for text in texts]
    return Episode("t", "t", 0, 0, turns, list(events), answer, reward=reward, **fields)


def main_kind(task: Task, one: Episode) -> Kind | None:
    found = find_mistakes(task, one)
    return found[0].kind if found else None


# Calculations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "12*12=154", "<<3*4=13>>", "5 apples + 3 apples = 9 apples", "2 * 3 = 6 * 4 = 25", "2**10 == 1000",
        "the square of 12 is 154", "12 squared is 146", "The sum of 3 and 4 is 8.", "12 times 12 is 154.", "3x4=13",
        "12 plus 5 equals 18", "2 * (3 + 4) = 15", r"10 \times 3 = 31", "x = 3 + 4 = 8", "$5 + $3 = $9", "7/3 = 2.5",
        "- 97 * 19 = 1834", "First, 16 - 9 = 8 eggs.", "1,200 × 3 = 3,500", "the difference between 9 and 4 is 6",
        "20% * 50 = 11", "5 - 3 = -2", "48 / 2 = 23 cards", "1.5 * 4 = 7 metres", "so 9 × 8 = 74, and",
    ],
)  # fmt: skip
def test_false_calculations_are_seen(text: str) -> None:
    found = false_claim(text)
    assert found is not None and found.quote in text


@pytest.mark.parametrize(
    "text",
    [
        "12 * 12 = 144", "2x + 3 = 7", "x * 2 + 3 = 11", "f(2+3) = 7", "7 / 2 = 3", "7/3 = 2.33", "2/3=0.66",
        "17 / 5 = 3 remainder 2", "5 * 60 seconds = 5 minutes", "3 + 4 = 7 * 2 = 14", "50 - 20% = 40", "20% * 50 = 10",
        "17 mod 5 + 2 = 4", "(x+2) * 3 + 1 = 10", "6 * 2 = 12 million", "3 weeks * 7 = 21 days", "1,234 + 1 = 1,235",
        "5 + 7 = 13. Wait, 5 + 7 = 12.", "3/4 = 6/8", "pages 10-12 = the index", "2 + 2 = 4x", "1.25 * 3 = 3.8",
        "97 * 19 = 1843\n- 1843 - 44 = 1799", "ab2 + 3 = 4", "5! - 3 = 117", "log 100 + 1 = 3", "3² + 4² = 25",
        "v1.2 + 3 = 9", "the sum of 3 and 4 is 7", "10 / 4 = 2.5 kg", "√9 + 2 = 5", "2 + 3 > 4 = yes",
        "3 squared plus 4 squared is 25", "The sum of 9 and 4 squared is 25",
    ],
)  # fmt: skip
def test_what_is_right_or_not_plain_arithmetic_is_let_be(text: str) -> None:
    assert false_claim(text) is None


def test_evaluation_is_exact_and_bounded() -> None:
    assert evaluate(["1", "/", "3", "*", "3"]) == 1
    assert evaluate(["-", "2", "^", "2"]) == -4 and evaluate(["2", "^", "3", "^", "2"]) == 512
    for wrong in (["2", "^", "999"], ["(", "1"], ["1", "+"], [], ["1", "2"], [")"]):
        with pytest.raises(ValueError):
            evaluate(wrong)
    for long in ("1 + " * 5000, "(" * 20_000, "9" * 20_000, "1," * 10_000):
        assert claims_in(long) == []


# Words ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Nothing happened in 653.", "No major event took place that year", "There was no battle.", "It did not occur.",
        "The town has no mayor.", "Nobody lived there.", "No such person ever existed.", "It was an uneventful year.",
        "Nothing important happened then", "Such a treaty never existed.", "That didn't happen.",
    ],
)  # fmt: skip
def test_claims_that_there_was_nothing(text: str) -> None:
    assert list(says_nothing(text, False))


@pytest.mark.parametrize(
    "text",
    [
        "The page was not found.", "I could not find anything that happened.", "No results were found, search again.",
        "There is no information on it.", "The event is unknown.", "It happened in 653.", "stop", "continue",
        "There are no results for it.", "It is unclear whether it existed.", "wikipedia: event of the year 653",
    ],
)  # fmt: skip
def test_honest_words_about_a_failed_search(text: str) -> None:
    assert not list(says_nothing(text, False))


def test_not_found_is_a_message_not_a_word_in_a_page() -> None:
    assert reads_not_found(ToolResult(False, error="nothing found for 'x'")) and reads_not_found(ToolResult(True, " "))
    assert reads_not_found(ToolResult(True, "No results.")) and reads_not_found(ToolResult(True, "404 page"))
    assert not reads_not_found(ToolResult(True, "word " * 80 + "the ship was not found"))
    assert not reads_not_found(ToolResult(True, "The mayor is Odo Brin."))


def test_values_are_whole_tokens() -> None:
    assert holds("It is 1,234 km", "1234") and holds("In 653.", "653") and holds("ODO  BRIN", "Odo Brin")
    assert not holds("14.5", "14") and not holds("1653", "653") and not holds("Brinton", "Brin") and not holds("x", "")
    assert terms("What is the mayor of New Vael in 1889?") == ["New Vael", "1889"]
    assert terms("Find Oslo's 5 mayors. Who is Odo?") == ["Oslo's", "Odo"] or terms("Find Oslo. Who is Odo?") == ["Odo"]


# Kinds beside their likes --------------------------------------------------------------------------------------------

MAYOR = Task("t", "Who is the mayor of Vael?", "Odo Brin")
FACT = "The mayor of Vael is Odo Brin."


def test_a_repeated_call_is_one_but_not_after_a_time_out_or_with_other_arguments() -> None:
    calls = [
        event(0, "search", "", "nothing found", query="mayor"),
        event(1, "search", "", "nothing found", query="Mayor "),
    ]
    assert main_kind(MAYOR, episode("ask", "ask again", "Odo", answer="Odo", events=calls)) is Kind.repeated_call
    slow = ToolEvent(0, "search", {"query": "mayor"}, ToolResult(False, error="too slow", timed_out=True))
    again = event(1, "search", FACT, query="mayor")
    fine = episode("ask", "ask again", "Odo Brin", answer="Odo Brin", reward=1.0, events=[slow, again])
    assert find_mistakes(MAYOR, fine) == []
    other = [event(0, "search", FACT, query="mayor"), event(1, "search", FACT, query="mayor of Vael")]
    assert find_mistakes(MAYOR, episode("a", "b", "Odo Brin", answer="Odo Brin", reward=1.0, events=other)) == []


def test_nothing_found_and_said_so_is_no_claim_that_there_is_nothing() -> None:
    missed = [event(0, "search", "", "nothing found", query="mayor of Vael")]
    bold = episode("ask", "Vael has no mayor.", answer="Vael has no mayor.", events=missed)
    found = find_mistakes(MAYOR, bold)[0]
    assert (found.kind, found.turn, found.quote) == (Kind.not_found_as_nothing, 1, "Vael has no mayor")
    honest = episode("ask", "I could not find the mayor.", answer="I could not find the mayor.", events=missed)
    assert Kind.not_found_as_nothing not in {one.kind for one in find_mistakes(MAYOR, honest)}
    backed = [*missed, event(1, "search", "Vael never had a mayor.", query="Vael")]
    told = episode("ask", "ask", "Vael never had a mayor.", answer="Vael never had a mayor.", events=backed)
    assert Kind.not_found_as_nothing not in {one.kind for one in find_mistakes(MAYOR, told)}


def test_a_value_that_is_used_before_it_is_found() -> None:
    task = Task("t", "Square twelve, then find the event of that year.", "the fire of Vael")
    calls = [
        event(0, "wikipedia", "Trajan ruled in 117.", query="event of the year 144"),
        event(1, "python", "144", code="print(12 ** 2)"),
    ]
    assumed = episode("look", "compute", "Trajan", answer="Trajan", events=calls)
    assert main_kind(task, assumed) is Kind.wrong_order
    in_order = [
        event(0, "python", "144", code="print(12 ** 2)"),
        event(1, "wikipedia", "x", query="event of the year 144"),
    ]
    assert Kind.wrong_order not in {
        o.kind for o in find_mistakes(task, episode("a", "b", "x", answer="x", events=in_order))
    }


def test_an_ignored_result_beside_an_answer_that_was_taken_from_it() -> None:
    told = [event(0, "search", FACT, query="mayor of Vael")]
    assert (
        main_kind(MAYOR, episode("ask", "It is Ulm Hestrin", answer="Ulm Hestrin", events=told)) is Kind.ignored_result
    )
    number = Task("t", "What is 12 plus 5, doubled?", "34")
    calls = [event(0, "python", "17", code="12+5"), event(1, "python", "38", code="19*2")]
    assert main_kind(number, episode("a", "b", "38", answer="38", events=calls)) is Kind.ignored_result
    used = [event(0, "python", "17", code="12+5"), event(1, "python", "51", code="17*3")]
    assert main_kind(number, episode("a", "b", "51", answer="51", events=used)) is Kind.reasoning


def test_premature_and_unverified_answers() -> None:
    plan = [{"tool": "search"}, {"tool": "search"}]
    task = Task("t", "Where was the mayor of Vael born?", "Klohoul", extra_info={"plan": plan})
    told = [event(0, "search", FACT, query="mayor of Vael")]
    assert main_kind(task, episode("ask", "Odo Brin", answer="Odo Brin", events=told)) is Kind.premature_answer
    assert main_kind(task, episode("Klom", answer="Klom")) is Kind.premature_answer  # no tool at all
    made_up = [*told, event(1, "search", "", "nothing found", query="birth city of Odo Brin")]
    assert main_kind(task, episode("a", "b", "Ostrava", answer="Ostrava", events=made_up)) is Kind.unverified_claim
    guess = [*told, event(1, "generalist", "It must be Ostrava.", query="birth city of Odo Brin")]
    found = find_mistakes(task, episode("a", "b", "Ostrava", answer="Ostrava", events=guess))[0]
    assert found.kind is Kind.unverified_claim and "generalist" in found.reason
    out_of_steps = episode("a", "b", answer="Odo Brin", events=told, outcome=Outcome.max_turns)
    assert main_kind(task, out_of_steps) is Kind.reasoning  # it did not stop by itself


def test_another_question() -> None:
    calls = [event(0, "search", "The mayor of Trap is Ann Roe.", query="mayor of Trap")]
    assert main_kind(MAYOR, episode("ask", "Ann Roe", answer="Ann Roe", events=calls)) is Kind.comprehension
    task = Task("t", "A box holds 14 pens. How many pens are in 23 boxes?", "322", "14 * 23 = 322")
    assert main_kind(task, episode("14 * 32 = 448", answer="448")) is Kind.comprehension
    assert main_kind(task, episode("14 + 23 = 37", answer="37")) is Kind.reasoning
    assert main_kind(task, episode("Lots of pens.", answer="a great deal")) is Kind.comprehension  # no number
    hours = Task("t", "He works 3 days. How many hours is that?", "72")
    assert main_kind(hours, episode("3 * 24 = 72 hours, less 8: 72 - 8 = 64", answer="64")) is Kind.reasoning


def test_format_that_was_made_good_later_is_not_the_main_mistake() -> None:
    turns = [turn("??", "no plan"), turn("search"), turn("Ulm Hestrin")]
    one = Episode("t", "t", 0, 0, turns, [event(1, "search", FACT, query="mayor of Vael")], "Ulm Hestrin", reward=0.0)
    assert [found.kind for found in find_mistakes(MAYOR, one)][::2] == [Kind.ignored_result, Kind.wrong_format]
    one.answer = "Odo Brin"
    one.reward = 1.0
    assert [found.kind for found in find_mistakes(MAYOR, one)] == [Kind.wrong_format]
    lost = Episode("t", "t", 0, 0, [turn("??", "no plan")], answer=None, outcome=Outcome.wrong_format, reward=0.0)
    assert find_mistakes(MAYOR, lost)[0].quote == "??"
    cut = Episode("t", "t", 0, 0, [turn("We go on and", stop=StopReason.length)], answer=None, reward=0.0)
    assert main_kind(MAYOR, cut) is Kind.wrong_format


def test_right_answers_and_failed_harnesses_have_no_mistakes() -> None:
    assert find_mistakes(MAYOR, episode("Odo Brin", answer="Odo Brin", reward=1.0)) == []
    assert find_mistakes(MAYOR, episode("x", answer=None, outcome=Outcome.engine_failed)) == []
    unscored = episode("Odo Brin", answer="the Odo Brin")
    unscored.reward = None
    assert find_mistakes(MAYOR, unscored) == []
    assert find_mistakes(MAYOR, Episode("t", "t", 0, 0, answer="Ann", reward=0.0))[0].kind is Kind.reasoning


def test_a_right_answer_after_a_wrong_sum_still_shows_it() -> None:
    task = Task("t", "12 * 12?", "144")
    (found,) = find_mistakes(task, episode("12 * 12 = 154, no: 144", answer="144", reward=1.0))
    assert (found.kind, found.quote, found.reason) == (Kind.calculation, "12 * 12 = 154", "it is 144")


# The judge -----------------------------------------------------------------------------------------------------------


def judge_of(reply: Callable[[Request], str]) -> Judge:
    return Judge(ScriptedEngine(reply), "scripted", JudgeConfig(retries=1), is_equal)


def judged(reply: str, one: Episode):
    return asyncio.run(judge_mistake(judge_of(lambda request: reply), MAYOR, one))


def test_the_judges_word_counts_with_evidence_only() -> None:
    one = episode("Perhaps it is Ann.", "So Ann it is.", answer="Ann")
    good = {"kind": "unverified_claim", "turn": 2, "quote": "So Ann  it is", "reason": "nobody said so"}
    found = judged(json.dumps(good), one)
    assert found is not None and (found.kind, found.turn) == (Kind.unverified_claim, 1)
    for change in (
        {"kind": "laziness"},
        {"turn": 1},
        {"turn": 9},
        {"turn": 0},
        {"quote": "So Bob it is"},
        {"quote": " "},
    ):
        assert judged(json.dumps(good | change), one) is None
    judge = judge_of(lambda request: "I cannot say.")
    assert asyncio.run(judge_mistake(judge, MAYOR, one)) is None
    assert judge.counts == {"calls": 2, "no verdict: can't read the reply 'I cannot say.'": 1}


def test_only_what_the_rules_leave_open_is_asked() -> None:
    asked: list[Request] = []

    def reply(request: Request) -> str:
        asked.append(request)
        return json.dumps({"kind": "comprehension", "turn": 1, "quote": "Ann", "reason": "another town"})

    wrong_sum = episode("1 + 1 = 3", answer="3")
    groups = [Group("a", MAYOR, [episode("Ann", answer="Ann")]), Group("b", MAYOR, [wrong_sum])]
    found = asyncio.run(judged_mistakes(judge_of(reply), groups))
    assert [mistakes[0].kind for mistakes in found.values()] == [Kind.comprehension, Kind.calculation]
    assert len(asked) == 1 and "Ann" in asked[0].messages[1]["content"]
    shown = transcript(episode("ask", answer="Ann", events=[event(0, "search", FACT, query="mayor")]))
    assert "Turn 1, agent:" in shown and "call: search" in shown and f"result: {FACT}" in shown


# Before and after ----------------------------------------------------------------------------------------------------


def test_before_and_after() -> None:
    tasks = [Task(f"t{n}", "12 * 12?", "144") for n in range(20)]

    def evaluation(wrong: int) -> list[Group]:
        texts = ["12 * 12 = 154" if n < wrong else "12 * 12 = 144" for n in range(20)]
        return [
            Group(
                task.id,
                task,
                [Episode(task.id, "g", 0, 0, [turn(text)], answer=text[-3:], reward=float("144" in text))],
            )
            for task, text in zip(tasks, texts, strict=True)
        ]

    found = compare_mistakes(evaluation(12), evaluation(3))
    assert list(found) == ["calculation"]
    row = found["calculation"]
    assert (row["before"], row["after"], row["n"]) == (0.6, 0.15, 20) and row["change"] == pytest.approx(-0.45)
    assert row["ci95"][1] < 0 and row["p_value"] == pytest.approx(2 / 2**9)
    assert mistake_table(found).splitlines()[1].split()[:4] == ["calculation", "60.0%", "15.0%", "−45.0"]
    rates = mistake_rates(evaluation(12))
    assert rates == {"episodes": 20, "with_mistakes": 12, "kinds": {"calculation": {"episodes": 12, "main": 12}}}
    json.dumps([found, rates], allow_nan=False)
