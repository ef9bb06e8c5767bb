"""A gateway whose clients log in: listeners, users by SCRAM and PLAIN, and what attackers get."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kclient.admin import Admin, ScramMechanism, UserScramCredentialUpsertion
from kclient.errors import ConfigError, ErrorCode, NotYetSupportedError, SaslAuthenticationError
from kclient.gateway import Gateway
from kclient.gateway.rows.inspection import shown_row
from kclient.gateway.rows.keys import SCRAM_DECOYS, scram_key
from kclient.gateway.rows.scram_credentials import ScramDecoyRow
from kclient.gateway.security import login
from kclient.gateway.security.scram_users import ScramChange
from kclient.net.sasl.scram import ScramCredential
from kclient.protocol import messages as m
from tests import forged_tokens
from tests.gateway_wire import Wire, names
from tests.unit.gateway_cluster.together import joined
from tests.wire_session import until

pytestmark = pytest.mark.anyio

PASSWORD = "wonder, land="
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}" user_bob="other";'
LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "listener.name.clients.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": JAAS,
    "connection.failed.authentication.delay.ms": 10,
}
SHA256, SHA512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


@asynccontextmanager
async def secured(**config: Any) -> AsyncIterator[Gateway]:
    async with Gateway(f"memory:{next(names)}", config={**LISTENERS, **config}) as gateway:
        yield gateway


@asynccontextmanager
async def stranger(gateway: Gateway) -> AsyncIterator[Wire]:
    """A connection to the listener where clients log in."""
    async with forged_tokens.stranger(gateway.advertised["CLIENTS"]) as wire:
        yield wire


def client(gateway: Gateway, user: str, password: str, mechanism: str = "PLAIN") -> Admin:
    return Admin(
        bootstrap_servers=gateway.advertised["CLIENTS"],
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_username=user,
        sasl_password=password,
    )


async def set_password(gateway: Gateway, user: str, password: str, mechanism: ScramMechanism = SHA512) -> None:
    async with Admin(bootstrap_servers=gateway.bootstrap) as admin:
        await admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(user=user, mechanism=mechanism, password=password)]
        )


async def handshake(wire: Wire, mechanism: str = "PLAIN") -> Any:
    return await wire(m.SaslHandshakeRequest(mechanism=mechanism), 1)


async def plain(wire: Wire, authzid: str, user: str, password: str) -> Any:
    return await wire(m.SaslAuthenticateRequest(auth_bytes=f"{authzid}\0{user}\0{password}".encode()), 2)


async def closed(wire: Wire) -> bool:
    try:
        return await wire.frame() is None
    except OSError:
        return True


# --- logging in


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_who_knows_the_password_gets_in_and_nobody_else(mechanism: str) -> None:
    async with secured() as gateway:
        for each in (SHA256, SHA512):
            await set_password(gateway, "alice", PASSWORD, each)
        async with client(gateway, "alice", PASSWORD, mechanism) as admin:
            await admin.list_topics()
            told = await admin.describe_cluster()
            assert f"{told.nodes[0].host}:{told.nodes[0].port}" == gateway.advertised["CLIENTS"]
        for user, password in (("alice", "wrong"), ("mallory", PASSWORD)):
            with pytest.raises(SaslAuthenticationError):
                async with client(gateway, user, password, mechanism) as admin:
                    await admin.list_topics()


@pytest.mark.parametrize("user", ["a,b=c", "=2C=3D", "ümlaut Ⅸ", "'; DROP", "😀" * 1024, "," * 1024])
async def test_names_of_all_kinds(user: str) -> None:
    async with secured() as gateway:
        await set_password(gateway, user, PASSWORD)
        async with client(gateway, user, PASSWORD, "SCRAM-SHA-512") as admin:
            await admin.list_topics()
            principals = {
                connection.context.principal.name
                for connection in gateway._server.connections  # type: ignore[union-attr]
            }
            assert user in principals


async def test_users_are_those_of_all_gateways_and_outlive_them() -> None:
    store = f"memory:{next(names)}"
    async with joined(store, 1) as (first, _), joined(store, 2) as (second, _):
        await set_password_of(first, "alice")
        await until(lambda: known(second), lambda users: "alice" in users)
    async with joined(store, 3) as (third, _):
        assert "alice" in await known(third)


async def set_password_of(gateway: Gateway, user: str) -> None:
    credential = ScramCredential.derive("SCRAM-SHA-512", PASSWORD)
    assert not await gateway.parts.scram_users.alter([ScramChange(user, "SCRAM-SHA-512", credential)])


async def known(gateway: Gateway) -> set[str]:
    return set(gateway.parts.scram_users.users)


async def test_a_session_ends_unless_the_client_logs_in_again() -> None:
    async with secured(**{"connections.max.reauth.ms": 400}) as gateway, stranger(gateway) as wire:
        await handshake(wire)
        answer = await plain(wire, "", "alice", PASSWORD)
        assert 0 < answer.session_lifetime_ms <= 400
        await handshake(wire)
        assert (await plain(wire, "", "alice", PASSWORD)).error_code == 0
        await wire(m.MetadataRequest(topics=[]), 12)
        await until(lambda: ask(wire), lambda answered: not answered)


async def ask(wire: Wire) -> bool:
    """Whether a request is answered."""
    request = m.MetadataRequest(topics=[])
    try:
        await wire.send(request, 12)
        return await wire.frame() is not None
    except OSError:
        return False


@pytest.mark.parametrize("setting", ["connections.max.reauth.ms", "listener.name.clients.connections.max.reauth.ms"])
async def test_a_session_as_long_as_the_setting_can_say(setting: str) -> None:
    async with secured(**{setting: str(2**63 - 1)}) as gateway, stranger(gateway) as wire:
        await handshake(wire)
        answer = await plain(wire, "", "alice", PASSWORD)
        assert answer.error_code == 0
        assert answer.session_lifetime_ms > 2**62
        assert await ask(wire)


async def test_nobody_becomes_another_on_the_way() -> None:
    async with secured() as gateway, stranger(gateway) as wire:
        await handshake(wire)
        assert (await plain(wire, "", "alice", PASSWORD)).error_code == 0
        await handshake(wire)
        assert (await plain(wire, "", "bob", "other")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await closed(wire)


# --- attacks


@pytest.mark.slow
async def test_nothing_is_answered_before_the_login() -> None:
    async with secured() as gateway:
        for key, (low, _) in gateway.parts.table.versions.items():
            if key == m.ApiVersionsRequest.API_KEY:
                continue
            for before in (False, True):
                async with stranger(gateway) as wire:
                    if before:
                        await handshake(wire)
                    header = key.to_bytes(2, "big") + low.to_bytes(2, "big")
                    await wire.stream.send([b"\0\0\0\x0e" + header + bytes(10)])
                    assert await closed(wire), key


async def test_requests_behind_a_handshake_do_not_slip_through() -> None:
    async with secured() as gateway, stranger(gateway) as wire:
        request = m.SaslHandshakeRequest(mechanism="PLAIN")
        await wire.send(request, 1)
        await wire.send(m.MetadataRequest(topics=None), 12)
        assert (await wire.read(request, 1)).error_code == 0
        assert await closed(wire)


async def test_requests_behind_a_wrong_password_are_not_looked_at() -> None:
    async with secured() as gateway, stranger(gateway) as wire:
        await handshake(wire)
        request = m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong")
        await wire.send(request, 2)
        await wire.send(m.SaslAuthenticateRequest(auth_bytes=f"\0alice\0{PASSWORD}".encode()), 2)
        assert (await wire.read(request, 2)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await closed(wire)


async def test_a_mechanism_that_the_listener_does_not_offer() -> None:
    async with secured(**{"listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512"}) as gateway:
        await set_password(gateway, "alice", PASSWORD, SHA256)
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "scram-sha-512", "", "OAUTHBEARER"):
            async with stranger(gateway) as wire:
                answer = await handshake(wire, mechanism)
                assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
                assert answer.mechanisms == ["SCRAM-SHA-512"]
                assert await closed(wire)


async def test_authenticating_without_a_handshake() -> None:
    async with secured() as gateway, stranger(gateway) as wire:
        assert (await plain(wire, "", "alice", PASSWORD)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await closed(wire)


@pytest.mark.parametrize(
    "token",
    [
        f"bob\0alice\0{PASSWORD}", f"\0\0{PASSWORD}", "\0alice\0", f"\0alice\0{PASSWORD}\0", f"\0alice\0\0{PASSWORD}",
        "alice", "", "\0" * 100,
    ],
)  # fmt: skip
async def test_tokens_of_plain_that_are_none(token: str) -> None:
    async with secured() as gateway, stranger(gateway) as wire:
        await handshake(wire)
        answer = await wire(m.SaslAuthenticateRequest(auth_bytes=token.encode()), 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert PASSWORD not in (answer.error_message or "")
        assert await closed(wire)


class Scram:
    """A client's side of SCRAM-SHA-512 by hand, which can lie."""

    def __init__(self, wire: Wire, user: str = "alice") -> None:
        self.wire = wire
        self.bare = f"n={user},r=nonce"

    async def first(self, header: str = "n,,") -> str:
        await handshake(self.wire, "SCRAM-SHA-512")
        answer = await self.send(f"{header}{self.bare}")
        self.server_first = str(bytes(answer.auth_bytes), "utf-8")
        return self.server_first

    async def send(self, text: str) -> Any:
        return await self.wire(m.SaslAuthenticateRequest(auth_bytes=text.encode()), 2)

    def final(self, nonce: str | None = None, binding: str = "biws", password: str = PASSWORD) -> str:
        fields = dict(part.split("=", 1) for part in self.server_first.split(","))
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)
        key = hmac.digest(salted, b"Client Key", "sha512")
        bare = f"c={binding},r={fields['r'] if nonce is None else nonce}"
        message = f"{self.bare},{self.server_first},{bare}".encode()
        signature = hmac.digest(hashlib.sha512(key).digest(), message, "sha512")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{bare},p={base64.b64encode(proof).decode()}"


