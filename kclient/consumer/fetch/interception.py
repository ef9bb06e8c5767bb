"""What interceptors see of the records that are handed out, and make of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kclient.consumer.records import ConsumerRecords
from kclient.records.bounds import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kclient.consumer.interfaces import ConsumerInterceptor
    from kclient.records import ConsumerRecord
    from kclient.types import OffsetAndMetadata, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")


class UndecodedRecords(ConsumerRecords):
    """Records that are made only when somebody looks at them.

    Args:
        load: Makes them.
        next_offsets: The position behind them in each partition.
    """

    __slots__ = ("_load",)

    def __init__(
        self,
        load: Callable[[], Mapping[TopicPartition, Sequence[ConsumerRecord]]],
        next_offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        self._load = load
        self._next_offsets = next_offsets

    def __getattr__(self, name: str) -> Any:
        if name != "_by_partition":  # the slot that is still empty
            raise AttributeError(name)
        self._by_partition = self._load()
        return self._by_partition


class Interception:
    """The interceptors of one consumer, in their order.

    Exceptions are logged and ignored, as in the Java client, and so is what is not a `ConsumerRecords`.
    """

    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        self._interceptors = interceptors

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def show(self, records: ConsumerRecords) -> ConsumerRecords:
        """What they make of the records that are about to be handed out."""
        for interceptor in self._interceptors:
            try:
                returned: Any = interceptor.on_consume(records)
            except Exception:
                logger.exception("%s.on_consume raised", type(interceptor).__name__)
                continue
            if isinstance(returned, ConsumerRecords):
                records = returned
            else:
                logger.error(
                    "%s.on_consume returned no ConsumerRecords but %s: it is ignored",
                    type(interceptor).__name__,
                    type(returned).__name__,
                )
        return records

    def show_columns(self, batch: Any, records: ConsumerRecords) -> Any:
        """The same for an Arrow record batch, whose rows are given as records; other records become another batch."""
        shown = self.show(records)
        if shown is records:
            return batch
        try:
            return _columns_of(shown, batch.schema)
        except Exception:
            logger.exception("what interceptors returned cannot be put into columns, and is ignored")
            return batch


def _columns_of(records: ConsumerRecords, schema: Any) -> Any:
    """Records as a `pyarrow.RecordBatch`, as `poll_arrow` gives them; keys and values have to be bytes or None."""
    import pyarrow as pa

    rows = [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": min(max(record.timestamp * 1000, INT64_MIN), INT64_MAX),  # microseconds, as far as they go
            "timestampType": int(record.timestamp_type),
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for record in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)
