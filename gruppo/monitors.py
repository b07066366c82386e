"""Monitors: every record of metrics.jsonl, sent on as it is written: to TensorBoard, W&B, trackio or a text file.

One function for each service, a context that yields where its numbers go; the names are the same in all of them. A
resumed run sends what a monitor lacks, and nothing twice. A monitor that fails is said once and left out: metrics.jsonl
has everything, and no run ends for the sake of a picture. Computes no metric; reads back only which steps are there.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pydantic import Field

from gruppo.config import Config
from gruppo.errors import ConfigError

Monitor = Literal["tensorboard", "wandb", "trackio", "log"]
Steps = set[tuple[str, int]]
"""Stages and steps."""
Tell = Callable[[Mapping[str, Any]], None]
"""Takes a record of metrics.jsonl."""

HAS_SERVER = ("wandb", "trackio")
OTHER_STAGES = ("sft",)
MAIN_STAGE = "grpo"  # whose names stand as they are; those of another stage have it before them: "sft/loss/planner"


class MonitorConfig(Config):
    """How a run appears in its `monitors`."""

    project: str = "gruppo"
    """What the runs that belong together have in common."""
    name: str = ""
    """The run's name there; empty: that of its folder."""
    folder: str = ""
    """Where the monitors write; several runs may share one. Empty: "monitors" in the run folder."""
    every: int = Field(1, ge=1)
    """Of a stage's steps they get the first, and then one in so many."""
    online: bool = False
    """Whether W&B (log in first) and trackio (name TRACKIO_SPACE_ID) may send to a server; else all stays on disk."""


@dataclass(frozen=True)
class Sink:
    """Where the numbers of one run go: `write` takes a stage, a step and numbers; `there` are the steps it has."""

    write: Callable[[str, int, Mapping[str, float]], None]
    there: Steps


@dataclass(frozen=True)
class Place:
    """Where one run's monitors write, and under which names."""

    run: Path  # the run folder
    folder: Path
    project: str
    name: str
    online: bool
    settings: Mapping[str, Any]  # the run's config
    past: Steps  # those of metrics.jsonl, of a run that is resumed

    def of(self, monitor: Monitor) -> Path:
        """A monitor's own path in the folder."""
        return self.folder / monitor / self.project / self.name


def check_monitors(monitors: Sequence[Monitor], config: MonitorConfig) -> None:
    """Raises ConfigError for a service that is not installed, or a server that no monitor has."""
    for monitor in monitors:
        if monitor != "log" and find_spec(monitor) is None:
            raise ConfigError(f'monitors: {monitor} is not installed: pip install "gruppo[{monitor}]"')
    if config.online and not set(monitors) & set(HAS_SERVER):
        raise ConfigError(f"monitor.online = true: none of monitors = {list(monitors)} sends anywhere; leave it out")


