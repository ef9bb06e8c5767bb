"""Delegation tokens at a gateway: made, seen, renewed and ended as on Kafka, and who logs in with them."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from kclient.admin import (
    AclBinding,
    AclOperation,
    Admin,
    ConfigResource,
    ConfigResourceType,
    DelegationToken,
    ResourceType,
)
from kclient.cli.app import run
from kclient.config.secret import Secret
from kclient.errors import (
    ConfigError,
    DelegationTokenAuthorizationError,
    DelegationTokenDisabledError,
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
    ErrorCode,
    InvalidPrincipalTypeError,
    KafkaError,
    SaslAuthenticationError,
    UnsupportedByAuthenticationError,
)
from kclient.gateway import Gateway, assembly
from kclient.gateway.rows.delegation_tokens import DelegationTokenRow
from kclient.gateway.rows.inspection import shown_row
from kclient.gateway.rows.keys import DELEGATION_TOKENS, delegation_token_key
from kclient.protocol import messages as m
from tests.gateway_wire import Wire, names
from tests.unit.gateway.test_gateway_logins import (
    LISTENERS,
    PASSWORD,
    ask,
    client,
    closed,
    handshake,
    plain,
    secured,
    stranger,
)
from tests.wire_session import until

pytestmark = pytest.mark.anyio

KEY = "the key of the tests"
TOKENS = {"delegation.token.secret.key": KEY}
LISTENERS_OF_TWO = {**LISTENERS, **TOKENS}
ALICE, BOB = "User:alice", "User:bob"
SHA256, SHA512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
HOUR = 3_600_000


def alice_of(gateway: Gateway) -> Admin:
    return client(gateway, "alice", PASSWORD)


def bob_of(gateway: Gateway) -> Admin:
    return client(gateway, "bob", "other")


def by_token(gateway: Gateway, token: DelegationToken, mechanism: str = SHA512, **more: Any) -> Admin:
    return Admin(
        bootstrap_servers=gateway.advertised["CLIENTS"], security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
        sasl_username=token.token_id, **{"sasl_password": token.hmac, "sasl_tokenauth": True, **more},
    )  # fmt: skip


@asynccontextmanager
async def logged_in(gateway: Gateway, user: str = "alice", password: str = PASSWORD) -> AsyncIterator[Wire]:
    async with stranger(gateway) as wire:
        await handshake(wire)
        assert (await plain(wire, "", user, password)).error_code == 0
        yield wire


def principals(gateway: Gateway) -> set[tuple[str, bool]]:
    return {
        (each.context.principal.name, each.context.by_token)
        for each in gateway._server.connections  # type: ignore[union-attr]
    }


async def is_refused(admin: Admin) -> bool:
    async with admin:
        try:
            await admin.list_topics()
        except SaslAuthenticationError:
            return True
    return False


# --- what they are for


@pytest.mark.parametrize("mechanism", [SHA256, SHA512])
async def test_who_has_a_token_is_its_owner(mechanism: str) -> None:
    async with secured(**TOKENS) as gateway:
        async with alice_of(gateway) as alice:
            token = await alice.create_delegation_token(renewers=[BOB, BOB], max_lifetime_ms=5 * HOUR)
            assert (token.owner, token.token_requester, token.renewers) == (ALICE, ALICE, (BOB,))
            assert token.expiry_timestamp == token.max_timestamp == token.issue_timestamp + 5 * HOUR
            assert await alice.describe_delegation_tokens() == [token]
        async with by_token(gateway, token, mechanism) as admin:
            await admin.list_topics()
            assert ("alice", True) in principals(gateway)
        assert await is_refused(by_token(gateway, token, mechanism, sasl_tokenauth=False)), "there is no such user"
        assert await is_refused(by_token(gateway, token, mechanism, sasl_password="d3Jvbmc="))
        async with alice_of(gateway) as alice:
            ended = await alice.expire_delegation_token(token.hmac)
            assert token.issue_timestamp <= ended < token.expiry_timestamp
        assert await is_refused(by_token(gateway, token, mechanism))


async def test_renewing_and_ending() -> None:
    times = {"delegation.token.max.lifetime.ms": str(10 * HOUR), "delegation.token.expiry.time.ms": str(2 * HOUR)}
    async with secured(**TOKENS, **times) as gateway, alice_of(gateway) as alice, bob_of(gateway) as bob:
        token = await alice.create_delegation_token(renewers=[BOB], max_lifetime_ms=100 * HOUR)
        assert token.max_timestamp == token.issue_timestamp + 10 * HOUR
        assert token.expiry_timestamp == token.issue_timestamp + 2 * HOUR
        sooner = await bob.renew_delegation_token(token.hmac, renew_period_ms=HOUR)
        assert abs(sooner - token.issue_timestamp - HOUR) < 60_000
        later = await alice.renew_delegation_token(token.hmac)
        assert abs(later - token.issue_timestamp - 2 * HOUR) < 60_000
        assert await bob.expire_delegation_token(token.hmac, expiry_period_ms=100 * HOUR) == token.max_timestamp
        (seen,) = await bob.describe_delegation_tokens([ALICE])
        assert seen.expiry_timestamp == token.max_timestamp
        await alice.expire_delegation_token(token.hmac, expiry_period_ms=0)
        await until(lambda: ended(alice, token), bool)
        with pytest.raises(DelegationTokenExpiredError):
            await bob.expire_delegation_token(token.hmac)
        assert await is_refused(by_token(gateway, token))
        assert gateway.parts.delegation_tokens is not None
        assert await gateway.parts.delegation_tokens.remove_ended() == 1
        with pytest.raises(DelegationTokenNotFoundError) as gone:
            await alice.renew_delegation_token(token.hmac)
        assert token.hmac.reveal() not in str(gone.value)


async def ended(admin: Admin, token: DelegationToken) -> bool:
    try:
        await admin.renew_delegation_token(token.hmac, renew_period_ms=1)
    except DelegationTokenExpiredError:
        return True
    return False


async def test_those_that_have_ended_are_removed() -> None:
    times = {"delegation.token.expiry.check.interval.ms": "20", "delegation.token.expiry.time.ms": "1"}
    async with secured(**TOKENS, **times) as gateway, alice_of(gateway) as alice:
        await alice.create_delegation_token()
        await until(lambda: rows(gateway), lambda found: not found)


async def rows(gateway: Gateway) -> dict[str, Any]:
    return await gateway.parts.manager.scan(DELEGATION_TOKENS, limit=100)


@pytest.mark.slow
async def test_a_session_ends_with_its_token() -> None:
    async with secured(**TOKENS) as gateway:
        async with alice_of(gateway) as alice:
            token = await alice.create_delegation_token(max_lifetime_ms=2_000)
        async with by_token(gateway, token) as admin:
            await admin.list_topics()
            assert ("alice", True) in principals(gateway)
            with pytest.raises(KafkaError):
                while True:
                    await admin.list_topics(timeout=10)
        assert await is_refused(by_token(gateway, token))


# --- who may do what


async def test_others_may_what_they_are_allowed() -> None:
    config = {"authorizer.class.name": "acls", "super.users": "User:ANONYMOUS", **TOKENS}
    async with secured(**config) as gateway, alice_of(gateway) as alice, bob_of(gateway) as bob:
        token = await alice.create_delegation_token()
        assert await bob.describe_delegation_tokens() == []
        with pytest.raises(DelegationTokenOwnerMismatchError):
            await bob.renew_delegation_token(token.hmac)
        with pytest.raises(DelegationTokenOwnerMismatchError):
            await bob.expire_delegation_token(token.hmac)
        with pytest.raises(DelegationTokenAuthorizationError):
            await bob.create_delegation_token(owner=ALICE)
        async with Admin(bootstrap_servers=gateway.bootstrap) as root:
            for kind, name, operation in (
                (ResourceType.DELEGATION_TOKEN, token.token_id, AclOperation.DESCRIBE),
                (ResourceType.USER, ALICE, AclOperation.CREATE_TOKENS),
            ):
                await root.create_acls(
                    [AclBinding(resource_type=kind, resource_name=name, principal=BOB, operation=operation)]
                )
        assert await bob.describe_delegation_tokens() == [token]
        assert await bob.describe_delegation_tokens([BOB]) == []
        other = await bob.create_delegation_token(owner=ALICE)
        assert (other.owner, other.token_requester) == (ALICE, BOB)
        with pytest.raises(DelegationTokenOwnerMismatchError):
            await bob.renew_delegation_token(other.hmac)  # as on Kafka: who has asked for it may see it only
        assert {each.token_id for each in await bob.describe_delegation_tokens()} == {token.token_id, other.token_id}
        async with by_token(gateway, other) as admin:
            await admin.describe_cluster()
            assert ("alice", True) in principals(gateway)


async def test_nobody_becomes_a_user_by_the_token_of_a_group() -> None:
    config = {"authorizer.class.name": "acls", "super.users": "User:ANONYMOUS;User:alice", **TOKENS}
    async with secured(**config) as gateway, bob_of(gateway) as bob:
        async with Admin(bootstrap_servers=gateway.bootstrap) as root:
            await root.create_acls(
                [
                    AclBinding(
                        resource_type=ResourceType.USER, resource_name="Group:alice", principal=BOB,
                        operation=AclOperation.CREATE_TOKENS,
                    )
                ]
            )  # fmt: skip
        token = await bob.create_delegation_token(owner="Group:alice")
        assert token.owner == "Group:alice"
        for mechanism in (SHA256, SHA512):
            assert await is_refused(by_token(gateway, token, mechanism))


def calls_of(admin: Admin, secret: Secret | str) -> list[Callable[[], Awaitable[object]]]:
    return [
        admin.create_delegation_token,
        partial(admin.renew_delegation_token, secret),
        partial(admin.expire_delegation_token, secret),
        admin.describe_delegation_tokens,
    ]


async def test_only_who_has_logged_in_and_not_with_a_token() -> None:
    async with secured(**TOKENS) as gateway:
        async with alice_of(gateway) as alice:
            token = await alice.create_delegation_token()
            with pytest.raises(InvalidPrincipalTypeError):
                await alice.create_delegation_token(renewers=["Group:x"])
        for admin in (by_token(gateway, token), Admin(bootstrap_servers=gateway.bootstrap)):
            async with admin:
                for call in calls_of(admin, token.hmac):
                    with pytest.raises(UnsupportedByAuthenticationError):
                        await call()


async def test_a_client_that_logs_in_again_without_its_token_may_make_one() -> None:
    async with secured(**TOKENS) as gateway, logged_in(gateway) as wire:
        assert (await wire(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)).error_code == 0
        assert principals(gateway) == {("alice", False)}


async def test_where_there_is_no_key() -> None:
    async with secured() as gateway, alice_of(gateway) as alice:
        for call in calls_of(alice, "c2VjcmV0"):
            with pytest.raises(DelegationTokenDisabledError):
                await call()
        async with stranger(gateway) as wire:
            await handshake(wire, SHA512)
            first = m.SaslAuthenticateRequest(auth_bytes=b"n,,n=x,r=nonce,tokenauth=true")
            assert (await wire(first, 2)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await closed(wire)
    for name in ("max.lifetime.ms", "expiry.time.ms", "expiry.check.interval.ms"):
        with pytest.raises(ConfigError, match="has no effect"):
            Gateway(f"memory:{next(names)}", config={f"delegation.token.{name}": "1000"})
    with pytest.raises(ConfigError, match="is empty"):
        Gateway(f"memory:{next(names)}", config={"delegation.token.secret.key": ""})


# --- several gateways, and one after another


async def test_all_gateways_of_a_store_know_them() -> None:
    store = f"memory:{next(names)}"
    first_config, second_config = ({**LISTENERS_OF_TWO, "node.id": number} for number in ("1", "2"))
    async with Gateway(store, config=first_config) as first, Gateway(store, config=second_config) as second:
        async with alice_of(first) as alice:
            token = await alice.create_delegation_token(renewers=[BOB])
        async with bob_of(second) as bob:
            assert await bob.describe_delegation_tokens([ALICE]) == [token]
            later = await bob.renew_delegation_token(token.hmac, renew_period_ms=HOUR)
        async with by_token(second, token) as admin:
            await admin.list_topics()
        async with alice_of(first) as alice:
            assert [each.expiry_timestamp for each in await alice.describe_delegation_tokens()] == [later]
            await alice.expire_delegation_token(token.hmac)
        await until(lambda: is_refused(by_token(second, token)), bool)


async def test_they_outlive_gateways_but_not_their_key(caplog: pytest.LogCaptureFixture) -> None:
    store = f"memory:{next(names)}"
    async with Gateway(store, config=LISTENERS_OF_TWO) as gateway, alice_of(gateway) as alice:
        token = await alice.create_delegation_token()
    async with Gateway(store, config=LISTENERS_OF_TWO) as gateway, by_token(gateway, token) as admin:
        await admin.list_topics()
    other = {**LISTENERS_OF_TWO, "delegation.token.secret.key": "another"}
    async with Gateway(store, config=other) as gateway:
        assert await is_refused(by_token(gateway, token))
        async with alice_of(gateway) as alice:
            assert await alice.describe_delegation_tokens() == []
            with pytest.raises(DelegationTokenNotFoundError):
                await alice.renew_delegation_token(token.hmac)
    assert "was made with another delegation.token.secret.key" in caplog.text
    assert token.hmac.reveal() not in caplog.text


# --- secrets, damage and what attackers try


async def test_nothing_shows_what_a_token_is_proved_by(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with secured(**TOKENS) as gateway, alice_of(gateway) as alice:
        token = await alice.create_delegation_token()
        secret = base64.b64decode(token.hmac.reveal())
        (row,) = (await rows(gateway)).values()
        assert secret not in row.value
        assert secret.hex().encode() not in row.value
        shown = shown_row(delegation_token_key(token.token_id), row.value)
        assert shown.kind == "delegation token"
        assert set(shown.value) == {"owner", "requester", "renewers", "issued", "expiry", "max"}
        async with Admin(bootstrap_servers=gateway.bootstrap) as admin:
            told = await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")])
            assert KEY not in repr(told)
        with pytest.raises(DelegationTokenNotFoundError):
            await alice.renew_delegation_token(base64.b64encode(b"x" * 64).decode())
    assert KEY not in caplog.text
    assert token.hmac.reveal() not in caplog.text
    assert secret.hex() not in caplog.text


@pytest.mark.slow
async def test_a_store_with_tokens_is_verified_shown_and_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, backup, restored = (str(tmp_path / name) for name in ("data", "backup", "restored"))
    async with Gateway(f"embedded:{data}", config=LISTENERS_OF_TWO) as gateway, alice_of(gateway) as alice:
        token = await alice.create_delegation_token()
        (row,) = (await rows(gateway)).values()
    for call in (
        ["verify", data], ["dump", data, "--json"], ["backup", data, backup], ["restore", backup, restored],
        ["verify", restored],
    ):  # fmt: skip
        assert await anyio.to_thread.run_sync(run, ["store", *call]) == 0, call
    printed = "".join(capsys.readouterr())
    assert token.token_id in printed
    assert token.hmac.reveal() not in printed
    for credential in DelegationTokenRow.decode(row.value).credentials.values():
        assert credential.stored_key.hex() not in printed
    async with Gateway(f"embedded:{restored}", config=LISTENERS_OF_TWO) as gateway, by_token(gateway, token) as admin:
        await admin.list_topics()


async def test_a_damaged_row_counts_for_nobody() -> None:
    async with secured(**TOKENS) as gateway:
        async with alice_of(gateway) as alice:
            token = await alice.create_delegation_token()
        key = delegation_token_key(token.token_id)
        row = (await rows(gateway))[key]
        for damaged in (b"{}", row.value[:-20], row.value.replace(b"alice", b"admin"), b'{"format":1,"owner":7}'):
            version = (await rows(gateway))[key].version
            await gateway.parts.manager.commit({key: damaged}, {key: version})
            await until(lambda: is_refused(by_token(gateway, token)), bool)
            assert shown_row(key, damaged).problem


FIRSTS = ["n,a=bob,n={id},r=x", "n,,n={id}x,r=x", "n,,n=alice,r=x", "n,,n={id}=00,r=x", "n,,n=../{id},r=x"]


@pytest.mark.parametrize("first", FIRSTS)
async def test_first_messages_that_are_not_those_of_a_token(first: str) -> None:
    """Refused at once, or at the proof: a token's HMAC proves nothing for another name."""
    async with secured(**TOKENS) as gateway:
        async with alice_of(gateway) as alice:
            token = await alice.create_delegation_token()
        async with stranger(gateway) as wire:
            await handshake(wire, SHA512)
            text = f"{first.format(id=token.token_id)},tokenauth=true"
            answer = await wire(m.SaslAuthenticateRequest(auth_bytes=text.encode()), 2)
            if not answer.error_code:
                nonce = bytes(answer.auth_bytes).decode().split(",")[0]
                final = f"c=biws,{nonce},p={'A' * 86}=="
                answer = await wire(m.SaslAuthenticateRequest(auth_bytes=final.encode()), 2)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await closed(wire)


