"""What has one leader."""

from __future__ import annotations

from typing import Final, NamedTuple

from kclient.gateway.assignment import fingerprint

ONE_UNIT: Final = 0
"""The number of the unit that all partitions of a topic are which share a topic of HTP."""


class Unit(NamedTuple):
    """As much as a store can fence as a whole: a partition, or those that share a topic."""

    topic_id: bytes
    number: int

    @property
    def fingerprint(self) -> int:
        """What the generations of gateways know it by."""
        return fingerprint(self.topic_id + self.number.to_bytes(4, "big"))
