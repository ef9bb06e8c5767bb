"""Tokens from an identity provider over HTTP (RFC 6749, 4.4), or from a file that something else keeps fresh.

Needs the extra `oauth` for HTTP.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlsplit
from urllib.request import url2pathname

import anyio

from kclient.config.sasl_credentials import ClientCredentials, check_address
from kclient.config.secret import Url
from kclient.errors import MissingExtraError, OAuthTokenError
from kclient.net.sasl.threads import AbandonableCalls, TooManyCallsError
from kclient.net.sasl.token import OAuthToken

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["ClientCredentialsSource"]

logger: logging.Logger = logging.getLogger("kclient.net.sasl")

# Asking again does not change these answers; the others may be those of a server that has trouble.
_FINAL_STATUS: Final = frozenset({400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505})
_ANSWER_LIMIT: Final = 1024 * 1024


class ClientCredentialsSource:
    """Fetches a token with each call.

    An attempt that fails for a reason that may pass is repeated, with a back-off that doubles, until the limit is used
    up. An attempt takes the two timeouts together at most, however slowly the answer drips, and an answer a mebibyte.

    Args:
        settings: Where, as whom, and how long.
        scope_claim: The token's claim that holds the scope.
        sub_claim: The token's claim that names the user.

    Raises:
        ConfigError: If the address holds user and password, or a secret in its query: httpx logs it.
    """

    def __init__(self, settings: ClientCredentials, *, scope_claim: str = "scope", sub_claim: str = "sub") -> None:
        check_address(settings.url)
        self._settings = settings
        self._claims = {"scope_claim": scope_claim, "subject_claim": sub_claim}
        self._shown = Url(settings.url).shown
        self._threads = AbandonableCalls()
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
            # it may be a pipe, or lie on a server that hangs
            with anyio.fail_after(self._settings.read_timeout):
                data = await self._threads.run(lambda: _read_some(path))
            text = data.decode().strip()
        except TooManyCallsError as error:
            raise self._failed(f"the file cannot be read: {error}") from None
        except TimeoutError:
            raise self._failed(
                f"the file cannot be read within {self._settings.read_timeout:g} s (sasl.login.read.timeout.ms)"
            ) from None
        except OSError as error:
            raise self._failed(f"the file cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise self._failed(f"the file cannot be read: {error}") from None
        if len(data) > _ANSWER_LIMIT:
            raise self._failed(f"the file has more than {_ANSWER_LIMIT} bytes", retriable=False)
        if not text:
            raise self._failed("the file is empty")
        return OAuthToken.from_jwt(text, **self._claims)

    async def _post(self) -> bytes:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise MissingExtraError("httpx", "oauth", "sasl.oauthbearer.token.endpoint.url") from error
        settings = self._settings
        if self._tls is None:  # reading the authorities' certificates takes longer than most requests
            self._tls = httpx.create_ssl_context()
        timeout = httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout)
        form = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        # no error of httpx is kept as a cause: they hold the request, and with it the client's secret
        try:
            # httpx counts each read for itself
            with anyio.fail_after(settings.connect_timeout + settings.read_timeout):
                async with (
                    httpx.AsyncClient(timeout=timeout, verify=self._tls) as client,
                    # made in the call: tools that show local variables must not find it
                    client.stream(
                        "POST", settings.url, data=form, headers=headers, auth=httpx.BasicAuth(*self._name_and_secret())
                    ) as response,
                ):
                    status = response.status_code
                    answer = await self._read_answer(response)
        except (httpx.TimeoutException, TimeoutError):
            raise self._failed(
                f"no answer within {settings.connect_timeout:g} s for the connection (sasl.login.connect.timeout.ms) "
                f"and {settings.read_timeout:g} s for the rest (sasl.login.read.timeout.ms)"
            ) from None
        except (httpx.TransportError, OSError) as error:
            raise self._failed(str(error) or type(error).__name__) from None
        except (httpx.InvalidURL, ValueError):
            raise self._failed("the address is invalid", retriable=False) from None
        if status != 200:
            reason = _oauth_error(answer)
            raise self._failed(f"it answered with status {status}{reason}", retriable=status not in _FINAL_STATUS)
        return answer

    async def _read_answer(self, response: httpx.Response) -> bytes:
        """The answer as it came: nothing is unpacked, which could make it any size."""
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise self._failed("its answer is compressed, which was not asked for", retriable=False)
        answer = bytearray()
        # Left by cancelling the next read, not by an exception here: that ends all of the generators that lie behind
        # one another in httpx, which trio would find unfinished.
        with anyio.CancelScope() as reading:
            async for part in response.aiter_raw():
                if len(answer) <= _ANSWER_LIMIT:
                    answer += part
                else:
                    reading.cancel()
        if len(answer) > _ANSWER_LIMIT:
            raise self._failed(f"its answer has more than {_ANSWER_LIMIT} bytes", retriable=False)
        return bytes(answer)

    def _name_and_secret(self) -> tuple[str, str]:
        settings = self._settings
        encode: Callable[[str], str] = quote_plus if settings.urlencode else str
        return encode(settings.client_id), encode(settings.client_secret.reveal())

    def _parse(self, answer: bytes) -> OAuthToken:
        facts = _json(answer)
        text = facts.get("access_token") or facts.get("id_token")
        if not isinstance(text, str):
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


def _read_some(path: Path) -> bytes:
    """The file, or as much of it as tells that it is too large."""
    with path.open("rb") as file:
        return file.read(_ANSWER_LIMIT + 1)


def _json(answer: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _oauth_error(answer: bytes) -> str:
    """What the provider says in RFC 6749's words; nothing else of the answer is shown."""
    facts = _json(answer)
    words = [str(facts[name])[:200] for name in ("error", "error_description") if isinstance(facts.get(name), str)]
    return f": {'; '.join(words)}" if words else ""
