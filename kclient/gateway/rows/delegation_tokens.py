"""The rows of delegation tokens: whose they are and how long they live, and what proves them; never their HMACs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kclient.errors import ConfigError
from kclient.gateway.rows.scram_credentials import credentials_of, fields_of
from kclient.htp.rows import dump, object_of_format, seal, string, unsealed, whole
from kclient.net.sasl.scram import ScramCredential

_FORMAT = 1
_DAMAGED = "the row of a delegation token is damaged; make another one"
"""Nothing of the row is shown."""


class TokenPrincipal(NamedTuple):
    """Who owns, asked for or may renew a token."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


class DelegationTokenRow(NamedTuple):
    """A token. Times are in milliseconds since the epoch."""

    owner: TokenPrincipal
    requester: TokenPrincipal
    renewers: tuple[TokenPrincipal, ...]
    issued_ms: int
    expiry_ms: int
    """When it ends, unless it is renewed."""
    max_ms: int
    """When it ends at the latest."""
    check: str
    """Follows from the HMAC: tells whether a gateway has the key that the token was made with."""
    credentials: Mapping[str, ScramCredential]
    """What proves the HMAC, by mechanism."""

    def has_ended(self, now_ms: int) -> bool:
        """Whether it does not count any more."""
        return now_ms > min(self.expiry_ms, self.max_ms)

    def concerns(self, principal: TokenPrincipal) -> bool:
        """Whether a principal owns it, asked for it or may renew it."""
        return principal in (self.owner, self.requester) or principal in self.renewers

    def encode(self) -> bytes:
        """The row."""
        fields = {
            "format": _FORMAT,
            "owner": self.owner,
            "requester": self.requester,
            "renewers": self.renewers,
            "issued": self.issued_ms,
            "expiry": self.expiry_ms,
            "max": self.max_ms,
            "check": self.check,
            "credentials": fields_of(self.credentials),
        }
        return seal(dump(fields))

    @classmethod
    def decode(cls, row: bytes) -> DelegationTokenRow:
        """What a row says. Raises `ValueError`, which shows nothing of it, if it says nothing sensible."""
        try:
            fields = object_of_format(unsealed(row), _FORMAT)
            return cls(
                _principal(fields["owner"]),
                _principal(fields["requester"]),
                tuple(_principal(each) for each in fields["renewers"]),
                whole(fields["issued"]),
                whole(fields["expiry"]),
                whole(fields["max"]),
                string(fields["check"]),
                credentials_of(fields["credentials"]),
            )
        except (ValueError, LookupError, TypeError, AttributeError, ConfigError):
            raise ValueError(_DAMAGED) from None

    def shown(self) -> dict[str, Any]:
        """What people may see of it."""
        return {
            "owner": str(self.owner),
            "requester": str(self.requester),
            "renewers": [str(each) for each in self.renewers],
            "issued": self.issued_ms,
            "expiry": self.expiry_ms,
            "max": self.max_ms,
        }


def _principal(fields: Any) -> TokenPrincipal:
    kind, name = fields
    return TokenPrincipal(string(kind), string(name))
