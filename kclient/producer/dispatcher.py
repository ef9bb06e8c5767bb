"""Carries out what the sender decides: one task that sends, connects and asks for the producer id.

The task waits for the accumulator's wake, for an answer or for a time; answers are taken in by callbacks in the
same loop, so that a request costs no task of its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kclient.cluster import version_for
from kclient.concurrency import Wakeup
from kclient.errors import (
    BrokerConnectionError,
    ErrorCode,
    KafkaError,
    ProtocolError,
    UnsupportedVersionError,
    error_for,
)
from kclient.net.throttling import requested_pause
from kclient.producer.sender import InFlight, PartitionOutcome
from kclient.producer.transactions import V1
from kclient.protocol.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kclient.types import Node, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.cluster import Cluster
    from kclient.concurrency import Supervisor
    from kclient.net.connection import Connection, Pending
    from kclient.producer.sender import Sender
    from kclient.producer.transactions import TransactionManager

logger: logging.Logger = logging.getLogger("kclient.producer")

LAST_VERSION_WITH_NAMES: Final = 12
"""From version 13 on, Produce names topics by id only (KIP-516)."""
_LAST_VERSION_FOR_V1: Final = 11
"""From version 12 on, Produce adds its partitions to the transaction (KIP-890)."""
_FIRST_VERSION_WITH_BATCHES: Final = 3
_NO_ID: Final = bytes(16)


class Dispatcher:
    """The producer's sending task.

    Args:
        sender: Decides.
        cluster: Connections and metadata.
        supervisor: Owns the short tasks that connect.
        acks: -1, 0 or 1.
        timeout_ms: What the broker is given to collect acknowledgements (`request.timeout.ms`).
        wakeup: Set by the accumulator, from any thread.
        transactions: The transactions; None without a transactional id.
        add_partitions: Has the transaction's coordinator add partitions.
    """

    def __init__(
        self,
        sender: Sender,
        cluster: Cluster,
        supervisor: Supervisor,
        *,
        acks: int,
        timeout_ms: int,
        wakeup: Wakeup,
        transactions: TransactionManager | None = None,
        add_partitions: Callable[[], None] | None = None,
    ) -> None:
        self._sender = sender
        self._transactions = transactions
        self._add_partitions = add_partitions
        self._cluster = cluster
        self._supervisor = supervisor
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._wakeup = wakeup
        self._clock: Callable[[], float] = cluster.clock
        self._connecting: set[int] = set()
        self._versions: dict[int, tuple[Connection, int, int]] = {}
        cluster.listeners.append(wakeup.set)

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            now = self._clock()
            actions = self._sender.poll(now, self._connected)
            if actions.leaderless:
                self._cluster.track(actions.leaderless, create=False)
            if actions.refresh:
                self._cluster.request_update()
            if actions.init_producer_id:
                self._supervisor.spawn(self._init_producer_id, name="producer id")
            if actions.add_partitions and self._add_partitions is not None:
                self._add_partitions()
            for node in actions.connect - self._connecting:
                self._connecting.add(node)
                self._supervisor.spawn(self._connect, node, name=f"connect to broker {node}")
            for request in actions.requests:
                self._send(request)
                self._cluster.metadata.touch((tp.topic for tp in request.batches), now)
            wait = actions.wake_at - self._clock()
            # also where something is due already: the loop's other tasks have their turn
            await self._wakeup.wait(None if wait == float("inf") else max(wait, 0))

    def stop(self) -> None:
        """Forget the cluster's listener."""
        if self._wakeup.set in self._cluster.listeners:
            self._cluster.listeners.remove(self._wakeup.set)

    # ------------------------------------------------------------------ connections

    def _connection(self, node: int) -> Connection | None:
        link = self._cluster.link(node)
        return None if link is None else link.usable

    def _connected(self, node: int) -> bool:
        return self._connection(node) is not None

    async def _connect(self, node: int) -> None:
        try:
            await self._cluster.connection(node)
        except KafkaError as error:
            self._sender.on_connect_failed(node, error)
            if error.fatal:
                self._sender.give_up(error)
            logger.info("broker %d cannot be reached: %s", node, error)
        else:
            self._sender.on_connected(node)
        finally:
            self._connecting.discard(node)
            self._wakeup.set()

    async def _init_producer_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2147483647)
        try:
            response: InitProducerIdResponse = await self._cluster.request(None, request)
            if response.error_code:
                raise error_for(response.error_code, "InitProducerId failed")
        except KafkaError as error:
            logger.info("no producer id yet: %s", error)
            self._sender.on_producer_id_failed(error, self._clock())
        else:
            self._sender.on_producer_id(response.producer_id, response.producer_epoch)
        self._wakeup.set()

    # ------------------------------------------------------------------ requests

    def _send(self, request: InFlight) -> None:
        connection = self._connection(request.node_id)
        try:
            if connection is None:
                raise BrokerConnectionError(f"The connection to broker {request.node_id} broke")
            version = self._version(connection, request)
            message = self._message(request, version)
            pending = connection.send_nowait(message, version, expect_response=self._acks != 0)
        except KafkaError as error:
            self._sender.on_failure(request, error, self._clock())
            return
        pending.on_done(lambda done: self._on_done(request, done))

    def _version(self, connection: Connection, request: InFlight) -> int:
        snapshot = self._cluster.snapshot
        by_name = any(snapshot.topic_id(tp.topic) == _NO_ID for tp in request.batches)
        highest = LAST_VERSION_WITH_NAMES if by_name else ProduceRequest.VERSIONS[1]
        if self._transactions is not None and self._transactions.version == V1:
            highest = _LAST_VERSION_FOR_V1
        known = self._versions.get(request.node_id)
        if known is not None and known[:2] == (connection, highest):
            return known[2]
        version = version_for(connection, ProduceRequest, highest)
        if version < _FIRST_VERSION_WITH_BATCHES:
            raise UnsupportedVersionError(
                f"{connection.address} takes Produce only up to version {version}: "
                "kclient needs Apache Kafka 0.11 or newer"
            )
        if self._transactions is not None and self._transactions.version != V1 and version <= _LAST_VERSION_FOR_V1:
            raise UnsupportedVersionError(
                f"{connection.address} takes Produce only up to version {version}, which adds no partitions to "
                "transactions, though the cluster has transaction.version 2: all brokers have to be Kafka 4.0 or newer"
            )
        self._versions[request.node_id] = (connection, highest, version)
        return version

    def _message(self, request: InFlight, version: int) -> ProduceRequest:
        snapshot = self._cluster.snapshot
        topics: dict[str, TopicProduceData] = {}
        for tp, batch in request.batches.items():
            topic = topics.get(tp.topic)
            if topic is None:
                topic_id = snapshot.topic_id(tp.topic)
                request.names[topic_id] = tp.topic
                topic = topics[tp.topic] = TopicProduceData(name=tp.topic, topic_id=topic_id, partition_data=[])
            topic.partition_data.append(PartitionProduceData(index=tp.partition, records=batch.encode()))
        return ProduceRequest(
            transactional_id=None if self._transactions is None else self._transactions.transactional_id,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            topic_data=list(topics.values()),
        )

    def _on_done(self, request: InFlight, pending: Pending) -> None:
        """The answer is there, or there will be none. Runs in the loop; must not raise."""
        now = self._clock()
        try:
            if pending.error is not None:
                self._on_error(request, pending.error, now)
            elif self._acks == 0:
                self._sender.on_sent(request)
            else:
                self._on_response(request, pending.result(), pending.version, now)
        except Exception as error:  # noqa: BLE001  (it becomes the producer's failure)
            self._supervisor.fail(error)
        self._wakeup.set()

    def _on_error(self, request: InFlight, error: BaseException, now: float) -> None:
        if not isinstance(error, KafkaError):
            error = ProtocolError(f"A Produce request failed: {error!r}")
        logger.info("Produce to broker %d got no answer: %s", request.node_id, error)
        self._sender.on_failure(request, error, now)

    def _on_response(self, request: InFlight, response: ProduceResponse, version: int, now: float) -> None:
        self._sender.metrics.throttled(response.throttle_time_ms / 1000)
        pause = requested_pause(response, version)
        if pause:
            # the connection would hold requests back too, but in the accumulator batches can still fill up
            self._sender.throttle(request.node_id, now + pause)
        self._learn_leaders(response, request)
        self._sender.on_response(request, _partition_outcomes(response, request), now)

    def _learn_leaders(self, response: ProduceResponse, request: InFlight) -> None:
        """A broker that no longer leads says who does (KIP-951)."""
        leaders = {}
        for topic in response.responses:
            name = topic.name or request.names.get(bytes(topic.topic_id), "")
            for partition in topic.partition_responses:
                if partition.current_leader.leader_id >= 0:
                    tp = TopicPartition(name, partition.index)
                    leader = partition.current_leader
                    leaders[tp] = (leader.leader_id, leader.leader_epoch)
        if leaders:
            nodes = [Node(e.node_id, e.host, e.port, e.rack) for e in response.node_endpoints]
            self._cluster.metadata.update_leaders(leaders, nodes, asked=request.names)


def _partition_outcomes(response: ProduceResponse, request: InFlight) -> dict[TopicPartition, PartitionOutcome]:
    """What the broker says of each partition of a request."""
    found: dict[TopicPartition, PartitionOutcome] = {}
    for topic in response.responses:
        name = topic.name or request.names.get(bytes(topic.topic_id), "")
        for partition in topic.partition_responses:
            code = partition.error_code
            found[TopicPartition(name, partition.index)] = PartitionOutcome(
                code,
                partition.base_offset,
                partition.log_append_time_ms,
                partition.log_start_offset,
                partition.error_message,
                ()
                if code == ErrorCode.NONE
                else tuple((e.batch_index, e.batch_index_error_message) for e in partition.record_errors),
            )
    return found
