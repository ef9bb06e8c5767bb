"""Logins: tokens by callback, shared, renewed; and from an identity provider over HTTP."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.lowlevel
import httpx
import pytest
import respx

from kclient.concurrency import Supervisor
from kclient.config import ProducerConfig
from kclient.config.sasl_credentials import ClientCredentials, OAuthCredentials
from kclient.config.secret import Secret
from kclient.errors import ConfigError, KafkaError, MissingExtraError, OAuthTokenError
from kclient.net.sasl.client_credentials import ClientCredentialsSource
from kclient.net.sasl.login import PasswordLogin, TokenLogin, login_for
from kclient.net.sasl.oauthbearer import OAuthBearerClient
from kclient.net.sasl.token import OAuthToken, RefreshPolicy
from kclient.net.sasl.unsecured import unsecured_token
from tests.identity_provider import identity_provider
from tests.unit.net.sasl.authentication_peers import until

pytestmark = pytest.mark.anyio

SECRET = "sehr geheim"
TLS = httpx.create_ssl_context()
URL = "https://id.example/realm/token"
QUICK = RefreshPolicy(window_factor=0.03, window_jitter=0.0, min_period=0.0, buffer=0.0)


def shown(login: Any) -> str:
    assert isinstance(login, OAuthBearerClient)
    return login.start().decode()


# --- callbacks


@pytest.mark.parametrize("kind", ["async", "plain", "text", "secret", "object"])
async def test_callbacks_of_every_kind(kind: str) -> None:
    token = unsecured_token({"sub": "alice"})
    threads = set()

    async def in_the_loop() -> OAuthToken:
        return token

    def plain() -> OAuthToken:
        threads.add(threading.get_ident())
        return token

    class Source:
        async def __call__(self) -> OAuthToken:
            return token

    sources: dict[str, Any] = {
        "async": in_the_loop,
        "plain": plain,
        "text": lambda: token.value.reveal(),
        "secret": lambda: token.value,
        "object": Source(),
    }
    async with Supervisor("test") as supervisor:
        login = TokenLogin(sources[kind], supervisor)
        assert "without a token yet" in repr(login)
        assert f"auth=Bearer {token.value.reveal()}\x01" in shown(await login.begin())
        assert login.token is not None
        assert login.token.principal == "alice"
        assert token.value.reveal() not in repr(login) + repr(login.token)
        assert threading.get_ident() not in threads  # it may block: the loop goes on


async def test_connections_that_begin_together_share_one_token() -> None:
    calls = []

    async def source() -> OAuthToken:
        calls.append(1)
        await anyio.sleep(0.01)
        return unsecured_token({"sub": "alice"})

    async with Supervisor("test") as supervisor:
        login = TokenLogin(source, supervisor)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(login.begin)
        assert len(calls) == 1


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_callback_that_hangs_holds_nobody_for_ever(kind: str) -> None:
    token = unsecured_token({"sub": "alice"})
    release = threading.Event()
    calls = []

    def plain() -> OAuthToken:
        calls.append(1)
        if len(calls) == 1:
            release.wait()
        return token

    async def in_the_loop() -> OAuthToken:
        calls.append(1)
        if len(calls) == 1:
            await anyio.sleep_forever()
        return token

    errors = []

    async def begin() -> None:
        with pytest.raises(OAuthTokenError, match=r"no token within 0\.2 s") as caught:
            await login.begin()
        errors.append(caught.value)

    try:
        with anyio.fail_after(10):
            async with Supervisor("test") as supervisor:
                login = TokenLogin(plain if kind == "plain" else in_the_loop, supervisor, timeout=0.2)
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):  # those who wait for the same answer give up with it
                        tasks.start_soon(begin)
                assert [(error.retriable, error.fatal) for error in errors] == [(True, False)] * 3
                assert len(calls) == 1
                assert shown(await login.begin())  # the next one asks again
                assert len(calls) == 2
    finally:
        release.set()


async def test_threads_of_callbacks_that_hang_do_not_pile_up() -> None:
    release = threading.Event()
    calls = []

    def hang() -> str:
        calls.append(1)
        release.wait()
        return "x"

    try:
        with anyio.fail_after(10):
            async with Supervisor("test") as supervisor:
                login = TokenLogin(hang, supervisor, timeout=0.2)
                for attempt in range(10):
                    reason = "no token within" if attempt < 4 else "hangs: 4 earlier calls have not come back"
                    with pytest.raises(OAuthTokenError, match=reason) as caught:
                        await login.begin()
                    assert caught.value.retriable
        assert len(calls) == 4
    finally:
        release.set()


async def test_extensions_of_the_settings_and_of_the_token() -> None:
    async with Supervisor("test") as supervisor:
        tokens = [OAuthToken(value=Secret("a")), OAuthToken(value=Secret("b"), extensions={"own": "1"}, expires_at=0.0)]
        tokens.append(OAuthToken(value=Secret("b"), extensions={"own": "1"}))
        login = TokenLogin(lambda: tokens[0], supervisor, extensions={"set": "2"})
        assert "\x01set=2\x01" in shown(await login.begin())
        other = TokenLogin(lambda: tokens[2], supervisor, extensions={"set": "2"})
        assert "\x01own=1\x01\x01" in shown(await other.begin())


@pytest.mark.parametrize(
    ("result", "error", "reason"),
    [
        (
            ValueError("the vault is sealed"),
            OAuthTokenError,
            "the token callback failed: ValueError: the vault is sealed",
        ),
        (None, OAuthTokenError, "returned NoneType, not an OAuthToken"),
        (b"bytes", OAuthTokenError, "returned bytes"),
        (OAuthToken(value=Secret("x"), expires_at=1.0), OAuthTokenError, "expired token"),
        ("not a token\n", OAuthTokenError, "holds characters that no bearer token has, such as a line end"),
        ("", OAuthTokenError, "is empty or holds"),
        (OAuthToken(value=Secret("ü")), OAuthTokenError, "holds characters"),
        (OAuthToken(value=Secret("x"), extensions={"a": "ü"}), OAuthTokenError, "extension a has a value"),
        (ConfigError("mine"), ConfigError, "mine"),
    ],
)
async def test_callbacks_that_fail(result: Any, error: type[KafkaError], reason: str) -> None:
    async def source() -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    async with Supervisor("test") as supervisor:
        with pytest.raises(error, match=reason):
            await TokenLogin(source, supervisor).begin()


@pytest.mark.parametrize(
    ("problem", "retriable"),
    [
        *((kind("x"), False) for kind in (TypeError, AttributeError, NotImplementedError, ImportError)),
        *((kind("x"), True) for kind in (ValueError, KeyError, OSError)),
    ],
)
async def test_errors_of_programming_are_final(problem: Exception, retriable: bool) -> None:
    """Asking again until a timeout would only hide them."""

    def source() -> str:
        raise problem

    async with Supervisor("test") as supervisor:
        with pytest.raises(OAuthTokenError, match=type(problem).__name__) as caught:
            await TokenLogin(source, supervisor).begin()
    assert (caught.value.retriable, caught.value.fatal) == (retriable, not retriable)
    assert caught.value.__cause__ is problem


async def test_what_a_login_does_not_take() -> None:
    takes_one: Any = lambda config: "x"  # noqa: E731
    async with Supervisor("test") as supervisor:
        with pytest.raises(ConfigError, match=r"without arguments: def token\(\) -> kclient.OAuthToken | str"):
            TokenLogin(takes_one, supervisor)
        with pytest.raises(ConfigError, match="a SASL extension has a name that cannot be sent"):
            TokenLogin(lambda: "x", supervisor, extensions={"a-b": "c"})
    with pytest.raises(ConfigError, match="one of the mechanisms PLAIN, SCRAM-SHA-256, SCRAM-SHA-512") as caught:
        PasswordLogin("geheim", "alice", "PLAIN")
    assert "geheim" not in str(caught.value)


async def test_a_token_in_a_file_that_cannot_be_sent(tmp_path: Path) -> None:
    """The same error as from a callback."""
    file = tmp_path / "token"
    file.write_text("a b")
    async with Supervisor("test") as supervisor:
        credentials = OAuthCredentials(source=ClientCredentials(url=file.as_uri()))
        made = login_for(credentials, supervisor)
        assert made is not None
        with pytest.raises(OAuthTokenError, match="holds characters") as caught:
            await made.begin()
    assert not caught.value.retriable


@pytest.mark.parametrize("url", [f"https://me:{SECRET}@id.example/", f"https://id.example/?Client-Secret={SECRET}"])
def test_no_secret_in_the_address(url: str) -> None:
    """httpx logs it."""
    with pytest.raises(ConfigError, match="not belong into the address") as caught:
        source(url=url)
    assert SECRET not in str(caught.value)


async def test_a_token_is_renewed_before_it_ends() -> None:
    given: list[OAuthToken] = []
    wake = anyio.Event()

    async def source() -> OAuthToken:
        given.append(unsecured_token({"sub": f"alice{len(given)}"}, lifetime=4.0))
        if len(given) == 3:
            wake.set()
        return given[-1]

    async with Supervisor("test") as supervisor:
        login = TokenLogin(source, supervisor, QUICK)
        await login.begin()
        with anyio.fail_after(5):
            await wake.wait()
        assert login.token is not None
        assert given[1].expires_at is not None
        assert time.time() < given[1].expires_at  # the third came while the second still was good
        supervisor.check()


async def test_a_renewal_that_fails_leaves_the_present_token(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    async def source() -> OAuthToken:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("the vault is sealed")
        return unsecured_token({"sub": "alice"}, lifetime=60.0)

    async with Supervisor("test") as supervisor:
        login = TokenLogin(
            source, supervisor, RefreshPolicy(window_factor=0.001, window_jitter=0, min_period=0, buffer=0)
        )
        first = shown(await login.begin())
        await until(lambda: "could not be renewed" in caplog.text)
        assert shown(await login.begin()) == first
        assert "the vault is sealed" in caplog.text
        supervisor.check()


async def test_a_token_that_has_ended_is_fetched_anew() -> None:
    now = [1000.0]
    count = []

    async def source() -> OAuthToken:
        count.append(1)
        return OAuthToken(value=Secret(f"t{len(count)}"), expires_at=now[0] + 60)

    async with Supervisor("test") as supervisor:
        login = TokenLogin(source, supervisor, clock=lambda: now[0])
        assert "Bearer t1" in shown(await login.begin())
        assert "Bearer t1" in shown(await login.begin())
        now[0] += 60
        assert "Bearer t2" in shown(await login.begin())


async def test_a_token_that_is_refused_is_fetched_anew() -> None:
    """But not more often than every ten seconds: an identity provider is not asked for each refusal."""
    now = [1000.0]
    count = []

    async def source() -> OAuthToken:
        count.append(1)
        return OAuthToken(value=Secret(f"t{len(count)}"))

    async with Supervisor("test") as supervisor:
        login = TokenLogin(source, supervisor, clock=lambda: now[0])
        await login.begin()
        login.refused()
        assert "Bearer t1" in shown(await login.begin())
        now[0] += 10
        login.refused()
        assert "Bearer t2" in shown(await login.begin())


async def test_what_settings_make() -> None:
    def parse(**settings: Any) -> Any:
        config = {"bootstrap_servers": "a:1", "security_protocol": "SASL_PLAINTEXT", **settings}
        return ProducerConfig.parse(**config).sasl_credentials

    jaas = 'x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice" unsecuredLoginExtension_a="b";'
    async with Supervisor("test") as supervisor:
        assert login_for(None, supervisor) is None
        plain = login_for(parse(sasl_mechanism="PLAIN", sasl_username="me", sasl_password=SECRET), supervisor)
        assert isinstance(plain, PasswordLogin)
        assert repr(plain) == "<PasswordLogin PLAIN me>"
        made = login_for(parse(sasl_mechanism="OAUTHBEARER", sasl_jaas_config=jaas), supervisor)
        assert isinstance(made, TokenLogin)
        assert "\x01a=b\x01" in shown(await made.begin())
        assert made.token is not None
        assert made.token.principal == "alice"


# --- client credentials


def jwt(**claims: Any) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "x"}, claims)
    ]
    return ".".join([*parts, "c2ln"])


class Stream(httpx.AsyncByteStream):
    """An answer in pieces."""

    def __init__(self, parts: AsyncGenerator[bytes, None]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        await self._parts.aclose()


async def pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


def source(**changes: Any) -> ClientCredentialsSource:
    base: dict[str, Any] = {"url": URL, "client_id": "me&you", "client_secret": Secret(SECRET), "retry_backoff": 0.001}
    made = ClientCredentialsSource(ClientCredentials(**{**base, "retry_limit": 10.0, **changes}))
    made._tls = TLS  # making one takes longer than these tests
    return made


async def test_a_token_over_http(respx_mock: respx.MockRouter) -> None:
    text = jwt(sub="alice", exp=5000000000, scope="a b")
    route = respx_mock.post(URL).respond(json={"access_token": text, "token_type": "Bearer", "expires_in": 60})
    token = await source(scope="a b")()
    assert token == OAuthToken(
        value=Secret(text), expires_at=5000000000, principal="alice", scope=frozenset({"a", "b"})
    )
    request = route.calls.last.request
    assert parse_qs(request.content.decode()) == {"grant_type": ["client_credentials"], "scope": ["a b"]}
    assert base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode() == f"me&you:{SECRET}"
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert request.headers["accept"] == "application/json"


async def test_encoded_credentials_and_an_opaque_token(respx_mock: respx.MockRouter) -> None:
    route = respx_mock.post(URL).respond(json={"access_token": "opaque", "expires_in": 60})
    before = time.time()
    token = await source(urlencode=True)()
    assert token.value == Secret("opaque")
    assert token.expires_at is not None
    assert before + 60 <= token.expires_at <= time.time() + 60
    request = route.calls.last.request
    assert base64.b64decode(request.headers["authorization"][6:]) == b"me%26you:sehr+geheim"
    assert parse_qs(request.content.decode()) == {"grant_type": ["client_credentials"]}


async def test_trouble_passes(respx_mock: respx.MockRouter) -> None:
    answers = [
        httpx.Response(503),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("late"),
        httpx.Response(429),
        httpx.Response(200, json={"id_token": "x"}),
    ]
    route = respx_mock.post(URL).mock(side_effect=answers)
    assert (await source()()).value == Secret("x")
    assert route.call_count == 5


@pytest.mark.parametrize(
    ("answer", "calls", "retriable", "reason"),
    [
        (
            httpx.Response(401, json={"error": "invalid_client", "error_description": "who is that?", "x": SECRET}),
            1,
            False,
            "status 401: invalid_client; who is that?",
        ),
        (httpx.Response(404, text=f"<html>{SECRET}"), 1, False, "status 404"),
        (httpx.Response(302, headers={"location": "https://evil"}), None, True, "status 302"),
        (httpx.Response(500, json=[SECRET]), None, True, "status 500"),
        (httpx.Response(200, json={"token": SECRET}), 1, False, "holds no access_token"),
        (httpx.Response(200, text="no json"), 1, False, "holds no access_token"),
        (httpx.ConnectError("nobody there"), None, True, "nobody there"),
        (httpx.ConnectTimeout("x"), None, True, "(sasl.login.connect.timeout.ms)"),
    ],
)
async def test_answers_without_a_token(
    respx_mock: respx.MockRouter, answer: Any, calls: int | None, retriable: bool, reason: str
) -> None:
    route = respx_mock.post(URL, params={"tenant": SECRET}).mock(
        side_effect=answer if isinstance(answer, Exception) else None,
        return_value=None if isinstance(answer, Exception) else answer,
    )
    with pytest.raises(OAuthTokenError) as caught:
        await source(url=f"https://id.example/realm/token?tenant={SECRET}", retry_limit=0.1)()
    error = caught.value
    assert f"no OAuth token from {URL} (sasl.oauthbearer.token.endpoint.url): " in str(error)
    assert reason in str(error)
    assert (error.retriable, error.fatal) == (retriable, not retriable)
    assert calls is None or route.call_count == calls
    text = "".join(traceback.format_exception(error))
    assert "geheim" not in text
    assert base64.b64encode(f"me&you:{SECRET}".encode()).decode() not in text


async def test_an_answer_that_is_too_large(respx_mock: respx.MockRouter) -> None:
    sent = []

    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            sent.append(65536)
            yield bytes(65536)
            await anyio.lowlevel.checkpoint()  # as reading does

    respx_mock.post(URL).mock(return_value=httpx.Response(200, stream=Stream(endless())))
    with pytest.raises(OAuthTokenError, match="more than 1048576 bytes"), anyio.fail_after(10):
        await source()()
    assert sum(sent) <= 2 * 2**20


@pytest.mark.slow
async def test_a_compressed_answer_is_not_unpacked(respx_mock: respx.MockRouter) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    route = respx_mock.post(URL).respond(headers={"content-encoding": "gzip"}, stream=Stream(pieces(bomb)))
    with pytest.raises(OAuthTokenError, match="compressed"):
        await source()()
    assert route.calls.last.request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("answer", [httpx.Response(401), httpx.Response(500), httpx.ConnectTimeout("x")])
async def test_local_variables_show_nothing(respx_mock: respx.MockRouter, answer: Any) -> None:
    """Some tools show the variables of each frame."""
    respx_mock.post(URL).mock(**{"side_effect" if isinstance(answer, Exception) else "return_value": answer})
    with pytest.raises(OAuthTokenError) as caught:
        await source(retry_limit=0)()
    trace = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    frames = [frame for frame in trace.stack if frame.filename.endswith("client_credentials.py")]
    assert len(frames) >= 3
    shown = "".join(str(frame.locals) for frame in frames)
    assert "settings" in shown
    assert SECRET not in shown
    assert base64.b64encode(f"me&you:{SECRET}".encode()).decode() not in shown


async def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'htp-kclient\[oauth\]'"):
        await source()()


async def test_a_token_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    text = jwt(sub="alice", exp=5000000000)
    path.write_text(f"{text}\n")
    assert (await source(url=path.as_uri())()).principal == "alice"
    path.write_text("")
    with pytest.raises(OAuthTokenError, match="is empty"):
        await source(url=path.as_uri(), retry_limit=0)()
    path.unlink()
    with pytest.raises(OAuthTokenError, match="No such file") as caught:
        await source(url=path.as_uri(), retry_limit=0.01)()
    assert caught.value.retriable


async def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(OAuthTokenError, match="more than 1048576 bytes"):
        await source(url=path.as_uri())()
    path.write_bytes(b"geheim\xff")
    with pytest.raises(OAuthTokenError, match="utf-8") as caught:
        await source(url=path.as_uri(), retry_limit=0)()
    assert "geheim" not in "".join(traceback.format_exception(caught.value)) + repr(caught.value.__cause__)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are Unix's")
async def test_a_file_that_hangs(tmp_path: Path) -> None:
    path = tmp_path / "token"
    os.mkfifo(path)
    try:
        with anyio.fail_after(10), pytest.raises(OAuthTokenError, match=r"within 0\.05 s"):
            await source(url=path.as_uri(), read_timeout=0.05, retry_limit=0)()
    finally:
        os.close(os.open(path, os.O_RDWR))  # lets the reader go


# --- a real server


async def test_a_real_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with identity_provider(lambda: jwt(sub="alice", exp=time.time() + 60), failures=1) as server:
        fetch = source(url=server.url, scope="kafka")
        async with Supervisor("test") as supervisor:
            login = TokenLogin(fetch, supervisor)
            await login.begin()
            assert login.token is not None
            assert login.token.principal == "alice"
            token = login.token.value.reveal()
        assert len(server.seen) == 2
        assert server.seen[1][1] == "grant_type=client_credentials&scope=kafka"
    assert SECRET not in caplog.text
    assert token not in caplog.text
    assert server.seen[1][0] not in caplog.text


async def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fetch = source(url=f"http://127.0.0.1:{silent.getsockname()[1]}/", read_timeout=0.05, retry_limit=0.0)
        with pytest.raises(OAuthTokenError, match=r"0\.05 s for the rest \(sasl\.login\.read\.timeout\.ms\)"):
            await fetch()
    with pytest.raises(OAuthTokenError, match="no OAuth token from http://127"):
        await source(url=f"http://127.0.0.1:{free_port()}/", retry_limit=0.0)()


async def test_an_answer_that_drips() -> None:
    """Each byte comes in time, and the answer never ends."""
    over = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            while not over.wait(0.02):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        try:
            with anyio.fail_after(10), pytest.raises(OAuthTokenError, match=r"sasl\.login\.read\.timeout\.ms"):
                await source(url=url, connect_timeout=0.2, read_timeout=0.2, retry_limit=0.0)()
        finally:
            over.set()
            await anyio.to_thread.run_sync(thread.join)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_login_that_a_task_of_trio_makes() -> None:
    """As with a blocking client: it is made in a thread that runs trio, and used by a loop of asyncio elsewhere."""

    async def make() -> TokenLogin:
        return TokenLogin(lambda: OAuthToken(value=Secret("a")), Supervisor())

    async def begin(login: TokenLogin) -> None:
        async with Supervisor() as login._supervisor:
            await login.begin()

    login = anyio.run(make, backend="trio")
    anyio.run(begin, login)
    assert login.token is not None
