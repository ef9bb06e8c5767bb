"""The quorum of KRaft controllers: describing it, changing its voters; removing brokers that will not return."""

from __future__ import annotations

from collections.abc import Iterable

from kclient.admin.answers import as_told, check_code
from kclient.admin.arguments import as_broker_id
from kclient.admin.base import AdminBase
from kclient.admin.quorum_types import QuorumInfo, QuorumReplica, RaftVoterEndpoint, as_directory_id, as_endpoints
from kclient.admin.types import topic_id_text
from kclient.arguments import check_flag, check_text
from kclient.cluster import Trial, version_for
from kclient.errors import (
    BrokerIdNotRegisteredError,
    DuplicateVoterError,
    InvalidRequestError,
    VoterNotFoundError,
)
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseReplicaState,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

_METADATA_TOPIC = "__cluster_metadata"
_WAITING_VERSION = 1


class QuorumOperations(AdminBase):
    """The admin client's calls about controllers, and about brokers that have gone."""

    async def describe_metadata_quorum(self, *, timeout: float | None = None) -> QuorumInfo:
        """The active controller, the voters, and how far each has the cluster's metadata (KIP-595; Kafka 3.0).

        Args:
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            ClusterAuthorizationError: this user may not describe the cluster.
            UnsupportedVersionError: the brokers have no such quorum (those with ZooKeeper, and gateways).
        """
        what = "Describing the quorum"
        partition = DescribeQuorumRequestPartitionData(partition_index=0)
        topic = DescribeQuorumRequestTopicData(topic_name=_METADATA_TOPIC, partitions=[partition])
        request = DescribeQuorumRequest(topics=[topic])

        async def ask(trial: Trial) -> QuorumInfo:
            response = await self._ask_controller(trial, lambda _: request, DescribeQuorumResponse, timeout)
            check_code(response.error_code, what, response.error_message)
            rows = [row for topic in response.topics for row in topic.partitions]
            if len(rows) != 1:
                raise InvalidRequestError(f"{what}: the broker tells of {len(rows)} logs of metadata instead of one")
            check_code(rows[0].error_code, what, rows[0].error_message)
            return _info(rows[0], response)

        return await self._retrying(ask, timeout, what)

    async def add_raft_voter(
        self,
        voter_id: int,
        directory_id: str,
        endpoints: Iterable[RaftVoterEndpoint],
        *,
        cluster_id: str | None = None,
        wait_for_commit: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Makes a controller that follows a voter of the quorum (KIP-853; Kafka 3.9, with `kraft.version` 1).

        Args:
            voter_id: its `node.id`.
            directory_id: the id of its metadata directory, as its `meta.properties` and `describe_metadata_quorum` have
                it.
            endpoints: where it listens.
            cluster_id: refuse it where the cluster has another id; None does not look.
            wait_for_commit: return once it is a voter; else once it is written by the active controller, which may
                still be lost (KIP-1186, Kafka 4.2; older ones always wait).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            DuplicateVoterError: it is one; the text says so where an unanswered attempt may have made it one.
            InvalidRequestError: it does not follow, or not closely enough.
            InconsistentClusterIdError: the cluster has another id.
            ClusterAuthorizationError: this user may not alter the cluster.
            UnsupportedVersionError: voters of this cluster cannot be changed, or it has none (a gateway).
            TypeError, ValueError: an argument cannot be.
        """
        number, directory = as_broker_id(voter_id), as_directory_id(directory_id)
        listeners = [
            AddRaftVoterRequestListener(name=e.listener, host=e.host, port=e.port) for e in as_endpoints(endpoints)
        ]
        milliseconds, what = self._milliseconds(timeout), f"Adding voter {number}"
        _check_cluster_id(cluster_id)
        check_flag(wait_for_commit, "wait_for_commit")

        def message(connection: Connection) -> AddRaftVoterRequest:
            request = AddRaftVoterRequest(
                cluster_id=cluster_id, timeout_ms=milliseconds, voter_id=number, voter_directory_id=directory,
                listeners=listeners,
            )  # fmt: skip
            if version_for(connection, AddRaftVoterRequest) >= _WAITING_VERSION:
                request.ack_when_committed = wait_for_commit
            return request

        await self._answer_of_controller(
            message, AddRaftVoterResponse, timeout=timeout, what=what, done=DuplicateVoterError
        )

    async def remove_raft_voter(
        self, voter_id: int, directory_id: str, *, cluster_id: str | None = None, timeout: float | None = None
    ) -> None:
        """Has a controller be no voter of the quorum any more (KIP-853; Kafka 3.9, with `kraft.version` 1).

        Args:
            voter_id: its `node.id`.
            directory_id: the id of its metadata directory.
            cluster_id: refuse it where the cluster has another id; None does not look.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            VoterNotFoundError: it is none; the text says so where an unanswered attempt may have removed it.
            InvalidRequestError: it is the only one.
            InconsistentClusterIdError: the cluster has another id.
            ClusterAuthorizationError: this user may not alter the cluster.
            UnsupportedVersionError: voters of this cluster cannot be changed, or it has none (a gateway).
            TypeError, ValueError: an argument cannot be.
        """
        number, directory = as_broker_id(voter_id), as_directory_id(directory_id)
        what = f"Removing voter {number}"
        _check_cluster_id(cluster_id)
        request = RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=number, voter_directory_id=directory)
        await self._answer_of_controller(
            lambda _: request, RemoveRaftVoterResponse, timeout=timeout, what=what, done=VoterNotFoundError
        )

    async def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Has the cluster forget a broker that will not return (KIP-631; Kafka 2.8).

        Args:
            broker_id: its `node.id`; it has been stopped before, and leads and has no partitions.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            BrokerIdNotRegisteredError: the cluster knows none of this id; the text says so where an unanswered attempt
                may have made it forget the broker.
            ClusterAuthorizationError: this user may not alter the cluster.
            UnsupportedVersionError: the brokers keep no registrations (those with ZooKeeper, and gateways).
            TypeError, ValueError: this is no id.
        """
        number = as_broker_id(broker_id)
        what = f"Unregistering broker {number}"
        request = UnregisterBrokerRequest(broker_id=number)
        await self._answer_of_controller(
            lambda _: request, UnregisterBrokerResponse, timeout=timeout, what=what, done=BrokerIdNotRegisteredError
        )


def _check_cluster_id(cluster_id: object) -> None:
    if cluster_id is not None:
        check_text(cluster_id, "cluster_id")


def _info(row: DescribeQuorumResponsePartitionData, response: DescribeQuorumResponse) -> QuorumInfo:
    nodes = {
        node.node_id: tuple(
            as_told(RaftVoterEndpoint, listener=each.name, host=each.host, port=each.port) for each in node.listeners
        )
        for node in sorted(response.nodes, key=lambda node: node.node_id)
    }
    return QuorumInfo(
        row.leader_id, row.leader_epoch, row.high_watermark, _replicas(row.current_voters), _replicas(row.observers),
        nodes,
    )  # fmt: skip


def _replicas(rows: Iterable[DescribeQuorumResponseReplicaState]) -> tuple[QuorumReplica, ...]:
    return tuple(
        QuorumReplica(
            row.replica_id,
            topic_id_text(row.replica_directory_id),
            row.log_end_offset,
            None if row.last_fetch_timestamp < 0 else row.last_fetch_timestamp,
            None if row.last_caught_up_timestamp < 0 else row.last_caught_up_timestamp,
        )
        for row in sorted(rows, key=lambda row: row.replica_id)
    )
