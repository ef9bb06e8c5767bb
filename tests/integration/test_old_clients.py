"""Java clients of 2016 against Kafka 3.9.1, the last that serves them, and against the gateway, which still does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kclient.sync import Consumer, Gateway, Producer
from tests.kafka_artifacts import CLIENTS_OF_OLD, client_jars
from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.foreign, pytest.mark.maven]

CLIENT = Path(__file__).parent.parent / "java" / "OldClient.java"
COUNT = 20
CODECS = ("none", "gzip", "snappy", "lz4")


@pytest.fixture(scope="module")
def gateway_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {"group.initial.rebalance.delay.ms": 0}
    with Gateway(f"embedded:{tmp_path_factory.mktemp('gateway')}", "127.0.0.1:0", config=config) as gateway:
        yield gateway.bootstrap


@pytest.fixture(params=[pytest.param("kafka3", marks=pytest.mark.kafka), "gateway_of_all"])
def old_server(request: pytest.FixtureRequest) -> str:
    found: str | KafkaServer = request.getfixturevalue(request.param)
    return found if isinstance(found, str) else found.bootstrap


@pytest.fixture(scope="module", params=CLIENTS_OF_OLD)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the program, compiled against a release."""
    jars, classes = client_jars(request.param), tmp_path_factory.mktemp("classes")
    path = f"{classes}{os.pathsep}{jars}/*"
    command = ["javac", "-nowarn", "-cp", path, "-d", str(classes), str(CLIENT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("codec", CODECS)
def test_they_produce_and_consume_beside_clients_of_today(
    old_server: str, program: str, topic: str, codec: str
) -> None:
    with Producer(bootstrap_servers=old_server) as producer:
        for number in range(COUNT):
            producer.send(topic, f"new {number}".encode(), key=b"new", headers=[("lost", b"on them")], partition=0)
        producer.flush()
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", program, "OldClient", old_server, topic, f"{topic}-group",
               codec, str(COUNT), str(2 * COUNT)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("sent")] == [f"sent {COUNT + n}" for n in range(COUNT)]
    new = [f"read {n} new new {n}" for n in range(COUNT)]
    old = [f"read {COUNT + n} key {n} {codec} {n}" for n in range(COUNT)]
    assert [line for line in lines if line.startswith("read")] == new + old
    assert lines[-1] == f"committed {2 * COUNT}"
    with Consumer(bootstrap_servers=old_server, auto_offset_reset="earliest") as reader:
        reader.assign([(topic, 0)])
        values: list[bytes | None] = []
        while len(values) < 2 * COUNT:
            values += [record.value for record in reader.poll(1.0)]
    assert values[COUNT:] == [f"{codec} {number}".encode() for number in range(COUNT)]
