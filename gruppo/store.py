"""The run folder: resolved config, metrics, episodes and checkpoints of one run, and what a killed run leaves behind.

    run.lock   config.toml   metrics.jsonl   *.json
    episodes/<name>.turns.parquet, <name>.episodes.parquet
    checkpoints/step-000012/   state.json, manifest.json and what the learner wrote

A file or folder has its final name only when it is whole and on disk. The newest checkpoint is found by scanning, never
by a pointer one trusts. What the weights are is the learner's business, what the numbers mean the training's.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

import pyarrow as pa

from gruppo.episodes import from_parquet, to_json, to_parquet
from gruppo.errors import CheckpointError, GruppoError, StoreError
from gruppo.types import Group

_SCHEMA_VERSION = 1
_CONFIG, _METRICS, _EPISODES, _CHECKPOINTS = "config.toml", "metrics.jsonl", "episodes", "checkpoints"
_STATE, _MANIFEST = "state.json", "manifest.json"
_TURNS_END, _EPISODES_END = ".turns.parquet", ".episodes.parquet"
_TEMPORARY, _ASIDE = ".tmp-", ".old-"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: the learner's files are in `path`, `state` is the JSON value saved with them."""

    step: int
    path: Path
    state: dict[str, Any]


def fingerprint(thing: Any) -> str:
    """SHA-256 in hex of a file, given its `Path`, or of the canonical JSON of any other value."""
    if isinstance(thing, Path):
        with thing.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    canonical = json.dumps(thing, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class Run:
    """One run folder. `create` and `resume` lock it for this process; `open` only reads, also while another writes.

    Every write that the disk refuses raises StoreError and leaves what was there before readable.
    """

    def __init__(self, path: Path, lock: TextIO | None) -> None:
        self.path = path
        self._lock = lock
        self.tell: Callable[[Mapping[str, Any]], None] = lambda record: None  # what also gets the metrics' records

    @classmethod
    def create(cls, path: str | Path, config_toml: str) -> Run:
        """A new run in a folder that holds none; StoreError if it does, or if it is in use."""
        path = Path(path)
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, _locked(path))
        if any((path / name).exists() for name in (_CONFIG, _METRICS, _EPISODES, _CHECKPOINTS)):
            run.close()
            raise StoreError(f"{path} holds a run; pass --resume or another --out")
        _write_file(path / _CONFIG, config_toml.encode())
        run._prepare()
        return run

    @classmethod
    def resume(cls, path: str | Path) -> Run:
        """The run in `path`, cleared of what a killed writer left half done; StoreError if none is there or in use."""
        path = Path(path)
        if not (path / _CONFIG).is_file():
            raise StoreError(f"{path} holds no run to resume; check --out, or leave out --resume to start one")
        with _writing(path):
            run = cls(path, _locked(path))
        run._prepare()
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in `path`, read-only and unlocked; StoreError if there is none."""
        if not (Path(path) / _CONFIG).is_file():
            raise StoreError(f"{path} is not a run folder: it has no {_CONFIG}")
        return cls(Path(path), None)

    def close(self) -> None:
        """Give the lock back. The end of the process does the same."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config_toml(self) -> str:
        """The resolved configuration that the run was created with."""
        return (self.path / _CONFIG).read_text(encoding="utf-8")

    def write_json(self, name: str, value: Any) -> None:
        """Write `value` to the file `name` in one step; NaN and infinity become null."""
        self._check_writable()
        _write_file(self.path / name, to_json(value).encode())

    def read_json(self, name: str) -> Any:
        """The value in the file `name`; StoreError if it is missing or broken."""
        try:
            return json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            raise StoreError(f"{self.path} has no {name}") from None
        except ValueError as error:
            raise StoreError(f"{self.path / name} is not JSON: {error}") from error

    # Metrics ---------------------------------------------------------------------------------------------------------

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl, on disk when this returns, and `tell` it; NaN and infinity become null."""
        self._check_writable()
        path = self.path / _METRICS
        with _writing(path), path.open("ab") as file:
            file.write(to_json(dict(record)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.tell(record)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All records, oldest first. A last line without its end is one being written, or cut by a kill: left out."""
        path = self.path / _METRICS
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise StoreError(f"{path} is damaged: {error}; restore it, or remove the broken line") from error

    def truncate_metrics(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the records that `keep` refuses, such as those of steps that a resumed run plays again."""
        self._check_writable()
        lines = [to_json(record) + "\n" for record in self.read_metrics() if keep(record)]
        _write_file(self.path / _METRICS, "".join(lines).encode())

    # Episodes --------------------------------------------------------------------------------------------------------

    def write_episodes(self, name: str, groups: Sequence[Group]) -> None:
        """Write the groups as two Parquet shards: one row per turn, one per episode. An older `name` is replaced."""
        self._check_writable()
        turns_content, episodes_content = to_parquet(groups)
        turns, episodes = self._shards(name)
        # The episodes shard is what makes the name exist: gone first, back last, so that no two halves are ever mixed.
        with _writing(episodes):
            episodes.unlink(missing_ok=True)
        _write_file(turns, turns_content)
        _write_file(episodes, episodes_content)

    def read_episodes(self, name: str) -> list[Group]:
        """The groups that were written as `name`, equal and in order; StoreError if missing or damaged."""
        turns, episodes = self._shards(name)
        if not episodes.exists():
            raise StoreError(f"{self.path} has no episodes {name!r}; it has: {', '.join(self.list_episodes())}")
        try:
            return from_parquet(turns, episodes)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"the episodes {name!r} of {self.path} can't be read: {error}") from error

    def list_episodes(self) -> list[str]:
        """The names that `read_episodes` takes, sorted."""
        paths = (self.path / _EPISODES).glob(f"*{_EPISODES_END}")
        return sorted(path.name.removesuffix(_EPISODES_END) for path in paths)

    def _shards(self, name: str) -> tuple[Path, Path]:
        folder = self.path / _EPISODES
        return folder / f"{name}{_TURNS_END}", folder / f"{name}{_EPISODES_END}"

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def save_checkpoint(self, step: int, write: Callable[[Path], None], state: dict[str, Any]) -> Checkpoint:
        """Commit what `write(folder)` puts into a fresh folder, with `state`, as the checkpoint of `step`.

        Killed anywhere, the one before still loads. A checkpoint of the same step is replaced; those of later steps,
        which a run that came back here has disowned, are dropped. ValueError if `state` does not survive JSON.
        """
        self._check_writable()
        state_text = json.dumps(state, allow_nan=False)
        if json.loads(state_text) != state:
            raise ValueError("a checkpoint's state must come back equal from JSON: no tuples, only text as keys")
        final = self._step_folder(step)
        aside = final.with_name(_ASIDE + final.name)
        temporary = final.with_name(f"{_TEMPORARY}{step}-{uuid4().hex}")
        try:
            with _writing(final):
                temporary.mkdir()
                write(temporary)
                (temporary / _STATE).write_text(state_text)
                _seal(temporary, step)
                if final.exists():  # a full folder can't be renamed over; `_prepare` undoes a kill between the two
                    final.rename(aside)
                temporary.rename(final)
                _sync(final.parent)
        finally:
            _remove(temporary)
        _remove(aside)
        for later in (other for other in self.list_checkpoints() if other > step):
            _discard(self._step_folder(later))
        return Checkpoint(step, final, state)

    def list_checkpoints(self) -> list[int]:
        """The steps that have a checkpoint, oldest first; whether they are whole shows when they are read."""
        names = (folder.name.removeprefix("step-") for folder in (self.path / _CHECKPOINTS).glob("step-??????*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def checkpoint(self, step: int) -> Checkpoint:
        """The checkpoint of `step`, its sizes and SHA-256 verified; CheckpointError if missing or damaged."""
        folder = self._step_folder(step)
        try:
            manifest = json.loads((folder / _MANIFEST).read_bytes())
            if (manifest["schema_version"], manifest["step"]) != (_SCHEMA_VERSION, step):
                raise ValueError(f"schema {manifest['schema_version']!r}, step {manifest['step']!r} in {_MANIFEST}")
            for name, recorded in manifest["files"].items():
                if _facts(folder / name) != recorded:
                    raise ValueError(f"{name} is not the file that was saved")
            return Checkpoint(step, folder, json.loads((folder / _STATE).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # a manifest with flipped bits can raise any of these
            raise CheckpointError(f"{folder} is missing or damaged: {type(error).__name__}: {error}") from error

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint, None if none was ever saved. Damaged ones are skipped with a warning.

        CheckpointError if all are damaged: starting anew in silence would throw the run away.
        """
        steps = self.list_checkpoints()
        for step in reversed(steps):
            try:
                return self.checkpoint(step)
            except CheckpointError as error:
                warnings.warn(f"{error}; trying the checkpoint before it", stacklevel=2)
        if steps:
            raise CheckpointError(f"every checkpoint in {self.path} is damaged; restore one, or pass another --out")
        return None

    def prune(self, keep_last: int | None, best: int | None = None) -> None:
        """Delete all but the newest `keep_last` checkpoints (None or -1: keep all) and, besides them, the `best`."""
        self._check_writable()
        if keep_last is None or keep_last == -1:
            return
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}; use 1 or more, or -1 to keep every checkpoint")
        for step in self.list_checkpoints()[:-keep_last]:
            if step != best:
                _discard(self._step_folder(step))

    def _step_folder(self, step: int) -> Path:
        return self.path / _CHECKPOINTS / f"step-{step:06d}"

    # Folder ----------------------------------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        assert self._lock is not None and not self._lock.closed, f"{self.path} was opened to be read, or is closed"

    def _prepare(self) -> None:
        """Make the folders, and undo what a killed writer left half done."""
        for folder in (self.path, self.path / _EPISODES, self.path / _CHECKPOINTS):
            with _writing(folder):
                folder.mkdir(exist_ok=True)
            for leftover in folder.glob(f"{_TEMPORARY}*"):
                _remove(leftover)
        for aside in (self.path / _CHECKPOINTS).glob(f"{_ASIDE}*"):
            final = aside.with_name(aside.name.removeprefix(_ASIDE))
            if final.exists():
                _remove(aside)
            else:
                aside.rename(final)
        self.truncate_metrics(lambda record: True)  # or the next line would be glued to a torn last one


