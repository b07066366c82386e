"""Monitors: what each service's own reader finds in the files, and that none of them can end a run."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, get_args

import pytest
from command_line import Command, training

from gruppo.config import Config, load
from gruppo.errors import ConfigError
from gruppo.monitors import MONITORS, Monitor, MonitorConfig, check_monitors, numbers_of, watch
from gruppo.run import RunConfig

RECORDS = [
    {"stage": "sft", "step": 1, "loss/planner": 2.5},
    {"stage": "sft", "step": 2, "loss/planner": 1.5},
    {"stage": "grpo", "step": 1, "reward/mean": 0.25, "loss/planner": math.nan, "alarms": "kl_high", "skipped": None},
    {"stage": "grpo", "step": 2, "reward/mean": 0.5, "loss/planner": 0.125, "success": 1},
]
EXPECTED = {
    "sft/loss/planner": [(1, 2.5), (2, 1.5)],
    "reward/mean": [(1, 0.25), (2, 0.5)],
    "loss/planner": [(2, 0.125)],
    "success": [(2, 1.0)],
}
PROCESS = """
import json, os, signal, sys
from pathlib import Path
from gruppo.monitors import MonitorConfig, watch
monitor, past, records = sys.argv[1], *map(json.loads, sys.argv[2:4])
config = MonitorConfig(project="trials", online="WANDB_BASE_URL" in os.environ)
with watch([monitor], config, Path("run"), MonitorConfig(), sys.exit, past) as tell:
    for record in records:
        tell(record)
    if sys.argv[4:]:
        os.kill(os.getpid(), signal.SIGKILL)
