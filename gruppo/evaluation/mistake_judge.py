"""A judge for the mistakes that no rule can tell: it names a kind, a turn and words, and the words have to be there.

What it says without evidence is dropped. It is given an engine and asked once; it changes no score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from gruppo.bounded_json import parse_json
from gruppo.evaluation.metrics import Success, solved
from gruppo.evaluation.mistakes import Kind, Mistake, find_mistakes
from gruppo.evaluation.premises import call_text
from gruppo.rewards.quoting import ask_about
from gruppo.types import Engine, Episode, Group, Request, Sampling, StopReason, Task

MAX_CHARACTERS = 12_000  # of the transcript that the judge is shown
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
    + '\nReply with one JSON object: "kind" (one of the above), "turn" (its number in the transcript), "quote" (words '
    'of that turn or of its tool results, copied exactly, that show it), "reason" (one sentence).'
)


async def judge_mistake(engine: Engine, task: Task, episode: Episode, max_tokens: int = 512) -> Mistake | None:
    """What the judge finds; None where its reply can't be read, names no kind, or quotes what is not there.

    Raises EngineError when the engine failed.
    """
    texts = {"question": task.question, "right answer": task.result, "transcript": transcript(episode)}
    messages = ask_about(INSTRUCTIONS, texts, MAX_CHARACTERS)
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
    request = Request(messages, sampling, episode.seed, context=(task.id, episode.attempt, "judge", 0))
    (reply,) = await engine.generate([request])
    if reply.stop_reason != StopReason.stop:
        return None
    try:
        said = parse_json(reply.text, {"kind": str, "turn": int, "quote": str}, {"reason": ""})
        kind = Kind(said["kind"].strip())
    except ValueError:
        return None
    turn = said["turn"] - 1
    shown = "\n".join(words_of(episode, turn)) if 0 <= turn < len(episode.turns) else ""
    quote = said["quote"].strip()
    if not quote or " ".join(quote.split()) not in " ".join(shown.split()):
        return None
    return Mistake(kind, turn, quote, f"judge: {said['reason'].strip()}")


async def judged_mistakes(
    engine: Engine, groups: Sequence[Group], success: Success = solved, max_concurrent: int = 8
) -> list[tuple[Episode, list[Mistake]]]:
    """Every episode with its mistakes by rule; where the rules are left with `reasoning`, the judge's word goes first.

    Raises EngineError when the engine failed.
    """
    free = asyncio.Semaphore(max_concurrent)

    async def look(task: Task, episode: Episode) -> tuple[Episode, list[Mistake]]:
        found = find_mistakes(task, episode, success)
        if found and found[0].kind is Kind.reasoning:
            async with free:
                judged = await judge_mistake(engine, task, episode)
            found = [judged] if judged else found
        return episode, found

    return await asyncio.gather(*(look(group.task, episode) for group in groups for episode in group.episodes))


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
