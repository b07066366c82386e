"""The algorithms: advantages, losses, aggregations, KL estimates and corrections, chosen by name. Pure, no I/O.

A new one is one function in its file and one entry in the dict at that file's end; the trainer does not change.
"""

from gruppo.algorithms.advantages import ADVANTAGES, NEEDS_AVERAGE, NEEDS_GREEDY
from gruppo.algorithms.aggregations import AGGREGATIONS
from gruppo.algorithms.config import AlgorithmConfig, clashes
from gruppo.algorithms.corrections import CORRECTIONS
from gruppo.algorithms.credit import CreditConfig
from gruppo.algorithms.kl import KLS
from gruppo.algorithms.losses import LOSSES
from gruppo.algorithms.presets import PRESETS

__all__ = [
    "ADVANTAGES", "AGGREGATIONS", "CORRECTIONS", "KLS", "LOSSES", "NEEDS_AVERAGE", "NEEDS_GREEDY", "PRESETS",
    "AlgorithmConfig", "CreditConfig", "clashes",
]  # fmt: skip