# Files ---------------------------------------------------------------------------------------------------------------

_held_locks: weakref.WeakSet[TextIO] = weakref.WeakSet()


def _close_held_locks() -> None:
    for file in list(_held_locks):
        file.close()


# A forked worker shares its parent's lock: one that outlives a killed trainer would keep the run locked.
os.register_at_fork(after_in_child=_close_held_locks)


def _locked(path: Path) -> TextIO:
    """The run's lock file, held until it is closed or the process ends; StoreError names the process that has it."""
    file = (path / "run.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read() or "another process"
        file.close()
        raise StoreError(f"{path} is in use by {owner}; wait for it, stop it, or pass another --out") from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    _held_locks.add(file)
    return file


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn the refusal of a write into a StoreError that names the file and says whether the disk is full."""
    try:
        yield
    except GruppoError:
        raise
    except Exception as error:  # safetensors and torch report a full disk as errors of their own
        if _is_full(error, path.parent):
            raise StoreError(
                f"no space left on {path.parent} while writing {path.name}; earlier checkpoints are whole: "
                "free some space, then pass --resume"
            ) from error
        if isinstance(error, OSError):
            raise StoreError(f"can't write {path}: {error}") from error
        raise


def _is_full(error: Exception, folder: Path) -> bool:
    """Whether `error` says that the disk, the quota or the file size limit is used up."""
    if any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
        return True
    return not isinstance(error, OSError) and shutil.disk_usage(folder).free < 2**16  # torch.save gives no reason


def _write_file(path: Path, content: bytes | pa.Buffer) -> None:
    """Replace `path` in one step: after a kill or a power cut it holds the old content or the new."""
    temporary = path.with_name(_TEMPORARY + path.name)
    with _writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file's content or a folder's list of names is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _facts(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": fingerprint(path)}


def _seal(folder: Path, step: int) -> None:
    """Bring all files to disk, then the manifest that vouches for them."""
    paths = sorted(folder.rglob("*"))
    for path in (*paths, folder):
        _sync(path)
    files = {str(path.relative_to(folder)): _facts(path) for path in paths if path.is_file()}
    manifest = {"schema_version": _SCHEMA_VERSION, "step": step, "files": files}
    _write_file(folder / _MANIFEST, json.dumps(manifest, indent=1).encode())


def _remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _discard(folder: Path) -> None:
    """Delete a folder such that a kill midway leaves no half of it under its name."""
    doomed = folder.with_name(f"{_TEMPORARY}{folder.name}-{uuid4().hex}")
    folder.rename(doomed)
    _remove(doomed)
