"""Three real Apache Kafka brokers as child processes, one cluster, and what can happen to them: they are stopped,
killed, paused and restarted, and their leaders moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    DescribeClusterRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from kclient.types import TopicPartition
from tests.kafka_server import KafkaServer, Place, free_ports
from tests.wire_session import wire_session

NODES = (1, 2, 3)
ONE_CLUSTER = pytest.mark.xdist_group("three brokers")
"""Of tests with such clusters: where several processes run tests, one of them takes all these, and starts each once."""

_OVERRIDES = {
    "broker.session.timeout.ms": "3000",  # a dead broker is noticed soon
    "broker.heartbeat.interval.ms": "500",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "auto.create.topics.enable": "false",
    "controlled.shutdown.enable": "true",
}


class KafkaCluster:
    """Three brokers that are controllers too; `servers` has them by node id.

    Who hurts a broker calls `heal` afterwards: the cluster is shared.

    Args:
        version: Of Kafka.
        folder: Where they keep what they have.
        overrides: Settings of all of them.
        racks: Whether each is in a rack of its own, `rack1` to `rack3`.
    """

    def __init__(
        self, version: str, folder: Path, overrides: Mapping[str, str] | None = None, *, racks: bool = False
    ) -> None:
        self.version = version
        controllers = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self.servers: dict[int, KafkaServer] = {}
        for node in NODES:
            place = folder / f"node{node}"
            place.mkdir()
            settings = {**_OVERRIDES, **(overrides or {}), **({"broker.rack": f"rack{node}"} if racks else {})}
            self.servers[node] = KafkaServer(version, place, settings, place=Place(node, controllers), heap="512m")
        self.bootstrap = ",".join(server.bootstrap for server in self.servers.values())

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Format and start all three, and wait until they know each other."""
        cluster_id = KafkaServer.new_cluster_id()
        for server in self.servers.values():
            server.format(cluster_id=cluster_id)
            server.launch()
        for server in self.servers.values():
            server.wait_ready()
        self.wait_for_brokers()

    def stop(self) -> None:
        """End all three."""
        for server in self.servers.values():
            server.stop(kill=True)

    def heal(self) -> None:
        """Whatever was done to the brokers: have all three run, know each other, and lead what is theirs."""
        for server in self.servers.values():
            if server.running:
                server.resume()
            else:
                server.launch()
        for server in self.servers.values():
            server.wait_ready()
        self.wait_for_brokers()

    def wait_for_brokers(self, nodes: Iterable[int] = NODES, timeout: float = 60) -> None:
        """Wait until each of these brokers knows these, and no others, as alive."""
        wanted = set(nodes)

        def known(node: int) -> bool:
            answer = self.ask(DescribeClusterRequest(), node)
            return {broker.broker_id for broker in answer.brokers} == wanted

        self._until(lambda: all(known(node) for node in wanted), f"brokers {sorted(wanted)}", timeout)

    # ------------------------------------------------------------------ questions and orders

    def ask(self, request: ApiMessage, node: int | None = None, timeout: float = 10) -> Any:
        """What one broker answers; the first that runs if none is named."""
        server = self.servers[node or self.running[0]]

        async def exchange() -> Any:
            with anyio.fail_after(timeout):
                async with wire_session(server.bootstrap) as session:
                    return await session(request)

        return anyio.run(exchange)

    @property
    def running(self) -> list[int]:
        """The nodes whose process is there."""
        return [node for node, server in self.servers.items() if server.running]

    def metadata(self, topic: str, node: int | None = None) -> MetadataResponse:
        """What a broker tells of a topic."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer: MetadataResponse = self.ask(request, node)
        return answer

    def leaders(self, topic: str, node: int | None = None) -> dict[int, int]:
        """The leader of each partition, as a broker tells; -1 for none."""
        (described,) = self.metadata(topic, node).topics
        return {partition.partition_index: partition.leader_id for partition in described.partitions}

    def wait_for_leaders(self, topic: str, partitions: int, nodes: Iterable[int] = NODES, timeout: float = 60) -> None:
        """Wait until each partition is led by one of these, and each of these brokers tells so."""
        wanted = list(nodes)

        def led(node: int) -> bool:
            found = self.leaders(topic, node)
            return len(found) == partitions and set(found.values()) <= set(wanted)

        self._until(lambda: all(led(node) for node in wanted), f"leaders of {topic}", timeout)

    def elect(self, node: int | None = None) -> None:
        """Have every partition led by its preferred leader again (ElectLeaders), as far as that is possible now."""
        self.ask(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=10_000), node)

    def reassign(self, placement: Mapping[TopicPartition, list[int]], node: int | None = None) -> None:
        """Move partitions to other replicas, the preferred leader first, and have that one lead."""
        by_topic: dict[str, list[ReassignablePartition]] = {}
        for tp, replicas in placement.items():
            by_topic.setdefault(tp.topic, []).append(
                ReassignablePartition(partition_index=tp.partition, replicas=replicas)
            )
        topics = [ReassignableTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
        answer = self.ask(AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=topics), node)
        assert answer.error_code == 0, answer

        def done() -> bool:
            found = self.ask(ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=None), node)
            return not found.topics

        self._until(done, "reassignment", 60)
        chosen = [
            ElectLeadersRequestTopicPartitions(topic=name, partitions=[part.partition_index for part in parts])
            for name, parts in by_topic.items()
        ]
        self.ask(ElectLeadersRequest(election_type=0, topic_partitions=chosen, timeout_ms=10_000), node)

    def _until(self, met: Callable[[], bool], what: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        problem: Exception | None = None
        while time.monotonic() < deadline:
            try:
                if met():
                    return
            except Exception as error:
                problem = error  # a broker that starts answers with all kinds of errors
            time.sleep(0.1)
        raise AssertionError(f"Kafka {self.version}: {what} not there after {timeout} s") from problem
