"""Groups: list, describe, delete; their offsets: list, alter, reset, delete; their lag."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from kclient.admin.base import check_retriable, failure
from kclient.admin.topics import TopicOperations
from kclient.admin.types import (
    GroupDescription,
    GroupListing,
    GroupMember,
    OffsetReset,
    OffsetSpec,
    PartitionLag,
    raise_failures,
)
from kclient.arguments import as_names, as_offset, as_partitions, by_partition, check_timeout, whole_number
from kclient.cluster import version_for
from kclient.errors import GroupIdNotFoundError, GroupNotEmptyError, KafkaError, ProtocolError, error_for
from kclient.net.connection import Connection
from kclient.protocol.embedded import decode_embedded
from kclient.protocol.messages import (
    ConsumerProtocolAssignment,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from kclient.types import Node, OffsetAndMetadata, Offsets, Partition, TopicPartition, WholeNumbers

# Later versions name topics by id only; names serve every broker.
_LAST_VERSION_WITH_NAMES = 9


class GroupOperations(TopicOperations):
    """The admin client's calls about groups."""

    async def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = (), timeout: float | None = None
    ) -> list[GroupListing]:
        """Every group of the cluster, sorted by name.

        Args:
            states: only groups in one of these states, such as "Stable" or "Empty" (KIP-518).
            types: only groups of one of these types, such as "classic" (KIP-848).
            timeout: seconds; the default is `default.api.timeout.ms`.
        """
        wanted_states = as_names(states, "states")
        wanted_types = as_names(types, "types")
        check_timeout(timeout)
        self._check()
        await self._cluster.refresh(timeout=timeout)
        found: dict[str, GroupListing] = {}
        for node_id in list(self._cluster.snapshot.nodes):
            request = ListGroupsRequest(states_filter=wanted_states, types_filter=wanted_types)
            response = await self._ask_node(node_id, request, ListGroupsResponse, timeout, "Listing groups")
            error = failure(response.error_code, f"Broker {node_id}")
            if error is not None:
                raise error
            for group in response.groups:
                found[group.group_id] = GroupListing(
                    group.group_id, group.protocol_type, group.group_state, group.group_type
                )
        return [found[name] for name in sorted(found)]

    async def describe_groups(
        self, group_ids: Collection[str], *, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        """Groups with their members and what these are assigned.

        Raises:
            GroupIdNotFoundError: there is no such group.
            PartialFailureError: several groups are unknown.
            TypeError: the names are no list of strings.
        """
        described: dict[str, GroupDescription] = {}
        failures: dict[str, KafkaError] = {}
        for group_id in as_names(group_ids, "groups", empty=True):
            try:
                described[group_id] = await self._describe_group(group_id, timeout)
            except KafkaError as error:
                failures[group_id] = error
        raise_failures("Describing groups", failures)
        return described

    async def _describe_group(self, group_id: str, timeout: float | None) -> GroupDescription:
        async def ask(connection: Connection, coordinator: Node) -> GroupDescription:
            request = DescribeGroupsRequest(groups=[group_id])
            response = await self._cluster.request_on(connection, request, response=DescribeGroupsResponse)
            (group,) = response.groups
            error = failure(group.error_code, f"Group {group_id!r}", group.error_message)
            if error is not None:
                raise error
            if group.group_state == "Dead":
                raise GroupIdNotFoundError(f"Group {group_id!r} does not exist")
            return _description(group, coordinator)

        return await self._at_coordinator(group_id, ask, timeout=timeout, what=f"Describing group {group_id!r}")

    async def delete_groups(self, group_ids: Collection[str], *, timeout: float | None = None) -> None:
        """Deletes groups and their offsets.

        Raises:
            GroupNotEmptyError: the group has members; stop them first.
            GroupIdNotFoundError: there is no such group.
            PartialFailureError: several could not be deleted; the others were.
            TypeError: the names are no list of strings.
        """
        failures: dict[str, KafkaError] = {}
        for group_id in as_names(group_ids, "groups", empty=True):
            try:
                await self._delete_group(group_id, timeout)
            except KafkaError as error:
                failures[group_id] = error
        raise_failures("Deleting groups", failures)

    async def _delete_group(self, group_id: str, timeout: float | None) -> None:
        async def ask(connection: Connection, coordinator: Node) -> None:
            request = DeleteGroupsRequest(groups_names=[group_id])
            response = await self._cluster.request_on(connection, request, response=DeleteGroupsResponse)
            error = failure(response.results[0].error_code, f"Group {group_id!r}")
            if error is not None:
                raise error

        await self._at_coordinator(group_id, ask, timeout=timeout, what=f"Deleting group {group_id!r}")

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[Partition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed: of these partitions, or of all.

        Raises:
            TypeError: these are no partitions.
        """
        chosen = None if partitions is None else set(as_partitions(partitions))

        async def ask(connection: Connection, coordinator: Node) -> dict[TopicPartition, OffsetAndMetadata]:
            version = version_for(connection, OffsetFetchRequest, _LAST_VERSION_WITH_NAMES)
            request = OffsetFetchRequest()
            if version >= 8:
                request.groups = [OffsetFetchRequestGroup(group_id=group_id, topics=None)]
            else:
                request.group_id = group_id
                request.topics = None
            response = await self._cluster.request_on(
                connection, request, response=OffsetFetchResponse, max_version=_LAST_VERSION_WITH_NAMES
            )
            return _committed(response, version)

        committed = await self._at_coordinator(
            group_id, ask, timeout=timeout, what=f"Listing the offsets of group {group_id!r}"
        )
        wanted = committed if chosen is None else chosen
        return {tp: offset for tp, offset in sorted(committed.items()) if tp in wanted}

    async def alter_group_offsets(self, group_id: str, offsets: Offsets, *, timeout: float | None = None) -> None:
        """Commits offsets in the group's name; the group must have no members.

        Raises:
            GroupNotEmptyError: the group has members, which would not notice; stop them first.
            TypeError: a partition or an offset is none.
            ValueError: an offset is negative.
        """
        wanted = by_partition(offsets, as_offset, "offsets")

        async def ask(connection: Connection, coordinator: Node) -> None:
            request = OffsetCommitRequest(group_id=group_id, topics=_to_commit(wanted))
            response = await self._cluster.request_on(
                connection, request, response=OffsetCommitResponse, max_version=_LAST_VERSION_WITH_NAMES
            )
            _check_offset_codes("Altering offsets", group_id, response.topics)

        if wanted:
            await self._at_coordinator(
                group_id, ask, timeout=timeout, what=f"Altering the offsets of group {group_id!r}"
            )

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition], *, timeout: float | None = None
    ) -> None:
        """Forgets what the group committed of these partitions.

        Raises:
            GroupSubscribedToTopicError: members of the group read the topic.
            GroupIdNotFoundError: there is no such group.
            TypeError: these are no partitions.
        """
        wanted = as_partitions(partitions)

        async def ask(connection: Connection, coordinator: Node) -> None:
            by_topic: dict[str, list[OffsetDeleteRequestPartition]] = defaultdict(list)
            for tp in wanted:
                by_topic[tp.topic].append(OffsetDeleteRequestPartition(partition_index=tp.partition))
            request = OffsetDeleteRequest(
                group_id=group_id,
                topics=[OffsetDeleteRequestTopic(name=name, partitions=parts) for name, parts in by_topic.items()],
            )
            response = await self._cluster.request_on(connection, request, response=OffsetDeleteResponse)
            error = failure(response.error_code, f"Group {group_id!r}")
            if error is not None:
                raise error
            _check_offset_codes("Deleting offsets", group_id, response.topics)

        await self._at_coordinator(group_id, ask, timeout=timeout, what=f"Deleting offsets of group {group_id!r}")

    async def reset_group_offsets(
        self,
        group_id: str,
        target: OffsetSpec | int | WholeNumbers,
        partitions: Iterable[Partition] | None = None,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetReset]:
        """Moves a group that has no members to another place.

        Args:
            group_id: the group.
            target: an `OffsetSpec`; a timestamp in milliseconds (the first record at or after it, or the end
                where there is none); or an offset for each partition.
            partitions: which; the default is all that the group has committed.
            dry_run: say what would be done and do nothing.
            timeout: seconds for each step; the default is `default.api.timeout.ms`.

        Returns:
            The offsets before and after.

        Raises:
            GroupNotEmptyError: the group has members; stop them first.
            TypeError: the target or a partition is none.
            ValueError: an offset is negative.
        """
        place = _as_target(target)
        chosen = None if partitions is None else as_partitions(partitions)
        if not dry_run:
            await self._check_empty(group_id, timeout)
        before = await self.list_group_offsets(group_id, timeout=timeout)
        after = await self._targets(place, list(before) if chosen is None else chosen, timeout)
        if not dry_run:
            await self.alter_group_offsets(group_id, after, timeout=timeout)
        return {
            tp: OffsetReset(before[tp].offset if tp in before else None, offset) for tp, offset in sorted(after.items())
        }

    async def _check_empty(self, group_id: str, timeout: float | None) -> None:
        try:
            description = await self._describe_group(group_id, timeout)
        except GroupIdNotFoundError:
            return  # a group that never was may be given offsets to begin at
        if description.members:
            raise GroupNotEmptyError(
                f"Group {group_id!r} has {len(description.members)} members, whose commits would undo the reset:"
                " stop them first"
            )

    async def _targets(
        self,
        target: OffsetSpec | int | dict[TopicPartition, int],
        partitions: Iterable[TopicPartition],
        timeout: float | None,
    ) -> dict[TopicPartition, int]:
        if isinstance(target, dict):
            return target
        found = await self.list_offsets(dict.fromkeys(partitions, target), timeout=timeout)
        beyond = [tp for tp, place in found.items() if place is None]
        ends = await self.list_offsets(dict.fromkeys(beyond, OffsetSpec.LATEST), timeout=timeout) if beyond else {}
        return {tp: place.offset for tp, place in {**found, **ends}.items() if place is not None}

    async def group_lag(self, group_id: str, *, timeout: float | None = None) -> dict[TopicPartition, PartitionLag]:
        """How far the group is behind, for every partition it has committed or is assigned.

        Raises:
            GroupIdNotFoundError: there is no such group.
        """
        description = await self._describe_group(group_id, timeout)
        owners = {tp: member for member in description.members for tp in member.assignment}
        committed = await self.list_group_offsets(group_id, timeout=timeout)
        partitions = sorted({*owners, *committed})
        ends = await self.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), timeout=timeout)
        lags: dict[TopicPartition, PartitionLag] = {}
        for tp in partitions:
            end, position = ends[tp], committed.get(tp)
            lags[tp] = PartitionLag(
                None if position is None else position.offset, 0 if end is None else end.offset, owners.get(tp)
            )
        return lags


def _description(group: DescribeGroupsResponseDescribedGroup, coordinator: Node) -> GroupDescription:
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _assigned(member.member_assignment) if group.protocol_type == "consumer" else (),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id, group.group_state, group.protocol_type, group.protocol_data, members, coordinator
    )


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    if not assignment:
        return ()
    try:
        decoded = decode_embedded(ConsumerProtocolAssignment, assignment)
    except ProtocolError:
        return ()  # members of a group may write there what they like
    return tuple(
        TopicPartition(topic.topic, number) for topic in decoded.assigned_partitions for number in topic.partitions
    )


def _as_target(target: OffsetSpec | int | WholeNumbers) -> OffsetSpec | int | dict[TopicPartition, int]:
    if isinstance(target, OffsetSpec):
        return target
    if isinstance(target, Mapping):
        return by_partition(target, lambda offset: as_offset(offset, "reset to").offset, "offsets")
    return whole_number(target, "a target that is neither an OffsetSpec nor a mapping of offsets")


def _to_commit(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[OffsetCommitRequestTopic]:
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for tp, offset in offsets.items():
        by_topic[tp.topic].append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return [OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in by_topic.items()]


def _committed(response: OffsetFetchResponse, version: int) -> dict[TopicPartition, OffsetAndMetadata]:
    if version >= 8:
        (group,) = response.groups
        code = group.error_code
        found: Iterable[tuple[str, Iterable[OffsetFetchResponsePartition | OffsetFetchResponsePartitions]]] = [
            (topic.name, topic.partitions) for topic in group.topics
        ]
    else:
        code = response.error_code
        found = [(topic.name, topic.partitions) for topic in response.topics]
    if code:
        raise error_for(code)
    committed: dict[TopicPartition, OffsetAndMetadata] = {}
    for name, partitions in found:
        for part in partitions:
            if part.error_code:
                raise error_for(part.error_code, f"{name}-{part.partition_index}: its offset cannot be read")
            if part.committed_offset >= 0:
                epoch = part.committed_leader_epoch if part.committed_leader_epoch >= 0 else None
                committed[TopicPartition(name, part.partition_index)] = OffsetAndMetadata(
                    part.committed_offset, part.metadata or "", epoch
                )
    return committed


def _check_offset_codes(
    what: str, group_id: str, topics: Iterable[OffsetCommitResponseTopic | OffsetDeleteResponseTopic]
) -> None:
    failures: dict[str, KafkaError] = {}
    for topic in topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            check_retriable(part.error_code, str(tp))
            error = failure(part.error_code, f"Group {group_id!r}, {tp}")
            if error is not None:
                failures[str(tp)] = error
    raise_failures(what, failures)
