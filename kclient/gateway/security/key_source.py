"""Where the keys come from that tokens are checked against: a file, or an address, read again and again.

Needs the extra `jwt`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import anyio
import anyio.to_thread

from kclient.concurrency import Wakeup
from kclient.config.secret import Url
from kclient.errors import ConfigError, MissingExtraError
from kclient.gateway.security.json_web_keys import MOST_BYTES, KeySet, parse_key_set
from kclient.net.sasl.threads import AbandonableCalls, TooManyCallsError
from kclient.net.thread_switches import call_giving_way

if TYPE_CHECKING:
    import ssl

logger: logging.Logger = logging.getLogger("kclient.gateway.oauth")

_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
_TIMEOUT_S: Final = 10.0
"""Seconds that an identity provider has for its whole answer."""
_CONNECT: Final = 1 / 3
"""The part of that for a connection, and for its encryption: httpx, cancelled in the midst of a handshake, leaves the
connection open until garbage is collected, but not where its own time is over."""
_TOO_LATE: Final = f"not within {_TIMEOUT_S:g} s"
_MISS_S: Final = 10.0
"""Seconds from one reading to the next, at least, that is made because a token names a key that is not there: whoever
makes up names of keys must not keep the identity provider busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySourceSettings:
    """Where a key set is, and how often it is read; times are in seconds."""

    url: Url
    refresh: float
    retry: float
    retry_max: float

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            _ = parts.port  # is read now only, and may be none
        except ValueError:
            raise ConfigError(f"{_URL} is not a valid address") from None
        if "@" in parts.netloc:
            raise ConfigError(f"{_URL}: user and password do not belong into the address")
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path:
                raise ConfigError(f"{_URL} names no file of this machine; it is file:///PATH")
        elif parts.scheme != "https" or not parts.hostname:
            raise ConfigError(f"{_URL} begins with https:// or file:///: keys that come unencrypted could be anybody's")
        elif not self.url.isprintable() or " " in self.url:
            raise ConfigError(f"{_URL} is not a valid address: it holds characters that no address has")

    @property
    def path(self) -> Path | None:
        """The file; None for an address."""
        parts = urlsplit(self.url)
        return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


class KeySource:
    """The keys, as they were read last.

    Args:
        settings: Where they are.
    """

    def __init__(self, settings: KeySourceSettings) -> None:
        self._settings = settings
        self._missed: Wakeup | None = None
        self._tls: ssl.SSLContext | None = None
        self._threads = AbandonableCalls()
        self.keys: KeySet = KeySet()

    def missed(self) -> None:
        """Somebody has named a key that is not there: read them again, unless that was done a moment ago."""
        if self._missed is not None:
            self._missed.set()

    async def load(self) -> None:
        """Read them when the gateway starts.

        An identity provider that does not answer, or with something else, stops no start: until it does, nobody logs
        in by its tokens.

        Raises:
            ConfigError: The file cannot be read, or what is there is no key set.
            MissingExtraError: httpx is not installed.
        """
        try:
            await self._read()
        except (OSError, ValueError) as error:
            if self._settings.path is not None:
                raise ConfigError(f"{_URL}: {self._settings.url.shown} cannot be read: {_why(error)}") from error
            self._tell(error, "nobody can log in by its tokens until it can")

    async def run(self) -> None:
        """Read them again and again, until the gateway closes."""
        settings = self._settings
        missed = self._missed = Wakeup()
        retry = 0.0 if self.keys.keys else settings.retry
        next_miss = -math.inf
        while True:
            with anyio.move_on_after(retry or settings.refresh):
                await missed.wait()
                await anyio.sleep(max(next_miss - anyio.current_time(), 0.0))
                next_miss = anyio.current_time() + _MISS_S
            try:
                await self._read()
                retry = 0.0
            except (OSError, ValueError) as error:
                if not retry:
                    self._tell(error, "those that were read before go on to count")
                retry = min(max(2 * retry, settings.retry), settings.retry_max)

    def _tell(self, error: Exception, so: str) -> None:
        logger.warning("the key set %s cannot be read, %s: %s", self._settings.url.shown, so, _why(error))

    async def _read(self) -> None:
        """Raises `OSError` where it cannot be had, `ValueError` where it is none."""
        path = self._settings.path
        data = await (self._fetch() if path is None else self._read_file(path))
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        before, self.keys = self.keys, await anyio.to_thread.run_sync(call_giving_way, partial(parse_key_set, data))
        if [each.key_id for each in before.keys] != [each.key_id for each in self.keys.keys]:
            logger.info("the key set %s has %d keys", self._settings.url.shown, len(self.keys.keys))

    async def _read_file(self, path: Path) -> bytes:
        try:
            with anyio.fail_after(_TIMEOUT_S):  # it may be a pipe, or lie on a server that hangs
                return await self._threads.run(partial(_read_some, path))
        except (TooManyCallsError, TimeoutError) as error:
            raise OSError(str(error) or _TOO_LATE) from None

    async def _fetch(self) -> bytes:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise MissingExtraError("httpx", "jwt", f"{_URL}=https://...") from error
        if self._tls is None:
            self._tls = await anyio.to_thread.run_sync(httpx.create_ssl_context)
        answer, times = bytearray(), httpx.Timeout(_TIMEOUT_S, connect=_TIMEOUT_S * _CONNECT)
        try:
            with anyio.fail_after(_TIMEOUT_S):
                async with (
                    httpx.AsyncClient(timeout=times, verify=self._tls) as client,
                    client.stream("GET", self._settings.url, headers={"Accept-Encoding": "identity"}) as response,
                ):
                    if response.status_code != httpx.codes.OK:
                        raise OSError(f"it answered with status {response.status_code}")
                    # left by cancelling, not by an exception: see ClientCredentialsSource
                    with anyio.CancelScope() as reading:
                        async for part in response.aiter_raw():
                            answer += part
                            if len(answer) > MOST_BYTES:
                                reading.cancel()
        except (httpx.TimeoutException, TimeoutError):
            raise OSError(_TOO_LATE) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OSError(_reason(error)) from None
        return bytes(answer)


def _reason(error: BaseException) -> str:
    """The first text in what has led to an error: httpx's have none on trio."""
    found: BaseException | None = error
    while found is not None and not str(found):
        found = found.__cause__ or found.__context__
    return str(found) if found is not None else type(error).__name__


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _read_some(path: Path) -> bytes:
    """The file, or as much of it as tells that it is too large."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)
