"""Broker addresses: `host:port` as Kafka writes it, and addresses of gateways inside the process."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kclient.arguments import shown
from kclient.errors import ConfigError, NotYetSupportedError

__all__ = ["DEFAULT_PORT", "Address", "listener_type", "parse_address", "parse_bootstrap"]

DEFAULT_PORT = 9092
"""Kafka's port, for addresses that name none."""

_PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
# Words that name no host, whatever follows; other schemes must not look like host:port. A scheme has two letters at
# least (a single one is a Windows drive), and no dots (those are host names).
_SCHEME = re.compile(r"(memory|embedded|unix|[A-Za-z][A-Za-z0-9_+-]+(?=:(?!\d+$))):(.*)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is reached.

    A gateway inside the process advertises itself by a host that contains its scheme (`memory:NAME`,
    `embedded:DIR`) and port 0, so that such brokers fit into Kafka's metadata.
    """

    host: str
    """A host name or IP address without brackets; for schemes other than `tcp` what follows the scheme."""
    port: int
    scheme: str = "tcp"
    """Names the connector, see `kclient.net.connectors`."""

    @classmethod
    def of_broker(cls, host: str, port: int) -> Address:
        """The address of a broker as metadata name it."""
        match = _SCHEME.fullmatch(host)
        if match is not None and not _is_ipv6(host):
            return cls(match[2], port, match[1].lower())
        return cls(host, port)

    @property
    def broker_host(self) -> str:
        """The host as metadata carry it, with the scheme unless it is `tcp`."""
        return self.host if self.scheme == "tcp" else f"{self.scheme}:{self.host}"

    def __str__(self) -> str:
        if self.scheme != "tcp":
            return f"{self.scheme}:{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(
    text: str, *, default_port: int | None = DEFAULT_PORT, protocol: str = "PLAINTEXT", setting: str = ""
) -> Address:
    """Read one address.

    Accepts `host:port`, `host`, `[::1]:9092`, `PLAINTEXT://host:port`, `tcp://host:port`, `unix:PATH`,
    `embedded:DIR` and `memory:NAME`.

    Args:
        text: The address.
        default_port: Port of addresses that name none; None to refuse such addresses.
        protocol: The security protocol that is in use: the only one that may stand before `://`.
        setting: What chooses the protocol, for error messages; empty if nothing does.

    Raises:
        ConfigError: If it is not an address, or names another security protocol than the setting.
        NotYetSupportedError: If it names another security protocol, and no setting could change that.
    """
    given: object = text
    if not isinstance(given, str):
        raise ConfigError(f"an address is text such as host:port, not {shown(text)}")
    text = text.strip()
    if not text:
        raise ConfigError("an address is empty; expected host:port")
    before, separator, rest = text.partition("://")
    if separator and before.upper() in _PROTOCOLS | {"TCP"}:
        if before.upper() not in (protocol, "TCP"):
            kind = before.upper()
            if not setting:
                raise NotYetSupportedError(f"{text}: listeners of type {kind} are not supported here yet")
            raise ConfigError(f"{text} is a listener of type {kind}, but {setting}={protocol}; set {setting}={kind}")
        return _parse_tcp(rest, text, default_port)
    match = None if text.startswith("[") else _SCHEME.fullmatch(text)
    if match is not None and not _is_ipv6(text):
        return _with_scheme(match[1].lower(), match[2], text)
    return _parse_tcp(text, text, default_port)


def listener_type(text: str) -> str | None:
    """The security protocol that an address names before `://`, in capitals; None if it names none."""
    before, separator, _ = text.strip().partition("://")
    return before.upper() if separator and before.upper() in _PROTOCOLS else None


def parse_bootstrap(servers: str | Iterable[str], *, protocol: str = "PLAINTEXT") -> list[Address]:
    """Read `bootstrap.servers`: a list of addresses, or one text with commas between them.

    Args:
        servers: The setting.
        protocol: `security.protocol`.

    Raises:
        ConfigError: If there is none, one is no address, or one names another security protocol.
    """
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    try:
        addresses = [
            parse_address(text, protocol=protocol, setting="security.protocol") for text in texts if text.strip()
        ]
    except ConfigError as error:
        raise ConfigError(f"bootstrap.servers: {error}") from None
    if not addresses:
        raise ConfigError("bootstrap.servers names no address; expected host:port, or several with commas between")
    return list(dict.fromkeys(addresses))


def _with_scheme(scheme: str, rest: str, text: str) -> Address:
    rest = rest.removeprefix("//") if scheme == "memory" else rest
    if not rest:
        raise ConfigError(f"the address {text!r} names nothing after {scheme}:")
    return Address(rest, 0, scheme)


def _parse_tcp(rest: str, text: str, default_port: int | None) -> Address:
    host, port = _split_port(rest, text)
    if not host or re.search(r"[\s/\\@,]", host):
        raise ConfigError(f"the address {text!r} is not of the form host:port")
    if port is None:
        if default_port is None:
            raise ConfigError(f"the address {shown(text)} has no port")
        return Address(host, default_port)
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"the address {text!r} has no valid port: {port!r} is not between 0 and 65535")
    return Address(host, int(port))


def _split_port(rest: str, text: str) -> tuple[str, str | None]:
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise ConfigError(f"the address {text!r} is not of the form [IPv6]:port")
        return host, tail[1:] if tail else None
    if _is_ipv6(rest):
        return rest, None
    host, colon, port = rest.rpartition(":")
    return (host, port) if colon else (rest, None)


def _is_ipv6(text: str) -> bool:
    return text.count(":") > 1 and re.fullmatch(r"[0-9a-fA-F:.]+(%.*)?", text) is not None