async def test_messages_of_scram_that_were_overheard_or_changed() -> None:
    async with secured() as gateway:
        await set_password(gateway, "alice", PASSWORD)
        async with stranger(gateway) as wire:
            scram = Scram(wire)
            await scram.first()
            overheard = scram.final()
            assert (await scram.send(overheard)).error_code == 0
        finals: list[Callable[[Scram], str]] = [
            lambda _: overheard,
            lambda it: it.final(nonce="nonce"),
            lambda it: it.final(nonce=f"{it.server_first.split(',')[0][2:]}x"),
            lambda it: it.final(binding="eSws"),
            lambda it: it.final(password="wrong"),
            lambda it: it.final().rpartition(",")[0],
            lambda it: f"{it.final().rpartition(',')[0]},p=AAAA",
        ]
        for make in finals:
            async with stranger(gateway) as wire:
                scram = Scram(wire)
                await scram.first()
                answer = await scram.send(make(scram))
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert await closed(wire)


@pytest.mark.parametrize("first", ["n,a=bob,", "p=tls-unique,,", "n,,m=x,", "", "y"])
async def test_first_messages_of_scram_that_are_refused(first: str) -> None:
    async with secured() as gateway, stranger(gateway) as wire:
        await set_password(gateway, "alice", PASSWORD)
        scram = Scram(wire)
        await handshake(wire, "SCRAM-SHA-512")
        answer = await scram.send(first + scram.bare)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await closed(wire)


