"""All clients with SASL against real Kafka: every mechanism, what is refused, and authenticating again."""

from __future__ import annotations

import hashlib
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import kclient
import kclient.sync
from kclient.concurrency import Supervisor
from kclient.errors import (
    BrokerConnectionError,
    IllegalSaslStateError,
    KafkaError,
    KafkaTimeoutError,
    OAuthTokenError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
)
from kclient.net.connection import Connection
from kclient.net.sasl.login import PasswordLogin, TokenLogin
from kclient.net.sasl.unsecured import unsecured_token
from kclient.protocol.messages import AlterUserScramCredentialsRequest, MetadataRequest, ScramCredentialUpsertion
from tests.identity_provider import identity_provider
from tests.kafka_listeners import SecureListeners
from tests.kafka_server import KafkaServer
from tests.sasl_listeners import MECHANISMS, REAUTHENTICATION_MS, USERS

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]

Settings = dict[str, Any]
PASSWORDS = MECHANISMS[:3]
LOGIN_MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule"}
LOGIN_MODULES["SCRAM-SHA-512"] = LOGIN_MODULES["SCRAM-SHA-256"]
PACKAGE = "org.apache.kafka.common.security"


@pytest.fixture
def settings_of(kafka: KafkaServer, secure_listeners: SecureListeners) -> Callable[..., Settings]:
    """The settings of a client for a listener, a mechanism and a user."""

    def make(listener: str, mechanism: str, user: str = "alice", **changes: Any) -> Settings:
        made: Settings = {
            "bootstrap.servers": kafka.addresses[listener],
            "security.protocol": "SASL_SSL" if listener == "SASL_SSL" else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "default.api.timeout.ms": 20_000,
        }
        if listener == "SASL_SSL":
            made |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": secure_listeners.authority.pem}
        if mechanism != "OAUTHBEARER":
            made["sasl.jaas.config"] = (
                f'{PACKAGE}.{LOGIN_MODULES[mechanism]} required username="{user}" password="{USERS[user]}";'
            )
        elif listener == "SASL_SSL":
            made["sasl.login.callback.handler.class"] = lambda: secure_listeners.issuer.token(user)
        else:
            module = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule"
            made["sasl.jaas.config"] = f'{module} required unsecuredLoginStringClaim_sub="{user}";'
        return {**made, **{name.replace("_", "."): value for name, value in changes.items()}}

    return make


async def list_topics(settings: Settings) -> None:
    async with kclient.Admin(settings) as admin:
        await admin.list_topics()


# --- what is right


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL", "SASL_SSL"])
async def test_the_right_credentials(settings_of: Callable[..., Settings], listener: str, mechanism: str) -> None:
    """The second user's password is another after SASLprep: Kafka does not apply it, and no more do we."""
    for user in USERS:
        await list_topics(settings_of(listener, mechanism, user))


async def test_all_clients(settings_of: Callable[..., Settings], topic: str) -> None:
    settings = settings_of("SASL_SSL", "SCRAM-SHA-512")
    values = [b"%d" % number * 100 for number in range(2000)]
    async with kclient.Admin(settings) as admin:
        await admin.create_topics([kclient.NewTopic(topic, 1, 1)])
    producer_settings = {name: value for name, value in settings.items() if name != "default.api.timeout.ms"}
    async with kclient.Producer(producer_settings, linger_ms=5) as producer:
        await (await producer.send_batch(topic, values, partition=0))
    received: list[bytes] = []
    group = {"group_id": topic, "auto_offset_reset": "earliest"}
    async with kclient.Consumer(topic, config=settings, **group) as consumer:
        with anyio.fail_after(30):
            while len(received) < len(values):
                received += [record.value for record in await consumer.poll(timeout=1.0)]
        await consumer.commit()
    assert received == values


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_blocking_clients(settings_of: Callable[..., Settings], mechanism: str, topic: str) -> None:
    settings = settings_of("SASL", mechanism)
    del settings["default.api.timeout.ms"]
    with kclient.sync.Producer(settings) as producer:
        producer.send(topic, b"value").result(timeout=30)
    with kclient.sync.Consumer(topic, config=settings, group_id=topic, auto_offset_reset="earliest") as consumer:
        records: list[Any] = []
        deadline = time.monotonic() + 30
        while not records and time.monotonic() < deadline:
            records += consumer.poll(timeout=1.0)
    assert [record.value for record in records] == [b"value"]


