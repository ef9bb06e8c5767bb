"""Which function makes the byte stream for an address: a registry by scheme.

`tcp` and `unix` are built in. Others are registered by name and imported on first use, so that `memory:` and
`embedded:` need nothing of the gateway until an address names them.
"""

from __future__ import annotations

import errno
import importlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import anyio

from kclient.errors import BrokerConnectionError, ConfigError, SslAuthenticationError
from kclient.net.address import Address, parse_bootstrap
from kclient.net.settings import ConnectionConfig, ConnectionSettings
from kclient.net.streams import ByteStream, SocketStream
from kclient.net.tls import connect_tls
from kclient.registry import connectors as _connectors

__all__ = ["Connector", "bootstrap_addresses", "check_scheme", "connect", "register", "schemes"]

Connector: TypeAlias = Callable[[Address, ConnectionConfig], Awaitable[ByteStream]]
"""Makes a connected byte stream in the running event loop; raises `OSError` or `BrokerConnectionError`."""


def register(scheme: str, connector: Connector | str) -> None:
    """Let addresses of a scheme be connected by a function.

    Args:
        scheme: The word before the colon, in lower case.
        connector: The function, or its place as `module:function`, imported on first use.
    """
    _connectors[scheme] = connector


def schemes() -> list[str]:
    """The registered schemes."""
    return sorted(_connectors)


def check_scheme(address: Address) -> None:
    """Raise `ConfigError` if nothing connects to such addresses."""
    if address.scheme not in _connectors:
        raise ConfigError(
            f"the address {address} has the unknown scheme {address.scheme!r}; expected host:port, or one of "
            + ", ".join(f"{scheme}:" for scheme in schemes())
        )


def bootstrap_addresses(servers: str | Iterable[str], protocol: str = "PLAINTEXT") -> list[Address]:
    """Read `bootstrap.servers` for a client that is about to be made: addresses that something connects to.

    Args:
        servers: The setting.
        protocol: `security.protocol`, which prefixes such as `SSL://` must not contradict.

    Raises:
        ConfigError: If there is none, one is no address, nothing connects to such addresses, or not with this protocol.
    """
    addresses = parse_bootstrap(servers, protocol=protocol)
    for address in addresses:
        try:
            check_scheme(address)
            if protocol.endswith("SSL"):
                _check_tls(address, "SASL_PLAINTEXT" if protocol.startswith("SASL") else "PLAINTEXT")
        except ConfigError as error:
            raise ConfigError(f"bootstrap.servers: {error}") from None
    return addresses


def _check_tls(address: Address, instead: str) -> None:
    """Raise `ConfigError` if connections to such addresses cannot be encrypted; `instead` is the protocol to set."""
    if address.scheme != "tcp":
        raise ConfigError(f"{address} is not reached by TCP, and has no TLS: set security.protocol={instead}")


async def connect(address: Address, config: ConnectionConfig | None = None) -> ByteStream:
    """A connected byte stream to an address.

    Args:
        address: Where to.
        config: Timeouts and buffer sizes; the defaults if None.

    Raises:
        BrokerConnectionError: If nobody could be reached; it lists every address that was tried and why it failed.
        SslAuthenticationError: If broker and client found no way to trust each other.
        ConfigError: If the scheme is unknown, or cannot be encrypted and the configuration asks for it.
    """
    check_scheme(address)
    config = config or ConnectionSettings()
    if config.tls_context is not None:
        _check_tls(address, "PLAINTEXT, or with SASL SASL_PLAINTEXT")
    connector = _connectors[address.scheme]
    if isinstance(connector, str):
        module, _, name = connector.partition(":")
        connector = cast("Connector", getattr(importlib.import_module(module), name))
        _connectors[address.scheme] = connector
    try:
        return await connector(address, config)
    except BrokerConnectionError:
        raise
    except OSError as error:
        raise BrokerConnectionError(f"no connection to {address}", attempts=[(str(address), error)]) from error


