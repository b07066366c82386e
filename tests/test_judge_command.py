"""`gruppo judge calibrate` with a real local server as the judge: what it finds, and what it says to mistakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, refused
from test_openai_engine import Server, completion, failure, serving


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Says right to answers that hold a 4; of two it prefers the one that is shown first, if neither holds a 4."""

    monkeypatch.setenv("NO_PROXY", "*")

    def reply() -> Any:
        prompt = str(server.seen[-1]["messages"])
        quoted = prompt.partition("answer")[2]
        if "winner" not in prompt:
            return completion(json.dumps({"reason": "", "correct": "It is 4" in quoted}))
        first, _, second = prompt.partition("answer A")[2].partition("answer B")
        return completion(json.dumps({"reason": "", "winner": "B" if "It is 4" in second else "A"}))

    with serving() as server:
        server.replies = [reply]
        yield server


def words(server: Server, file: Path | str, *more: str) -> list[str]:
    # One at a time: the server's reply reads the newest request.
    engine = ["--engines.grader.base_url", server.url, "--engines.grader.model", "m", "--judge.engine", "grader"]
    return ["judge", "calibrate", str(file), *engine, "--judge.max_concurrency", "1", *more]


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    file = folder / "answers.jsonl"
    file.write_text("".join(json.dumps({"question": "2 + 2?", "gold": "4"} | row) + "\n" for row in rows))
    return file


ROWS: list[dict[str, Any]] = [
    {"prediction": "It is 4", "correct": True},
    {"prediction": "It is 5", "correct": False},
    {"prediction": "It is 4 or 5", "correct": False},  # the judge falls for it
    {"prediction": "It is 6"},  # answer matching knows
    {"question": "?", "gold": "", "prediction": "It is 7"},  # nobody knows
    {"prediction": None, "correct": False},
    {"question": "3 + 4?", "gold": ["7", "seven"], "prediction": "It is 8"},
    {"question": "3 + 4?", "gold": ["7", "seven"], "prediction": "It is 9"},
]


def test_the_judge_is_set_against_what_is_known_and_against_itself(
    gruppo: Command, judge: Server, tmp_path: Path
) -> None:
    ended = gruppo(*words(judge, written(tmp_path, *ROWS), "--json"))
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["answers"] == {
        "n": 6, "left_out": 2, "no_verdict": 0, "right judged right": 1, "right judged wrong": 0,
        "wrong judged right": 1, "wrong judged wrong": 4,
    }  # fmt: skip
    assert found["agreement"] == pytest.approx(5 / 6) and found["kappa"] == pytest.approx(4 / 7)
    # 4 against 5, 5 against 4 or 5, 4 or 5 against 6: the same both times; 8 against 9: the first, twice
    assert found["pairs"] == {"n": 4, "no_verdict": 0} and found["swap_agreement"] == 0.75
    assert found["first_preferred"] == pytest.approx(5 / 8)


def test_people_get_a_table(gruppo: Command, judge: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    ended = gruppo(*words(judge, written(tmp_path, *ROWS[:1])))
    assert ended.code == 0 and "agreement with what is known" in ended.out and "1.000" in ended.out
    assert "pairs" in ended.out and " - " in ended.out, "nothing to compare is no rate"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"gold": "4"}, "line 1: no 'prediction'"),
        ({"prediction": "4", "question": ""}, "answer 1: no question"),
        ({"prediction": "4", "question": 4}, "answer 1: no question"),
        ({"prediction": "4", "correct": "yes"}, "answer 1: correct is 'yes'; expected true, false or null"),
        ({"prediction": "4", "gold": ""}, "no answer of known worth"),
    ],
)
def test_a_line_that_does_not_fit_is_named(
    gruppo: Command, judge: Server, tmp_path: Path, row: dict[str, Any], expected: str
) -> None:
    refused(gruppo(*words(judge, written(tmp_path, row))), expected)
    assert not judge.seen


def test_mistakes_in_a_command(gruppo: Command, judge: Server, tmp_path: Path) -> None:
    file = written(tmp_path, ROWS[0])
    refused(gruppo(*words(judge, "answer.jsonl")), "answer.jsonl: no such file: did you mean answers.jsonl?")
    refused(gruppo("judge", "calibrate", str(file)), "judge.engine is missing")
    refused(gruppo(*words(judge, file, "--judge.mode", "grade")), "judge.mode")
    refused(
        gruppo(*words(judge, file)[:-4], "--judge.engine", "gradr"),
        "no such endpoint in [engines]: did you mean grader?",
    )
    refused(gruppo("judge", "calibrate", str(file), "--judge.engine", "local"), "the engine that plays can't judge")


def test_a_judge_that_says_nothing_is_told_as_that(gruppo: Command, judge: Server, tmp_path: Path) -> None:
    judge.replies = [failure(401, "who are you?")]
    refused(gruppo(*words(judge, written(tmp_path, *ROWS[:2]))), "the judge gave no verdict on any of 2 answers: ")
    judge.replies = [completion("Hm."), completion("Hm.")]
    ended = gruppo(*words(judge, written(tmp_path, *ROWS[:2]), "--judge.retries", "0"))
    refused(ended, "can't read the reply 'Hm.'")