@pytest.mark.parametrize(
    "renewers", [[("User", "x" * 2000)], [("User", "a\nb")], [("User", f"u{each}") for each in range(101)]]
)
async def test_tokens_for_absurd_renewers(renewers: list[tuple[str, str]]) -> None:
    async with secured(**TOKENS) as gateway, logged_in(gateway) as wire:
        named = [m.CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in renewers]
        answer = await wire(m.CreateDelegationTokenRequest(renewers=named, max_lifetime_ms=-1), 3)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert (answer.principal_name, answer.token_id, answer.hmac) == ("alice", "", b"")
        assert await ask(wire)


@pytest.mark.parametrize("life", [2**63 - 1, -(2**63), 0])
async def test_absurd_times(life: int) -> None:
    config = {name: str(2**63 - 1) for name in ("delegation.token.max.lifetime.ms", "delegation.token.expiry.time.ms")}
    async with secured(**TOKENS, **config) as gateway, logged_in(gateway) as wire:
        made = await wire(m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=life), 3)
        assert made.error_code == 0
        for request in (
            m.RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=life),
            m.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=max(life, 0)),
        ):
            answer = await wire(request, 2)
            assert answer.error_code == 0
            assert made.issue_timestamp_ms <= answer.expiry_timestamp_ms <= made.max_timestamp_ms


async def test_there_is_an_end_to_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "_USERS_SHARE", 1000)
    config = {**TOKENS, "connections.max.memory.bytes": str(16 << 20)}
    async with secured(**config) as gateway, logged_in(gateway) as wire:
        codes: list[int] = []
        while len(codes) < 30 and not any(codes):
            request = m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
            codes.append((await wire(request, 3)).error_code)
        assert codes[-1] == ErrorCode.POLICY_VIOLATION
        assert await ask(wire)
