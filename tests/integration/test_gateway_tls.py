"""Our clients, foreign ones and Kafka's own tools speak TLS to a gateway; principals beside those of a real broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import kclient
import kclient.sync
from kclient.admin import NewTopic, ScramMechanism, UserScramCredentialUpsertion
from tests.certificates import Identity
from tests.confluent_round_trip import produce_and_consume
from tests.conftest import require_java
from tests.gateway_process import GatewayProcess, wait_for_gateways
from tests.gateway_tls import (
    PASSWORD,
    alice,
    broker_authority,
    client_authority,
    client_settings,
    gateway_settings,
    gateway_with_tls,
    subject,
)
from tests.kafka_artifacts import KAFKA_3, KAFKA_4
from tests.kafka_server import JavaTools, KafkaServer, ServerListener, tls_properties

CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WAYS = ("SSL", "OPTIONAL", "MUTUAL", *(f"LOGIN {mechanism}" for mechanism in LOGINS))
"""Listeners, those with logins by mechanism."""
SHOWS = ("OPTIONAL", "MUTUAL")
"""Where clients show a certificate."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[dict[str, str]]:
    """The addresses of a gateway's listeners."""
    with kclient.sync.Gateway(f"memory:tls-{uuid.uuid4().hex}", config=gateway_settings(folder)) as gateway:
        with kclient.sync.Admin(bootstrap_servers=gateway.bootstrap) as admin:
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                credential = UserScramCredentialUpsertion(user="alice", mechanism=mechanism, password=PASSWORD)
                admin.alter_user_scram_credentials([credential])
        yield gateway.advertised