async def test_names_of_librdkafka(settings_of: Callable[..., Settings]) -> None:
    await list_topics(
        settings_of("SASL", "PLAIN", sasl_jaas_config=None)
        | {"sasl.username": "alice", "sasl.password": USERS["alice"]}
    )


async def test_client_credentials(
    settings_of: Callable[..., Settings], secure_listeners: SecureListeners, caplog: pytest.LogCaptureFixture
) -> None:
    """An identity provider with trouble at first gives a signed token, which Kafka checks against its keys."""
    caplog.set_level(logging.DEBUG)
    settings = settings_of("SASL_SSL", "OAUTHBEARER", sasl_login_callback_handler_class=None)
    tokens: list[str] = []

    def issue() -> str:
        tokens.append(secure_listeners.issuer.token(life=3600))
        return tokens[-1]

    with identity_provider(issue, failures=2) as provider:
        settings |= {
            "sasl.oauthbearer.token.endpoint.url": provider.url,
            "sasl.oauthbearer.client.credentials.client.id": "my-service",
            "sasl.oauthbearer.client.credentials.client.secret": "the client's secret",
            "sasl.oauthbearer.scope": "kafka",
        }
        await list_topics(settings)
        assert [body for _, body in provider.seen] == ["grant_type=client_credentials&scope=kafka"] * 3
        assert len(tokens) == 1
        assert provider.seen[0][0] not in caplog.text
    assert tokens[0] not in caplog.text
    assert "the client's secret" not in caplog.text


async def test_an_identity_provider_that_knows_nobody(settings_of: Callable[..., Settings], topic: str) -> None:
    settings = settings_of("SASL_SSL", "OAUTHBEARER", sasl_login_callback_handler_class=None)
    with identity_provider(str, failures=1000) as provider:
        provider.status = 401
        settings |= {
            "sasl.oauthbearer.token.endpoint.url": provider.url,
            "sasl.oauthbearer.client.credentials.client.id": "my-service",
            "sasl.oauthbearer.client.credentials.client.secret": "wrong",
        }
        await surfaces(settings, OAuthTokenError, "it answered with status 401", topic)


# --- what is refused: at once, by every client, with its reason


async def surfaces(settings: Settings, error: type[KafkaError], text: str, topic: str) -> None:
    """Every client's call raises the error, long before any timeout."""
    plain = {name: value for name, value in settings.items() if name != "default.api.timeout.ms"}
    raised: list[KafkaError] = []

    async def admin() -> None:
        await list_topics(settings)

    async def producer() -> None:
        async with kclient.Producer(plain) as made:
            await made.send(topic, b"value")

    async def consumer() -> None:
        async with kclient.Consumer(topic, config=settings, group_id=topic) as made:
            await made.poll(timeout=25.0)

    async def expect(client: Callable[[], Awaitable[None]]) -> None:
        with pytest.raises(error, match=text) as caught:
            await client()
        raised.append(caught.value)

    with anyio.fail_after(25):
        async with anyio.create_task_group() as tasks:
            for client in (admin, producer, consumer):
                tasks.start_soon(expect, client)
    assert len(raised) == 3
    assert all(problem.fatal and not problem.retriable for problem in raised)
    shown = "".join("".join(traceback.format_exception(problem)) for problem in raised)
    assert not any(password in shown for password in [*USERS.values(), "falsches"])


@pytest.mark.parametrize("mechanism", PASSWORDS)
async def test_a_wrong_password(settings_of: Callable[..., Settings], mechanism: str, topic: str) -> None:
    settings = settings_of("SASL", mechanism)
    settings["sasl.jaas.config"] = settings["sasl.jaas.config"].replace(USERS["alice"], "falsches Passwort")
    text = f"refused the credentials for SASL {mechanism}: Authentication failed.* \\[SASL_AUTHENTICATION_FAILED\\]"
    await surfaces(settings, SaslAuthenticationError, text, topic)


