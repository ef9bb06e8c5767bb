"""Opening partitions ahead of their first use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from kclient.gateway.core import Core
    from kclient.gateway.partitions import Partition

_AT_ONCE: Final = 8
"""Partitions opened together: the store merges what they have it write."""
_REST: Final = 2.0
"""Between two rounds, so many times as long as the last one took: whoever uses a partition opens it at once."""


class Opener:
    """Opens every partition after the start, a few at a time and in no hurry.

    What a crash left is verified and synced in good time then, not when the first client waits for it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def run(self) -> None:
        """Until every partition that there was at the start has been opened, or has gone."""
        partitions = self._closed()
        while some := list(islice(partitions, _AT_ONCE)):
            begun = self._core.now()
            for partition in some:
                partition.open_soon()
            for partition in some:
                await partition.opened()
            await anyio.sleep((self._core.now() - begun) * _REST)

    def _closed(self) -> Iterator[Partition]:
        for record in self._core.topics:
            for index in range(record.partitions):
                partition = self._core.partitions.of(record, index)
                if partition is None:  # the topic was deleted meanwhile
                    break
                yield partition
