"""Several clues at once: one ranked list of documents out of many searches, and the text of a document.

`SearchOrchestrator` is plain code on an index; the two tools offer it to agents. Nothing here judges a document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gruppo.search_state import Fault, FaultyClue
from gruppo.tools.base import MAX_OUTPUT
from gruppo.tools.bigrams import runs
from gruppo.tools.schema import check_arguments, coerced, cut
from gruppo.tools.search import BM25Index, Passage, terms
from gruppo.types import CallContext, ToolResult
from gruppo.words import folded

SEARCH, READ = "search_documents", "read_document"
RANK_CONSTANT = 60  # of reciprocal-rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009)
MAX_SHOWN = 120  # characters of a faulty clue
MAX_CLUES_READ = 64

STOP_WORDS = frozenset(
    """a about above after again against all also am an and any are as at be because been before being below between
    both but by can could did do does doing down during each few for from further had has have having he her here hers
    herself him himself his how i if in into is it its itself just let me more most must my myself no nor not now of off
    on once only or other ought our ours ourselves out over own same shall she should so some such than that the their
    theirs them themselves then there these they this those through to too under until up upon very was we were what
    when where whether which while who whom whose why will with would yet you your yours yourself yourselves""".split()
)
_CONTRACTED = re.compile(r"(?:\b(?:ai|ca|sha|wo))?n['’＇]t\b|['’＇](?:s|re|ve|ll|d|m)\b", re.IGNORECASE)
# What a Chinese question is made of, not what it is about; a run of nothing else tells nothing.
_STOP_RUN = re.compile(
    "(?:为什么|为何|请问|什么|怎么|怎样|如何|哪里|哪儿|哪个|哪些|多少|几|这个|那个|一个|这里|那里|可以|可是|但是|因为|所以|如果|虽然|以及|或者"
    "|关于|对于|我们|你们|他们|她们|它们|為什麼|為何|請問|什麼|甚麼|怎麼|怎樣|哪裡|哪裏|哪兒|哪個|這個|那個|一個|這裡|那裡|因為|雖然|關於|對於|我們|你們|他們"
    "|的|了|着|是|在|和|与|或|也|都|就|吗|呢|吧|啊|呀|么|之|其|此|这|那|哪|谁|有|不|没|我|你|您|他|她|它|及|而|但|被|把|很|还|又|與|嗎|這|誰|個|沒|還|麼)+"
)


@dataclass(frozen=True)
class Hit:
    """A document that was found: the piece of its text that has most of the clues' words, and its fused score."""

    id: str
    title: str
    text: str
    score: float


@dataclass(frozen=True)
class Found:
    """What a set of clues found, the best first, and the clues that were not searched for."""

    hits: tuple[Hit, ...]
    faults: tuple[FaultyClue, ...]


@dataclass(frozen=True)
class SearchOrchestrator:
    """Searches an index for several clues and fuses what they find: a document's score is the sum of 1 / (60 + rank).

    `per_clue` documents count of each clue's list; `limit` come out. Documents of the same text are one, the
    first of them: a copy is never found again.
    """

    index: BM25Index
    per_clue: int = 10
    limit: int = 10
    max_clues: int = 8
    max_characters: int = 200
    max_text: int = 300

    def search(self, clues: Iterable[str]) -> Found:
        """The documents for any texts as clues; never raises for what is in them."""
        good, faults = self._sorted_out(clues)
        scores: dict[Passage, float] = {}
        for words in good:
            found = map(self.index.original, self.index.search(" ".join(words), self.per_clue))
            for rank, passage in enumerate(dict.fromkeys(found), 1):
                scores[passage] = scores.get(passage, 0.0) + 1 / (RANK_CONSTANT + rank)
        best = sorted(scores, key=lambda passage: (-round(scores[passage], 12), passage.id))
        wanted = {word for words in good for word in words}
        hits = [
            Hit(passage.id, cut(passage.title, 100), excerpt(passage.text, wanted, self.max_text), scores[passage])
            for passage in best[: self.limit]
        ]
        return Found(tuple(hits), tuple(faults))

    def _sorted_out(self, clues: Iterable[str]) -> tuple[list[list[str]], list[FaultyClue]]:
        """The telling words of each clue that can be searched for, and why others can't."""
        good: dict[tuple[str, ...], None] = {}
        faults = []
        for clue in clues:
            words = tuple(telling(clue)) if len(clue) <= self.max_characters else ()
            if fault := self._fault(clue, words, good):
                faults.append(FaultyClue(cut(" ".join(clue[:1000].split()), MAX_SHOWN), fault))
            else:
                good[words] = None
        return [list(words) for words in good], faults

    def _fault(self, clue: str, words: tuple[str, ...], good: Mapping[tuple[str, ...], None]) -> Fault | None:
        if len(clue) > self.max_characters:
            return Fault.too_long
        if not words:
            return Fault.stop_words if terms(clue) else Fault.empty
        if any(set(words) == set(others) for others in good):
            return Fault.repeated
        return Fault.too_many if len(good) >= self.max_clues else None


