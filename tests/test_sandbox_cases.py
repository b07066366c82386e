"""Faults of other sandboxes that people reported, as cases/sandbox.jsonl has them with their sources: not ours."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sandbox_tools import is_tidy, num_resting, run

from gruppo.tools.python import PythonTool
from gruppo.types import ToolResult

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "sandbox.jsonl").read_text().splitlines()]


def case(number: str) -> Any:
    """The public report with this number: its input."""
    (found,) = [case for case in CASES if case["id"] == number]
    return found["input"]


def test_a_grandchild_that_holds_the_output_open(brief: PythonTool) -> None:  # g001
    if brief.level == "landlock":  # where the Python in root's home can't be run
        code = case("g001")["code"].replace("[sys.executable,'-c','import time;time.sleep(30)']", "['sleep', '30']")
    else:
        code = case("g001")["code"]
    children = num_resting(brief)
    started = time.monotonic()
    assert run(brief, code) == ToolResult(True, "parent done\n")
    assert time.monotonic() - started < 1 and is_tidy(brief, children)


def test_endless_output_costs_us_no_memory(brief: PythonTool) -> None:  # g003
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    result = run(brief, case("g003")["code"])
    assert not result.ok and len(result.output) <= 3500 and "cut:" in result.output
    assert resident() - before < 64 << 20


@pytest.mark.parametrize("size", [4_000, 5_000_000, 100_000_000])
def test_head_and_tail_of_a_long_output_are_shown(python: PythonTool, size: int) -> None:  # g004
    result = run(python, f"print('FIRST' + 'x' * {size})\nprint('LAST LINE')")
    assert result.ok and len(result.output) == 3500 and "[cut: " in result.output
    assert result.output.startswith("FIRST") and result.output.endswith("LAST LINE\n")


def test_input_finds_nothing(brief: PythonTool) -> None:  # g005
    assert run(brief, case("g005")["code"]) == ToolResult(False, "n? ", "EOFError: EOF when reading a line (line 1)")


def test_bytes_that_are_no_text(brief: PythonTool) -> None:  # g007
    result = run(brief, case("g007")["code"])
    assert result.ok and result.output.startswith("ok\N{REPLACEMENT CHARACTER}")


def test_calls_from_a_thread(brief: PythonTool) -> None:  # g008
    results: list[ToolResult] = []
    thread = threading.Thread(target=lambda: results.append(run(brief, case("g008")["code"])))
    thread.start()
    thread.join()
    assert results == [ToolResult(True, "1024\n")]


def test_exits_end_the_call_alone(brief: PythonTool) -> None:  # g010
    assert run(brief, case("g010")["code"]) == ToolResult(False, "a\n", "the process ended with exit status 3")
    for code in ("import os\nos._exit(7)", "raise KeyboardInterrupt", "quit()", "exit(2)", "raise SystemExit"):
        run(brief, f"print('a', flush=True)\n{code}")
        assert run(brief, "print(1)").ok


def test_files_land_in_one_folder_whatever_ours_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # g013
    monkeypatch.chdir(tmp_path)
    python = PythonTool(work_dir=case("g013")["work_dir"], concurrent=1)
    (tmp_path / "other").mkdir()
    for name in ("first", "second"):
        code = (
            f"import os\nos.mkdir('in')\nopen('in/{name}', 'w').write('{name}')\nos.symlink('/etc', 'link')\nprint(1)"
        )
        assert run(python, code).ok
        monkeypatch.chdir(tmp_path / "other")
    python.close()
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"out/in/first": "first", "out/in/second": "second"}


def test_an_integer_too_long_to_print(brief: PythonTool) -> None:  # g015
    assert run(brief, case("g015")["code"]).error.startswith("ValueError: Exceeds the limit (4300 digits)")


def test_memory_taken_in_a_loop(python: PythonTool) -> None:  # g016
    assert run(python, case("g016")["code"]).error == "MemoryError (line 2)"
    assert run(python, "print(1)").ok


def test_a_sleeper_is_gone_in_time(brief: PythonTool) -> None:  # g017
    children = num_resting(brief)
    started = time.monotonic()
    assert run(brief, case("g017")["code"]).timed_out
    assert time.monotonic() - started < 4 and is_tidy(brief, children)


def test_every_case_is_tested() -> None:
    text = Path(__file__).read_text()
    assert not [case["id"] for case in CASES if f"# {case['id']}" not in text]
