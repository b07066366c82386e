"""What a person sees while gruppo works: a line per metrics record, and progress as a bar or, off a terminal, as lines.

Metrics are kept by `store`; nothing here is stored or sent anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

_NUMBERS = {
    "accuracy": "accuracy {:.1%}",
    "loss": "loss {:.4g}",
    "episodes_per_second": "{:.3g} episodes/s",
}


def summary(record: Mapping[str, Any], noun: str = "step") -> str:
    """The keys a person watches, as one line; what the record lacks, or has as None, is left out; a step is a `noun`.

    Reads `step`, `num_steps`, `reward_mean`, `reward_std`, `accuracy`, `loss`, `episodes_per_second`, `seconds_left`.
    """
    present = {key: value for key, value in record.items() if value is not None}
    parts = []
    if "step" in present:
        total = f"/{present['num_steps']}" if "num_steps" in present else ""
        parts.append(f"{noun} {present['step']}{total}")
    if "reward_mean" in present:
        spread = f" ± {present['reward_std']:.3f}" if "reward_std" in present else ""
        parts.append(f"reward {present['reward_mean']:.3f}{spread}")
    parts += [template.format(present[key]) for key, template in _NUMBERS.items() if key in present]
    if "seconds_left" in present:
        parts.append(f"{timedelta(seconds=round(present['seconds_left']))} left")
    return " · ".join(parts)


class Log:
    """Writes to the console, by default standard error: standard output is for results.

    Off a terminal a progress bar is plain lines, at most one every `seconds_between_lines`, and always the last one.
    """

    def __init__(
        self,
        console: Console | None = None,
        seconds_between_lines: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = Console(stderr=True) if console is None else console
        self.seconds_between_lines = seconds_between_lines
        self.clock = clock
        # One live display for all bars: an evaluation's bar may run inside the training's.
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[line]}", markup=False),
        )
        self._display = RichProgress(*columns, console=self.console, transient=True)

    def say(self, text: str) -> None:
        """One line of plain text; it goes above a running bar."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def log(self, record: Mapping[str, Any]) -> None:
        """The `summary` of a metrics record; nothing if it has none of the keys."""
        if line := summary(record):
            self.say(line)

    @contextmanager
    def progress(self, description: str, total: int, completed: int = 0, noun: str = "step") -> Iterator[Bar]:
        """A bar over `total` steps, of which a resumed run has `completed` some; a step is called `noun`. Its last line
        stays on the screen."""
        bar = Bar(self, description, total, completed, noun)
        try:
            yield bar
        finally:
            bar.close()


class Bar:
    """The progress of one loop; made by `Log.progress`."""

    def __init__(self, log: Log, description: str, total: int, completed: int, noun: str) -> None:
        self._log, self._description, self._total, self._noun = log, description, total, noun
        self._first = self._step = completed
        self._episodes = 0
        self._started = self._last_line_at = log.clock()
        self._line = ""
        self._on_terminal = log.console.is_interactive
        if self._on_terminal:
            self._task = log._display.add_task(description, total=total, completed=completed, line="")
            log._display.start()

    def advance(self, num_episodes: int = 0, **fields: Any) -> None:
        """One step done, in which `num_episodes` were played; `fields` are keys that `summary` reads."""
        self._step += 1
        self._episodes += num_episodes
        self._line = summary(fields | self._pace(), self._noun)
        if self._on_terminal:
            self._log._display.update(self._task, completed=self._step, line=self._line)
        elif self._log.clock() - self._last_line_at >= self._log.seconds_between_lines:
            self._write_line()

    def close(self) -> None:
        """Take the bar off the screen and leave its last line, if that was not written yet."""
        if self._on_terminal:
            self._log._display.remove_task(self._task)
            if not self._log._display.tasks:
                self._log._display.stop()
        if self._line:
            self._write_line()

    def _pace(self) -> dict[str, Any]:
        seconds = max(self._log.clock() - self._started, 1e-9)
        steps = self._step - self._first
        pace: dict[str, Any] = {"step": self._step, "num_steps": self._total}
        pace["seconds_left"] = seconds / steps * max(self._total - self._step, 0)
        return pace | ({"episodes_per_second": self._episodes / seconds} if self._episodes else {})

    def _write_line(self) -> None:
        self._log.say(f"{self._description}: {self._line}")
        self._line, self._last_line_at = "", self._log.clock()
