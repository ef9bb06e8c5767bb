"""Tokens from an identity provider over HTTP (RFC 6749, 4.4), or from a file that something else keeps fresh.

Needs the extra `oauth` for HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlsplit
from urllib.request import url2pathname

import anyio

from kclient.config.sasl_credentials import ClientCredentials
from kclient.errors import MissingExtraError, OAuthTokenError
from kclient.net.sasl.token import OAuthToken

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["ClientCredentialsSource"]

logger: logging.Logger = logging.getLogger("kclient.net.sasl")

# Asking again does not change these answers; the others may be those of a server that has trouble.
_FINAL_STATUS: Final = frozenset({400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505})
_TOKEN_LIMIT = 1024 * 1024


class ClientCredentialsSource:
    """Fetches a token with each call.

    An attempt that fails for a reason that may pass is repeated, with a back-off that doubles, until the limit is used
    up.

    Args:
        settings: Where, as whom, and how long.
        scope_claim: The token's claim that holds the scope.
        sub_claim: The token's claim that names the user.
    """

    def __init__(self, settings: ClientCredentials, *, scope_claim: str = "scope", sub_claim: str = "sub") -> None:
        self._settings = settings
        self._claims = {"scope_claim": scope_claim, "subject_claim": sub_claim}
        self._shown = _without_secrets(settings.url)
        self._tls: ssl.SSLContext | None = None

    async def __call__(self) -> OAuthToken:
        """A new token.

        Raises:
            OAuthTokenError: If there was none to be had; `retriable` says whether asking later may help.
            MissingExtraError: If httpx is not installed.
        """
        settings = self._settings
        start = anyio.current_time()
        delay = settings.retry_backoff
        while True:
            try:
                return await self._fetch()
            except OAuthTokenError as error:
                left = start + settings.retry_limit - anyio.current_time()
                if not error.retriable or min(delay, left) <= 0:
                    raise
                logger.info("%s; the next attempt follows", error)
            await anyio.sleep(min(delay, left))
            delay *= 2

    async def _fetch(self) -> OAuthToken:
        if urlsplit(self._settings.url).scheme == "file":
            return await self._read_file()
        return self._parse(await self._post())

    async def _read_file(self) -> OAuthToken:
        path = Path(url2pathname(urlsplit(self._settings.url).path))
        try:
            text = (await anyio.to_thread.run_sync(path.read_text)).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise self._failed(f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from error
        if not text:
            raise self._failed("the file is empty")
        return OAuthToken.from_jwt(text, **self._claims)

    async def _post(self) -> httpx.Response:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise MissingExtraError("httpx", "oauth", "sasl.oauthbearer.token.endpoint.url") from error
        settings = self._settings
        if self._tls is None:  # reading the authorities' certificates takes longer than most requests
            self._tls = httpx.create_ssl_context()
        timeout = httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout)
        form = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
        headers = {"Accept": "application/json"}
        # no error of httpx is kept as a cause: they hold the request, and with it the client's secret
        try:
            async with httpx.AsyncClient(timeout=timeout, verify=self._tls) as client:
                # made in the call: tools that show local variables must not find it
                response = await client.post(
                    settings.url, data=form, headers=headers, auth=httpx.BasicAuth(*self._name_and_secret())
                )
        except httpx.TimeoutException:
            raise self._failed(
                f"no answer within {settings.connect_timeout:g} s for the connection (sasl.login.connect.timeout.ms) "
                f"and {settings.read_timeout:g} s for the rest (sasl.login.read.timeout.ms)"
            ) from None
        except (httpx.TransportError, OSError) as error:
            raise self._failed(str(error) or type(error).__name__) from None
        except (httpx.InvalidURL, ValueError):
            raise self._failed("the address makes no sense", retriable=False) from None
        if response.status_code != 200:
            reason = _oauth_error(response)
            raise self._failed(
                f"it answered with status {response.status_code}{reason}",
                retriable=response.status_code not in _FINAL_STATUS,
            )
        return response

    def _name_and_secret(self) -> tuple[str, str]:
        settings = self._settings
        encode: Callable[[str], str] = quote_plus if settings.urlencode else str
        return encode(settings.client_id), encode(settings.client_secret.reveal())

    def _parse(self, response: httpx.Response) -> OAuthToken:
        facts = _json(response)
        text = facts.get("access_token") or facts.get("id_token")
        if not isinstance(text, str) or len(text) > _TOKEN_LIMIT:
            raise self._failed("its answer holds no access_token", retriable=False)
        token = OAuthToken.from_jwt(text, **self._claims)
        life = facts.get("expires_in")
        if token.expires_at is None and isinstance(life, int | float) and life > 0:
            return token.ending_in(float(life))
        return token

    def _failed(self, reason: str, *, retriable: bool = True) -> OAuthTokenError:
        return OAuthTokenError(
            f"no OAuth token from {self._shown} (sasl.oauthbearer.token.endpoint.url): {reason}",
            retriable=retriable,
            fatal=not retriable,
        )

    def __repr__(self) -> str:
        return f"<ClientCredentialsSource {self._shown}>"


def _without_secrets(url: str) -> str:
    """An address without user, password and query, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        facts = response.json()
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _oauth_error(response: httpx.Response) -> str:
    """What the provider says in RFC 6749's words; nothing else of the answer is shown."""
    facts = _json(response)
    words = [str(facts[name])[:200] for name in ("error", "error_description") if isinstance(facts.get(name), str)]
    return f": {'; '.join(words)}" if words else ""
