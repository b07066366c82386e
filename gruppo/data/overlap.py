"""Which texts repeat one another: word for word, nearly, or in thirteen words in a row.

Near repetitions are found exactly, not by sketches: two sets of shingles whose Jaccard similarity reaches the threshold
share one of their few rarest shingles (prefix filter; Bayardo et al., WWW 2007), so only those are compared. Thirteen
words in a row is how GPT-3's authors looked for test questions in training text (arXiv 2005.14165, appendix C).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from gruppo.data.answer_text import normalised
from gruppo.data.instruction import without_instruction

GRAM = 13  # words
SHINGLE = 4  # words
SIMILAR = 0.8  # Jaccard similarity of shingles
COMMON = 0.25  # of the evaluation questions: what stands in more of them is a phrase of their form
MAX_POSTINGS = 200  # texts under one shingle; a shingle of more is a phrase, not a trace
_WORD = re.compile(r"[^\W_]+|[^\w\s]")
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
_MOST_SLOTS = 22  # as a power of two


def key_of(question: str) -> str:
    """What two questions have in common if they differ in form alone, or in an instruction to mark the answer."""
    return normalised(without_instruction(question)).rstrip(" ?.!")


def words_of(text: str) -> list[str]:
    """Words and signs, one after another."""
    return _WORD.findall(normalised(without_instruction(text)))


def repetitions(questions: Sequence[str]) -> list[tuple[int, int]]:
    """(first, again): each question that came up before, with where it first did."""
    first: dict[str, int] = {}
    found = []
    for place, question in enumerate(questions):
        before = first.setdefault(key_of(question), place)
        if before != place:
            found.append((before, place))
    return found


def near_repetitions(questions: Sequence[str], similar: float = SIMILAR) -> list[tuple[int, int]]:
    """Pairs (before, after) of different questions whose shingles have at least this Jaccard similarity, of each
    question one pair at most.

    Questions with other numbers in them are other problems, however alike.
    """
    sets = [array("q", set(_shingles(question))) for question in questions]
    slots = 1 << min(_MOST_SLOTS, sum(map(len, sets)).bit_length() + 1)
    counts = array(
        "L", bytes(array("L").itemsize * slots)
    )  # how often a shingle occurs, two of one slot taken together
    for shingles in sets:
        for shingle in shingles:
            counts[shingle % slots] += 1
    index: dict[int, list[int]] = {}
    found = []
    for place, shingles in enumerate(sets):
        ranked = sorted(shingles, key=lambda shingle: (counts[shingle % slots], shingle))
        prefix = ranked[: len(ranked) - ceil(similar * len(ranked)) + 1]
        before = {other for shingle in prefix for other in index.get(shingle, ())}
        pair = next((b for b in sorted(before) if _is_near(questions, sets, b, place, similar)), None)
        if pair is not None:
            found.append((pair, place))
        for shingle in prefix:
            postings = index.setdefault(shingle, [])
            if len(postings) < MAX_POSTINGS:
                postings.append(place)
    return found


def _is_near(questions: Sequence[str], sets: Sequence[array[int]], one: int, other: int, similar: float) -> bool:
    ours, theirs = sets[one], sets[other]
    if min(len(ours), len(theirs)) < similar * max(len(ours), len(theirs)):
        return False
    both = len(set(ours).intersection(theirs))
    is_similar = both >= similar * (len(ours) + len(theirs) - both)
    return is_similar and key_of(questions[one]) != key_of(questions[other])


def shared_passages(training: Iterable[str], evaluation: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(training row, evaluation row, words): each training text that holds thirteen words in a row of an evaluation
    question, or the whole of a shorter one as its whole, with the first such place.

    Passages of more than a quarter of the evaluation questions (of twenty or more) are their form and do not count.
    """
    grams: dict[int, int] = {}
    seen: Counter[int] = Counter()
    for place, question in enumerate(evaluation):
        for gram in set(_grams(words_of(question))):
            grams.setdefault(gram, place)
            seen[gram] += 1
    if len(evaluation) >= 20:
        for gram, count in seen.items():
            if count > COMMON * len(evaluation):
                del grams[gram]
    for place, text in enumerate(training):
        words = words_of(text)
        for start, gram in enumerate(_grams(words)):
            if gram in grams:
                yield place, grams[gram], " ".join(words[start : start + GRAM])
                break


def _grams(words: Sequence[str]) -> Iterator[int]:
    """Thirteen words each, or all if there are fewer."""
    for start in range(max(len(words) - GRAM, 0) + 1):
        yield hash(tuple(words[start : start + GRAM]))


def _shingles(question: str) -> Iterator[int]:
    """Four words each, with all numbers of the question: so those with other numbers have none in common."""
    words, numbers = words_of(question), hash(tuple(sorted(_NUMBER.findall(question))))
    for start in range(max(len(words) - SHINGLE, 0) + 1):
        yield hash((numbers, *words[start : start + SHINGLE]))
