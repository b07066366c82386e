"""Groups of episodes as two Parquet tables and back, equal: one row per turn, one per episode.

Part of the run folder: `store` decides where the tables lie and when they are whole. Structured values are columns of
JSON text, so that any Parquet reader can query the rest.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gruppo.types import Credit, Episode, Group, Outcome, Sampling, Score, StopReason, Task, ToolEvent, ToolResult, Turn

_TASK = ("question", "chain", "result", "source")
_EPISODE = ("group_id", "task_id", "attempt", "answer", "error", "reward", "seed", "retries", "seconds")
_TURN = ("role", "policy", "version", "prompt", "text", "error", "seconds")
_TOKENS = ("prompt_ids", "action_ids", "action_logprobs")

_TEXT, _WHOLE, _REAL, _IDS = pa.string(), pa.int64(), pa.float64(), pa.list_(pa.int32())

_TURNS_SCHEMA = pa.schema(
    {"group_id": _TEXT, "task_id": _TEXT, "attempt": _WHOLE, "turn": _WHOLE}
    | {"role": _TEXT, "policy": _TEXT, "version": _WHOLE, "stop_reason": _TEXT, "seconds": _REAL}
    | {"temperature": _REAL, "top_p": _REAL, "max_tokens": _WHOLE, "stop": pa.list_(_TEXT)}
    | {"prompt": _TEXT, "text": _TEXT, "parsed": _TEXT, "error": _TEXT}
    | {"reward": _REAL, "shaped": _REAL, "return": _REAL, "advantage": _REAL}
    | {"prompt_ids": _IDS, "action_ids": _IDS, "action_logprobs": pa.list_(_REAL)}  # float64: exact
)
_EPISODES_SCHEMA = pa.schema(
    {"group_id": _TEXT, "task_id": _TEXT, "attempt": _WHOLE, "seed": _WHOLE}
    | {"question": _TEXT, "chain": _TEXT, "result": _TEXT, "source": _TEXT, "extra_info": _TEXT}
    | {"answer": _TEXT, "outcome": _TEXT, "error": _TEXT, "reward": _REAL, "scores": _TEXT}
    | {"retries": _WHOLE, "seconds": _REAL, "num_turns": _WHOLE, "events": _TEXT}
)


_encode = json.JSONEncoder(allow_nan=False).encode


def to_json(value: Any) -> str:
    """JSON text, with null for the NaN and the infinity that JSON lacks."""
    try:
        return _encode(value)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda name: None))


def to_parquet(groups: Sequence[Group]) -> tuple[pa.Buffer, pa.Buffer]:
    """The turns table and the episodes table as bytes. Group ids are unique, no group is empty, seeds fit 64 bits.

    A lone surrogate, which a model can write into JSON but Parquet can't hold, becomes "?".
    """
    assert len({group.id for group in groups}) == len(groups), "group ids are unique within a shard"
    for group in groups:
        assert group.episodes, f"group {group.id} is empty: a failed episode is an episode"
        owners = {(episode.group_id, episode.task_id) for episode in group.episodes}
        assert owners == {(group.id, group.task.id)}, f"group {group.id} of task {group.task.id} holds {owners}"
    episodes = [(group.task, episode) for group in groups for episode in group.episodes]
    turn_rows = [_turn_row(episode, i, turn) for _, episode in episodes for i, turn in enumerate(episode.turns)]
    episode_rows = [_episode_row(task, episode) for task, episode in episodes]
    return _table_bytes(turn_rows, _TURNS_SCHEMA), _table_bytes(episode_rows, _EPISODES_SCHEMA)


def from_parquet(turns: Path, episodes: Path) -> list[Group]:
    """The groups that `to_parquet` was given, from its two files. Raises OSError or pyarrow.ArrowException."""
    turn_rows = iter(_rows(turns))
    groups = []
    for group_id, rows in itertools.groupby(_rows(episodes), key=lambda row: row["group_id"]):
        group = Group(group_id, task=Task(id="", question="", result=""), episodes=[])
        for row in rows:
            group.task = _task(row)
            group.episodes.append(_episode(row, list(itertools.islice(turn_rows, row["num_turns"]))))
        groups.append(group)
    return groups


def _turn_row(episode: Episode, index: int, turn: Turn) -> dict[str, Any]:
    where = {"group_id": episode.group_id, "task_id": episode.task_id, "attempt": episode.attempt, "turn": index}
    given = episode.credits[index] if episode.credits else Credit()
    paid = {"shaped": given.shaped, "return": given.return_, "advantage": given.advantage}
    paid["reward"] = episode.turn_rewards[index] if episode.turn_rewards else None
    return where | paid | vars(turn) | vars(turn.sampling) | {"parsed": to_json(turn.parsed)}


def _turn(row: Mapping[str, Any]) -> Turn:
    plain: dict[str, Any] = {name: row[name] for name in _TURN} | {name: tuple(row[name]) for name in _TOKENS}
    return Turn(
        **plain,
        sampling=Sampling(row["temperature"], row["top_p"], row["max_tokens"], tuple(row["stop"])),
        stop_reason=StopReason(row["stop_reason"]),
        parsed=json.loads(row["parsed"]),
    )


def _episode_row(task: Task, episode: Episode) -> dict[str, Any]:
    scores = {name: [score.value, score.reason] for name, score in episode.scores.items()}
    events = [
        vars(event) | {"arguments": dict(event.arguments), "result": vars(event.result)} for event in episode.events
    ]
    structured = {"scores": scores, "events": events, "extra_info": dict(task.extra_info)}
    texts = {name: to_json(value) for name, value in structured.items()}
    return vars(task) | vars(episode) | texts | {"num_turns": len(episode.turns)}


def _episode(row: Mapping[str, Any], turn_rows: Sequence[Mapping[str, Any]]) -> Episode:
    return Episode(
        **{name: row[name] for name in _EPISODE},
        turns=[_turn(turn_row) for turn_row in turn_rows],
        events=[
            ToolEvent(**(event | {"result": ToolResult(**event["result"])})) for event in json.loads(row["events"])
        ],
        outcome=Outcome(row["outcome"]),
        scores={name: Score(value, reason) for name, (value, reason) in json.loads(row["scores"]).items()},
        **_paid(turn_rows),
    )


def _paid(turn_rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Turn rewards and credits, empty where none were given."""
    rewards = [row["reward"] for row in turn_rows]
    credits = [Credit(row["shaped"], row["return"], row["advantage"]) for row in turn_rows]
    return {
        "turn_rewards": rewards if any(reward is not None for reward in rewards) else [],
        "credits": credits if any(credit != Credit() for credit in credits) else [],
    }


def _task(row: Mapping[str, Any]) -> Task:
    texts = {name: row[name] for name in _TASK}
    return Task(id=row["task_id"], **texts, extra_info=json.loads(row["extra_info"]))


def _table_bytes(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Buffer:
    """The columns of `schema` from the rows, as a Parquet file in memory."""
    columns = [_column([row[field.name] for row in rows], field.type) for field in schema]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), sink, compression="zstd")
    return sink.getvalue()


def _column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type_)
    except UnicodeEncodeError:
        return pa.array([v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for v in values], type_)


def _rows(path: Path) -> list[dict[str, Any]]:
    with pq.ParquetFile(path) as file:
        return file.read(use_threads=False).to_pylist()
