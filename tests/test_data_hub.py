"""Known data sets whose files are not there: what is said, and fetching them from the hub when that was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from local_web import serving

from gruppo.data.selection import Place, tasks_of
from gruppo.data.sources import SOURCES
from gruppo.errors import DataError


def test_what_is_said_where_a_file_is_not_there(tmp_path: Path) -> None:
    expected = {
        "gsm8k": f"gsm8k: no {tmp_path}/gsm8k/main/train-*.parquet; put the file main/train-*.parquet of the hub's "
        f"data set openai/gsm8k there, or any {tmp_path}/gsm8k/train.jsonl, .json, .csv or .parquet of its columns; "
        "or let it be fetched with --download",
        "gsm8k:tset": "gsm8k: no split 'tset': did you mean test?",
        "gsm8": "'gsm8': no such data set: did you mean gsm8k?",
        "gpqa:benchmark": "gpqa: put the file test/gpqa/data/data.json of AgentFlow's repository at "
        f"{tmp_path}/gpqa/data.json",
        f"{tmp_path}/tsks.jsonl": f"{tmp_path}/tsks.jsonl: no such file",
    }
    for text, line in expected.items():
        with pytest.raises(DataError) as caught:
            tasks_of(text, Place(tmp_path))
        assert str(caught.value) == line


FETCH = """
import sys
from pathlib import Path
from gruppo.data.selection import Place, tasks_of
from gruppo.errors import DataError
try:
    print([task.result for task in tasks_of("nq:dev", Place(Path(sys.argv[1]), download=True))])
except DataError as error:
    print("error:", error)
"""


def fetched(folder: Path, endpoint: str) -> str:
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_ETAG_TIMEOUT": "5"}  # fmt: skip
    command = [sys.executable, "-c", FETCH, str(folder / "data")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    return done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr


def test_the_hub_is_asked_when_asked_for(tmp_path: Path) -> None:
    body = (json.dumps({"id": "dev_0", "question": "who", "golden_answers": ["a", "b"]}) + "\n").encode()
    commit, hub = "a" * 40, SOURCES["nq"].hub
    names = ["README.md", "nq/train.jsonl", "nq/dev.jsonl"]
    with serving() as web:
        info = {"id": hub, "sha": commit, "siblings": [{"rfilename": name} for name in names]}
        tree = [{"type": "file", "path": name, "size": len(body), "oid": "b" * 40} for name in names]
        for revision in ("main", commit):
            web.page(
                f"/api/datasets/{hub}/revision/{revision}", json.dumps(info).encode(), "Content-Type: application/json"
            )
            web.page(
                f"/api/datasets/{hub}/tree/{revision}", json.dumps(tree).encode(), "Content-Type: application/json"
            )
        headers = (f"X-Repo-Commit: {commit}", 'ETag: "e1"')
        web.page(f"/datasets/{hub}/resolve/{commit}/nq/dev.jsonl", body, *headers)
        assert fetched(tmp_path, web.url) == "['a; b']"
        assert (tmp_path / "data" / "nq" / "nq" / "dev.jsonl").read_bytes() == body
        assert not [path for path, _ in web.asked if "nq/train" in path], "no more than the split that was asked for"
        before = len(web.asked)
        assert fetched(tmp_path, web.url) == "['a; b']" and len(web.asked) == before, (
            "what is there is not fetched again"
        )


def test_a_hub_that_does_not_give_it(tmp_path: Path) -> None:
    with serving() as web:
        line = fetched(tmp_path, web.url)
        assert line.startswith(
            f"error: nq: no {tmp_path}/data/nq/nq/dev.jsonl; put the file nq/dev.jsonl of the hub's data set"
        )
        assert "the hub did not give it" in line