@contextmanager
def watch(
    monitors: Sequence[Monitor],
    config: MonitorConfig,
    run: Path,
    settings: Config,
    say: Callable[[str], None],
    past: Sequence[Mapping[str, Any]] = (),
) -> Iterator[Tell]:
    """Inside, what is told goes to all `monitors` of the run in the folder `run`; `say` gets the failures, one each.

    `past` are the records of a run that is resumed: of these too a monitor gets what it lacks. Raises ConfigError as
    `check_monitors`, and nothing else: what fails later is left out from then on.
    """
    check_monitors(monitors, config)
    folder = Path(config.folder) if config.folder else run / "monitors"
    name = config.name or run.resolve().name
    there = {step_of(record) for record in past}
    place = Place(run, folder, config.project, name, config.online, settings.model_dump(mode="json"), there)
    contexts: dict[str, AbstractContextManager[Sink]] = {monitor: MONITORS[monitor](place) for monitor in monitors}
    sinks: dict[str, Sink] = {}

    def attempt(monitor: str, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:  # a service may raise anything, and none of it is the run's business
            contexts.pop(monitor, None)
            sinks.pop(monitor, None)
            say(f"monitor {monitor} failed ({type(error).__name__}: {error}); the run goes on without it")

    def tell(record: Mapping[str, Any]) -> None:
        own, numbers = step_of(record), numbers_of(record)
        if own[1] > 1 and own[1] % config.every:
            return
        for monitor, sink in list(sinks.items()):
            if own not in sink.there:
                sink.there.add(own)
                attempt(monitor, partial(sink.write, *own, numbers))

    for monitor, context in list(contexts.items()):
        if sink := attempt(monitor, context.__enter__):
            sinks[monitor] = sink
    for record in past:
        tell(record)
    ended: tuple[Any, Any, Any] = (None, None, None)
    try:
        yield tell
    except BaseException:
        ended = sys.exc_info()
        raise
    finally:
        for monitor, context in list(contexts.items()):
            attempt(monitor, partial(context.__exit__, *ended))


def step_of(record: Mapping[str, Any]) -> tuple[str, int]:
    """The stage and the step of a record."""
    return str(record.get("stage", MAIN_STAGE)), int(record.get("step", 0))


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a record, by the names that they have in every monitor."""
    stage = record.get("stage", MAIN_STAGE)
    prefix = "" if stage == MAIN_STAGE else f"{stage}/"
    numbers = {name: value for name, value in record.items() if type(value) in (int, float) and name != "step"}
    return {prefix + name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def stage_of(name: str) -> str:
    """The stage that a name of `numbers_of` belongs to."""
    return next((stage for stage in OTHER_STAGES if name.startswith(f"{stage}/")), MAIN_STAGE)


@contextmanager
def tensorboard(place: Place) -> Iterator[Sink]:
    """Event files, one folder a stage. What a run of the same name wrote there before is hidden from its step on."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writers: dict[str, Any] = {}
    files = place.of("tensorboard").glob("*/events.*") if place.past else ()
    events = ((file.parent.name, event) for file in files for event in EventFileLoader(str(file)).Load())
    there = {(stage, event.step) for stage, event in events if event.HasField("summary")}

    def write(stage: str, step: int, numbers: Mapping[str, float]) -> None:
        if stage not in writers:
            writers[stage] = EventFileWriter(str(place.of("tensorboard") / stage))
            start = SessionLog(status=SessionLog.START)
            writers[stage].add_event(Event(wall_time=time.time(), step=step, session_log=start))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        writers[stage].add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        writers[stage].flush()

    try:
        yield Sink(write, there)
    finally:
        for writer in writers.values():
            writer.close()


@contextmanager
def wandb(place: Place) -> Iterator[Sink]:
    """A W&B run, offline unless asked otherwise (`wandb sync` sends it later); a resumed run goes on with the same id.

    A killed process leaves its offline folder without what was not written yet, which is all of a short run: the folder
    of the resumed one begins anew, and takes its place. A server says how many records it has: those were the first.
    Nothing of the machine, the source code or the console is gathered.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else even an offline run reports crashes
    import wandb

    identity = place.run / "wandb.id"
    if not identity.exists():
        identity.write_text(uuid4().hex[:12])
    place.folder.mkdir(parents=True, exist_ok=True)
    for folder in () if place.online else place.folder.glob(f"wandb/offline-run-*-{identity.read_text()}"):
        shutil.rmtree(folder)
    service = wandb.init(
        project=place.project,
        name=place.name,
        id=identity.read_text(),
        dir=str(place.folder),
        mode="online" if place.online else "offline",
        config=dict(place.settings),
        reinit="create_new",
        settings=wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, save_code=False, x_disable_stats=True,
            x_disable_machine_info=True, x_save_requirements=False, finish_timeout=60.0,
            resume="allow" if place.online else None,
        ),
    )  # fmt: skip
    service.define_metric("*", step_metric="step")
    place_of = count()

    def write(stage: str, step: int, numbers: Mapping[str, float]) -> None:
        if next(place_of) < service.starting_step:
            return
        # W&B's own step may never go back, as ours does between stages: it is a number like the others.
        axis = "step" if stage == MAIN_STAGE else f"{stage}/step"
        if stage != MAIN_STAGE:
            service.define_metric(f"{stage}/*", step_metric=axis)
        service.log({**numbers, axis: step})

    try:
        yield Sink(write, set())
    except BaseException:
        service.finish(exit_code=1)
        raise
    service.finish()


@contextmanager
def trackio(place: Place) -> Iterator[Sink]:
    """A trackio run in a database of its own, which TRACKIO_DIR=<folder>/trackio trackio show reads.

    A server is taken to have what metrics.jsonl has.
    """
    os.environ["TRACKIO_DIR"] = str(place.folder / "trackio")  # read once, when it is imported
    servers = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
    kept = {name: os.environ.pop(name) for name in servers if name in os.environ and not place.online}
    try:
        with redirect_stdout(sys.stderr):
            import trackio
            from trackio.sqlite_storage import SQLiteStorage

            rows = SQLiteStorage.get_logs(place.project, place.name) if place.past else ()
            there = {(stage_of(name), row["step"]) for row in rows for name in row if name not in ("step", "timestamp")}
            there |= place.past if place.online else set()
            service = trackio.init(
                project=place.project,
                name=place.name,
                config=dict(place.settings),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
    finally:
        os.environ.update(kept)
    try:
        yield Sink(lambda stage, step, numbers: service.log(dict(numbers), step=step), there)
    finally:
        with redirect_stdout(sys.stderr):
            trackio.finish()


@contextmanager
def log(place: Place) -> Iterator[Sink]:
    """A text file with a line for each record: stage, step, name=number ..."""
    path = place.of("log") / "metrics.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    there = steps_in(path) if place.past else set()
    with path.open("a", encoding="utf-8") as file:

        def write(stage: str, step: int, numbers: Mapping[str, float]) -> None:
            print(stage, step, *(f"{name}={value:.6g}" for name, value in numbers.items()), file=file, flush=True)

        yield Sink(write, there)


def steps_in(path: Path) -> Steps:
    """The stages and steps that lines of a text file begin with. A last line that was cut by a kill is taken away."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    os.truncate(path, len(whole))
    return {(stage, int(step)) for stage, step, *_ in map(str.split, whole.decode().splitlines())}


MONITORS: Mapping[str, Callable[[Place], AbstractContextManager[Sink]]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": trackio,
    "log": log,
}
