"""A gateway whose clients log in by OAUTHBEARER: whom it believes, what attackers get, and where the keys come from."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from kclient.admin import Admin
from kclient.config.secret import Url
from kclient.errors import ConfigError, ErrorCode, MissingExtraError, SaslAuthenticationError
from kclient.gateway import Gateway
from kclient.gateway.security import key_source, token_verifier
from kclient.gateway.security.json_web_keys import MOST_BYTES, parse_key_set
from kclient.gateway.security.key_source import KeySource, KeySourceSettings
from kclient.net.sasl.oauthbearer import InvalidTokenError
from kclient.net.sasl.server import SaslHandler
from kclient.protocol import messages as m
from tests.certificates import Authority
from tests.forged_tokens import FORGED, claims, encode, headed, show
from tests.gateway_wire import names
from tests.sasl_listeners import TokenIssuer
from tests.unit.gateway.test_gateway_logins import ask, closed, handshake, stranger
from tests.wire_session import until

pytestmark = pytest.mark.anyio

ISSUER = TokenIssuer()
PACKAGE = "org.apache.kafka.common.security.oauthbearer"
UNSECURED = f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "listener.name.clients.sasl.enabled.mechanisms": "OAUTHBEARER",
    "connection.failed.authentication.delay.ms": 10,
}
REFUSAL = b'{"status":"invalid_token"}'


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(ISSUER.jwks())
    return path


def settings(keys: Path, **config: Any) -> dict[str, Any]:
    return {
        **LISTENERS,
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka,others",
        **config,
    }


@asynccontextmanager
async def guarded(keys: Path, **config: Any) -> AsyncIterator[Gateway]:
    async with Gateway(f"memory:{next(names)}", config=settings(keys, **config)) as gateway:
        yield gateway


def client(gateway: Gateway, token: str) -> Admin:
    return Admin(
        bootstrap_servers=gateway.advertised["CLIENTS"],
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_login_callback_handler_class=lambda: token,
    )


async def refused(gateway: Gateway, token: str) -> bool:
    """Whether a token is refused as RFC 7628 has it: the reason, an acknowledgement, the end."""
    async with stranger(gateway) as wire:
        answer = await show(wire, token)
        if answer.error_code or bytes(answer.auth_bytes) != REFUSAL:
            return False
        answer = await wire(m.SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == REFUSAL.decode()
        return await closed(wire)


async def believed(gateway: Gateway, token: str) -> bool:
    async with stranger(gateway) as wire:
        answer = await show(wire, token)
        return not answer.error_code and not answer.auth_bytes and await ask(wire)


# --- who is believed


async def test_who_has_a_signed_token_is_its_subject(keys: Path) -> None:
    async with guarded(keys) as gateway:
        async with client(gateway, ISSUER.token("alice")) as admin:
            await admin.list_topics()
            found = [each.context.principal for each in gateway._server.connections]  # type: ignore[union-attr]
            assert {str(each) for each in found} == {"User:alice"}
        with pytest.raises(SaslAuthenticationError, match="invalid_token"):
            async with client(gateway, TokenIssuer().token("alice")) as admin:
                await admin.list_topics()


@pytest.mark.parametrize(
    "token",
    [
        lambda: ISSUER.token(aud=["x", "others"]),
        lambda: ISSUER.token(scope=["a", "b"]),
        lambda: ISSUER.token(nbf=int(time.time()) + 20),
        lambda: ISSUER.token(exp=int(time.time()) - 20, iat=int(time.time()) - 60),
        lambda: ISSUER.token("ümlaut, Ⅸ"),
        lambda: ISSUER.token(iss="anybody", jti=7, extra={"deep": [1, 2, {}]}),
    ],
)
async def test_tokens_that_hold(keys: Path, token: Callable[[], str]) -> None:
    async with guarded(keys) as gateway:
        assert await believed(gateway, token())


async def test_extensions_are_taken(keys: Path) -> None:
    async with guarded(keys) as gateway, stranger(gateway) as wire:
        answer = await show(wire, ISSUER.token(), more="traceId=123\x01")
        assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"")


async def test_a_session_ends_with_its_token(keys: Path) -> None:
    skew = {"listener.name.clients.oauthbearer.sasl.oauthbearer.clock.skew.seconds": "0"}
    async with guarded(keys, **skew) as gateway, stranger(gateway) as wire:
        answer = await show(wire, ISSUER.token(life=2))
        assert 0 < answer.session_lifetime_ms <= 2000
        assert await ask(wire)
        answer = await show(wire, ISSUER.token(life=3))
        assert not answer.error_code, "it logs in again"
        answer = await show(wire, ISSUER.token("bob"))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, "nobody becomes another on the way"
        assert await closed(wire)
    async with guarded(keys, **skew) as gateway, stranger(gateway) as wire:
        await show(wire, ISSUER.token(life=1))
        await until(lambda: ask(wire), lambda answered: not answered)
    async with guarded(keys, **{"connections.max.reauth.ms": "500"}) as gateway, stranger(gateway) as wire:
        assert 0 < (await show(wire, ISSUER.token())).session_lifetime_ms <= 500


async def test_names_of_claims_and_an_issuer(keys: Path) -> None:
    config = {
        "sasl.oauthbearer.sub.claim.name": "nobody",
        "listener.name.clients.sasl.oauthbearer.sub.claim.name": "neither",
        "listener.name.clients.oauthbearer.sasl.oauthbearer.sub.claim.name": "upn",
        "listener.name.clients.sasl.oauthbearer.scope.claim.name": "scp",
        "sasl.oauthbearer.expected.issuer": "https://id.example.org",
    }
    async with guarded(keys, **config) as gateway:
        assert await believed(gateway, ISSUER.token(upn="al", iss="https://id.example.org", scp="x", scope=7))
        for wrong in (
            {"iss": "https://id.example.org"},
            {"upn": "al"},
            {"upn": "al", "iss": "https://id.example.org.evil"},
            {"upn": "al", "iss": ["https://id.example.org"]},
            {"upn": "al", "iss": "https://id.example.org", "scp": [7]},
        ):
            assert await refused(gateway, ISSUER.token(**wrong)), wrong


async def test_without_an_expected_audience_no_token_may_have_one(keys: Path) -> None:
    async with guarded(keys, **{"sasl.oauthbearer.expected.audience": ""}) as gateway:
        assert await refused(gateway, ISSUER.token(aud="kafka"))
        assert await believed(gateway, ISSUER.token(aud=None))


# --- other kinds of keys


def test_of_every_kind_of_key() -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    numbers = curve.public_key().public_numbers()
    edwards = ed25519.Ed25519PrivateKey.generate()
    raw = edwards.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    x, y = (encode(each.to_bytes(32, "big")) for each in (numbers.x, numbers.y))
    rows = [
        {"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "ec"},
        {"kty": "OKP", "crv": "Ed25519", "x": encode(raw), "kid": "ed"},
        *json.loads(ISSUER.jwks())["keys"],
    ]  # fmt: skip
    found = parse_key_set(json.dumps({"keys": rows}).encode())
    verifier = token_verifier.TokenVerifier(
        token_verifier.TokenRules(audiences=("kafka",)), lambda: found, lambda: None
    )

    def signed(algorithm: str, key_id: str | None, sign: Callable[[bytes], bytes]) -> str:
        head = {"alg": algorithm} | ({} if key_id is None else {"kid": key_id})
        text = f"{encode(head)}.{encode(claims())}"
        return f"{text}.{encode(sign(text.encode()))}"

    def by_curve(data: bytes) -> bytes:
        return b"".join(
            each.to_bytes(32, "big") for each in decode_dss_signature(curve.sign(data, ec.ECDSA(hashes.SHA256())))
        )

    for token in (
        signed("ES256", "ec", by_curve),
        signed("ES256", None, by_curve),
        signed("EdDSA", "ed", edwards.sign),
        ISSUER.token(),
    ):
        assert verifier(token, {}).principal == "alice"
    for token in (
        signed("ES256", "k1", by_curve),
        signed("EdDSA", "ec", edwards.sign),
        signed("ES384", "ec", by_curve),
        signed("ES256", "ec", lambda _: bytes(64)),
        signed("ES256", "ec", lambda _: b""),
    ):
        with pytest.raises(InvalidTokenError):
            verifier(token, {})


WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)


def weak() -> dict[str, Any]:
    numbers = WEAK.public_key().public_numbers()
    return {"kty": "RSA", "n": encode(numbers.n.to_bytes(128, "big")), "e": "AQAB"}


@pytest.mark.parametrize(
    "row",
    [
        {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "kid": "k1", "alg": "HS256"},
        {**json.loads(ISSUER.jwks())["keys"][0], "use": "enc"},
        {**json.loads(ISSUER.jwks())["keys"][0], "key_ops": ["encrypt"]},
        {**json.loads(ISSUER.jwks())["keys"][0], "key_ops": None},
        {**json.loads(ISSUER.jwks())["keys"][0], "key_ops": 7},
        {**json.loads(ISSUER.jwks())["keys"][0], "key_ops": "do not verify"},
        {**json.loads(ISSUER.jwks())["keys"][0], "alg": "HS256"},
        {**json.loads(ISSUER.jwks())["keys"][0], "n": 7},
        {**json.loads(ISSUER.jwks())["keys"][0], "kid": "k" * 1001},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": ["RSA"]},
        weak(), {}, 7, None,
    ],
)  # fmt: skip
def test_keys_that_are_left_out(row: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="no key"):
        parse_key_set(json.dumps({"keys": [row]}).encode())
    assert "is left out" in caplog.text
    good = json.loads(ISSUER.jwks())["keys"][0]
    assert [each.key_id for each in parse_key_set(json.dumps({"keys": [row, good]}).encode()).keys] == ["k1"]


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b'{"keys":7}', b'{"keys":[]}', b"[" * 100_000, b"\xff", b"{}"])
def test_what_is_no_key_set(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it (is|has) no"):
        parse_key_set(data)


# --- attacks


@pytest.mark.slow
async def test_what_attackers_show(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All are told the same, learn nothing, and are closed."""
    async with guarded(keys) as gateway:
        for name, make in FORGED.items():
            token = make(ISSUER)
            assert await refused(gateway, token), name
            assert len(token) < 20 or token not in caplog.text, name
        assert await believed(gateway, ISSUER.token())
    assert "User:admin is allowed" not in caplog.text


