"""MirrorMaker 2 between real Kafka and a gateway, both ways at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from kclient.admin import ConfigResource, ConfigResourceType, NewTopic, OffsetSpec
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition
from tests.connect_workers import ConnectProcess, running
from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.foreign, pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]

COUNT = 500
PARTITIONS = 2
START_MS = int(time.time() * 1000) - 60_000
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def mirror(bootstraps: Mapping[str, str], topic: str, folder: Path) -> ConnectProcess:
    """MirrorMaker that copies the topics and groups whose names begin so, from each of two clusters to the other."""
    one, other = bootstraps
    settings = {
        "clusters": f"{one}, {other}",
        "replication.factor": "1",
        **{f"{kind}.topic.replication.factor": "1" for kind in ("checkpoints", "heartbeats", "offset-syncs")},
        **{f"{kind}.storage.replication.factor": "1" for kind in ("offset", "status", "config")},
        "refresh.topics.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "sync.topic.configs.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "emit.heartbeats.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "offset.lag.max": "0",
        "sync.topic.acls.enabled": "false",
        "offset.flush.interval.ms": "500",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "500",
    }
    for source, target in ((one, other), (other, one)):
        settings[f"{source}.bootstrap.servers"] = bootstraps[source]
        settings[f"{source}.plugin.discovery"] = "service_load"
        settings[f"{source}.exactly.once.source.support"] = "enabled"
        settings[f"{source}->{target}.enabled"] = "true"
        settings[f"{source}->{target}.topics"] = f"{topic}.*"
        settings[f"{source}->{target}.groups"] = f"{topic}.*"
    return ConnectProcess("mirror.MirrorMaker", settings, folder)


def fill(bootstrap: str, topic: str, numbers: range) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in numbers:
            producer.send(
                topic, b"%d" % number, key=b"key %d" % number, headers=[("n", b"%d" % number), ("none", None)],
                partition=number % PARTITIONS, timestamp=START_MS + number,
            )  # fmt: skip
        producer.flush()


def rows(bootstrap: str, topic: str) -> list[Row]:
    """All that is committed in the topic, without the offsets."""
    found: list[Row] = []
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([(topic, number) for number in range(PARTITIONS)])
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(place) < end for place, end in ends.items()):
            for record in consumer.poll(1.0):
                headers = tuple((header[0], header[1]) for header in record.headers)
                found.append((record.partition, record.timestamp, record.key, record.value, headers))
    return sorted(found)


def commit(bootstrap: str, topic: str) -> None:
    """A group reads all there is, and commits it."""
    with Consumer(topic, bootstrap_servers=bootstrap, group_id=f"{topic}-group", auto_offset_reset="earliest") as group:
        seen = 0
        while seen < COUNT:
            seen += len(list(group.poll(1.0)))
        group.commit()


def test_both_ways(kafka: KafkaServer, gateway: str, topic: str, tmp_path: Path) -> None:
    """Records, settings of topics, partitions, and how far groups have come; exactly once, also where it is killed."""
    bootstraps = {f"kafka{topic[2:8]}": kafka.bootstrap, f"gateway{topic[2:8]}": gateway}
    one, other = bootstraps
    maker = mirror(bootstraps, topic, tmp_path / "maker")
    names = {source: f"{topic}-{source}" for source in bootstraps}
    for source, bootstrap in bootstraps.items():
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([NewTopic(names[source], PARTITIONS, 1, configs={"max.message.bytes": "123456"})])
        fill(bootstrap, names[source], range(COUNT))
        commit(bootstrap, names[source])

    def copied(source: str, target: str, count: int) -> bool:
        with Admin(bootstrap_servers=bootstraps[target]) as admin:
            if f"{source}.{names[source]}" not in {each.name for each in admin.list_topics()}:
                return False
        return len(rows(bootstraps[target], f"{source}.{names[source]}")) >= count

    def translated(source: str, target: str) -> bool:
        copy = f"{source}.{names[source]}"
        with Admin(bootstrap_servers=bootstraps[target]) as admin:
            if f"{names[source]}-group" not in {each.group_id for each in admin.list_groups()}:
                return False
            found = admin.list_group_offsets(f"{names[source]}-group")
            ends = admin.list_offsets(
                dict.fromkeys([TopicPartition(copy, number) for number in range(PARTITIONS)], OffsetSpec.LATEST)
            )
        # what is committed is the end of the copy, but for the markers of its transactions
        return len(found) == PARTITIONS and all(
            ends[place].offset - committed.offset <= 3 and committed.offset > 0
            for place, committed in found.items()
            if committed is not None
        )

    with running(maker):
        for source, target in ((one, other), (other, one)):
            maker.until(partial(copied, source, target, COUNT))
            maker.until(partial(translated, source, target))
        maker.stop(kill=True)
        for source in bootstraps:
            fill(bootstraps[source], names[source], range(COUNT, 2 * COUNT))
        maker.start()
        for source, target in ((one, other), (other, one)):
            maker.until(partial(copied, source, target, 2 * COUNT))
        maker.stop()
    for source, target in ((one, other), (other, one)):
        copy = f"{source}.{names[source]}"
        assert rows(bootstraps[target], copy) == rows(bootstraps[source], names[source])
        with Admin(bootstrap_servers=bootstraps[target]) as admin:
            resource = ConfigResource(ConfigResourceType.TOPIC, copy)
            assert admin.describe_configs([resource])[resource]["max.message.bytes"].value == "123456"
            assert len(admin.describe_topics([copy])[copy].partitions) == PARTITIONS
            present = {each.name for each in admin.list_topics(include_internal=True)}
            assert {f"{source}.checkpoints.internal", f"{source}.heartbeats", "heartbeats"} <= present
            assert f"{target}.{copy}" not in present, "what came from here does not go back"
