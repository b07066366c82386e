"""reasoning-gym: every generator gives tasks that its own scorer pays for, and no scorer runs what an agent wrote."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gruppo.config import load
from gruppo.data.gym import MAX_SEED, TASKS_PER_SPLIT, gym_names, gym_score, gym_tasks
from gruppo.data.gym_process import GymProcess, shared
from gruppo.data.gym_worker import EVALUATING, PARSING, is_arithmetic
from gruppo.data.selection import Place, mixture, tasks_of
from gruppo.errors import DataError
from gruppo.run import RunConfig, check, find_rewards
from gruppo.types import Episode, Score, Task

needs_gym = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="needs reasoning-gym: pip install 'gruppo[gym]'"
)
MISSING = r"^gym: needs reasoning-gym, which is not installed: pip install 'gruppo\[gym\]'$"
WITHOUT_GOLD = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
SLOW = {
    "knight_swap",
    "arc_agi",
    "intermediate_integration",
    "puzzle24",
    "sudoku",
    "zebra_puzzles",
    "rearc",
    "word_ladder",
}


def score(task: Task, *answers: str | None) -> list[float | None]:
    episodes = [Episode(task.id, "g", n, 0, answer=answer) for n, answer in enumerate(answers)]
    return [one.value for one in gym_score(task, episodes)]


@needs_gym
def test_tasks_are_what_the_seed_says() -> None:
    tasks = gym_tasks("gsm_symbolic", "train", 5)
    assert [task.id for task in tasks] == [f"gsm_symbolic-{n}" for n in range(5)]
    assert list(tasks) == list(gym_tasks("gsm_symbolic", "train", 120))[:5]
    assert (
        list(gym_tasks("gsm_symbolic", "train", 2, start=98)) == list(gym_tasks("gsm_symbolic", "train", 120))[98:100]
    )
    assert tasks[0].extra_info["family"] == "gsm_symbolic" and tasks[0].source == "reasoning_gym"
    assert score(tasks[0], tasks[0].result, f"It is {tasks[0].result}.", "", None, "no number") == [
        1.0,
        1.0,
        0.0,
        0.0,
        0.0,
    ]
    other = tasks_of("gym:chain_sum", Place(gym={"chain_sum": {"min_terms": 2, "max_terms": 2}}), "train", 3)
    assert all(len(re.findall(r" [+-] ", task.question)) == 1 for task in other)


@needs_gym
def test_no_two_splits_or_seeds_share_a_seed() -> None:
    ids = [task.id for split in ("train", "validation", "test") for seed in (0, 1, MAX_SEED)
           for task in gym_tasks("count_bits", split, 3, seed)]  # fmt: skip
    assert len(set(ids)) == 27
    last = gym_tasks("pool_matrix", "test", 1, MAX_SEED, start=TASKS_PER_SPLIT - 1)
    assert int(last[0].id.rpartition("-")[2]) < 2**32, "as large as numpy's seeds may be"


@needs_gym
@pytest.mark.parametrize(
    ("name", "answer", "value"),
    [
        ("n_queens", "__import__('os').system('touch {}')", 0.0), ("string_insertion", "[open('{}', 'w')]", 0.0),
        ("countdown", "__import__('os').system('touch {}')", 0.01), ("puzzle24", "open('{}', 'w')", 0.01),
        ("simple_integration", "open('{}', 'w')", 0.0), ("polynomial_multiplication", "open('{}', 'w')", 0.0),
        ("countdown", "9**9**9**9**9", 0.01), ("spiral_matrix", "[1].append(open('{}', 'w'))", 0.0),
        ("binary_matrix", "open('{}', 'w')", None), ("intermediate_integration", "open('{}', 'w')", 0.0),
    ],
)  # fmt: skip
def test_no_answer_is_run(tmp_path: Path, name: str, answer: str, value: float | None) -> None:
    target = tmp_path / "written"
    (task,) = gym_tasks(name, "train", 1)
    (found,) = score(task, answer.replace("{}", str(target)))
    assert (
        not target.exists() and found is not None and (value is None or found == pytest.approx(value)) and found < 0.1
    )
    assert score(task, task.result) == [1.0], "and the guarded scorer still pays"


@needs_gym
def test_every_place_that_evaluates_an_answer_is_guarded() -> None:
    spec = find_spec("reasoning_gym")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    found = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if re.search(r"(?:\beval|\bexec|parse_expr|sympify)\(\s*(?:user_)?answer\b", path.read_text("utf-8"))
    }
    assert found == {*EVALUATING, *PARSING}


@pytest.mark.parametrize(
    "text",
    ["(1+2)*3", "x**2 + sin(x)", "3.5/2", "exp(x)*C", "-x**3/3", "sqrt(2)*pi", "2**10", "(x+1)**2*x**9 - x**8/3"],
)
def test_arithmetic_is_let_through(text: str) -> None:
    assert is_arithmetic(text)


@pytest.mark.parametrize(
    "text",
    ["open(x)", "x.diff", "x .real", "(1).real", "__import__", "'a'", "[1]", "9**9**9", "1" * 31, "x" * 400, "lambda",
     "a_b", "9**9999", "x;y", "x=1", "x:1", "2**(9999)", "(9**99)**99", "eval(x)", "\u00b2", "factorial(9)", "x!"],
)  # fmt: skip
def test_all_else_is_not(text: str) -> None:
    assert not is_arithmetic(text)


@needs_gym
def test_what_is_no_gym_task() -> None:
    place = Place()
    for action, expected in [
        (
            lambda: gym_tasks("gsm_symbolik", "train", 1),
            "gym:gsm_symbolik: no such generator: did you mean gsm_symbolic?",
        ),
        (lambda: gym_tasks("lcm", "eval", 1), "gym:lcm: no split 'eval'"),
        (lambda: gym_tasks("lcm", "train", 1, -1), "gym:lcm: seed -1: expected 0 to"),
        (lambda: gym_tasks("lcm", "train", 2, start=TASKS_PER_SPLIT - 1), "a split has 1,000,000"),
        (lambda: gym_tasks("lcm", "train", 1, settings={"min_number": 3}), "gym:lcm: TypeError: .*min_number"),
        (lambda: gym_tasks("lcm", "train", 1, settings={"min_numbers": 0}), "gym:lcm: AssertionError"),
        (lambda: gym_tasks("lcm", "train", 1, settings={"size": 3}), "size is no setting of a generator"),
        (lambda: tasks_of("gym:lcm", place), "a generator goes on for ever; say how many"),
        (lambda: tasks_of("gym:lcm[:5]", place, "train", 5), "a generator has no end to count from"),
    ]:
        with pytest.raises(DataError, match=expected):
            action()
    assert score(Task("0", "q", "r"), "r") == [None]
    (task,) = gym_tasks("lcm", "train", 1)
    assert score(Task(task.id, "another question", task.result, extra_info=task.extra_info), task.result) == [None]
    assert len(mixture({"gym:lcm": 1, "gym:gcd": 1}, place, "train", 6)) == 6


@needs_gym
def test_its_scorer_is_a_reward_by_name() -> None:
    config = load(RunConfig, [], {"rewards": "{gym = 2.0}"})
    check(load(RunConfig, [], {"rewards": "{gym = 1.0}"}))
    ((reward, weight),) = find_rewards(config).values()
    (task,) = gym_tasks("rubiks_cube", "train", 1)  # which has no published answer
    episodes = [Episode(task.id, "g", n, 0, answer=answer) for n, answer in enumerate(("not one", None))]
    assert (reward, weight) == (gym_score, 2.0) and reward(task, episodes)[1] == Score(0.0, "wrong: no answer")
    mixed = load(RunConfig, [], {"rewards": "{by_source = 1.0}", "reward.by_source": '{reasoning_gym = "gym"}'})
    ((by_source, _),) = find_rewards(mixed).values()
    (sum_,) = gym_tasks("chain_sum", "train", 1)
    right = Episode(sum_.id, "g", 0, 0, answer=sum_.result)
    assert by_source(sum_, [right]) == [Score(1.0)]


@needs_gym
def test_a_process_that_hangs_or_dies_is_replaced() -> None:
    process = GymProcess(seconds=0.01)
    make = {"do": "make", "name": "knight_swap", "settings": {}, "seed": 0, "size": 100, "start": 0, "stop": 100}
    with pytest.raises(DataError, match="reasoning-gym ended or hung: no reply in 0.01 s"):
        process.ask(make)
    process.seconds = 60
    assert "lcm" in process.ask({"do": "names"})
    assert process._process is not None
    process._process.kill()
    assert "ended or hung" in process.ask({"do": "names"}, may_fail=True)
    assert "lcm" in process.ask({"do": "names"})
    process.close()


def test_what_is_said_without_reasoning_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # so that it is not found
    config = load(RunConfig, [], {"rewards": "{gym = 1.0}"})
    with pytest.raises(DataError, match=MISSING):
        find_rewards(config)
    shared().close()
    with pytest.raises(DataError, match=MISSING):
        gym_tasks("lcm", "train", 1)


@needs_gym
@pytest.mark.slow
def test_every_generator_pays_for_its_own_answer_and_for_nothing_else() -> None:
    names = gym_names()
    assert len(names) == 105
    for name in names:
        tasks = gym_tasks(name, "test", 1 if name in SLOW else 2)
        for task in tasks:
            assert task.question.strip() and bool(task.result) == (name not in WITHOUT_GOLD), name
            right, nothing = score(task, task.result or "x", "")
            assert name in WITHOUT_GOLD or right == 1.0, name
            assert nothing is not None and nothing < 0.5, name
