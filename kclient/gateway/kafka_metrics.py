"""Metrics under the names that dashboards of Kafka know: those of kafka_exporter, and of brokers over JMX.

They are written out as Prometheus' text at once, in slices: of ten thousand partitions there are too many to be kept as
objects. Each is told by one gateway of a store, so that sums over all are right: what is of a partition by its leader,
what is of a topic by the leader of its first partition, what is of a group by its coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.gateway.partition_id import PartitionId
from kclient.gateway.partition_states import PartitionPhase
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.peers import PartitionEnds
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.topics.table import TopicTable
    from kclient.net.fair_queue import Flow

_GAUGE: Final = "gauge"
_COUNTER: Final = "counter"
_ASKED_AT_ONCE: Final = 10_000
"""Partitions whose ends are asked for at a time, of whoever leads them."""
_PATIENCE_S: Final = 3.0
"""Seconds that their leaders have to answer."""


class _Family(NamedTuple):
    name: str
    kind: str
    help: str


class _Text:
    """What is written of some families."""

    def __init__(self, *families: _Family) -> None:
        self._parts = [
            bytearray(f"# HELP {each.name} {each.help}\n# TYPE {each.name} {each.kind}\n".encode()) for each in families
        ]
        self._names = [each.name for each in families]

    def add(self, place: int, labels: str, value: float) -> None:
        """A sample of one of the families; labels as `{…}`, or nothing."""
        self._parts[place] += f"{self._names[place]}{labels} {value}\n".encode()

    def add_to_all(self, labels: str, values: Iterable[float]) -> None:
        """A sample of each, with the same labels."""
        for part, name, value in zip(self._parts, self._names, values, strict=True):
            part += f"{name}{labels} {value}\n".encode()

    @property
    def parts(self) -> list[bytearray]:
        """All of it, family by family: megabytes, which are not copied."""
        return self._parts


_CLUSTER: Final = (
    _Family("kafka_brokers", _GAUGE, "Gateways that serve the store."),
    _Family("kafka_controller_kafkacontroller_activecontrollercount_value", _GAUGE, "1 at the controller, else 0."),
)
_TOPIC: Final = (
    _Family("kafka_topic_partitions", _GAUGE, "Partitions of a topic, told by the leader of its first one."),
)
_PARTITION: Final = (
    _Family("kafka_topic_partition_current_offset", _GAUGE, "The end of a partition: its high watermark."),
    _Family("kafka_topic_partition_oldest_offset", _GAUGE, "The first offset that a partition has."),
    _Family("kafka_topic_partition_leader", _GAUGE, "The node.id of the gateway that leads a partition."),
    _Family("kafka_topic_partition_leader_is_preferred", _GAUGE, "1: the only replica leads."),
    _Family("kafka_topic_partition_replicas", _GAUGE, "1: the store keeps the messages."),
    _Family("kafka_topic_partition_in_sync_replica", _GAUGE, "1: the store keeps the messages."),
    _Family("kafka_topic_partition_under_replicated_partition", _GAUGE, "0: there is but one replica."),
)
_GROUP: Final = (_Family("kafka_consumergroup_members", _GAUGE, "Members of a group."),)
_COMMITTED: Final = (
    _Family("kafka_consumergroup_current_offset", _GAUGE, "The offset that a group has committed."),
    _Family("kafka_consumergroup_lag", _GAUGE, "Records behind it that the partition has."),
)
_SUMS: Final = (
    _Family("kafka_consumergroup_current_offset_sum", _GAUGE, "The sum of a group's offsets of a topic."),
    _Family("kafka_consumergroup_lag_sum", _GAUGE, "The sum of a group's lags of a topic."),
)
_BROKER: Final = (
    _Family("kafka_server_replicamanager_leadercount_value", _GAUGE, "Partitions that the gateway leads."),
    _Family("kafka_server_replicamanager_partitioncount_value", _GAUGE, "The same: each has one replica."),
    _Family("kafka_server_replicamanager_underreplicatedpartitions_value", _GAUGE, "0: each has one replica."),
    _Family("kafka_controller_kafkacontroller_offlinepartitionscount_value", _GAUGE, "Partitions without a leader: 0."),
)
_TRAFFIC: Final = (
    _Family("kafka_server_brokertopicmetrics_messagesin_total", _COUNTER, "Records appended since the start."),
    _Family("kafka_server_brokertopicmetrics_bytesin_total", _COUNTER, "Bytes of batches appended since the start."),
    _Family("kafka_server_brokertopicmetrics_bytesout_total", _COUNTER, "Bytes of batches fetched since the start."),
)
_REQUESTS: Final = (
    _Family("kafka_network_requestmetrics_requests_total", _COUNTER, "Requests since the start, by their API."),
)


def _labels_of(**labels: str | int) -> str:
    """Labels as Prometheus' text has them: `{topic="flights",partition="0"}`."""
    return "{" + ",".join(f'{name}="{escaped(str(value))}"' for name, value in labels.items()) + "}"


