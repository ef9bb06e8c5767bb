"""The share consumer for asyncio and trio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kclient.arguments import as_count
from kclient.concurrency import drive_async
from kclient.consumer.async_face import AsyncFace
from kclient.consumer.face_base import close_timeout
from kclient.consumer.records import ConsumerRecords
from kclient.consumer.share.base import ShareConsumerBase, arrow_columns
from kclient.consumer.share.opening import empty_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kclient.config import ConfigInput
    from kclient.errors import KafkaError
    from kclient.types import TopicPartition


class ShareConsumer(AsyncFace, ShareConsumerBase):
    """Reads records as a member of a share group (KIP-932), in asyncio or trio code. Needs Kafka 4.2 or newer.

    The members of a share group share the records of a partition: each record is held for one of them, until that says
    what became of it, or the acquisition lock is over. Records come without regard to their order, and may come again.

    Use it with `async with`: leaving tells the brokers what was acknowledged, has them give back the rest at once, and
    leaves the group; leaving by cancellation or KeyboardInterrupt does so without waiting. It belongs to one event
    loop, and one task polls at a time.

    If the time between two polls exceeds `max.poll.interval.ms`, the consumer leaves its group. A cancelled `poll` has
    handed out nothing: the next one returns the same records.

    Args:
        topics: Topics to subscribe to; or call `subscribe` later. A mapping, or the path (`*.properties`) or text of
            properties, is taken as `config` here.
        config: Settings under Kafka's names: a mapping, or a properties file (its text or path).
        settings: Settings as arguments in snake_case, such as `bootstrap_servers` or `group_id`; they win.

    Raises:
        ConfigError: A setting is unknown or wrong, is one that share groups do not have, or `group.id` is missing.
        NotYetSupportedError: A setting asks for what kclient cannot do yet.
    """

    _remedy = "`async with`, or `await consumer.close()`"

    def __init__(self, *topics: str | Mapping[str, Any] | Path, config: ConfigInput = None, **settings: Any) -> None:
        super().__init__(*topics, config=config, **settings)
        self._wait_here()

    def __repr__(self) -> str:
        core = getattr(self, "_core", None)  # there is none where a setting was wrong, and a traceback shows locals
        return f"<ShareConsumer {core!r}>" if core is not None else "<ShareConsumer, not made>"

    # ------------------------------------------------------------------ life

    async def close(self, timeout: float | None = None) -> None:
        """Tell what was acknowledged, have the brokers give back the rest, leave the group. May be called again.

        What was returned last, and neither acknowledged nor followed by another poll or commit, is given back in
        `implicit` mode, too, as in the Java client: who is through with it calls `commit` first. A task that polls
        meanwhile gets a `ClosedError`. A call while another one closes the consumer waits for that;
        when its own time is over, or if it is cancelled, both give up. In another event loop than the one it was
        started in, it raises `IllegalStateError`.

        Args:
            timeout: Seconds to wait for brokers; None is 30, 0 neither acknowledges nor waits.
        """
        await self._end(close_timeout(timeout))

    async def unsubscribe(self) -> None:
        """Give everything up, as `close` does, and leave the group; waits a second at most until the brokers know.

        What was returned before cannot be acknowledged any more.
        """
        self._check()
        self._core.supervisor.check_loop()
        await drive_async(self._core.polling.unsubscribe(), self._carry_out)

    # ------------------------------------------------------------------ records

    async def poll(self, timeout: float = 0.0, *, max_records: int | None = None) -> ConsumerRecords:
        """The next records, at most `max.poll.records`; waits until there are some.

        In `implicit` mode, what earlier polls returned is accepted by this call; in `explicit` mode all of it has to be
        acknowledged before. Records of which the lock is renewed are returned first, and alone.

        Args:
            timeout: Seconds to wait at most; 0 returns what is there, and has brokers asked for records.
            max_records: At most so many records; None is `max.poll.records`.

        Returns:
            The records, each with its `delivery_count`; empty when the time is over first.

        Raises:
            IllegalStateError: Nothing is subscribed; or in `explicit` mode not all is acknowledged.
            ValueError: The timeout is negative, or `max_records` below 1.
            TypeError: One of them is no number.
            WakeupError: `wakeup` was called.
            RecordDeserializationError: A record cannot be deserialized; it is released, unless it is acknowledged with
                `acknowledge_offset`.
            CorruptRecordError: A batch is damaged; it is rejected.
            UnsupportedVersionError: The broker does not serve share groups.
            KafkaError: The group refused this member, or a background task failed.
        """
        take = self._collector.take
        if max_records is not None:
            take = partial(take, as_count(max_records, "max_records"))
        records: ConsumerRecords | None = await self._poll(timeout, take)
        return ConsumerRecords() if records is None else records

    async def poll_arrow(
        self,
        timeout: float = 0.0,
        *,
        include_headers: bool = False,
        columns: Iterable[str] | None = None,
        max_bytes: int | None = None,
    ) -> Any:
        """As `poll`, as columns: everything that was acquired, in one `pyarrow.RecordBatch`.

        The schema is that of Spark's Kafka source and the column `deliveryCount` (int32); keys and values are bytes,
        deserializers are not called, and `max.poll.records` bounds only what brokers are asked for.

        Args:
            timeout: Seconds to wait at most; 0 returns what is there.
            include_headers: Whether to add the column `headers`.
            columns: The names of the columns that are wanted, in their order; None for all.
            max_bytes: Bytes behind which no further batch is opened; None is 16 MB.

        Returns:
            The record batch; without rows when the time is over first.

        Raises:
            MissingExtraError: pyarrow is not installed.
            TypeError: The columns are no names, or max_bytes is no number.
            ValueError: A column is unknown or named twice, max_bytes is below 1; or as for `poll`.
            KafkaError: As for `poll`.
        """
        await self._import_pyarrow()
        names, most = arrow_columns(columns, include_headers), as_count(max_bytes, "max_bytes")
        batch = await self._poll(timeout, lambda: self._collector.take_arrow(names, most))
        return empty_columns(names) if batch is None else batch

    # ------------------------------------------------------------------ commits

    async def commit(self, timeout: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """Tell the brokers what became of records, and wait for their answers, trying again what can be.

        In `implicit` mode, everything that was returned is accepted. If it is cancelled, the brokers may know or not.

        Args:
            timeout: Seconds; None is `default.api.timeout.ms`.

        Returns:
            By partition None, or what went wrong: records whose lock was over are delivered again
            (`InvalidRecordStateError`). Empty if there was nothing to tell.

        Raises:
            KafkaTimeoutError: Not all brokers answered in time.
            WakeupError: `wakeup` was called; the acknowledgements go on their way all the same.
        """
        self._check()
        self._core.supervisor.check_loop()
        found: dict[TopicPartition, KafkaError | None] = await drive_async(
            self._core.polling.commit(self._seconds(timeout)), self._carry_out
        )
        return found
