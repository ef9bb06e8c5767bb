"""As `hostile_clients`: what one client can do with the message formats of old, which are converted for it."""

from __future__ import annotations

from kclient.protocol.messages import FetchRequest, ProduceRequest
from kclient.protocol.messages import fetch as fetch_
from kclient.protocol.messages import produce as produce_
from kclient.records import CompressionType, MessageSetBuilder
from tests.gateway_wire import batch_of
from tests.hostile_clients import Course, Site, attack
from tests.neighbour_probe import framed

PARTITIONS = 8


def _sent(topic: str, records: bytes, version: int) -> bytes:
    data = [produce_.PartitionProduceData(index=number, records=records) for number in range(PARTITIONS)]
    wanted = produce_.TopicProduceData(name=topic, partition_data=data)
    return framed(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[wanted]), version)


def _fetched(topic: str, version: int) -> bytes:
    partitions = [
        fetch_.FetchRequestPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 30)
        for number in range(PARTITIONS)
    ]
    wanted = fetch_.FetchRequestTopic(topic=topic, partitions=partitions)
    return framed(FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=[wanted]), version)


@attack("message sets of very many messages")
def many_messages(site: Site) -> Course:
    site.create("old", partitions=PARTITIONS)
    builder = MessageSetBuilder(magic=0, limit=1 << 24)
    for _ in range(site.many(35_000)):
        builder.append(-1, None, b"")
    frame = _sent("old", bytes(builder.build()), 0)
    yield
    site.repeat(frame)


@attack("message sets that are bombs of gzip")
def bombs_of_old(site: Site) -> Course:
    site.create("old", partitions=PARTITIONS)
    builder = MessageSetBuilder(magic=1, limit=1 << 28, compression=CompressionType.GZIP)
    for _ in range(8):
        builder.append(1, None, b"\0" * site.many(25 << 20))
    frame = _sent("old", bytes(builder.build()), 2)
    yield
    site.repeat(frame)


@attack("fetches of old over very many records")
def fetches_of_old(site: Site) -> Course:
    site.create("new", partitions=PARTITIONS)
    batch = batch_of(*[b""] * site.many(100_000))
    for number in range(PARTITIONS):
        site.produce("new", batch, number)
    frame = _fetched("new", 1)
    yield
    site.repeat(frame, connections=4)