@pytest.mark.parametrize(
    "first",
    [
        "", "\x01", "n,,", "n,,\x01\x01", "n,,\x01auth=Bearer \x01\x01", "n,,\x01auth=Basic {token}\x01\x01",
        "n,,\x01auth=Bearer {token}\x01", "p=tls-unique,,\x01auth=Bearer {token}\x01\x01",
        "n,a=bob,\x01auth=Bearer {token}\x01\x01", "n,,\x01auth=Bearer {token}\x01auth=x\x01\x01",
        "n,,\x01auth=Bearer {token} {token}\x01\x01", "n,,\x01AUTH=Bearer {token}\x01\x01",
    ],
)  # fmt: skip
async def test_first_messages_that_are_none(keys: Path, first: str) -> None:
    async with guarded(keys) as gateway, stranger(gateway) as wire:
        await handshake(wire, "OAUTHBEARER")
        message = first.replace("{token}", ISSUER.token()).encode()
        answer = await wire(m.SaslAuthenticateRequest(auth_bytes=message), 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await closed(wire)


@pytest.mark.parametrize(
    "more", ["".join(f"{'x' * n}=1\x01" for n in range(1, 102)), f"x={'x' * 32_768}\x01"], ids=["many", "long"]
)
async def test_extensions_without_end(keys: Path, more: str) -> None:
    async with guarded(keys) as gateway, stranger(gateway) as wire:
        answer = await show(wire, ISSUER.token(), more=more)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await closed(wire)


async def test_extensions_are_not_kept(keys: Path) -> None:
    more = "".join(f"{'x' * n}=1\x01" for n in range(1, 101))
    async with guarded(keys) as gateway, stranger(gateway) as wire:
        answer = await show(wire, ISSUER.token(), more=more)
        assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"")
        kept = [
            each._handler.identity_of(each)
            for each in gateway._server.connections  # type: ignore[union-attr]
            if isinstance(each._handler, SaslHandler)
        ]
        assert [each.extensions for each in kept if each is not None] == [()]


