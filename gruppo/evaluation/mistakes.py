"""What went wrong in an episode, by rules that show their evidence: the kind, the turn, and the words themselves.

Rules read what the agents said, called and were told; where the task has a reference (its result, its plan, its chain)
they use it. They name a likely cause for people who read and count; none changes a reward or a success rate. What no
rule can tell from the text is what `mistake_judge` asks a judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gruppo.evaluation import premises
from gruppo.evaluation.claims import claims_in, false_claim, numbers_in
from gruppo.evaluation.metrics import Success, compare, solved
from gruppo.evaluation.premises import Premises, call_text, reads_not_found, shown
from gruppo.rewards.answers import grade
from gruppo.types import Episode, Group, Outcome, StopReason, Task

MAX_EVIDENCE = 20  # of a judge's findings that a terminal is shown


class Kind(StrEnum):
    """The kinds, those with the most telling evidence first: the first that is found is an episode's main mistake."""

    wrong_format = "format"  # nothing that could be read, or no answer
    repeated_call = "repeated_call"  # the same call again
    not_found_as_nothing = "not_found_as_nothing"  # "not found" taken for "nothing happened"
    wrong_order = "wrong_order"  # a tool asked before what it needs was known
    calculation = "calculation"  # arithmetic that is not so
    ignored_result = "ignored_result"  # a tool told it, and it was passed over
    comprehension = "comprehension"  # another question was worked on
    premature_answer = "premature_answer"  # answered with steps left to do
    unverified_claim = "unverified_claim"  # an answer that nothing the team was told supports
    reasoning = "reasoning"  # a wrong conclusion without any of these


@dataclass(frozen=True)
class Mistake:
    """One mistake: the turn (its place in the episode), what stands there, and why it is one."""

    kind: Kind
    turn: int
    quote: str
    reason: str


Found = Mapping[int, Sequence[Mistake]]
"""The mistakes of each episode, by its `id()`."""


def find_mistakes(task: Task, episode: Episode, success: Success = solved) -> list[Mistake]:
    """The mistakes of an episode, the main one first, at most one of a kind; none where the infrastructure failed.

    `reasoning` is only said of a wrong answer that has no other. An episode that nobody scored is compared with the
    task's result.
    """
    if episode.outcome.is_infrastructure:
        return []
    verdict = success(episode)
    is_right = bool(grade(episode.answer or "", task.result, "answer").correct) if verdict is None else verdict
    known = Premises(task, episode, is_right)
    found = [one for kind in Kind if kind in RULES for one in [next(RULES[kind](known), None)] if one]
    if not is_right and not [one for one in found if one.kind is not Kind.wrong_format or _is_fatal(known, one)]:
        found += [next(_reasoning(known))]
    # A turn that could not be read and was made good later is not what the episode failed of.
    return sorted(found, key=lambda one: one.kind is Kind.wrong_format and not _is_fatal(known, one))


def mistakes_in(groups: Sequence[Group], success: Success = solved) -> Found:
    """The mistakes of every episode."""
    return {id(episode): find_mistakes(group.task, episode, success) for group in groups for episode in group.episodes}


def mistake_rates(groups: Sequence[Group], by_episode: Found | None = None) -> dict[str, Any]:
    """How many episodes have each kind, and have it as their main one, in plain JSON-able data.

    `by_episode` are the mistakes if they are not those of the rules.
    """
    by_episode = mistakes_in(groups) if by_episode is None else by_episode
    found = [by_episode[id(episode)] for group in groups for episode in group.episodes]
    having = Counter(one.kind for mistakes in found for one in mistakes)
    main = Counter(mistakes[0].kind for mistakes in found if mistakes)
    return {
        "episodes": len(found),
        "with_mistakes": sum(map(bool, found)),
        "kinds": {str(kind): {"episodes": having[kind], "main": main[kind]} for kind in Kind if having[kind]},
    }


def compare_mistakes(
    before: Sequence[Group], after: Sequence[Group], by_episode: Found | None = None
) -> dict[str, dict[str, Any]]:
    """Kind -> its share of episodes before and after, the change with its interval, over the same tasks, paired.

    `by_episode` are the mistakes of all episodes if they are not those of the rules. Raises ValueError if the tasks
    differ. A change below 0 is for the better.
    """
    by_episode = mistakes_in([*before, *after]) if by_episode is None else by_episode
    kinds = {key: {one.kind for one in mistakes} for key, mistakes in by_episode.items()}
    table: dict[str, dict[str, Any]] = {}
    for kind in Kind:
        if any(kind in own for own in kinds.values()):
            has = _has(kind, kinds)
            found = compare(before, after, has)
            shares = [_share(groups, has) for groups in (before, after)]
            table[str(kind)] = {"before": shares[0], "after": shares[1], "change": found["gain"]}
            table[str(kind)] |= {"ci95": found["gain_ci95"], "p_value": found["p_value"], "n": found["n"]}
    return table


