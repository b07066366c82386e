"""`gruppo mistakes`, by the rules alone and with a real local server as the judge of what they can't tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, refused
from test_openai_engine import Server, completion, failure, serving

from gruppo.store import Run
from gruppo.types import Episode, Group, Sampling, StopReason, Task, Turn

TASKS = [Task(f"t{number}", "Who is the mayor of Aldfell?", "Odo Brin") for number in range(4)]


def said(text: str, answer: str, task: Task) -> Group:
    turn = Turn("agent", None, 0, "p", (), (), (), Sampling(), StopReason.stop, text)
    return Group(task.id, task, [Episode(task.id, task.id, 0, 0, [turn], answer=answer, reward=float("Odo" in answer))])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Before: a wrong sum, three conclusions that no rule explains. After: one of those, and the right answer."""
    with Run.create(tmp_path / "run", "") as run:
        wrong = [said(f"Perhaps Ann {task.id}.", "Ann", task) for task in TASKS]
        run.write_episodes("eval-base-greedy", [said("1 + 1 = 3", "Bob", TASKS[0]), *wrong[1:]])
        run.write_episodes("eval-final-greedy", [*(said("Odo Brin", "Odo Brin", task) for task in TASKS[:3]), wrong[3]])
    return tmp_path / "run"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A judge that quotes what stands there, but of task t2 something else."""
    monkeypatch.setenv("NO_PROXY", "*")

    def reply() -> Any:
        shown = server.seen[-1]["messages"][1]["content"]
        name = next(task.id for task in TASKS if f"Ann {task.id}." in shown)
        quote = "Ann is the mayor" if name == "t2" else f"Ann {name}"
        found = {"kind": "unverified_claim", "turn": 1, "quote": quote, "reason": "nobody said so"}
        return completion(json.dumps(found))

    with serving() as server:
        server.replies = [reply]
        yield server


def words(run: Path, server: Server, *more: str) -> list[str]:
    # One at a time: the server's reply reads the newest request.
    one = ["--judge.max_concurrency", "1", "--judge.retries", "0", "--engines.judge.max_retries", "0"]
    return ["mistakes", str(run), "--judge", server.url, "--model", "m", *one, *more]


def test_without_a_judge_the_rules_speak(gruppo: Command, run: Path) -> None:
    ended = gruppo("mistakes", str(run))
    rows = [line.split()[:4] for line in ended.out.splitlines()]
    assert rows[1:] == [["calculation", "25.0%", "0.0%", "−25.0"], ["reasoning", "75.0%", "25.0%", "−50.0"]]
    assert "judged" not in json.loads(gruppo("mistakes", str(run), "--json").out)


def test_the_judge_is_asked_where_they_cannot_tell_and_shows_its_words(
    gruppo: Command, run: Path, server: Server
) -> None:
    found = json.loads(gruppo(*words(run, server, "--json")).out)
    assert list(found["changes"]) == ["calculation", "reasoning"], "what the rules found stays"
    judged = found["judged"]
    shares = {kind: (row["before"], row["after"]) for kind, row in judged["changes"].items()}
    assert shares == {"calculation": (0.25, 0.0), "unverified_claim": (0.5, 0.25), "reasoning": (0.25, 0.0)}
    assert [(one["stage"], one["task"], one["quote"]) for one in judged["evidence"]] == [
        ("before training", "t1", "Ann t1"), ("before training", "t3", "Ann t3"), ("after GRPO", "t3", "Ann t3"),
    ]  # fmt: skip
    assert all(one["reason"] == "judge: nobody said so" for one in judged["evidence"])
    assert judged["counts"]["calls"] == len(server.seen) == 4


def test_people_get_both_tables_and_the_words(gruppo: Command, run: Path, server: Server) -> None:
    out = gruppo(*words(run, server)).out
    by_rule, _, with_judge = out.partition("with the judge, asked about 4 episodes, who showed 3 mistakes")
    assert "reasoning" in by_rule and "unverified" not in by_rule and "unverified claim" in with_judge
    assert "no verdict: can't read the reply" in with_judge
    assert "before training, task t1, turn 1: unverified claim: 'Ann t1' (judge: nobody said so)" in with_judge


def test_a_judge_that_is_down_leaves_the_rules_word(gruppo: Command, run: Path, server: Server) -> None:
    server.replies = [failure(401, "who are you?")]
    ended = gruppo(*words(run, server))
    assert ended.code == 0 and "showed 0 mistakes" in ended.out and "status 401: " in ended.out and "(4)" in ended.out


def test_mistakes_in_the_command(gruppo: Command, run: Path, server: Server) -> None:
    refused(gruppo("mistakes", str(run), "--judge", server.url), "--judge URL --model NAME")
    refused(gruppo("mistakes", str(run), "--judge.retries", "1"), "--judge URL --model NAME")
    refused(gruppo(*words(run, server, "--train.steps", "1")), "--train.steps: the judge's options are")
    refused(gruppo(*words(run, server, "--judge.mode", "ranking")), "--judge.mode: is about grading answers")
    refused(gruppo(*words(run, server, "--judge.retrys", "1")), "did you mean judge.retries?")
    refused(
        gruppo("mistakes", str(run), "--judge", "nowhere", "--model", "m"), "expected an http:// or https:// address"
    )
    assert not server.seen
