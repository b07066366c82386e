"""The settings of the search team."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gruppo.config import Config
from gruppo.search_tables import TableLimits


class SearchConfig(Config):
    """The limits, the rules and the words of the search team."""

    prompts: str = "full"
    """"compact" (one line in, one line out), "full" (JSON, for LLMs), or a TOML file with your own full prompts."""
    max_rounds: int = Field(10, ge=1)
    """Rounds per question, the last one to answer in."""
    clue_turns: int = Field(1, ge=1)
    """Turns that the executor has in a SEARCH round; what it writes in them is searched for together."""
    max_reads: int = Field(3, ge=1)
    """Documents that are read in a READ round."""
    checker: Literal["words", "truth"] = "words"
    """Who labels documents where there is no role `checker`: "words", by the words of the sub-goal; "truth", by the
    labels in a task's extra_info.documents, which those of the embedded world have."""
    check_alone: bool = False
    """Whether a role `checker` is asked about each document in a prompt of its own, so that a document's label does not
    depend on what else was found: a group is then compared on the same ground, at the price of more requests."""
    wrong_labels: float = Field(0.0, ge=0, le=1)
    """The share of labels that are made wrong on purpose, always the same ones."""
    checkpoints: str = ""
    """The folder that gets {question}/run_{n}, a file per round; empty: none is written."""
    replay: bool = False
    """Whether an attempt from a kept state is played to the end of the run, for what its clues make possible later."""
    tables: TableLimits = TableLimits()