@pytest.mark.parametrize("case", ["password", "mechanism", "token"])
def test_refusals_in_blocking_code(settings_of: Callable[..., Settings], case: str, topic: str) -> None:
    if case == "password":
        settings, error, text = settings_of("SASL_SSL", "PLAIN", "roman"), SaslAuthenticationError, "Invalid username"
        settings["sasl.jaas.config"] = settings["sasl.jaas.config"].replace("Ⅸ", "IX")
    elif case == "mechanism":
        settings, error, text = settings_of("SASL_SHORT", "SCRAM-SHA-256"), UnsupportedSaslMechanismError, "it enables"
    else:
        settings, error, text = settings_of("SASL", "OAUTHBEARER"), SaslAuthenticationError, "status invalid_token"
        ended = kclient.OAuthToken(value=unsecured_token({"sub": "alice"}, now=time.time() - 7200).value)
        settings |= {"sasl.jaas.config": None, "sasl.login.callback.handler.class": lambda: ended}
    del settings["default.api.timeout.ms"]
    start = time.monotonic()
    with pytest.raises(error, match=text), kclient.sync.Producer(settings) as producer:
        producer.send(topic, b"value")
    with kclient.sync.Admin(settings) as admin:
        with pytest.raises(error, match=text):
            admin.list_topics()
        assert admin.metrics().value("failed-authentication-total") >= 1
        assert admin.metrics().value("successful-authentication-total") == 0
    consumer = kclient.sync.Consumer(topic, config=settings, group_id=topic)
    with pytest.raises(error, match=text), consumer:
        consumer.poll(timeout=25.0)
    assert time.monotonic() - start < 25


async def test_a_wrong_mechanism(settings_of: Callable[..., Settings], topic: str) -> None:
    text = "does not offer the SASL mechanism SCRAM-SHA-256; it enables PLAIN, SCRAM-SHA-512, OAUTHBEARER"
    await surfaces(settings_of("SASL_SHORT", "SCRAM-SHA-256"), UnsupportedSaslMechanismError, text, topic)


@pytest.mark.parametrize("listener", ["SASL", "SASL_SSL"])
async def test_an_ended_token(
    settings_of: Callable[..., Settings], secure_listeners: SecureListeners, listener: str, topic: str
) -> None:
    """A token that does not say when it ends is sent, and the broker refuses it."""

    def source() -> kclient.OAuthToken:
        if listener == "SASL_SSL":
            return kclient.OAuthToken(value=secure_listeners.issuer.token(life=-60))  # type: ignore[arg-type]
        return kclient.OAuthToken(value=unsecured_token({"sub": "alice"}, now=time.time() - 7200).value)

    settings = settings_of(listener, "OAUTHBEARER", sasl_jaas_config=None)
    settings["sasl.login.callback.handler.class"] = source
    await surfaces(settings, SaslAuthenticationError, "SASL OAUTHBEARER: status invalid_token", topic)


async def test_a_token_that_is_known_to_have_ended(settings_of: Callable[..., Settings]) -> None:
    """It is not even sent; the callback may have a better one next time."""
    settings = settings_of("SASL", "OAUTHBEARER", sasl_jaas_config=None)
    settings["sasl.login.callback.handler.class"] = lambda: unsecured_token({"sub": "alice"}, lifetime=-1)
    with pytest.raises(KafkaTimeoutError, match="the token callback returned an expired token"):
        await list_topics({**settings, "default.api.timeout.ms": 1500, "request.timeout.ms": 1000})


async def test_a_forged_token(
    settings_of: Callable[..., Settings], secure_listeners: SecureListeners, topic: str
) -> None:
    token = secure_listeners.issuer.token()
    forged = token[:-8] + ("AAAAAAAA" if not token.endswith("AAAAAAAA") else "BBBBBBBB")
    settings = settings_of("SASL_SSL", "OAUTHBEARER")
    settings["sasl.login.callback.handler.class"] = lambda: forged
    await surfaces(settings, SaslAuthenticationError, "status invalid_token", topic)


async def test_a_callback_that_gives_no_token(settings_of: Callable[..., Settings], topic: str) -> None:
    settings = settings_of("SASL", "OAUTHBEARER", sasl_jaas_config=None)
    settings["sasl.login.callback.handler.class"] = lambda: 5
    await surfaces(settings, OAuthTokenError, "returned int, not an OAuthToken", topic)


