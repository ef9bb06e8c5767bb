"""The rows of SCRAM: what proves a user's password, never the password; and what makes up salts for who is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kclient.errors import ConfigError
from kclient.htp.rows import dump, object_of_format, seal, unsealed, whole
from kclient.net.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_MECHANISMS, ScramCredential

_FORMAT: Final = 1
_SHORTEST_KEY: Final = 32
_DAMAGED: Final = "the row of a user's SCRAM credentials is damaged; set the user's password again"
"""Nothing of the row is shown: who has it can guess passwords, or pose as the gateway."""


class ScramRow(NamedTuple):
    """The credentials of one user."""

    credentials: Mapping[str, ScramCredential]
    """By mechanism."""

    def encode(self) -> bytes:
        """The row."""
        return seal(dump({"format": _FORMAT, "credentials": fields_of(self.credentials)}))

    @classmethod
    def decode(cls, row: bytes) -> ScramRow:
        """What a row says. Raises `ValueError`, which shows nothing of it, if it says nothing sensible."""
        try:
            return cls(credentials_of(object_of_format(unsealed(row), _FORMAT)["credentials"]))
        except (ValueError, LookupError, TypeError, AttributeError, ConfigError):
            raise ValueError(_DAMAGED) from None

    def shown(self) -> dict[str, dict[str, int]]:
        """What people may see of it: mechanisms and iterations."""
        return {name: {"iterations": each.iterations} for name, each in self.credentials.items()}


class ScramDecoyRow(NamedTuple):
    """The key of what users are shown who do not exist."""

    key: bytes

    def encode(self) -> bytes:
        """The row."""
        return seal(dump({"format": _FORMAT, "key": self.key.hex()}))

    @classmethod
    def decode(cls, row: bytes) -> ScramDecoyRow:
        """What a row says. Raises `ValueError`, which shows nothing of it, if it says nothing sensible."""
        try:
            key = bytes.fromhex(object_of_format(unsealed(row), _FORMAT)["key"])
        except (ValueError, LookupError, TypeError, AttributeError):
            key = b""
        if len(key) < _SHORTEST_KEY:
            raise ValueError("the row of the key of SCRAM decoys is damaged")
        return cls(key)

    def shown(self) -> dict[str, int]:
        """What people may see of it: how long the key is."""
        return {"bytes": len(self.key)}


def fields_of(credentials: Mapping[str, ScramCredential]) -> dict[str, Any]:
    """Credentials by mechanism, as JSON has them."""
    return {
        mechanism: {
            "salt": each.salt.hex(),
            "iterations": each.iterations,
            "stored": each.stored_key.hex(),
            "server": each.server_key.hex(),
        }
        for mechanism, each in credentials.items()
    }


def credentials_of(fields: Mapping[str, Any]) -> dict[str, ScramCredential]:
    """What `fields_of` gave. Raises `ValueError`, `LookupError`, `TypeError`, `AttributeError` or `ConfigError`."""
    return {_mechanism(name): _credential(found) for name, found in fields.items()}


def _mechanism(name: str) -> str:
    if name not in SCRAM_MECHANISMS:
        raise ValueError(name)
    return name


def _credential(fields: Mapping[str, Any]) -> ScramCredential:
    iterations = whole(fields["iterations"], MIN_ITERATIONS, MAX_ITERATIONS)
    salt, stored, server = (bytes.fromhex(fields[name]) for name in ("salt", "stored", "server"))
    return ScramCredential(salt, iterations, stored, server)
