"""Unmodified foreign clients, and ours, authenticate to our server side: in front of a gateway's handler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

import kclient
import kclient.sync
from kclient.concurrency import Supervisor
from kclient.errors import SaslAuthenticationError
from kclient.gateway.contexts import Advertised
from kclient.net.sasl.plain import fixed_passwords
from kclient.net.sasl.scram import ScramCredential
from kclient.net.sasl.server import SaslHandler
from kclient.net.sasl.session import server_mechanisms
from kclient.net.sasl.unsecured import accept_unsecured, unsecured_token
from kclient.net.server import Server
from tests.sasl_listeners import MECHANISMS

pytestmark = pytest.mark.foreign

PASSWORD = "wonder, land="
SESSION_MS = 800
CONFIG = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 1}


class SecuredGateway:
    """A gateway in memory behind two listeners that ask for SASL, the second one with short sessions."""

    def __init__(self) -> None:
        scram = {name: {"alice": ScramCredential.derive(name, PASSWORD)} for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")}
        self._mechanisms = server_mechanisms(
            plain=fixed_passwords({"alice": PASSWORD}),
            scram_sha_256=scram["SCRAM-SHA-256"].get,
            scram_sha_512=scram["SCRAM-SHA-512"].get,
            oauthbearer=accept_unsecured(),
        )
        self.bootstrap = ""
        self.short = ""

    @asynccontextmanager
    async def serve(self) -> Any:
        async with (
            kclient.Gateway("memory:sasl-foreign", None, config=CONFIG) as gateway,
            Supervisor("secured") as supervisor,
        ):
            inner = gateway.parts.requests
            servers = []
            addresses = []
            for lifetime in (0, SESSION_MS):
                handler = SaslHandler(inner, self._mechanisms, max_session_ms=lifetime)
                server = Server(handler, supervisor)
                listener = await server.listen_tcp()
                listener.label = Advertised(listener.address.host, listener.address.port)
                addresses.append(str(listener.address))
                servers.append(server)
            self.bootstrap, self.short = addresses
            yield
            for server in servers:
                await server.aclose()


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredGateway]:
    made = SecuredGateway()
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(made.serve()):
        yield made


def token() -> str:
    return unsecured_token({"sub": "alice"}).value.reveal()


# --- confluent-kafka


def confluent_settings(bootstrap: str, mechanism: str, password: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return settings | {"oauth_cb": lambda _: (token() if password else "no.token", time.time() + 3600)}
    return settings | {"sasl.username": "alice", "sasl.password": password}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka(secured: SecuredGateway, mechanism: str, topic: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    settings = confluent_settings(secured.bootstrap, mechanism, PASSWORD)
    producer = confluent.Producer({**settings, "linger.ms": 0})
    producer.produce(topic, b"value")
    assert producer.flush(20) == 0
    consumer = confluent.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None
    assert message.error() is None
    assert message.value() == b"value"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_is_refused(secured: SecuredGateway, mechanism: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    admin = pytest.importorskip("confluent_kafka.admin")
    errors: list[Any] = []
    wrong = "" if mechanism == "OAUTHBEARER" else "wrong"
    settings = confluent_settings(secured.bootstrap, mechanism, wrong)
    client = admin.AdminClient({**settings, "error_cb": errors.append, "log_level": 0, "reconnect.backoff.ms": 50})
    deadline = time.monotonic() + 20
    while not errors and time.monotonic() < deadline:
        client.poll(0.1)
    assert errors[0].code() == confluent.KafkaError._AUTHENTICATION
    # librdkafka brings its own text for some mechanisms, ours for the others
    assert "uthentication failed" in errors[0].str() or "invalid_token" in errors[0].str()


def test_confluent_kafka_authenticates_again(
    secured: SecuredGateway, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka does KIP-368 too: sessions are renewed, and no message is lost."""
    caplog.set_level(logging.DEBUG, "kclient.net.server")
    confluent = pytest.importorskip("confluent_kafka")
    settings = confluent_settings(secured.short, "SCRAM-SHA-256", PASSWORD)
    producer = confluent.Producer({**settings, "linger.ms": 0})
    failed: list[Any] = []
    end = time.monotonic() + 2.5 * SESSION_MS / 1000
    count = 0
    while time.monotonic() < end:
        producer.produce(topic, b"value", on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.flush(10)
        count += 1
    assert count > 10
    assert not failed
    assert authentications_of_one_connection(caplog) >= 3


def authentications_of_one_connection(caplog: pytest.LogCaptureFixture) -> int:
    peers = [record.args[0] for record in caplog.records if record.msg == "%s is %s (%s)" and record.args]
    return max(Counter(peers).values(), default=0)


# --- aiokafka and kafka-python


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(secured: SecuredGateway, mechanism: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    abc = pytest.importorskip("aiokafka.abc")

    class Tokens(abc.AbstractTokenProvider):  # type: ignore[misc, name-defined]
        def __init__(self, text: str) -> None:
            self.text = text

        async def token(self) -> str:
            return self.text

    def settings(right: bool) -> dict[str, Any]:
        made = {
            "bootstrap_servers": secured.bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            return made | {"sasl_oauth_token_provider": Tokens(token() if right else "no.token")}
        return made | {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD if right else "wrong"}

    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(**settings(True)) as producer:
            await producer.send_and_wait(topic, b"value")
        consumer = aiokafka.AIOKafkaConsumer(topic, **settings(True), group_id=topic, auto_offset_reset="earliest")
        async with consumer:
            record = await asyncio.wait_for(consumer.getone(), 20)
            assert record.value == b"value"
        refused = aiokafka.AIOKafkaProducer(**settings(False))
        with pytest.raises(aiokafka.errors.KafkaError):
            await refused.start()
        await refused.stop()
        # aiokafka overlooks what OAUTHBEARER's server says, and asks for more than it may
        assert "failed to authenticate" in caplog.text or "it is not authenticated" in caplog.text

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(
    secured: SecuredGateway, mechanism: str, topic: str, caplog: pytest.LogCaptureFixture, kafka_python: Any
) -> None:
    oauth = pytest.importorskip("kafka.net.sasl.oauth")

    class Tokens(oauth.AbstractTokenProvider):  # type: ignore[misc, name-defined]
        def __init__(self, text: str) -> None:
            self.text = text

        def token(self) -> str:
            return self.text

    def settings(right: bool) -> dict[str, Any]:
        made = {
            "bootstrap_servers": secured.bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            return made | {"sasl_oauth_token_provider": Tokens(token() if right else "no.token")}
        return made | {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD if right else "wrong"}

    producer = kafka_python.KafkaProducer(**settings(True))
    producer.send(topic, b"value").get(timeout=20)
    producer.close()
    consumer = kafka_python.KafkaConsumer(topic, **settings(True), group_id=topic, auto_offset_reset="earliest")
    records: list[Any] = []
    deadline = time.monotonic() + 20
    while not records and time.monotonic() < deadline:
        records += [record for batch in consumer.poll(timeout_ms=500).values() for record in batch]
    consumer.close()
    assert [record.value for record in records] == [b"value"]
    caplog.clear()
    with pytest.raises(kafka_python.errors.KafkaError):
        kafka_python.KafkaAdminClient(**settings(False), bootstrap_timeout_ms=1000)
    assert "failed to authenticate" in caplog.text


# --- ours


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_ours(secured: SecuredGateway, mechanism: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def settings(right: bool) -> dict[str, Any]:
        made: dict[str, Any] = {
            "bootstrap.servers": secured.short,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            source: Callable[[], str] = token if right else lambda: "no.token"
            return made | {"sasl.login.callback.handler.class": source}
        return made | {"sasl.username": "alice", "sasl.password": PASSWORD if right else "wrong"}

    with kclient.sync.Producer(settings(True)) as producer:
        end = time.monotonic() + 1.2 * SESSION_MS / 1000
        while time.monotonic() < end:
            producer.send(topic, b"value").result(timeout=20)
    assert authentications_of_one_connection(caplog) >= 2
    with pytest.raises(SaslAuthenticationError), kclient.sync.Admin(settings(False)) as admin:
        admin.list_topics()
    assert PASSWORD not in caplog.text
