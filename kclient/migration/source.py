"""A cluster as the migration reads it: whole batches as they are stored, where partitions begin and end, settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from kclient.admin import Admin, ConfigEntry, ConfigResource, ConfigResourceType, ConfigSource
from kclient.admin.answers import failure
from kclient.cluster import Trial, version_for
from kclient.cluster.metadata import ZERO_ID, ClusterSnapshot
from kclient.errors import BrokerConnectionError, KafkaError, UnsupportedVersionError, error_for
from kclient.gateway.settings_of_topics import TOPIC_SETTINGS
from kclient.net.connection import Connection
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kclient.types import Buffer, TopicPartition

M = TypeVar("M", bound=ApiMessage)

RESPONSE_BYTES: Final = 32 << 20
"""Bytes of one response, at most, beside what a single batch takes."""
PARTITION_BYTES: Final = 8 << 20
"""And of one partition in it."""
WAIT_MS: Final = 500
"""How long a broker waits for news, in milliseconds."""
_LAST_WITH_NAMES: Final = 12
"""Fetch names topics by id from the next version on."""
_TELLS_LOG_STARTS: Final = 5
_EARLIEST, _LATEST = -2, -1
_OF_BROKERS: Final = frozenset(
    {ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, ConfigSource.STATIC_BROKER_CONFIG}
)


class SourceTopic(NamedTuple):
    """A topic of the source."""

    name: str
    topic_id: bytes
    """Zeros where the brokers know no ids (before Kafka 2.8)."""
    partitions: int


class Bounds(NamedTuple):
    """Where a partition begins and ends."""

    start: int
    """Its log start."""
    end: int
    """Its high watermark."""
    stable: int
    """Its last stable offset: a transaction is open where that is below the end."""


class Fetched(NamedTuple):
    """What a broker answered for one partition."""

    error: KafkaError | None
    records: Buffer
    """Whole batches, the last of which may be cut off."""
    start: int
    """The log start, -1 where the broker does not tell it."""
    end: int
    """The high watermark; -1 with an error."""
    stable: int
    """The last stable offset; -1 with an error."""
    asked: int
    """From which offset on it was asked for."""


class SourceCluster(Admin):
    """An admin client that also reads whole batches: by offsets, whatever became of their transactions.

    Its arguments are those of `kclient.Admin`.
    """

    @property
    def snapshot(self) -> ClusterSnapshot:
        """What is known of the cluster."""
        return self._cluster.snapshot

    @property
    def trouble(self) -> str:
        """What keeps the brokers from answering, empty for nothing."""
        return self._cluster.trouble

    def request_update(self) -> None:
        """Have the metadata fetched anew in the background."""
        self._cluster.request_update()

    async def look(self) -> ClusterSnapshot:
        """Every topic of the cluster, as the brokers tell it now.

        Raises:
            KafkaTimeoutError: No broker answered in time.
        """
        self._check()
        return await self._cluster.refresh(all_topics=True)

    async def topics(self) -> dict[str, SourceTopic]:
        """Every topic that is not one of Kafka's own."""
        return topics_of(await self.look())

    async def bounds(
        self, partitions: Collection[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, Bounds]:
        """Where partitions begin and end.

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
            KafkaTimeoutError: Some of them could not be asked for in time.
        """
        starts = await self._offsets(partitions, _EARLIEST, False, timeout)
        stable = await self._offsets(partitions, _LATEST, True, timeout)
        # last: what is told to be the end was there when the others were asked for
        ends = await self._offsets(partitions, _LATEST, False, timeout)
        return {tp: Bounds(starts[tp], ends[tp], stable[tp]) for tp in partitions}

    async def _offsets(
        self, partitions: Collection[TopicPartition], place: int, read_committed: bool, timeout: float | None
    ) -> dict[TopicPartition, int]:
        async def ask(
            trial: Trial, connection: Connection, some: Collection[TopicPartition]
        ) -> dict[TopicPartition, tuple[int, int]]:
            by_topic: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
            for tp in some:
                by_topic[tp.topic].append(ListOffsetsPartition(partition_index=tp.partition, timestamp=place))
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(read_committed),
                topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in by_topic.items()],
            )
            response = await self._exchange(trial, connection, request, ListOffsetsResponse)
            return {
                TopicPartition(topic.name, row.partition_index): (row.error_code, row.offset)
                for topic in response.topics
                for row in topic.partitions
            }

        if not partitions:
            return {}
        return await self._at_leaders(partitions, ask, timeout=timeout, what="Listing offsets")

    async def fetch(
        self,
        node_id: int,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, bytes],
        *,
        lane: int = 0,
        wait_ms: int = WAIT_MS,
        response_bytes: int = RESPONSE_BYTES,
        partition_bytes: int = PARTITION_BYTES,
    ) -> dict[TopicPartition, Fetched]:
        """Batches of partitions that a broker leads, from offsets on; once, without trying again.

        Args:
            node_id: The broker.
            offsets: Where to begin in each partition.
            topic_ids: The topics' ids: from a namesake nothing is read, if the broker knows ids.
            lane: A number: requests of different ones do not wait for one another.
            wait_ms: Milliseconds that the broker waits for the first byte.
            response_bytes: Bytes of all of them, at most, but for the first batch.
            partition_bytes: Bytes of one of them, at most, but for the first batch.

        Raises:
            KafkaError: The broker did not answer, or refused the whole request.
        """
        self._check()
        connection = await self._cluster.connection(node_id, f"mirror {lane}")
        with_ids = all(topic_ids[tp.topic] != ZERO_ID for tp in offsets)
        last = None if with_ids else _LAST_WITH_NAMES
        version = version_for(connection, FetchRequest, last)
        if version < _TELLS_LOG_STARTS:
            raise UnsupportedVersionError(f"{connection.address}: only Kafka 0.11 or newer can be moved in from")
        topics: dict[str, FetchRequestTopic] = {}
        for tp, offset in offsets.items():
            if tp.topic not in topics:
                topics[tp.topic] = FetchRequestTopic(topic=tp.topic, topic_id=topic_ids[tp.topic], partitions=[])
            topics[tp.topic].partitions.append(
                FetchRequestPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=partition_bytes)
            )
        request = FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=response_bytes, isolation_level=0, topics=list(topics.values())
        )
        response = await self._cluster.request_on(connection, request, response=FetchResponse, max_version=last)
        if response.error_code:
            raise error_for(response.error_code, f"node {node_id}: {error_for(response.error_code).message}")
        names = {topic_ids[name]: name for name in topics} if version > _LAST_WITH_NAMES else {}
        found: dict[TopicPartition, Fetched] = {}
        for topic in response.responses:
            name = names.get(bytes(topic.topic_id), "") if names else topic.topic
            for data in topic.partitions:
                tp = TopicPartition(name, data.partition_index)
                if tp in offsets:
                    found[tp] = Fetched(
                        failure(data.error_code, str(tp)), data.records or b"",
                        data.log_start_offset, data.high_watermark, data.last_stable_offset, offsets[tp],
                    )  # fmt: skip
        for tp in offsets.keys() - found.keys():
            missing = BrokerConnectionError(f"{tp}: node {node_id} did not answer for it")
            found[tp] = Fetched(missing, b"", -1, -1, -1, offsets[tp])
        return found

    async def ask(
        self, request: ApiMessage, response: type[M], *, what: str, check: Callable[[M], object] | None = None
    ) -> M:
        """Ask something that any broker can answer.

        Args:
            request: The question.
            response: The class of its answer.
            what: What is asked for, as the start of a sentence.
            check: Raises what makes the answer void.

        Raises:
            KafkaError: No broker answered in time, or the answer is void.
        """
        return await self._ask_any(request, response, timeout=None, what=what, check=check)

    async def ask_node(self, node_id: int, request: ApiMessage, response: type[M], *, what: str) -> M:
        """Ask one broker. Raises `KafkaError` where it does not answer in time."""
        return await self._ask_node(node_id, request, response, None, what)

    async def settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of topics that are not Kafka's defaults, by topic: their own, and those that all have there."""
        described = await self.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
        return {
            resource.name: {
                entry.name: entry.value
                for entry in entries.values()
                if entry.value is not None and not entry.is_read_only and _is_set(entry)
            }
            for resource, entries in described.items()
        }


def _is_set(entry: ConfigEntry) -> bool:
    """Whether somebody has set it, for the topic or for all topics of the cluster, which the store does not know of."""
    if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG:
        return True
    known = TOPIC_SETTINGS.get(entry.name)
    return entry.source in _OF_BROKERS and known is not None and known.default != entry.value


def topics_of(snapshot: ClusterSnapshot) -> dict[str, SourceTopic]:
    """The topics of a cluster that are not Kafka's own, and whose partitions are known."""
    return {
        name: SourceTopic(name, topic.topic_id, len(topic.partitions))
        for name, topic in sorted(snapshot.topics.items())
        if not topic.is_internal and topic.partitions
    }