def mistake_report(found: Mapping[str, Any]) -> str:
    """What `assess.mistakes_of` found, for a terminal: by rule; then with the judge, and the words that it showed."""
    lines = [_overview(found)]
    if judged := found.get("judged"):
        asked = sum(one["kinds"].get(Kind.reasoning, {}).get("main", 0) for one in found["rates"].values())
        lines += ["", f"with the judge, asked about {asked} episodes, who showed {len(judged['evidence'])} mistakes"]
        missing = {said: number for said, number in judged["counts"].items() if said.startswith("no verdict")}
        lines += [f"{said} ({number})" for said, number in missing.items()]
        lines += [_overview(judged)]
        for one in judged["evidence"][:MAX_EVIDENCE]:
            place = f"{one['stage']}, task {one['task']}, turn {one['turn'] + 1}"
            lines += [f"{place}: {one['kind'].replace('_', ' ')}: {shown(one['quote'])!r} ({one['reason']})"]
        if (left := len(judged["evidence"]) - MAX_EVIDENCE) > 0:
            lines += [f"and {left} more: --json has them all"]
    return "\n".join(lines) + "\n"


def _overview(found: Mapping[str, Any]) -> str:
    """What changed, or the one evaluation that there is."""
    if found["changes"]:
        return mistake_table(found["changes"]).rstrip()
    lines = []
    for stage, rates in found["rates"].items():
        lines += [f"{stage}: {rates['with_mistakes']} of {rates['episodes']} episodes with mistakes"]
        lines += [f"  {kind.replace('_', ' '):<22}{own['episodes']:>5}" for kind, own in rates["kinds"].items()]
    return "\n".join(lines)


def mistake_table(changes: Mapping[str, Mapping[str, Any]]) -> str:
    """`compare_mistakes` for a terminal."""
    lines = [f"{'mistake':<22}{'before':>8}{'after':>8}{'change':>9}   95 % interval"]
    for kind, row in changes.items():
        low, high = (100 * value for value in row["ci95"])
        shares = f"{100 * row['before']:>7.1f}%{100 * row['after']:>7.1f}%{100 * row['change']:>+9.1f}"
        lines.append(f"{kind.replace('_', ' '):<22}{shares}   {low:.1f}…{high:.1f}".replace("-", "\N{MINUS SIGN}"))
    return "\n".join(lines) + "\n"


def _has(kind: Kind, kinds: Mapping[int, set[Kind]]) -> Success:
    return lambda episode: kind in kinds[id(episode)]


def _share(groups: Sequence[Group], has: Success) -> float:
    episodes = [episode for group in groups for episode in group.episodes]
    return sum(bool(has(episode)) for episode in episodes) / len(episodes) if episodes else 0.0


def _is_fatal(known: Premises, mistake: Mistake) -> bool:
    """Whether a format mistake is what the episode ended with."""
    no_answer = not (known.episode.answer or "").strip()
    return no_answer or mistake.turn == len(known.turns) - 1 or known.episode.outcome == Outcome.wrong_format


def _format(known: Premises) -> Iterator[Mistake]:
    for place, turn in reversed(list(enumerate(known.turns))):
        if turn.error or turn.stop_reason == StopReason.length:
            yield Mistake(Kind.wrong_format, place, shown(turn.text), turn.error or "cut off at the token limit")
    last = len(known.turns) - 1
    if known.episode.outcome in (Outcome.wrong_format, Outcome.context_overflow):
        yield Mistake(Kind.wrong_format, last, known.text(last), known.episode.error or str(known.episode.outcome))
    if known.episode.outcome == Outcome.completed and not (known.episode.answer or "").strip():
        yield Mistake(Kind.wrong_format, last, known.text(last), "it ends without an answer")


def _repeated_call(known: Premises) -> Iterator[Mistake]:
    first: dict[str, int] = {}
    for event in known.events:
        call = "".join(call_text(event).casefold().split())
        if call in first:
            reason = f"the same call as in turn {first[call] + 1}"
            yield Mistake(Kind.repeated_call, event.turn, known.words_of_call(event), reason)
        elif not event.result.timed_out:
            first[call] = event.turn


def _not_found_as_nothing(known: Premises) -> Iterator[Mistake]:
    missed = [event for event in known.events if reads_not_found(event.result)]
    if known.is_right or not missed:
        return
    for place in range(missed[0].turn + 1, len(known.turns)):
        for saying in known.sayings(place):
            for claim in premises.says_nothing(saying, place == len(known.turns) - 1):
                if not known.is_told(claim):
                    event = [event for event in missed if event.turn < place][-1]
                    reason = f"all that {event.tool} said is {shown(event.result.text, 80)!r}"
                    yield Mistake(Kind.not_found_as_nothing, place, claim, reason)


def _wrong_order(known: Premises) -> Iterator[Mistake]:
    plan, used = known.plan, [event.tool for event in known.events]
    shared = [tool for tool in dict.fromkeys(plan) if tool in used]
    taken = [tool for tool in dict.fromkeys(used) if tool in shared]
    if shared != taken:
        odd = next(mine for mine, theirs in zip(taken, shared, strict=True) if mine != theirs)
        event = known.events[used.index(odd)]
        reason = f"{odd} before {shared[taken.index(odd)]}: the reference goes {', '.join(plan)}"
        yield Mistake(Kind.wrong_order, event.turn, known.words_of_call(event), reason)
    for place, event in enumerate(known.events):
        for value in known.unknown_in(event):
            later = next((e for e in known.events[place + 1 :] if e.tool != event.tool and known.tells(e, value)), None)
            if later:
                reason = f"{value} was used before {later.tool} found it in turn {later.turn + 1}"
                yield Mistake(Kind.wrong_order, event.turn, known.words_of_call(event), reason)


