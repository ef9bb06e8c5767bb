"""Where a gateway accepts connections, and the address that the clients of each listener are told."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kclient.arguments import shown
from kclient.errors import ConfigError
from kclient.gateway.contexts import IN_PROCESS, LOCAL_SCHEMES, Advertised
from kclient.net.address import Address

if TYPE_CHECKING:
    from kclient.gateway.security.listeners import GatewayListener
    from kclient.net.server import RequestHandler, Server

logger: logging.Logger = logging.getLogger("kclient.gateway")


async def listen_as(server: Server, listener: GatewayListener, handler: RequestHandler) -> tuple[Address, Advertised]:
    """Have a server accept the clients of a listener.

    Args:
        server: The gateway's.
        listener: The listener; its port 0 stands for any free one, and that of the address told for the same port.
        handler: Answers its clients.

    Returns:
        Where it listens, and what its clients are told.

    Raises:
        ConfigError: The address is not a host's.
        OSError: It cannot be bound; the text says why.
    """
    address, told = listener.address, listener.told

    def label(at: Address, shown_at: Address | None) -> Advertised:
        return replace(advertised(at, shown_at), listener=listener.name, security_protocol=listener.security_protocol)

    try:
        found = await server.listen_tcp(
            address.host,
            address.port,
            label=label(address, told),
            handler=handler,
            ssl_context=None if listener.tls is None else listener.tls.context,
        )
    except (OSError, UnicodeError) as error:
        raise not_bound(address, error) from error
    known = bool(listener.mechanisms) or (listener.tls is not None and listener.tls.client_auth == "required")
    _warn_beyond_loopback(address, known=known, encrypted=listener.tls is not None)
    # connections come no earlier than the next turn of the loop: they see the port that was chosen
    at = found.label = label(found.address, told and Address(told.host, told.port or found.address.port))
    return found.address, at


async def listen(server: Server, address: Address, told: Address | None) -> Address:
    """Have a server accept connections on one more address; returns where it listens.

    Args:
        server: The gateway's.
        address: A TCP address, whose port 0 stands for any free one, or `unix:PATH`.
        told: The address that its clients are told, where they cannot reach this one; its port 0 stands for the same
            port.

    Raises:
        ConfigError: The address is not a host's.
        OSError: It cannot be bound; the text says why.
    """
    label = advertised(address, told)
    if address.scheme == "unix":
        return (await server.listen_unix(Path(address.host), label=label)).address
    try:
        listener = await server.listen_tcp(address.host, address.port, label=label)
    except (OSError, UnicodeError) as error:
        raise not_bound(address, error) from error
    _warn_beyond_loopback(address)
    if told is None or told.port == 0:
        # connections come no earlier than the next turn of the loop: they see the port that was chosen
        listener.label = advertised(listener.address, told and Address(told.host, listener.address.port))
    return listener.address


def advertised(address: Address, told: Address | None = None) -> Advertised:
    """What clients are told: the address given for them, else the bound one, made reachable."""
    shown = told if told is not None else address
    host = shown.broker_host
    if shown.scheme == "tcp" and _is_wildcard(host):
        host = socket.gethostname()
    if shown.scheme in LOCAL_SCHEMES:
        return Advertised(host, shown.port, IN_PROCESS)
    return Advertised(host, shown.port)


def not_bound(address: Address, error: OSError | UnicodeError) -> OSError | ConfigError:
    """The error of a listener, with the address and what helps."""
    if isinstance(error, UnicodeError):  # a label that is empty or too long
        return ConfigError(f"cannot listen on {shown(str(address))}: that is not a host name")
    why = {
        errno.EADDRINUSE: "another process listens there; stop it, or choose another port (0 takes any that is free)",
        errno.EADDRNOTAVAIL: "this machine has no such address; 0.0.0.0 stands for all that it has",
        errno.EACCES: "ports below 1024 need privileges; choose another one",
    }.get(error.errno or 0, error.strerror or str(error))
    return OSError(error.errno, f"cannot listen on {address}: {why}")


def _is_wildcard(host: str) -> bool:
    if not host:
        return True
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _warn_beyond_loopback(address: Address, *, known: bool = False, encrypted: bool = False) -> None:
    """Tell of a listener that other machines reach, unless its clients are known and cannot be overheard."""
    try:
        local = ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        local = address.host == "localhost"
    if local or (known and encrypted):
        return
    if known:
        logger.warning(
            "listening on %s, beyond this machine, without encryption: what clients send, passwords of PLAIN too, can "
            "be read on the way",
            address,
        )
    else:
        logger.warning(
            "listening on %s, beyond this machine, without authentication: whoever reaches it may read, write and "
            "delete everything",
            address,
        )
