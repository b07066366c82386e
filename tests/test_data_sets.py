"""Every known data set, read from a small file of its exact schema, awkward rows included."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from gruppo.data.base import TaskSet
from gruppo.data.game24 import game24, makes_24
from gruppo.data.instruction import ANSWER_INSTRUCTION
from gruppo.data.selection import Place, tasks_of
from gruppo.data.sources import BENCHMARK_ROWS, SOURCES, usual_split
from gruppo.errors import DataError
from gruppo.types import Episode, Task

TAGGED = (
    "When ready, output the final answer enclosed in <answer> and </answer> tags. "
    "Do not generate any content after the </answer> tag."
)
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "(without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its own line "
    'after "Answer:".'
)
OPTIONS = "A. Ulcer\nB. Colitis\nC. Cancer\nD. None"


def dapo(problem: str, gold: str) -> dict:
    prompt = [{"content": DAPO.format(problem), "role": "user"}]
    reward = {"ground_truth": gold, "style": "rule-lighteval/MATH_v2"}
    return {"data_source": "math_dapo", "prompt": prompt, "ability": "MATH", "reward_model": reward,
            "extra_info": {"index": f"id of {problem}"}}  # fmt: skip


def flashrag(number: int, question: str, answers: object) -> dict:
    return {"id": f"dev_{number}", "question": question, "golden_answers": answers, "metadata": {"type": "bridge"}}


def gpqa(question: str, right: str, *wrong: str) -> dict:
    columns = {f"Incorrect Answer {n}": text for n, text in enumerate(wrong, 1)}
    return {"Record ID": "rec1", "Question": question, "Correct Answer": right, **columns, "Explanation": "e",
            "Subdomain": "Genetics", "Pre-Revision Question": "old"}  # fmt: skip


def deepmath(question: str, answer: str) -> dict:
    solutions = {f"r1_solution_{n}": "<think> long" for n in (1, 2, 3)}
    return {
        "question": question,
        "final_answer": answer,
        "difficulty": 4.5,
        "topic": "Mathematics -> Limits",
        **solutions,
    }


def gaia(question: str, answer: str, file_name: str = "") -> dict:
    return {"task_id": "c61d", "Question": question, "Level": "2", "Final answer": answer, "file_name": file_name,
            "file_path": "", "Annotator Metadata": {"Steps": "1. look"}}  # fmt: skip


SETS = {  # name -> file, rows, (question, result) of each task
    "gsm8k": ("main/train-00000-of-00001.parquet", [
        {"question": "How many clips?", "answer": "48/2 = <<48/2=24>>24\n#### 72"},
        {"question": "\u00a3 in all?", "answer": "It is 2,125.\n#### 2,125"},
    ], [("How many clips?", "72"), ("\u00a3 in all?", "2125")]),
    "deepmath": ("data/train-00000-of-00010.parquet",
        [deepmath("Is it compact?", "No"), deepmath("Limit?", r"\frac{1}{2}")],
        [("Is it compact?", "No"), ("Limit?", r"\frac{1}{2}")]),
    "nq": ("nq/train.jsonl", [flashrag(0, "who is it", ["a", "b"]), flashrag(1, "how many?", [2]), flashrag(2, "x", []),
        flashrag(3, "when", "1969"), flashrag(4, "how much", 3.0)],
        [("who is it?", "a; b"), ("how many?", "2"), ("when?", "1969"), ("how much?", "3")]),
    "aime24": ("aime_2024_problems.parquet", [
        {"ID": "2024-II-4", "Problem": "Find $m+n$.", "Solution": "s", "Answer": 33},
        {"ID": "2024-I-12", "Problem": f"Count.\n\n{ANSWER_INSTRUCTION}", "Solution": "s", "Answer": 384},
        {"ID": "2024-II-3", "Problem": f"Fill.{TAGGED}", "Solution": "s", "Answer": 45},
    ], [(f"{p}\n\n{ANSWER_INSTRUCTION}", gold) for p, gold in (("Find $m+n$.", "33"), ("Count.", "385"),
    ("Fill.", "45"))]),
    "dapo": ("data/dapo-math-17k.parquet", [dapo("q1", "3"), dapo("q1", "3"), dapo("q2", "034")], [("q1", "3"),
    ("q2", "34")]),
    "hotpotqa": ("hotpotqa/dev.jsonl", [flashrag(0, "Who worked with it?", ["Jean Erdman"])],
        [("Who worked with it?", "Jean Erdman")]),
    "2wiki": ("2wikimultihopqa/dev.jsonl", [flashrag(0, "Which film?", ["Short Term 12"])],
        [("Which film?", "Short Term 12")]),
    "musique": ("musique/dev.jsonl", [flashrag(0, "Who plays the wife?", ["Joyce", "J. Van Patten"])],
        [("Who plays the wife?", "Joyce; J. Van Patten")]),
    "bamboogle": ("bamboogle/test.jsonl", [flashrag(0, "Who was president?", ["james madison"])],
        [("Who was president?", "james madison")]),
    "gaia": ("2023/validation/metadata.parquet",
        [gaia("Which word?", "egalitarian"), gaia("In the file?", "3", "a.xlsx"), gaia("Secret?", "?")],
        [("Which word?", "egalitarian")]),
    "gpqa": ("gpqa_diamond.csv", [gpqa("Ratio?", "0.9", "0.7", "0.1", "0.3")], None),
    "medqa": ("phrases_no_exclude_test.jsonl", [{"question": "Greatest risk?", "answer": "Cancer", "options":
        {"A": "Ulcer", "B": "Colitis", "C": "Cancer", "D": "None"}, "meta_info": "step1", "answer_idx": "C",
        "metamap_phrases": ["x"]}], [(f"Greatest risk?\n\n{OPTIONS}", "C")]),
    "amc23": ("test-00000-of-00001.parquet", [{"id": 0, "question": "How far?", "answer": 27.0, "url": "u"}],
        [("How far?", "27")]),
    "gameof24": ("data/train-00000-of-00001.parquet", [
        {"numbers": [1, 1, 4, 6], "solutions": ["(1+1)*(4*6)/2"], "solvable": True},
        {"numbers": [1, 1, 1, 1], "solutions": [], "solvable": False}], None),
}  # fmt: skip

BENCHMARKS = {  # AgentFlow's own files
    "2wiki": ([{"query": "Which film?", "image": None, "answer": "Money", "pid": 0}], ("Which film?", "Money")),
    "musique": ([{"query": "When?", "image": None, "answer": "March 29, 2018", "pid": 0}], ("When?", "March 29, 2018")),
    "bamboogle": ([{"idx": 0, "question": f"Who was it?{TAGGED}", "answer": ["james madison"], "gen_text_store": "",
        "pid": "0", "query": "Who was it?", "image": None}], ("Who was it?", "james madison")),
    "hotpotqa": ([{"idx": 0, "question": f"What is he?{TAGGED}", "answer": ["Prussian"], "gen_text_store": "",
        "pid": "0", "query": "What is he?", "image": None}], ("What is he?", "Prussian")),
    "aime24": ([{"idx": 0, "question": f"Find $m+n$.{TAGGED}", "answer": 33, "gen_text_store": "", "pid": "0"}],
        (f"Find $m+n$.\n\n{ANSWER_INSTRUCTION}", "33")),
    "amc23": ([{"pid": "0", "question": "How far?", "answer": 27, "image": None, "query": "How far?"}],
        ("How far?", "27")),
    "gaia": ([{"pid": "0", "question": "Which?", "answer": "a", "query": "Which?", "task_id": "t", "Question": "Which?",
        "Level": "1", "Final answer": "a", "file_name": "", "split": "validation"}], ("Which?", "a")),
    "gpqa": ([{"pid": "0", "question": "Ratio?", "choices": ["A. 0.9", "B. 0.7"], "answer_idx": 0, "answer": "A. 0.9",
        "query": "Ratio?\nChoices:\nA. 0.9\nB. 0.7"}], ("Ratio?\n\nA. 0.9\nB. 0.7", "A")),
    "medqa": ([{"idx": 0, "question": f"Greatest risk?\n{OPTIONS}\n\n{OPTIONS}", "options": OPTIONS.split("\n"),
        "answer": "Colitis", "pid": "0", "query": "q"}], (f"Greatest risk?\n\n{OPTIONS}", "B")),
    "gameof24": ([{"pid": "0", "question": [1, 1, 1, 8], "answer": ["(1+1+1)\u00d78"], "image": None,
        "query": "Use"}], None),
}  # fmt: skip


def put(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text(f"[{','.join(lines)}]" if path.suffix == ".json" else "\n".join(lines) + "\n", encoding="utf-8")
    return path


def shown(tasks: TaskSet) -> list[tuple[str, str]]:
    return [(task.question, task.result) for task in tasks]


def test_every_known_set_has_a_file_here() -> None:
    assert SETS.keys() == SOURCES.keys() and BENCHMARK_ROWS.keys() <= SOURCES.keys()
    assert all(source.num_rows.keys() == source.files.keys() for source in SOURCES.values())


@pytest.mark.parametrize("name", SETS)
def test_each_known_set_is_read_as_published(tmp_path: Path, name: str) -> None:
    file, rows, expected = SETS[name]
    put(tmp_path / name / file, rows)
    tasks = tasks_of(name, Place(tmp_path))
    assert expected is None or shown(tasks) == expected
    assert list(tasks) == list(tasks_of(f"{name}:{usual_split(name)}", Place(tmp_path)))
    for task in tasks:
        assert task.source and task.extra_info["ground_truth"] and rows[task.extra_info["idx"]]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_file_is_read(tmp_path: Path, name: str) -> None:
    rows, expected = BENCHMARKS[name]
    put(tmp_path / name / "data.json", rows)
    tasks = tasks_of(name, Place(tmp_path))
    assert expected is None or shown(tasks) == [expected]
    assert list(tasks) == list(tasks_of(f"{name}:benchmark", Place(tmp_path)))


def test_details_that_are_kept(tmp_path: Path) -> None:
    for name in ("gsm8k", "deepmath", "gaia", "nq", "aime24"):
        put(tmp_path / name / SETS[name][0], SETS[name][1])
    (clips, _), (compact, _) = (tasks_of(name, Place(tmp_path)) for name in ("gsm8k", "deepmath"))
    assert clips.chain == "48/2 = <<48/2=24>>24" and clips.extra_info["full_answer"].endswith("#### 72")
    assert compact.source == "mathhard" and compact.extra_info["difficulty"] == 4.5
    assert tasks_of("gaia", Place(tmp_path))[0].extra_info["difficulty"] == 2
    assert tasks_of("nq", Place(tmp_path))[0].extra_info["original_id"] == "dev_0"
    counted = tasks_of("aime24", Place(tmp_path))[1].extra_info
    assert counted["original_problem"] == "Count." and counted["published_answer"] == "384"


def test_the_rows_of_gaia_by_level_are_not_taken_twice(tmp_path: Path) -> None:
    file, rows, _ = SETS["gaia"]
    for name in (file, file.replace(".parquet", ".level2.parquet")):
        put(tmp_path / "gaia" / name, rows)
    assert len(tasks_of("gaia", Place(tmp_path))) == 1


def test_the_right_choice_is_not_always_the_first_and_always_the_same(tmp_path: Path) -> None:
    rows = [gpqa(f"Ratio {n}?", "right", "x", "y", "z") for n in range(60)]
    put(tmp_path / "gpqa" / "gpqa_diamond.csv", rows)
    tasks = tasks_of("gpqa", Place(tmp_path))
    assert all(count > 5 for count in Counter(task.result for task in tasks).values())
    assert all(f"{task.result}. right" in task.question for task in tasks)
    put(tmp_path / "gpqa" / "gpqa_diamond.csv", rows[::-1])
    assert sorted(shown(tasks)) == sorted(shown(tasks_of("gpqa", Place(tmp_path))))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"options": {"A": "x", "B": "y", "C": None, "D": None}, "answer": "y", "answer_idx": "B"}, "B"),
        ({"options": {"A": "x", "B": "y"}, "answer": None, "answer_idx": "B"}, "B"),
        ({"options": ["x", "y"], "answer": "y"}, "B"), ({"options": ["x", "y"], "answer": "B"}, "B"),
        ({"options": ["C. elegans", "E. coli"], "answer": "E. coli"}, "B"),
        ({"options": ["A) x", "B) y"], "answer": "x"}, "A"),
        ({"options": ["1", "2"], "answer": 2, "answer_idx": 1}, "B"),
        ({"options": ["x", "x"], "answer": "x", "answer_idx": 1}, "B"),
        ({"options": ["x", "y"], "answer": "z"}, "the answer 'z' is none of the options"),
        ({"options": ["x", "y"], "answer": "x", "answer_idx": 1}, "answer_idx = 1, but the answer 'x' is option A"),
        ({"options": ["x", "y"], "answer": "x", "answer_idx": "E"}, "answer_idx = 'E': there are 2 options"),
        ({"options": ["x", "y"], "answer": "x", "answer_idx": 5}, "answer_idx = 5: there are 2 options"),
        ({"options": ["x"], "answer": "x"}, "expected 2 to 26 options"),
        ({"options": ["x", ""], "answer": "x"}, "expected 2 to 26"),
        ({"options": {"A": "x", "C": "y"}, "answer": "x"}, "the letters of the options are"),
        ({"answer": "x"}, "no column 'options'"), ({"options": "x", "answer": "x"}, "expected a list of options"),
    ],
)  # fmt: skip
def test_options_in_every_form(tmp_path: Path, row: dict, expected: str) -> None:
    put(tmp_path / "medqa" / "test.json", [{"question": "q"} | row])
    if len(expected) == 1:
        assert tasks_of("medqa", Place(tmp_path))[0].result == expected
    else:
        with pytest.raises(DataError, match="medqa: row 1: ") as caught:
            tasks_of("medqa", Place(tmp_path))
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("gsm8k", {"question": "q", "answer": "no mark"}, "gsm8k: row 1: no '####' with an answer after it"),
        ("gsm8k", {"question": " ", "answer": "#### 1"}, "gsm8k: row 1: column 'question' is empty"),
        ("gsm8k", {"quesiton": "q", "answer": "#### 1"}, "row 1: no column 'question': did you mean quesiton?"),
        ("gsm8k", {"question": 5, "answer": "#### 1"}, "row 1: column 'question': expected text, not 5"),
        ("nq", {"question": "q", "golden_answers": {"a": 1}}, "row 1: expected an answer (text, a number or a list"),
        ("nq", {"question": "\ud800", "golden_answers": ["a"]}, "holds half a character"),
        ("gameof24", {"numbers": [1, 2, 3]}, "row 1: expected four numbers, not [1, 2, 3]"),
        ("dapo", {"prompt": [], "reward_model": {"ground_truth": "1"}}, "row 1: column 'prompt': expected text or"),
        ("aime24", {"ID": "x", "Problem": "p", "Answer": None}, "row 1: column 'Answer' is empty"),
    ],
)  # fmt: skip
def test_a_broken_row_is_named(tmp_path: Path, name: str, row: dict, expected: str) -> None:
    path = tmp_path / name / f"{usual_split(name)}.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError) as caught:
        tasks_of(name, Place(tmp_path))
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_the_originals_of_question_sets(tmp_path: Path) -> None:
    rows = [
        {"id": "2hop", "question": "Who?", "answer": "Ann", "answer_aliases": ["ann", "Ann B."], "answerable": True,
         "paragraphs": []},
        {"id": "3hop", "question": "Who?", "answer": "x", "answer_aliases": [], "answerable": False, "paragraphs": []},
    ]  # fmt: skip
    put(tmp_path / "musique" / "dev.jsonl", rows)
    assert shown(tasks_of("musique", Place(tmp_path))) == [("Who?", "Ann; Ann B.")]
    put(tmp_path / "bamboogle" / "test.csv", [{"Question": "Who?", "Answer": "Ann"}])
    assert shown(tasks_of("bamboogle", Place(tmp_path))) == [("Who?", "Ann")]
    put(
        tmp_path / "hotpotqa" / "dev.json", [{"_id": "5a8b", "question": "Who?", "answer": "yes", "type": "comparison"}]
    )
    assert shown(tasks_of("hotpotqa", Place(tmp_path))) == [("Who?", "yes")]


# ---- game of 24 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "numbers", "is_right"),
    [
        ("(1+1+1)\u00d78", [1, 1, 1, 8], True), ("(1+1+1)*8 = 24", [1, 1, 1, 8], True), ("24", [1, 1, 1, 8], False),
        ("8*3", [1, 1, 1, 8], False), ("(1+1+1)*8", [1, 1, 8, 8], False), ("8/(3-8/3)", [3, 3, 8, 8], True),
        ("9+9+7-1", [1, 7, 9, 9], True), (r"$(1+1+1)\times 8$", [1, 1, 1, 8], True),
        ("(1+1+1)*8=25", [1, 1, 1, 8], False),
        ("", [1, 1, 1, 8], False), ("1/0*8+1", [0, 1, 1, 8], False), ("(" * 99 + "1", [1], False),
        ("((1+1+1)*8", [1, 1, 1, 8], False),
        ("1+1+1**8", [1, 1, 1, 8], False), ("__import__('os')", [1], False), ("11-1*8", [1, 1, 1, 8], False),
        ("[1+1+1]\u00f71\u00d78", [1, 1, 1, 1, 8], True), ("(1+1+1) 8", [1, 1, 1, 8], False),
        ("1e1+14", [1, 1, 14], False),
    ],
)  # fmt: skip
def test_expressions_that_make_24(expression: str, numbers: list[int], is_right: bool) -> None:
    assert makes_24(expression, numbers) is is_right
    task = Task("0", "q", "", extra_info={"numbers": numbers})
    assert game24(task, [Episode("0", "g", 0, 0, answer=expression), Episode("0", "g", 0, 0)]) == [float(is_right), 0.0]
