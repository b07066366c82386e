"""Fetching a data set's files from the hub, when the user asked for it; nothing else here reaches outside."""

from __future__ import annotations

from pathlib import Path

from gruppo.data.sources import find_files, source_of, where_to_put
from gruppo.errors import DataError


def fetch(name: str, split: str, folder: Path) -> list[Path]:
    """The files of a split, fetched into `folder`/`name` unless they are there. Raises DataError, one line, if the hub
    can't be reached, refuses, or does not have them; it says where to put them by hand."""
    if found := find_files(name, split, folder):
        return found
    source = source_of(name)
    if split not in source.files:
        raise DataError(where_to_put(name, split, folder))
    import httpx2
    from huggingface_hub import snapshot_download

    by_hand = where_to_put(name, split, folder).partition("; or let it")[0]
    try:
        snapshot_download(
            source.hub,
            repo_type="dataset",
            allow_patterns=[source.files[split]],
            local_dir=folder / name,
        )
    except (OSError, ValueError, httpx2.HTTPError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{by_hand} (the hub did not give it: {type(error).__name__}: {reason[:200]})") from error
    if found := find_files(name, split, folder):
        return found
    raise DataError(f"{by_hand} (the hub's data set has no such file)")
