"""Whole searches: their figures by hand, two sides compared, and the lines that a killed call goes on from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gruppo.config import load
from gruppo.errors import ConfigError, DataError, StoreError
from gruppo.evaluation.search_runs import Played, compare, compare_text, measure, measure_text
from gruppo.log import Log
from gruppo.run import RunConfig
from gruppo.searching.playing import compare_sides, play_all, read_results
from gruppo.types import Outcome

DONE, DOWN = Outcome.completed, Outcome.engine_failed
RUN = Played("t", "q", 1, 1, DONE, "x", 1.0, 4, (("a", "x"), ("b",)), ("a",), ("a", "b", "c"), {"executor": 10})


def test_one_side_by_hand() -> None:
    runs = [
        RUN,
        replace(RUN, attempt=2, right=0.0, rounds=2, searches=(("c", "a"),), tokens={"executor": 20, "planner": 2}),
        replace(RUN, task="u", question="u", right=0.0, searches=(), true=()),
        replace(RUN, task="v", question="v", outcome=DOWN, right=None, searches=()),
    ]
    found = measure(runs)
    assert (found["labels"], found["questions"], found["runs"], found["infrastructure"]) == ("truth", 3, 3, 1)
    assert found["right"] == 0.25 and found["rounds"] == 3.5 and found["tokens"] == (16 + 10) / 2
    assert found["documents"] == (2.5 + 0) / 2 and found["important"] == 1.0 and found["without_important"] == 1
    assert found["recall"] == pytest.approx({"1": (1 / 3 + 2 / 3) / 2, "2": 2 / 3}), "what a run had is kept"
    assert found["tokens_by_role"] == pytest.approx({"executor": 40 / 3, "planner": 2 / 3})
    assert "right" in measure_text(found) and "1 engine_failed" in measure_text(found)
    assert measure([])["questions"] == 0


def test_without_labels_both_sides_make_the_pool() -> None:
    one, other = replace(RUN, true=None), replace(RUN, true=None, said=("x", "b"))
    assert measure([one])["recall"] == {"1": 1.0, "2": 1.0}
    found = compare([[one]], [[other]])
    assert found["labels"] == "pool" and found["recall"]["1"]["before"] == pytest.approx(2 / 3)


def side(*rights: float, rounds: int = 4) -> list[Played]:
    return [
        replace(RUN, task=f"t{at}", question=f"q{at}", right=right, rounds=rounds) for at, right in enumerate(rights)
    ]


def test_sides_are_paired_by_question_and_swapping_them_turns_the_gain_around() -> None:
    before, after = side(0.0, 0.0, 1.0), side(1.0, 0.0, 1.0, rounds=3)
    found, back = compare([before], [after]), compare([after], [before])
    assert found["right"]["gain"] == pytest.approx(1 / 3) and found["rounds"]["gain"] == -1.0
    assert found["right"]["n"] == 3 and found["unpaired"] == 0
    for name in ("right", "rounds", "documents"):
        assert found[name]["gain"] == -back[name]["gain"]
        assert found[name]["gain_ci95"] == [-bound for bound in back[name]["gain_ci95"][::-1]]
    assert "recall after SEARCH 2" in compare_text(found) and "3" in compare_text(found).splitlines()[2]


def test_one_before_serves_all_seeds_and_failures_need_no_zero() -> None:
    before, down = side(0.0, 0.0, 0.0), replace(side(0.0)[0], outcome=DOWN, right=None)
    found = compare([before], [side(1.0, 1.0, 0.0), [down, *side(0.0, 1.0, 1.0)[1:]]])
    assert found["seeds"] == 2 and found["right"]["n"] == 2 and found["right"]["by_seed"] == [0.5, 1.0]
    assert found["infrastructure"] == 1 and "1 runs that the infrastructure failed" in compare_text(found)
    with pytest.raises(ValueError, match="no question in common"):
        compare([before], [[replace(RUN, question="another")]])
    with pytest.raises(ValueError, match="2 before, 3 after"):
        compare([before] * 2, [before] * 3)


# ---- played ---------------------------------------------------------------------------------------------------------


def quiet() -> Log:
    return Log(Console(quiet=True))


def config_of(**changes: str) -> RunConfig:
    own = {
        "team.program": "search",
        "tools.names": '["documents"]',
        "tools.corpus": "world:validation",
        "tasks.families": '["lookup", "lookup-lookup"]',
        "tasks.num_validation": "6",
    }
    return load(RunConfig, [], own | {key.replace("__", "."): value for key, value in changes.items()})


def test_rules_play_a_split_and_what_is_there_is_not_played_again(tmp_path: Path) -> None:
    played = play_all(config_of(), tmp_path, "validation", 2, quiet())
    assert len(played) == 12 and {run.right for run in played} == {1.0}
    found = measure(played)
    assert found["labels"] == "truth" and found["recall"]["1"] < 1 and list(found["recall"].values())[-1] == 1.0
    assert {(run.run, run.attempt) for run in played} == {(1, 1), (2, 2)} and not any(run.tokens for run in played)
    metas = [json.loads(path.read_text()) for path in (tmp_path / "checkpoints").glob("*/run_*/meta.json")]
    assert len(metas) == 12 and all(meta["outcome"] == "completed" for meta in metas)
    assert all(run.rounds == len(meta["rounds"]) - 1 for run in played for meta in metas if meta["task"] == run.task)

    results = tmp_path / "results.jsonl"
    whole = results.read_bytes()
    assert play_all(config_of(), tmp_path, "validation", 2, quiet()) == played and results.read_bytes() == whole
    results.write_bytes(whole[: len(whole) - 40])
    again = play_all(config_of(), tmp_path, "validation", 2, quiet())
    assert [replace(run, seconds=0, run=0) for run in again] == [replace(run, seconds=0, run=0) for run in played]
    assert again[-1].run == 3 and [run.run for run in again[:-1]] == [run.run for run in played[:-1]]
    assert read_results(results)[1] == again


def test_tasks_with_one_question_have_runs_of_their_own(tmp_path: Path) -> None:
    rows = [{"id": name, "question": "Who is the mayor of Vael?", "result": name} for name in ("Odo", "Ann")]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "vael.txt").write_text("The mayor of Vael is Ann.")
    config = config_of(tools__corpus=str(tmp_path / "texts"), tasks__test=str(tmp_path / "tasks.jsonl"))
    played = play_all(config, tmp_path / "out", "test", 1, quiet())
    assert [(run.task, run.right, run.true, run.said) for run in played] == [
        ("Odo", 0.0, None, ("vael.txt",)),
        ("Ann", 1.0, None, ("vael.txt",)),
    ]
    for run in played:
        (meta,) = (tmp_path / "out" / "checkpoints").glob(f"*/run_{run.run}/meta.json")
        assert json.loads(meta.read_text())["task"] == run.task
    assert measure(played)["right"] == 0.5 and measure(played)["labels"] == "pool"


def test_a_checker_that_errs_finds_less(tmp_path: Path) -> None:
    truth = {"team__search__checker": "truth"}
    for name, changes in {"good": truth, "bad": truth | {"team__search__wrong_labels": "0.9"}}.items():
        play_all(config_of(**changes), tmp_path / name, "validation", 1, quiet())
    found = compare_sides([tmp_path / "good"], [tmp_path / "bad"])
    assert found["right"]["gain"] < 0 and found["labels"] == "truth" and found["right"]["n"] == 6


def test_an_engine_that_is_down_is_no_wrong_answer_and_is_asked_again(tmp_path: Path) -> None:
    engine = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "max_retries": "0", "timeout_seconds": "1.0"}
    down = {f"engines__server__{key}": value for key, value in engine.items()} | {"rollout__retries": "0"}
    config = config_of(roles__checker__engine="server", tasks__num_validation="2", **down)
    for runs in (1, 2):
        played = play_all(config, tmp_path, "validation", 1, quiet())
        assert [run.outcome for run in played] == [DOWN, DOWN] and {run.right for run in played} == {None}
        assert {run.run for run in played} == {runs}
    assert measure(played)["infrastructure"] == 2 and "right" not in measure(played)


def test_what_can_not_be_played_is_refused(tmp_path: Path) -> None:
    for config, split, said in [
        (config_of(team__program="solver", tools__names="[]"), "test", 'whole searches are played by "search"'),
        (config_of(team__search__checkpoints="elsewhere"), "test", "the rounds go below --out"),
        (config_of(tasks__test="rounds"), "test", "states within searches"),
        (config_of(), "tset", "expected train, validation, test"),
        (config_of(start_from="run"), "test", "start_from: no role plays with a policy"),
        (config_of(start_from="run", roles__executor__max_tokens="14"), "test", "start_from: no role plays with"),
        (config_of(policies__executor__rank="4"), "test", "policies.executor: no role plays with a policy"),
    ]:
        with pytest.raises(ConfigError, match=said):
            play_all(config, tmp_path, split, 1, quiet())
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(DataError, match="no documents to search in"):
        play_all(config_of(tools__corpus=str(empty)), tmp_path, "validation", 1, quiet())
    assert not (tmp_path / "results.jsonl").exists()


def test_results_of_something_else_or_damaged_are_told(tmp_path: Path) -> None:
    config = config_of(tasks__num_validation="2")
    play_all(config, tmp_path / "a", "validation", 1, quiet())
    results = tmp_path / "a" / "results.jsonl"
    with pytest.raises(StoreError, match="holds results with another config"):
        play_all(
            config_of(tasks__num_validation="2", team__search__max_rounds="3"), tmp_path / "a", "validation", 1, quiet()
        )
    play_all(config_of(tasks__num_validation="3"), tmp_path / "b", "validation", 1, quiet())
    with pytest.raises(ConfigError, match="results of other tasks"):
        compare_sides([tmp_path / "a"], [tmp_path / "b"])
    with pytest.raises(ConfigError, match="0 before, 1 after"):
        compare_sides([], [tmp_path / "a"])
    with pytest.raises(StoreError, match="gruppo search run writes it"):
        read_results(tmp_path / "c" / "results.jsonl")
    lines = results.read_text().splitlines()
    results.write_text("\n".join([lines[0], lines[1].replace('"right": 1.0', '"right": NaN'), ""]))
    with pytest.raises(StoreError, match="line 2: right: "):
        read_results(results)
    results.write_text("\n".join([lines[0], lines[1][:50], lines[2], ""]))
    with pytest.raises(StoreError, match="line 2: .*made again"):
        read_results(results)
    results.write_text('{"schema": "another"}\n')
    with pytest.raises(StoreError, match="no header"):
        play_all(config, tmp_path / "a", "validation", 1, quiet())
