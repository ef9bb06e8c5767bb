"""The file of a Kafka broker, `server.properties`, as a gateway takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from kclient.config.properties import parse_properties
from kclient.errors import ConfigError

__all__ = ["ServerProperties", "read_server_properties"]

_LONGEST: Final = 1 << 20
"""Bytes of such a file, at most."""
_LOG_DIRS: Final = ("log.dirs", "log.dir")


class ServerProperties(NamedTuple):
    """What a file says."""

    settings: dict[str, str]
    """Broker settings, by their names."""
    log_dirs: str | None
    """Where Kafka would keep its logs, which are none of a gateway's: `log.dirs`, or `log.dir`."""


def read_server_properties(path: Path) -> ServerProperties:
    """The settings in a file, as Kafka reads it: Java's `.properties`, in ISO 8859-1.

    Args:
        path: Of the file.

    Raises:
        ConfigError: It cannot be read, is larger than a megabyte, or has a malformed escape.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise ConfigError(f"the file of settings {path} cannot be read: {_reason(error)}") from None
    if len(data) > _LONGEST:
        raise ConfigError(f"the file of settings {path} has more than {_LONGEST} bytes: it is none")
    try:
        settings = parse_properties(data.decode("iso-8859-1"))
    except ConfigError as error:
        raise ConfigError(f"the file of settings {path}: {error}") from None
    found = [settings.pop(name, None) for name in _LOG_DIRS]
    return ServerProperties(settings, next((each for each in found if each), None))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
