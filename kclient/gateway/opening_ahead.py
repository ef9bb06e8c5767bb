"""Partitions are opened ahead of their use: what a crash left is verified and synced before a client waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.partition import Partition
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.topics.table import TopicTable

_TOGETHER: Final = 8
"""Partitions that are opened together after the start: the store merges what they have it write."""
_LONG_S: Final = 1.0
"""Seconds after which a round is over all the same: the store of a partition may hang."""
_REST: Final = 2.0
"""Between two rounds, so many times as long as the last one took: whoever uses a partition opens it at once."""


class Opener:
    """Opens every partition that is led here after the start, a few at a time and in no hurry."""

    def __init__(self, topics: TopicTable, partitions: PartitionTable, clock: Clock) -> None:
        self._topics = topics
        self._partitions = partitions
        self._clock = clock

    async def run(self) -> None:
        """Until every partition that there was at the start has been opened, or has gone, or takes long."""
        partitions = self._closed()
        while some := list(islice(partitions, _TOGETHER)):
            begun = self._clock.now()
            for partition in some:
                partition.open_soon()
            with anyio.move_on_after(_LONG_S):
                for partition in some:
                    await partition.opened()
            await anyio.sleep((self._clock.now() - begun) * _REST)

    def _closed(self) -> Iterator[Partition]:
        for record in self._topics:
            for index in range(record.partitions):
                partition = self._partitions.of(record, index)
                if partition is not None:  # else another gateway leads it, or the topic was deleted meanwhile
                    yield partition
