"""One question to the search team, outside of any training: `gruppo search ask`, without the printing.

Where no role has a model, rules play every seat and no model is loaded. The records are those that training reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gruppo.config import load
from gruppo.data.search_files import META, folder_name, run_folders
from gruppo.errors import ConfigError, DataError, GruppoError, StoreError, boundary
from gruppo.run import RunConfig
from gruppo.search_state import Document, Meta, checkpoint_of, meta_of
from gruppo.search_tables import in_order
from gruppo.searching.playing import CHECKPOINTS, playing
from gruppo.types import Outcome, Task

INDEX = "index"


@dataclass(frozen=True)
class Asked:
    """What came of a question: how its run ended, the documents that it knows in the end, and where its files are."""

    meta: Meta
    documents: list[Document]
    folder: Path


def config_of(corpus: str, out: Path, files: list[Path], overrides: Mapping[str, str]) -> RunConfig:
    """The config of a question: the search team on a corpus, then the user's files and flags."""
    own = {"team.program": "search", "tools.names": '["documents"]', "tools.corpus": corpus}
    own["team.search.checkpoints"] = str(out / CHECKPOINTS)
    if corpus.partition(":")[0] != "world":
        own["tools.index"] = str(out / INDEX)
    if taken := own.keys() & overrides.keys():
        raise ConfigError(f"--{min(taken)}: `gruppo search` sets it; use --corpus and --out, or gruppo train")
    return load(RunConfig, files, {**own, **overrides})


def ask(question: str, config: RunConfig) -> Asked:
    """Play one attempt at a question. Raises DataError for an empty question or corpus, GruppoError if it broke off."""
    if not question.strip():
        raise DataError("the question is empty")
    with playing(config) as (rollout, _):
        (group,) = rollout.collect([Task("question", question, "")], 1, config.seed, "question")
    (episode,) = group.episodes
    parent = Path(config.team.search.checkpoints) / folder_name(question)
    folder, meta = played(parent, episode.outcome)
    if episode.outcome.is_infrastructure:
        raise GruppoError(f"the search broke off ({episode.outcome}): {episode.error}; what was done is in {folder}")
    last = checkpoint_of((folder / meta.rounds[-1].file).read_bytes())
    return Asked(meta, in_order(last.state.documents), folder)


def played(parent: Path, outcome: Outcome) -> tuple[Path, Meta]:
    """The newest run that ended so, or broke off: another process may be asking the same question at this moment."""
    with boundary(StoreError, f"{parent}: what was just played can't be read"):
        runs = ((folder, meta_of((folder / META).read_bytes())) for folder in reversed(run_folders(parent)))
        return next((folder, meta) for folder, meta in runs if meta.outcome == outcome)
