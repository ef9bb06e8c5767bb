"""Moving partitions by hand: to other brokers, and to another leader among those that have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from kclient.admin.answers import check_code, failure, left_out
from kclient.admin.arguments import as_election_type, as_replicas
from kclient.admin.base import AdminBase, Outcome
from kclient.admin.types import ElectionType, PartitionReassignment, raise_failures
from kclient.arguments import as_partitions, by_partition
from kclient.cluster import Trial, version_for
from kclient.errors import KafkaError, NotControllerError, RequestTimedOutError, UnsupportedVersionError
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from kclient.types import Partition, TopicPartition

_ALTERING = "Altering partition reassignments"


class ReassignmentOperations(AdminBase):
    """The admin client's calls about where partitions are."""

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None] | Mapping[tuple[str, int], Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Has partitions move to other brokers; returns once that has begun (KIP-455).

        Args:
            reassignments: the brokers of each partition, the preferred leader first; None cancels a move under way.
            allow_replication_factor_change: whether a partition may have more or fewer replicas than before (KIP-860;
                brokers before Kafka 4.1 cannot be told False, and that is an `UnsupportedVersionError`).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            NoReassignmentInProgressError: there is nothing to cancel.
            InvalidReplicaAssignmentError: the brokers are not there, or not those a partition can have.
            UnknownTopicOrPartitionError: there is no such partition.
            PartialFailureError: several partitions were refused; the others move.
            TypeError: these are not lists of numbers by partition.
        """
        wanted = by_partition(reassignments, as_replicas, "alter_partition_reassignments")
        milliseconds = self._milliseconds(timeout)

        async def ask(
            trial: Trial, left: Mapping[TopicPartition, list[int] | None]
        ) -> Mapping[TopicPartition, Outcome]:
            topics: dict[str, list[ReassignablePartition]] = defaultdict(list)
            for (topic, index), replicas in left.items():
                topics[topic].append(ReassignablePartition(partition_index=index, replicas=replicas))

            def message(connection: Connection) -> AlterPartitionReassignmentsRequest:
                if (
                    not allow_replication_factor_change
                    and version_for(connection, AlterPartitionReassignmentsRequest) < 1
                ):
                    raise UnsupportedVersionError(
                        f"{connection.address} cannot be told allow_replication_factor_change=False (Kafka 4.1 can)"
                    )
                return AlterPartitionReassignmentsRequest(
                    timeout_ms=milliseconds,
                    allow_replication_factor_change=allow_replication_factor_change,
                    topics=[ReassignableTopic(name=name, partitions=rows) for name, rows in topics.items()],
                )

            response = await self._ask_controller(trial, message, AlterPartitionReassignmentsResponse, timeout)
            check_code(response.error_code, _ALTERING, response.error_message)
            return {
                (tp := TopicPartition(topic.name, row.partition_index)): failure(
                    row.error_code, f"Partition {tp}", row.error_message
                )
                for topic in response.responses
                for row in topic.partitions
            }

        failures = await self._each(wanted, ask, timeout=timeout, what=_ALTERING)
        raise_failures(_ALTERING, failures)

    async def list_partition_reassignments(
        self, partitions: Iterable[Partition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The moves that are under way (KIP-455).

        Args:
            partitions: of which; None for all there are.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            The move of each partition that has one.
        """
        topics: dict[str, list[int]] | None = None
        if partitions is not None:
            topics = defaultdict(list)
            for topic, index in as_partitions(partitions):
                topics[topic].append(index)
        request = ListPartitionReassignmentsRequest(
            timeout_ms=self._milliseconds(timeout),
            topics=None
            if topics is None
            else [ListPartitionReassignmentsTopics(name=name, partition_indexes=rows) for name, rows in topics.items()],
        )
        what = "Listing partition reassignments"

        response = await self._answer_of_controller(
            lambda _: request, ListPartitionReassignmentsResponse, timeout=timeout, what=what
        )
        return {
            TopicPartition(topic.name, row.partition_index): PartitionReassignment(
                tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
            )
            for topic in response.topics
            for row in topic.partitions
        }

    async def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Iterable[Partition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Has partitions led by their preferred replica, or by one not in sync where no other is left (KIP-460).

        Args:
            election_type: `ElectionType.PREFERRED`, or `UNCLEAN`, which may lose records.
            partitions: of which; None for all that need it.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            For each partition why there was no election, such as `ElectionNotNeededError`; None if there was. With
            `partitions=None` those are left out that needed none. An `UnknownServerError` where the broker does not
            tell.

        Raises:
            UnsupportedVersionError: the broker (before Kafka 2.4) knows no unclean elections.
        """
        kind = as_election_type(election_type)
        topics: dict[str, list[int]] | None = None
        named = [] if partitions is None else as_partitions(partitions)
        if partitions is not None:
            topics = defaultdict(list)
            for topic, index in named:
                topics[topic].append(index)
        milliseconds = self._milliseconds(timeout)
        what = "Electing leaders"

        def message(connection: Connection) -> ElectLeadersRequest:
            if kind is not ElectionType.PREFERRED and version_for(connection, ElectLeadersRequest) < 1:
                raise UnsupportedVersionError(f"{connection.address} elects preferred leaders only")
            return ElectLeadersRequest(
                election_type=int(kind),
                timeout_ms=milliseconds,
                topic_partitions=None
                if topics is None
                else [
                    ElectLeadersRequestTopicPartitions(topic=name, partitions=indexes)
                    for name, indexes in topics.items()
                ],
            )

        async def ask(trial: Trial) -> dict[TopicPartition, KafkaError | None]:
            response = await self._ask_controller(trial, message, ElectLeadersResponse, timeout)
            check_code(response.error_code, what)
            found = {
                (tp := TopicPartition(topic.topic, row.partition_id)): failure(
                    row.error_code, f"Partition {tp}", row.error_message
                )
                for topic in response.replica_election_results
                for row in topic.partition_result
            }
            again = next((e for e in found.values() if isinstance(e, NotControllerError | RequestTimedOutError)), None)
            if again is not None:
                raise again
            untold = {tp: left_out([tp], found).get(str(tp)) for tp in named if tp not in found}
            return {**found, **untold}

        return await self._retrying(ask, timeout, what)
