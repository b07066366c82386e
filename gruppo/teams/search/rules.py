"""The search team without models: each seat played by a deterministic rule, for corpora of plain sentences.

A rule is what stays frozen where nothing else is at hand, and what a trained role is compared with. It reads English
"the a of the b of X" and Chinese "X的b的a", and knows no corpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gruppo.search_state import Document, Label, State, Strategy, Target, Verdict
from gruppo.search_tables import in_order, one_line, resolved
from gruppo.teams.search.replies import Extraction, Plan
from gruppo.tools.documents import telling

MAX_QUESTION = 2000  # characters that are taken apart
MAX_CLUE = 200  # characters, what SearchOrchestrator takes
MAX_IDLE = 2  # rounds that brought nothing on before what there is has to do
_ASKING = re.compile(
    r"^(?:what|who|where|which|when)\s+(?:is|are|was|were)\s+|^(?:find|tell me|look up)\s+", re.IGNORECASE
)
_ASKING_CHINESE = re.compile(r"^(?:请问)?(.+?)(?:是(?:什么|谁|哪里|哪个|哪儿|哪一年|多少|几)|在哪里|在哪儿)$")
_THEN = re.compile(r"^(.+), then (.+) of that \w+$", re.IGNORECASE)
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]?")
# relation, subject and value; a sentence may fit several forms, and each reading is a fact of its own
_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        r"(?:the )?(?P<r>[^,]+?) of (?P<s>.+?) (?:is|was) (?P<v>.+)",
        r"(?P<v>.+?) (?:is|was) the (?P<r>[^,]+?) of (?P<s>.+)",
        r"(?P<s>.+?) has an? (?P<r>[^,]+?) of (?P<v>.+)",
        r"(?P<s>.+?) gives (?P<v>.+?) as (?:its )?(?P<r>.+)",
        r"(?P<s>.+?)的(?P<r>[^的]+?)是(?P<v>.+)",
        r"(?P<v>.+?)是(?P<s>.+?)的(?P<r>[^的]+)",
    )
)


def targets_of(question: str) -> list[str]:
    """What has to be found out, innermost first, each of the others in terms of the one before: "mayor of #1"."""
    text = one_line(question, MAX_QUESTION).strip(" ?？.。!！")
    if found := _ASKING_CHINESE.match(text):
        text = found[1]
        subject, *relations = text.split("的")
        joined = "{1}的{0}"
    else:
        *relations, subject = _THEN.sub(r"\2 of \1", _ASKING.sub("", text)).split(" of ")
        relations = [relation.removeprefix("the ") for relation in reversed(relations)]
        joined = "{0} of {1}"
    if not relations or len(relations) > 4 or not all(relations) or not subject:
        return [text] if text else []
    subjects = [subject, *(f"#{number}" for number in range(1, len(relations)))]
    return [joined.format(*pair) for pair in zip(relations, subjects, strict=True)]


def open_target(state: State) -> str | None:
    """The first target without a value whose text needs no value that is missing; None if there is none."""
    texts = (resolved(target, state.targets) for target in state.targets if not target.value)
    return next((text for text in texts if text is not None), None)


def plan(state: State) -> Plan:
    """Read what is IMPORTANT, search for what is open, verify, answer; give up when nothing brings it on."""
    goal = open_target(state)
    if goal is None:
        has_all = bool(state.targets) and all(target.value for target in state.targets)
        return Plan(Strategy.VERIFY if has_all and not state.is_verified else Strategy.ANSWER)
    is_worth = (True, state.idle == 1, state.idle == MAX_IDLE)
    if any(documents and worth for documents, worth in zip(readable(state, goal), is_worth, strict=True)):
        return Plan(Strategy.READ, goal)
    return Plan(Strategy.SEARCH, goal) if state.idle < MAX_IDLE else Plan(Strategy.ANSWER)


def readable(state: State, goal: str) -> tuple[list[Document], list[Document], list[Document]]:
    """What can be read for a goal: new IMPORTANT documents; those read before that tell of it; new RELEVANT ones."""
    unread = [document for document in in_order(state.documents) if not document.is_read]
    wanted = set(telling(goal))
    again = [each for each in state.documents if each.is_read and wanted and wanted <= set(telling(each.text))]
    important = [document for document in unread if document.label == Label.IMPORTANT]
    return important, again, [document for document in unread if document.label == Label.RELEVANT]


def clues(state: State, sub_goal: str) -> tuple[str, ...]:
    """The sub-goal and, after searches without a find, each of its words besides."""
    goal = one_line(sub_goal, MAX_CLUE)
    return (goal, one_line(state.question, MAX_CLUE)) if not state.idle else (goal, *telling(goal))


def check(sub_goal: str, documents: Iterable[Document]) -> tuple[Verdict, ...]:
    """By words: IMPORTANT with all that the sub-goal is about, RELEVANT with half of it."""
    wanted = set(telling(sub_goal))
    verdicts = []
    for document in documents:
        held = wanted & set(telling(f"{document.title} {document.text}"))
        share = len(held) / len(wanted) if wanted else 0.0
        label = Label.IMPORTANT if share == 1 else Label.RELEVANT if share >= 0.5 else Label.IRRELEVANT
        verdicts.append(Verdict(document.id, label, f"has {len(held)} of {len(wanted)} words of the sub-goal"))
    return tuple(verdicts)


def extract(targets: Sequence[Target], sub_goal: str, text: str) -> Extraction:
    """The facts that the sentences of a text state, and the values of targets that they give.

    Where no sentence states what is searched for, the one with all words of the sub-goal is its value.
    """
    sentences = [sentence.strip() for sentence in _SENTENCE.findall(text[:20_000])]
    read = [fact for sentence in sentences for fact in _facts(sentence)]
    asked = {number: resolved(target, targets) or "" for number, target in enumerate(targets, 1) if not target.value}
    values = [
        (number, value)
        for number, goal in asked.items()
        for subject, relation, value in read
        if _same(goal, f"{relation} of {subject}") or _same(goal, f"{subject}的{relation}")
    ]
    searched = [number for number, goal in asked.items() if goal == sub_goal]
    if searched and not any(number in searched for number, _ in values):
        wanted = set(telling(sub_goal))
        telling_all = [sentence for sentence in sentences if wanted and wanted <= set(telling(sentence))]
        values += [(searched[0], sentence) for sentence in telling_all[:1]]
    return Extraction(tuple((subject, f"{relation}: {value}") for subject, relation, value in read), tuple(values))


def _facts(sentence: str) -> list[tuple[str, str, str]]:
    """(subject, relation, value) in every reading."""
    bare = sentence.rstrip(".!?。！？ ")
    found = [match for form in _FORMS if len(bare) <= 400 and (match := form.fullmatch(bare))]
    return [(match["s"].strip(), match["r"].strip(), match["v"].strip()) for match in found]


def _same(goal: str, told: str) -> bool:
    return _bare(goal) == _bare(told)


def _bare(text: str) -> str:
    return " ".join(word for word in text.casefold().split() if word != "the")


def answer(state: State) -> str | None:
    """The last target's value, or else what was read of the best document; None if nothing was."""
    if state.targets and state.targets[-1].value:
        return state.targets[-1].value
    notes = {note.document: note.text for note in state.context}
    read = [notes[document.id] for document in in_order(state.documents) if document.id in notes]
    return read[0] if read else None
