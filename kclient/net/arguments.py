"""What is passed to connections and servers: a wrong argument is refused by the call that it was given to.

Errors name the type of what was given, and not its value: that may be a password in the wrong place.
"""

from __future__ import annotations

import math
from typing import Any

from typing_extensions import get_protocol_members

from kclient.concurrency import Supervisor
from kclient.errors import ConfigError
from kclient.net.address import Address, listener_type, parse_address
from kclient.net.settings import ConnectionConfig

__all__ = [
    "check_config",
    "check_handler",
    "check_login",
    "check_seconds",
    "check_supervisor",
    "named_address",
    "open_address",
]

_CONFIG = sorted(get_protocol_members(ConnectionConfig))
_HANDLER = ("begin", "connected", "disconnected")
_LOGIN = ("begin", "refused")


def open_address(address: Any, *, tls: bool, login: bool) -> Address:
    """Where to connect to; a listener's type before `://` has to be that of the connection.

    Args:
        address: An `Address`, or its text.
        tls: Whether there is a `tls_context`.
        login: Whether there is a login.

    Raises:
        TypeError: It is neither.
        ConfigError: It is not an address, or that of a listener of another type; the text says what to set.
    """
    if not isinstance(address, str):
        return named_address(address)
    wanted = listener_type(address)
    protocol = ("SASL_" if login else "") + ("SSL" if tls else "PLAINTEXT")
    if wanted is not None and wanted != protocol:
        remedies = []
        if wanted.endswith("SSL") != tls:
            remedies.append("take tls_context out of the config" if tls else "give a config with a tls_context")
        if wanted.startswith("SASL") != login:
            remedies.append("leave out login" if login else "give a login")
        remedy = " and ".join(remedies)
        raise ConfigError(f"{address.strip()} is a listener of type {wanted}, the connection is {protocol}; {remedy}")
    return parse_address(address, protocol=protocol)


def named_address(address: Any) -> Address:
    """What is connected already, by its address; a listener's type before `://` is not looked at.

    Raises:
        TypeError: It is neither an `Address` nor text.
        ConfigError: The text is not an address.
    """
    if isinstance(address, Address):
        return address
    if not isinstance(address, str):
        raise TypeError(f"expected an address, such as 'localhost:9092', or an Address, got {_a(address)}")
    return parse_address(address, protocol=listener_type(address) or "PLAINTEXT")


def check_config(config: Any) -> None:
    """Raise TypeError for what is not a `ConnectionConfig`."""
    missing = [name for name in _CONFIG if not hasattr(config, name)]
    if missing:
        raise TypeError(
            f"expected a ConnectionConfig, such as ConnectionSettings(...), got {_a(config)} without {missing[0]}"
        )


def check_login(login: Any) -> None:
    """Raise TypeError for what is not a `Login`."""
    if not _has_methods(login, _LOGIN):
        raise TypeError(f"expected a Login, such as PasswordLogin(mechanism, username, password), got {_a(login)}")


def check_supervisor(supervisor: Any) -> None:
    """Raise TypeError for what is not a `Supervisor`."""
    if not isinstance(supervisor, Supervisor):
        raise TypeError(f"expected a kclient.concurrency.Supervisor, got {_a(supervisor)}")


def check_handler(handler: Any) -> None:
    """Raise TypeError for what is not a `RequestHandler`."""
    if not _has_methods(handler, _HANDLER):
        raise TypeError(f"expected a RequestHandler (with {', '.join(_HANDLER)}), got {_a(handler)}")


def check_seconds(timeout: Any) -> None:
    """Raise for a timeout that is not a number of seconds; one that is over already, below 0, is fine.

    Raises:
        TypeError: It is not a number.
        ValueError: It is nan, which would never be over.
    """
    if not isinstance(timeout, int | float):
        raise TypeError(f"timeout is a number of seconds, or None for request.timeout.ms; not {_a(timeout)}")
    if math.isnan(timeout):
        raise ValueError("timeout is a number of seconds, or None for request.timeout.ms; not nan")


def _has_methods(value: object, names: tuple[str, ...]) -> bool:
    return all(callable(getattr(value, name, None)) for name in names)


def _a(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
