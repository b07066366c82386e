"""The console line and the progress bar, on and off a terminal."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from gruppo.log import Log, summary


def plain(seconds_between_lines: float) -> tuple[Log, io.StringIO]:
    screen = io.StringIO()
    return Log(Console(file=screen, force_terminal=False, width=40), seconds_between_lines), screen


def terminal() -> tuple[Log, io.StringIO]:
    screen = io.StringIO()
    return Log(Console(file=screen, force_terminal=True, force_interactive=True, width=120)), screen


def test_a_record_becomes_one_line_of_the_keys_it_has() -> None:
    record = {"step": 3, "num_steps": 100, "reward_mean": 0.4123, "reward_std": 0.21, "loss": 0.01234, "kl": 7.0}
    pace = {"episodes_per_second": 5.312, "seconds_left": 3723.4}
    assert summary(record | pace) == (
        "step 3/100 · reward 0.412 ± 0.210 · loss 0.01234 · 5.31 episodes/s · 1:02:03 left"
    )
    assert summary({"step": 3, "reward_mean": None, "accuracy": 0.5}) == "step 3 · accuracy 50.0%"
    assert summary({"loss": float("nan")}) == "loss nan"
    assert summary({"kl": 1.0}) == ""


def test_a_log_line_is_not_wrapped_or_read_as_markup() -> None:
    log, screen = plain(0)
    log.log({"step": 3, "num_steps": 100, "reward_mean": 0.4, "reward_std": 0.2, "loss": 0.0123})
    log.log({"kl": 1.0})
    log.say("[red]answer[/red]")
    assert screen.getvalue() == "step 3/100 · reward 0.400 ± 0.200 · loss 0.0123\n[red]answer[/red]\n"


def test_off_a_terminal_lines_are_spaced_out_and_the_last_is_always_written() -> None:
    log, screen = plain(seconds_between_lines=3600)
    with log.progress("train", total=100, completed=40) as bar:
        for reward in range(60):
            bar.advance(num_episodes=8, reward_mean=float(reward), reward_std=0.5)
        assert screen.getvalue() == ""
    (line,) = screen.getvalue().splitlines()
    assert line.startswith("train: step 100/100 · reward 59.000 ± 0.500 · ")
    assert line.endswith(" episodes/s · 0:00:00 left")

    log, screen = plain(seconds_between_lines=0)
    with log.progress("train", total=3) as bar:
        for _ in range(3):
            bar.advance()
    assert len(screen.getvalue().splitlines()) == 3
    with log.progress("nothing", total=0):
        pass
    assert "nothing" not in screen.getvalue()


def test_the_last_line_is_written_when_the_loop_breaks() -> None:
    log, screen = plain(seconds_between_lines=3600)
    with pytest.raises(RuntimeError), log.progress("train", total=10) as bar:
        bar.advance(reward_mean=0.25)
        raise RuntimeError
    assert screen.getvalue().startswith("train: step 1/10 · reward 0.250 · ")


def test_time_left_counts_only_the_steps_of_this_process() -> None:
    screen, ticks = io.StringIO(), itertools.count(0.0, 10.0)
    log = Log(Console(file=screen, force_terminal=False), seconds_between_lines=5, clock=lambda: next(ticks))
    with log.progress("train", total=100, completed=90) as bar:
        bar.advance(num_episodes=40)
    assert screen.getvalue() == "train: step 91/100 · 4 episodes/s · 0:01:30 left\n"


def test_on_a_terminal_bars_nest_and_leave_their_last_line() -> None:
    log, screen = terminal()
    with log.progress("train", total=2) as outer:
        outer.advance(reward_mean=0.5, reward_std=0.1)
        with log.progress("evaluate", total=1) as inner:
            inner.advance(accuracy=0.25)
        log.say("between")
        assert "━" in screen.getvalue().split("between\n")[1]  # the outer bar is still drawn, below the line
        outer.advance(reward_mean=0.75, reward_std=0.1)
    with log.progress("again", total=1) as bar:
        bar.advance()
    shown = screen.getvalue()
    assert "\x1b[" in shown and "━" in shown  # a live bar was drawn
    assert "evaluate: step 1/1 · accuracy 25.0%" in shown and "between\n" in shown
    assert "train: step 2/2 · reward 0.750 ± 0.100" in shown
    assert "again: step 1/1" in shown.splitlines()[-1]
