"""Faults at the gateway's door: garbage, absurd sizes, damaged batches, a full disk. The others are served."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import psutil
import pytest

from kclient.errors import ErrorCode, KafkaError, error_for
from kclient.protocol.framing import decode_response, encode_request
from kclient.protocol.messages import (
    ApiVersionsRequest,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kclient.records import BatchBuilder
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess

NOW = int(time.time() * 1000)  # retention deletes what is older than a week


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway for one test."""
    process = GatewayProcess(tmp_path / "data")
    process.start()
    try:
        yield process
    finally:
        process.stop()


def connect(bootstrap: str) -> socket.socket:
    host, port = bootstrap.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def closed_by_peer(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True


def frame(connection: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = connection.recv(count - len(found))
            assert part, "the gateway hung up"
            found += part
        return found

    return exactly(struct.unpack(">i", exactly(4))[0])


def works(bootstrap: str, topic: str) -> None:
    """Others are served: a record goes in and comes out."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        stored = producer.send(topic, b"still here").result(timeout=20)
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        partition = TopicPartition(topic, stored.partition)
        consumer.assign([partition])
        consumer.seek(partition, stored.offset)
        assert [record.value for record in consumer.poll(timeout=20)] == [b"still here"]


def request_bytes(message: ApiVersionsRequest | ProduceRequest, version: int) -> bytes:
    return b"".join(encode_request(message, version, correlation_id=7, client_id="fault"))


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1) + b"x" * 1000,
        struct.pack(">i", 4) + b"\x7f\x7f\x7f\x7f",
        struct.pack(">ihhi", 8, 0, 3, 1),
        struct.pack(">i", 0),
    ],
    ids=["HTTP", "TLS", "negative size", "2 GB", "header cut short", "body missing", "nothing"],
)
def test_garbage_on_the_port(own_gateway: GatewayProcess, topic: str, garbage: bytes) -> None:
    process = psutil.Process(own_gateway.pid)
    before = process.memory_info().rss
    with connect(own_gateway.bootstrap) as connection:
        connection.sendall(garbage)
        assert closed_by_peer(connection)
    works(own_gateway.bootstrap, topic)
    assert process.memory_info().rss - before < 64 << 20
    code = own_gateway.stop()
    assert code == 0
    log = "".join(own_gateway.stderr)
    assert "127.0.0.1:" in log, "the log names the peer"
    assert "Traceback" not in log


def test_a_request_that_never_ends_is_no_burden(own_gateway: GatewayProcess, topic: str) -> None:
    whole = request_bytes(ApiVersionsRequest(), 0)
    half_open = [connect(own_gateway.bootstrap) for _ in range(50)]
    for connection in half_open:
        connection.sendall(whole[:-1])
    works(own_gateway.bootstrap, topic)
    for connection in half_open:
        connection.sendall(whole[-1:])
        assert frame(connection)[:4] == struct.pack(">i", 7)
        connection.close()


def batch(values: list[bytes]) -> bytearray:
    builder = BatchBuilder(limit=1 << 20)
    for value in values:
        assert builder.append(NOW, None, value) >= 0
    return builder.build()


def produce_raw(connection: socket.socket, topic: str, records: bytes | bytearray) -> int:
    """Sends the bytes as one batch; the error code of the answer."""
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    connection.sendall(request_bytes(ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data]), 7))
    _, response = decode_response(ProduceResponse, frame(connection), 7)
    return int(response.responses[0].partition_responses[0].error_code)


def test_damaged_batches_are_refused(own_gateway: GatewayProcess, topic: str) -> None:
    with Admin(bootstrap_servers=own_gateway.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    good = batch([b"one", b"two"])
    with connect(own_gateway.bootstrap) as connection:
        for position in range(16, len(good)):
            damaged = bytearray(good)
            damaged[position] ^= 0x40
            code = produce_raw(connection, topic, damaged)
            assert code in {
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.INVALID_RECORD,
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            }, (position, code)
        for length in (0, 1, 60, len(good) - 1):
            assert produce_raw(connection, topic, good[:length]) != 0, length
        assert produce_raw(connection, topic, good) == 0
    with Consumer(bootstrap_servers=own_gateway.bootstrap) as consumer:
        assert consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 2}


def test_damage_on_disk_is_named_not_passed_on(tmp_path: Path, topic: str) -> None:
    gateway = GatewayProcess(tmp_path / "data")
    gateway.start()
    try:
        with Admin(bootstrap_servers=gateway.bootstrap) as admin:
            admin.create_topic(topic, partitions=1)
        with Producer(bootstrap_servers=gateway.bootstrap) as producer:
            producer.send(topic, b"x" * 1000).result(timeout=20)
            producer.send(topic, b"y" * 1000).result(timeout=20)
        (segment,) = [path for path in gateway.data.rglob("*") if path.is_file() and b"x" * 1000 in path.read_bytes()]
        content = bytearray(segment.read_bytes())
        position = content.index(b"x" * 1000) + 500
        with segment.open("r+b") as file:
            file.seek(position)
            file.write(b"!")
        with Consumer(bootstrap_servers=gateway.bootstrap) as consumer:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            with pytest.raises(KafkaError, match=topic):
                consumer.poll(timeout=20)
            consumer.seek(partition, 1)
            assert [record.value[:1] for record in consumer.poll(timeout=20)] == [b"y"]
    finally:
        gateway.stop()


def test_our_client_goes_on_after_a_restart(tmp_path: Path, topic: str) -> None:
    gateway = GatewayProcess(tmp_path / "data")
    gateway.start()
    try:
        with (
            Producer(bootstrap_servers=gateway.bootstrap) as producer,
            Consumer(
                topic,
                group_id="g",
                bootstrap_servers=gateway.bootstrap,
                auto_offset_reset="earliest",
                metadata_max_age_ms=1000,
            ) as consumer,
        ):
            read: list[bytes | None] = []
            for round_number in range(3):
                for number in range(100):
                    producer.send(topic, f"{round_number} {number}".encode(), partition=0)
                producer.flush()
                while len(read) < 100 * (round_number + 1):
                    read += [record.value for record in consumer.poll(timeout=1.0)]
                consumer.commit()
                gateway.stop(kill=True)
                gateway.start()
        assert read == [f"{r} {n}".encode() for r in range(3) for n in range(100)]
    finally:
        gateway.stop()


@pytest.mark.foreign
def test_confluent_goes_on_after_a_restart(tmp_path: Path, topic: str) -> None:
    gateway = GatewayProcess(tmp_path / "data")
    gateway.start()
    failed: list[object] = []
    try:
        producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap, "enable.idempotence": True})
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": gateway.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        with Admin(bootstrap_servers=gateway.bootstrap) as admin:
            admin.create_topic(topic, partitions=1)
        consumer.subscribe([topic])
        read: list[bytes] = []
        for round_number in range(3):
            for number in range(100):
                producer.produce(
                    topic,
                    f"{round_number} {number}".encode(),
                    on_delivery=lambda error, message: failed.append(error) if error else None,
                )
            if round_number == 1:
                gateway.stop(kill=True)
                gateway.start()
            assert producer.flush(60) == 0
            while len(read) < 100 * (round_number + 1):
                for message in consumer.consume(100, timeout=1.0):
                    if message.error() is None:
                        read.append(message.value())
        consumer.close()
        assert not failed
        assert read == [f"{r} {n}".encode() for r in range(3) for n in range(100)]
    finally:
        gateway.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB; skipped visibly where mounting is not allowed."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(small_disk: Path, topic: str) -> None:
    ballast = small_disk / "ballast"
    gateway = GatewayProcess(small_disk / "data")
    gateway.start()
    try:
        with Admin(bootstrap_servers=gateway.bootstrap) as admin:
            admin.create_topic(topic, partitions=1)
        with connect(gateway.bootstrap) as connection:
            assert produce_raw(connection, topic, batch([b"before"])) == 0
            free = shutil.disk_usage(small_disk).free
            ballast.write_bytes(bytes(free - 200_000))
            codes = [produce_raw(connection, topic, batch([os.urandom(100_000)])) for _ in range(6)]
            assert codes[-1] == ErrorCode.KAFKA_STORAGE_ERROR, [error_for(code) for code in codes if code]
            stored = codes.count(0)
            ballast.unlink()
            assert produce_raw(connection, topic, batch([b"after"])) == 0
        with Consumer(bootstrap_servers=gateway.bootstrap) as consumer:
            partition = TopicPartition(topic, 0)
            assert consumer.end_offsets([partition]) == {partition: stored + 2}
    finally:
        gateway.stop()
    assert any("space" in line.lower() or "full" in line.lower() for line in gateway.stderr), "the log names the cause"
