"""The seeds of the sweeps: those that every run before a release tries, and others for a night.

`SWEEP_SEEDS` says how many each sweep tries (500), `SWEEP_FIRST` which is the first (1000).
"""

from __future__ import annotations

import os
from itertools import pairwise

SEEDS = int(os.environ.get("SWEEP_SEEDS", "500"))
FIRST = int(os.environ.get("SWEEP_FIRST", "1000"))


def blocks(count: int) -> list[range]:
    """The seeds of a sweep in parts, of which each is a test."""
    bounds = [FIRST + SEEDS * number // count for number in range(count + 1)]
    return [range(first, last) for first, last in pairwise(bounds)]
