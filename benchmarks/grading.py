"""How fast answers are graded: pairs of plain numbers per second, and the slowest of a set of hostile answers.

    python benchmarks/grading.py [--pairs 20000] [--json FILE]

The first figure is of one process on one core, extraction from a completion included. math-verify is started before
the second is taken: its import is paid once.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

from gruppo.rewards.answers import grade

BOX = r"\boxed{"
HOSTILE = {
    "tower of powers": (BOX + "9^{9^{9}}}", "3"),
    "taller tower": (BOX + "9^{9^{9^9}}}", "3"),
    "python powers": (BOX + "9**9**9}", "3"),
    "a million digits": (BOX + "9" * 10**6 + "}", "3"),
    "a million digits, unmarked": ("9" * 10**6, "3"),
    "4,000 digits and a power": (BOX + "9" * 4000 + "^{9999}}", "3"),
    "nested fractions": (BOX + r"\frac{1}{" * 10**4 + "1" + "}" * 10**4 + "}", "1"),
    "boxes, none closed": (BOX * 10**5, "3"),
    "boxes in boxes": (BOX * 10**5 + "3" + "}" * 10**5, "3"),
    "boxes, one after another": ((BOX + "3} ") * 10**5, "3"),
    "boxes joined": ((BOX + "3}, ") * 10**5, "3"),
    "deep parentheses": (BOX + "(" * 10**5 + "3" + ")" * 10**5 + "}", "3"),
    "parentheses, none closed": (BOX + "(" * 3000 + "}", "y"),
    "factorial of a factorial": (BOX + "(10!)!}", "3"),
    "large factorial": (BOX + "10000000!}", "3"),
    "factorials": (BOX + "3" + "!" * 1000 + "}", "3"),
    "tower of roots": (BOX + r"\sqrt{" * 5000 + "2" + "}" * 5000 + "}", "1"),
    "binomial": (BOX + r"\binom{1000000000}{500000000}}", "3"),
    "power of a sum": (BOX + "(1+x)^{100000}}", "x+1"),
    "long sum": (BOX + r"\sum_{k=1}^{10^{9}} \frac{1}{k^{3}}}", "1.5"),
    "long product": (BOX + r"\prod_{k=1}^{10^{9}} k}", "3"),
    "an integral": (BOX + r"\int_0^1 x^x \, dx}", "3"),
    "a nested integral": (BOX + r"\int_0^{\infty} \frac{\sin(x^x)^{\cos x}}{x^{x^x}+1} \, dx}", r"\int_0^1 e^{x^x} dx"),
    "a limit": (BOX + r"\lim_{n\to\infty} \left(1+\frac{1}{n^n}\right)^{n^{n^n}}}", r"\lim_{x\to 0} x^{x^x}"),
    "sums of sums": (BOX + r"\int \sum_{i=1}^{n}\sum_{j=1}^{i}\sum_{k=1}^{j} \frac{i^j}{k!} dn}", r"\int e^{n^2} dn"),
    "exponent of a decimal": (BOX + "1e999999999}", "3"),
    "terms": (BOX + "+".join("1" * 10**5) + "}", "3"),
    "list": (BOX + ",".join(map(str, range(10**4))) + "}", ",".join(map(str, range(10**4, 0, -1)))),
    "signs": (BOX + "-" * 10**5 + "3}", "3"),
    "plus-minuses": (BOX + r"\pm ".join("1" * 200) + "}", "3"),
    "spaces": ("the answer is" + " " * 10**6 + "3", "4"),
    "dots": ("." * 10**6, "3"),
    "commas": ("1," * 10**5, "3"),
    "groups of digits": ("1,000" * 10**5, "3"),
    "dollars": ("$" * 10**5 + "3", "4"),
    "formulas, none closed": (r"\(" * 10**5 + "3", "4"),
    "statements": ("the answer is " * 10**5, "3"),
    "statements with objects": ("answer to " * 10**5 + "3", "4"),
    "hashes": ("#### " * 10**5, "3"),
    "thoughts": ("<think>" * 10**5 + "3", "3"),
    "tags": ("<answer>" * 10**5 + "3", "4"),
    "texts in texts": (BOX + r"\text{" * 10**4 + "3" + "}" * 10**4 + "}", "4"),
    "alternatives": ("5 or " * 10**5 + "3", "3"),
    "words": ("word " * 10**5 + "3", "4"),
    "operators": ("1 + " * 10**5 + "3", "4"),
    "code": (BOX + "__import__('os').system('true')}", "0"),
    "dunders": ("[().__class__.__base__.__subclasses__().__len__(), 1]", "[1, 1]"),
    "quotes": ('"' * 10**5, "3"),
    "stars": ("*" * 10**5 + "3", "4"),
    "superscripts": (BOX + "2" + "⁹" * 10**4 + "}", "3"),
    "combining marks": (BOX + "3" + "\u0301" * 10**5 + "}", "3"),
    "a gold answer of the kind": (BOX + "3}", "9^{9^{9}}"),
}  # fmt: skip


def plain_pairs(number: int) -> list[tuple[str, str]]:
    """Completions that end in a plain number, two of three of them right; one of four is marked."""
    draw = random.Random(0)
    endings = ("#### {}", "The total is {}.", r"So it is \boxed{{{}}}.", "Final Answer: ${:,}")
    pairs = []
    for _ in range(number):
        gold = draw.randrange(10**5)
        answer = gold if draw.random() < 2 / 3 else gold + 1
        working = " ".join(f"Then {draw.randrange(99)} + {draw.randrange(99)} are more." for _ in range(10))
        pairs.append((f"{working}\n{draw.choice(endings).format(answer)}", str(gold)))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {"completions": given.pairs / seconds_of(plain_pairs(given.pairs), "completion")}
    answers = [(completion.split()[-1].strip("#.$"), gold) for completion, gold in plain_pairs(given.pairs)]
    found["bare answers"] = given.pairs / seconds_of(answers, "answer")
    for name, pairs_per_second in found.items():
        print(f"{name}: {pairs_per_second:,.0f} pairs/s")
    grade(BOX + r"\int_0^1 x\,dx}", r"\frac12")  # math-verify starts
    times = {}
    for name, (prediction, gold) in HOSTILE.items():
        times[name] = seconds_of([(prediction, gold)], "completion")
        verdict = grade(prediction, gold) if times[name] < 1 else None
        print(f"  {times[name]:7.3f} s  {name}" + (f"  ({verdict.correct}: {verdict.reason:.60})" if verdict else ""))
    slowest = max(times, key=lambda name: times[name])
    print(f"slowest hostile answer: {times[slowest]:.2f} s ({slowest})")
    if given.json:
        given.json.write_text(json.dumps({"pairs_per_second": found, "hostile_seconds": times}, indent=2) + "\n")


def seconds_of(pairs: list[tuple[str, str]], mode: str) -> float:
    began = time.perf_counter()
    for prediction, gold in pairs:
        grade(prediction, gold, mode)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
