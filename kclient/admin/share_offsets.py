"""Offsets of share groups: list, alter, delete (KIP-932)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from kclient.admin.answers import LateAnswers, check_code, failure, left_out, row_of
from kclient.admin.arguments import check_group
from kclient.admin.groups import GroupOperations
from kclient.admin.share_offset_types import SharePartitionOffset
from kclient.admin.types import raise_failures
from kclient.arguments import as_names, as_offset, as_partitions, by_partition, shown
from kclient.cluster import Trial
from kclient.errors import KafkaError, UnknownTopicOrPartitionError
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
)
from kclient.types import Node, Partition, TopicPartition, WholeNumbers


class ShareOffsetOperations(GroupOperations):
    """The admin client's calls about offsets of share groups."""

    async def list_share_group_offsets(
        self, group_id: str, partitions: Iterable[Partition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, SharePartitionOffset]:
        """Where a share group stands: in these partitions, or in all that it reads or has read (KIP-932; Kafka 4.2).

        Of a group that does not exist, or is no share group, brokers tell nothing, and neither does this.

        Args:
            group_id: the group.
            partitions: which; None for all. Those in which it has not begun, or that do not exist, are left out.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            GroupAuthorizationError: this user may not describe the group.
            UnsupportedVersionError: the brokers have no share groups (Kafka 4.2 or newer has them).
            PartialFailureError: it is not known of several partitions.
            TypeError, ValueError: these are no partitions.
        """
        check_group(group_id)
        what = f"Listing the offsets of share group {shown(group_id)}"
        chosen = None if partitions is None else list(dict.fromkeys(as_partitions(partitions)))
        with self._steps(timeout, what) as left:
            if chosen is not None:
                # Kafka 4.3 never answers a request about a partition that a topic does not have
                chosen = await self._existing(chosen, left())
                if not chosen:
                    self._check()
                    return {}
            answer = await self._share_group_offsets(group_id, chosen, left(), what)
        asked = None if chosen is None else set(chosen)
        found: dict[TopicPartition, SharePartitionOffset] = {}
        failures: dict[str, KafkaError] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.topic_name, row.partition_index)
                if asked is not None and tp not in asked:
                    continue  # nobody asked for that
                error = failure(row.error_code, f"Group {shown(group_id)}, {tp}", row.error_message)
                if error is not None:
                    failures[str(tp)] = error
                elif row.start_offset >= 0:
                    found[tp] = SharePartitionOffset(
                        row.start_offset,
                        row.leader_epoch if row.leader_epoch >= 0 else None,
                        row.lag if row.lag >= 0 else None,
                    )
        raise_failures(what, failures, found)
        return dict(sorted(found.items()))

    async def _share_group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None, timeout: float, what: str
    ) -> DescribeShareGroupOffsetsResponseGroup:
        topics: list[DescribeShareGroupOffsetsRequestTopic] | None = None
        if partitions is not None:
            by_topic: dict[str, list[int]] = defaultdict(list)
            for tp in partitions:
                by_topic[tp.topic].append(tp.partition)
            topics = [
                DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
                for name, numbers in by_topic.items()
            ]
        group = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)

        subject = f"Group {shown(group_id)}"

        def described(answer: DescribeShareGroupOffsetsResponse) -> DescribeShareGroupOffsetsResponseGroup:
            return row_of(answer.groups, lambda row: row.group_id == group_id, subject)

        def check(answer: DescribeShareGroupOffsetsResponse) -> None:
            check_code(described(answer).error_code, subject, described(answer).error_message)

        async def ask(
            trial: Trial, connection: Connection, coordinator: Node
        ) -> DescribeShareGroupOffsetsResponseGroup:
            response = await self._exchange(
                trial,
                connection,
                DescribeShareGroupOffsetsRequest(groups=[group]),
                DescribeShareGroupOffsetsResponse,
                check=check,
            )
            return described(response)

        return await self._at_coordinator(group_id, ask, timeout=timeout, what=what)

    async def alter_share_group_offsets(
        self, group_id: str, offsets: WholeNumbers, *, timeout: float | None = None
    ) -> None:
        """Has a share group without members go on elsewhere (KIP-932; Kafka 4.2).

        Args:
            group_id: the group; it is made where there is none of this name.
            offsets: the first offset to read of each partition; of the others nothing changes.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            GroupNotEmptyError: the group has members; stop them first.
            GroupIdNotFoundError: it is no share group.
            UnknownTopicOrPartitionError: there is no such partition.
            GroupAuthorizationError: this user may not read with the group.
            UnsupportedVersionError: the brokers have no share groups (Kafka 4.2 or newer has them).
            PartialFailureError: several were refused; the others are altered.
            TypeError, ValueError: these are no offsets by partition.
        """
        check_group(group_id)
        what = f"Altering the offsets of share group {shown(group_id)}"
        wanted = by_partition(offsets, lambda offset: as_offset(offset, "begin at").offset, "offsets")
        by_topic: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = defaultdict(list)
        for tp, offset in wanted.items():
            by_topic[tp.topic].append(
                AlterShareGroupOffsetsRequestPartition(partition_index=tp.partition, start_offset=offset)
            )
        request = AlterShareGroupOffsetsRequest(
            group_id=group_id,
            topics=[
                AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=rows) for name, rows in by_topic.items()
            ],
        )

        async def ask(trial: Trial, connection: Connection, coordinator: Node) -> AlterShareGroupOffsetsResponse:
            return await self._exchange(
                trial,
                connection,
                request,
                AlterShareGroupOffsetsResponse,
                check=lambda answer: check_code(answer.error_code, f"Group {shown(group_id)}", answer.error_message),
            )

        if not wanted:
            self._check()
            return
        response = await self._at_coordinator(group_id, ask, timeout=timeout, what=what)
        failures: dict[str, KafkaError] = {}
        told: set[TopicPartition] = set()
        for topic in response.responses:
            for row in topic.partitions:
                tp = TopicPartition(topic.topic_name, row.partition_index)
                told.add(tp)
                error = failure(row.error_code, f"Group {shown(group_id)}, {tp}", row.error_message)
                if error is not None:
                    failures[str(tp)] = error
        raise_failures(what, {**failures, **left_out(wanted, told)})

    async def delete_share_group_offsets(
        self, group_id: str, topics: Collection[str], *, timeout: float | None = None
    ) -> None:
        """Has a share group without members forget where it stands in topics (KIP-932; Kafka 4.2).

        Should it read them again, it begins where its setting `share.auto.offset.reset` says.

        Args:
            group_id: the group.
            topics: the names of the topics.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            GroupNotEmptyError: the group has members; stop them first.
            GroupIdNotFoundError: there is no such group, or it is no share group.
            UnknownTopicOrPartitionError: there is no such topic, or the group has nothing of it to forget; the text
                says so where an unanswered attempt may have done it.
            GroupAuthorizationError: this user may not delete what the group has.
            UnsupportedVersionError: the brokers have no share groups (Kafka 4.2 or newer has them).
            PartialFailureError: several were refused; the others are forgotten.
            TypeError, ValueError: these are no names in a list.
        """
        check_group(group_id)
        what = f"Deleting offsets of share group {shown(group_id)}"
        names = list(dict.fromkeys(as_names(topics, "topics")))
        request = DeleteShareGroupOffsetsRequest(
            group_id=group_id, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
        )

        attempts = LateAnswers(UnknownTopicOrPartitionError)

        def check(answer: DeleteShareGroupOffsetsResponse) -> None:
            check_code(answer.error_code, f"Group {shown(group_id)}", answer.error_message)

        async def ask(trial: Trial, connection: Connection, coordinator: Node) -> DeleteShareGroupOffsetsResponse:
            with attempts.one():
                return await self._exchange(trial, connection, request, DeleteShareGroupOffsetsResponse, check=check)

        if not names:
            self._check()
            return
        response = await self._at_coordinator(group_id, ask, timeout=timeout, what=what)
        errors = {
            row.topic_name: failure(
                row.error_code, f"Group {shown(group_id)}, topic {shown(row.topic_name)}", row.error_message
            )
            for row in response.responses
        }
        refused = {name: attempts.hinted(error) for name, error in errors.items() if error is not None}
        raise_failures(what, {**refused, **left_out(names, errors)})