async def test_the_listeners_confused(kafka: KafkaServer, settings_of: Callable[..., Settings], topic: str) -> None:
    in_clear = settings_of("PLAINTEXT", "PLAIN")
    await surfaces(in_clear, IllegalSaslStateError, r"does not use SASL on this listener: security\.protocol", topic)
    short = {"default.api.timeout.ms": 2500, "request.timeout.ms": 2000}
    with pytest.raises(KafkaTimeoutError, match=r"ask for SASL\? \(security\.protocol\)"):
        await list_topics({**short, "bootstrap.servers": kafka.addresses["SASL"]})
    no_tls = settings_of("SASL", "PLAIN") | {**short, "bootstrap.servers": kafka.addresses["SASL_SSL"]}
    with pytest.raises(KafkaTimeoutError, match=r"TLS.*security.protocol"):
        await list_topics(no_tls)


async def test_a_user_who_is_made_later(kafka: KafkaServer, settings_of: Callable[..., Settings], topic: str) -> None:
    """A refusal is raised by the call that met it; the client goes on trying, as Java's does."""
    module = f"{PACKAGE}.{LOGIN_MODULES['SCRAM-SHA-256']}"
    settings = settings_of("SASL", "SCRAM-SHA-256")
    settings["sasl.jaas.config"] = f'{module} required username="{topic}" password="x";'
    async with kclient.Admin(settings) as admin:
        with pytest.raises(SaslAuthenticationError):
            await admin.list_topics()
        await make_user(kafka.bootstrap, topic, b"x")
        with anyio.fail_after(30):
            while True:
                try:
                    await admin.list_topics()
                except SaslAuthenticationError:
                    continue
                break


async def make_user(bootstrap: str, name: str, password: bytes) -> None:
    user = ScramCredentialUpsertion(
        name=name,
        mechanism=1,
        iterations=4096,
        salt=b"salt",
        salted_password=hashlib.pbkdf2_hmac("sha256", password, b"salt", 4096),
    )
    async with Supervisor("test") as supervisor:
        connection = await Connection.open(bootstrap, supervisor=supervisor)
        answer = await connection.request(AlterUserScramCredentialsRequest(upsertions=[user]), 0)
        assert [result.error_code for result in answer.results] == [0]
        await connection.aclose()


# --- sessions that end (KIP-368)


