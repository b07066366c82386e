"""The lessons of examples/hello_agents: each runs as a program, on the packaged model, and says what it should.

Every lesson is a process, forked from this one, which has imported torch; `make test-all` also starts each anew, at its
own sizes.
"""

from __future__ import annotations

import ast
import inspect
import json
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

import gruppo.tool  # noqa: F401  what nearly all lessons take their time with

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "examples" / "hello_agents"
SCRIPTS = sorted(path.name for path in LESSONS.glob("[0-9]*.py"))
README = (LESSONS / "README.md").read_text()
SMALL = ("--samples", "8", "--epochs", "2", "--tokens", "24")
SECONDS = 100
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

Lesson = Callable[..., str]

pytestmark = pytest.mark.timeout(300)  # the first lesson waits until torch is imported, on a busy machine for minutes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all lessons run: a later one finds what an earlier one trained, if that was run here."""
    return tmp_path_factory.mktemp("lessons")


@pytest.fixture(scope="module")
def lesson(folder: Path) -> Lesson:
    """Run a lesson with words; what it printed, once it has ended with the exit code that is expected."""

    def run(script: str, *words: str, code: int = 0) -> str:
        output = folder / f"{script}.txt"
        process = multiprocessing.get_context("fork").Process(target=live, args=(script, words, folder, output))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads at a fork
            process.start()
        process.join(SECONDS)
        if process.is_alive() and process.pid:
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it started
        process.join()
        said = output.read_text()
        assert process.exitcode == code, f"{script} ended with {process.exitcode}, not {code}:\n{said}"
        assert "Traceback" not in said
        return said

    return run


def live(script: str, words: Sequence[str], folder: Path, output: Path) -> None:
    """The life of a process: as `python script words` in that folder."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setsid()
    os.chdir(folder)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # in place of pytest's own
    sys.argv, sys.path[0] = [script, *words], str(LESSONS)
    runpy.run_path(str(LESSONS / script), run_name="__main__")


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?[0-9]+\.?[0-9]*", line)]


def line_of(said: str, start: str) -> str:
    """The one line that begins so, without its beginning."""
    (found,) = [line.strip() for line in said.splitlines() if line.strip().startswith(start)]
    return found.removeprefix(start)


# ---- the folder ------------------------------------------------------------------------------------------------------


def test_every_script_is_in_the_table_and_run_by_the_test_that_the_table_names() -> None:
    rows = re.findall(
        r"^\| [0-9.]+ \| .* \| \[(.*?)\]\((.*?)\) \| `(.*?)` \|$", (LESSONS / "README.md").read_text(), re.M
    )
    assert {script for script, _, _ in rows} == set(SCRIPTS) and all(script == link for script, link, _ in rows)
    for script, _, test in rows:
        assert f'"{script}"' in inspect.getsource(globals()[test]), f"{test} does not run {script}"


@pytest.mark.parametrize("path", sorted(LESSONS.glob("*.py")), ids=lambda path: path.name)
def test_lessons_are_short_and_say_how_they_are_run(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 80
    tree = ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert ast.get_docstring(tree) and all(map(ast.get_docstring, functions))
    if path.name in SCRIPTS:
        assert f"python examples/hello_agents/{path.name}" in text
        assert text.startswith(f'"""Lesson {int(path.name[:2])}, ')


# ---- the lessons -----------------------------------------------------------------------------------------------------


def test_the_installation_is_looked_at(folder: Path) -> None:
    command = [sys.executable, str(LESSONS / "01_install.py")]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "torch 2." in done.stdout and done.stdout.endswith("ready: go on with 02_first_run.py\n")


def test_the_first_run(lesson: Lesson, folder: Path) -> None:
    said = lesson("02_first_run.py", *SMALL)
    assert line_of(said, "SFT done: ") == "runs/hello_agents/first_sft"
    accuracy, reward, count = numbers(line_of(said, "accuracy "))
    assert accuracy / 100 == pytest.approx(reward, abs=1e-3) and count == 10
    for run in ("first_sft", "first_grpo"):
        assert (folder / "runs" / "hello_agents" / run / "report.json").exists()


def test_data_in_both_forms(lesson: Lesson) -> None:
    said = lesson("03_data.py")
    assert "sft: 5 rows with prompt, completion, text" in said
    assert "rl: 5 rows with prompt, ground_truth, question, full_answer" in said
    assert line_of(said, "#### ") == line_of(said, "the final answer, after the last ####: ")
    assert "none: missing, empty, malformed" in said and "overlap" in line_of(said, "none: ")


def test_a_missing_data_set_is_one_line_that_says_what_to_put_where(lesson: Lesson) -> None:
    said = lesson("03_data.py", "--dataset", "gsm8k", code=1)
    assert "data/gsm8k/" in said.splitlines()[-1] and said.splitlines()[-1].startswith("error: ")


def test_rewards(lesson: Lesson) -> None:
    said = lesson("04_rewards.py")
    paid = {name: numbers(line_of(said, name)[-48:]) for name in ("right  ", "right, as 72.0", "wrong  ", "wrong, in")}
    assert paid["right  "] == [1.0, 1.0, 1.3, 1.1] and paid["right, as 72.0"] == [1.0] * 4
    assert numbers(line_of(said, "right, after 500 words")) == [1.0, 0.7, 1.0, 0.9]
    assert paid["wrong  "] == paid["wrong, in"] == [0.0] * 4
    assert said.count(", right\n") == 4 and "WRONG" not in said and "balanced: " in said