async def test_nothing_but_the_acknowledgement_follows_a_refusal(keys: Path) -> None:
    async with guarded(keys) as gateway, stranger(gateway) as wire:
        assert bytes((await show(wire, "a.b.c")).auth_bytes) == REFUSAL
        first = f"n,,\x01auth=Bearer {ISSUER.token()}\x01\x01"
        answer = await wire(m.SaslAuthenticateRequest(auth_bytes=first.encode()), 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await closed(wire)
    async with guarded(keys) as gateway, stranger(gateway) as wire:
        await show(wire, "a.b.c")
        assert not await ask(wire)


# --- where the keys come from


async def test_a_new_key_is_found_when_a_token_names_it(tmp_path: Path) -> None:
    path, other = tmp_path / "jwks.json", TokenIssuer()
    path.write_text(ISSUER.jwks())
    async with guarded(path) as gateway:
        assert await refused(gateway, other.token())
        rows = json.loads(ISSUER.jwks())["keys"] + [{**json.loads(other.jwks())["keys"][0], "kid": "k2"}]
        path.write_text(json.dumps({"keys": rows}))
        token = headed(other, {"alg": "RS256", "kid": "k2"})
        await until(lambda: believed(gateway, token), bool)
        assert await believed(gateway, ISSUER.token())


async def test_keys_are_read_again_in_time_and_survive_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, other = tmp_path / "jwks.json", TokenIssuer()
    path.write_text(ISSUER.jwks())
    times = {"sasl.oauthbearer.jwks.endpoint.refresh.ms": "20", "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "20"}
    async with guarded(path, **times, **{"sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "40"}) as gateway:
        path.write_text("not yet whole")
        await until(lambda: logged(caplog, "cannot be read"), bool)
        assert await believed(gateway, ISSUER.token())
        path.write_text(other.jwks())
        await until(lambda: believed(gateway, other.token()), bool)
        assert await refused(gateway, ISSUER.token()), "a key that has gone does not count"


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def test_unknown_keys_do_not_keep_the_provider_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(ISSUER.jwks())
    read: list[Path] = []
    original = key_source._read_some

    def reading(path: Path) -> bytes:
        read.append(path)
        return original(path)

    monkeypatch.setattr(key_source, "_read_some", reading)
    async with guarded(path) as gateway:
        for number in range(20):
            assert await refused(gateway, headed(ISSUER, {"alg": "RS256", "kid": f"x{number}"}))
        await until(lambda: count(read), lambda found: found == 2)
        await anyio.lowlevel.checkpoint()
    assert len(read) == 2


async def count(items: list[Any]) -> int:
    return len(items)


async def test_a_provider_that_does_not_answer_stops_no_start(caplog: pytest.LogCaptureFixture) -> None:
    url = "https://127.0.0.1:1/keys?secret=hidden"
    config = {**LISTENERS, "sasl.oauthbearer.jwks.endpoint.url": url}
    async with Gateway(f"memory:{next(names)}", config=config) as gateway:
        assert await refused(gateway, ISSUER.token())
    assert "nobody can log in by its tokens" in caplog.text
    assert "hidden" not in caplog.text


class _Keys(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        status, body = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.send_response(status)
        self.send_header("location", "https://127.0.0.1:1/")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def provider(folder: Path, *answers: tuple[int, bytes]) -> Iterator[Any]:
    """An identity provider's keys over HTTPS; `authority` vouches for it."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Keys)
    authority = Authority()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("localhost").write(folder / "provider.pem"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.seen, server.answers = [], list(answers)
    server.url = f"https://localhost:{server.server_port}/keys"
    server.authority = folder / "authority.pem"
    server.authority.write_text(authority.pem)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
async def test_a_provider_over_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it answers that is no key set, or another status, counts for nothing, and is asked for again."""
    good = ISSUER.jwks().encode()
    bad = [(503, good), (302, b""), (404, good), (200, b"<html>"), (200, b"[" * (MOST_BYTES + 1))]
    with provider(tmp_path, (200, good), *bad, (200, good)) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.authority))
        config = {
            **LISTENERS, "sasl.oauthbearer.jwks.endpoint.url": server.url,
            "sasl.oauthbearer.expected.audience": "kafka", "sasl.oauthbearer.jwks.endpoint.refresh.ms": "10",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "10",
        }  # fmt: skip
        async with Gateway(f"memory:{next(names)}", config=config) as gateway:
            while len(server.seen) < len(bad) + 2:
                assert await believed(gateway, ISSUER.token())
        assert set(server.seen) == {"/keys"}


async def test_a_provider_that_hangs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(key_source, "_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = Url(f"https://127.0.0.1:{silent.getsockname()[1]}/keys")
        await KeySource(KeySourceSettings(url=url, refresh=1, retry=1, retry_max=1)).load()
    assert "until it can: not within" in caplog.text


async def test_a_provider_that_nobody_vouches_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with provider(tmp_path, (200, ISSUER.jwks().encode())) as server:
        config = {**LISTENERS, "sasl.oauthbearer.jwks.endpoint.url": server.url}
        async with Gateway(f"memory:{next(names)}", config=config) as gateway:
            assert await refused(gateway, ISSUER.token(aud=None))
        assert not server.seen
    assert "certificate" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example.org/keys", "ftp://x", "keys.json", "https://", "https://a:b@c/", "file://other/x", "file:",
        "https://x:99999/keys", "https://x:-1/", "https://x:port/", "https://x y/", "https://x/\0",
    ],
)  # fmt: skip
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"jwks\.endpoint\.url"):
        Gateway(f"memory:{next(names)}", config={**LISTENERS, "sasl.oauthbearer.jwks.endpoint.url": url})


@pytest.mark.parametrize("text", [None, "{}", "x" * (MOST_BYTES + 1)])
async def test_files_that_stop_the_start(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "jwks.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"jwks\.endpoint\.url"):
        async with guarded(path):
            pass


async def test_a_file_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(key_source, "_TIMEOUT_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    source = KeySource(KeySourceSettings(url=Url(pipe.as_uri()), refresh=1, retry=1, retry_max=1))
    try:
        with pytest.raises(ConfigError, match="cannot be read"):
            await source.load()
    finally:
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))  # lets the thread go on


# --- settings


async def test_unsecured_tokens_only_where_they_are_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    handler = "listener.name.clients.oauthbearer.sasl.server.callback.handler.class"
    options = 'unsecuredValidatorRequiredScope="a b" unsecuredLoginStringClaim_sub="x"'
    jaas = f"{PACKAGE}.OAuthBearerLoginModule required {options};"
    config = {**LISTENERS, handler: UNSECURED, "listener.name.clients.oauthbearer.sasl.jaas.config": jaas}
    async with Gateway(f"memory:{next(names)}", config=config) as gateway:
        assert "nobody has signed" in caplog.text
        assert await believed(gateway, f"{encode({'alg': 'none'})}.{encode(claims(scope='b a c'))}.")
        async with stranger(gateway) as wire:
            answer = await show(wire, f"{encode({'alg': 'none'})}.{encode(claims(scope='a'))}.")
            assert json.loads(bytes(answer.auth_bytes)) == {"status": "insufficient_scope", "scope": "a b"}
        assert await refused(gateway, ISSUER.token())


async def test_unsecured_tokens_and_a_clock_that_is_ahead() -> None:
    own = "listener.name.clients.oauthbearer.sasl"
    jaas = f'{PACKAGE}.OAuthBearerLoginModule required unsecuredValidatorAllowableClockSkewMs="60000";'
    config = {**LISTENERS, f"{own}.server.callback.handler.class": UNSECURED, f"{own}.jaas.config": jaas}
    now = int(time.time())
    async with Gateway(f"memory:{next(names)}", config=config) as gateway:
        assert await believed(gateway, f"{encode({'alg': 'none'})}.{encode(claims(iat=now - 60, exp=now - 5))}.")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "has no keys"),
        ({"listener.name.clients.oauthbearer.sasl.server.callback.handler.class": "com.example.Handler"}, "none of"),
        ({"sasl.server.callback.handler.class": UNSECURED}, "listener.name.NAME.oauthbearer"),
        ({"sasl.oauthbearer.jwt.validator.class": "x"}, "class of Java"),
        ({"listener.name.clients.sasl.oauthbearer.clock.skew.seconds": "-1"}, "clock.skew"),
        ({"listener.name.clients.oauthbearer.sasl.jaas.config": "x.PlainLoginModule required;"}, "login module"),
        (
            {"listener.name.clients.oauthbearer.sasl.jaas.config": 'OAuthBearerLoginModule required other="x";'},
            "has an option",
        ),
        (
            {
                "listener.name.clients.oauthbearer.sasl.jaas.config":
                'OAuthBearerLoginModule required unsecuredValidatorRequiredScope="x";'
            },
            "takes only signed ones",
        ),
        ({"listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512"}, "has no effect"),
        (
            {
                "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.clients.oauthbearer.sasl.oauthbearer.expected.issuer": "x",
            },
            "expected.issuer has no effect: the listener CLIENTS does not offer",
        ),
        (
            {
                "listener.name.clients.oauthbearer.sasl.server.callback.handler.class": UNSECURED,
                "listener.name.clients.sasl.oauthbearer.expected.issuer": "x",
            },
            "takes tokens without a signature",
        ),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(keys: Path, config: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Gateway(f"memory:{next(names)}", config=settings(keys, **config))


def test_without_the_extra(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'htp-kclient\[jwt\]'"):
        Gateway(f"memory:{next(names)}", config=settings(keys))
