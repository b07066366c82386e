"""The known bugs of `benchmarks/mutations.py` can all be made in this tree; one of them is tried from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from mutations import MUTATIONS, mutate  # noqa: E402


def test_every_mutation_has_a_name_of_its_own_and_test_files_that_exist() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) > 30
    tests = {name for mutation in MUTATIONS for name in mutation.tests.split()}
    assert not [name for name in tests if not (ROOT / "tests" / f"test_{name}.py").exists()]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_its_old_text_is_there_exactly_once_and_the_new_one_is_python(mutation, tmp_path: Path) -> None:
    copy = tmp_path / "gruppo" / mutation.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / "gruppo" / mutation.file).read_text())
    mutate(mutation, tmp_path)
    compile(copy.read_text(), mutation.name, "exec")


def test_a_text_that_is_gone_is_an_error(tmp_path: Path) -> None:
    copy = tmp_path / "gruppo" / MUTATIONS[0].file
    copy.parent.mkdir(parents=True)
    copy.write_text("something else")
    with pytest.raises(ValueError, match=f"mutation {MUTATIONS[0].name}: .* is 0 times in"):
        mutate(MUTATIONS[0], tmp_path)


@pytest.mark.slow
def test_a_mutation_is_caught(tmp_path: Path) -> None:
    script, file = str(ROOT / "benchmarks" / "mutations.py"), tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, script, "--only", "return-reset", "--json", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert (found["total"], found["caught"]) == (1, 1)
    assert found["mutations"][0]["test"].startswith("tests/test_shaping.py::")
