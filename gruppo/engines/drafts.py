"""Drafts: guesses at the next ids, so that one forward may yield several of them.

A forward over few ids costs hardly less than one over many: a small model spends it on dispatching operations, a large
one on reading its weights. So the engine feeds guesses along, draws at each place as ever, and keeps what was drawn up
to the first guess that was wrong: ids and log-probs are those that it would have drawn one by one. Guesses come from
n-grams of what was read and sampled before (Saxena 2023, "Prompt Lookup Decoding"): formats, words of the question,
what other attempts have said. It computes nothing and knows no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gruppo.prefix_tree import Ids

ORDER = 3  # ids of the longest n-gram looked up; longer ones guess no better
_DEEPEST = 8  # guesses in a row: more are rarely right
_MAX_KNOWN = 2**20  # ids; beyond, all are forgotten


class Drafts:
    """Guesses from what this one has learnt, of one policy and one period at a time.

    `at_once` bounds the ids of a forward (branches x guesses) where every guess is right; it feeds so many fewer, the
    more often they are not, and none where it never knows better. 0: off.
    """

    def __init__(self, at_once: int = 0) -> None:
        self.at_once = at_once
        self._period = 0
        self._known: dict[str | None, _Known] = {}

    def enter(self, period: int) -> None:
        """Forget everything of another period, so that a run that was resumed guesses as one that was not."""
        if period != self._period:
            self._period = period
            self._known.clear()

    def learn(self, policy: str | None, ids: Ids, start: int = 1) -> None:
        """The ids from the place `start` on follow those before them. What is learnt last is guessed first."""
        if self.at_once:
            self._of(policy).learn(ids, start)

    def depth(self, policy: str | None, num_branches: int) -> int:
        """How many guesses in a row each of as many branches should be fed."""
        known = self._of(policy)
        return min(_DEEPEST, self.at_once * known.right // (known.total * num_branches))

    def after(self, policy: str | None, ids: Sequence[int], num: int) -> Ids:
        """At most `num` guesses at what follows these ids, from the longest n-gram that is known."""
        return self._of(policy).after(ids, num)

    def count(self, policy: str | None, right: int, total: int) -> None:
        """Of `total` ids, `right` were guessed, whether the guess was fed or not."""
        known = self._of(policy)
        known.right, known.total = known.right + right, known.total + total

    def _of(self, policy: str | None) -> _Known:
        return self._known.setdefault(policy, _Known())


class _Known:
    """What was said with the weights of one policy. Whole numbers throughout: objects would keep the collector busy."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.follows: dict[int, int] = {}  # the place in `ids` of what followed an n-gram last, by the n-gram
        self.right, self.total = 4, 5  # guesses at the very next id: what is expected before the first

    def learn(self, ids: Ids, start: int) -> None:
        if len(self.ids) > _MAX_KNOWN:
            self.ids.clear()
            self.follows.clear()
        offset = len(self.ids)
        self.ids += ids
        for at in range(start, len(ids)):
            for gram in _grams(ids, at):
                self.follows[gram] = offset + at

    def after(self, ids: Sequence[int], num: int) -> Ids:
        places = [place for gram in _grams(ids, len(ids)) if (place := self.follows.get(gram)) is not None]
        return tuple(self.ids[places[-1] : places[-1] + num]) if places else ()


def _grams(ids: Sequence[int], end: int) -> Iterator[int]:
    """A number for each n-gram that ends before `end`, the shortest first."""
    gram = 0
    for at in range(end - 1, max(end - 1 - ORDER, -1), -1):
        gram = gram << _BITS | ids[at] + 1
        yield gram


_BITS = 32  # of an id
