"""Word problems of our own, in GSM8K's two columns: `question`, and `answer` with its working, which ends in "#### 7".

They are drawn, not stored, the same each time, and stand in for GSM8K where its files are not at hand.
"""

from __future__ import annotations

import random

HELD_OUT, NUM_TEST = 10_000, 16  # from which problem on, and how many, they are for evaluation


def problem(number: int) -> dict[str, str]:
    """A question and its worked answer, in one, two or three steps of adding and taking away."""
    draw = random.Random(f"problem {number}")
    name = draw.choice(("Ada", "Ben", "Cleo", "Dora", "Emil", "Finn", "Gita", "Hugo"))
    thing = draw.choice(("pens", "eggs", "stamps", "apples", "shells", "coins", "books", "cards"))
    total = draw.randint(2, 6)
    told, worked = [f"{name} has {total} {thing}"], []
    for _ in range((1, 2, 1, 3)[number % 4]):
        change = draw.randint(1, 3)
        sign, verb = ("-", "loses") if total > change and draw.random() < 0.5 else ("+", "gets")
        result = total + change if sign == "+" else total - change
        told.append(f"{verb} {change}")
        worked.append(f"{total}{sign}{change}=<<{total}{sign}{change}={result}>>{result}")
        total = result
    return {"question": f"{', '.join(told)}. How many now?", "answer": "\n".join([*worked, f"#### {total}"])}


def problems(count: int, first: int = 0) -> list[dict[str, str]]:
    """`count` problems from number `first` on; those from HELD_OUT on are never trained on."""
    return [problem(first + number) for number in range(count)]
