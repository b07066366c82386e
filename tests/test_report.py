"""The report page: self-contained, safe against what it shows, honest in its words, whole even when data is missing."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.evaluation.metrics import compare, summarise
from gruppo.evaluation.plots import Chart, Line, Mark, Row, divided_bar, interval_rows, line_chart, number, ticks
from gruppo.evaluation.report import HEALTHY, Example, ReportData, Stage, render, write_report
from gruppo.evaluation.wording import duration, headline, statements
from gruppo.types import Episode, Group, Outcome, Sampling, Score, StopReason, Task, ToolEvent, ToolResult, Turn

_VOID = {"meta"}
EVIL = "<script>alert('x')</script>\"&$title"


class _Page(HTMLParser):
    """Checks that tags close in order and keeps the text and the tags seen."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing that is open"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def _read(page: str) -> str:
    parsed = _Page(page)
    assert not parsed.open
    return " ".join(" ".join(parsed.words).split())


def _turn(role: str, text: str, error: str = "", prompt: str = "the prompt") -> Turn:
    return Turn(role, role, 0, prompt, (1, 2), (3,), (-0.5,), Sampling(), StopReason.stop, text, error=error)


def _evaluation(solved: int, words: str = "") -> list[Group]:
    groups = []
    for index in range(40):
        extra = {"family": f"even{words}" if index % 2 == 0 else f"odd{words}", "steps": 2 + index % 2}
        task = Task(f"t{index}", "q", "r", extra_info=extra)
        episode = Episode(task.id, task.id, 0, 0, reward=float(index < solved), turns=[_turn("planner", "x")])
        groups.append(Group(task.id, task, [episode]))
    return groups


def _report(words: str = "") -> ReportData:
    before, after = _evaluation(10, words), _evaluation(30, words)
    stages = [
        Stage(f"Base{words}", summarise(before, lambda task: task.extra_info["family"])),
        Stage(f"Trained{words}", *[summarise(after, lambda task: task.extra_info["family"])] * 2),
    ]
    comparison = compare(before, after)
    records = [
        {
            "step": s,
            "reward/mean": s / 9,
            "reward/std": 0.1,
            "success": s / 9,
            f"tokens/planner{words}": 50.0 - s,
            "kl": s,
        }
        for s in range(1, 9)
    ] + [{"step": 8, "eval/success": 0.75, "eval/n": 40}]
    turns = [_turn(f"planner{words}", f"plan{words}", f"bad JSON{words}", f"prompt{words}"), _turn("executor", "act")]
    events = [
        ToolEvent(1, f"calc{words}", {f"x{words}": f"1+1{words}"}, ToolResult(True, f"2{words}")),
        ToolEvent(1, "calc", {}, ToolResult(False, error=f"no operand{words}")),
    ]
    lost = Episode("t", "t", 0, 0, turns, events, None, Outcome.wrong_format, f"gave up{words}", reward=0.0)
    won = Episode("t", "t", 0, 0, turns[:1], answer=f"42{words}", scores={"exact": Score(1.0)})
    summary = {
        "before": 0.25,
        "sft": 0.5,
        "after": 0.75,
        "gain": comparison["gain"],
        "gain_ci95": comparison["gain_ci95"],
        "n": 40,
        "seconds": 75,
        "seed": f"7{words}",
        "roles": {f"planner{words}": {"rows": 1234, "changed": True}, "verifier": {"rows": 0, "changed": False}},
        "notes": [f"The verifier was frozen.{words}"],
    }
    example = Example(lost, won, Task(f"task-9{words}", f"how many?{words}", f"gold{words}"))
    return ReportData(f"a run{words}", summary, stages, comparison, records, [example], {f"odd{words}", "absent"})


