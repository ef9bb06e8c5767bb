"""Log directories of brokers: what is in them, and moving replicas between those of a broker (KIP-113)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from kclient.admin.answers import check_code, failure
from kclient.admin.base import AdminBase, Outcome
from kclient.admin.listing import Listing
from kclient.admin.log_dir_types import (
    LogDirDescription,
    Replica,
    ReplicaInfo,
    ReplicaLogDirInfo,
    TopicPartitionReplica,
    as_brokers,
    as_directories,
    as_replicas,
)
from kclient.admin.types import raise_failures
from kclient.arguments import as_partitions
from kclient.cluster import Trial
from kclient.cluster.asking import every_answer
from kclient.errors import ClusterAuthorizationError, KafkaError
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from kclient.types import Partition, TopicPartition

_DESCRIBING = "Describing log directories"


class LogDirOperations(AdminBase):
    """The admin client's calls about log directories."""

    async def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        *,
        partitions: Iterable[Partition] | None = None,
        timeout: float | None = None,
    ) -> Listing[LogDirDescription]:
        """The log directories of brokers, and the replicas in them with their sizes (KIP-113; Kafka 1.0).

        A broker that does not answer in time keeps nobody from hearing of the others: a warning is logged, and
        `Listing.errors` tells why.

        Args:
            brokers: ids of those to ask; None for all.
            partitions: only replicas of these; None for all.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            The directories, sorted by broker and path.

        Raises:
            BrokerIdNotRegisteredError: there is no such broker now.
            ClusterAuthorizationError: this user may not describe the cluster.
            TypeError, ValueError: these are no ids or partitions.
        """
        ids = as_brokers(brokers)
        request = _request(None if partitions is None else as_partitions(partitions))
        told, errors = await self._log_dirs(lambda _: request, ids, timeout)
        return Listing(_DESCRIBING, (each for node_id in sorted(told) for each in told[node_id]), errors)

    async def describe_replica_log_dirs(
        self, replicas: Iterable[Replica], *, timeout: float | None = None
    ) -> dict[TopicPartitionReplica, ReplicaLogDirInfo]:
        """In which log directories replicas are, and to which they are being moved (KIP-113; Kafka 1.0).

        Args:
            replicas: which.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            What is known of each; of one that its broker does not have, a `ReplicaLogDirInfo` without directories.

        Raises:
            BrokerIdNotRegisteredError: there is no such broker now.
            KafkaTimeoutError: a broker has not answered.
            ClusterAuthorizationError: this user may not describe the cluster.
            PartialFailureError: several brokers have not answered.
            TypeError, ValueError: these are no replicas.
        """
        wanted = as_replicas(replicas)
        at: dict[int, list[TopicPartition]] = defaultdict(list)
        for replica in wanted:
            at[replica.broker_id].append(replica.topic_partition)
        told, errors = await self._log_dirs(lambda node_id: _request(at[node_id]), list(at), timeout)
        Listing(_DESCRIBING, (), errors).complete()
        return {replica: _whereabouts(told[replica.broker_id], replica.topic_partition) for replica in wanted}

    async def alter_replica_log_dirs(
        self,
        directories: Mapping[TopicPartitionReplica, str] | Mapping[tuple[str, int, int], str],
        *,
        timeout: float | None = None,
    ) -> None:
        """Has replicas move to other log directories of their brokers (KIP-113; Kafka 1.1).

        It returns once that has begun; `describe_replica_log_dirs` tells how far they have come.

        Args:
            directories: the path of the directory for each replica, as the broker calls it.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            LogDirNotFoundError: the broker has no such directory, or it cannot be used.
            ReplicaNotAvailableError: the broker has no such replica (yet); once it has, it is created there.
            KafkaStorageError: the replica's present directory cannot be used.
            BrokerIdNotRegisteredError: there is no such broker now.
            ClusterAuthorizationError: this user may not alter the cluster.
            PartialFailureError: several were refused; the others move.
            TypeError, ValueError: these are no paths by replica.
        """
        wanted: dict[int, dict[TopicPartitionReplica, str]] = defaultdict(dict)
        for replica, path in as_directories(directories).items():
            wanted[replica.broker_id][replica] = path
        what = "Moving replicas to other log directories"
        self._check()

        async def at_broker(node_id: int) -> dict[str, KafkaError]:
            async def ask(
                trial: Trial, left: Mapping[TopicPartitionReplica, str]
            ) -> Mapping[TopicPartitionReplica, Outcome]:
                connection = await self._at_broker(node_id, trial)
                request = AlterReplicaLogDirsRequest(dirs=_dirs(left))
                response = await self._exchange(trial, connection, request, AlterReplicaLogDirsResponse)
                return {
                    (one := TopicPartitionReplica(topic.topic_name, row.partition_index, node_id)): failure(
                        row.error_code, f"Replica {one}"
                    )
                    for topic in response.results
                    for row in topic.partitions
                }

            return await self._each(wanted[node_id], ask, timeout=timeout, what=what)

        failures: dict[str, KafkaError] = {}
        for node_id, outcome in (await every_answer(wanted, at_broker, supervisor=self._supervisor)).items():
            failures |= (
                dict.fromkeys(map(str, wanted[node_id]), outcome) if isinstance(outcome, KafkaError) else outcome
            )
        raise_failures(what, failures)

    async def _log_dirs(
        self,
        request: Callable[[int], DescribeLogDirsRequest],
        brokers: Collection[int] | None,
        timeout: float | None,
    ) -> tuple[dict[int, list[LogDirDescription]], dict[int, KafkaError]]:
        """The directories of some brokers, or of all for None, and why others have not told theirs."""

        async def ask(trial: Trial, connection: Connection, node_id: int) -> list[LogDirDescription]:
            response = await self._exchange(
                trial,
                connection,
                request(node_id),
                DescribeLogDirsResponse,
                check=lambda answer: check_code(answer.error_code, f"Broker {node_id}"),
            )
            if not response.results:  # each broker has one at least; those before Kafka 3.2 have no code for this
                raise ClusterAuthorizationError(
                    f"Broker {node_id} tells nothing: this user may not describe the cluster"
                )
            return sorted((_described(node_id, row) for row in response.results), key=lambda each: each.path)

        return await self._at_every_broker(ask, timeout=timeout, what=_DESCRIBING, brokers=brokers)


