"""Arguments of connections and servers: each wrong one is refused by its call, and what it holds is not shown."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kclient.errors import ConfigError
from kclient.net.address import Address
from kclient.net.connection import Connection
from kclient.net.sasl.login import PasswordLogin
from kclient.net.sasl.plain import fixed_passwords
from kclient.net.sasl.server import SaslHandler
from kclient.net.sasl.session import server_mechanisms
from kclient.net.server import Server
from kclient.net.settings import ConnectionSettings
from kclient.net.streams import memory_pair
from kclient.protocol.framing import decode_request_header, encode_response
from kclient.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from kclient.protocol.registry import ApiKey

from .links import client_context, server_context, supervised

LOGIN = PasswordLogin("PLAIN", "alice", "wonderland")


class Handler:
    def connected(self, connection: Any) -> None: ...

    def disconnected(self, connection: Any) -> None: ...

    def begin(self, frame: memoryview, connection: Any) -> Any:
        header, _ = decode_request_header(frame)
        return encode_response(ApiVersionsResponse(), header.api_version, header.correlation_id)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"address": None}, "expected an address, such as 'localhost:9092', or an Address, got None"),
        ({"address": 9092}, "expected an address, .*, got a value of type int"),
        (
            {"config": {"client_id": "geheim"}},
            "expected a ConnectionConfig, .*, got a value of type dict without client_id",
        ),
        ({"config": {}}, "expected a ConnectionConfig, .*, got a value of type dict without client_id"),
        ({"login": "geheim"}, "expected a Login, .*, got a value of type str"),
        ({"supervisor": "geheim"}, "expected a kclient.concurrency.Supervisor, got a value of type str"),
    ],
)
async def test_of_a_connection(wrong: dict[str, Any], text: str) -> None:
    async with supervised() as supervisor:
        given: dict[str, Any] = {"address": "localhost:1", "config": None, "supervisor": supervisor} | wrong
        with pytest.raises(TypeError, match=text) as caught:
            await Connection.open(**given)
        assert "geheim" not in str(caught.value)
        if "login" not in wrong and wrong != {"address": None}:  # None stands for the stream's peer there
            mine, theirs = memory_pair()
            with pytest.raises(TypeError, match=text):
                Connection.over(mine, **given)
            await mine.aclose()
            await theirs.aclose()


@pytest.mark.anyio
async def test_of_requests() -> None:
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        listener = await server.listen_tcp()
        connection = await Connection.open(listener.address, supervisor=supervisor)
        for timeout, kind, text in (("3", TypeError, "of type str"), (float("nan"), ValueError, "not nan")):
            wrong: Any = timeout
            with pytest.raises(kind, match=f"timeout is a number of seconds, .* {text}"):
                await connection.request(ApiVersionsRequest(), 0, timeout=wrong)
        login: Any = "geheim"
        with pytest.raises(TypeError, match="expected a Login"):
            await connection.authenticate(login)
        with anyio.fail_after(20):
            assert await connection.request(ApiVersionsRequest(), 0, timeout=10) == ApiVersionsResponse()
        await connection.aclose()
        await server.aclose()


@pytest.mark.anyio
async def test_of_a_server() -> None:
    wrong: Any
    async with supervised() as supervisor:
        for wrong in ("x", None, Handler):
            with pytest.raises(TypeError, match=r"expected a kclient\.concurrency\.Supervisor, got"):
                Server(Handler(), wrong)
        for wrong in ("x", None, print):
            with pytest.raises(TypeError, match=r"expected a RequestHandler \(with begin, connected, disconnected"):
                Server(wrong, supervisor)
        for wrong in ({}, "x"):
            with pytest.raises(TypeError, match="settings are ServerSettings or None, not a value of type"):
                Server(Handler(), supervisor, wrong)


@pytest.mark.parametrize(
    "name", ["plain", "scram_sha_256", "scram_sha_512", "oauthbearer", "scram_decoys", "scram_tokens"]
)
def test_of_mechanisms(name: str) -> None:
    wrong: Any = {name: "geheim"}
    with pytest.raises(TypeError, match=f"{name} .* or None, not a value of type str|{name} .*; not a value") as caught:
        server_mechanisms(**wrong)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ([("a", "geheim")], "passwords are a mapping of users to theirs, .*, not a list"),
        (None, "not a NoneType"),
        ({"a": b"geheim"}, "not str and bytes"),
        ({5: "geheim"}, "not int and str"),
    ],
)
def test_of_a_table_of_passwords(wrong: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text) as caught:
        fixed_passwords(wrong)
    assert "geheim" not in str(caught.value)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "tls", "login", "remedy"),
    [
        ("SSL", False, False, "the connection is PLAINTEXT; give a config with a tls_context"),
        ("SASL_PLAINTEXT", False, False, "the connection is PLAINTEXT; give a login"),
        ("SASL_SSL", False, False, "the connection is PLAINTEXT; give a config with a tls_context and give a login"),
        ("sasl_ssl", True, False, "the connection is SSL; give a login"),
        ("SASL_SSL", False, True, "the connection is SASL_PLAINTEXT; give a config with a tls_context"),
        ("PLAINTEXT", True, True, "is SASL_SSL; take tls_context out of the config and leave out login"),
        ("PLAINTEXT", True, False, "the connection is SSL; take tls_context out of the config"),
        ("SSL", True, True, "the connection is SASL_SSL; leave out login"),
    ],
)
async def test_listener_of_another_type(kind: str, tls: bool, login: bool, remedy: str) -> None:
    settings = ConnectionSettings(tls_context=client_context() if tls else None)
    async with supervised() as supervisor:
        with pytest.raises(ConfigError) as caught:
            await Connection.open(f"{kind}://h:9093", settings, supervisor=supervisor, login=LOGIN if login else None)
        assert str(caught.value).startswith(f"{kind}://h:9093 is a listener of type {kind.upper()}, ")
        assert str(caught.value).endswith(remedy)


@pytest.mark.anyio
async def test_listener_of_the_connections_type() -> None:
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        listener = await server.listen_tcp("127.0.0.1", ssl_context=server_context())
        settings = ConnectionSettings(tls_context=client_context())
        with anyio.fail_after(20):
            for kind in ("SSL", "ssl", "tcp"):
                connection = await Connection.open(f"{kind}://{listener.address}", settings, supervisor=supervisor)
                assert connection.address == listener.address
                await connection.aclose()
        mine, theirs = memory_pair()
        over = Connection.over(mine, "SASL_SSL://h:9093", supervisor=supervisor)
        assert over.address == Address("h", 9093)
        await over.aclose()
        await theirs.aclose()
        await server.aclose()


@pytest.mark.anyio
async def test_listener_that_asks_for_sasl() -> None:
    mechanisms = server_mechanisms(plain=fixed_passwords({"alice": "wonderland"}))
    async with supervised() as supervisor:
        server = Server(SaslHandler(Handler(), mechanisms), supervisor)
        with anyio.fail_after(20):
            for kind, listening, calling in (
                ("SASL_PLAINTEXT", None, None),
                ("SASL_SSL", server_context(), client_context()),
            ):
                listener = await server.listen_tcp("127.0.0.1", ssl_context=listening)
                connection = await Connection.open(
                    f"{kind}://{listener.address}",
                    ConnectionSettings(tls_context=calling),
                    supervisor=supervisor,
                    login=LOGIN,
                )
                assert ApiKey.SASL_HANDSHAKE in connection.api_versions
                await connection.aclose()
        await server.aclose()
