"""Delegation tokens (KIP-48): kept by the manager, the same at all gateways of a store.

What is kept of a token is never its HMAC, which is its password: that follows from its id and the key that all gateways
have (`delegation.token.secret.key`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.errors import (
    ConfigError,
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
    KafkaError,
    PolicyViolationError,
)
from kclient.gateway.log_texts import on_one_line
from kclient.gateway.rows.delegation_tokens import DelegationTokenRow, TokenPrincipal
from kclient.gateway.rows.keys import DELEGATION_TOKENS, delegation_token_key, parse_delegation_token_key
from kclient.htp.errors import ConflictError, TokenTooOldError
from kclient.htp.rows import GREATEST, scan_pages
from kclient.net.fair_queue import Pace
from kclient.net.sasl.scram import MIN_ITERATIONS, SCRAM_MECHANISMS, ScramCredential, ScramToken

if TYPE_CHECKING:
    from kclient.config.secret import Secret
    from kclient.gateway.config import BrokerConfig
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.gateway.workers import Workers
    from kclient.htp.port import Manager
    from kclient.memory_ledger import LimitedAccount
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.users")

KEY: Final = "delegation.token.secret.key"
_MAX_LIFETIME: Final = "delegation.token.max.lifetime.ms"
_EXPIRY_TIME: Final = "delegation.token.expiry.time.ms"
_CHECK_INTERVAL: Final = "delegation.token.expiry.check.interval.ms"

USER: Final = "User"
"""The type of principals that log in."""
_TRIES: Final = 10
"""So often a change is tried that other gateways change at the same time."""
_TOKEN: Final = 3_000
"""About how many bytes of memory a token takes, beside the names in it."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """What the settings of a gateway say about delegation tokens; times are in milliseconds."""

    key: Secret
    max_lifetime_ms: int
    """How long a token lives at most."""
    expiry_ms: int
    """How long it lives unless it is renewed, and after it was."""
    check_interval_ms: int
    """How often those are looked for that have ended."""


class KnownToken(NamedTuple):
    """A token, with what only its users know."""

    token_id: str
    hmac: bytes
    row: DelegationTokenRow
    version: int
    """Of the row."""


def token_settings(config: BrokerConfig) -> TokenSettings | None:
    """What the settings say; None where there are no delegation tokens, because there is no key.

    Raises:
        ConfigError: The key is empty; or there is none, and other settings are about tokens.
    """
    key = config.secrets.get(KEY)
    if key is None:
        for name in (_MAX_LIFETIME, _EXPIRY_TIME, _CHECK_INTERVAL):
            if config.given(name) is not None:
                raise ConfigError(f"{name} has no effect: there are no delegation tokens without {KEY}")
        return None
    if not key:
        raise ConfigError(f"{KEY} is empty: everybody could make tokens; leave it out where there are to be none")
    times = (config.get_int(name) for name in (_MAX_LIFETIME, _EXPIRY_TIME, _CHECK_INTERVAL))
    return TokenSettings(key, *times)


class DelegationTokens:
    """The tokens.

    Args:
        settings: The key, and how long tokens live.
        manager: Keeps them.
        lease: Under which they are kept.
        shields: Keep a change from being left half done.
        memory: Where they count.
        workers: Threads in which a new token's credentials are reckoned.
        flow: Turns on the event loop.
        wall_ms: Milliseconds since the epoch.
    """

    prefixes: tuple[str, ...] = (DELEGATION_TOKENS,)
    """What it follows in the log of changes."""

    def __init__(
        self,
        settings: TokenSettings,
        manager: Manager,
        lease: HeldLease,
        shields: Shields,
        memory: LimitedAccount,
        workers: Workers,
        flow: Flow,
        wall_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._manager = manager
        self._lease = lease
        self._shields = shields
        self._memory = memory
        self._workers = workers
        self._flow = flow
        self._wall_ms = wall_ms
        self._tokens: dict[str, KnownToken] = {}
        """By their ids."""
        self._ids: dict[bytes, str] = {}
        """By HMACs."""
        self._foreign: dict[str, KnownToken] = {}
        """Those that were made with another key: they do not count, and are removed when they have ended."""
        self._place: str | None = None
        """Up to where changes are known; None if nothing is."""
        self._changing = anyio.Lock()

    def __iter__(self) -> Iterator[KnownToken]:
        return iter(list(self._tokens.values()))

    def lookup(self, mechanism: str, token_id: str) -> ScramToken | None:
        """What a client is checked against that logs in with a token; None if there is none that counts."""
        found = self._tokens.get(token_id)
        if found is None or mechanism not in found.row.credentials or found.row.has_ended(self._wall_ms()):
            return None
        row = found.row
        if row.owner.type != USER:  # who logs in is a user: by the token of Group:x it would be User:x
            return None
        return ScramToken(row.credentials[mechanism], row.owner.name, min(row.expiry_ms, row.max_ms) / 1000)

    # What the store says

    async def read_all(self) -> None:
        """Have in force what the rows say now. Raises `HtpError` if the store fails."""
        async with self._changing:
            self._place = None
            await self._catch_up()

    async def apply(self, _changes: object) -> None:
        """Rows have changed, maybe by another gateway. Raises `HtpError` if the store fails."""
        await self.catch_up()

    async def catch_up(self) -> None:
        """Have in force what all gateways have changed up to now. Raises `HtpError` if the store fails."""
        async with self._changing:
            await self._catch_up()

    async def _catch_up(self) -> None:
        pace = Pace(self._flow)
        more = True
        while more:
            if self._place is None:
                self._place = await self._read_rows(pace)
            try:
                page = await self._manager.changes(self.prefixes, self._place)
            except TokenTooOldError:
                self._place = None
                continue
            for change in page.changes:
                self._take(parse_delegation_token_key(change.key), change.value, change.version)
                await pace.pause()
            self._place, more = page.token, page.more

    async def _read_rows(self, pace: Pace) -> str:
        """Take what all rows say; returns up to where changes are known."""
        place = (await self._manager.changes(self.prefixes)).token
        gone = self._tokens.keys() | self._foreign.keys()
        async for page in scan_pages(self._manager, DELEGATION_TOKENS):
            for key, row in page.items():
                token_id = parse_delegation_token_key(key)
                gone.discard(token_id)
                self._take(token_id, row.value, row.version)
                await pace.pause()
        for token_id in gone:
            self._put(token_id, None)
        return place

    def _take(self, token_id: str, row: bytes | None, version: int) -> None:
        found: DelegationTokenRow | None = None
        if row is not None:
            try:
                found = DelegationTokenRow.decode(row)
            except ValueError as error:
                logger.error("the delegation token %s does not count: %s", on_one_line(token_id), error)
        self._put(token_id, found, version)

    def _put(self, token_id: str, row: DelegationTokenRow | None, version: int = 0) -> None:
        foreign = self._foreign.pop(token_id, None)
        before = self._tokens.pop(token_id, foreign)
        if before is not None:
            self._ids.pop(before.hmac, None)
            self._memory.add(-_size(before.row))
        if row is None:
            return
        self._memory.add(_size(row))
        token = KnownToken(token_id, self._hmac_of(token_id), row, version)
        if _check_of(token.hmac) == row.check:
            self._tokens[token_id] = token
            self._ids[token.hmac] = token_id
            return
        self._foreign[token_id] = token
        if foreign is None:
            logger.warning(
                "the delegation token %s was made with another %s than this gateway has: it does not count here",
                on_one_line(token_id), KEY,
            )  # fmt: skip

    def _hmac_of(self, token_id: str) -> bytes:
        return hmac.digest(self._settings.key.reveal().encode(), token_id.encode(), "sha512")

    # What clients ask for

    async def create(
        self,
        owner: TokenPrincipal,
        requester: TokenPrincipal,
        renewers: Sequence[TokenPrincipal],
        max_lifetime_ms: int,
    ) -> KnownToken:
        """Make a token, durably.

        Args:
            owner: Who a client with it is.
            requester: Who asks for it.
            renewers: Who may renew and end it, too.
            max_lifetime_ms: How long it lives at most; 0 or less for as long as the settings allow.

        Raises:
            PolicyViolationError: There is no memory for another one.
            HtpError: The store failed; it may be there.
        """
        limits = self._settings
        token_id = _new_id()
        secret = self._hmac_of(token_id)
        credentials = await self._workers.run(partial(_credentials, secret)).wait()
        now = self._wall_ms()
        life = min(limits.max_lifetime_ms, max_lifetime_ms) if max_lifetime_ms > 0 else limits.max_lifetime_ms
        row = DelegationTokenRow(
            owner, requester, tuple(dict.fromkeys(renewers)),
            issued_ms=now, expiry_ms=min(now + min(life, limits.expiry_ms), GREATEST), max_ms=min(now + life, GREATEST),
            check=_check_of(secret), credentials=credentials,
        )  # fmt: skip
        async with self._changing:
            if not self._memory.has_room(_size(row)):
                raise PolicyViolationError(
                    "there is no memory for more delegation tokens: end some, or start the gateway with a higher "
                    "connections.max.memory.bytes"
                )
            key = delegation_token_key(token_id)
            with self._shields.shield():
                version = await self._manager.commit({key: row.encode()}, {key: 0}, lease=self._lease.current)
                self._put(token_id, row, version)
        logger.info("the delegation token %s was made for %s", token_id, on_one_line(str(owner)))
        return KnownToken(token_id, secret, row, version)

    async def renew(self, secret: bytes, period_ms: int, by: TokenPrincipal) -> int:
        """Put off the end of a token, durably; returns the new one, in milliseconds since the epoch.

        Args:
            secret: The token's HMAC.
            period_ms: How long it lives from now on; 0 or less for as long as the settings allow.
            by: Who asks for that.

        Raises:
            DelegationTokenNotFoundError: There is none.
            DelegationTokenExpiredError: It has ended.
            DelegationTokenOwnerMismatchError: It is not that one's to renew.
            HtpError: The store failed; it may have been renewed.
        """
        limit = self._settings.expiry_ms
        life = min(limit, period_ms) if period_ms > 0 else limit
        return await self._end_at(secret, lambda now: now + life, by)

    async def expire(self, secret: bytes, period_ms: int, by: TokenPrincipal) -> int:
        """Have a token end, durably; returns when, in milliseconds since the epoch.

        Args:
            secret: The token's HMAC.
            period_ms: In which time it ends, at its latest end at the latest; it is removed at once if below 0.
            by: Who asks for that.

        Raises:
            KafkaError: As `renew`.
        """
        if period_ms < 0:
            return await self._end_at(secret, None, by)
        return await self._end_at(secret, lambda now: now + period_ms, by)

    async def _end_at(self, secret: bytes, end: Callable[[int], int] | None, by: TokenPrincipal) -> int:
        """Change when a token ends; None removes it."""
        async with self._changing:
            for left in reversed(range(_TRIES)):
                await self._catch_up()
                now = self._wall_ms()
                found = self._renewable(secret, by, now)
                row = None if end is None else found.row._replace(expiry_ms=min(found.row.max_ms, end(now)))
                try:
                    await self._change(found, row)
                except ConflictError:  # another gateway was faster
                    if not left:
                        raise
                else:
                    logger.info("the delegation token %s %s", found.token_id, "ends" if row is None else "was changed")
                    return now if row is None else row.expiry_ms
        raise AssertionError("the last try returns or raises")

    async def _change(self, token: KnownToken, row: DelegationTokenRow | None) -> None:
        """Have a token say something else, durably; None removes it. Raises `HtpError` as the store does."""
        key = delegation_token_key(token.token_id)
        with self._shields.shield():
            version = await self._manager.commit(
                {key: None if row is None else row.encode()}, {key: token.version}, lease=self._lease.current
            )
            self._put(token.token_id, row, version)

    def _renewable(self, secret: bytes, by: TokenPrincipal, now: int) -> KnownToken:
        """The token of this HMAC, if it lives and is somebody's to renew."""
        token_id = self._ids.get(secret)
        if token_id is None:
            raise DelegationTokenNotFoundError("there is no delegation token of this HMAC")
        found = self._tokens[token_id]
        if found.row.has_ended(now):
            raise DelegationTokenExpiredError("the delegation token has ended")
        if by != found.row.owner and by not in found.row.renewers:
            raise DelegationTokenOwnerMismatchError("the delegation token is neither this principal's nor its to renew")
        return found

    # What goes by itself

    async def run(self) -> None:
        """Remove tokens that have ended, until the gateway closes."""
        failed = False
        while True:
            await anyio.sleep(self._settings.check_interval_ms / 1000)
            try:
                await self.remove_ended()
                failed = False
            except KafkaError as error:
                if not failed:
                    logger.warning("delegation tokens that have ended cannot be removed now: %s", error)
                failed = True

    async def remove_ended(self) -> int:
        """Remove the tokens that have ended; returns how many. Raises `HtpError` if the store fails."""
        pace, removed = Pace(self._flow), 0
        for each in (*self, *self._foreign.values()):
            await pace.pause()
            if not each.row.has_ended(self._wall_ms()):
                continue
            async with self._changing:
                token = self._tokens.get(each.token_id, self._foreign.get(each.token_id))
                if token is None or not token.row.has_ended(self._wall_ms()):
                    continue
                try:
                    await self._change(token, None)
                except ConflictError:  # another gateway has removed or renewed it
                    continue
            removed += 1
        if removed:
            logger.info("%d delegation tokens have ended", removed)
        return removed


def _new_id() -> str:
    """An id as Kafka makes them; tools take what begins with a hyphen for an option."""
    while True:
        found = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not found.startswith("-"):
            return found


def _credentials(secret: bytes) -> Mapping[str, ScramCredential]:
    """What a token is proved with, by each mechanism: its password is the HMAC in base64."""
    password = base64.b64encode(secret).decode()
    return {each: ScramCredential.derive(each, password, iterations=MIN_ITERATIONS) for each in SCRAM_MECHANISMS}


def _check_of(secret: bytes) -> str:
    """Tells whether an HMAC is the one that a row was made for; nobody finds the HMAC by it."""
    return hashlib.sha256(b"check of a delegation token:" + secret).hexdigest()


def _size(row: DelegationTokenRow) -> int:
    names: Iterable[TokenPrincipal] = (row.owner, row.requester, *row.renewers)
    return _TOKEN + sum(200 + 4 * (len(each.type) + len(each.name)) for each in names)
