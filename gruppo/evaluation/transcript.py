"""One episode as HTML, turn by turn, and two of one task side by side. Escapes all it shows; judges nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gruppo.evaluation.plots import text
from gruppo.types import Episode, Outcome, Task, ToolEvent, Turn

_LONGEST = 6000  # characters shown of any one text: a page of 100 MB helps nobody


def side_by_side(
    task: Task,
    sides: tuple[tuple[str, Episode, bool | None], tuple[str, Episode, bool | None]],
    colours: Mapping[str, str],
) -> str:
    """A task and two columns (heading, episode, solved) whose turns stand level; `colours` maps a role to its class."""
    rows = 2 + max(len(episode.turns) for _, episode, _ in sides)
    columns = "".join(_column(heading, episode, solved, colours, rows) for heading, episode, solved in sides)
    return (
        f'<article class="task"><header><p class="kicker">Task {text(task.id)}</p>'
        f'<p class="question">{text(_clip(task.question))}</p>'
        f'<p class="gold">Right answer <b>{text(_clip(task.result))}</b></p></header>'
        f'<div class="pair" style="--rows:{rows}">{columns}</div></article>'
    )


def _column(heading: str, episode: Episode, solved: bool | None, colours: Mapping[str, str], rows: int) -> str:
    turns = [
        _turn(index, turn, [event for event in episode.events if event.turn == index], colours)
        for index, turn in enumerate(episode.turns)
    ]
    turns += ["<div></div>"] * (rows - 2 - len(turns))  # keeps both columns' verdicts on the same line
    return f'<section class="side"><h3>{text(heading)}</h3>{"".join(turns)}{_verdict(episode, solved)}</section>'


def _turn(index: int, turn: Turn, events: list[ToolEvent], colours: Mapping[str, str]) -> str:
    spent = f"{len(turn.action_ids)} tokens" if turn.action_ids else ""
    prompt_size = f" · {len(turn.prompt_ids)} tokens" if turn.prompt_ids else ""
    error = f'<p class="error">{text(_clip(turn.error))}</p>' if turn.error else ""
    cut = '<p class="error">cut off at the token limit</p>' if turn.stop_reason == "length" else ""
    return (
        f'<div class="turn {colours.get(turn.role, "ink")}"><p class="who"><b>{text(turn.role)}</b>'
        f"<span>turn {index + 1}</span><span>{spent}</span></p>"
        f"<details><summary>Prompt{prompt_size}</summary><pre>{text(_clip(turn.prompt))}</pre></details>"
        f'<pre class="action">{text(_clip(turn.text)) or "<i>nothing</i>"}</pre>{error}{cut}'
        f"{''.join(_event(event) for event in events)}</div>"
    )


def _event(event: ToolEvent) -> str:
    arguments = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in event.arguments.items()
    )
    kind = "result" if event.result.ok else "result error"
    return (
        f'<div class="call"><code>{text(event.tool)}({text(_clip(arguments))})</code>'
        f'<pre class="{kind}">{text(_clip(event.result.text))}</pre></div>'
    )


def _verdict(episode: Episode, solved: bool | None) -> str:
    word, kind = {True: ("solved", "good"), False: ("not solved", "bad"), None: ("not judged", "unknown")}[solved]
    answer = text(_clip(episode.answer)) if episode.answer is not None else "<i>none</i>"
    ending = "" if episode.outcome == Outcome.completed else f" · {text(str(episode.outcome).replace('_', ' '))}"
    error = f'<p class="error">{text(_clip(episode.error))}</p>' if episode.error else ""
    return f'<div class="verdict {kind}"><p>Answer <b>{answer}</b></p><p><em>{word}</em>{ending}</p>{error}</div>'


def _clip(long: str) -> str:
    """Head and tail of a text that is too long to show, with what was left out said in between."""
    if len(long) <= _LONGEST:
        return long
    half = _LONGEST // 2
    return f"{long[:half]}\n[… {len(long) - 2 * half:,} characters left out …]\n{long[-half:]}"