def test_own_data_and_an_own_reward(lesson: Lesson) -> None:
    said = lesson("05_own_data.py", *SMALL)
    assert "'completion': 'Step 1: 2 + 2 = 4." in said and "'ground_truth': '4'" in said
    assert "SFT on 11 rows of our own" in said
    assert line_of(said, "three answers: ") == "[1.0, 0.5, 0.0]"
    assert 0 <= numbers(line_of(said, "GRPO with our own reward: "))[0] <= 1


def test_sft(lesson: Lesson) -> None:
    said = lesson("06_sft.py", *SMALL)
    assert "16,777,216 weights, its adapter of rank 8: 65,536, 256 times fewer" in said
    assert numbers(line_of(said, "final loss "))[0] < numbers(line_of(said, "step   1: loss"))[0]
    assert numbers(line_of(said, "base: "))[0] == 0 and "after SFT: accuracy" in said


def test_grpo(lesson: Lesson) -> None:
    said = lesson("07_grpo.py", *SMALL)
    assert "less their mean [0.3, 0.3, -0.7, 0.1]" in said
    assert "step   1: reward" in said and "runs/hello_agents/grpo" in line_of(said, "mean reward")


def test_evaluation(lesson: Lesson) -> None:
    said = lesson("08_evaluation.py", *SMALL, "--problems", "4")
    assert said.splitlines()[-1] and line_of(said, "4 problems").split() == ["base", "SFT", "GRPO"]
    for metric in ("accuracy_at_k", "average_length", "average_steps", "format_correctness"):
        assert len(numbers(line_of(said, f"{metric} "))) == 3
    assert line_of(said, "GRPO: accuracy ").count("%") == 4


def test_mistakes(lesson: Lesson) -> None:
    said = lesson("09_mistakes.py", *SMALL)
    wrong, total = numbers(line_of(said, "the model gives "))
    kinds = re.findall(r"^(\w+): ([0-9]+) \(", said, re.MULTILINE)
    assert wrong <= total == 16 and sum(int(number) for _, number in kinds) == wrong
    assert set(re.findall(r"^([0-9+-]+) steps: ", said, re.MULTILINE)) == {"1-2", "3-4"}


@pytest.mark.slow
def test_the_pipeline_and_its_gate(lesson: Lesson, folder: Path) -> None:
    sizes = {"num_epochs": 1, "batch_size": 4, "gradient_accumulation_steps": 2}
    plan = {"data": {"max_samples": 4}, "sft": sizes, "grpo": {**sizes, "num_generations": 4}, "monitoring": {}}

    def run(threshold: float, code: int) -> tuple[list[str], dict]:
        own = {**plan, "eval": {"max_samples": 4, "sft_accuracy_threshold": threshold}}
        (folder / "plan.json").write_text(json.dumps(own))
        said = lesson("10_pipeline.py", "--plan", "plan.json", "--tokens", "16", code=code).splitlines()
        return said, json.loads((folder / "runs/hello_agents/training_results.json").read_text())

    said, results = run(0.0, 0)
    assert [line[:3] for line in said if line[1:3] == "/6"] == [f"{number}/6" for number in range(1, 7)]
    assert {"sft", "grpo"} < results.keys() and results["plan"]["data"] == plan["data"]
    assert results["sft_evaluation"]["num_samples"] == results["grpo_evaluation"]["num_samples"] == 4
    said, results = run(1.0, 1)
    assert said[-1].startswith("stopped before GRPO") and "grpo" not in results and "sft_evaluation" in results


@pytest.mark.slow
def test_search(lesson: Lesson) -> None:
    said = lesson("11_search.py", "--samples", "4", "--epochs", "1", "--tokens", "16", "--trials", "1")
    methods = ["grid", "random", *(["bayesian"] if find_spec("optuna") else [])]
    assert [line.partition(":")[0] for line in said.splitlines() if ": accuracy " in line] == methods
    assert set(numbers(said.partition("best of ")[2])[1:2]) <= {0.0} | {n / 16 for n in range(1, 17)}
    assert f"best of {len(methods)}: " in said


@pytest.mark.slow
def test_two_processes(lesson: Lesson) -> None:
    said = lesson("12_processes.py", *SMALL)
    assert "two processes took the same steps as one" in said
    alone, together = (numbers(line_of(said, f"{number} in parallel: "))[1:] for number in (1, 2))
    assert len(alone) >= 4 and min(alone) > 0 and together == pytest.approx(alone, rel=1e-3)
    assert "64 sequences a step: learning rate 1.0e-04" in said


def test_merging_and_serving(lesson: Lesson, folder: Path) -> None:
    said = lesson("13_merge.py", *SMALL)
    assert line_of(said, "adapter: ") == line_of(said, "merged: ") and "8 of 8 answers are the same" in said
    assert (folder / "runs/hello_agents/merged/model.safetensors").exists()
    said = lesson("14_serve.py", *SMALL)
    assert "/v1" in line_of(said, "serving ") and "asked: " in said and "answered: " in said


def test_another_model_is_one_argument(lesson: Lesson) -> None:
    said = lesson("03_data.py", "--model", str(ROOT / "gruppo" / "models" / "tiny"))
    assert "sft: 5 rows" in said
    said = lesson("03_data.py", "--model", "nobody/nothing", code=1)
    assert "nobody/nothing" in said.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_each_lesson_is_a_program_with_sizes_that_take_seconds(script: str, tmp_path: Path) -> None:
    command = [sys.executable, str(LESSONS / script)]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
