"""Why a generation of gateways began: for those who look at the cluster, nothing is decided by it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class CauseKind(StrEnum):
    """What has happened."""

    JOINED = "joined"
    LEFT = "left"
    CRASHED = "crashed"
    BY_HAND = "by hand"


class Cause(NamedTuple):
    """What has happened, and to which gateway."""

    kind: CauseKind
    node_id: int | None = None
    """The gateway that has joined, left or crashed; None for what was moved by hand."""

    def __str__(self) -> str:
        return self.kind if self.node_id is None else f"{self.kind} {self.node_id}"
