"""Topics: create, delete, list, describe, more partitions, delete records, offsets by time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from kclient.admin.answers import failure
from kclient.admin.arguments import as_end_of_deletion, as_new_topics, as_page_size, as_place, as_totals
from kclient.admin.base import AdminBase, Outcome
from kclient.admin.topic_pages import TopicPages
from kclient.admin.types import (
    NewTopic,
    OffsetSpec,
    TopicDescription,
    TopicIds,
    TopicListing,
    operations_in,
    raise_failures,
    topic_id_text,
)
from kclient.arguments import as_names, by_partition, check_flag, shown
from kclient.cluster import Trial, version_for
from kclient.errors import (
    InvalidPartitionsError,
    KafkaError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kclient.protocol.registry import ApiKey
from kclient.types import Node, OffsetAndTimestamp, PartitionInfo, TopicPartition, WholeNumbers

OffsetSpecs: TypeAlias = Mapping[TopicPartition, OffsetSpec | int] | Mapping[tuple[str, int], OffsetSpec | int]
"""Places by partition: an `OffsetSpec`, or a timestamp in milliseconds."""
_Told: TypeAlias = MetadataResponseTopic | DescribeTopicPartitionsResponseTopic
_FIRST_BY_ID = 12
"""The first version of Metadata that is asked for topics by id."""


class TopicOperations(AdminBase):
    """The admin client's calls about topics."""

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        retry_on_quota_violation: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Creates topics.

        Args:
            topics: what to create.
            validate_only: check everything and create nothing.
            retry_on_quota_violation: whether to try again, within the time, what the broker puts off because of a
                quota (KIP-599); else that is a `ThrottlingQuotaExceededError` at once.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            TopicExistsError, InvalidPartitionsError, InvalidConfigurationError …: why a topic was refused.
            PartialFailureError: several topics were refused; the others were created.
            TypeError: these are not `NewTopic`s.
        """
        wanted = _by_name(as_new_topics(topics))
        milliseconds = self._milliseconds(timeout)

        async def ask(trial: Trial, left: Mapping[str, list[CreatableTopic]]) -> Mapping[str, Outcome]:
            request = CreateTopicsRequest(
                topics=[topic for same in left.values() for topic in same],
                timeout_ms=milliseconds,
                validate_only=validate_only,
            )
            response = await self._ask_controller(trial, lambda _: request, CreateTopicsResponse, timeout)
            return _outcomes((topic.name, topic.error_code, topic.error_message) for topic in response.topics)

        failures = await self._each(
            wanted,
            ask,
            timeout=timeout,
            what="Creating topics",
            retry_on_quota_violation=retry_on_quota_violation,
            done=TopicExistsError,
        )
        raise_failures("Creating topics", failures)

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Creates one topic; see `NewTopic` and `create_topics`."""
        await self.create_topics([NewTopic(name, partitions, replication_factor, configs or {})], timeout=timeout)

    async def delete_topics(
        self, names: Collection[str], *, retry_on_quota_violation: bool = True, timeout: float | None = None
    ) -> None:
        """Deletes topics and everything in them.

        Args:
            names: which.
            retry_on_quota_violation: as for `create_topics`.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            PartialFailureError: several could not be deleted; the others were.
            TypeError: the names are not a list of strings.
        """
        wanted = dict.fromkeys(as_names(names, "topics"))
        milliseconds = self._milliseconds(timeout)

        async def ask(trial: Trial, left: Mapping[str, None]) -> Mapping[str, Outcome]:
            def message(connection: Connection) -> DeleteTopicsRequest:
                request = DeleteTopicsRequest(timeout_ms=milliseconds)
                if version_for(connection, DeleteTopicsRequest) >= 6:
                    request.topics = [DeleteTopicState(name=name) for name in left]
                else:
                    request.topic_names = list(left)
                return request

            response = await self._ask_controller(trial, message, DeleteTopicsResponse, timeout)
            return _outcomes((topic.name or "", topic.error_code, topic.error_message) for topic in response.responses)

        failures = await self._each(
            wanted,
            ask,
            timeout=timeout,
            what="Deleting topics",
            retry_on_quota_violation=retry_on_quota_violation,
            done=UnknownTopicOrPartitionError,
        )
        raise_failures("Deleting topics", failures)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Deletes one topic; see `delete_topics`."""
        await self.delete_topics([name], timeout=timeout)

    async def list_topics(self, *, include_internal: bool = False, timeout: float | None = None) -> list[TopicListing]:
        """Every topic of the cluster, sorted by name."""
        response = await self._all_topics(timeout, "Listing topics")
        listed = {
            topic.name: TopicListing(topic.name, topic_id_text(topic.topic_id), topic.is_internal)
            for topic in response.topics
            if topic.name is not None and (include_internal or not topic.is_internal)
        }
        return [listed[name] for name in sorted(listed)]

    async def describe_topics(
        self,
        names: Collection[str] | TopicIds,
        *,
        include_authorized_operations: bool = False,
        partition_size_limit_per_response: int = 2000,
        timeout: float | None = None,
    ) -> dict[str, TopicDescription]:
        """Topics with their partitions, leaders and replicas.

        Args:
            names: which; `TopicIds` for topics by id (KIP-516; Kafka 3.1).
            include_authorized_operations: tell also what this user may do with each (KIP-430; Kafka 2.3).
            partition_size_limit_per_response: partitions in one answer at most, where topics are given by name and the
                brokers tell of them page by page (KIP-966; Kafka 3.8). Brokers have a limit of their own.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            The topics by name, or by id where they were asked for so.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            UnknownTopicIdError: there is no topic with such an id.
            UnsupportedVersionError: the broker is too old for ids, or to tell the operations.
            PartialFailureError: several are unknown.
            TypeError: the names are not a list of strings.
            ValueError: the limit is not positive.
        """
        check_flag(include_authorized_operations, "include_authorized_operations")
        limit = as_page_size(partition_size_limit_per_response)
        what = "Describing topics"
        by_id = isinstance(names, TopicIds)
        if isinstance(names, TopicIds):
            asked: dict[str, MetadataRequestTopic] = {
                text: MetadataRequestTopic(topic_id=topic_id, name=None) for text, topic_id in names.as_bytes().items()
            }
        else:
            asked = {name: MetadataRequestTopic(name=name) for name in as_names(names, "topics")}
        whole = MetadataRequest(
            topics=list(asked.values()),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=include_authorized_operations,
        )

        async def ask(trial: Trial) -> tuple[Iterable[_Told], Iterable[MetadataResponseBroker]]:
            # without names a page tells of all topics there are
            return await self._described(trial, whole, TopicPages(asked, limit) if asked and not by_id else None)

        topics, brokers = await self._retrying(ask, timeout, what)
        described = {
            key: topic
            for topic in topics
            if (key := topic_id_text(topic.topic_id) if by_id else topic.name) is not None and key in asked
        }
        failures = _failures((key, topic.error_code, None) for key, topic in described.items())
        for key in asked.keys() - described.keys():
            failures[key] = UnknownTopicOrPartitionError(f"Topic {shown(key)}: The broker's answer leaves it out")
        nodes = {broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in brokers}
        found = {
            key: _description(topic, nodes, operations=include_authorized_operations)
            for key, topic in described.items()
            if key not in failures
        }
        raise_failures(what, failures, found)
        return found  # fmt: skip

    async def _described(
        self, trial: Trial, whole: MetadataRequest, pages: TopicPages | None
    ) -> tuple[Iterable[_Told], Iterable[MetadataResponseBroker]]:
        """The topics and the brokers.

        Args:
            trial: is told what is tried.
            whole: asks for both in one answer.
            pages: asks page by page, where brokers can; None for topics by id, or none at all.
        """

        async def ask(connection: Connection) -> MetadataResponse | DescribeTopicPartitionsResponse:
            if pages is None and whole.topics and version_for(connection, MetadataRequest) < _FIRST_BY_ID:
                raise UnsupportedVersionError(
                    f"{connection.address} describes topics by name only (Kafka 3.1 by id too)"
                )
            if pages is None or ApiKey.DESCRIBE_TOPIC_PARTITIONS not in connection.api_versions:
                return await self._exchange(trial, connection, whole, MetadataResponse)
            return await self._exchange(trial, connection, pages.request(), DescribeTopicPartitionsResponse)

        while True:
            told = await self._cluster.ask_any(ask, trial=trial)
            if isinstance(told, MetadataResponse):
                return told.topics, told.brokers
            if pages is None or not pages.take(told):
                break
        # their addresses are in no page
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        metadata = await self._cluster.ask_any(
            lambda connection: self._exchange(trial, connection, request, MetadataResponse), trial=trial
        )
        return (pages.topics if pages is not None else {}).values(), metadata.brokers

    async def _all_topics(self, timeout: float | None, what: str) -> MetadataResponse:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        return await self._ask_any(request, MetadataResponse, timeout=timeout, what=what)

    async def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        assignments: Mapping[str, list[list[int]]] | None = None,
        validate_only: bool = False,
        retry_on_quota_violation: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Gives topics more partitions.

        Args:
            totals: how many partitions each topic shall have in the end.
            assignments: the brokers of each new partition, by topic.
            validate_only: check everything and change nothing.
            retry_on_quota_violation: as for `create_topics`.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            InvalidPartitionsError: a topic has that many already; partitions cannot be removed.
            TypeError: these are not numbers by topic.
        """
        wanted = as_totals(totals, assignments)
        milliseconds = self._milliseconds(timeout)

        async def ask(trial: Trial, left: Mapping[str, CreatePartitionsTopic]) -> Mapping[str, Outcome]:
            request = CreatePartitionsRequest(
                topics=list(left.values()), timeout_ms=milliseconds, validate_only=validate_only
            )
            response = await self._ask_controller(trial, lambda _: request, CreatePartitionsResponse, timeout)
            return _outcomes((topic.name, topic.error_code, topic.error_message) for topic in response.results)

        failures = await self._each(
            wanted,
            ask,
            timeout=timeout,
            what="Creating partitions",
            retry_on_quota_violation=retry_on_quota_violation,
            done=InvalidPartitionsError,
        )
        raise_failures("Creating partitions", failures)

    async def delete_records(self, before: WholeNumbers, *, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Deletes the records before an offset of each partition (−1: all of them); returns the logs' new starts.

        Raises:
            OffsetOutOfRangeError: the offset lies after the partition's end.
            TypeError: a partition or an offset is none.
        """
        ends = by_partition(before, as_end_of_deletion, "offsets")

        async def ask(
            trial: Trial, connection: Connection, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, tuple[int, int]]:
            by_topic: dict[str, list[DeleteRecordsPartition]] = defaultdict(list)
            for tp in partitions:
                by_topic[tp.topic].append(DeleteRecordsPartition(partition_index=tp.partition, offset=ends[tp]))
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=name, partitions=parts) for name, parts in by_topic.items()],
                timeout_ms=self._milliseconds(timeout),
            )
            response = await self._exchange(trial, connection, request, DeleteRecordsResponse)
            return {
                TopicPartition(topic.name, part.partition_index): (part.error_code, part.low_watermark)
                for topic in response.topics
                for part in topic.partitions
            }

        return await self._at_leaders(ends, ask, timeout=timeout, what="Deleting records")

    async def list_offsets(
        self, wanted: OffsetSpecs, *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The offset of a place in each partition: an `OffsetSpec`, or a timestamp in milliseconds.

        A timestamp gives the first record at or after it, or None if there is none.

        Raises:
            TypeError: a partition or a place is none.
        """
        places = by_partition(wanted, as_place, "places")

        async def ask(
            trial: Trial, connection: Connection, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, tuple[int, OffsetAndTimestamp | None]]:
            if any(places[tp] is OffsetSpec.MAX_TIMESTAMP for tp in partitions):
                _require_max_timestamp(connection)
            request = _list_offsets({tp: places[tp] for tp in partitions})
            response = await self._exchange(trial, connection, request, ListOffsetsResponse)
            return {
                TopicPartition(topic.name, part.partition_index): (part.error_code, _place(part))
                for topic in response.topics
                for part in topic.partitions
            }

        return await self._at_leaders(places, ask, timeout=timeout, what="Listing offsets")


def _by_name(topics: Iterable[CreatableTopic]) -> dict[str, list[CreatableTopic]]:
    """The topics by name; who gives a name twice is refused by the broker."""
    named: dict[str, list[CreatableTopic]] = defaultdict(list)
    for topic in topics:
        named[topic.name].append(topic)
    return named


def _description(topic: _Told, nodes: Mapping[int, Node], *, operations: bool) -> TopicDescription:
    def known(ids: Iterable[int]) -> tuple[Node, ...]:
        return tuple(nodes.get(number) or Node(number, "", -1) for number in ids)

    def eligible(
        partition: MetadataResponsePartition | DescribeTopicPartitionsResponsePartition,
    ) -> tuple[tuple[Node, ...] | None, tuple[Node, ...] | None]:
        if isinstance(partition, MetadataResponsePartition):
            return None, None
        eligible, last = partition.eligible_leader_replicas, partition.last_known_elr
        return None if eligible is None else known(eligible), None if last is None else known(last)

    name = topic.name or ""
    described = {partition.partition_index: partition for partition in topic.partitions}
    partitions = tuple(
        PartitionInfo(
            topic=name,
            partition=partition.partition_index,
            leader=nodes.get(partition.leader_id),
            replicas=known(partition.replica_nodes),
            in_sync_replicas=known(partition.isr_nodes),
            offline_replicas=known(partition.offline_replicas),
            leader_epoch=partition.leader_epoch if partition.leader_epoch >= 0 else None,
            eligible_leader_replicas=eligible(partition)[0],
            last_known_elr=eligible(partition)[1],
        )
        for _, partition in sorted(described.items())
    )
    return TopicDescription(
        name,
        topic_id_text(topic.topic_id),
        topic.is_internal,
        partitions,
        operations_in(topic.topic_authorized_operations) if operations else None,
    )


def _list_offsets(wanted: Mapping[TopicPartition, OffsetSpec | int]) -> ListOffsetsRequest:
    by_topic: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for tp, place in wanted.items():
        timestamp = place.value if isinstance(place, OffsetSpec) else place
        by_topic[tp.topic].append(ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp))
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
    )


def _place(found: ListOffsetsPartitionResponse) -> OffsetAndTimestamp | None:
    if found.offset < 0:
        return None
    return OffsetAndTimestamp(found.offset, found.timestamp, found.leader_epoch if found.leader_epoch >= 0 else None)


def _require_max_timestamp(connection: Connection) -> None:
    if version_for(connection, ListOffsetsRequest) < 7:
        raise UnsupportedVersionError(
            f"{connection.address}: OffsetSpec.MAX_TIMESTAMP needs ListOffsets version 7, which Kafka 3.0 brought"
        )


def _outcomes(results: Iterable[tuple[str, int, str | None]]) -> dict[str, Outcome]:
    return {name: failure(code, f"Topic {shown(name)}", message) for name, code, message in results}


def _failures(results: Iterable[tuple[str, int, str | None]]) -> dict[str, KafkaError]:
    failures: dict[str, KafkaError] = {}
    for name, code, message in results:
        error = failure(code, f"Topic {shown(name)}", message)
        if error is not None:
            failures[name] = error
    return failures
