"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders: partitions that are moved by hand.

A partition has one replica, at the gateway that leads it, so that to move it is to have it led by another one. As with
Kafka it is a matter of the cluster, and needs no right on the topics; and whoever is given a partition of Kafka's own
topics coordinates the groups, or transactional ids, that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar, Final, cast

from kclient.acls import AclOperation
from kclient.errors import (
    ElectionNotNeededError,
    ErrorCode,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    KafkaError,
    NoReassignmentInProgressError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.access import Access
from kclient.gateway.contexts import ConnectionContext, RequestContext
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.handlers._work import counted, rows_for, rows_of
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.leadership import Leadership
from kclient.gateway.moves_by_hand import MovesByHand
from kclient.gateway.releases import Releases
from kclient.gateway.topics.record import TopicRecord
from kclient.gateway.topics.table import TopicTable
from kclient.gateway.unit import Unit
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from kclient.protocol.registry import ApiKey

_PER_PARTITION: Final = 200
"""About how many bytes of memory a partition's row takes, with what is made for it."""
_PREFERRED, _UNCLEAN = 0, 1


def _partition(topics: TopicTable, name: str, index: int) -> TopicRecord:
    """The topic of a partition that there is; raises `KafkaError` otherwise."""
    record = topics.get(name) or topics.internal(name)
    if record is None or not 0 <= index < record.partitions:
        raise UnknownTopicOrPartitionError(f"the topic {name[:300]} has no partition {index}")
    return record


class AlterPartitionReassignmentsHandler(Handler):
    """Answers AlterPartitionReassignments."""

    API: ClassVar[ApiKey] = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    VERSIONS: ClassVar[VersionRange] = (0, 1)
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, access: Access, topics: TopicTable, leadership: Leadership, moves: MovesByHand) -> None:
        self._access = access
        self._topics = topics
        self._leadership = leadership
        self._moves = moves

    def begin(self, request: AlterPartitionReassignmentsRequest, context: RequestContext) -> Begun:
        """Moving waits for the manager."""
        self._access.check_cluster(context.connection, AclOperation.ALTER)
        sizes = rows_of((topic.partitions for topic in request.topics), _PER_PARTITION)
        return cast("Begun", counted(sizes, partial(self._finish, request, context.connection)))

    async def _finish(
        self, request: AlterPartitionReassignmentsRequest, client: ConnectionContext
    ) -> AlterPartitionReassignmentsResponse:
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change
        )
        pace = Pace(client.flow)
        moved: dict[Unit, int] = {}
        rows: list[ReassignablePartitionResponse] = []
        named: set[tuple[str, int]] = set()
        for topic in request.topics:
            await pace.pause()
            answer = ReassignableTopicResponse(name=topic.name)
            response.responses.append(answer)
            for partition in topic.partitions:
                await pace.pause()
                row = ReassignablePartitionResponse(partition_index=partition.partition_index)
                answer.partitions.append(row)
                try:
                    if (topic.name, partition.partition_index) in named:
                        raise InvalidRequestError("the request names this partition more than once")
                    named.add((topic.name, partition.partition_index))
                    record = _partition(self._topics, topic.name, partition.partition_index)
                    node_id = self._target(partition, may_change=request.allow_replication_factor_change)
                    unit = self._leadership.unit(record, partition.partition_index)
                    if moved.setdefault(unit, node_id) != node_id:
                        raise InvalidReplicaAssignmentError(
                            "all partitions of a topic with htp.mapping=virtual have one leader: name one broker"
                        )
                    rows.append(row)
                except KafkaError as error:
                    put_error(row, error, self.ROLE)
        if moved:
            try:
                await self._moves.move(moved)
            except KafkaError as error:
                for row in rows:
                    put_error(row, error, self.ROLE)
        return response

    def _target(self, partition: ReassignablePartition, *, may_change: bool) -> int:
        """The gateway that a partition is to be moved to."""
        replicas = partition.replicas
        if replicas is None:  # cancel
            raise NoReassignmentInProgressError("a move that has begun comes to its end by itself")
        if not replicas:
            raise InvalidReplicaAssignmentError("The manual partition assignment includes an empty replica list.")
        if len(set(replicas)) < len(replicas):
            raise InvalidReplicaAssignmentError("The manual partition assignment names a replica twice")
        unknown = next((each for each in replicas if not self._moves.serves(each)), None)
        if unknown is not None:
            raise InvalidReplicaAssignmentError(
                f"The manual partition assignment includes broker {unknown}, but no such broker is registered"
            )
        if len(replicas) > 1:
            text = "a partition has one replica, at the gateway that leads it: name one broker"
            raise InvalidReplicaAssignmentError(text) if may_change else InvalidReplicationFactorError(text)
        return replicas[0]


