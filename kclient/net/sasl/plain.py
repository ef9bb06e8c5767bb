"""PLAIN (RFC 4616): name and password in the clear. Use it over TLS."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from kclient.config.secret import Secret, check_encodable
from kclient.errors import ConfigError, SaslAuthenticationError
from kclient.net.sasl.mechanism import ClientIdentity, Exchange, ExchangeEvent, ExchangeState

__all__ = ["PasswordCheck", "PlainClient", "PlainServer", "fixed_passwords"]

PasswordCheck: TypeAlias = Callable[[str, Secret], bool]
"""Whether this is the password of this user; it must not wait. The text to compare is `password.reveal()`."""


class PlainClient(Exchange):
    """The client's side.

    Args:
        username: The user.
        password: The password.

    Raises:
        ConfigError: If one is empty or holds a zero character or a lone surrogate, which cannot be sent.
    """

    name = "PLAIN"

    def __init__(self, username: str, password: Secret) -> None:
        super().__init__()
        if not username or not password:
            raise ConfigError("SASL PLAIN needs a user name and a password that are not empty")
        if "\0" in username or "\0" in password.reveal():
            raise ConfigError("SASL PLAIN cannot send a user name or password with a zero character in it")
        check_encodable("SASL PLAIN, user name or password", username, password)
        self._username = username
        self._password = password

    def start(self) -> bytes:
        """See `ClientMechanism`."""
        self._move(ExchangeEvent.SPOKEN)
        return f"\0{self._username}\0{self._password.reveal()}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """See `ClientMechanism`."""
        self._expect(ExchangeState.FINAL)
        if challenge:
            self._move(ExchangeEvent.BROKEN)
            raise SaslAuthenticationError("The broker asked for more than PLAIN has to say")
        self._move(ExchangeEvent.CONVINCED)
        return None


class PlainServer(Exchange):
    """The server's side.

    Args:
        check: Tells whether name and password belong together; it is handed the password as a `Secret`.
    """

    name = "PLAIN"

    def __init__(self, check: PasswordCheck) -> None:
        super().__init__()
        self._check = check
        self.identity: ClientIdentity | None = None

    def respond(self, response: bytes) -> bytes:
        """See `ServerMechanism`."""
        self._expect(ExchangeState.NEW)
        try:
            authzid, username, password = bytes(response).decode().split("\0")
        except ValueError:  # not UTF-8, or not three parts
            raise self._refused("Invalid SASL/PLAIN response: expected three parts in UTF-8") from None
        if not username or not password:
            raise self._refused("Authentication failed: user name or password not specified")
        if authzid and authzid != username:
            raise self._refused("Authentication failed: the authorization id differs from the user name")
        if not self._check(username, Secret(password)):
            raise self._refused("Authentication failed: Invalid username or password")
        self._move(ExchangeEvent.CONVINCED)
        self.identity = ClientIdentity(username, self.name)
        return b""

    def _refused(self, text: str) -> SaslAuthenticationError:
        self._move(ExchangeEvent.BROKEN)
        return SaslAuthenticationError(text)


def fixed_passwords(passwords: Mapping[str, Secret | str]) -> PasswordCheck:
    """A check against a fixed table of users; it takes as long for a user who is unknown.

    Args:
        passwords: The users and their passwords.

    Raises:
        TypeError: If it is not a mapping, or a user or password is not text.
        ConfigError: If a password holds a lone surrogate, which UTF-8 cannot carry.
    """
    table = {name: password.reveal().encode() for name, password in _checked(passwords)}

    def check(username: str, password: Secret) -> bool:
        expected = table.get(username)
        same = hmac.compare_digest(password.reveal().encode(), expected or b"\0")
        return same and expected is not None

    return check


def _checked(passwords: Any) -> Iterator[tuple[str, Secret]]:
    """Users and passwords; errors name no value, except users."""
    if not isinstance(passwords, Mapping):
        kind = type(passwords).__name__
        raise TypeError(f'passwords are a mapping of users to theirs, as {{"alice": "..."}}, not a {kind}')
    for name, password in passwords.items():
        if not isinstance(name, str) or not isinstance(password, str | Secret):
            kinds = f"{type(name).__name__} and {type(password).__name__}"
            raise TypeError(f"a user is text, and the password text or a Secret; not {kinds}")
        check_encodable(f"the password of {name!r}", password)
        yield name, Secret(password)
