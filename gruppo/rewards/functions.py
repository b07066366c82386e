"""Reward functions of other people: those with the ecosystem's signature, those of a data set, those with a range.

`fn(completions, **columns) -> list[float | None]`, as TRL calls it, sync or async, works unchanged. Each adapter keeps
a function's kind: an asynchronous one stays asynchronous.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gruppo.errors import RewardError
from gruppo.rewards.rules import is_async
from gruppo.rewards.terms import text_of
from gruppo.types import Episode, Message, Reward, Score, Task, Values

Style = Literal["text", "messages"]
"""What a completion is: one text, or a list of chat messages."""

OF_TRL = frozenset({"prompts", "completions", "completion_ids"})
GOLD_COLUMNS = ("ground_truth", "solution", "answer")  # what task files of the ecosystem call the result


@dataclass(frozen=True)
class TrainerState:
    """What a reward function may ask of TRL's trainer state; 0 outside training."""

    global_step: int = 0


def takes_completions(function: Callable[..., Any]) -> bool:
    """Whether a function has the ecosystem's signature: it has a parameter of one of the names that TRL passes."""
    return not OF_TRL.isdisjoint(_parameters(function))


def of_completions(function: Callable[..., Any], style: Style = "text") -> Reward:
    """A reward function that calls `function(completions=..., prompts=..., completion_ids=..., **columns)`.

    Every argument is a list with one entry per episode. Columns are those of the task and the entries of its
    extra_info; the result is there as `ground_truth`, `solution` and `answer` too, where the task has no such column. A
    function without `**kwargs` gets what it names. `style` says what completions are where the annotation of the
    parameter does not (`list[str]` or `list[list[dict]]`). `log_extra` and `log_metric` take what they are given and
    drop it: what a run logs are the scores.
    """
    parameters = _parameters(function)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    style = _annotated(parameters) or style

    def arguments(task: Task, episodes: Sequence[Episode]) -> dict[str, Any]:
        given = _arguments(task, episodes, style)
        return {name: value for name, value in given.items() if takes_all or name in parameters}

    return _like(
        function,
        lambda task, episodes: function(**arguments(task, episodes)),
        lambda values, task, episodes: values.tolist() if _is_array(values) else values,
    )


def by_source(functions: Mapping[str, Reward]) -> Reward:
    """The function registered for the task's data set (`Task.source`), else that of "*".

    Raises RewardError for a data set without one: no score is made up.
    """

    def choose(task: Task) -> Reward:
        if chosen := functions.get(task.source, functions.get("*")):
            return chosen
        raise RewardError(
            f"task {task.id!r}: no reward for its source {task.source!r}; reward.by_source has "
            f"{', '.join(map(repr, functions))}: add it, or '*' for all others"
        )

    async def later(task: Task, episodes: Sequence[Episode]) -> Values:
        values = choose(task)(task, episodes)
        return await values if inspect.isawaitable(values) else values

    def now(task: Task, episodes: Sequence[Episode]) -> Values | Awaitable[Values]:
        return choose(task)(task, episodes)

    return later if any(map(is_async, functions.values())) else now


def within(function: Reward, low: float, high: float, name: str) -> Reward:
    """`function`, whose values have to be from `low` to `high`: a RewardError says which one is not."""

    def check(values: Any, task: Task, episodes: Sequence[Episode]) -> Any:
        for value in values if isinstance(values, Sequence) else ():
            number = value.value if isinstance(value, Score) else value
            if isinstance(number, int | float) and not (low <= number <= high or number != number):
                raise RewardError(
                    f"reward {name!r} returned {number!r} for task {task.id!r}: expected {low:g} to {high:g}, its range"
                )
        return values

    return _like(function, function, check)


def _like(function: Callable[..., Any], call: Callable[..., Any], check: Callable[..., Any]) -> Reward:
    """`call`, its values passed through `check`; asynchronous if `function` is."""

    async def later(task: Task, episodes: Sequence[Episode]) -> Any:
        return check(await call(task, episodes), task, episodes)

    def now(task: Task, episodes: Sequence[Episode]) -> Any:
        return check(call(task, episodes), task, episodes)

    return later if is_async(function) else now


def _arguments(task: Task, episodes: Sequence[Episode], style: Style) -> dict[str, Any]:
    columns = {**dict.fromkeys(GOLD_COLUMNS, task.result), **task.extra_info, **vars(task)}
    step = re.match(r"grpo-(\d+)", episodes[0].group_id if episodes else "")
    asked: list[Message] = [{"role": "user", "content": task.question}]
    is_text = style == "text"
    return {name: [value] * len(episodes) for name, value in columns.items()} | {
        "prompts": [task.question if is_text else list(asked) for _ in episodes],
        "completions": [text_of(episode) if is_text else _messages(episode) for episode in episodes],
        "completion_ids": [[id_ for turn in episode.turns for id_ in turn.action_ids] for episode in episodes],
        "trainer_state": TrainerState(int(step[1]) - 1 if step else 0),
        "log_extra": lambda column, values: None,
        "log_metric": lambda name, value: None,
    }


def _messages(episode: Episode) -> list[Message]:
    """What was said after the question, tool results in between; the answer if nothing was said."""
    if not episode.turns:
        return [{"role": "assistant", "content": episode.answer or ""}]
    messages: list[Message] = []
    for place, turn in enumerate(episode.turns):
        messages.append({"role": "assistant", "content": turn.text})
        results = (event.result.text for event in episode.events if event.turn == place)
        messages += [{"role": "tool", "content": result} for result in results]
    return messages


def _annotated(parameters: Mapping[str, inspect.Parameter]) -> Style | None:
    """The style that the annotation of `completions` names; written as text or as a type."""
    annotation = parameters["completions"].annotation if "completions" in parameters else ""
    said = annotation if isinstance(annotation, str) else str(annotation)
    return "messages" if re.search(r"dict|Message", said) else "text" if re.search(r"\bstr\b", said) else None


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # not a function, or one written in C
        return {}


def _is_array(values: Any) -> bool:
    """A NumPy array or a tensor, which reward functions like to return."""
    return type(values).__module__.split(".")[0] in ("numpy", "torch")