"""
AGAIN = RECORDS[1:]  # what is played again after a kill


def play(
    tmp_path: Path, monitor: str, records: list[dict], past: Sequence[dict] = (), kill: bool = False
) -> subprocess.CompletedProcess[str]:
    """Tell the records to a monitor in a process of its own, as a run is; it may be killed at the end, or resumed."""
    (tmp_path / "run").mkdir(exist_ok=True)
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", PROCESS, monitor, json.dumps(past), json.dumps(records), *["kill"] * kill]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == (-signal.SIGKILL if kill else 0)
    assert not done.stdout, done  # standard output is for results
    return done


def sift(found: dict[str, list[tuple[int, float]]]) -> dict[str, list[tuple[int, float]]]:
    return {name: sorted(points) for name, points in found.items()}


def test_numbers_have_one_name_everywhere_and_are_finite() -> None:
    assert [numbers_of(record) for record in RECORDS] == [
        {"sft/loss/planner": 2.5},
        {"sft/loss/planner": 1.5},
        {"reward/mean": 0.25},
        {"reward/mean": 0.5, "loss/planner": 0.125, "success": 1.0},
    ]
    assert numbers_of({"step": 3, "stage": "grpo", "flag": True, "text": "a", "infinite": -math.inf}) == {}


def test_the_text_file_has_a_line_for_each_record(tmp_path: Path) -> None:
    said: list[str] = []
    config = MonitorConfig(project="trials", name="one", folder=str(tmp_path / "seen"))
    with watch(["log"], config, tmp_path / "run", config, said.append) as tell:
        for record in RECORDS:
            tell(record)
    assert lines_of(tmp_path / "seen/log/trials/one/metrics.txt") == EXPECTED and not said


def lines_of(path: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in path.read_text().splitlines():
        _, step, *pairs = line.split()
        for name, value in (pair.split("=") for pair in pairs):
            found.setdefault(name, []).append((int(step), float(value)))
    return found


def test_the_text_file_has_each_step_once_however_often_it_is_played(tmp_path: Path) -> None:
    play(tmp_path, "log", RECORDS, kill=True)
    path = tmp_path / "run/monitors/log/trials/run/metrics.txt"
    os.truncate(path, path.stat().st_size - 3)  # killed in the middle of the last line
    play(tmp_path, "log", AGAIN, past=RECORDS)
    assert lines_of(path) == EXPECTED and len(path.read_text().splitlines()) == len(RECORDS)
    play(tmp_path, "log", RECORDS)  # a new run of the same name
    assert len(path.read_text().splitlines()) == 2 * len(RECORDS)


def test_tensorboards_own_reader_finds_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run/monitors/tensorboard/trials/run"
    play(tmp_path, "tensorboard", [*RECORDS, {"stage": "grpo", "step": 3, "reward/mean": 9.0}])
    play(tmp_path, "tensorboard", RECORDS, kill=True)  # a new run of the same name: what was there before is hidden
    assert sift(events_of(folder)) == EXPECTED
    play(tmp_path, "tensorboard", AGAIN, past=RECORDS)
    assert sift(events_of(folder)) == EXPECTED and len(list(folder.glob("*/events.*"))) == 4, "written once"


def events_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[tuple[int, float]]] = {}
    for stage in sorted(folder.iterdir()):
        events = EventAccumulator(str(stage)).Reload()
        found |= {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return found


@pytest.mark.slow
def test_wandbs_offline_run_holds_the_numbers_and_needs_no_server(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    play(tmp_path, "wandb", RECORDS, kill=True)
    identity = (tmp_path / "run/wandb.id").read_text()
    play(tmp_path, "wandb", AGAIN, past=RECORDS)
    (folder,) = (tmp_path / "run/monitors/wandb").glob("offline-run-*")
    assert folder.name.endswith(identity) and sift(history_of(folder)) == EXPECTED


def history_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The numbers of an offline run, each over the axis that belongs to it."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    histories = [Record.FromString(content).history.item for content in records_of(file.read_bytes())]
    return over_axes(
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items} for items in histories
    )


def over_axes(rows: Iterable[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.items():
            axis = "sft/step" if name.startswith("sft/") else "step"
            if not name.startswith("_") and name != axis:
                found.setdefault(name, []).append((row[axis], value))
    return found


class Service(BaseHTTPRequestHandler):
    """W&B's server, as far as a run asks it: how much of the run it has, and where its files and history go."""

    histories: ClassVar[dict[str, list[dict[str, float]]]] = {}

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(gzip.decompress(content) if self.headers["Content-Encoding"] == "gzip" else content)
        if sent := asked.get("files", {}).get("wandb-history.jsonl"):
            rows = self.histories.setdefault(self.path.split("/")[4], [])
            rows[sent["offset"] :] = map(json.loads, sent["content"])
        self.answer(self.found(asked.get("query", ""), asked.get("variables", {})))

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({})

    def answer(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def found(self, query: str, asked: dict[str, Any]) -> Any:
        project = {"id": "p", "name": "trials", "entity": {"id": "e", "name": "me"}}
        run = {"id": "b", "name": asked.get("name"), "project": project, "config": "{}", "summaryMetrics": "{}"}
        match query.split()[1:2]:
            case ["RunResumeStatus"] if rows := self.histories.get(asked["name"]):
                run |= {"historyLineCount": len(rows), "historyTail": json.dumps([json.dumps(rows[-1])])}
                run |= {"eventsLineCount": 0, "eventsTail": "[]", "logLineCount": 0, "wandbConfig": '{"t": {}}'}
                return {"data": {"model": {**project, "bucket": run}}}
            case ["RunResumeStatus"]:
                return {"data": {"model": {**project, "bucket": None}}}
            case ["UpsertBucket"]:
                return {"data": {"upsertBucket": {"bucket": run, "inserted": asked["name"] not in self.histories}}}
            case ["CreateRunFiles"]:
                place = f"http://{self.headers['Host']}/"
                files = [{"name": name, "uploadUrl": place + name} for name in asked["files"]]
                return {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}}
        return {"data": {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}"}, "serverInfo": {}}}

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.slow
def test_wandbs_server_has_each_step_once_however_often_a_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setenv("NO_PROXY", "*")
        play(tmp_path, "wandb", RECORDS[:1])
        play(tmp_path, "wandb", RECORDS[1:2], past=RECORDS[:1], kill=True)  # at once, before it is sent
        assert [len(rows) for rows in Service.histories.values()] == [1]
        play(tmp_path, "wandb", RECORDS[2:], past=RECORDS[:2])
        play(tmp_path, "wandb", RECORDS[3:], past=RECORDS[:3])  # killed again in the midst of what was played again
        server.shutdown()
    ((identity, rows),) = Service.histories.items()
    assert identity == (tmp_path / "run/wandb.id").read_text() and len(rows) == len(RECORDS)
    assert sift(over_axes(rows)) == EXPECTED


def records_of(content: bytes) -> list[bytes]:
    """LevelDB's log format: blocks of 32 KiB, in them pieces with 4 bytes of checksum, 2 of length and 1 of kind."""
    assert content[:4] == b":W&B"
    found, whole, place = [], b"", 7
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # full, last
            found.append(whole)
            whole = b""
    return found


@pytest.mark.slow
def test_trackios_database_holds_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    play(tmp_path, "trackio", RECORDS[:2], kill=True)  # too soon for all of it to be in the database
    play(tmp_path, "trackio", RECORDS[2:], past=RECORDS[:2])
    done = play(tmp_path, "trackio", AGAIN, past=RECORDS)
    assert "run/monitors/trackio" in done.stderr
    read = (
        "import json, sys; from trackio.sqlite_storage import SQLiteStorage as S;"
        "print(json.dumps(S.get_logs('trials', 'run')))"
    )
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "run/monitors/trackio")}
    command = [sys.executable, "-c", read]
    rows = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name in row.keys() & EXPECTED.keys():
            found.setdefault(name, []).append((row["step"], row[name]))
    assert sift(found) == EXPECTED


