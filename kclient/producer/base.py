"""What the async and the blocking producer have in common as objects: how they are made, shown, dropped and left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kclient.arguments import as_offset, by_partition, check_text, shown, whole_number
from kclient.cluster.own_metrics import OwnMetrics
from kclient.config import ProducerConfig
from kclient.records.bounds import INT32_MAX
from kclient.types import ConsumerGroupMetadata
from kclient.unclosed import finalizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.config import ConfigInput
    from kclient.errors import DeliveryError
    from kclient.metrics.metric import Metrics
    from kclient.metrics.registry import MetricsRegistry
    from kclient.producer.lifecycle import ProducerLifecycle
    from kclient.types import OffsetAndMetadata, Offsets, TopicPartition


class ProducerBase(OwnMetrics):
    """The face of a `ProducerLifecycle`."""

    _label = "Producer"
    _remedy = "`close`"
    _life: ProducerLifecycle

    def __init__(self, config: ConfigInput = None, /, **settings: Any) -> None:
        self._life = self._make(ProducerConfig.parse(config, **settings), time.monotonic)

    def _make(self, config: ProducerConfig, clock: Callable[[], float]) -> ProducerLifecycle:
        """Put the parts together; they must not know the face, or dropping it would not be noticed."""
        raise NotImplementedError

    def __repr__(self) -> str:
        life = getattr(self, "_life", None)  # there is none where a setting was wrong, and a traceback shows locals
        return f"<{self._label} {life!r}>" if life is not None else f"<{self._label}, not made>"

    @finalizer
    def __del__(self) -> None:
        life = getattr(self, "_life", None)
        if life is not None:
            life.forgotten(self, self._remedy)

    @property
    def config(self) -> ProducerConfig:
        """The settings that it was made with, checked and complete."""
        return self._life.config

    def _raise_failures(self) -> None:
        """Raise what nobody has been told of."""
        failures = self._life.reports.take_failures()
        if failures is not None:
            raise failures

    def _note_losses(self, error: BaseException, failed: DeliveryError | None) -> None:
        """Tell an error that leaves the producer's block what is lost with it."""
        unsent = self._life.unsent
        if failed is not None and failed.count > unsent:
            error.add_note(f"kclient: {failed}")
        if unsent:
            error.add_note(f"kclient: {unsent} records were not sent")

    @staticmethod
    def _group_offsets(
        offsets: Offsets, group_metadata: ConsumerGroupMetadata
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The arguments of `send_offsets_to_transaction` in their full form."""
        if not isinstance(group_metadata, ConsumerGroupMetadata):
            raise TypeError(f"group_metadata is what Consumer.group_metadata() gives, not {shown(group_metadata)}")
        check_text(group_metadata.group_id, "the group's id")
        check_text(group_metadata.member_id, "the member's id")
        if group_metadata.group_instance_id is not None:
            check_text(group_metadata.group_instance_id, "the member's group.instance.id")
        generation = whole_number(group_metadata.generation_id, "the group's generation")
        if not -1 <= generation <= INT32_MAX:
            raise ValueError(f"the group's generation is -1 to {INT32_MAX}, not {generation}")
        if not group_metadata.group_id:
            raise ValueError("The group's id is empty: the consumer needs the setting group.id")
        if generation > 0 and not group_metadata.member_id:
            raise ValueError("group_metadata has a generation but no member id: take it from Consumer.group_metadata()")
        return by_partition(offsets, as_offset, "offsets")

    def _metrics_registry(self) -> MetricsRegistry:
        return self._life.registry

    def metrics(self) -> Metrics:
        """The metrics under the names, groups and tags of the Java client's; may be called in any thread.

        `producer.metrics().value("record-send-rate", topic="flights")` is one of them. Rates, averages, extremes and
        percentiles are those of the last `metrics.num.samples` windows, each `metrics.sample.window.ms` long, totals
        those since the producer was made. Times are in milliseconds, but for names that say nanoseconds
        (`txn-commit-time-ns-total`, KIP-761); sizes in bytes.
        """
        return self._life.registry.metrics()
