"""code_blocks.py: which text of a reply is the program; what comes out compiles where a reading of it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.code_blocks import compiles, extract_code

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "tool_calls.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((case["input"]["model_text"], case["expected"]["code"]) for case in CASES if "code" in case["expected"]),
        ("Here:\n```py\nx = 1\n```\nand\n```python\ny = 2\n```", "x = 1"),
        ("```\nx = 1\n```", "x = 1"),
        ("```bash\nls\n```\n~~~ {.python .numberLines}\nx = 1\n~~~", "x = 1"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("1. So:\n   ```python\n   if x:\n       y()\n   ```", "if x:\n    y()"),
        ("```python\nx = 1```", "x = 1"),
        ("```python print(1)```", "print(1)"),
        ("```python\nx = 1", "x = 1"),
        ("```python\rx = 1\r```", "x = 1"),
        ("<think>```python\nno\n```</think>```Python3\nyes\n```", "yes"),
        ("```python\nx = (\n```\nbroken, sorry", "x = ("),
        ('```python\ns = """\n```python\nx = 1\n```\n"""\n```\nDone.', 's = """\n```python\nx = 1\n```\n"""'),
        ('```python\nx = "\\d"\n```', 'x = "\\d"'),
        ("print(1)\n", "print(1)"),
        ("", ""),
    ],
)
def test_the_code_of_a_reply(text: str, code: str) -> None:
    assert extract_code(text) == code


def test_what_holds_no_python_is_named() -> None:
    for text, reason in (("```bash\nls\n```", "no block of Python"), ("<think>```python\n1\n```", "unterminated"),
                         ("x" * 100_001, "100001 characters")):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            extract_code(text)


@given(
    st.lists(st.sampled_from(["```\n", "```python\n", "\n", "x = 1\n", 's = """\n', '"""\n', "  ", "prose it is\n"]))
)
def test_a_program_is_found_whatever_is_in_its_texts(lines: list[str]) -> None:
    code = "s = '''\n" + "".join(lines) + "\n'''\nprint(s)"
    found = extract_code(f"Here:\n```python\n{code}\n```\nDone.")
    assert compiles(found) and found == code