class ListPartitionReassignmentsHandler(Handler):
    """Answers ListPartitionReassignments."""

    API: ClassVar[ApiKey] = ApiKey.LIST_PARTITION_REASSIGNMENTS
    VERSIONS: ClassVar[VersionRange] = (0, 0)
    ROLE: ClassVar[Role] = Role.CONTROLLER
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, access: Access, topics: TopicTable, leadership: Leadership, releases: Releases) -> None:
        self._access = access
        self._topics = topics
        self._leadership = leadership
        self._releases = releases

    def begin(self, request: ListPartitionReassignmentsRequest, context: RequestContext) -> Begun:
        """What is handed over is read from the manager."""
        self._access.check_cluster(context.connection, AclOperation.DESCRIBE)
        sizes = rows_of((topic.partition_indexes for topic in request.topics or ()), _PER_PARTITION)
        return cast("Begun", counted(sizes, partial(self._finish, request, context.connection)))

    async def _finish(
        self, request: ListPartitionReassignmentsRequest, client: ConnectionContext
    ) -> ListPartitionReassignmentsResponse:
        response = ListPartitionReassignmentsResponse()
        held_by = await self._releases.unfinished()
        pace = Pace(client.flow)
        for record, indexes in self._asked(request):
            await pace.pause()
            if record is None:
                continue
            topic = OngoingTopicReassignment(name=record.name)
            for index in indexes:
                await pace.pause()
                if not 0 <= index < record.partitions:
                    continue
                before = held_by(self._leadership.unit(record, index))
                leader = self._leadership.leader(record, index).node_id
                if before is not None and before != leader:
                    topic.partitions.append(
                        OngoingPartitionReassignment(
                            partition_index=index,
                            replicas=[leader, before],
                            adding_replicas=[leader],
                            removing_replicas=[before],
                        )
                    )
            if topic.partitions:
                response.topics.append(topic)
        return response

    def _asked(self, request: ListPartitionReassignmentsRequest) -> Iterator[tuple[TopicRecord | None, Iterable[int]]]:
        named: Iterable[tuple[str, Iterable[int] | None]]
        if request.topics is None:
            named = ((name, None) for name in list(self._topics.told()))
        else:
            named = ((topic.name, topic.partition_indexes) for topic in request.topics)
        for name, indexes in named:
            record = self._topics.get(name) or self._topics.internal(name)
            if record is None or indexes is not None:
                yield record, indexes or ()
            else:
                yield record, range(record.partitions)


class ElectLeadersHandler(Handler):
    """Answers ElectLeaders."""

    API: ClassVar[ApiKey] = ApiKey.ELECT_LEADERS
    VERSIONS: ClassVar[VersionRange] = (0, 2)
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, access: Access, topics: TopicTable, leadership: Leadership, moves: MovesByHand) -> None:
        self._access = access
        self._topics = topics
        self._leadership = leadership
        self._moves = moves

    def begin(self, request: ElectLeadersRequest, context: RequestContext) -> Begun:
        """No election is ever needed: who leads follows from which gateways there are."""
        self._access.check_cluster(context.connection, AclOperation.ALTER)
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            raise InvalidRequestError(f"there is no election of type {request.election_type}")
        sizes = rows_of((topic.partitions for topic in request.topic_partitions or ()), _PER_PARTITION)
        return cast("Begun", counted(sizes, partial(self._finish, request, context.connection)))

    async def _finish(self, request: ElectLeadersRequest, client: ConnectionContext) -> ElectLeadersResponse:
        response = ElectLeadersResponse()
        pace = Pace(client.flow)
        every = request.topic_partitions is None
        for name, indexes in self._asked(request):
            await pace.pause()
            topic = ReplicaElectionResult(topic=name)
            for index in indexes:
                await pace.pause()
                row = ElectLeadersResponsePartitionResult(partition_id=index)
                try:
                    self._elect(name, index, request.election_type)
                except KafkaError as error:
                    put_error(row, error, self.ROLE)
                if not every or row.error_code not in (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.NONE):
                    topic.partition_result.append(row)
            if topic.partition_result:
                response.replica_election_results.append(topic)
        return response

    def _asked(self, request: ElectLeadersRequest) -> Iterator[tuple[str, Iterable[int]]]:
        if request.topic_partitions is not None:
            for topic in request.topic_partitions:
                yield topic.topic, topic.partitions
            return
        for name in list(self._topics.told()):
            record = self._topics.get(name) or self._topics.internal(name)
            if record is not None:
                yield name, range(record.partitions)

    def _elect(self, name: str, index: int, kind: int) -> None:
        record = _partition(self._topics, name, index)
        wanted = self._moves.wanted(self._leadership.unit(record, index))
        if kind == _PREFERRED and wanted is not None and not self._moves.serves(wanted):
            raise PreferredLeaderNotAvailableError(
                f"the partition was moved to the gateway with node.id={wanted}, which is not there: it leads it again "
                "once it is"
            )
        raise ElectionNotNeededError("the partition is led by the gateway that it belongs to")

    def fail(self, request: ElectLeadersRequest, context: RequestContext, error: KafkaError) -> ElectLeadersResponse:
        """The error for the whole, and for each partition that is named: version 0 has no other place."""
        response = ElectLeadersResponse()
        put_error(response, error, self.ROLE)

        def partition(number: int) -> ElectLeadersResponsePartitionResult:
            row = ElectLeadersResponsePartitionResult(partition_id=number)
            put_error(row, error, self.ROLE)
            return row

        def answered(topic: ElectLeadersRequestTopicPartitions) -> ReplicaElectionResult:
            return ReplicaElectionResult(topic=topic.topic, partition_result=rows_for(topic.partitions, partition))

        response.replica_election_results = rows_for(request.topic_partitions or (), answered)
        return response
