"""A gateway's delegation tokens, and those of an identity provider, beside a real broker's: the same answers.

And unmodified foreign clients that log in with them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kclient
import kclient.sync
from kclient.net.sasl.login import PasswordLogin
from kclient.protocol import messages as m
from kclient.protocol.message import ApiMessage, Message
from tests.confluent_round_trip import produce_and_consume
from tests.conftest import require_java
from tests.forged_tokens import FORGED, headed, show, stranger
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_listeners import SecureListeners
from tests.kafka_server import KafkaServer
from tests.kafka_tools import KafkaTools, kafka_tools
from tests.sasl_listeners import USERS, TokenIssuer
from tests.token_servers import HOUR, SCRAM, TokenServer, gateway_with_tokens, kafka_with_tokens
from tests.wire_session import WireSession, until, wire_session

pytestmark = [pytest.mark.kafka, pytest.mark.foreign, pytest.mark.timeout(180)]
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])

SERVERS = ("kafka", "gateway")
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OAUTH = "org.apache.kafka.common.security.oauthbearer"


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, secure_listeners: SecureListeners
) -> Iterator[dict[str, TokenServer]]:
    require_java()
    folder = tmp_path_factory.mktemp("tokens")
    with (
        gateway_with_tokens(secure_listeners) as gateway,
        kafka_with_tokens(KAFKA_4, folder, secure_listeners) as broker,
    ):
        yield {"kafka": broker, "gateway": gateway}


def logged_in(user: str) -> PasswordLogin:
    return PasswordLogin("PLAIN", user, USERS[user])


# --- the same requests, the same answers


def told(answer: Message) -> Any:
    """All that an answer says; of times how many minutes there are to them, of secrets how long they are."""
    found = {}
    for field in answer.FIELDS:
        value = getattr(answer, field.name)
        if field.name.endswith(("timestamp_ms", "timestamp")) and value > 0:
            value = f"in {round((value / 1000 - time.time()) / 60)} min"
        elif field.name in ("hmac", "token_id"):
            value = len(value)
        elif isinstance(value, list):
            value = sorted((told(row) for row in value), key=str)
        found[field.name] = value
    return found


@asynccontextmanager
async def sessions(server: TokenServer) -> AsyncIterator[dict[str, WireSession]]:
    """Of alice, of roman, of nobody, and of who shows a token of alice's."""
    async with AsyncExitStack() as stack:
        found = {
            "alice": await stack.enter_async_context(wire_session(server.addresses["SASL"], logged_in("alice"))),
            "roman": await stack.enter_async_context(wire_session(server.addresses["SASL"], logged_in("roman"))),
            "nobody": await stack.enter_async_context(wire_session(server.bootstrap)),
        }
        made = await until(partial(found["alice"], create(), 3), lambda answer: not answer.error_code)
        await until(
            partial(found["alice"], describe(), 3),
            lambda answer: made.token_id in {each.token_id for each in answer.tokens},
        )
        login = PasswordLogin("SCRAM-SHA-256", made.token_id, base64_of(made.hmac), token_auth=True)
        found["token"] = await stack.enter_async_context(wire_session(server.addresses["SASL"], login))
        await without_tokens(found["alice"])
        yield found
        await without_tokens(found["alice"])


async def without_tokens(alice: WireSession) -> None:
    """End all: a broker's controller knows them a moment after they were made only."""

    async def step() -> int:
        there = (await alice(describe(), 3)).tokens
        for each in there:
            await alice(m.ExpireDelegationTokenRequest(hmac=each.hmac, expiry_time_period_ms=-1), 2)
        return len(there)

    await until(step, lambda count: not count)


def base64_of(secret: bytes) -> str:
    import base64

    return base64.b64encode(secret).decode()


def create(*renewers: tuple[str, str], life: int = -1, owner: tuple[str | None, str | None] | None = None) -> Any:
    named = [m.CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in renewers]
    request = m.CreateDelegationTokenRequest(renewers=named, max_lifetime_ms=life)
    if owner is not None:
        request.owner_principal_type, request.owner_principal_name = owner
    return request


def describe(*owners: tuple[str, str], everything: bool = True) -> Any:
    named = [m.DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in owners]
    return m.DescribeDelegationTokenRequest(owners=None if everything and not owners else named)


def every_api(secret: bytes = b"x" * 64) -> list[tuple[ApiMessage, int]]:
    """Each API in each version that Kafka 4 has."""
    return [
        *((create(), version) for version in (1, 2, 3)),
        *((m.RenewDelegationTokenRequest(hmac=secret, renew_period_ms=-1), version) for version in (1, 2)),
        *((m.ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=-1), version) for version in (1, 2)),
        *((describe(), version) for version in (1, 2, 3)),
    ]


