"""The embedded base with the first of its four layers: what is done around a model is the same for any number."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import gruppo

TINY = Path(gruppo.__file__).parent / "models" / "tiny"
LATER_LAYERS = tuple(f"model.layers.{number}." for number in (1, 2, 3))


@cache
def _parent() -> TemporaryDirectory[str]:
    from safetensors.torch import load_file, save_file  # slow: conftest.py imports this where tests are handed out

    parent = TemporaryDirectory(prefix="gruppo-tests-")
    folder = shutil.copytree(TINY, Path(parent.name) / "base")
    config, tensors = json.loads((TINY / "config.json").read_text()), load_file(TINY / "model.safetensors")
    config |= {"num_hidden_layers": 1, "layer_types": config["layer_types"][:1]}
    (folder / "config.json").write_text(json.dumps(config))
    kept = {name: value for name, value in tensors.items() if not name.startswith(LATER_LAYERS)}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return parent


def one_layer() -> str:
    """Its folder, called "base": made once per process of tests, and gone with it."""
    return f"{_parent().name}/base"
