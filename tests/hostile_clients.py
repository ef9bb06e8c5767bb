"""What one client can do to a gateway, thoughtless or on purpose, so that its neighbours can be asked how they fare.

Each attack is a generator: what it does before its `yield` is preparation, what comes after is the attack, which ends
when `site.over`. They are what `tests/integration/test_hostile_neighbours.py` and `benchmarks/neighbours.py` share.
"""

from __future__ import annotations

import itertools
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from kclient.protocol.framing import decode_response
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    AlterConfigsRequest,
    ApiVersionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FindCoordinatorRequest,
    HeartbeatRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    ProduceRequest,
    SyncGroupRequest,
)
from kclient.protocol.messages import configs as configs_
from kclient.protocol.messages import fetch as fetch_
from kclient.protocol.messages import groups as groups_
from kclient.protocol.messages import metadata as metadata_
from kclient.protocol.messages import offsets as offsets_
from kclient.protocol.messages import produce as produce_
from kclient.protocol.messages import topics as topics_
from kclient.records import CompressionType
from kclient.records.batch_header import HEADER_SIZE, write_header
from kclient.records.compression import compress
from tests.gateway_wire import batch_of, fetch_request, produce_request
from tests.neighbour_probe import PlainClient, framed

OTHER_HOST = "127.0.0.2" if sys.platform == "linux" else None
Course: TypeAlias = "Iterator[None]"