USER, GROUP = "User", "Group"
CREATIONS: list[ApiMessage] = [
    create(),
    create(life=0),
    create(life=HOUR),
    create(life=1_000_000),
    create(life=100 * HOUR),
    create(life=2**63 - 1),
    create(life=-(2**63)),
    create((USER, "roman")),
    create((USER, "roman"), (USER, "nobody")),
    create((GROUP, "g")),
    create((USER, "roman"), ("user", "x")),
    create(("", "")),
    create((USER, "")),
    create(owner=(USER, "alice")),
    create(owner=(USER, "")),
    create(owner=("", "")),
    create(owner=(None, "")),
    create(owner=(None, None)),
    create(owner=(USER, "roman")),
    create(owner=(GROUP, "alice")),
    create((GROUP, "g"), owner=(USER, "roman")),
]


async def creations(users: dict[str, WireSession]) -> list[Any]:
    found = []
    for request in CREATIONS:
        found.append((str(request), told(await users["alice"](request, 3))))
    return found


async def changes(users: dict[str, WireSession]) -> list[Any]:
    """Of a token that roman may renew, and nobody else."""
    alice, roman = users["alice"], users["roman"]
    found: list[Any] = []
    made = await alice(create((USER, "roman"), life=5 * HOUR), 3)
    await until(partial(roman, describe(), 3), lambda answer: len(answer.tokens) == 1)
    for user in (alice, roman):
        for period in (HOUR, 0, -1, -(2**63), 100 * HOUR, 2**63 - 1):
            request = m.RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=period)
            found.append(("renew", period, told(await user(request, 2))))
        for period in (HOUR, 100 * HOUR, 1_000_000):
            expire = m.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=period)
            answer = await user(expire, 2)
            found.append(("expire", period, told(answer)))
    ends = answer.expiry_timestamp_ms
    await until(partial(roman, describe(), 3), lambda answer: answer.tokens[0].expiry_timestamp == ends)
    for owners in ((), ((USER, "alice"),), ((USER, "roman"),), ((USER, "x"),), ((GROUP, "alice"), (USER, "alice"))):
        found.append(("describe", owners, told(await roman(describe(*owners), 3))))
    found.append(("describe none", told(await roman(describe(everything=False), 3))))
    own = await alice(create(), 3)
    await until(partial(alice, describe(), 3), lambda answer: len(answer.tokens) == 2)
    for asked, version in every_api(own.hmac)[3:]:
        found.append(("not roman's", told(await roman(asked, version))))
    for secret in (b"", b"x", b"x" * 64, own.hmac[:-1], own.hmac + b"x"):
        for asked, version in every_api(secret)[3:7]:
            found.append(("unknown", len(secret), told(await alice(asked, version))))
    # of one that has ended, and is not removed yet or was
    await alice(m.ExpireDelegationTokenRequest(hmac=own.hmac, expiry_time_period_ms=-1), 2)
    await until(partial(alice, describe(), 3), lambda answer: len(answer.tokens) == 1)
    found.append(("ended", told(await alice(m.RenewDelegationTokenRequest(hmac=own.hmac, renew_period_ms=1), 2))))
    answer = await roman(m.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2)
    found.append(("ended by who may renew it", answer.error_code, answer.expiry_timestamp_ms > 0))
    return found


async def not_allowed(users: dict[str, WireSession]) -> list[Any]:
    return [
        (name, told(await users[name](request, version)))
        for name in ("nobody", "token")
        for request, version in [*every_api(), (create((GROUP, "g"), owner=(USER, "roman")), 3)]
    ]


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize("ask", [creations, changes, not_allowed])
async def test_the_same_requests_get_the_same_answers(servers: dict[str, TokenServer], ask: Any) -> None:
    answers = []
    for name in SERVERS:
        async with sessions(servers[name]) as users:
            answers.append(await ask(users))
    different = [f"kafka: {theirs}\n  gateway: {ours}" for theirs, ours in zip(*answers, strict=True) if theirs != ours]
    assert not different, "\n".join(different)


