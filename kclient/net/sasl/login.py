"""What a client authenticates with: made once from its settings, shared by all its connections."""

from __future__ import annotations

from typing import Protocol

from kclient.config.secret import Secret
from kclient.net.sasl.mechanism import ClientMechanism
from kclient.net.sasl.plain import PlainClient
from kclient.net.sasl.scram import ScramClient

__all__ = ["Login", "PasswordLogin"]


class Login(Protocol):
    """Begins authentications."""

    @property
    def mechanism(self) -> str:
        """Name of the SASL mechanism."""
        ...

    async def begin(self) -> ClientMechanism:
        """The client's side of a new authentication.

        Raises:
            AuthenticationError: If there is nothing to authenticate with, such as a token.
        """
        ...


class PasswordLogin:
    """PLAIN or SCRAM with one name and password.

    Args:
        mechanism: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        username: The user, or the id of a delegation token.
        password: The password, or the token's key.
        token_auth: Whether it is a delegation token; SCRAM only.

    Raises:
        ConfigError: If they cannot be used with the mechanism.
    """

    def __init__(self, mechanism: str, username: str, password: Secret | str, *, token_auth: bool = False) -> None:
        self.mechanism = mechanism
        self._username = username
        self._password = Secret(password)
        self._token_auth = token_auth
        self._make()

    async def begin(self) -> ClientMechanism:
        """See `Login`."""
        return self._make()

    def _make(self) -> ClientMechanism:
        if self.mechanism == "PLAIN":
            return PlainClient(self._username, self._password)
        return ScramClient(self.mechanism, self._username, self._password, token_auth=self._token_auth)

    def __repr__(self) -> str:
        return f"<PasswordLogin {self.mechanism} {self._username}>"
