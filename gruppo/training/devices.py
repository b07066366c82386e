"""What torch can compute on here. Apart from `model.py`, so that asking needs no model library."""

from __future__ import annotations

import torch


def devices() -> dict[str, str]:
    """`model.device` -> what it is, of those that torch finds here."""
    found = {"cpu": f"{torch.get_num_threads()} threads"}
    for number in range(torch.cuda.device_count()):
        own = torch.cuda.get_device_properties(number)
        found[f"cuda:{number}"] = f"{own.name}, {own.total_memory / 1e9:.0f} GB"
    if torch.backends.mps.is_available():
        found["mps"] = "Apple GPU"
    return found