@dataclass
class Site:
    """Where an attack takes place: the gateway's port, and the time that it has."""

    port: int
    scale: float = 1.0
    """How large things are: 1.0 for the figures of the benchmark, less for quick tests."""
    door: int = 0
    """The gateway's other port: of the listener where clients log in, or of its pages."""
    answered: int = 0
    """Requests that the attackers had an answer to."""
    refused: int = 0
    """Connections that the gateway closed."""
    over: bool = False
    _clients: list[PlainClient] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def many(self, count: int) -> int:
        return max(1, int(count * self.scale))

    def client(self, port: int | None = None, **options: Any) -> PlainClient:
        client = PlainClient(self.port if port is None else port, **options)
        with self._lock:
            self._clients.append(client)
            if self.over:
                client.close()
        return client

    def end(self) -> None:
        """The time is over: whoever waits on a socket is woken."""
        self.over = True
        with self._lock:
            for client in self._clients:
                with suppress(OSError):
                    client.socket.shutdown(socket.SHUT_RDWR)
                client.close()

    def rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.over and time.monotonic() < end:
            time.sleep(0.01)

    def repeat(self, *frames: bytes, connections: int = 1, opened: Callable[[], PlainClient] | None = None) -> None:
        """Ask again and again, on each connection one request after the other."""
        work = partial(self._repeat, itertools.cycle(frames), opened or self.client)
        side_by_side(*[work] * connections)

    def stream(self, frames: Iterator[bytes], opened: Callable[[], PlainClient] | None = None) -> None:
        """Ask one thing after the other, each once the one before is answered."""
        self._repeat(frames, opened or self.client)

    def _repeat(self, frames: Iterator[bytes], opened: Callable[[], PlainClient]) -> None:
        while not self.over:
            try:
                client = opened()
                for frame in frames:
                    client.send(frame)
                    client.discard()
                    self.answered += 1
                    if self.over:
                        return
            except OSError:
                if not self.over:
                    self.refused += 1
                    time.sleep(0.01)

    def pipeline(self, frame: bytes, connections: int = 1, ahead: int = 1 << 30) -> None:
        """Ask without waiting for the answers, which another thread throws away."""

        def read(client: PlainClient) -> None:
            with suppress(OSError):
                while not self.over:
                    client.discard()
                    self.answered += 1

        def write(client: PlainClient) -> None:
            block = frame * max(1, min(ahead, 65536 // len(frame)))
            with suppress(OSError):
                while not self.over:
                    client.send(block)

        clients = [self.client() for _ in range(connections)]
        side_by_side(*[partial(work, client) for client in clients for work in (read, write)])

    def create(self, *names: str, partitions: int = 1, **settings: str) -> None:
        configs = [topics_.CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in settings.items()]
        with PlainClient(self.port) as client:
            for start in range(0, len(names), 500):
                topics = [
                    topics_.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
                    for name in names[start : start + 500]
                ]
                answer: Any = client.call(CreateTopicsRequest(topics=topics), 7)
                assert all(topic.error_code in (0, 36) for topic in answer.topics), answer.topics[0]

    def call(self, request: ApiMessage, version: int) -> Any:
        with PlainClient(self.port) as client:
            return client.call(request, version)

    def produce(self, topic: str, batch: bytes | bytearray, partition: int = 0, times: int = 1) -> None:
        with PlainClient(self.port) as client:
            for _ in range(times):
                answer: Any = client.call(produce_request(topic, batch, partition), 9)
                row = answer.responses[0].partition_responses[0]
                assert not row.error_code, row


@dataclass(frozen=True)
class Attack:
    """An attack by name, and the settings that its gateway is started with."""

    name: str
    course: Callable[[Site], Course]
    config: dict[str, str] = field(default_factory=dict)
    keeps_memory: bool = True
    """Whether the memory that it takes is to stay within the budget of the gateway."""
    pages: bool = False
    """Whether its gateway serves its pages, /metrics among them."""


ATTACKS: dict[str, Attack] = {}


def attack(
    name: str, keeps_memory: bool = True, pages: bool = False, **config: str
) -> Callable[[Callable[[Site], Course]], Callable[[Site], Course]]:
    """Register an attack."""

    def register(course: Callable[[Site], Course]) -> Callable[[Site], Course]:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        ATTACKS[name] = Attack(name, course, settings, keeps_memory, pages)
        return course

    return register


def side_by_side(*works: Callable[[], object]) -> None:
    """Do several things in a thread each, until all have ended."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def bomb(codec: CompressionType, size: int, record_count: int = 1) -> bytes:
    """A batch of zeros that is tiny while it is compressed: one record of that size, or several."""
    each = max(1, size // record_count)
    body = bytearray()
    for number in range(record_count):
        value = each
        head = b"\x00\x00" + _varint(number) + _varint(-1) + _varint(value)
        body += _varint(len(head) + value + 1) + head + bytes(value) + b"\x00"
    return wrapped(codec, compress(codec, bytes(body)), record_count)


def wrapped(codec: CompressionType, payload: bytes, count: int, *, timestamp: int | None = None) -> bytes:
    """A batch with any payload, with a right header and checksum."""
    now = int(time.time() * 1000) if timestamp is None else timestamp
    batch = bytearray(HEADER_SIZE) + payload
    write_header(
        batch,
        base_offset=0,
        partition_leader_epoch=-1,
        attributes=int(codec),
        last_offset_delta=count - 1,
        base_timestamp=now,
        max_timestamp=now,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
    )
    return bytes(batch)


def _varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def raw_frame(api_key: int, version: int, body: bytes, tags: bytes | None = b"\x00") -> bytes:
    """A frame by hand: a header (with tagged fields unless None), and any bytes for a body."""
    header = struct.pack(">hhih", api_key, version, 1, 1) + b"x" + (tags if tags is not None else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def metadata_of(names: Iterable[str], version: int = 9) -> bytes:
    topics = [metadata_.MetadataRequestTopic(name=name) for name in names]
    return framed(MetadataRequest(topics=topics, allow_auto_topic_creation=False), version)


def many_fetched(
    topic: str, partitions: int, session_id: int = 0, epoch: int = 0, first: int = 0, **limits: int
) -> FetchRequest:
    rows = [
        FetchRequestPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(first, first + partitions)
    ]
    options = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20, **limits}
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchRequestTopic(topic=topic, partitions=rows)],
        **options,
    )


@attack("nobody else")
def nobody(site: Site) -> Course:
    yield
    site.rest(60)


# What the gateway was found to do badly


@attack("metadata of 500k names")
def metadata_names(site: Site) -> Course:
    frame = metadata_of(numbered("topic-", site.many(500_000)))
    yield
    site.repeat(frame)


@attack("fetch of 200k partitions")
def fetch_partitions(site: Site) -> Course:
    frame = framed(many_fetched("quiet", site.many(200_000), epoch=-1), 11)
    yield
    site.repeat(frame)


@attack("DescribeTopicPartitions of 12k unknown names")
def describe_unknown(site: Site) -> Course:
    topics = [
        metadata_.DescribeTopicPartitionsRequestTopicRequest(name=name)
        for name in numbered("unknown-", site.many(12_000))
    ]
    frame = framed(DescribeTopicPartitionsRequest(topics=topics), 0)
    yield
    site.repeat(frame)


@attack("zstd bombs into a gzip topic")
def recompressed_bombs(site: Site) -> Course:
    site.create("bombs", partitions=8, compression_type="gzip")
    batch = bomb(CompressionType.ZSTD, site.many(200 << 20), 200)
    data = [produce_.PartitionProduceData(index=number, records=batch) for number in range(8)]
    topic = produce_.TopicProduceData(name="bombs", partition_data=data)
    frame = framed(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
    yield
    site.repeat(frame)


@attack("ListOffsets by time in bombs")
def searched_bombs(site: Site) -> Course:
    site.create("bombs", partitions=8)
    for number in range(8):
        site.produce("bombs", bomb(CompressionType.ZSTD, site.many(100 << 20), 100), number)
    partitions = [fetch_.ListOffsetsPartition(partition_index=number, timestamp=1) for number in range(8)]
    topic = fetch_.ListOffsetsTopic(name="bombs", partitions=partitions)
    frame = framed(ListOffsetsRequest(replica_id=-1, topics=[topic]), 8)
    yield
    site.repeat(frame, connections=4)


@attack("batches recompressed to zstd level 22")
def level_22(site: Site) -> Course:
    site.create("tight", partitions=4, compression_type="zstd", compression_zstd_level="22")
    values = [b"%d %d %d" % (n, n * n, n * n * n) * 4 for n in range(site.many(6_000))]
    frames = [framed(produce_request("tight", batch_of(*values), number), 9) for number in range(4)]
    yield
    site.repeat(*frames, connections=4)


@attack("parked fetches of 18 MB on one connection")
def parked_fetches(site: Site) -> Course:
    site.create("much", "empty", retention_ms="-1")
    batch = batch_of(*[b"x" * 1000] * 900)
    site.produce("much", batch, times=site.many(20))
    parked = framed(fetch_request("empty", 0, max_wait_ms=600_000), 11)
    large = framed(fetch_request("much", 0, max_bytes=50 << 20, partition_max_bytes=18 << 20, max_wait_ms=0), 11)
    hungry = framed(
        fetch_request(
            "much", 0, max_bytes=50 << 20, partition_max_bytes=18 << 20, max_wait_ms=600_000, min_bytes=1 << 30
        ),
        11,
    )
    yield
    for frames in ((parked, large), (hungry, hungry)):
        client = site.client()
        client.send(frames[0] + frames[1] * 40)
    site.rest(60)


@attack("20 half frames of 12 MiB")
def half_frames(site: Site) -> Course:
    data = struct.pack(">i", 12 << 20) + bytes((12 << 20) - 100)
    yield
    for _ in range(20):
        client = site.client()
        threading.Thread(target=lambda client=client: _send_quietly(client, data), daemon=True).start()
    site.rest(60)


def _send_quietly(client: PlainClient, data: bytes) -> None:
    with suppress(OSError):
        client.send(data)


@attack("fetch sessions of 200k partitions")
def large_sessions(site: Site) -> Course:
    request = many_fetched("quiet", site.many(200_000))
    frame = framed(request, 11)
    yield
    while not site.over:
        with suppress(OSError):
            client = site.client()
            client.send(frame)
            client.discard()
            site.answered += 1


@attack("acks=0 while partitions open")
def acks_zero(site: Site) -> Course:
    topics = numbered("opening-", site.many(200))
    site.create(*topics, partitions=10)
    batch = batch_of(b"x" * 900_000)
    frames = [framed(produce_request(topic, batch, number, acks=0), 9) for topic in topics[:20] for number in range(10)]
    yield

    def send() -> None:
        with suppress(OSError):
            client = site.client()
            while not site.over:
                for frame in frames:
                    client.send(frame)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("2,000 joins of a group")
def joins(site: Site) -> Course:
    count = site.many(2000)
    frame = framed(join_request("crowd", metadata=bytes(200)), 3)
    yield
    for number in itertools.count():
        if site.over:
            return
        clients = [site.client() for _ in range(8)]
        frame = framed(join_request(f"crowd-{number}", metadata=bytes(200)), 3)
        for index in range(count):
            clients[index % 8].send(frame)
            if site.over:
                return
        site.rest(1)
        for client in clients:
            client.close()


def join_request(group: str, member: str = "", *, metadata: bytes = b"", session_ms: int = 60_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=300_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[groups_.JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


@attack("CreateTopics beside 5,000 topics")
def create_beside_many(site: Site) -> Course:
    site.create(*numbered("there-", site.many(5000)))
    yield
    client = site.client()
    for number in itertools.count():
        if site.over:
            return
        topic = topics_.CreatableTopic(name=f"new-{number}", num_partitions=1, replication_factor=1)
        with suppress(OSError):
            client.call(CreateTopicsRequest(topics=[topic]), 7)
            site.answered += 1


@attack("deleting 2,000 partitions", keeps_memory=False)
def delete_many(site: Site) -> Course:
    names = numbered("doomed-", max(2, site.many(20)))
    site.create(*names, partitions=100)
    frame = framed(DeleteTopicsRequest(topics=[topics_.DeleteTopicState(name=name) for name in names]), 6)
    yield
    with suppress(OSError):
        site.client().ask(frame)
        site.answered += 1
    site.rest(60)


# Numerous, or of absurd length


@attack("DescribeTopicPartitions of everything, 5,000 topics")
def describe_all(site: Site) -> Course:
    site.create(*numbered("there-", site.many(5000)))
    frame = framed(DescribeTopicPartitionsRequest(topics=[]), 0)
    yield
    site.repeat(frame, connections=4)


@attack("metadata of 5,000 topics, pipelined")
def metadata_all(site: Site) -> Course:
    site.create(*numbered("there-", site.many(5000)))
    frame = framed(MetadataRequest(topics=None, allow_auto_topic_creation=False), 9)
    yield
    site.pipeline(frame, connections=2, ahead=500)


@attack("names of 32 kB")
def long_names(site: Site) -> Course:
    name = "n" * 32_000
    metadata = metadata_of([name] * site.many(2000))
    resources = [
        configs_.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
    ] * site.many(2000)
    describe = framed(DescribeConfigsRequest(resources=resources), 4)
    yield
    site.repeat(metadata, describe)


@attack("names of settings that nobody knows")
def unknown_settings(site: Site) -> Course:
    resources = [
        configs_.IncrementalAlterConfigsRequestResource(
            resource_type=2,
            resource_name="quiet",
            configs=[
                configs_.IncrementalAlterConfigsRequestConfig(
                    name=f"retention.{number}." + "ms" * 8000, config_operation=0, value="1"
                )
            ],
        )
        for number in range(site.many(1000))
    ]
    frame = framed(IncrementalAlterConfigsRequest(resources=resources), 1)
    plain = [
        configs_.AlterConfigsRequestResource(
            resource_type=2,
            resource_name="quiet",
            configs=[configs_.AlterConfigsRequestConfig(name=f"retention.{n}.ms", value="1")],
        )
        for n in range(site.many(5000))
    ]
    yield
    site.repeat(frame, framed(AlterConfigsRequest(resources=plain), 2))


def tagged_fields(count: int) -> bytes:
    return uvarint(count) + b"\x01\x00" * count


@attack("tagged fields in headers")
def tagged_headers(site: Site) -> Course:
    frame = raw_frame(3, 9, b"\x01\x01\x00\x00\x00", tags=tagged_fields(site.many(5_000_000)))
    short = raw_frame(3, 9, b"\x01\x01\x00\x00\x00", tags=tagged_fields(1000))
    yield
    site.repeat(*[short] * 10, frame)


@attack("tagged fields in bodies")
def tagged_bodies(site: Site) -> Course:
    # one that may be held, and is answered; one that is too large; one that is cut off
    body = raw_frame(3, 9, b"\x01\x01\x00\x00" + tagged_fields(site.many(600_000)))
    large = raw_frame(3, 9, b"\x01\x01\x00\x00" + tagged_fields(site.many(5_000_000)))
    cut = raw_frame(3, 9, b"\x01\x01\x00\x00" + tagged_fields(site.many(600_000))[:-1])
    yield
    workers = [threading.Thread(target=site.repeat, args=(frame,), daemon=True) for frame in (body, large, cut)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@attack("arrays of absurd length")
def absurd_arrays(site: Site) -> Course:
    # partition indexes in one array; empty topics; texts of no length
    numbers = struct.pack(">i", site.many(20_000_000)) + bytes(4 * site.many(20_000_000))
    fetch = raw_frame(
        9, 5, struct.pack(">h", 1) + b"g" + struct.pack(">i", 1) + struct.pack(">h", 1) + b"t" + numbers, None
    )
    empty = struct.pack(">i", site.many(30_000_000)) + b"\x00\x00" * site.many(30_000_000)
    names = raw_frame(15, 0, empty, None)
    claims = raw_frame(3, 1, struct.pack(">i", 0x7FFFFFFF), None)
    yield
    site.repeat(fetch, names, claims)


@attack("malformed requests of 250 kB")
def malformed(site: Site) -> Course:
    names = metadata_of(numbered("t", 32_000))[4:-8]
    frame = struct.pack(">i", len(names)) + names
    yield
    site.repeat(frame, connections=4)


@attack("Produce of 10,000 tiny partitions")
def tiny_partitions(site: Site) -> Course:
    partitions = site.many(10_000)
    site.create("tiny", partitions=partitions)
    batch = batch_of(b"x")
    data = [produce_.PartitionProduceData(index=number, records=batch) for number in range(partitions)]
    topic = produce_.TopicProduceData(name="tiny", partition_data=data)
    frame = framed(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
    yield
    site.repeat(frame)


@attack("Produce to 200k unknown partitions")
def unknown_partitions(site: Site) -> Course:
    batch = batch_of(b"x")
    data = [produce_.PartitionProduceData(index=number, records=batch) for number in range(site.many(200_000))]
    topic = produce_.TopicProduceData(name="unknown", partition_data=data)
    frame = framed(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
    yield
    site.repeat(frame)


def _commit(count: int, group: str = "committed", topic: str = "quiet") -> bytes:
    partitions = [
        offsets_.OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="")
        for number in range(count)
    ]
    topics = [offsets_.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return framed(OffsetCommitRequest(group_id=group, topics=topics), 8)


@attack("OffsetCommit of 200k partitions")
def commit_many(site: Site) -> Course:
    frame = _commit(site.many(200_000))
    yield
    site.repeat(frame)


@attack("OffsetCommit of 10,000 partitions that are stored")
def commit_stored(site: Site) -> Course:
    count = site.many(10_000)
    site.create("wide", partitions=count)
    frame = _commit(count, topic="wide")
    yield
    site.repeat(frame)


@attack("OffsetFetch over everything, 200k offsets")
def fetch_offsets(site: Site) -> Course:
    with PlainClient(site.port, timeout=120) as client:
        client.ask(_commit(site.many(200_000)))
    group = offsets_.OffsetFetchRequestGroup(group_id="committed", topics=None)
    frame = framed(OffsetFetchRequest(groups=[group]), 8)
    yield
    site.repeat(frame, connections=2)


@attack("OffsetDelete of 200k partitions")
def delete_offsets(site: Site) -> Course:
    commit = _commit(site.many(200_000))
    partitions = [offsets_.OffsetDeleteRequestPartition(partition_index=number) for number in range(site.many(200_000))]
    topic = offsets_.OffsetDeleteRequestTopic(name="quiet", partitions=partitions)
    delete = framed(OffsetDeleteRequest(group_id="committed", topics=[topic]), 0)
    yield
    site.repeat(commit, delete)


@attack("DeleteRecords of 200k partitions")
def delete_records(site: Site) -> Course:
    partitions = [
        fetch_.DeleteRecordsPartition(partition_index=number, offset=0) for number in range(site.many(200_000))
    ]
    topic = fetch_.DeleteRecordsTopic(name="quiet", partitions=partitions)
    frame = framed(fetch_.DeleteRecordsRequest(topics=[topic], timeout_ms=30_000), 2)
    yield
    site.repeat(frame)


@attack("CreateTopics of 5,000, checked only")
def create_checked(site: Site) -> Course:
    topics = [
        topics_.CreatableTopic(name=name, num_partitions=100, replication_factor=1)
        for name in numbered("checked-", site.many(5000))
    ]
    frame = framed(CreateTopicsRequest(topics=topics, validate_only=True), 7)
    yield
    site.repeat(frame)


@attack("CreateTopics of 1,000", keeps_memory=False)
def create_thousands(site: Site) -> Course:
    yield
    with suppress(OSError):
        client = site.client()
        for number in itertools.count():
            if site.over:
                return
            topics = [
                topics_.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
                for name in numbered(f"made-{number}-", site.many(1000))
            ]
            client.ask(framed(CreateTopicsRequest(topics=topics), 7))
            site.answered += 1


@attack("ListOffsets of 200k partitions")
def list_many(site: Site) -> Course:
    partitions = [
        fetch_.ListOffsetsPartition(partition_index=number % 2, timestamp=-1) for number in range(site.many(200_000))
    ]
    topic = fetch_.ListOffsetsTopic(name="quiet", partitions=partitions)
    frame = framed(ListOffsetsRequest(replica_id=-1, topics=[topic]), 8)
    yield
    site.repeat(frame)


@attack("ListOffsets by time over compressed logs")
def list_by_time(site: Site) -> Course:
    site.create("old", partitions=4, retention_ms="-1")
    values = [b"%d" % n * 8 for n in range(20_000)]
    batch = batch_of(*values, compression=CompressionType.GZIP)
    for number in range(4):
        site.produce("old", batch, number, times=site.many(40))
    partitions = [fetch_.ListOffsetsPartition(partition_index=n % 4, timestamp=1 + n) for n in range(400)]
    partitions += [fetch_.ListOffsetsPartition(partition_index=n % 4, timestamp=-3) for n in range(40)]
    topic = fetch_.ListOffsetsTopic(name="old", partitions=partitions)
    frame = framed(ListOffsetsRequest(replica_id=-1, topics=[topic]), 8)
    yield
    site.repeat(frame, connections=4)


@attack("OffsetForLeaderEpoch of 200k partitions")
def epochs(site: Site) -> Course:
    partitions = [
        fetch_.OffsetForLeaderPartition(partition=number, leader_epoch=1) for number in range(site.many(200_000))
    ]
    topic = fetch_.OffsetForLeaderTopic(topic="quiet", partitions=partitions)
    frame = framed(fetch_.OffsetForLeaderEpochRequest(topics=[topic]), 4)
    yield
    site.repeat(frame)


@attack("FindCoordinator of 500k keys")
def coordinators(site: Site) -> Course:
    frame = framed(FindCoordinatorRequest(key_type=0, coordinator_keys=numbered("g", site.many(500_000))), 4)
    yield
    site.repeat(frame)


@attack("DescribeConfigs of 5,000 resources")
def describe_configs(site: Site) -> Course:
    resources = [
        configs_.DescribeConfigsResource(resource_type=4, resource_name="", configuration_keys=None)
        for _ in range(site.many(5000))
    ]
    frame = framed(DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True), 4)
    yield
    site.repeat(frame)


# Groups


@attack("DescribeGroups and DeleteGroups of 500k names")
def describe_groups(site: Site) -> Course:
    names = numbered("group-", site.many(500_000))
    describe = framed(DescribeGroupsRequest(groups=names), 5)
    delete = framed(DeleteGroupsRequest(groups_names=names), 2)
    yield
    site.repeat(describe, delete)


@attack("ListGroups of 20,000 groups")
def list_groups(site: Site) -> Course:
    with PlainClient(site.port) as client:
        for number in range(site.many(20_000)):
            client.send(framed(join_request(f"listed-{number}"), 3))
            if number % 500 == 499:
                for _ in range(500):
                    client.discard()
    frame = framed(ListGroupsRequest(), 4)
    yield
    site.repeat(frame, connections=4)


@attack("groups with metadata of 20 MB")
def fat_groups(site: Site) -> Course:
    frame = framed(join_request("fat", metadata=bytes(site.many(20 << 20))), 3)
    yield
    workers = []
    for number in range(4):
        fat = frame.replace(b"fat", b"f%02d" % number, 1)

        def run(fat: bytes = fat, group: str = f"f{number:02d}") -> None:
            while not site.over:
                with suppress(OSError):
                    client = site.client()
                    client.send(fat)
                    answer: Any = decode_response(JoinGroupResponse, client.receive(), 3)[1]
                    assignment = groups_.SyncGroupRequestAssignment(
                        member_id=answer.member_id, assignment=bytes(site.many(20 << 20))
                    )
                    sync = SyncGroupRequest(
                        group_id=group,
                        generation_id=answer.generation_id,
                        member_id=answer.member_id,
                        assignments=[assignment],
                    )
                    client.ask(framed(sync, 2))
                    site.answered += 1
                    client.close()

        workers.append(threading.Thread(target=run, daemon=True))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@attack("a crowd that rebalances for ever", group_initial_rebalance_delay_ms="1000")
def rebalances(site: Site) -> Course:
    count = site.many(250)
    joining = framed(join_request("restless", metadata=bytes(200)), 3)
    clients = [site.client() for _ in range(4)]  # a connection has so many requests unanswered at most
    for client in clients:
        client.send(joining * count)
    members = [
        [decode_response(JoinGroupResponse, client.receive(), 3)[1].member_id for _ in range(count)]
        for client in clients
    ]
    yield
    with suppress(OSError):
        for number in itertools.count():
            if site.over:
                return
            for client, known in zip(clients, members, strict=True):
                metadata = bytes(200 + number % 2)
                client.send(b"".join(framed(join_request("restless", each, metadata=metadata), 3) for each in known))
            for client, known in zip(clients, members, strict=True):
                for _ in known:
                    client.discard()
            site.answered += 4 * count


@attack("LeaveGroup and SyncGroup of 500k members")
def leave_many(site: Site) -> Course:
    count = site.many(500_000)
    members = [groups_.LeaveGroupRequestMember(member_id=name) for name in numbered("m", count)]
    leave = framed(LeaveGroupRequest(group_id="left", members=members), 4)
    assignments = [groups_.SyncGroupRequestAssignment(member_id=name, assignment=b"") for name in numbered("m", count)]
    sync = framed(SyncGroupRequest(group_id="left", generation_id=1, member_id="x", assignments=assignments), 4)
    yield
    site.repeat(leave, sync)


@attack("member ids asked for and never used")
def pending_members(site: Site) -> Course:
    frame = framed(join_request("pending", session_ms=1_800_000), 5)
    yield
    site.pipeline(frame, connections=4)


# Bytes: bombs, floods, slow readers


def _bomb_course(codec: CompressionType) -> Callable[[Site], Course]:
    def course(site: Site) -> Course:
        site.create("bombs", partitions=8)
        size = 16 << 20 if codec is CompressionType.SNAPPY else 200 << 20
        batch = bomb(codec, site.many(size), 200)
        data = [produce_.PartitionProduceData(index=number, records=batch) for number in range(8)]
        topic = produce_.TopicProduceData(name="bombs", partition_data=data)
        frame = framed(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
        yield
        site.repeat(frame, connections=4)

    return course


for _codec in (CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD):
    attack(f"bombs of {_codec.name.lower()}")(_bomb_course(_codec))


@attack("pipelined ApiVersions")
def api_versions_flood(site: Site) -> Course:
    frame = framed(ApiVersionsRequest(client_software_name="flood", client_software_version="1"), 3)
    yield
    site.pipeline(frame, connections=8)


@attack("pipelined Produce of 1 kB")
def produce_flood(site: Site) -> Course:
    site.create("flooded", partitions=4)
    frame = framed(produce_request("flooded", batch_of(b"x" * 1000), 0, acks=1), 9)
    yield
    site.pipeline(frame, connections=8)


@attack("Produce of 1 MB, five in flight on four connections")
def produce_hogs(site: Site) -> Course:
    site.create("hogged", partitions=4, retention_ms="-1")
    frame = framed(produce_request("hogged", batch_of(*[b"x" * 1000] * 1000), 0, acks=1), 9)
    yield
    site.pipeline(frame, connections=4, ahead=1)


@attack("pipelined heartbeats and InitProducerId")
def small_flood(site: Site) -> Course:
    beat = framed(HeartbeatRequest(group_id="nobody", generation_id=1, member_id="x"), 4)
    ids = framed(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
    yield
    site.pipeline(beat + ids, connections=8)


@attack("Fetch of 50 MB, as fast as it can be read")
def fetch_hogs(site: Site) -> Course:
    site.create("much", retention_ms="-1")
    site.produce("much", batch_of(*[b"x" * 1000] * 900), times=site.many(60))
    frame = framed(fetch_request("much", 0, max_bytes=50 << 20, partition_max_bytes=50 << 20), 11)
    yield
    site.repeat(frame, connections=3)


@attack("100 slow readers of 50 MB")
def slow_readers(site: Site) -> Course:
    site.create("much", retention_ms="-1")
    site.produce("much", batch_of(*[b"x" * 1000] * 900), times=site.many(60))
    frame = framed(fetch_request("much", 0, max_bytes=50 << 20, partition_max_bytes=50 << 20), 11)
    yield
    for _ in range(site.many(100)):
        with suppress(OSError):
            site.client(receive_buffer=4096).send(frame * 3)
    site.rest(60)


@attack("1,000 connections and half a frame on each")
def idle_crowd(site: Site) -> Course:
    frame = framed(ApiVersionsRequest(client_software_name="crowd", client_software_version="1"), 3)
    half = len(frame) // 2
    yield
    clients = []
    with suppress(OSError):
        for _ in range(site.many(1000)):
            clients.append(site.client())
            clients[-1].send(frame[:half])
    for client in itertools.cycle(clients):
        if site.over:
            return
        with suppress(OSError):
            client.send(frame[half:])
            client.discard()
            site.answered += 1
            client.send(frame[:half])


@attack("a host with 300 connections that ask all the time")
def crowded_host(site: Site) -> Course:
    """From another address, where the system has more of them for itself: a client and a host are two things."""
    frame = framed(ApiVersionsRequest(client_software_name="crowd", client_software_version="1"), 3)
    yield
    clients = [site.client(host=OTHER_HOST) for _ in range(site.many(300))]

    def read(some: list[PlainClient]) -> None:
        with suppress(OSError):
            while not site.over:
                for client in some:
                    client.discard()
                    client.send(frame)
                    site.answered += 1

    for client in clients:
        client.send(frame)
    workers = [threading.Thread(target=read, args=(clients[number::4],), daemon=True) for number in range(4)]
    for worker in workers:
        worker.start()
    site.rest(60)


@attack("connections made and dropped")
def churn(site: Site) -> Course:
    frame = framed(ApiVersionsRequest(client_software_name="churn", client_software_version="1"), 3)
    yield

    def run() -> None:
        while not site.over:
            with suppress(OSError), PlainClient(site.port, timeout=5) as client:
                client.send(frame)
                site.answered += 1

    threads = [threading.Thread(target=run, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("fetch sessions made anew all the time")
def session_churn(site: Site) -> Course:
    site.create("wide", partitions=site.many(1000))
    frame = framed(many_fetched("wide", site.many(1000)), 11)
    yield
    site.repeat(frame, connections=4)


@attack("incremental fetches of a wide session")
def wide_session(site: Site) -> Course:
    count = site.many(5000)
    site.create("wide", partitions=count)
    yield

    def run() -> None:
        with suppress(OSError):
            client = site.client()
            made: Any = client.call(many_fetched("wide", count), 11)
            assert isinstance(made, FetchResponse)
            for epoch in itertools.count(1):
                if site.over:
                    return
                request = FetchRequest(
                    max_wait_ms=0, min_bytes=1, session_id=made.session_id, session_epoch=epoch, topics=[]
                )
                client.send(framed(request, 11))
                client.discard()
                site.answered += 1

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("100,000 producer ids")
def producer_ids(site: Site) -> Course:
    site.create("ids")
    client = site.client()
    template = produce_request("ids", batch_of(b"x", producer_id=1, producer_epoch=0, sequence=0), acks=1)
    del template
    yield

    def read() -> None:
        with suppress(OSError):
            while not site.over:
                client.discard()
                site.answered += 1

    threading.Thread(target=read, daemon=True).start()
    with suppress(OSError):
        for number in itertools.count(1):
            if site.over:
                return
            batch = batch_of(b"x", producer_id=number, producer_epoch=0, sequence=0)
            client.send(framed(produce_request("ids", batch, acks=1), 9))


@attack("every attack at once")
def everything(site: Site) -> Course:
    names = ["fetch of 200k partitions", "metadata of 500k names", "bombs of zstd", "pipelined Produce of 1 kB"]
    courses = [ATTACKS[name].course(site) for name in names]
    for course in courses:
        next(course)
    yield
    side_by_side(*[partial(list, course) for course in courses])
