"""The partitions that a request names, found and opened one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from kclient.errors import KafkaError
from kclient.gateway.partition_states import PartitionPhase

if TYPE_CHECKING:
    from kclient.acls import AclOperation
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.partition import Partition
    from kclient.gateway.partitions import PartitionTable
    from kclient.net.fair_queue import Pace


class NamedPartitions:
    """Finds partitions for a client that may do one thing with their topics, or another with the cluster."""

    def __init__(
        self,
        access: Access,
        partitions: PartitionTable,
        operation: AclOperation,
        or_cluster: AclOperation | None = None,
    ) -> None:
        self._access = access
        self._partitions = partitions
        self._operation = operation
        self._or_cluster = or_cluster

    def find(self, context: RequestContext, name: str, index: int) -> Partition:
        """The partition. Raises why there is none for this client."""
        record = self._access.topic(context.connection, self._operation, name, or_cluster=self._or_cluster)
        return self._partitions.check(record, index)

    async def ready(
        self, partition: Partition, context: RequestContext, named: Iterator[tuple[str, int]], pace: Pace
    ) -> None:
        """Until the partition is open; raises as `Partition.ready`.

        The first that is not open has all be opened that the request names, so that several whose store hangs are
        waited for once; `named` is used up then.
        """
        if partition.state is not PartitionPhase.OPEN:
            for name, index in named:
                with suppress(KafkaError):
                    self.find(context, name, index).open_soon()
                if pace.over:
                    await pace.pause()
        await partition.ready()