def test_a_monitor_that_fails_is_said_once_and_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "run/monitors").mkdir(parents=True)
    (tmp_path / "run/monitors/log").write_text("in the way")
    with watch(["log"], MonitorConfig(), tmp_path / "run", MonitorConfig(), said.append) as tell:
        for record in RECORDS:
            tell(record)
    assert len(said) == 1 and "monitor log failed" in said[0] and "goes on without it" in said[0]


def test_a_monitor_that_fails_midway_leaves_the_others_alone(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    said: list[str] = []
    broken = {"stage": "grpo", "step": 2**70, "reward/mean": 0.5}  # more than an event's step can hold
    with watch(["tensorboard", "log"], MonitorConfig(), tmp_path / "run", MonitorConfig(), said.append) as tell:
        for record in (*RECORDS, broken, {"stage": "grpo", "step": 3, "success": 0}):
            tell(record)
    assert len(said) == 1 and said[0].startswith("monitor tensorboard failed")
    assert len((tmp_path / "run/monitors/log/gruppo/run/metrics.txt").read_text().splitlines()) == len(RECORDS) + 2


def test_the_runs_own_error_passes_through(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        pytest.raises(KeyboardInterrupt),
        watch(["log"], MonitorConfig(), tmp_path / "run", MonitorConfig(), said.append),
    ):
        raise KeyboardInterrupt
    assert not said


def test_what_can_not_be_monitored_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"monitor\.online = true: none of monitors = \['log'\]"):
        check_monitors(["log"], MonitorConfig(online=True))
    with pytest.raises(ConfigError, match="did you mean tensorboard"):
        load(RunConfig, [], {"monitors": '["tensorbord"]'})
    assert set(MONITORS) == set(get_args(Monitor))


def test_a_monitor_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    with pytest.raises(ConfigError, match=r'tensorboard is not installed: pip install "gruppo\[tensorboard\]"'):
        check_monitors(["tensorboard"], MonitorConfig())


def test_every_key_of_the_place_has_an_effect(tmp_path: Path) -> None:
    class Settings(Config):
        key: int = 3

    config = MonitorConfig(project="p", name="n", folder=str(tmp_path / "f"))
    with watch(["log"], config, tmp_path / "run", Settings(), print) as tell:
        tell(RECORDS[0])
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.txt")] == ["f/log/p/n/metrics.txt"]


def test_a_run_tells_its_monitors_what_it_writes(gruppo: Command, tmp_path: Path) -> None:
    ended = gruppo(*training(monitors='["log"]', sft__steps="1", sft__demonstrations="4", train__attempts="3"))
    assert ended.code == 0, ended
    lines = (tmp_path / "run/monitors/log/gruppo/run/metrics.txt").read_text().splitlines()
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line.split()[:2] for line in lines] == [[record["stage"], str(record["step"])] for record in records]
    for line, record in zip(lines, records, strict=True):
        assert {pair.partition("=")[0] for pair in line.split()[2:]} == numbers_of(record).keys()
    assert "hint: train.attempts = 3" in ended.err
    shutil.rmtree(tmp_path / "run/checkpoints")  # as if it had been killed before the first: all is played again
    assert gruppo("train", "--out", "run", "--resume").code == 0
    assert (tmp_path / "run/monitors/log/gruppo/run/metrics.txt").read_text().splitlines() == lines
