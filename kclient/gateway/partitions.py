"""All partitions of a gateway: found by topic and number, opened, checkpointed and closed together."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from kclient.errors import NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from kclient.gateway.aborted_rows import AbortedRows
from kclient.gateway.checkpoints import Checkpoints
from kclient.gateway.leadership import Tenure
from kclient.gateway.opening import Openings
from kclient.gateway.partition import Partition
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.surroundings import Surroundings
from kclient.gateway.takeover import Takeover

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kclient.gateway.append_memory import AppendMemory
    from kclient.gateway.clock import Clock
    from kclient.gateway.extents import PartitionStore
    from kclient.gateway.fenced_writer import FencedWriter
    from kclient.gateway.leadership import Leader, Leadership
    from kclient.gateway.producer_windows import ProducerLimit
    from kclient.gateway.shields import Shields
    from kclient.gateway.surroundings import FormerLeaders
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.topics.table import TopicTable
    from kclient.gateway.unit import Unit
    from kclient.htp.port import Manager
    from kclient.memory_ledger import MemoryPart

logger: logging.Logger = logging.getLogger("kclient.gateway.log")


def while_it_runs(spawn: Callable[..., object]) -> Callable[..., object]:
    """Starts tasks of a gateway that runs.

    The store tells what became of an append also when the gateway has failed: then nobody is left to do something about
    it, and the store is not to hear of that.
    """

    def spawn_or_not(*args: object, **options: object) -> None:
        try:
            spawn(*args, **options)
        except Exception as failure:  # noqa: BLE001  (the gateway's own, which whoever waits for it is told)
            logger.debug("no task is started any more: %r", failure)

    return spawn_or_not


class LedElsewhereError(NotLeaderOrFollowerError):
    """Another gateway leads the partition.

    Args:
        message: Which one.
        leader: The same, and its epoch.
    """

    def __init__(self, message: str, leader: Leader) -> None:
        super().__init__(message)
        self.leader = leader


_OPENED: Final = frozenset({PartitionPhase.RESUMING, PartitionPhase.OPEN, PartitionPhase.REOPENING})


class PartitionTable:
    """The partitions in use, by topic and number.

    Args:
        topics: Whose partitions they are.
        manager: Keeps their checkpoints.
        writer: Writes these.
        store: Keeps their messages.
        leadership: Which of them this gateway leads, and under which epoch.
        releases: When those may be opened that others have led.
        clock: What time it is.
        producers: How many producers the logs may remember.
        memory: What the gateway holds.
        appends: Where appends count that wait longer than for their requests.
        shields: Keep a trim from being left half done.
        spawn: Starts a task of the gateway.
    """

    def __init__(
        self,
        topics: TopicTable,
        *,
        manager: Manager,
        writer: FencedWriter,
        store: PartitionStore,
        leadership: Leadership,
        releases: FormerLeaders,
        clock: Clock,
        producers: ProducerLimit,
        memory: MemoryPart,
        appends: AppendMemory,
        shields: Shields,
        spawn: Callable[..., object],
    ) -> None:
        self._topics = topics
        self._leadership = leadership
        self._checkpoints = Checkpoints(manager, writer, memory)
        spawn = while_it_runs(spawn)
        aborted = AbortedRows(manager)
        self._around = Surroundings(
            store, clock, producers, self._checkpoints, memory.account("partitions"), appends, aborted, leadership,
            releases, Openings(spawn), Takeover(store, self._checkpoints, aborted, producers, clock.wall_ms), shields,
            spawn,
        )  # fmt: skip

    async def load(self) -> None:
        """Read all checkpoints at once."""
        await self._checkpoints.load()

    def forget_ahead(self) -> None:
        """Another gateway may write checkpoints from now on: forget those that were read and not used yet."""
        self._checkpoints.forget_ahead()

    def get(self, name: str, index: int) -> Partition | None:
        """The partition, or None where the topic or the number is unknown, or another gateway leads it."""
        record = self._topics.get(name)
        return self.of(record, index) if record is not None else None

    def of(self, record: TopicRecord, index: int) -> Partition | None:
        """A topic's partition of this number; None where there is none, or not here: `check` raises why."""
        found = record.logs.get(index)  # only what this gateway leads is in there
        if found is None and 0 <= index < record.partitions and not record.gone:
            if not self._leadership.leads(record, index):
                return None
            unit, epoch = self._leadership.unit(record, index), self._leadership.leader(record, index).epoch
            found = record.logs[index] = Partition(
                record.name,
                record.topic_id,
                index,
                record.config,
                record.places[index],
                unit,
                epoch,
                self._around,
                record.traffic,
            )
        return found

    def check(self, record: TopicRecord, index: int) -> Partition:
        """A topic's partition of this number.

        Raises:
            UnknownTopicOrPartitionError: There is none, also because the topic has gone.
            LedElsewhereError: Another gateway leads it.
        """
        found = self.of(record, index)
        if found is not None:
            return found
        if 0 <= index < record.partitions and not record.gone:
            leader = self._leadership.leader(record, index)
            raise LedElsewhereError(f"the gateway with node.id={leader.node_id} leads {record.name}-{index}", leader)
        raise UnknownTopicOrPartitionError(f"there is no partition {record.name}-{index}")

    def opened(self) -> list[Partition]:
        """Every partition that is open, or is being opened anew."""
        return [
            partition
            for record in self._topics.all()
            for partition in list(record.logs.values())
            if partition.state in _OPENED
        ]

    async def checkpoint(self) -> None:
        """Write the checkpoints of all partitions that have news, in one commit."""
        changed = [partition for partition in self.opened() if partition.checkpoints.dirty or partition.busy]
        async with AsyncExitStack() as saving:
            for partition in changed:
                await saving.enter_async_context(partition.checkpoints.saving)
            rows: dict[Unit, dict[str, bytes]] = {}
            for partition in changed:
                if partition.state is PartitionPhase.OPEN:
                    rows.setdefault(partition.unit, {}).update(partition.checkpoints.rows())
            await self._checkpoints.write_all(rows)
            store = self._around.store
            await store.save([partition.stored_in for partition in changed if partition.state is PartitionPhase.OPEN])

    async def take_moved(self, pause: Callable[[], Awaitable[None]]) -> list[tuple[TopicRecord, Partition]]:
        """Take those out that another gateway leads by now, or has led: nobody finds them here any more.

        Those whose epoch has risen though nobody else has led them are opened anew under it.

        Args:
            pause: Where others have their turn.

        Returns:
            Those whose last checkpoint can be written, once they are settled.
        """
        found: list[tuple[TopicRecord, Partition]] = []
        for record in self._topics.all():
            for index, partition in list(record.logs.items()):
                if record.logs.get(index) is partition:
                    tenure = self._leadership.tenure(record, index, partition.log.leader_epoch)
                    if tenure is Tenure.LOST:
                        del record.logs[index]
                        partition.move()
                        if partition.state is PartitionPhase.LEAVING:
                            found.append((record, partition))
                    elif tenure is Tenure.RISEN:
                        partition.open_anew("its leader epoch has risen")
                await pause()
        return found

    def close(self) -> None:
        """End every partition; appends still on their way were waited for before."""
        for record in self._topics.all():
            for partition in record.logs.values():
                partition.close()
