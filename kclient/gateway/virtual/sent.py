"""The answer to what was sent to a shared topic for one of its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.gateway.virtual.index import PartitionIndex
    from kclient.htp.port import Sent, SyncedCallback


class SharedSent:
    """Implements `kclient.htp.port.Sent`: positions are offsets.

    Args:
        index: Of the partition.
        first: The first offset.
        last: The last offset.
        ordinal: Of the first message.
        sizes: Bytes of the batches.
        before: The offset behind what the partition had before.
        inner: The answer of the topic.
    """

    __slots__ = ("_inner", "before", "first", "heard", "index", "last", "ordinal", "sizes", "undone")

    def __init__(
        self, index: PartitionIndex, first: int, last: int, ordinal: int, sizes: list[int], before: int, inner: Sent
    ) -> None:
        self.index: PartitionIndex = index
        self.first: int = first
        self.last: int = last
        self.ordinal: int = ordinal
        self.sizes: list[int] = sizes
        self.before: int = before
        self.heard: bool = False
        """Whether somebody is called back when it is decided."""
        self.undone: bool = False
        """Whether it is not there, because something before it is not."""
        self._inner = inner

    @property
    def done(self) -> bool:
        """Whether it is decided already."""
        return self._inner.done

    async def synced(self) -> None:
        """Wait until it is decided."""
        await self._inner.synced()

    def on_synced(self, callback: SyncedCallback, /) -> None:
        """Call back when it is decided; at once if it is."""
        self.heard = True
        self._inner.on_synced(callback)