@pytest.mark.anyio
@on_asyncio
async def test_without_a_key_answers_are_those_of_a_broker_without_one(kafka: KafkaServer) -> None:
    config = {
        "listeners": "SASL://127.0.0.1:0",
        "listener.security.protocol.map": "SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f'PlainLoginModule required user_alice="{USERS["alice"]}";',
    }
    requests = [*every_api(), (create((GROUP, "g")), 3), (describe(everything=False), 3)]
    async with kclient.Gateway("memory:no-tokens", config=config) as gateway:
        answers = []
        for address in (kafka.addresses["SASL"], gateway.advertised["SASL"]):
            async with wire_session(address, logged_in("alice")) as alice:
                answers.append([(str(each), told(await alice(each, version))) for each, version in requests])
    assert answers[0] == answers[1]


# --- tokens of an identity provider

STRICTER = {
    "a forger's of log lines", "a very long name's", "a very long token", "a very long header", "an end beyond time",
}  # fmt: skip
"""What Kafka believes and a gateway does not, as the docs say; or it is not the same everywhere."""


async def verdict(address: str, token: str) -> bool:
    async with stranger(address) as wire:
        try:
            answer = await show(wire, token)
        except (AssertionError, OSError):  # Kafka hangs up where its own code stumbles over a token
            return False
        return not answer.error_code and not answer.auth_bytes


@pytest.mark.anyio
@on_asyncio
async def test_the_same_tokens_are_believed(servers: dict[str, TokenServer], secure_listeners: SecureListeners) -> None:
    it = secure_listeners.issuer
    now = int(time.time())
    held = {
        "plain": it.token(), "for several": it.token(aud=["x", "kafka"]), "with scopes": it.token(scope=["a", "b"]),
        "soon": it.token(nbf=now + 15), "just now": it.token(exp=now - 10, iat=now - 60),
        "without a scope": it.token(scope=None),
        "issued tomorrow": it.token(iat=now + 86_400), "with fractions": it.token(exp=now + 600.5),
        "without a key's name": headed(it, {"alg": "RS256"}), "of another type": headed(it, {"alg": "RS256", "typ": 7}),
        "of a scope that is none": it.token(scope=7), "of scopes that are alike": it.token(scope=["a", "a"]),
        "with blanks": it.token(" alice "), "before time": it.token(iat=-5), "later than ever": it.token(nbf="x"),
    }  # fmt: skip
    tokens = held | {name: make(it) for name, make in FORGED.items() if name not in STRICTER}
    found = {
        name: {each: await verdict(servers[name].addresses["SIGNED"], tokens[each]) for each in tokens}
        for name in SERVERS
    }
    different = {each: found["kafka"][each] for each in tokens if found["kafka"][each] != found["gateway"][each]}
    assert not different, f"whether Kafka believes them: {different}"
    assert found["gateway"]["plain"]
    assert not any(found["gateway"][each] for each in FORGED if each not in STRICTER)


# --- foreign clients


@pytest.fixture(scope="module")
def jwt(tmp_path_factory: pytest.TempPathFactory, secure_listeners: SecureListeners) -> str:
    """The address of a file with a token."""
    path = tmp_path_factory.mktemp("jwt") / "jwt"
    path.write_text(secure_listeners.issuer.token())
    return path.as_uri()


@pytest.fixture(scope="module")
def jvm(kafka_jars_4: Path, tmp_path_factory: pytest.TempPathFactory, jwt: str) -> Iterator[KafkaTools]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwt}")
        with kafka_tools(KAFKA_4, tmp_path_factory.mktemp("tools")) as tools:
            tools.run("org.apache.kafka.tools.ConsoleProducer", "--version")  # starts it with that
            yield tools


def properties(folder: Path, **settings: str) -> str:
    path = folder / f"{time.monotonic_ns()}.properties"
    path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    return str(path)


def alices(folder: Path) -> str:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="alice" password="{USERS["alice"]}";'
    return properties(folder, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=jaas)


@pytest.mark.maven
@pytest.mark.parametrize("name", SERVERS)
def test_kafkas_own_tool(servers: dict[str, TokenServer], name: str, jvm: KafkaTools, tmp_path: Path) -> None:
    server, config = servers[name], alices(tmp_path)

    def tokens(*arguments: str, code: int = 0) -> list[list[str]]:
        address = ("--bootstrap-server", server.addresses["SASL"], "--command-config", config)
        return jvm.run(TOKENS, *address, *arguments, code=code).rows

    def described(*arguments: str) -> dict[str, list[str]]:
        return {row[0]: row for row in tokens("--describe", *arguments) if "User:alice" in row}

    made = tokens("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:roman")
    (row,) = [each for each in made if "User:alice" in each]
    assert row[2:4] == ["User:alice", "User:alice"]
    token_id, secret = row[:2]
    own = ("--owner-principal", "User:alice")
    wait(lambda: token_id in described(*own))
    assert described(*own)[token_id][1] == secret
    assert described("--owner-principal", "User:nobody") == {}
    assert described() == {}, "the tool asks for the tokens of no owners"
    assert tokens("--renew", "--hmac", secret, "--renew-time-period", "-1")
    assert tokens("--expire", "--hmac", secret, "--expiry-time-period", "-1")
    wait(lambda: token_id not in described(*own))
    assert jvm.call(
        TOKENS, "--bootstrap-server", server.addresses["SASL"], "--command-config", config,
        "--renew", "--hmac", secret, "--renew-time-period", "-1",
    ).code == 1  # fmt: skip


