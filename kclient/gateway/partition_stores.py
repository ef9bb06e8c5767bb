"""What a gateway opens partitions through, whichever way they lie in HTP: the place tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kclient.gateway.extents import DirectStore, ExtentStore
from kclient.gateway.mapping import is_shared
from kclient.gateway.virtual import SharedPartition, SharedStore
from kclient.gateway.virtual.envelopes import ORDINALS, ordinals_with_epochs
from kclient.htp.port import CAP_FENCED_SENDS, CAP_ORDINAL_POSITIONS

if TYPE_CHECKING:
    from kclient.gateway.extents import CommitRows, PartitionStore
    from kclient.gateway.fenced_writer import FencedWriter
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Broker, Manager, OpenTopic, Place, TopicSettings
    from kclient.memory_ledger import MemoryPart


def shared_store(
    manager: Manager,
    broker: Broker,
    lease: HeldLease,
    writer: FencedWriter,
    memory: MemoryPart,
    wall_ms: Callable[[], int],
    spawn: Callable[..., object],
    now: Callable[[], float] | None = None,
) -> SharedStore:
    """What suits a broker, for partitions that share their topic; the clocks as for `partition_store`."""
    ordinals: PartitionStore
    if CAP_ORDINAL_POSITIONS in broker.capabilities:
        ordinals = DirectStore(broker, ORDINALS.framing)
    else:
        fenced = CAP_FENCED_SENDS in broker.capabilities
        encoding = (lambda *_: ORDINALS) if fenced else ordinals_with_epochs
        ordinals = ExtentStore(manager, broker, lease, wall_ms, encoding, now)
    return SharedStore(ordinals, manager, writer, memory, wall_ms, spawn)


class PartitionStores:
    """Opens each partition as it lies. Implements `PartitionStore`.

    Args:
        single: For partitions that have topics of their own.
        shared: For those that share one.
    """

    def __init__(self, single: PartitionStore, shared: SharedStore) -> None:
        self._single = single
        self._shared = shared

    @property
    def capabilities(self) -> frozenset[str]:
        """What partitions can do in any case."""
        return self._single.capabilities & self._shared.capabilities

    async def open(
        self,
        place: Place,
        topic_id: bytes,
        partition: int,
        *,
        epoch: int,
        settings: TopicSettings,
        next_offset: int,
        start_offset: int,
        stalled: Callable[[BaseException], object],
    ) -> OpenTopic:
        """A partition by its place."""
        store: PartitionStore = self._shared if is_shared(place) else self._single
        return await store.open(
            place, topic_id, partition,
            epoch=epoch, settings=settings, next_offset=next_offset, start_offset=start_offset, stalled=stalled,
        )  # fmt: skip

    def _of(self, opened: OpenTopic) -> PartitionStore:
        return self._shared if isinstance(opened, SharedPartition) else self._single

    def release(self, opened: OpenTopic) -> None:
        """A partition has gone."""
        self._of(opened).release(opened)

    def busy(self, place: Place) -> bool:
        """Whether rows of partitions that have gone are being written."""
        return is_shared(place) and self._shared.busy(place)

    async def left(self, place: Place) -> None:
        """Until they are not."""
        if is_shared(place):
            await self._shared.left(place)

    def rows(self, opened: OpenTopic) -> Mapping[str, bytes]:
        """What is to be written together with a partition's checkpoint."""
        return self._of(opened).rows(opened)

    async def save(self, opened: Iterable[OpenTopic]) -> None:
        """Write what is known of the positions of partitions, beside their rows."""
        kinds: dict[bool, list[OpenTopic]] = {}
        for each in opened:
            kinds.setdefault(isinstance(each, SharedPartition), []).append(each)
        for shared, some in kinds.items():
            await (self._shared if shared else self._single).save(some)

    async def hand_over(self, opened: OpenTopic, commit: CommitRows) -> None:
        """Write that for the last time."""
        await self._of(opened).hand_over(opened, commit)

    def memory_of(self, opened: OpenTopic) -> int:
        """About how many bytes of memory are taken by what is known of a partition's positions."""
        return self._of(opened).memory_of(opened)