def login(mechanism: str, supervisor: Supervisor) -> Any:
    if mechanism == "OAUTHBEARER":
        return TokenLogin(lambda: unsecured_token({"sub": "alice"}), supervisor)
    return PasswordLogin(mechanism, "alice", USERS["alice"])


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Authenticate again at 55 % of a session: a machine that stalls must not make the tests late."""

    def session_end(lifetime_ms: int, now: float) -> float:
        return now + 0.55 * lifetime_ms / 1000 if lifetime_ms else float("inf")

    monkeypatch.setattr("kclient.net.client_session.session_end", session_end)


@pytest.mark.usefixtures("early")
async def test_authenticating_again(kafka: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    """Connections live longer than their sessions, with requests on their way all the time."""
    caplog.set_level(logging.DEBUG, "kclient.net.connection")
    counts: dict[str, int] = {}

    async def use(mechanism: str) -> None:
        connection = await Connection.open(
            kafka.addresses["SASL_SHORT"], supervisor=supervisor, login=login(mechanism, supervisor)
        )
        pending = [connection.send_nowait(MetadataRequest(topics=[]), 9) for _ in range(5)]
        while caplog.text.count(f"authenticated again by {mechanism}\n") < 2:
            pending.append(connection.send_nowait(MetadataRequest(topics=[]), 9))
            await pending.pop(0)
            counts[mechanism] = counts.get(mechanism, 0) + 1
        for item in pending:
            await item
        await connection.aclose()

    start = time.monotonic()
    with anyio.fail_after(20):
        async with Supervisor("test") as supervisor, anyio.create_task_group() as tasks:
            for mechanism in ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"):
                tasks.start_soon(use, mechanism)
    assert time.monotonic() - start > REAUTHENTICATION_MS / 1000
    assert min(counts.values()) > 50
    assert "ended" not in caplog.text


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_does_not_authenticate_again_is_closed(kafka: KafkaServer) -> None:
    """The listener does what the test before relies on."""
    async with Supervisor("test") as supervisor:
        connection = await Connection.open(
            kafka.addresses["SASL_SHORT"], supervisor=supervisor, login=login("PLAIN", supervisor)
        )
        connection._send_queue.session_end = float("inf")
        with anyio.fail_after(30), pytest.raises(BrokerConnectionError):
            while True:
                await connection.request(MetadataRequest(topics=[]), 9)
                await anyio.sleep(0.05)
        await connection.aclose()


@pytest.mark.usefixtures("early")
async def test_clients_outlive_their_sessions(
    settings_of: Callable[..., Settings], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kclient.net.connection")
    settings = settings_of("SASL_SHORT", "SCRAM-SHA-512")
    del settings["default.api.timeout.ms"]
    sent = received = 0
    group = {"group_id": topic, "auto_offset_reset": "earliest"}
    start = time.monotonic()
    async with kclient.Producer(settings) as producer, kclient.Consumer(topic, config=settings, **group) as consumer:
        with anyio.fail_after(30):
            while caplog.text.count("authenticated again by SCRAM-SHA-512") < 4 or received < sent:
                if sent < 10 or received == sent:
                    await (await producer.send(topic, b"value"))
                    sent += 1
                received += len(list(await consumer.poll(timeout=0.1)))
        told = [client.metrics() for client in (producer, consumer)]
        renewed = sum(metrics.value("successful-reauthentication-total") for metrics in told)
        assert caplog.text.count("authenticated again by SCRAM-SHA-512") == renewed
        for metrics in told:
            assert metrics.value("failed-reauthentication-total") == 0
            assert metrics.value("successful-authentication-no-reauth-total") == 0
            assert not metrics.value("reauthentication-latency-max") <= 0
    assert time.monotonic() - start > 0.5 * REAUTHENTICATION_MS / 1000
    assert received == sent


# --- secrets


async def test_no_credential_is_shown(
    settings_of: Callable[..., Settings], secure_listeners: SecureListeners, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in logs of any level, not in any repr, while everything works and while it does not."""
    caplog.set_level(1)
    tokens: list[str] = []

    def source() -> str:
        tokens.append(secure_listeners.issuer.token())
        return tokens[-1]

    shown = ""
    for changes in ({}, {"sasl_mechanism": "SCRAM-SHA-256"}, {"sasl_mechanism": "OAUTHBEARER"}):
        mechanism = changes.get("sasl_mechanism", "PLAIN")
        settings = settings_of("SASL_SSL", mechanism)
        if mechanism == "OAUTHBEARER":
            settings["sasl.login.callback.handler.class"] = source
        plain = {name: value for name, value in settings.items() if name != "default.api.timeout.ms"}
        async with kclient.Admin(settings) as admin, kclient.Producer(plain) as producer:
            await admin.list_topics()
            shown += f"{admin!r} {producer!r} {vars(admin)!r} {producer._life.config!r}"
            cluster = admin._cluster
            shown += f"{cluster._login!r} {[vars(link) for link in cluster._links]!r}"
            connection = await cluster.connection()
            shown += f"{connection!r} {vars(connection)!r}"
        wrong = {**settings, "sasl.mechanism": "SCRAM-SHA-256" if mechanism != "OAUTHBEARER" else mechanism}
        if mechanism == "OAUTHBEARER":
            wrong["sasl.login.callback.handler.class"] = lambda: tokens[-1][:-8] + "AAAAAAAA"
        else:
            module = f"{PACKAGE}.scram.ScramLoginModule"
            wrong["sasl.jaas.config"] = f'{module} required username="x" password="{USERS["alice"]}";'
        with pytest.raises(SaslAuthenticationError) as caught:
            await list_topics(wrong)
        shown += "".join(traceback.format_exception(caught.value))
    shown += caplog.text
    assert USERS["alice"] not in shown
    assert tokens
    assert not any(token in shown or token[:-8] in shown for token in tokens)
