"""Groups: list, describe, delete; their offsets: list, alter, reset, delete; their lag."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kclient.admin.answers import LateAnswers, check_code, check_retriable, failure, left_out, row_of
from kclient.admin.arguments import as_target, check_group
from kclient.admin.base import is_missing
from kclient.admin.describing import KINDS, SHARE, is_served
from kclient.admin.listing import Listing
from kclient.admin.topics import TopicOperations
from kclient.admin.types import (
    GroupDescription,
    GroupListing,
    OffsetReset,
    OffsetSpec,
    PartitionLag,
    raise_failures,
)
from kclient.arguments import as_names, as_offset, as_partitions, by_partition, check_flag, shown
from kclient.cluster import Trial, version_for
from kclient.errors import (
    ErrorCode,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    KafkaError,
    NotYetSupportedError,
    UnsupportedVersionError,
    error_for,
)
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
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
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from kclient.types import Node, OffsetAndMetadata, Offsets, Partition, TopicPartition, WholeNumbers

# Later versions name topics by id only; names serve every broker.
_LAST_VERSION_WITH_NAMES = 9
_FIRST_WITH_STABLE = 7
"""The first version of OffsetFetch that waits for transactions (KIP-447)."""
_ANOTHER_KIND = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
"""What brokers answer of a group that is not of the type that they are asked for; the other where they have no such
groups."""

_COORDINATOR_PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""What coordinators answer of an offset that another attempt may cure. (A partition that is unknown, which is retriable
elsewhere, stays unknown.)"""


