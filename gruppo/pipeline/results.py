"""training_results.json: what every step of a pipeline did, from what, and where it left it. It plays nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import field_validator
from pydantic_core import to_json

from gruppo.config import Config
from gruppo.errors import StoreError, boundary

FILE = "training_results.json"
Status = Literal["running", "done", "gate failed", "failed", "stale"]


class Entry(Config):
    """One step."""

    status: Status
    """"running" also after a kill: the next start goes on with it. "failed": by an error, which `message` tells.
    "stale": what it left is being removed, since it plays anew."""
    seconds: float | None = None
    """Of the process that ended it."""
    metrics: dict[str, Any] = {}
    """What it measured; rates with their `n` and `ci95`."""
    paths: dict[str, str] = {}
    """What it left, inside the pipeline's folder."""
    message: str = ""
    """Why a gate or the step failed."""
    fingerprint: str
    """SHA-256 of `inputs`: the step plays again when it changes."""
    inputs: dict[str, Any]
    """All that the step depends on: settings, SHA-256 of files and task sets, fingerprints of earlier steps."""

    @field_validator("paths")
    @classmethod
    def _stay_inside(cls, paths: dict[str, str]) -> dict[str, str]:
        for path in map(Path, paths.values()):  # what a step left is removed before it plays anew
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"{str(path)!r} is not inside the pipeline's folder")
        return paths


class Results(Config):
    """The content of training_results.json."""

    schema_version: Literal[1]
    """Of this file."""
    title: str
    """The recipe's."""
    seed: int
    """The recipe's."""
    steps: dict[str, Entry]
    """Those that have begun, in their order."""

    def having(self, step: str, entry: Entry) -> Results:
        """These, with another entry for a step."""
        return self.model_copy(update={"steps": {**self.steps, step: entry}})


def read_results(out: Path) -> Results | None:
    """The results in a folder, None if there are none. Raises StoreError for a file that is no pipeline's."""
    file = out / FILE
    if not file.exists():
        return None
    try:
        return Results.model_validate_json(file.read_bytes())
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(
            f"{file} is damaged, or not a pipeline's ({where + ': ' if where else ''}{first['msg']}): restore it, or "
            "pass another --out"
        ) from error
    except OSError as error:
        raise StoreError(f"{file} can't be read: {error.strerror}") from error


def write_results(out: Path, results: Results) -> None:
    """Replace the file in one step."""
    new = out / f".{FILE}.new"
    with boundary(StoreError, f"{out / FILE} can't be written"):
        out.mkdir(parents=True, exist_ok=True)
        new.write_bytes(to_json(results, indent=1, inf_nan_mode="null") + b"\n")
        new.replace(out / FILE)