def _calculation(known: Premises) -> Iterator[Mistake]:
    for place, turn in enumerate(known.turns):
        if claim := false_claim(turn.text):
            yield Mistake(Kind.calculation, place, claim.quote, f"it is {premises.written(claim.value)}")


def _ignored_result(known: Premises) -> Iterator[Mistake]:
    if known.is_right:
        return
    last = len(known.turns) - 1
    for event in known.told:
        if event.turn < last and known.episode.answer and known.holds_gold(event):
            reason = f"{event.tool} had said {shown(event.result.text, 80)!r}"
            yield Mistake(Kind.ignored_result, last, shown(known.episode.answer), reason)
    for event, following in known.followed():
        value = event.result.text.strip()
        is_used = any(premises.holds(text, value) for text in known.texts_after(event.turn))
        if premises.is_number(value) and not is_used and known.other_number(following):
            reason = f"{event.tool} had said {value}, which is nowhere after that"
            yield Mistake(Kind.ignored_result, following[0], following[1], reason)


def _comprehension(known: Premises) -> Iterator[Mistake]:
    if known.is_right:
        return
    asked, calls = known.asked(), known.events
    idle = [term for term in asked if not any(premises.holds(call_text(event), term) for event in calls)]
    foreign = known.unknown_in(calls[0]) if calls and idle else []
    is_swapped = bool(foreign) and premises.is_number(foreign[0]) and any(map(premises.is_number, idle))
    if foreign and (idle == asked or is_swapped):
        reason = f"{foreign[0]} is not in the question; {', '.join(idle[:3])} is never asked for"
        yield Mistake(Kind.comprehension, calls[0].turn, known.words_of_call(calls[0]), reason)
    if not known.events:
        for place, quote, number in known.foreign_operands():
            reason = f"{premises.written(number)} is not in the question and was not worked out"
            yield Mistake(Kind.comprehension, place, quote, reason)
    if wanted := premises.wanted(known.task.question):
        answer = (known.episode.answer or "").strip()
        if answer and not wanted.fits(answer) and wanted.fits(known.task.result):
            reason = f"the question asks for {wanted.name}"
            yield Mistake(Kind.comprehension, len(known.turns) - 1, shown(answer), reason)


def _premature_answer(known: Premises) -> Iterator[Mistake]:
    answer, last = (known.episode.answer or "").strip(), len(known.turns) - 1
    if known.is_right or not answer or known.episode.outcome != Outcome.completed:
        return
    left = Counter(known.plan) - Counter(event.tool for event in known.told)
    if left and (not known.events or known.is_supported(answer)):
        left_out = ", ".join(left.elements())
        yield Mistake(Kind.premature_answer, last, shown(answer), f"left to do: {left_out}")
    if known.events and not known.plan and known.is_supported(answer) and not known.events[-1].result.ok:
        reason = f"the last call failed: {shown(known.events[-1].result.text, 80)!r}"
        yield Mistake(Kind.premature_answer, last, shown(answer), reason)


def _unverified_claim(known: Premises) -> Iterator[Mistake]:
    answer = (known.episode.answer or "").strip()
    if known.is_right or not answer or not known.events or known.is_supported(answer):
        return
    guess = next((event for event in known.events if premises.is_opinion(event) and known.tells(event, answer)), None)
    reason = f"only {guess.tool} says so, from memory" if guess else "nothing that the tools said supports it"
    yield Mistake(Kind.unverified_claim, len(known.turns) - 1, shown(answer), reason)


def _reasoning(known: Premises) -> Iterator[Mistake]:
    """The first step that leaves the reference's path, where it has one; else the conclusion."""
    wanted = {claim.value for claim in claims_in(known.task.chain)} | set(numbers_in(known.task.chain))
    for place, turn in enumerate(known.turns):
        for claim in claims_in(turn.text):
            if wanted and claim.stated not in wanted:
                yield Mistake(Kind.reasoning, place, claim.quote, "the reference has no such step")
    last = len(known.turns) - 1
    answer = (known.episode.answer or "").strip()
    yield Mistake(Kind.reasoning, last, shown(answer) or known.text(last), f"the answer is {shown(known.task.result)}")


RULES: Mapping[Kind, Callable[[Premises], Iterator[Mistake]]] = {
    Kind.wrong_format: _format,
    Kind.repeated_call: _repeated_call,
    Kind.not_found_as_nothing: _not_found_as_nothing,
    Kind.wrong_order: _wrong_order,
    Kind.calculation: _calculation,
    Kind.ignored_result: _ignored_result,
    Kind.comprehension: _comprehension,
    Kind.premature_answer: _premature_answer,
    Kind.unverified_claim: _unverified_claim,
}
"""Kind -> its rule; `reasoning` is what is left."""