def test_page_is_one_file_that_loads_and_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(path, _report())
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|url\(|<script|<link", page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page and "@media print" in page and "width=device-width" in page


def test_page_tells_the_whole_story() -> None:
    words = _read(render(_report()))
    for expected in (
        "The trained team solves 75.0% of 40 held-out tasks",
        "up from 25.0%",
        "+50.0 points",
        "25.0% 14.2–40.2%, n 40",
        "20 fixed",
        "20 unchanged",
        "1 min 15 s wall-clock time",
        "odd †",
        "2 steps",
        "held-out tasks",
        "training step",
        "planner 42",
        "sampled tokens per turn",
        "calc() Error: no operand",
        'calc(x="1+1") 2',
        "bad JSON",
        "Right answer gold",
        "Answer none not solved · wrong format gave up",
        "Answer 42 solved",
        "planner 1,234 yes verifier 0 no",
        "The verifier was frozen.",
    ):
        assert expected in words, expected
    assert "even †" not in words and "broken" in words.split("20 unchanged")[0] and "0 broken" not in words


def test_everything_shown_is_escaped() -> None:
    page = render(_report(EVIL))
    assert "<script" not in page and "alert('" not in page
    parsed = _Page(page)
    assert "script" not in parsed.tags
    assert page.count("&lt;script&gt;") > 30
    assert "a run<script>alert('x')</script>\"&$title" in "".join(parsed.words)  # a dollar sign is no placeholder


def test_half_a_surrogate_pair_can_be_written(tmp_path: Path) -> None:
    report = replace(_report(), title="broken \ud83d bytes")
    write_report(tmp_path / "report.html", report)
    assert "broken &#55357; bytes" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_long_text_is_cut_and_says_so() -> None:
    example = _report().examples[0]
    example.before.turns[0] = _turn("planner", "a" * 50_000 + "END")
    page = render(replace(_report(), examples=[example]))
    assert "44,003 characters left out" in page and "END" in page and len(page) < 80_000


@pytest.mark.parametrize(
    "report",
    [
        ReportData("empty", {}),
        ReportData("one stage", {"after": 0.5}, [Stage("only", {"n": 0})]),
        ReportData("one step", {}, metrics=[{"step": 3, "loss": 0.5}]),
        ReportData("nothing finite", {}, metrics=[{"step": 1, "kl": math.nan}, {"step": 2, "kl": None}]),
        replace(_report(), comparison=None, examples=[], metrics=[]),
        replace(_report(), stages=_report().stages[1:]),
    ],
    ids=lambda report: report.title,
)
def test_missing_parts_leave_a_whole_page(report: ReportData) -> None:
    page = render(report)
    _read(page)
    assert not re.search(r"\b(nan|inf|None)\b", page.split("</style>")[1])


def test_headline_is_never_stronger_than_its_interval() -> None:
    base = {"before": 0.4, "after": 0.5, "gain": 0.1, "n": 100}
    sure = headline(base | {"gain_ci95": [0.02, 0.18]})
    assert "up from" in sure and "95% interval +2.0 to +18.0" in sure and "no gain" not in sure
    unsure = headline(base | {"gain_ci95": [-0.02, 0.18]})
    assert "95% interval −2.0 to +18.0" in unsure and unsure.endswith("this run shows no gain.")
    worse = headline({"before": 0.5, "after": 0.3, "gain": -0.2, "gain_ci95": [-0.3, -0.1], "n": 100})
    assert "down from" in worse and worse.endswith("Training made the team worse.")
    assert headline(base | {"gain_ci95": [0.02, 0.18], "n": 12}).endswith("So few tasks carry no conclusion.")
    assert headline({"after": 0.5, "n": 1000}) == "The trained team solves <b>50.0%</b> of 1,000 held-out tasks."
    assert headline({}) == "No evaluation was made."


def test_statements_name_the_families_whose_intervals_are_apart() -> None:
    first = {"by_family": {"a": {"ci95": [0.1, 0.3]}, "b": {"ci95": [0.1, 0.5]}}}
    last = {"by_family": {"a": {"ci95": [0.4, 0.9]}, "b": {"ci95": [0.4, 0.9]}, "new": {"ci95": [0.9, 1.0]}}}
    said = " ".join(statements([("base", first, None), ("end", last, None)], {"gain_ci95": [-0.1, 0.2]}))
    assert "of base and end are apart in a." in said and "includes zero" in said
    said = " ".join(statements([("base", first, None), ("end", first, None)], {"gain_ci95": [0.1, 0.2]}))
    assert "overlap in every family" in said and "excludes zero" in said


def test_line_breaks_at_what_is_not_finite_and_says_how_often() -> None:
    points = [(1.0, 0.1), (2.0, math.nan), (3.0, 0.3), (4.0, None), (5.0, 0.5), (6.0, 0.6)]
    drawn = line_chart(Chart("KL", "nats", [Line("", "ink", points)]))
    path = re.search(r' d="([^"]+)"', drawn)
    assert path and path[1].count("M") == 3 and path[1].count("L") == 1
    assert "1 not finite" in drawn  # None is a step without a value, not a fault
    assert "nan" not in drawn


def test_line_chart_places_values_on_round_axes() -> None:
    marks = [Mark("held-out", 0.5, 0.25, 0.75, at=10.0)]
    drawn = line_chart(
        Chart("Success", "share", [Line("", "ink", [(0, 0.0), (10, 1.0)])], marks, "held-out", "percent")
    )
    assert 'd="M0,1000h0L1000,0"' in drawn
    assert '<line x1="100.0%" x2="100.0%" y1="112.5" y2="37.5"/>' in drawn
    assert ">100%</text>" in drawn and "0% at step 0, 100% at step 10" in drawn


def test_a_healthy_range_is_a_band_that_never_changes_the_axis() -> None:
    def drawn(values: list[float], healthy: tuple[float, float] | None = (0.01, 0.1)) -> str:
        return line_chart(Chart("KL", "nats", [Line("", "ink", list(enumerate(values)))], healthy=healthy))

    def rest(page: str) -> str:
        page = re.sub(r'<rect[^>]*>|<span><i class="dot healthy"></i>.*?</span>', "", page)
        return re.sub(r"; healthy range [^\"]+", "", page)

    for values in ([0.0, 0.2], [0.0, 0.05], [0.001, 0.002], [1.0, 900.0], [-1.0, -2.0]):
        assert rest(drawn(values)) == drawn(values, None)
        assert "healthy range 0.01\N{EN DASH}0.1</span>" in drawn(values)
    assert '<rect class="band healthy" width="1000" y="500" height="450"/>' in drawn([0.0, 0.2])
    assert '<rect class="band healthy" width="1000" y="0" height="800"/>' in drawn([0.0, 0.05])  # the axis ends at 0.05
    assert "<rect" not in drawn([0.0, 0.002]) and "<rect" not in drawn([0.0, -1.0])  # all of it is out of sight
    assert drawn([0.0, 0.2]).index("<rect") < drawn([0.0, 0.2]).index("<path")  # behind the curve
    assert "healthy" not in drawn([0.0, 0.2], None) and not line_chart(Chart("KL", "nats", [], healthy=(0, 1)))


def test_healthy_ranges_are_drawn_in_the_chart_of_their_metric() -> None:
    values = {"kl/p": 0.05, "grad_norm/p": 1.0, "clipped/p": 0.1, "ratio/p": 1.1, "ess/p": 0.9, "entropy/p": 0.5}
    page = render(ReportData("run", {}, metrics=[{"step": step, **values} for step in (1, 2)]))
    assert [word for word in re.findall(r"healthy range ([^<\"]+)</span>", page)] == [
        f"{number(low)}\N{EN DASH}{number(high)}"
        for low, high in (HEALTHY[key] for key in ("grad_norm", "kl", "clipped", "ratio", "ess"))
    ]
    assert len(HEALTHY) == 5
    on_policy = {"ratio/p": 1.0, "clipped/p": 0.0}
    page = render(ReportData("run", {}, metrics=[{"step": step, **values, **on_policy} for step in (1, 2)]))
    assert "Probability ratio" not in page and "Clip fraction" not in page and "Gradient norm" in page


def test_interval_rows_and_bars() -> None:
    rows = interval_rows([Row("r", [Mark("m", 0.5, 0.25, 0.75)], "50%", "n 4", "why")])
    assert 'x1="25.00%" x2="75.00%"' in rows and 'cx="50.00%"' in rows and 'title="why"' in rows
    bar = divided_bar([("fixed", 3, "good"), ("none", 0, "bad")])
    assert "flex:3" in bar and "none" not in bar
    assert divided_bar([("fixed", 0, "good")]) == ""


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_surround_their_range_and_stay_few(low: float, span: float) -> None:
    found = ticks(low, low + span)
    slack = 1e-6 * (found[1] - found[0]) + 1e-9
    assert found[0] <= low + slack and found[-1] >= low + span - slack
    assert 2 <= len(found) <= 8
    assert all(later > earlier for earlier, later in zip(found, found[1:], strict=False))


def test_numbers_as_people_read_them() -> None:
    assert [number(value) for value in (0.12345, -2, 12345.6, 0)] == ["0.123", "−2", "12,346", "0"]
    assert [duration(seconds) for seconds in (4.4, 862, 7500)] == ["4 s", "14 min 22 s", "2 h 05 min"]
    assert ticks(1, 3, 8, least=1.0) == [1, 2, 3]
