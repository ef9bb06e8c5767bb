"""The assignors of the coordinator, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kclient.gateway.groups.assignors.model import PartitionAssignor
from kclient.gateway.groups.assignors.ranges import assign_ranges
from kclient.gateway.groups.assignors.uniform import assign_uniformly

ASSIGNORS: Final[Mapping[str, PartitionAssignor]] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The first one is used where no member names one."""
DEFAULT_ASSIGNOR: Final = next(iter(ASSIGNORS))
