"""Episodes through Parquet and back: equal whatever a model, a tool or a task file put into them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.errors import StoreError
from gruppo.store import Run
from gruppo.types import Credit, Episode, Group, Outcome, Sampling, Score, StopReason, Task, ToolEvent, ToolResult, Turn


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with Run.create(tmp_path_factory.mktemp("run"), "") as run:
        yield run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run.create(tmp_path, "") as run:
        yield run


whole, real, text = st.integers(0, 2**31 - 1), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | real | text,
    lambda children: st.lists(children, max_size=2) | st.dictionaries(text, children, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(text, values, max_size=2)
samplings = st.builds(Sampling, real, real, whole, st.lists(text, max_size=2).map(tuple))
tokens = st.lists(st.tuples(whole, real), max_size=4)
results = st.builds(ToolResult, st.booleans(), text, text, st.booleans())
events = st.builds(ToolEvent, turn=whole, tool=text, arguments=objects, result=results, seconds=real)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    sampled = draw(tokens)
    return Turn(
        role=draw(text),
        policy=draw(st.none() | text),
        version=draw(whole),
        prompt=draw(text),
        prompt_ids=tuple(draw(st.lists(whole, max_size=4))),
        action_ids=tuple(token for token, _ in sampled),
        action_logprobs=tuple(logprob for _, logprob in sampled),
        sampling=draw(samplings),
        stop_reason=draw(st.sampled_from(StopReason)),
        text=draw(text),
        parsed=draw(values),
        error=draw(text),
        seconds=draw(real),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    task = draw(st.builds(Task, text, text, text, text, text, objects))
    group = Group(draw(text), task, [])
    for attempt in range(draw(st.integers(1, 3))):
        episode = Episode(task.id, group.id, attempt, seed=draw(st.integers(-(2**63), 2**63 - 1)))
        episode.turns = draw(st.lists(turns(), max_size=2))
        episode.events = draw(st.lists(events, max_size=2))
        episode.answer = draw(st.none() | text)
        episode.outcome = draw(st.sampled_from(Outcome))
        episode.error = draw(text)
        episode.scores = draw(st.dictionaries(text, st.builds(Score, st.none() | real, text), max_size=2))
        episode.reward = draw(st.none() | real)
        if episode.turns and draw(st.booleans()):
            count = len(episode.turns)
            episode.turn_rewards = draw(st.lists(real, min_size=count, max_size=count))
            episode.credits = [Credit(draw(real), draw(st.none() | real), draw(st.none() | real)) for _ in range(count)]
        episode.retries, episode.seconds = draw(whole), draw(real)
        group.episodes.append(episode)
    return group


@settings(max_examples=15, deadline=None, derandomize=True)
@given(written=st.lists(groups(), max_size=3, unique_by=lambda group: group.id))
def test_episodes_come_back_equal(shared: Run, written: list[Group]) -> None:
    shared.write_episodes("step-000001", written)
    assert shared.read_episodes("step-000001") == written


def one_group(**fields: Any) -> Group:
    return Group("g", Task("t", "2 + 2", "4"), [Episode("t", "g", 0, 7, **fields)])


def test_episode_shards_are_listed_replaced_and_missed_by_name(run: Run) -> None:
    turn = Turn("solver", None, 0, "2 + 2", (5, 6), (7,), (-0.5,), Sampling(), StopReason.stop, "4")
    for name, answer in (("step-000002", "5"), ("step-000001", "4"), ("step-000002", "6")):
        run.write_episodes(name, [one_group(answer=answer, turns=[turn])])
    assert run.list_episodes() == ["step-000001", "step-000002"]
    assert run.read_episodes("step-000002")[0].episodes[0].answer == "6"
    row = pq.ParquetFile(run.path / "episodes" / "step-000001.turns.parquet").read().to_pylist()[0]
    assert (row["task_id"], row["attempt"], row["turn"], row["prompt_ids"]) == ("t", 0, 0, [5, 6])
    with pytest.raises(StoreError, match="no episodes 'step-3'; it has: step-000001, step-000002"):
        run.read_episodes("step-3")
    (run.path / "episodes" / "step-000001.turns.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match="can't be read"):
        run.read_episodes("step-000001")


def test_a_shard_that_could_not_be_replaced_is_gone_rather_than_mixed(run: Run) -> None:
    run.write_episodes("a", [one_group(answer="4")])
    (run.path / "episodes" / "a.turns.parquet").unlink()
    (run.path / "episodes" / "a.turns.parquet").mkdir()
    with pytest.raises(StoreError, match="can't write"):
        run.write_episodes("a", [one_group(answer="5")])
    assert run.list_episodes() == []


def test_what_a_model_writes_never_stops_the_store(run: Run) -> None:
    parsed = json.loads('{"nan": NaN, "half": "\\ud800", "deep": ' + "[" * 400 + "]" * 400 + "}")
    turn = Turn("solver", "solver", 0, "\x00", (), (), (), Sampling(), StopReason.length, parsed["half"], parsed)
    run.write_episodes("a", [one_group(turns=[turn], answer=parsed["half"])])
    (episode,) = run.read_episodes("a")[0].episodes
    assert (episode.answer, episode.turns[0].text, episode.turns[0].prompt) == ("?", "?", "\x00")
    assert episode.turns[0].parsed == parsed | {"nan": None}
