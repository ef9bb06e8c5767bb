"""Offsets of share groups, as the admin client's calls give them (KIP-932)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SharePartitionOffset:
    """Where a share group stands in a partition.

    Attributes:
        start_offset: the first offset that the group may not be done with. Brokers move it on now and then: records
            from there on may be acknowledged already, which `lag` takes into account.
        leader_epoch: the epoch of the partition's leader that it was written under; None where that is not known.
        lag: how many records up to the partition's end the group is not done with (KIP-1226); None where the broker
            does not tell.
    """

    start_offset: int
    leader_epoch: int | None = None
    lag: int | None = None
