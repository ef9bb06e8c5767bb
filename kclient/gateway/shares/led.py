"""A partition that this gateway leads, as one share group reads it: its records in flight, and their row.

What changes is in force at once, and written soon: one commit is under way, and what changes meanwhile goes with the
next. Whoever has acknowledged something is answered when it is written. Where that fails, or somebody else has written
the row, all that is known here is given up, with the locks: the next fetch reads the row anew.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from kclient.concurrency import Completion
from kclient.errors import KafkaError, KafkaStorageError, NotLeaderOrFollowerError
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.rows.keys import share_key, shared_topic_key
from kclient.gateway.rows.share_partitions import SHARED_TOPIC, UNKNOWN, SharedRow
from kclient.gateway.shares.share_partition import RecordsInFlight
from kclient.htp.errors import ConflictError

if TYPE_CHECKING:
    from kclient.gateway.fenced_writer import FencedWriter
    from kclient.gateway.partition import Partition
    from kclient.gateway.shields import Shields
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.waiters import Waiter
    from kclient.htp.port import Manager, Versioned
    from kclient.memory_ledger import LimitedAccount

logger: logging.Logger = logging.getLogger("kclient.gateway.shares")

_ENDED: Final = frozenset({PartitionPhase.LEAVING, PartitionPhase.GONE})
_TRIES: Final = 10
"""So often it is tried to write the first row of a partition while others do."""
SHARE: Final = 2_500
"""About how many bytes of memory one takes, beside its records."""
_RUN: Final = 200
"""And each run of its records."""
_SHOWN: Final = 300
"""Characters of a group's name in the log."""