async def connect_tcp(address: Address, config: ConnectionConfig) -> ByteStream:
    """Connect by TCP, with TLS if so configured: the addresses of the name are tried one after the other.

    Raises:
        SslAuthenticationError: If one answered, but broker and client found no way to trust each other.
        BrokerConnectionError: If none answered within `socket.connection.setup.timeout.ms` each.
    """
    seconds = config.socket_connection_setup_timeout_ms / 1000
    try:
        with anyio.fail_after(seconds):
            found = await _resolve(address)
    except TimeoutError as error:
        late = TimeoutError(f"the name was not resolved within {seconds:g} s ({_SETUP_TIMEOUT})")
        raise BrokerConnectionError(f"no connection to {address}", attempts=[(str(address), late)]) from error
    except OSError as error:
        raise BrokerConnectionError(f"no connection to {address}", attempts=[(str(address), error)]) from error
    except UnicodeError as error:  # a label that is empty or too long
        raise ConfigError(f"{address} cannot be connected to: {address.host!r} is not a host name ({error})") from error
    attempts: list[tuple[str, BaseException]] = []
    refusal: SslAuthenticationError | None = None
    for family, target in found:
        name = str(Address(target[0], target[1]))
        try:
            return await _connect_stream(family, target, name, address.host, config, seconds)
        except OSError as error:
            attempts.append((name, error))
        except SslAuthenticationError as error:
            refusal = error
    if refusal is not None:
        raise SslAuthenticationError(f"no connection to {address}: {refusal.message}") from refusal
    raise BrokerConnectionError(f"no connection to {address}", attempts=attempts) from attempts[-1][1]


async def _connect_unix(address: Address, config: ConnectionConfig) -> ByteStream:
    """Connect to a Unix socket."""
    seconds = config.socket_connection_setup_timeout_ms / 1000
    sock = await _connect_socket(socket.AF_UNIX, address.host, config, seconds)
    return SocketStream(sock, str(address))


_SETUP_TIMEOUT = "socket.connection.setup.timeout.ms"


async def _resolve(address: Address) -> Sequence[tuple[int, Any]]:
    kinds: dict[str, Any] = {"type": socket.SOCK_STREAM, "proto": socket.IPPROTO_TCP}
    found: Sequence[Any]
    try:
        found = socket.getaddrinfo(address.host, address.port, flags=socket.AI_NUMERICHOST, **kinds)
    except socket.gaierror:
        found = await anyio.getaddrinfo(address.host, address.port, **kinds)
    return list(dict.fromkeys((family, target) for family, _, _, _, target in found))


async def _connect_stream(
    family: int, target: Any, name: str, host: str, config: ConnectionConfig, seconds: float
) -> SocketStream:
    start = anyio.current_time()
    sock = await _connect_socket(family, target, config, seconds)
    context = config.tls_context
    if context is None:
        return SocketStream(sock, name)
    try:
        with anyio.fail_after(max(start + seconds - anyio.current_time(), 0)):
            return await connect_tls(sock, context, host, name)
    except TimeoutError:
        raise TimeoutError(
            f"it accepted, but completed no TLS handshake within {seconds:g} s ({_SETUP_TIMEOUT})"
        ) from None


async def _connect_socket(family: int, target: Any, config: ConnectionConfig, seconds: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        _configure(sock, config)
        try:
            with anyio.fail_after(seconds):
                status = await _await_connect(sock, target)
        except TimeoutError:
            raise TimeoutError(f"no answer within {seconds:g} s ({_SETUP_TIMEOUT})") from None
        if status:
            raise OSError(status, os.strerror(status))
    except BaseException:
        sock.close()
        raise
    return sock


async def _await_connect(sock: socket.socket, target: Any) -> int:
    """The error number that connecting ended with; 0 if it succeeded."""
    status = sock.connect_ex(target)
    while status == errno.EAGAIN:  # the queue of a Unix socket is full, and nothing tells when there is room
        await anyio.sleep(0.01)
        status = sock.connect_ex(target)
    if status == errno.EINPROGRESS:
        await anyio.wait_writable(sock)
        status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return status


def _configure(sock: socket.socket, config: ConnectionConfig) -> None:
    if config.send_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
    if config.receive_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


register("tcp", connect_tcp)
register("unix", _connect_unix)
