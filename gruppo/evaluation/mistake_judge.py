"""A judge for the mistakes that no rule can tell: it names a kind, a turn and words, and the words have to be there.

What it says without evidence is dropped, and the rules' finding stays. It is given the judge, who asks with that one's
care (a cache, a budget, retries, deadlines); it changes no score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from gruppo.bounded_json import parse_json
from gruppo.evaluation.metrics import Success, solved
from gruppo.evaluation.mistakes import Found, Kind, Mistake, find_mistakes
from gruppo.evaluation.premises import call_text
from gruppo.rewards.judge import Judge, NoVerdict
from gruppo.types import Episode, Group, Task

BY_JUDGE = "judge: "  # what the reason of a judge's mistake begins with
MEANINGS = {
    Kind.wrong_format: "nothing readable was written, or no answer was given",
    Kind.repeated_call: "a tool was called again in the same way",
    Kind.not_found_as_nothing: "a tool found nothing, and that was taken for proof that there is or was nothing",
    Kind.wrong_order: "a tool was called before what it needs was known",
    Kind.calculation: "a calculation came out wrong",
    Kind.ignored_result: "a tool had given what was needed, and it was not used",
    Kind.comprehension: "another question than the one asked was worked on",
    Kind.premature_answer: "an answer was given with steps left to do",
    Kind.unverified_claim: "something was claimed that no tool and no calculation supports",
    Kind.reasoning: "a conclusion does not follow, without any of the others",
}
INSTRUCTIONS = (
    "A team of agents, or one agent, failed a task. Say what went wrong first. The kinds of mistakes:\n"
    + "\n".join(f"{kind}: {meaning}" for kind, meaning in MEANINGS.items())
    + '\n{criteria}Reply with one JSON object: "kind" (one of the above), "turn" (its number in the transcript), '
    '"quote" (words of that turn or of its tool results, copied exactly, that show it), "reason" (one sentence).'
)


async def judge_mistake(judge: Judge, task: Task, episode: Episode) -> Mistake | None:
    """What the judge finds; None, counted with the reason, where it can't be read, names no kind, or quotes what is not
    there, however often it is asked."""
    texts = {"question": task.question, "right answer": task.result, "transcript": transcript(episode)}
    try:
        return await judge.ask(task, INSTRUCTIONS, texts, lambda reply: _read(reply, episode))
    except NoVerdict as problem:
        judge.counts[f"no verdict: {problem}"] += 1
        return None


def _read(reply: str, episode: Episode) -> Mistake | None:
    try:
        said = parse_json(reply, {"kind": str, "turn": int, "quote": str}, {"reason": ""})
        kind = Kind(said["kind"].strip())
    except ValueError:
        return None
    turn = said["turn"] - 1
    shown = "\n".join(words_of(episode, turn)) if 0 <= turn < len(episode.turns) else ""
    quote = said["quote"].strip()
    if not quote or " ".join(quote.split()) not in " ".join(shown.split()):
        return None
    return Mistake(kind, turn, quote, f"{BY_JUDGE}{said['reason'].strip()}")


async def judged_mistakes(judge: Judge, groups: Sequence[Group], success: Success = solved) -> Found:
    """The mistakes of each episode by rule; where the rules are left with `reasoning`, the judge's word instead."""

    async def look(task: Task, episode: Episode) -> list[Mistake]:
        found = find_mistakes(task, episode, success)
        if found and found[0].kind is Kind.reasoning and (judged := await judge_mistake(judge, task, episode)):
            return [judged]
        return found

    pairs = [(group.task, episode) for group in groups for episode in group.episodes]
    found = await asyncio.gather(*(look(task, episode) for task, episode in pairs))
    return {id(episode): mistakes for (_, episode), mistakes in zip(pairs, found, strict=True)}


def transcript(episode: Episode) -> str:
    """Turns numbered from 1, each with its calls and their results, and the answer."""
    lines: list[str] = []
    for place, turn in enumerate(episode.turns):
        lines += [f"Turn {place + 1}, {turn.role}:", *words_of(episode, place), ""]
    return "\n".join([*lines, f"Answer: {episode.answer or 'none'}"])


def words_of(episode: Episode, turn: int) -> Iterable[str]:
    """What a turn said, called and was told."""
    yield episode.turns[turn].text
    for event in episode.events:
        if event.turn == turn:
            yield f"call: {call_text(event)}"
            yield f"result: {event.result.text}"