class LedShare:
    """One partition for one group.

    Args:
        group_id: The group.
        record: The topic.
        partition: The partition, as it is led here.
        manager: Keeps the row.
        writer: Writes it.
        shields: Keep a write from being left half done.
        memory: Where it counts.
        first_offset: Where a group begins that has read nothing yet.
        spawn: Starts a task of the gateway.
        when_saved: Called when all is written.
    """

    def __init__(
        self,
        group_id: str,
        record: TopicRecord,
        partition: Partition,
        *,
        manager: Manager,
        writer: FencedWriter,
        shields: Shields,
        memory: LimitedAccount,
        first_offset: Callable[[str, Partition], Awaitable[int]],
        spawn: Callable[..., object],
        when_saved: Callable[[LedShare], object],
    ) -> None:
        self.group_id: str = group_id
        self.record: TopicRecord = record
        """The topic."""
        self.key: PartitionId = PartitionId(record.topic_id, partition.index)
        self.partition: Partition = partition
        self.records: RecordsInFlight | None = None
        """What is in flight; None before it is read, and once it is given up."""
        self.waiters: set[Waiter] = set()
        """Fetches that are to look again when records become available."""
        self.ended: KafkaError | None = None
        """Why it was given up; None while it is not."""
        self.moves: int = 0
        """How often start offsets of the topic had been moved when its row was read."""
        self._manager = manager
        self._writer = writer
        self._shields = shields
        self._memory = memory
        self._first_offset = first_offset
        self._spawn = spawn
        self._when_saved = when_saved
        self._loaded: Completion[None] = Completion()
        self._saved: Completion[None] | None = None
        """Of what is not on its way to the store yet."""
        self._writing: Completion[None] | None = None
        """Of what is on its way."""
        self._saving = False
        self._doubted = False
        """Whether somebody else may have changed the row."""
        self._doubts = 0
        self._epoch = 0
        self._version = 0
        """Of the row."""
        self._held = 0
        self._count(SHARE)

    def __str__(self) -> str:
        return f"{self.partition} of the share group {self.group_id[:_SHOWN]}"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if it is given up: its row says all that is known."""
        records = self.records
        return (
            records is not None and not self.waiters and not self._saving and not records.dirty and not records.is_held
        )

    # Its row

    def load_soon(self) -> None:
        """Begin to read it."""
        self._spawn(self._load, name=f"read {self}")

    @property
    def is_ready(self) -> bool:
        """Whether what is in flight is known, and nobody else may have changed it."""
        return self.records is not None and not self._doubted

    async def ready(self) -> None:
        """Until it is read. Raises `KafkaError` if the store fails; `check` tells what has become of it."""
        await self._loaded.wait()
        if self._doubted and self.ended is None:
            await self._look_again()

    def check(self) -> None:
        """Raise why this was given up, if it was."""
        if self.ended is not None:
            raise self.ended

    async def _load(self) -> None:
        try:
            await self.partition.ready()
            for left in reversed(range(_TRIES)):
                try:
                    await self._read()
                    break
                except ConflictError:
                    if not left:
                        raise
        except KafkaError as error:
            self.end(error)
        self._loaded.set_result(None)
        self.wake()

    async def _read(self) -> None:
        """Read the row, or write the first one. Raises `ConflictError` if others have changed it meanwhile."""
        topic_id, number = self.key
        key, index = share_key(topic_id, self.group_id, number), shared_topic_key(self.group_id, topic_id)
        found = await self._manager.get([key, index])
        row, topic = found.get(key), found.get(index)
        said = _decoded(str(self), row)
        self.moves = _moves(topic)
        start = said.start
        if start == UNKNOWN:
            start = await self._first_offset(self.group_id, self.partition)
            said = said._replace(leader_epoch=self.partition.log.leader_epoch, start=start)
            writes: dict[str, bytes | None] = {key: said.encode()}
            if topic is None:
                writes[index] = SHARED_TOPIC.encode(self.moves)
            expected = {
                key: 0 if row is None else row.version,
                index: 0 if topic is None else topic.version,
            }
            with self._shields.shield():
                self._version = await self._writer.commit(writes, [self.partition.unit], expected)
            logger.info("%s begins at offset %d", self, start)
        else:
            assert row is not None
            self._version = row.version
        self._epoch = said.epoch
        if self.ended is None:
            self.records = RecordsInFlight(start, said.batches)
            self.records.advance(self.partition.log.start_offset)
            self.count()

    def doubt(self) -> None:
        """Somebody else may have changed the row: it is compared before more is delivered."""
        self._doubted = True
        self._doubts += 1
        self.wake()

    async def _look_again(self) -> None:
        key = share_key(self.key.topic_id, self.group_id, self.key.partition)
        doubts, version = self._doubts, self._version
        found = (await self._manager.get([key])).get(key)
        if self._doubts == doubts:  # until here nobody else goes on either
            self._doubted = False
        unwritten = not self._saving and self._version == version  # where it is written, that finds out
        if self.ended is None and unwritten and (found is None or found.version != version):
            self.end(_changed(self))

    def save(self) -> Completion[None] | None:
        """Have what has changed written.

        Returns:
            Completes when it is, or with why not; None if all that is known here is written.
        """
        records = self.records
        if records is None:
            return None
        if records.dirty and self._saved is None:
            self._saved = Completion()
            if not self._saving:
                self._saving = True
                self._spawn(self._save_all, name=f"write {self}")
        return self._saved or self._writing

    async def _save_all(self) -> None:
        while (saved := self._saved) is not None and (records := self.records) is not None:
            self._saved, self._writing = None, saved
            records.dirty = False
            leader_epoch = self.partition.log.leader_epoch
            row = SharedRow(self._epoch, leader_epoch, records.start, records.complete, tuple(records.batches()))
            key = share_key(self.key.topic_id, self.group_id, self.key.partition)
            try:
                with self._shields.shield():
                    self._version = await self._writer.commit(
                        {key: row.encode()}, [self.partition.unit], {key: self._version}
                    )
            except ConflictError:
                error: KafkaError = _changed(self)
            except KafkaError as raised:
                error = raised
            else:
                saved.set_result(None)
                continue
            saved.set_error(error)
            self.end(error)
        self._saving, self._writing = False, None
        self._when_saved(self)

    # Its end

    def end(self, error: KafkaError) -> None:
        """Give up what is known here; who waits for it is told why."""
        if self.ended is not None:
            return
        self.ended, self.records = error, None
        self._count(0)
        if self._saved is not None:
            self._saved.set_error(error)
            self._saved = None
        logger.info("%s is given up here: %s", self, error)
        self.wake()

    @property
    def is_here(self) -> bool:
        """Whether the partition is led here, and this is not given up."""
        return self.ended is None and self.partition.state not in _ENDED

    # Memory, and who waits

    def wake(self) -> None:
        """Records may have become available."""
        for waiter in list(self.waiters):
            waiter.wake()

    def count(self) -> None:
        """Count what it takes now."""
        if self.records is not None:
            self._count(SHARE + 2 * len(self.group_id) + _RUN * self.records.runs)

    def _count(self, size: int) -> None:
        self._memory.add(size - self._held)
        self._held = size


def _changed(share: LedShare) -> NotLeaderOrFollowerError:
    """What Kafka's leader says whose state epoch is fenced: the client asks again, and reads what is there now."""
    return NotLeaderOrFollowerError(f"the start offset of {share} was moved, or removed: it is read anew")


def _decoded(name: str, row: Versioned | None) -> SharedRow:
    if row is None:
        return SharedRow(0, 0, UNKNOWN, 0)
    try:
        return SharedRow.decode(row.value)
    except ValueError as error:
        logger.error("what was delivered of %s cannot be read: %s", name, error)
        raise KafkaStorageError(
            f"what was delivered of {name} cannot be read: set its start offset anew (AlterShareGroupOffsets)"
        ) from error


def _moves(row: Versioned | None) -> int:
    """How often start offsets were moved; of a damaged row it does not matter, since that changes only with another."""
    if row is None:
        return 0
    try:
        return SHARED_TOPIC.decode(row.value)
    except ValueError:
        return -1