async def test_who_does_not_exist_looks_like_who_does() -> None:
    """The salt of a name stays the same, and only the proof is refused, with the same text."""
    async with secured() as gateway:
        await set_password(gateway, "alice", PASSWORD)
        texts, salts = set(), set()
        for user in ("alice", "nobody", "nobody"):
            async with stranger(gateway) as wire:
                scram = Scram(wire, user)
                first = await scram.first()
                if user == "nobody":
                    salts.add(first.split(",", 1)[1])
                texts.add((await scram.send(scram.final(password="wrong"))).error_message)
        assert len(texts) == len(salts) == 1


async def test_who_does_not_exist_looks_alike_at_all_gateways_and_after_restarts() -> None:
    store, shown = f"memory:{next(names)}", []
    for number in (1, 2):
        async with Gateway(store, config={**LISTENERS, "node.id": str(number)}) as gateway, stranger(gateway) as wire:
            shown.append((await Scram(wire, "nobody").first()).split(",", 1)[1])
            row = (await gateway.parts.manager.get([SCRAM_DECOYS]))[SCRAM_DECOYS]
            assert shown_row(SCRAM_DECOYS, row.value).value == {"bytes": 32}, "nobody sees the key"
    assert shown[0] == shown[1]


async def test_a_damaged_key_of_decoys_is_made_anew() -> None:
    async with secured() as gateway:
        manager, users = gateway.parts.manager, gateway.parts.scram_users
        before = (await manager.get([SCRAM_DECOYS]))[SCRAM_DECOYS]
        await manager.commit({SCRAM_DECOYS: b"{}"}, {SCRAM_DECOYS: before.version}, lease=None)
        first = await users.decoys()
        assert (await users.decoys()).key == first.key
        assert ScramDecoyRow.decode((await manager.get([SCRAM_DECOYS]))[SCRAM_DECOYS].value).key == first.key


async def test_a_stranger_may_not_send_much() -> None:
    async with secured(**{"sasl.server.max.receive.size": 1000}) as gateway, stranger(gateway) as wire:
        await wire.stream.send([(1001).to_bytes(4, "big")])
        assert await closed(wire)
    async with secured() as gateway, stranger(gateway) as wire:
        await handshake(wire)
        with pytest.raises((OSError, AssertionError)):
            await wire(m.SaslAuthenticateRequest(auth_bytes=bytes(524_288)), 2)


