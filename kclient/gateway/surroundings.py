"""What all partitions of a gateway work with, as one object: there are very many of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kclient.gateway.aborted_rows import AbortedRows
    from kclient.gateway.append_memory import AppendMemory
    from kclient.gateway.checkpoints import Checkpoints
    from kclient.gateway.clock import Clock
    from kclient.gateway.extents import PartitionStore
    from kclient.gateway.opening import Openings
    from kclient.gateway.producer_windows import ProducerLimit
    from kclient.gateway.shields import Shields
    from kclient.gateway.takeover import Takeover
    from kclient.gateway.unit import Unit
    from kclient.memory_ledger import MemoryAccount


class FormerLeaders(Protocol):
    """Tells when units may be opened."""

    async def ready(self, unit: Unit) -> None:
        """Until nobody who led a unit before does anything with it any more."""
        ...


class Epochs(Protocol):
    """Gives units new leader epochs."""

    def epoch(self, unit: Unit) -> int:
        """The epoch of a unit."""
        ...

    async def raise_epoch(self, unit: Unit, above: int, *, since: int) -> int:
        """An epoch above all that a unit had, and above this one; durable when it returns.

        If the unit has had a newer one since that of `since`, not below `above`, it is that one.
        """
        ...


@dataclass(slots=True, frozen=True)
class Surroundings:
    """What `Partition` is given; what it is made of sees the part of it that each names in a Protocol."""

    store: PartitionStore
    clock: Clock
    producers: ProducerLimit
    """How many producers the logs may remember."""
    checkpoints: Checkpoints
    memory: MemoryAccount
    """Where partitions count."""
    appends: AppendMemory
    """Where their appends count that wait for syncs."""
    aborted: AbortedRows
    epochs: Epochs
    releases: FormerLeaders
    openings: Openings
    takeover: Takeover
    shields: Shields
    spawn: Callable[..., object]
    """Starts a task of the gateway."""