def wait(true: Any) -> None:
    """Kafka's brokers learn of changes a moment later."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def round_trip(jvm: KafkaTools, server: TokenServer, listener: str, config: str, topic: str) -> None:
    with kclient.sync.Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topics([kclient.admin.NewTopic(topic, 1, 1)])
        for operation in (kclient.admin.AclOperation.READ, kclient.admin.AclOperation.WRITE):
            right = kclient.admin.AclBinding(
                resource_type=kclient.admin.ResourceType.TOPIC, resource_name=topic, principal="User:alice",
                operation=operation,
            )  # fmt: skip
            admin.create_acls([right])
    address = ("--bootstrap-server", server.addresses[listener])
    jvm.run(PRODUCER, *address, "--topic", topic, "--command-config", config, given="value\n")
    read = jvm.run(
        CONSUMER, *address, "--topic", topic, "--command-config", config, "--partition", "0", "--offset", "earliest",
        "--max-messages", "1", "--timeout-ms", "20000",
    )  # fmt: skip
    assert read.lines == ["value"]


@pytest.mark.maven
@pytest.mark.parametrize("mechanism", SCRAM)
def test_java_clients_log_in_with_a_delegation_token(
    servers: dict[str, TokenServer], mechanism: str, jvm: KafkaTools, tmp_path: Path, topic: str
) -> None:
    server = servers["gateway"]
    settings = {
        "bootstrap_servers": server.addresses["SASL"], "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN",
        "sasl_username": "alice", "sasl_password": USERS["alice"],
    }  # fmt: skip
    with kclient.sync.Admin(settings) as admin:
        token = admin.create_delegation_token()
        jaas = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{token.token_id}" password="{token.hmac.reveal()}" tokenauth="true";'
        )
        config = properties(
            tmp_path, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_jaas_config=jaas
        )
        round_trip(jvm, server, "SASL", config, topic)
        admin.expire_delegation_token(token.hmac)


@pytest.mark.maven
def test_java_clients_log_in_by_oauthbearer(
    servers: dict[str, TokenServer], jvm: KafkaTools, tmp_path: Path, topic: str, jwt: str
) -> None:
    config = properties(
        tmp_path, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f"{OAUTH}.OAuthBearerLoginModule required;",
        sasl_login_callback_handler_class=f"{OAUTH}.OAuthBearerLoginCallbackHandler",
        sasl_oauthbearer_token_endpoint_url=jwt,
    )  # fmt: skip
    round_trip(jvm, servers["gateway"], "SIGNED", config, topic)


def test_confluent_kafka_logs_in_by_oauthbearer(
    servers: dict[str, TokenServer], secure_listeners: SecureListeners, topic: str
) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    server = servers["gateway"]
    everything = kclient.admin.AclBinding(
        resource_type=kclient.admin.ResourceType.TOPIC, resource_name=topic, principal="User:alice",
        operation=kclient.admin.AclOperation.ALL,
    )  # fmt: skip
    group = kclient.admin.AclBinding(
        resource_type=kclient.admin.ResourceType.GROUP, resource_name=topic, principal="User:alice",
        operation=kclient.admin.AclOperation.READ,
    )  # fmt: skip
    with kclient.sync.Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_acls([everything, group])
    settings = {
        "bootstrap.servers": server.addresses["SIGNED"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
    }
    it = secure_listeners.issuer
    produce_and_consume({**settings, "oauth_cb": lambda _: (it.token("alice"), time.time() + 600)}, topic)
    errors: list[Any] = []
    forged = TokenIssuer().token("alice")
    wrong = confluent.Producer(
        {
            **settings, "oauth_cb": lambda _: (forged, time.time() + 600), "error_cb": errors.append, "log_level": 0,
        }
    )  # fmt: skip
    wait(lambda: wrong.poll(0.1) or errors)
    assert errors[0].code() == confluent.KafkaError._AUTHENTICATION