def telling(text: str) -> list[str]:
    """The words of a text that say what it is about: stop words left out, and runs of characters that are only such."""
    idle = {word for run in runs(text) if _STOP_RUN.fullmatch(run) for word in terms(run)}
    text = _CONTRACTED.sub(" ", text)
    return [word for word in terms(text) if word not in STOP_WORDS and word not in idle]


def excerpt(text: str, words: Iterable[str], limit: int) -> str:
    """At most `limit` characters of a text, where it has most of the words; the first such place."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    wanted = set(words)
    starts = range(0, len(line) - limit // 2, max(1, limit // 2))
    start = max(starts, key=lambda at: (_num_held(line[at : at + limit], wanted), -at))
    piece = line[max(0, start) : start + limit]
    if start and " " in piece:  # not from the middle of a word
        piece = piece.partition(" ")[2]
    return piece.strip()


def _num_held(piece: str, wanted: set[str]) -> int:
    line = folded(piece)  # a plain look first: of a huge document most pieces have none of the words
    return len(wanted & set(terms(line))) if any(word in line for word in wanted) else 0


class SearchTool:
    """`search_documents(clues)`: JSON with `hits` (id, title, text, score) and `faults` (clue, fault)."""

    name = SEARCH
    description = "Search the documents for several clues at once; each clue is a few words."
    schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "clues": {"type": "array", "items": {"type": "string"}, "description": "what to look for, one per entry"}
        },
        "required": ["clues"],
        "additionalProperties": False,
    }

    def __init__(self, orchestrator: SearchOrchestrator) -> None:
        self.orchestrator = orchestrator

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Search for `arguments["clues"]`. Nothing found is an empty list, not an error."""
        arguments = coerced(arguments, self.schema)
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        found = self.orchestrator.search(arguments["clues"][:MAX_CLUES_READ])
        return ToolResult(True, json.dumps(asdict(found), ensure_ascii=False))


class ReadTool:
    """`read_document(id, about)`: the text of a document, of a long one the piece that has most words of `about`."""

    name = READ
    description = "Read a document that was found, by its id."
    schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "the document's id"},
            "about": {"type": "string", "description": "what to look for in a long document"},
        },
        "required": ["id"],
        "additionalProperties": False,
    }

    def __init__(self, index: BM25Index, max_output: int = MAX_OUTPUT) -> None:
        self.index, self.max_output = index, max_output

    async def call(self, arguments: Mapping[str, Any], context: CallContext | None = None) -> ToolResult:
        """Read the document `arguments["id"]`."""
        if wrong := check_arguments(self.schema, arguments):
            return ToolResult(False, error=wrong)
        try:
            passage = self.index[arguments["id"]]
        except KeyError:
            return ToolResult(False, error=f"no document {cut(arguments['id'], 200)!r}")
        if len(passage.text) <= self.max_output:  # with its lines, each of which may be a sentence
            return ToolResult(True, passage.text)
        return ToolResult(True, excerpt(passage.text, terms(arguments.get("about", "")), self.max_output))


def document_tools(index: BM25Index, per_clue: int = 10, limit: int = 10) -> Sequence[SearchTool | ReadTool]:
    """Both tools on one index; `per_clue` and `limit` are the orchestrator's."""
    return SearchTool(SearchOrchestrator(index, per_clue, limit)), ReadTool(index)
