"""How a gateway stands in its cluster: what it tells whoever describes it as a broker, beside its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kclient.gateway.settings_told import HTP_CHECKPOINTS_BEHIND, HTP_GENERATIONS, HTP_LEASE_AGE

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.setting import BrokerSetting


class ClusterStanding:
    """Tells that, as it is when it is asked.

    Args:
        lease: Of the gateway.
        generations: Of gateways.
        partitions: Those that are in use.
        clock: By which the lease ends.
    """

    def __init__(
        self, lease: HeldLease, generations: ClusterGenerations, partitions: PartitionTable, clock: Clock
    ) -> None:
        self._lease = lease
        self._generations = generations
        self._partitions = partitions
        self._clock = clock
        self.told: Sequence[tuple[BrokerSetting, Callable[[], str]]] = (
            (HTP_LEASE_AGE, self._lease_age),
            (HTP_CHECKPOINTS_BEHIND, self._checkpoints_behind),
            (HTP_GENERATIONS, self._causes),
        )
        """What is told, and what says it."""

    def _lease_age(self) -> str:
        lease = self._lease.current
        if lease.expires == -math.inf:  # it has just been given up
            return str(round(lease.ttl * 1000))
        return str(round((self._clock.now() - (lease.expires - lease.ttl)) * 1000))

    def _checkpoints_behind(self) -> str:
        return str(sum(partition.checkpoints.dirty for partition in self._partitions.opened()))

    def _causes(self) -> str:
        return ", ".join(f"{number} {cause}" for number, cause in sorted(self._generations.current.causes.items()))
