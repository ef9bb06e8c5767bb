"""OAUTHBEARER (RFC 7628, KIP-255): a bearer token, with extensions. Use it over TLS."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from kclient.config.sasl_credentials import EXTENSION_NAME, EXTENSION_VALUE, check_extensions
from kclient.errors import ConfigError, KafkaError, SaslAuthenticationError
from kclient.net.sasl.mechanism import ClientIdentity, Exchange, ExchangeEvent, ExchangeState
from kclient.net.sasl.token import OAuthToken

__all__ = ["InvalidTokenError", "OAuthBearerClient", "OAuthBearerServer", "TokenCheck"]

_SEPARATOR = "\x01"
_FIRST = re.compile(
    r"(?P<binding>n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>[^,\0\x01]+))?,"
    rf"\x01(?P<pairs>(?:{EXTENSION_NAME}={EXTENSION_VALUE}\x01)*)\x01"
)
_BEARER = re.compile(r"bearer +(?P<token>[-_.+/=~A-Za-z0-9]+) *", re.IGNORECASE)
_TOKEN = re.compile(r"[-_.+/=~A-Za-z0-9]+")
_LONGEST_FIRST: Final = 32_768
"""Bytes of a first message that a server looks at: it is read on the event loop, and anybody may send one."""
_MOST_EXTENSIONS: Final = 100
"""That a server takes with a token: it keeps them as long as the connection."""


class InvalidTokenError(KafkaError):
    """A token is not accepted.

    Args:
        message: Why, for the server's log; the client is told `status` only.
        status: `invalid_token`, `insufficient_scope`, or another of OAuth's codes.
        scope: The scope that would be needed.
        openid_configuration: Where clients find the identity provider.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        status: str = "invalid_token",
        scope: str | None = None,
        openid_configuration: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.scope = scope
        self.openid_configuration = openid_configuration


TokenCheck: TypeAlias = Callable[[str, dict[str, str]], ClientIdentity]
"""Finds out whose token it is, given the extensions; raises `InvalidTokenError`. It must not wait."""


class OAuthBearerClient(Exchange):
    """The client's side.

    Args:
        token: The token to show.

    Raises:
        ConfigError: If token or extensions hold characters that cannot be sent.
    """

    name = "OAUTHBEARER"

    def __init__(self, token: OAuthToken) -> None:
        super().__init__()
        if not _TOKEN.fullmatch(token.value.reveal()):
            raise ConfigError(
                "the OAuth token is empty or holds characters that no bearer token has, such as a line end behind it"
            )
        check_extensions(token.extensions)
        self._token = token
        self._refusal = ""

    def start(self) -> bytes:
        """See `ClientMechanism`."""
        self._move(ExchangeEvent.SPOKEN)
        pairs = [f"auth=Bearer {self._token.value.reveal()}"]
        pairs += [f"{name}={value}" for name, value in self._token.extensions.items()]
        return f"n,,{_SEPARATOR}{_SEPARATOR.join(pairs)}{_SEPARATOR}{_SEPARATOR}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """See `ClientMechanism`."""
        self._expect(ExchangeState.FINAL, ExchangeState.REFUSED)
        if self.state is ExchangeState.REFUSED:
            self._move(ExchangeEvent.BROKEN)
            raise SaslAuthenticationError(f"The broker refused the OAuth token: {self._refusal}")
        if not challenge:
            self._move(ExchangeEvent.CONVINCED)
            return None
        # the server has said why, and waits for this before it refuses
        self._refusal = _reason(bytes(challenge))
        self._move(ExchangeEvent.UNACCEPTED)
        return _SEPARATOR.encode()

    @property
    def refusal(self) -> str:
        """Why the server does not accept the token; empty if it has not said so."""
        return self._refusal


class OAuthBearerServer(Exchange):
    """The server's side.

    Args:
        check: Tells whose token it is.
    """

    name = "OAUTHBEARER"

    def __init__(self, check: TokenCheck) -> None:
        super().__init__()
        self.identity: ClientIdentity | None = None
        self._check = check
        self._refusal = ""

    def respond(self, response: bytes) -> bytes:
        """See `ServerMechanism`."""
        self._expect(ExchangeState.NEW, ExchangeState.REFUSED)
        if self.state is ExchangeState.REFUSED:
            self._move(ExchangeEvent.BROKEN)
            raise SaslAuthenticationError(self._refusal)
        token, extensions, authzid = self._parse(bytes(response))
        try:
            identity = self._check(token, extensions)
        except InvalidTokenError as error:
            self._refusal = _refusal(error)
            self._move(ExchangeEvent.UNACCEPTED)
            return self._refusal.encode()
        if authzid and authzid != identity.principal:
            raise self._refused("Authentication failed: the authorization id differs from the token's principal")
        self._move(ExchangeEvent.CONVINCED)
        self.identity = identity
        return b""

    def _parse(self, response: bytes) -> tuple[str, dict[str, str], str | None]:
        if len(response) > _LONGEST_FIRST or response.count(_SEPARATOR.encode()) > _MOST_EXTENSIONS + 3:
            raise self._refused("Invalid OAUTHBEARER client first message: it is too long, or has too many extensions")
        try:
            match = _FIRST.fullmatch(response.decode())
        except UnicodeDecodeError:
            match = None
        if match is None:
            raise self._refused("Invalid OAUTHBEARER client first message")
        if match["binding"].startswith("p"):
            raise self._refused("Authentication failed: channel binding is not offered")
        pairs = dict(pair.split("=", 1) for pair in match["pairs"].split(_SEPARATOR) if pair)
        bearer = _BEARER.fullmatch(pairs.pop("auth", ""))
        if bearer is None:
            raise self._refused("Invalid OAUTHBEARER client first message: no bearer token")
        return bearer["token"], pairs, match["authzid"]

    def _refused(self, text: str) -> SaslAuthenticationError:
        self._move(ExchangeEvent.BROKEN)
        return SaslAuthenticationError(text)


def _refusal(error: InvalidTokenError) -> str:
    facts = {"status": error.status, "scope": error.scope, "openid-configuration": error.openid_configuration}
    return json.dumps({name: value for name, value in facts.items() if value is not None}, separators=(",", ":"))


def _reason(challenge: bytes) -> str:
    """The server's reason in one line; it sends JSON, but nothing forces it to."""
    text = challenge[:1000].decode(errors="replace")
    try:
        facts = json.loads(text)
        return ", ".join(f"{name} {value}" for name, value in facts.items())
    except (ValueError, AttributeError, RecursionError):
        return " ".join(text.split())