async def test_a_login_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_LOGIN_S", 0.2)
    async with secured() as gateway:
        async with stranger(gateway) as slow, stranger(gateway) as known_one:
            await handshake(known_one)
            assert (await plain(known_one, "", "alice", PASSWORD)).error_code == 0
            await handshake(slow)
            assert await closed(slow)
            assert await ask(known_one)
        async with stranger(gateway) as later:
            assert await closed(later)


async def test_versions_may_be_asked_for_at_any_time() -> None:
    request = m.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    async with secured() as gateway, stranger(gateway) as wire:
        offered = {each.api_key for each in (await wire(request, 4)).api_keys}
        assert {m.SaslHandshakeRequest.API_KEY, m.SaslAuthenticateRequest.API_KEY} <= offered
        await handshake(wire)
        assert (await plain(wire, "", "alice", PASSWORD)).error_code == 0
        assert (await wire(request, 4)).error_code == 0
        assert await ask(wire)


# --- secrets


async def test_no_secret_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with secured() as gateway:
        await set_password(gateway, "alice", PASSWORD)
        async with client(gateway, "alice", PASSWORD, "SCRAM-SHA-512") as admin:
            told = repr(await admin.describe_user_scram_credentials())
        with pytest.raises(SaslAuthenticationError) as refused:
            async with client(gateway, "alice", f"{PASSWORD}!") as admin:
                await admin.list_topics()
        key = scram_key("alice")
        row = (await gateway.parts.manager.get([key]))[key].value
        kept = gateway.parts.scram_users.users["alice"]["SCRAM-SHA-512"]
        for text in (told, str(refused.value), repr(gateway.parts.config.of_listeners), caplog.text, repr(kept)):
            assert PASSWORD not in text
            assert kept.stored_key.hex() not in text
        shown = shown_row(key, row)
        assert shown.value == {"SCRAM-SHA-512": {"iterations": 4096}}
        damaged = shown_row(key, row[:-1] + b"x")
        assert damaged.problem is not None
        assert kept.stored_key.hex() not in damaged.problem
        assert PASSWORD.encode() not in row


# --- settings


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"listeners": ""}, "listeners is empty"),
        ({"listeners": "127.0.0.1:9092"}, "NAME://HOST:PORT"),
        ({"listeners": "A://127.0.0.1:0"}, "does not say how clients come in"),
        ({"listeners": "PLAINTEXT://h:1,SASL_PLAINTEXT://h:1"}, "a port twice"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "two listeners"),
        ({"advertised.listeners": "PLAINTEXT://h:1"}, "listeners is not"),
        ({"listeners": "PLAINTEXT://h:1", "advertised.listeners": "OTHER://h:1"}, "does not have"),
        ({"listeners": "PLAINTEXT://h:1", "listener.security.protocol.map": "PLAINTEXT:TLS"}, "NAME:PROTOCOL"),
        ({**LISTENERS, "listener.name.clients.plain.sasl.jaas.config": "PlainLoginModule required;"}, "no user"),
        ({**LISTENERS, "listener.name.clients.sasl.enabled.mechanisms": "NTLM"}, "none of PLAIN"),
        ({**LISTENERS, "listener.name.other.connections.max.reauth.ms": "1"}, "no setting of a listener"),
        ({**LISTENERS, "listener.name.clients.connections.max.reauth.ms": "soon"}, "number of milliseconds"),
        ({**LISTENERS, "listener.name.clients.connections.max.reauth.ms": str(2**63)}, "number of milliseconds"),
        ({**LISTENERS, "listener.name.clients.connections.max.reauth.ms": "9" * 5000}, "number of milliseconds"),
        ({**LISTENERS, "listener.name.clients.plain.sasl.jaas.config": None}, "text, numbers or paths"),
        ({"listeners": "SASL_PLAINTEXT://h:1", "sasl.enabled.mechanisms": "PLAIN"}, "has no users for it"),
        ({"listener.name.clients.connections.max.reauth.ms": "1"}, "listeners is not"),
    ],
)
def test_settings_that_make_no_sense(config: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        Gateway(f"memory:{next(names)}", config=config)
    assert PASSWORD not in str(raised.value)


def test_what_gateways_do_not_have_yet() -> None:
    config = {**LISTENERS, "listener.name.clients.sasl.enabled.mechanisms": "GSSAPI"}
    with pytest.raises(NotYetSupportedError, match="only PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"):
        Gateway(f"memory:{next(names)}", config=config)


def test_listeners_and_listen_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="takes the place of listen"):
        Gateway(f"memory:{next(names)}", "127.0.0.1:0", config=LISTENERS)
