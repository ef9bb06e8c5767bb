"""Opening partitions ahead of their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from kclient.gateway.core import Core

_SHARE: Final = 0.25
"""The part of the time that opening may take: whoever uses a partition opens it at once and has the rest."""


class Opener:
    """Opens every partition after the start, one by one and in no hurry.

    What a crash left is verified and synced in good time then, not when the first client waits for it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def run(self) -> None:
        """Until every partition that there was at the start has been opened, or has gone."""
        for record in self._core.topics:
            for index in range(record.partitions):
                partition = self._core.partitions.of(record, index)
                if partition is None:  # the topic was deleted meanwhile
                    break
                begun = self._core.now()
                partition.open_soon()
                await partition.opened()
                await anyio.sleep((self._core.now() - begun) * (1 / _SHARE - 1))
