"""Delegation tokens by the admin client and `kclient tokens`, on real Kafka and a gateway: who has one is its owner."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread
import pytest
import yaml

import kclient
import kclient.sync
from kclient.admin import AclBinding, AclOperation, Admin, DelegationToken, NewTopic, ResourceType
from kclient.cli.app import run
from kclient.config.secret import Secret
from kclient.errors import (
    AuthenticationError,
    DelegationTokenAuthorizationError,
    DelegationTokenDisabledError,
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
    InvalidPrincipalTypeError,
    KafkaTimeoutError,
    SaslAuthenticationError,
    UnsupportedByAuthenticationError,
)
from tests.conftest import require_java
from tests.kafka_artifacts import KAFKA_3, KAFKA_4
from tests.kafka_listeners import SecureListeners
from tests.kafka_server import KafkaServer
from tests.sasl_listeners import USERS
from tests.token_servers import HOUR, SCRAM, TokenServer, gateway_with_tokens, kafka_with_tokens
from tests.wire_session import until

pytestmark = [pytest.mark.anyio, pytest.mark.kafka, pytest.mark.timeout(180)]

ALICE, ROMAN = "User:alice", "User:roman"


@pytest.fixture(
    scope="module", params=[KAFKA_4, pytest.param(KAFKA_3, marks=pytest.mark.slow), pytest.param("gateway")]
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, secure_listeners: SecureListeners
) -> Iterator[TokenServer]:
    """A server with tokens, that asks its access control lists; who does not log in is a superuser."""
    if request.param == "gateway":
        with gateway_with_tokens(secure_listeners) as found:
            yield found
        return
    require_java()
    with kafka_with_tokens(request.param, tmp_path_factory.mktemp("tokens"), secure_listeners) as found:
        yield found


def settings_of(server: TokenServer, user: str, password: str | Secret, mechanism: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": server.addresses["SASL"], "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password, **more,
    }  # fmt: skip


def by_token(server: TokenServer, token: DelegationToken, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
    return settings_of(server, token.token_id, token.hmac, mechanism, sasl_tokenauth=True)


@pytest.fixture
async def alice(server: TokenServer) -> AsyncIterator[Admin]:
    async with Admin(settings_of(server, "alice", USERS["alice"], "PLAIN")) as found:
        yield found


@pytest.fixture
async def roman(server: TokenServer) -> AsyncIterator[Admin]:
    async with Admin(settings_of(server, "roman", USERS["roman"], "SCRAM-SHA-256")) as found:
        yield found


async def topics_seen(settings: dict[str, Any]) -> set[str] | None:
    """What a client may see; None if it cannot log in."""
    async with kclient.Admin(settings) as client:
        try:
            return {topic.name for topic in await client.list_topics(timeout=10)}
        except (AuthenticationError, KafkaTimeoutError):
            return None


async def test_who_has_a_token_logs_in_as_its_owner(server: TokenServer, alice: Admin) -> None:
    """Made, seen, used by each mechanism, ended and refused. A topic that alice alone may see tells who it is."""
    topic = f"tokens-{uuid.uuid4().hex[:8]}"
    acl = AclBinding(
        resource_type=ResourceType.TOPIC, resource_name=topic, principal=ALICE, operation=AclOperation.DESCRIBE
    )
    async with Admin(bootstrap_servers=server.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        await admin.create_acls([acl])
    before = int(time.time() * 1000)
    token = await alice.create_delegation_token(renewers=[ROMAN, ROMAN], max_lifetime_ms=5 * HOUR)
    assert (token.owner, token.token_requester, token.renewers) == (ALICE, ALICE, (ROMAN,))
    assert abs(token.issue_timestamp - before) < 60_000
    assert token.expiry_timestamp == token.issue_timestamp + 2 * HOUR
    assert token.max_timestamp == token.issue_timestamp + 5 * HOUR
    assert await until(lambda: alice.describe_delegation_tokens(), lambda found: token in found)
    for mechanism in SCRAM:
        found = await until(partial(topics_seen, by_token(server, token, mechanism)), lambda names: names is not None)
        assert topic in (found or ())
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token.token_id}" password="{token.hmac.reveal()}" tokenauth="true";'
    )
    names = {"sasl_username", "sasl_password", "sasl_tokenauth"}
    as_java = {name: value for name, value in by_token(server, token).items() if name not in names}
    assert topic in (await topics_seen({**as_java, "sasl_jaas_config": jaas}) or ())
    assert await topics_seen({**by_token(server, token), "sasl_tokenauth": False}) is None  # such a user there is not
    assert await topics_seen({**by_token(server, token), "sasl_password": "d3Jvbmc="}) is None
    ended = await alice.expire_delegation_token(token.hmac)
    assert before - 60_000 < ended < token.expiry_timestamp
    await until(lambda: alice.describe_delegation_tokens(), lambda found: token not in found)
    assert await topics_seen(by_token(server, token)) is None
    async with kclient.Admin(by_token(server, token)) as client:
        with pytest.raises(SaslAuthenticationError) as refused:
            await client.list_topics()
    assert token.hmac.reveal() not in str(refused.value)


async def test_renewing_and_expiring(alice: Admin, roman: Admin) -> None:
    """By whoever is named as a renewer, and by nobody else; never beyond the end that it was made with."""
    token = await alice.create_delegation_token(renewers=[ROMAN], max_lifetime_ms=3 * HOUR)
    await until(lambda: roman.describe_delegation_tokens([ALICE]), lambda found: token in found)
    now = int(time.time() * 1000)
    sooner = await roman.renew_delegation_token(token.hmac, renew_period_ms=HOUR)
    assert abs(sooner - now - HOUR) < 60_000
    later = await alice.renew_delegation_token(token.hmac.reveal())
    assert abs(later - now - 2 * HOUR) < 60_000
    renewed = await until(
        lambda: alice.describe_delegation_tokens(), lambda found: later in {each.expiry_timestamp for each in found}
    )
    assert replace(token, expiry_timestamp=later) in renewed
    assert await alice.expire_delegation_token(token.hmac, expiry_period_ms=100 * HOUR) == token.max_timestamp
    soon = await roman.expire_delegation_token(token.hmac, expiry_period_ms=HOUR)
    assert abs(soon - now - HOUR) < 60_000
    assert await until(lambda: is_expired(alice, token), bool)
    with pytest.raises((DelegationTokenExpiredError, DelegationTokenNotFoundError), match="Renewing a delegation"):
        await alice.renew_delegation_token(token.hmac)
    await until(lambda: alice.describe_delegation_tokens(), lambda found: token.token_id not in ids(found))
    with pytest.raises(DelegationTokenNotFoundError, match="the cluster has no token of this HMAC: it has expired"):
        await roman.renew_delegation_token(token.hmac)
    with pytest.raises(DelegationTokenNotFoundError) as gone:
        await roman.expire_delegation_token(token.hmac)
    assert token.hmac.reveal() not in str(gone.value)


async def is_expired(admin: Admin, token: DelegationToken) -> bool:
    """Whether a token that is to end now has ended: in the same millisecond it has not."""
    try:
        await admin.expire_delegation_token(token.hmac, expiry_period_ms=0)
    except (DelegationTokenExpiredError, DelegationTokenNotFoundError):
        return True
    return False


def ids(tokens: list[DelegationToken]) -> set[str]:
    return {token.token_id for token in tokens}


async def test_others_may_what_they_are_allowed(server: TokenServer, alice: Admin, roman: Admin) -> None:
    own = await alice.create_delegation_token()
    with pytest.raises(DelegationTokenOwnerMismatchError, match="neither its owner, nor who asked for it"):
        await roman.renew_delegation_token(own.hmac)
    with pytest.raises(DelegationTokenOwnerMismatchError):
        await roman.expire_delegation_token(own.hmac)
    await until(lambda: alice.describe_delegation_tokens([ALICE]), lambda found: own in found)
    assert own.token_id not in ids(await roman.describe_delegation_tokens())
    with pytest.raises(DelegationTokenAuthorizationError, match="CREATE_TOKENS on the owner"):
        await roman.create_delegation_token(owner=ALICE)
    with pytest.raises(InvalidPrincipalTypeError, match="principals of type User"):
        await alice.create_delegation_token(renewers=["Group:g"])
    allowed = AclBinding(
        resource_type=ResourceType.USER, resource_name=ALICE, principal=ROMAN, operation=AclOperation.CREATE_TOKENS
    )
    async with Admin(bootstrap_servers=server.bootstrap) as admin:
        await admin.create_acls([allowed])
        made = await until(lambda: created(roman, ALICE), lambda token: token is not None)
        await admin.delete_acls([allowed.as_filter()])
    assert made is not None
    assert (made.owner, made.token_requester) == (ALICE, ROMAN)
    await until(lambda: roman.describe_delegation_tokens([ALICE]), lambda found: made in found)
    assert await roman.describe_delegation_tokens([]) == []
    assert await roman.describe_delegation_tokens(["User:nobody at all"]) == []
    for token in (own, made):
        await alice.expire_delegation_token(token.hmac)


async def created(admin: Admin, owner: str) -> DelegationToken | None:
    try:
        return await admin.create_delegation_token(owner=owner)
    except DelegationTokenAuthorizationError:
        return None


async def test_who_may_not_speak_of_tokens_at_all(server: TokenServer, alice: Admin) -> None:
    token = await alice.create_delegation_token()
    await until(lambda: topics_seen(by_token(server, token)), lambda found: found is not None)
    for settings, told in (
        ({"bootstrap_servers": server.bootstrap}, "has security.protocol = PLAINTEXT: set it to SASL_SSL and log in"),
        (by_token(server, token), "this client has logged in with a token"),
    ):
        async with Admin(settings) as admin:
            for call in (
                admin.create_delegation_token,
                partial(admin.renew_delegation_token, token.hmac),
                partial(admin.expire_delegation_token, token.hmac),
                admin.describe_delegation_tokens,
            ):
                with pytest.raises(UnsupportedByAuthenticationError, match=told):
                    await call()
    await alice.expire_delegation_token(token.hmac)


async def test_a_certificate_will_do(server: TokenServer, secure_listeners: SecureListeners) -> None:
    settings = {
        "bootstrap_servers": server.addresses["SSL_CLIENT"],
        "security_protocol": "SSL",
        "ssl_truststore_certificates": secure_listeners.authority.pem,
        "ssl_keystore_certificate_chain": secure_listeners.client.chain,
        "ssl_keystore_key": secure_listeners.client.key,
    }
    async with Admin(settings) as admin:
        token = await admin.create_delegation_token()
        assert token.owner.startswith("User:")
        assert "O=trustme" in token.owner
        await admin.expire_delegation_token(token.hmac)


async def test_blocking(server: TokenServer) -> None:
    def work() -> None:
        with kclient.sync.Admin(settings_of(server, "alice", USERS["alice"], "PLAIN")) as admin:
            token = admin.create_delegation_token(owner=ALICE)
            assert admin.renew_delegation_token(token.hmac, renew_period_ms=HOUR) < token.expiry_timestamp
            assert isinstance(admin.describe_delegation_tokens([ALICE]), list)
            assert admin.expire_delegation_token(token.hmac) < token.expiry_timestamp

    await anyio.to_thread.run_sync(work)


async def test_where_there_are_none(kafka: KafkaServer, gateway: str) -> None:
    """On a broker without the key, and for who has not logged in."""
    settings = {
        "bootstrap_servers": kafka.addresses["SASL"], "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN",
        "sasl_username": "alice", "sasl_password": USERS["alice"],
    }  # fmt: skip
    async with Admin(settings) as admin:
        for call in (
            admin.create_delegation_token,
            partial(admin.renew_delegation_token, "c2VjcmV0"),
            partial(admin.expire_delegation_token, "c2VjcmV0"),
            admin.describe_delegation_tokens,
        ):
            with pytest.raises(DelegationTokenDisabledError, match="has no delegation tokens"):
                await call()
    async with Admin(bootstrap_servers=gateway) as admin:
        with pytest.raises(UnsupportedByAuthenticationError):
            await admin.create_delegation_token()
        with pytest.raises(UnsupportedByAuthenticationError):
            await admin.describe_delegation_tokens()


async def test_the_command(server: TokenServer, alice: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    config = [
        f"{name.replace('_', '.')}={value}"
        for name, value in settings_of(server, "alice", USERS["alice"], "PLAIN").items()
        if name != "bootstrap_servers"
    ]

    async def tokens(*arguments: str) -> int:
        options = [part for pair in config for part in ("--config", pair)]
        every = ["tokens", *arguments, "--bootstrap", server.addresses["SASL"], *options]
        return await anyio.to_thread.run_sync(run, every)

    assert await tokens("create", "--renewer", ROMAN, "--max-lifetime", str(HOUR), "--output", "json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["owner"], made["renewers"]) == (ALICE, [ROMAN])
    await until(lambda: alice.describe_delegation_tokens(), lambda found: made["id"] in ids(found))
    (token,) = [each for each in await alice.describe_delegation_tokens() if each.token_id == made["id"]]
    assert token.hmac == Secret(made["hmac"])
    assert await tokens("list", "--output", "json") == 0
    printed = capsys.readouterr().out
    assert {name: value for name, value in made.items() if name != "hmac"} in json.loads(printed)["tokens"]
    assert made["hmac"] not in printed
    assert await tokens("renew", made["id"], "--renew-period", "60000") == 0
    assert await tokens("expire", made["id"], "--expiry-period", "120000") == 0
    assert await tokens("expire", made["id"]) == 0
    await until(lambda: alice.describe_delegation_tokens(), lambda found: made["id"] not in ids(found))
    capsys.readouterr()
    assert await tokens("expire", made["id"]) == 1
    assert f"has the id '{made['id']}'" in capsys.readouterr().err
    assert await tokens("create", "--output", "yaml") == 0
    other = yaml.safe_load(capsys.readouterr().out)
    assert other.keys() == made.keys()
    await alice.expire_delegation_token(other["hmac"])
    assert await tokens("create", "--owner", ALICE) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert (lines["owner"], lines["renewers"]) == (ALICE, "")
    await alice.expire_delegation_token(lines["hmac"])
