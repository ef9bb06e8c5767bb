"""Moving in from real Kafka: clients change their address, and miss and repeat nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import confluent_kafka
import pytest

from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess
from tests.kafka_cluster import ONE_CLUSTER, KafkaCluster
from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]


def begin(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kclient", "migrate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def running(*both: str) -> subprocess.Popen[str]:
    """A mirror that runs."""
    process = begin("run", *both, "--listen", "127.0.0.1:0")
    assert process.stderr is not None
    assert "clients may read" in process.stderr.readline()
    return process


def command(*arguments: str) -> str:
    """What a command printed, which has to succeed."""
    process = begin(*arguments)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err + out
    return out


class Application:
    """Produces numbers and reads them in a group, until it is stopped; it may be started again at another address."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.read: list[int] = []
        self._stop_sending = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, bootstrap: str) -> None:
        self._stop_sending.clear()
        self._threads = [threading.Thread(target=work, args=(bootstrap,)) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop producing; the reader reads what is left, commits, and leaves its group."""
        self._stop_sending.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.read) < count:
            assert time.monotonic() < deadline, f"only {len(self.read)} were read"
            time.sleep(0.05)

    def _send(self, bootstrap: str) -> None:
        with Producer(bootstrap_servers=bootstrap, compression_type="lz4", linger_ms=2) as producer:
            while not self._stop_sending.is_set():
                for _ in range(20):
                    producer.send(self.topic, b"%d" % self.sent, key=b"%d" % (self.sent % 10))
                    self.sent += 1
                producer.flush()
                time.sleep(0.01)

    def _receive(self, bootstrap: str) -> None:
        with Consumer(
            self.topic, bootstrap_servers=bootstrap, group_id=f"group-{self.topic}", auto_offset_reset="none",
            enable_auto_commit=False,
        ) as consumer:  # fmt: skip
            while not self._stop_sending.is_set() or len(self.read) < self.sent:
                self.read += [int(record.value) for record in consumer.poll(0.2)]
                consumer.commit()


def committed_values(bootstrap: str, topic: str) -> list[tuple[int, int, bytes | None]]:
    """Every committed record of a topic: partition, offset and value."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, each, confluent_kafka.OFFSET_BEGINNING) for each in partitions]
    )
    left, found = set(partitions), list[tuple[int, int, bytes | None]]()
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline, f"no end of the partitions {left}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append((message.partition() or 0, message.offset() or 0, message.value()))
        else:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            left.discard(message.partition())
    consumer.close()
    return sorted(found, key=lambda each: each[:2])


def transactions(bootstrap: str, topic: str) -> None:
    """Two committed and one aborted between them."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"id-{topic}"})
    producer.init_transactions(30)
    for number, committed in enumerate((True, False, True)):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(topic, b"%d" % number, partition=0)
        if committed:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)


def compacted(bootstrap: str, topic: str) -> None:
    """A log with holes: most records have later ones of the same key, and were removed."""
    with Producer(bootstrap_servers=bootstrap, batch_size=1, linger_ms=0) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, key=b"%d" % (number % 3), partition=0)
            producer.flush()
        deadline = time.monotonic() + 120
        while len(committed_values(bootstrap, topic)) > 60:
            assert time.monotonic() < deadline, "the log was not compacted"
            producer.send(topic, b"again", key=b"again", partition=0)  # it is looked at when segments are closed
            producer.flush()
            time.sleep(1)


@pytest.mark.parametrize("version", [pytest.param("kafka3", marks=pytest.mark.long), "kafka"])
def test_clients_change_their_address_only(version: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: KafkaServer = request.getfixturevalue(version)
    mark = uuid.uuid4().hex[:8]
    live, txn, holes, cut = (f"{kind}-{mark}" for kind in ("live", "txn", "holes", "cut"))
    store = f"embedded:{tmp_path / 'store'}"
    both = "--from", server.bootstrap, "--to", store, "--pattern", f".*-{mark}"
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topic(live, 3)
        admin.create_topic(txn, 1)
        admin.create_topic(cut, 1, configs={"retention.ms": "-1"})
        admin.create_topic(
            holes, 1, configs={"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
        )
        admin.alter_group_offsets(f"group-{live}", {(live, number): 0 for number in range(3)})
    transactions(server.bootstrap, txn)
    compacted(server.bootstrap, holes)
    with Producer(bootstrap_servers=server.bootstrap, compression_type="zstd") as producer:
        for number in range(100):
            producer.send(cut, b"%d" % number, partition=0)
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.delete_records({(cut, 0): 42})

    plan = json.loads(command("plan", *both, "--json"))
    assert {each["name"]: each["problem"] for each in plan["topics"]} == dict.fromkeys(sorted([live, txn, holes, cut]))
    assert all(each["size"] is not None for each in plan["topics"])
    assert plan["others"]["unknown"] == []
    assert bool(plan["others"]["credentials"]) is (version == "kafka")  # which has users, for the tests of SASL

    application = Application(live)
    application.start(server.bootstrap)
    try:
        first = running(*both)
        application.wait_for(500)
        first.kill()
        first.communicate()
        second = running(*both)
        application.wait_for(len(application.read) + 500)
    finally:
        application.stop()
    second.terminate()
    assert second.communicate(timeout=60)[1].count("Error") == 0
    assert second.returncode == 0
    told = command("cutover", *both, "--quiet-seconds", "1")
    assert "4 topics were taken over" in told

    gateway = GatewayProcess(tmp_path / "store")
    gateway.start()
    try:
        for topic in (txn, cut):
            assert committed_values(gateway.bootstrap, topic) == committed_values(server.bootstrap, topic)
        moved = committed_values(gateway.bootstrap, holes)
        left = committed_values(server.bootstrap, holes)  # where the log has been compacted further since
        assert set(left) <= set(moved)
        assert (left[-1], len(moved) <= 60) == (moved[-1], True)
        before = len(application.read)
        application.start(gateway.bootstrap)
        try:
            application.wait_for(before + 500)
        finally:
            application.stop()
        assert sorted(application.read) == list(range(application.sent))
        with Consumer(bootstrap_servers=gateway.bootstrap) as consumer:
            (start,) = consumer.beginning_offsets([TopicPartition(cut, 0)]).values()
            assert start == 42
    finally:
        gateway.stop()


@ONE_CLUSTER
def test_brokers_that_die_and_leaders_that_move(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic = f"moving-{uuid.uuid4().hex[:8]}"
    both = "--from", cluster.bootstrap, "--to", f"embedded:{tmp_path / 'store'}", topic
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, batch_size=500) as producer:
            for number in range(sent, sent + count):
                producer.send(topic, b"%d" % number, partition=number % 6)
        sent += count

    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(topic, 6, 3)
    cluster.wait_for_leaders(topic, 6)
    send(300)
    mirror = running(*both, "--max-bytes-per-second", "20000")
    try:
        send(300)
        cluster.servers[2].stop(kill=True)
        cluster.wait_for_leaders(topic, 6, (1, 3))
        send(300)
        cluster.heal()
        cluster.elect()
        send(300)
        mirror.send_signal(signal.SIGTERM)
        told = mirror.communicate(timeout=60)[1]
        assert (mirror.returncode, "Error" in told) == (0, False), told
    finally:
        mirror.kill()
        mirror.communicate()
        cluster.heal()
    command("run", *both, "--until-caught-up")
    compared = json.loads(command("verify", *both, "--json"))
    assert sum(each["records"] for each in compared["partitions"]) == sent