def _request(partitions: Collection[TopicPartition] | None) -> DescribeLogDirsRequest:
    if partitions is None:
        return DescribeLogDirsRequest(topics=None)
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        topics[topic].append(index)
    return DescribeLogDirsRequest(
        topics=[DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics.items()]
    )


def _dirs(directories: Mapping[TopicPartitionReplica, str]) -> list[AlterReplicaLogDir]:
    paths: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for replica, path in directories.items():
        paths[path][replica.topic].append(replica.partition)
    return [
        AlterReplicaLogDir(
            path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=rows) for name, rows in topics.items()]
        )
        for path, topics in paths.items()
    ]


def _described(node_id: int, row: DescribeLogDirsResult) -> LogDirDescription:
    replicas = {
        TopicPartition(topic.name, each.partition_index): ReplicaInfo(
            each.partition_size, each.offset_lag, each.is_future_key
        )
        for topic in row.topics
        for each in topic.partitions
    }
    return LogDirDescription(
        node_id,
        row.log_dir,
        failure(row.error_code, f"Log directory {row.log_dir}"),
        dict(sorted(replicas.items())),
        None if row.total_bytes < 0 else row.total_bytes,
        None if row.usable_bytes < 0 else row.usable_bytes,
        row.is_cordoned,
    )


def _whereabouts(directories: Iterable[LogDirDescription], tp: TopicPartition) -> ReplicaLogDirInfo:
    found = list(_those_with(directories, tp))
    present = next(((path, info.offset_lag) for path, info in found if not info.is_future), (None, -1))
    future = next(((path, info.offset_lag) for path, info in found if info.is_future), (None, -1))
    return ReplicaLogDirInfo(*present, *future)


def _those_with(directories: Iterable[LogDirDescription], tp: TopicPartition) -> Iterator[tuple[str, ReplicaInfo]]:
    for directory in directories:
        info = directory.replicas.get(tp)
        if info is not None:
            yield directory.path, info