class GroupOperations(TopicOperations):
    """The admin client's calls about groups."""

    async def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = (), timeout: float | None = None
    ) -> Listing[GroupListing]:
        """Every group of the cluster, sorted by name.

        A broker that does not answer in time keeps nobody from hearing of the others' groups: a warning is logged, and
        `Listing.errors` tells why.

        Args:
            states: only groups in one of these states, such as "Stable" or "Empty" (KIP-518).
            types: only groups of one of these types, such as "classic" (KIP-848).
            timeout: seconds; the default is `default.api.timeout.ms`.
        """
        wanted_states = as_names(states, "states")
        wanted_types = as_names(types, "types")

        async def ask(trial: Trial, connection: Connection, node_id: int) -> list[GroupListing]:
            response = await self._exchange(
                trial,
                connection,
                ListGroupsRequest(states_filter=wanted_states, types_filter=wanted_types),
                ListGroupsResponse,
                check=lambda answer: check_code(answer.error_code, f"Broker {node_id}"),
            )
            return [
                GroupListing(group.group_id, group.protocol_type, group.group_state, group.group_type)
                for group in response.groups
            ]

        what = "Listing groups"
        listed, errors = await self._at_every_broker(ask, timeout=timeout, what=what)
        found = {group.group_id: group for groups in listed.values() for group in groups}
        return Listing(what, (found[name] for name in sorted(found)), errors)

    async def describe_groups(
        self, group_ids: Collection[str], *, include_authorized_operations: bool = False, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        """Groups with their members and what these are assigned; groups of every type (see `GroupDescription.type`).

        Args:
            group_ids: which.
            include_authorized_operations: tell also what this user may do with each (KIP-430; Kafka 2.3).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            GroupIdNotFoundError: there is no such group.
            UnsupportedVersionError: the broker is too old to tell the operations.
            PartialFailureError: several groups are unknown.
            TypeError: the names are not a list of strings.
        """
        check_flag(include_authorized_operations, "include_authorized_operations")
        described: dict[str, GroupDescription] = {}

        async def describe(group_id: str) -> None:
            described[group_id] = await self._describe_group(group_id, timeout, include_authorized_operations)

        await self._each_named(as_names(group_ids, "groups", empty=True), describe, "Describing groups", described)
        return described

    async def _describe_group(self, group_id: str, timeout: float | None, operations: bool = False) -> GroupDescription:
        async def ask(trial: Trial, connection: Connection, coordinator: Node) -> GroupDescription:
            subject = f"Group {shown(group_id)}"
            missing: KafkaError | None = None

            def described(answer: Any) -> Any:
                return row_of(answer.groups, lambda row: row.group_id == group_id, subject)

            for kind in KINDS:
                request = kind.request(group_id, operations)
                if kind is not KINDS[0] and not is_served(connection, type(request)):
                    continue
                response: Any = await self._exchange(
                    trial,
                    connection,
                    request,
                    kind.response,
                    check=lambda answer: check_retriable(described(answer).error_code, subject),
                )
                group = described(response)
                if group.error_code == ErrorCode.NONE and group.group_state != "Dead":
                    return kind.description(group, coordinator)
                error = failure(group.error_code, subject, group.error_message)
                if error is not None and error.code not in _ANOTHER_KIND:
                    raise error
                if isinstance(error, GroupIdNotFoundError):
                    missing = missing or error
            raise missing or GroupIdNotFoundError(f"{subject} does not exist")

        return await self._at_coordinator(group_id, ask, timeout=timeout, what=f"Describing group {shown(group_id)}")

    async def delete_groups(self, group_ids: Collection[str], *, timeout: float | None = None) -> None:
        """Deletes groups and their offsets.

        Raises:
            GroupNotEmptyError: the group has members; stop them first.
            GroupIdNotFoundError: there is none; the text says so where an unanswered attempt may have deleted it.
            PartialFailureError: several could not be deleted; the others were.
            TypeError: the names are not a list of strings.
        """
        names = as_names(group_ids, "groups", empty=True)
        await self._each_named(names, lambda group_id: self._delete_group(group_id, timeout), "Deleting groups")

    async def _delete_group(self, group_id: str, timeout: float | None) -> None:
        subject, attempts = f"Group {shown(group_id)}", LateAnswers(GroupIdNotFoundError)

        def check(answer: DeleteGroupsResponse) -> None:
            check_code(row_of(answer.results, lambda row: row.group_id == group_id, subject).error_code, subject)

        async def ask(trial: Trial, connection: Connection, coordinator: Node) -> None:
            request = DeleteGroupsRequest(groups_names=[group_id])
            with attempts.one():
                await self._exchange(trial, connection, request, DeleteGroupsResponse, check=check)

        await self._at_coordinator(group_id, ask, timeout=timeout, what=f"Deleting group {shown(group_id)}")

    async def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[Partition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed: of these partitions, or of all.

        Args:
            group_id: the group.
            partitions: which; None for all that have an offset.
            require_stable: wait for transactions that are about to commit offsets of these partitions (KIP-447).
                Without `partitions` brokers wait for those only that have an offset already.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            KafkaTimeoutError: such a transaction is still open after `timeout`, or no broker has answered.
            UnsupportedVersionError: the broker is older than Kafka 2.5, and `require_stable` is set.
            TypeError: these are not partitions.
        """
        check_group(group_id)
        chosen = None if partitions is None else set(as_partitions(partitions))
        by_topic: dict[str, list[int]] = defaultdict(list)
        for tp in sorted(chosen or ()):
            by_topic[tp.topic].append(tp.partition)

        async def ask(
            trial: Trial, connection: Connection, coordinator: Node
        ) -> dict[TopicPartition, OffsetAndMetadata]:
            version = version_for(connection, OffsetFetchRequest, _LAST_VERSION_WITH_NAMES)
            if require_stable and version < _FIRST_WITH_STABLE:
                raise UnsupportedVersionError(f"{connection.address} cannot wait for stable offsets (Kafka 2.5 can)")
            request = OffsetFetchRequest(require_stable=require_stable)
            named = require_stable and chosen is not None  # of the others it is not told what is pending
            if version >= 8:
                topics = [
                    OffsetFetchRequestTopics(name=name, partition_indexes=which) for name, which in by_topic.items()
                ]
                request.groups = [OffsetFetchRequestGroup(group_id=group_id, topics=topics if named else None)]
            else:
                older = [
                    OffsetFetchRequestTopic(name=name, partition_indexes=which) for name, which in by_topic.items()
                ]
                request.group_id = group_id
                request.topics = older if named else None
            found: dict[TopicPartition, OffsetAndMetadata] = {}
            await self._exchange(
                trial,
                connection,
                request,
                OffsetFetchResponse,
                check=lambda answer: found.update(_committed(answer, group_id, version)),
                max_version=_LAST_VERSION_WITH_NAMES,
            )
            return found

        committed = await self._at_coordinator(
            group_id, ask, timeout=timeout, what=f"Listing the offsets of group {shown(group_id)}"
        )
        wanted = committed if chosen is None else chosen
        return {tp: offset for tp, offset in sorted(committed.items()) if tp in wanted}

    async def alter_group_offsets(self, group_id: str, offsets: Offsets, *, timeout: float | None = None) -> None:
        """Commits offsets in the group's name; the group must have no members.

        Raises:
            GroupNotEmptyError: the group has members, which would not notice; stop them first.
            UnknownTopicOrPartitionError: there is no such partition.
            PartialFailureError: several offsets were refused; the others are committed.
            TypeError: a partition or an offset is none.
            ValueError: an offset is negative.
        """
        check_group(group_id)
        wanted = by_partition(offsets, as_offset, "offsets")
        patience_ends = self._patience_ends(timeout)

        def check(answer: OffsetCommitResponse) -> None:
            again = _COORDINATOR_PASSING
            if self._cluster.clock() < patience_ends:  # the coordinator may learn of a new topic a moment later
                again |= {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            _check_offset_codes("Altering offsets", group_id, wanted, answer.topics, again)

        async def ask(trial: Trial, connection: Connection, coordinator: Node) -> None:
            await self._exchange(
                trial,
                connection,
                OffsetCommitRequest(group_id=group_id, topics=_to_commit(wanted)),
                OffsetCommitResponse,
                check=check,
                max_version=_LAST_VERSION_WITH_NAMES,
            )

        if wanted:
            await self._at_coordinator(
                group_id, ask, timeout=timeout, what=f"Altering the offsets of group {shown(group_id)}"
            )

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition], *, timeout: float | None = None
    ) -> None:
        """Forgets what the group committed of these partitions.

        Raises:
            GroupSubscribedToTopicError: members of the group read the topic.
            GroupIdNotFoundError: there is no such group.
            UnknownTopicOrPartitionError: there is no such partition.
            PartialFailureError: several could not be deleted; the others are.
            TypeError: these are not partitions.
        """
        check_group(group_id)
        wanted = as_partitions(partitions)

        def check(answer: OffsetDeleteResponse) -> None:
            check_code(answer.error_code, f"Group {shown(group_id)}")
            _check_offset_codes("Deleting offsets", group_id, wanted, answer.topics, _COORDINATOR_PASSING)

        async def ask(trial: Trial, connection: Connection, coordinator: Node) -> None:
            by_topic: dict[str, list[OffsetDeleteRequestPartition]] = defaultdict(list)
            for tp in wanted:
                by_topic[tp.topic].append(OffsetDeleteRequestPartition(partition_index=tp.partition))
            request = OffsetDeleteRequest(
                group_id=group_id,
                topics=[OffsetDeleteRequestTopic(name=name, partitions=parts) for name, parts in by_topic.items()],
            )
            await self._exchange(trial, connection, request, OffsetDeleteResponse, check=check)

        await self._at_coordinator(group_id, ask, timeout=timeout, what=f"Deleting offsets of group {shown(group_id)}")

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
            partitions: which; the default is all that the group has committed and that exist.
            dry_run: say what would be done and do nothing.
            timeout: seconds for all of it; the default is `default.api.timeout.ms`.

        Returns:
            The offsets before and after.

        Raises:
            GroupNotEmptyError: the group has members; stop them first.
            NotYetSupportedError: it is a share group, which commits no offsets.
            TypeError: the target or a partition is none.
            ValueError: an offset or the timestamp is negative.
        """
        check_group(group_id)
        place = as_target(target)
        chosen = None if partitions is None else as_partitions(partitions)
        with self._steps(timeout, f"Resetting the offsets of group {shown(group_id)}") as left:
            if not dry_run:
                await self._check_empty(group_id, left())
            before = await self.list_group_offsets(group_id, timeout=left())
            if chosen is None and not isinstance(place, dict):
                chosen = await self._existing(before, left())
            after = await self._targets(place, chosen or (), left)
            if not dry_run:
                await self.alter_group_offsets(group_id, after, timeout=left())
        return {
            tp: OffsetReset(before[tp].offset if tp in before else None, offset) for tp, offset in sorted(after.items())
        }

    async def _check_empty(self, group_id: str, timeout: float) -> None:
        try:
            description = await self._describe_group(group_id, timeout)
        except GroupIdNotFoundError:
            return  # a group that never was may be given offsets to begin at
        _check_has_offsets(description)
        if description.members:
            raise GroupNotEmptyError(
                f"Group {shown(group_id)} has {len(description.members)} members, whose commits would undo the reset:"
                " stop them first"
            )

    async def _targets(
        self,
        target: OffsetSpec | int | dict[TopicPartition, int],
        partitions: Iterable[TopicPartition],
        left: Callable[[], float],
    ) -> dict[TopicPartition, int]:
        if isinstance(target, dict):
            return target
        found = await self.list_offsets(dict.fromkeys(partitions, target), timeout=left())
        beyond = [tp for tp, place in found.items() if place is None]
        ends = await self.list_offsets(dict.fromkeys(beyond, OffsetSpec.LATEST), timeout=left()) if beyond else {}
        return {tp: place.offset for tp, place in {**found, **ends}.items() if place is not None}

    async def _existing(self, partitions: Iterable[TopicPartition], timeout: float) -> list[TopicPartition]:
        """Those of the partitions that exist: a group may have committed offsets of others before they were deleted."""
        wanted = list(partitions)

        async def attempt(trial: Trial) -> list[TopicPartition]:
            snapshot = await self._cluster.refresh({tp.topic for tp in wanted})
            return [tp for tp in wanted if not is_missing(snapshot, tp)]

        return await self._retrying(attempt, timeout, "Looking up partitions") if wanted else []

    async def group_lag(self, group_id: str, *, timeout: float | None = None) -> dict[TopicPartition, PartitionLag]:
        """How far the group is behind, for every partition it has committed or is assigned.

        Of one that does not exist (any more), `end` and `lag` are None.

        Raises:
            GroupIdNotFoundError: there is no such group.
            NotYetSupportedError: it is a share group, which commits no offsets.
        """
        check_group(group_id)
        with self._steps(timeout, f"Finding the lag of group {shown(group_id)}") as left:
            description = await self._describe_group(group_id, left())
            _check_has_offsets(description)
            owners = {tp: member for member in description.members for tp in member.assignment}
            committed = await self.list_group_offsets(group_id, timeout=left())
            partitions = sorted({*owners, *committed})
            existing = await self._existing(partitions, left())
            ends = await self.list_offsets(dict.fromkeys(existing, OffsetSpec.LATEST), timeout=left())
        lags: dict[TopicPartition, PartitionLag] = {}
        for tp in partitions:
            end, position = ends.get(tp), committed.get(tp)
            lags[tp] = PartitionLag(
                None if position is None else position.offset, None if end is None else end.offset, owners.get(tp)
            )
        return lags


def _check_has_offsets(group: GroupDescription) -> None:
    if group.type == SHARE:
        raise NotYetSupportedError(
            f"Group {shown(group.group_id)} is a share group (KIP-932): it commits no offsets, but acknowledges records"
        )


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


def _committed(response: OffsetFetchResponse, group_id: str, version: int) -> dict[TopicPartition, OffsetAndMetadata]:
    if version >= 8:
        group = row_of(response.groups, lambda row: row.group_id == group_id, f"Group {shown(group_id)}")
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
    what: str,
    group_id: str,
    wanted: Iterable[TopicPartition],
    topics: Iterable[OffsetCommitResponseTopic | OffsetDeleteResponseTopic],
    again: Collection[int],
) -> None:
    """Raises what became of offsets; for a code in `again`, so that another attempt is made."""
    failures: dict[str, KafkaError] = {}
    told: set[TopicPartition] = set()
    for topic in topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            told.add(tp)
            error = failure(part.error_code, f"Group {shown(group_id)}, {tp}")
            if error is not None:
                if part.error_code in again:
                    raise error
                error.retriable = False
                failures[str(tp)] = error
    raise_failures(what, {**failures, **left_out(wanted, told)})
