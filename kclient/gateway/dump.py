"""What is in a data directory that nobody uses, as plain values for people and programs: topics, rows, messages."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from kclient.errors import KafkaError, UnknownTopicOrPartitionError
from kclient.gateway.extents.encoding import EnvelopeFraming, batch_in
from kclient.gateway.mapping import mapping_for
from kclient.gateway.rows import keys
from kclient.gateway.rows.inspection import ShownRow, shown_row
from kclient.gateway.rows.topics import TopicRow
from kclient.gateway.virtual.envelopes import OrdinalFraming, OrdinalsInEnvelopes, batch_with_ordinal
from kclient.htp.brokers import FIRST_BROKER
from kclient.htp.embedded.checkpoints import checkpoint_key
from kclient.htp.embedded.inspection import Inspection
from kclient.htp.embedded.listing import StoredMessage
from kclient.htp.embedded.recovery import SyncCheckpoint
from kclient.htp.errors import HtpError
from kclient.htp.port import Place, Topic
from kclient.records import BatchHeader, RecordBatchFraming, read_header

_SHARED: Final = frozenset({OrdinalFraming.name, OrdinalsInEnvelopes.name})
"""Framings of topics that partitions share: the ordinals of messages are no offsets."""
_ENVELOPES: Final = {
    EnvelopeFraming.name: (batch_in,),
    OrdinalFraming.name: (batch_with_ordinal,),
    OrdinalsInEnvelopes.name: (batch_in, batch_with_ordinal),
}
"""What opens the envelopes of a framing, from the outermost on."""


class DumpedTopic(NamedTuple):
    """A topic of HTP, at one broker."""

    htp_topic: str
    incarnation: int
    broker: str
    framing: str
    """The name of what its messages look like."""
    topic: str | None
    """The topic of Kafka whose records it holds; None if no row tells."""
    partition: int | None
    """None if it holds those of all partitions, too."""


class DumpedRow(NamedTuple):
    """A row of the manager."""

    key: str
    kind: str | None
    """What it is of; None if this version does not know it."""
    value: Any
    """What it says, as JSON has it."""
    problem: str | None
    """Why it cannot be read; None if it can."""
    base64: str | None
    """Its bytes, where it cannot be read."""


class DumpedMessage(NamedTuple):
    """A message in a segment, or what lies in its place."""

    htp_topic: str
    broker: str
    """That keeps it."""
    segment: str
    byte: int
    """Where it begins in the segment."""
    bytes: int
    first_offset: int | None
    """None, like the other fields of a batch, for bytes that are no whole message, or tell of no batch."""
    last_offset: int | None
    records: int | None
    base_timestamp: int | None
    """Milliseconds since the epoch."""
    max_timestamp: int | None
    crc: str
    """`ok`, or `wrong`; `none` for bytes that are no whole message."""
    codec: str | None
    leader_epoch: int | None
    producer_id: int | None
    """None where the producer is not idempotent."""
    producer_epoch: int | None
    base_sequence: int | None
    transactional: bool | None
    control: bool | None
    partition: int | None
    """What its envelope names; None if it is in none."""
    counts: bool
    """Whether it belongs to the log; what lies behind a failed sync or damage is cut by the next start."""


class StoreDump:
    """Everything in a data directory, or what belongs to one topic of Kafka.

    Args:
        inspection: The directory, opened.
        topic: The topic of Kafka; None for all.

    Raises:
        UnknownTopicOrPartitionError: There is no such topic.
    """

    def __init__(self, inspection: Inspection, topic: str | None = None) -> None:
        self._inspection = inspection
        self._topic = topic
        self._partitions: dict[tuple[Topic, int], tuple[str, int]] = {}
        """Topic and partition of Kafka by HTP topic and incarnation."""
        self._by_name: dict[Topic, tuple[str, int]] = {}
        """Where the first versions wrote no incarnations."""
        self._id: str | None = None
        names = []
        for key, row in inspection.rows():
            if key.startswith(keys.TOPICS):
                names.append(name := key.removeprefix(keys.TOPICS))
                self._take(name, row)
        if topic is not None and topic not in names:
            raise UnknownTopicOrPartitionError(
                f"{inspection.path} has no topic {topic!r}; it has {', '.join(names) or 'none'}"
            )

    def _take(self, name: str, row: bytes) -> None:
        try:
            found = TopicRow.decode(row)
            mapping = mapping_for(found.mapping)
        except (ValueError, KafkaError):  # the row itself is shown
            return
        if name == self._topic:
            self._id = found.topic_id.hex()
        for number in range(found.partitions):
            place = mapping.topic(name, number)
            if number < len(found.incarnations):
                self._partitions[place, found.incarnations[number]] = (name, number)
            else:
                self._by_name[place] = (name, number)

    def _of(self, place: Place) -> tuple[str, int] | tuple[None, None]:
        return self._partitions.get((place.topic, place.incarnation)) or self._by_name.get(place.topic) or (None, None)

    def _places(self) -> list[Place]:
        found = sorted(self._inspection.places.values())
        return [place for place in found if self._topic is None or self._of(place)[0] == self._topic]

    def topics(self) -> Iterator[DumpedTopic]:
        """The topics of HTP at each broker, by name."""
        for place in self._places():
            framing = self._inspection.framing_of(place)
            topic, partition = self._of(place)
            yield DumpedTopic(
                str(place.topic), place.incarnation, place.broker, framing, topic,
                None if framing in _SHARED else partition,
            )  # fmt: skip

    def rows(self) -> Iterator[DumpedRow]:
        """The rows of the manager, by key."""
        checkpoints = {checkpoint_key(place.broker or FIRST_BROKER, place.incarnation) for place in self._places()}
        for key, row in self._inspection.rows():
            if self._topic is None or key in checkpoints or self._is_of_topic(key):
                kind, value, problem = _shown_checkpoint(row) if key.startswith("brk/") else shown_row(key, row)
                undecoded = base64.b64encode(row).decode() if value is None else None
                yield DumpedRow(key, kind, value, problem, undecoded)

    def _is_of_topic(self, key: str) -> bool:
        if key in (keys.TOPICS + str(self._topic), keys.INTENTS + str(self._topic)):
            return True
        if key.startswith(keys.OFFSETS):
            try:
                return keys.parse_offset_key(key)[1].topic == self._topic
            except ValueError:
                return False
        return self._id is not None and key.startswith(keys.of_topic(bytes.fromhex(self._id)))

    def messages(self) -> Iterator[DumpedMessage]:
        """The messages of each topic of HTP, in order.

        Raises:
            UnknownFramingError: Nobody knows how the messages of a topic are framed.
            OSError: A file cannot be read.
        """
        for place in self._places():
            framing = self._inspection.framing_of(place)
            for message in self._inspection.messages(place):
                yield _dumped(place, framing, message)


def _shown_checkpoint(row: bytes) -> ShownRow:
    """What the checkpoint of a log says."""
    try:
        return ShownRow("log checkpoint", asdict(SyncCheckpoint.decode(row)), None)
    except ValueError as error:
        return ShownRow("log checkpoint", None, str(error))


def _dumped(place: Place, framing: str, message: StoredMessage) -> DumpedMessage:
    info = message.info
    header, partition = _header(framing, message)
    if framing in _SHARED:
        first, last = (None, None) if header is None else (header.base_offset, header.last_offset)
    else:
        first, last = (None, None) if info is None else (info.first, info.last)
    of_producer = header is not None and header.producer_id >= 0
    return DumpedMessage(
        htp_topic=str(place.topic),
        broker=place.broker,
        segment=message.segment,
        byte=message.place,
        bytes=message.length,
        first_offset=first,
        last_offset=last,
        records=None if header is None else header.count,
        base_timestamp=None if header is None else header.base_timestamp,
        max_timestamp=None if info is None else info.max_timestamp,
        crc="none" if info is None else "ok" if message.sound else "wrong",
        codec=None if header is None else _codec(header),
        leader_epoch=None if header is None else header.partition_leader_epoch,
        producer_id=header.producer_id if header is not None and of_producer else None,
        producer_epoch=header.producer_epoch if header is not None and of_producer else None,
        base_sequence=header.base_sequence if header is not None and of_producer else None,
        transactional=None if header is None else header.is_transactional,
        control=None if header is None else header.is_control,
        partition=partition,
        counts=message.counts,
    )


def _header(framing: str, message: StoredMessage) -> tuple[BatchHeader | None, int | None]:
    """The header of the batch in a message, and the partition that its envelope names."""
    batch, partition = message.data, None
    if message.info is None:
        return None, None
    try:
        if framing in _ENVELOPES:
            for opened in _ENVELOPES[framing]:
                inside = opened(batch)
                if inside is None:
                    return None, None
                partition, batch = inside
        elif framing != RecordBatchFraming.name:
            return None, None
        return read_header(batch, 0), partition
    except (ValueError, HtpError, KafkaError):  # damaged: what the framing says is all there is
        return None, partition


def _codec(header: BatchHeader) -> str:
    try:
        return header.compression.name.lower()
    except IndexError:
        return f"unknown ({header.attributes & 7})"
