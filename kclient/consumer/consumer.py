"""The consumer for asyncio and trio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kclient.arguments import as_count, as_partition, as_partitions, check_choice
from kclient.concurrency import drive_async
from kclient.consumer.async_face import AsyncFace
from kclient.consumer.base import ConsumerBase
from kclient.consumer.face_base import close_timeout
from kclient.consumer.records import ConsumerRecords
from kclient.consumer.reset import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kclient.errors import IllegalStateError
from kclient.records import decode_arrow
from kclient.records.arrow import column_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kclient.config import ConfigInput
    from kclient.types import (
        OffsetAndMetadata,
        OffsetAndTimestamp,
        Offsets,
        Partition,
        PartitionInfo,
        Timestamps,
        TopicPartition,
    )


class Consumer(AsyncFace, ConsumerBase):
    """Reads records from Kafka, or from a kclient gateway, in asyncio or trio code.

    Use it with `async with`: leaving commits (with `enable.auto.commit`) and leaves the group; leaving by cancellation
    or KeyboardInterrupt does so without waiting. It belongs to one event loop, and one task polls at a time.

    Records, rebalance listeners, deserializers, interceptors and callbacks are all handled in the task that polls;
    heartbeats and fetches run in the background, as long as nothing blocks the event loop. If the time between two
    polls exceeds `max.poll.interval.ms`, the consumer leaves its group.

    A cancelled `poll` has handed out nothing: the next one returns the same records.

    Args:
        topics: Topics to subscribe to; or call `subscribe` or `assign` later. A mapping, or the path
            (`*.properties`) or text of properties, is taken as `config` here.
        config: Settings under Kafka's names: a mapping, or a properties file (its text or path).
        settings: Settings as arguments in snake_case, such as `bootstrap_servers` or `group_id`; they win.

    Raises:
        ConfigError: A setting is unknown or wrong.
        NotYetSupportedError: A setting asks for what kclient cannot do yet.
    """

    _remedy = "`async with`, or `await consumer.close()`"

    def __init__(self, *topics: str | Mapping[str, Any] | Path, config: ConfigInput = None, **settings: Any) -> None:
        super().__init__(*topics, config=config, **settings)
        self._wait_here()

    def __repr__(self) -> str:
        core = getattr(self, "_core", None)  # there is none where a setting was wrong, and a traceback shows locals
        return f"<Consumer {core!r}>" if core is not None else "<Consumer, not made>"

    # ------------------------------------------------------------------ life

    async def close(self, timeout: float | None = None, *, leave_group: bool | None = None) -> None:
        """Commit the positions (with `enable.auto.commit`), leave the group, end the tasks. May be called again.

        A task that polls meanwhile gets a `ClosedError`. A call while another one closes the consumer waits for that;
        when its own time is over, or if it is cancelled, both give up. A static member (`group.instance.id`) does not
        leave by itself, so that it finds its partitions again. In another event loop than the one it was started in, it
        raises `IllegalStateError`.

        Args:
            timeout: Seconds to wait for brokers; None is 30, 0 neither commits nor waits.
            leave_group: Whether the group is told, so that the other members share its partitions at once (KIP-1092).
                None: yes, unless it is a static member. With False the group waits for `session.timeout.ms` for a
                member that comes back, which only a static one does. With `group.protocol=consumer` a static member's
                partitions wait for it unless this is True, for as long as the broker's session timeout.

        Raises:
            TypeError: `leave_group` is not True, False or None.
        """
        seconds = close_timeout(timeout)
        check_choice(leave_group, "leave_group")
        await self._end(seconds, leave_group)

    # ------------------------------------------------------------------ what to read

    async def unsubscribe(self) -> None:
        """Give up all partitions and leave the group; waits a second at most until the coordinator knows."""
        self._core.life.check()
        self._core.supervisor.check_loop()
        self._collector.settle()
        await drive_async(self._core.departure.unsubscribe(), self._carry_out)

    # ------------------------------------------------------------------ records

    async def poll(
        self,
        timeout: float = 0.0,
        *,
        max_records: int | None = None,
        partitions: Iterable[Partition] | None = None,
    ) -> ConsumerRecords:
        """The next records, at most `max.poll.records`; waits until there are some.

        What earlier polls returned counts as processed from now on: auto commit commits it. Joining the group and
        rebalance listeners happen inside this call.

        Args:
            timeout: Seconds to wait at most; 0 returns what is there.
            max_records: At most so many records; None is `max.poll.records`.
            partitions: Return records of these partitions only, as far as they are assigned; None is all. Others are
                not fetched meanwhile, and keep their positions and what was fetched of them, as with `pause`.

        Returns:
            The records; empty when the time is over first.

        Raises:
            ValueError: The timeout is negative, or `max_records` below 1.
            TypeError: One of them is no number, or the partitions are none.
            WakeupError: `wakeup` was called.
            NoOffsetForPartitionError: A partition has no position, and `auto.offset.reset` is `none`.
            OffsetOutOfRangeError: A position does not exist any more, and `auto.offset.reset` is `none`.
            RecordDeserializationError: A record cannot be deserialized; seek past it to go on.
            CorruptRecordError: A batch is damaged; seek past it to go on.
            KafkaError: The group refused this member, or a background task failed.
        """
        take = self._collector.take
        if max_records is not None:
            take = partial(take, as_count(max_records, "max_records"))
        if self._core.polling.ends is not None:
            take = partial(self._core.polling.ends.take, take)
        script = None
        if partitions is not None:
            script = partial(self._core.polling.poll_only, frozenset(as_partitions(partitions)))
        records: ConsumerRecords | None = await self._poll(timeout, take, script)
        return ConsumerRecords() if records is None else records

    async def joined(self, timeout: float | None = None) -> set[TopicPartition]:
        """Wait until this is a member of its group, without taking records; what it reads then.

        It counts as a poll without records: what earlier polls returned counts as processed, listeners are called in
        here, and `max.poll.interval.ms` begins anew. Called again while it is a member, it returns at once.

        Args:
            timeout: Seconds; None is `default.api.timeout.ms`.

        Returns:
            The assignment, perhaps empty: there may be more members than partitions, and with a cooperative assignor
            what others have to give up first comes by a later rebalance.

        Raises:
            IllegalStateError: It is not subscribed.
            KafkaTimeoutError: It did not become one in time, and why, as far as that is known; it goes on joining with
                the next call, or poll.
            WakeupError: `wakeup` was called.
            KafkaError: The group refused this member, or a background task failed.
        """
        self._check()
        self._core.supervisor.check_loop()
        seconds = self._seconds(timeout)
        if not self._core.subscriptions.uses_group:
            raise IllegalStateError("There is no group to join: subscribe first")
        if not await self._poll(seconds, self._core.has_joined):
            raise self._core.not_joined(seconds)
        return self.assignment()

    async def poll_arrow(
        self,
        timeout: float = 0.0,
        *,
        include_headers: bool = False,
        columns: Iterable[str] | None = None,
        max_bytes: int | None = None,
    ) -> Any:
        """As `poll`, as columns: everything that was fetched, up to 16 MB of it, in one `pyarrow.RecordBatch`.

        The schema is that of Spark's Kafka source; keys and values are bytes, deserializers are not called, and
        `max.poll.records` does not apply.

        Args:
            timeout: Seconds to wait at most; 0 returns what is there.
            include_headers: Whether to add the column `headers`.
            columns: The names of the columns that are wanted, in their order; None for all. What is not wanted is not
                copied, and of batches that need not be opened for it not even decompressed: see `decode_arrow`.
            max_bytes: Bytes of records, after decompression, behind which no further batch is opened: so many there are
                at most, and those of one batch of the producer's. By default as many as were fetched, or 16 MB.

        Returns:
            The record batch; without rows when the time is over first.

        Raises:
            MissingExtraError: pyarrow is not installed.
            TypeError: The columns are no names, or max_bytes is no number.
            ValueError: A column is unknown or named twice, max_bytes is below 1; or as for `poll`.
            KafkaError: As for `poll`.
        """
        names, most = column_names(columns, include_headers), as_count(max_bytes, "max_bytes")
        await self._import_pyarrow()
        batch = await self._poll(timeout, lambda: self._collector.take_arrow(names, most))
        return decode_arrow([], columns=names) if batch is None else batch

    # ------------------------------------------------------------------ commits

    async def commit(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Commit and wait for it, trying again what can be.

        If it is cancelled, the offsets may be committed or not.

        Args:
            offsets: The offset of the next record to read in each partition; None commits the positions, which are
                behind everything that was returned.
            timeout: Seconds; None is `default.api.timeout.ms`.

        Raises:
            CommitFailedError: The group gave the partitions to others meanwhile (names the setting to change).
            RebalanceInProgressError: The group rebalances: poll, then commit again.
            KafkaTimeoutError: It did not succeed in time.
        """
        self._core.supervisor.check_loop()
        self._collector.settle()
        await drive_async(self._commit_script(offsets, timeout), self._carry_out)

    async def committed(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of the group; None where nothing was committed.

        Raises:
            KafkaTimeoutError: No answer in time.
            InvalidGroupIdError: There is no `group.id`.
        """
        self._core.life.check()
        committed = self._core.group().committed
        wanted = as_partitions(partitions)
        return await self._core.waits.interruptible(committed.fetch, wanted, self._seconds(timeout))

    # ------------------------------------------------------------------ positions

    async def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record that will be returned; waits until it is known.

        A rebalance meanwhile, in another task or thread that polls, may take the partition away: then it waits for the
        outcome, too.

        Raises:
            IllegalStateError: The partition is not assigned, or not any more.
            KafkaTimeoutError: It did not become known in time.
        """
        self._check()
        self._collector.settle()
        core = self._core
        return await core.waits.interruptible(core.positions.position, as_partition(partition), self._seconds(timeout))

    # ------------------------------------------------------------------ looking

    async def offsets_for_times(
        self, timestamps: Timestamps, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in each partition; None where there is none.

        Args:
            timestamps: Milliseconds since the epoch.
            timeout: Seconds; None is `default.api.timeout.ms`.

        Raises:
            KafkaTimeoutError: Not every leader answered in time.
        """
        core = self._core
        return await core.waits.interruptible(core.queries.offsets_for_times, timestamps, self._seconds(timeout))

    async def beginning_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the oldest record of each partition.

        Raises:
            KafkaTimeoutError: Not every leader answered in time.
        """
        core = self._core
        wanted = as_partitions(partitions)
        return await core.waits.interruptible(
            core.queries.offsets_at, wanted, EARLIEST_TIMESTAMP, self._seconds(timeout)
        )

    async def end_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the newest record of each partition (with `read_committed`: the last stable one).

        Raises:
            KafkaTimeoutError: Not every leader answered in time.
        """
        core = self._core
        wanted = as_partitions(partitions)
        return await core.waits.interruptible(core.queries.offsets_at, wanted, LATEST_TIMESTAMP, self._seconds(timeout))

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic.

        Raises:
            KafkaTimeoutError: Nothing is known of it in time.
            InvalidTopicError: The name is empty.
        """
        core = self._core
        core.life.check()
        return await core.waits.interruptible(core.queries.partitions_for, topic, self._seconds(timeout))

    async def list_topics(self, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that may be described, with their partitions; Kafka's own (internal) ones too, as in Java.

        Raises:
            KafkaTimeoutError: No broker answered in time.
        """
        core = self._core
        core.life.check()
        return await core.waits.interruptible(core.queries.list_topics, self._seconds(timeout))