@pytest.fixture(scope="module")
def tools(kafka_jars_4: Path, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    return JavaTools(KAFKA_4, tmp_path_factory.mktemp("tools"))


def ours(addresses: dict[str, str], way: str) -> dict[str, Any]:
    """The settings of a client of ours, which are Java's."""
    listener, _, mechanism = way.partition(" ")
    settings = client_settings(addresses, listener, alice() if listener in SHOWS else None)
    return settings | ({"sasl.mechanism": mechanism} if mechanism else {})


def as_files(folder: Path, identity: Identity) -> tuple[str, str, str]:
    """The trusted authority, the client's certificate and its key."""
    texts = {"trust.pem": broker_authority().pem, "client.crt": identity.chain, "client.key": identity.key}
    for name, text in texts.items():
        (folder / name).write_text(text)
    trust, certificate, key = (str(folder / name) for name in texts)
    return trust, certificate, key


@pytest.mark.anyio
@pytest.mark.parametrize("way", WAYS)
async def test_async_clients(secured: dict[str, str], way: str, topic: str) -> None:
    settings = ours(secured, way)
    async with kclient.Producer(settings) as producer:
        await (await producer.send(topic, b"value" * 100_000))
    async with kclient.Consumer(topic, config=settings, group_id=topic, auto_offset_reset="earliest") as consumer:
        found: list[bytes | None] = []
        with anyio.fail_after(20):
            while not found:
                found += [record.value for record in await consumer.poll(timeout=1.0)]
        await consumer.commit()
    assert found == [b"value" * 100_000]


@pytest.mark.parametrize("way", WAYS)
def test_blocking_clients(secured: dict[str, str], way: str, topic: str) -> None:
    settings = ours(secured, way)
    with kclient.sync.Admin(settings) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    with kclient.sync.Producer(settings) as producer:
        producer.send(topic, b"value").result(timeout=20)
    with kclient.sync.Consumer(topic, config=settings, group_id=topic, auto_offset_reset="earliest") as consumer:
        records: list[Any] = []
        deadline = time.monotonic() + 20
        while not records and time.monotonic() < deadline:
            records += consumer.poll(timeout=1.0)
    assert [record.value for record in records] == [b"value"]


@pytest.mark.foreign
@pytest.mark.parametrize("way", WAYS)
def test_confluent_kafka(secured: dict[str, str], way: str, topic: str, tmp_path: Path) -> None:
    listener, _, mechanism = way.partition(" ")
    trust, certificate, key = as_files(tmp_path, alice())
    settings = {"bootstrap.servers": secured[listener], "security.protocol": "SSL", "ssl.ca.location": trust}
    if listener in SHOWS:
        settings |= {"ssl.certificate.location": certificate, "ssl.key.location": key}
    if mechanism:
        settings |= {"security.protocol": "SASL_SSL", "sasl.mechanisms": mechanism}
        settings |= {"sasl.username": "alice", "sasl.password": PASSWORD}
    produce_and_consume(settings, topic)


@pytest.mark.foreign
def test_confluent_kafka_without_its_certificate(secured: dict[str, str], tmp_path: Path) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    errors: list[Any] = []
    trust, _, _ = as_files(tmp_path, alice())
    producer = confluent.Producer(
        {
            "bootstrap.servers": secured["MUTUAL"], "security.protocol": "SSL", "ssl.ca.location": trust,
            "error_cb": errors.append, "log_level": 0,
        }
    )  # fmt: skip
    deadline = time.monotonic() + 20
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    assert errors[0].code() in (confluent.KafkaError._SSL, confluent.KafkaError._TRANSPORT)


@pytest.mark.foreign
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("way", WAYS)
def test_kafka_python(secured: dict[str, str], way: str, topic: str, kafka_python: Any, tmp_path: Path) -> None:
    listener, _, mechanism = way.partition(" ")
    trust, certificate, key = as_files(tmp_path, alice())
    settings = {"bootstrap_servers": secured[listener], "security_protocol": "SSL", "ssl_cafile": trust}
    if listener in SHOWS:
        settings |= {"ssl_certfile": certificate, "ssl_keyfile": key}
    if mechanism:
        settings |= {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism}
        settings |= {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
    producer = kafka_python.KafkaProducer(**settings)
    producer.send(topic, b"value").get(timeout=20)
    producer.close()


@pytest.mark.foreign
@pytest.mark.maven
@pytest.mark.parametrize("way", ["SSL", "MUTUAL", "LOGIN SCRAM-SHA-512", "LOGIN PLAIN"])
def test_kafkas_console_tools(secured: dict[str, str], way: str, topic: str, tools: JavaTools, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    given = {**ours(secured, way), "ssl.truststore.type": "PEM", "ssl.keystore.type": "PEM"}
    if "ssl.keystore.key" not in given:
        del given["ssl.keystore.type"]
    if way.startswith("LOGIN"):
        module = "plain.PlainLoginModule" if way.endswith("PLAIN") else "scram.ScramLoginModule"
        given["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f'username="{given.pop("sasl.username")}" password="{given.pop("sasl.password")}";'
        )
    lines = [f"{name}={value}".replace("\n", "\\n") for name, value in given.items()]
    properties.write_text("\n".join(lines))
    at = ("--bootstrap-server", given["bootstrap.servers"], "--topic", topic)
    with_command = ("--command-config", str(properties))
    tools.run(CONSOLE_PRODUCER, *at, *with_command, given="value\n")
    found = tools.run(
        CONSOLE_CONSUMER, *at, *with_command, "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000"
    )
    assert found.split() == ["value"]


def test_the_command_serves_tls(tmp_path: Path) -> None:
    config = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(broker_authority().issue("127.0.0.1").write(tmp_path / "gateway.pem")),
    }
    process = GatewayProcess(tmp_path / "data", listens=False, config=config)
    process.start()
    settings = client_settings({"SSL": process.bootstrap}, "SSL")
    try:
        with kclient.sync.Admin(settings) as admin:
            assert len(admin.describe_cluster().nodes) == 1
    finally:
        process.stop()


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    process = GatewayProcess(tmp_path / "data", listens=False, config={"listeners": "SSL://127.0.0.1:0"})
    with pytest.raises(RuntimeError, match=r"listener SSL is to speak SSL: ssl\.keystore\.location is missing"):
        process.start()


def test_gateways_whose_listeners_all_encrypt_reach_one_another(tmp_path: Path, topic: str) -> None:
    """The coordinator of a transaction and the leaders of its partitions are in two processes."""
    keystore = broker_authority().issue("127.0.0.1").write(tmp_path / "gateway.pem")
    config = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(keystore)}
    processes = [
        GatewayProcess(tmp_path / "data", listens=False, config={**config, "node.id": str(node)}) for node in (1, 2)
    ]
    for process in processes:
        process.start()
    settings = client_settings({"SSL": processes[0].bootstrap}, "SSL")
    try:
        with kclient.sync.Admin(settings) as admin:
            wait_for_gateways(admin, 2)
            admin.create_topics([NewTopic(topic, 8)])
        with kclient.sync.Producer({**settings, "transactional.id": topic}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for partition in range(8):
                producer.send(topic, value=b"value", partition=partition)
            producer.commit_transaction()
        read = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "group_id": topic}
        with kclient.sync.Consumer(topic, config=settings, **read) as consumer:
            found: set[int] = set()
            deadline = time.monotonic() + 30
            while len(found) < 8 and time.monotonic() < deadline:
                found |= {record.partition for record in consumer.poll(timeout=1.0)}
        assert found == set(range(8))
    finally:
        for process in processes:
            process.stop()


RULES = r"RULE:^CN=([^,]*),O=Services$/$1/L,RULE:^CN=(\w+)@(\w+),.*$/$2\/$1/U,DEFAULT"
SUBJECTS = [
    ("alice", None),
    ("alice", "Org"),
    ("Alice", "Services"),
    ("bob@home", "Org"),
    ('a,b+c"d\\e<f>g;h#i=j', "Org, Inc."),
    (" blank ", " "),
    ("Ümlaut Ⅸ 😀", "Örg"),
    ("nul\0nul", "Org"),
]


@pytest.fixture(scope="module", params=[KAFKA_4, pytest.param(KAFKA_3, marks=pytest.mark.long)])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, folder: Path
) -> Iterator[KafkaServer]:
    """A real broker that asks for the same certificates, and tells by tokens whom it takes a client for."""
    require_java()
    gateway_settings(folder)
    properties = tls_properties(folder / "gateway.pem", folder / "clients.pem")
    rules = RULES.replace("\\", "\\\\")  # properties files take backslashes for their own
    mutual = ServerListener("MUTUAL", "SSL", properties | {"ssl.principal.mapping.rules": rules}, host="localhost")
    settings = {"delegation.token.secret.key": "the key of the tests"}
    server = KafkaServer(request.param, tmp_path_factory.mktemp("kafka-tls"), settings, [mutual], heap="512m")
    server.format()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.anyio
@pytest.mark.kafka
@pytest.mark.maven
async def test_principals_are_those_of_a_real_broker(broker: KafkaServer, tmp_path: Path) -> None:
    ours, theirs = [], []
    rules = {"listener.name.mutual.ssl.principal.mapping.rules": RULES}
    async with gateway_with_tls(tmp_path, **rules) as gateway:
        for common_name, organization in SUBJECTS:
            identity = client_authority().issue_for(subject(common_name, organization))
            async with kclient.Admin(client_settings(broker.addresses, "MUTUAL", identity)) as admin:
                theirs.append((await admin.create_delegation_token()).owner)
            async with kclient.Admin(client_settings(gateway.advertised, "MUTUAL", identity)) as admin:
                await admin.list_topics()
                assert gateway._server is not None
                (principal,) = {str(each.context.principal) for each in gateway._server.connections}
                ours.append(principal)
    assert ours == theirs