def escaped(value: str) -> str:
    """The value of a label, with what would end it escaped."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class KafkaMetrics:
    """Those metrics of one gateway.

    Args:
        node_id: Its number.
        topics: Those that are served.
        leadership: Who leads them.
        groups: Those that are coordinated here, by their names.
        ends: Asks for the ends of partitions that other gateways lead, or that are not open.
        gateways: How many serve the store.
        requests: How many requests of each API have come, by its name.
        enabled: Whether partitions, topics and groups are told of (`metrics.partitions.enable`).
    """

    def __init__(
        self,
        *,
        node_id: int,
        topics: TopicTable,
        leadership: Leadership,
        groups: Mapping[str, ManagedGroup],
        ends: PartitionEnds,
        gateways: Callable[[], int],
        requests: Callable[[], Mapping[str, int]],
        enabled: Callable[[], bool],
    ) -> None:
        self._node_id = node_id
        self._topics = topics
        self._leadership = leadership
        self._groups = groups
        self._ends = ends
        self._gateways = gateways
        self._requests = requests
        self._enabled = enabled

    async def text(self, flow: Flow) -> list[bytearray]:
        """All of them as Prometheus' text, in parts; others have their turn meanwhile.

        Args:
            flow: In whose turns it is written.
        """
        found = self._of_the_gateway()
        if self._enabled():
            pace = Pace(flow)
            found += await self._of_topics(pace)
            found += await self._of_groups(pace)
        return found

    def _of_the_gateway(self) -> list[bytearray]:
        cluster, requests = _Text(*_CLUSTER), _Text(*_REQUESTS)
        cluster.add_to_all("", (self._gateways(), int(self._leadership.controller_id == self._node_id)))
        for name, count in self._requests().items():
            requests.add(0, _labels_of(request=name), count)
        return [*cluster.parts, *requests.parts]

    async def _of_topics(self, pace: Pace) -> list[bytearray]:
        topics, partitions, traffic, broker = _Text(*_TOPIC), _Text(*_PARTITION), _Text(*_TRAFFIC), _Text(*_BROKER)
        led = 0
        for record in self._topics:
            name = escaped(record.name)
            labels = f'{{topic="{name}"}}'
            seen = record.traffic
            if seen.records_in or seen.bytes_out:
                traffic.add_to_all(labels, (seen.records_in, seen.bytes_in, seen.bytes_out))
            if self._leadership.leads(record, 0):
                topics.add(0, labels, record.partitions)
            for index in range(record.partitions):
                if pace.over:
                    await pace.pause()
                    if record.gone:
                        break
                if not self._leadership.leads(record, index):
                    continue
                led += 1
                partition = record.logs.get(index)
                if partition is None or partition.state is not PartitionPhase.OPEN:
                    continue  # where it begins and ends is not known yet
                log = partition.log
                partitions.add_to_all(
                    f'{{topic="{name}",partition="{index}"}}',
                    (log.high_watermark, log.start_offset, self._node_id, 1, 1, 1, 0),
                )
        broker.add_to_all("", (led, led, 0, 0))
        return [part for each in (topics, partitions, traffic, broker) for part in each.parts]

    async def _of_groups(self, pace: Pace) -> list[bytearray]:
        members, committed, sums = _Text(*_GROUP), _Text(*_COMMITTED), _Text(*_SUMS)
        ends = await self._other_ends(pace)
        for group_id, managed in list(self._groups.items()):
            if pace.over:
                await pace.pause()
            name = escaped(group_id)
            members.add(0, f'{{consumergroup="{name}"}}', len(managed.group.members))
            for topic, offsets in list(managed.offsets.topics().items()):
                record = self._topics.get(topic)
                if record is None or not offsets:
                    continue
                labels = f'consumergroup="{name}",topic="{escaped(topic)}"'
                total = behind = 0
                known = True
                for index, offset in list(offsets.items()):
                    if pace.over:
                        await pace.pause()
                    place = f'{{{labels},partition="{index}"}}'
                    committed.add(0, place, offset.offset)
                    total += offset.offset
                    end = self._end(record, index, ends)
                    if end is None:
                        known = False
                        continue
                    committed.add(1, place, max(end - offset.offset, 0))
                    behind += max(end - offset.offset, 0)
                sums.add(0, f"{{{labels}}}", total)
                if known:  # else it would be told as less than it is
                    sums.add(1, f"{{{labels}}}", behind)
        return [*members.parts, *committed.parts, *sums.parts]

    @staticmethod
    def _end(record: TopicRecord, index: int, ends: Mapping[PartitionId, int]) -> int | None:
        partition = record.logs.get(index)
        if partition is not None and partition.state is PartitionPhase.OPEN:
            return partition.log.high_watermark
        return ends.get(PartitionId(record.topic_id, index))

    async def _other_ends(self, pace: Pace) -> Mapping[PartitionId, int]:
        """The ends of partitions of which groups have committed offsets, where they are not known here at once."""
        wanted: dict[int, dict[PartitionId, None]] = {}
        for managed in list(self._groups.values()):
            for topic, offsets in list(managed.offsets.topics().items()):
                record = self._topics.get(topic)
                if record is None:
                    continue
                for index in list(offsets):
                    if pace.over:
                        await pace.pause()
                    partition = record.logs.get(index)
                    if index < record.partitions and (partition is None or partition.state is not PartitionPhase.OPEN):
                        leader = self._leadership.leader(record, index).node_id
                        wanted.setdefault(leader, {})[PartitionId(record.topic_id, index)] = None
        found: dict[PartitionId, int] = {}

        async def ask(asked: Sequence[PartitionId]) -> None:
            for place in range(0, len(asked), _ASKED_AT_ONCE):
                found.update(await self._ends.ends(asked[place : place + _ASKED_AT_ONCE]))

        with anyio.move_on_after(_PATIENCE_S):  # the rest is told all the same
            async with anyio.create_task_group() as tasks:
                for each in wanted.values():  # one that does not answer holds up its own alone
                    tasks.start_soon(ask, list(each))
        return found
