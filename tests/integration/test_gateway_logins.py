"""Unmodified foreign clients, and Kafka's own tools, log in at a gateway."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kclient.sync
from kclient.admin import (
    AclBinding,
    AclOperation,
    NewTopic,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kclient.cli.app import run
from kclient.errors import ClusterAuthorizationError
from tests.confluent_round_trip import produce_and_consume
from tests.gateway_process import GatewayProcess, wait_for_gateways

pytestmark = pytest.mark.foreign

PASSWORD = "wonder, land="
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}";'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SESSION_MS = 800


@pytest.fixture(scope="module")
def locked() -> Iterator[dict[str, str]]:
    """The addresses of a gateway's listeners; the second one where clients log in has short sessions."""
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,SHORT://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.clients.plain.sasl.jaas.config": JAAS,
        "listener.name.short.connections.max.reauth.ms": SESSION_MS,
        "group.initial.rebalance.delay.ms": 0,
    }
    with kclient.sync.Gateway(f"memory:locked-{uuid.uuid4().hex}", config=config) as gateway:
        with kclient.sync.Admin(bootstrap_servers=gateway.bootstrap) as admin:
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                credential = UserScramCredentialUpsertion(user="alice", mechanism=mechanism, password=PASSWORD)
                admin.alter_user_scram_credentials([credential])
        yield gateway.advertised


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_logs_in(locked: dict[str, str], mechanism: str, topic: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    settings = {
        "bootstrap.servers": locked["CLIENTS"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    produce_and_consume(settings, topic)
    errors: list[Any] = []
    wrong = confluent.Producer({**settings, "sasl.password": "wrong", "error_cb": errors.append, "log_level": 0})
    deadline = time.monotonic() + 20
    while not errors and time.monotonic() < deadline:
        wrong.poll(0.1)
    assert errors[0].code() == confluent.KafkaError._AUTHENTICATION


def test_confluent_kafka_logs_in_again(locked: dict[str, str], topic: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    failed: list[Any] = []
    producer = confluent.Producer(
        {
            "bootstrap.servers": locked["SHORT"], "security.protocol": "SASL_PLAINTEXT", "linger.ms": 0,
            "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": PASSWORD,
        }
    )  # fmt: skip
    end = time.monotonic() + 2.5 * SESSION_MS / 1000
    while time.monotonic() < end:
        producer.produce(topic, b"value", on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(10) == 0
    assert not failed


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(locked: dict[str, str], mechanism: str, topic: str, kafka_python: Any) -> None:
    settings = {
        "bootstrap_servers": locked["CLIENTS"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    producer = kafka_python.KafkaProducer(**settings)
    producer.send(topic, b"value").get(timeout=20)
    producer.close()
    with pytest.raises(kafka_python.errors.KafkaError):
        kafka_python.KafkaAdminClient(**settings | {"sasl_plain_password": "wrong"}, bootstrap_timeout_ms=1000)


def test_the_first_user_adds_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\nand no more\n", "utf-8")
    config = {"listeners": "CLIENTS://127.0.0.1:0", "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT"}
    options = ["--add-user", "admin", "--password-file", str(password)]
    process = GatewayProcess(tmp_path / "data", listens=False, config=config, options=options)
    process.start()

    def users(*arguments: str, user: str = "admin") -> int:
        settings = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-512", f"sasl.username={user}"]
        settings += [f"sasl.password={PASSWORD}"]
        options = [part for each in settings for part in ("--config", each)]
        return run(["users", *arguments, "--bootstrap", process.bootstrap, *options])

    try:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
        assert users("set", "second") == 0
        capsys.readouterr()
        assert users("list", "--output", "json", user="second") == 0
        told = json.loads(capsys.readouterr().out)["users"]
        assert {each["user"] for each in told} == {"admin", "second"}
        assert users("list", user="third") != 0
        assert PASSWORD not in "".join(process.stderr)
    finally:
        process.stop()


def test_gateways_whose_listeners_are_all_locked_reach_one_another(tmp_path: Path, topic: str) -> None:
    """The coordinator of a transaction and the leaders of its partitions are in two processes.

    Rights that are given at one count at the other, and what they ask of one another needs none.
    """
    password = tmp_path / "password"
    password.write_text(PASSWORD, "utf-8")
    config = {
        "listeners": "CLIENTS://127.0.0.1:0", "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "authorizer.class.name": "acls", "super.users": "User:admin",
    }  # fmt: skip
    options = ["--add-user", "admin", "--password-file", str(password)]
    processes = [
        GatewayProcess(tmp_path / "data", listens=False, config={**config, "node.id": str(node)}, options=options)
        for node in (1, 2)
    ]

    def settings(user: str, process: GatewayProcess) -> dict[str, Any]:
        return {
            "bootstrap.servers": process.bootstrap, "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": user, "sasl.password": PASSWORD,
        }  # fmt: skip

    def right(kind: ResourceType, *operations: AclOperation) -> list[AclBinding]:
        return [
            AclBinding(resource_type=kind, resource_name=topic, operation=each, principal="User:alice")
            for each in operations
        ]

    for process in processes:
        process.start()
    try:
        with kclient.sync.Admin(settings("admin", processes[0])) as admin:
            wait_for_gateways(admin, 2)
            admin.create_topics([NewTopic(topic, 8)])
            alice = UserScramCredentialUpsertion(
                user="alice", mechanism=ScramMechanism.SCRAM_SHA_256, password=PASSWORD
            )
            admin.alter_user_scram_credentials([alice])
            admin.create_acls(
                [
                    *right(ResourceType.TOPIC, AclOperation.READ, AclOperation.WRITE),
                    *right(ResourceType.GROUP, AclOperation.READ),
                    *right(ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
                ]
            )
        with kclient.sync.Admin(settings("admin", processes[1])) as admin:
            assert len(admin.describe_acls()) == 4
            deadline = time.monotonic() + 20
            while "alice" not in admin.describe_user_scram_credentials():
                assert time.monotonic() < deadline
        with kclient.sync.Admin(settings("alice", processes[1])) as admin, pytest.raises(ClusterAuthorizationError):
            admin.describe_acls()
        with kclient.sync.Producer({**settings("alice", processes[1]), "transactional.id": topic}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for partition in range(8):
                producer.send(topic, value=b"value", partition=partition)
            producer.commit_transaction()
        read = {
            **settings("alice", processes[0]), "isolation.level": "read_committed", "auto.offset.reset": "earliest",
            "group.id": topic,
        }  # fmt: skip
        with kclient.sync.Consumer(
            topic, **{name.replace(".", "_"): value for name, value in read.items()}
        ) as consumer:
            found: set[int] = set()
            deadline = time.monotonic() + 30
            while len(found) < 8 and time.monotonic() < deadline:
                found |= {record.partition for record in consumer.poll(timeout=1.0)}
        assert found == set(range(8))
    finally:
        for process in processes:
            process.stop()
