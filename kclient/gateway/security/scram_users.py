"""The SCRAM credentials of users: kept by the manager, the same at all gateways of a store (KIP-554)."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.errors import KafkaError, PolicyViolationError, ResourceNotFoundError
from kclient.gateway.rows.keys import SCRAM, SCRAM_DECOYS, parse_scram_key, scram_key
from kclient.gateway.rows.scram_credentials import ScramDecoyRow, ScramRow
from kclient.htp.errors import ConflictError
from kclient.htp.rows import scan_pages
from kclient.net.sasl.scram import ScramCredential, ScramDecoys

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.htp.port import Change, Manager, Versioned
    from kclient.memory_ledger import LimitedAccount

logger: logging.Logger = logging.getLogger("kclient.gateway.users")

_TRIES: Final = 10
"""So often a change is tried that other gateways change at the same time."""
_KEY_BYTES: Final = 32
_USER: Final = 1_500
"""About how many bytes of memory a user takes, beside the name."""


class ScramChange(NamedTuple):
    """One credential that is to be there, or to go."""

    user: str
    mechanism: str
    credential: ScramCredential | None
    """None removes it."""


class ScramUsers:
    """The users, and what proves their passwords.

    Args:
        manager: Keeps them.
        lease: Under which they are kept.
        shields: Keep a change from being left half done.
        memory: Where they count.
    """

    prefixes: tuple[str, ...] = (SCRAM,)
    """What it follows in the log of changes."""

    def __init__(self, manager: Manager, lease: HeldLease, shields: Shields, memory: LimitedAccount) -> None:
        self._manager = manager
        self._lease = lease
        self._shields = shields
        self._memory = memory
        self._users: dict[str, Mapping[str, ScramCredential]] = {}
        self._changing = anyio.Lock()

    @property
    def users(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """The credentials by user, and of each by mechanism."""
        return self._users

    def lookup(self, mechanism: str) -> Callable[[str], ScramCredential | None]:
        """Finds what is kept of a user for one mechanism; None for users that do not have it."""

        def find(user: str) -> ScramCredential | None:
            return self._users.get(user, {}).get(mechanism)

        return find

    async def read_all(self) -> None:
        """Have in force what the rows say now. Raises `HtpError` if the store fails."""
        async with self._changing:
            there: dict[str, Versioned] = {}
            async for page in scan_pages(self._manager, SCRAM):
                there |= page
            for key in {scram_key(user) for user in self._users} - there.keys():
                self._take(key, None)
            for key, row in there.items():
                self._take(key, row)

    async def decoys(self) -> ScramDecoys:
        """What users who do not exist are shown when they log in: the same at all gateways, and after restarts.

        Raises:
            HtpError: The store failed.
        """
        for left in reversed(range(_TRIES)):
            row = (await self._manager.get([SCRAM_DECOYS])).get(SCRAM_DECOYS)
            try:
                if row is not None:
                    return ScramDecoys(key=ScramDecoyRow.decode(row.value).key)
            except ValueError as error:
                logger.error("%s: it is made anew", error)
            made = ScramDecoyRow(secrets.token_bytes(_KEY_BYTES))
            expected = {SCRAM_DECOYS: 0 if row is None else row.version}
            try:
                await self._manager.commit({SCRAM_DECOYS: made.encode()}, expected, lease=self._lease.current)
            except ConflictError:  # another gateway was faster
                if not left:
                    raise
            else:
                return ScramDecoys(key=made.key)
        raise AssertionError("the last try returns or raises")

    async def apply(self, changes: Sequence[Change]) -> None:
        """Rows have changed, maybe by another gateway. Raises `HtpError` if the store fails."""
        keys = list(dict.fromkeys(change.key for change in changes))
        async with self._changing:
            await self._look(keys)

    async def _look(self, keys: Sequence[str]) -> dict[str, int]:
        """Have in force what some rows say; returns their versions, 0 where there is none."""
        found = await self._manager.get(keys)
        for key in keys:
            self._take(key, found.get(key))
        return {key: found[key].version if key in found else 0 for key in keys}

    def _take(self, key: str, row: Versioned | None) -> None:
        user = parse_scram_key(key)
        credentials: Mapping[str, ScramCredential] = {}
        if row is not None:
            try:
                credentials = ScramRow.decode(row.value).credentials
            except ValueError as error:
                logger.error("the user %r cannot log in: %s", user[:300], error)
        self._put(user, credentials)

    def _put(self, user: str, credentials: Mapping[str, ScramCredential]) -> None:
        before = self._users.pop(user, None)
        if credentials:
            self._users[user] = credentials
        self._memory.add((bool(credentials) - (before is not None)) * _size(user))

    async def alter(self, changes: Sequence[ScramChange]) -> dict[str, KafkaError]:
        """Change credentials, durably, all that can be at once, and have them in force.

        Args:
            changes: Of each user one at most.

        Returns:
            Why users are left as they are: `ResourceNotFoundError` where a credential is to go that is not there,
            `PolicyViolationError` where there is no memory for another user.

        Raises:
            HtpError: The store failed; what it has of it is in force once it is read.
        """
        async with self._changing:
            for left in reversed(range(_TRIES)):
                versions = await self._look([scram_key(change.user) for change in changes])
                refused: dict[str, KafkaError] = {}
                after: dict[str, Mapping[str, ScramCredential]] = {}
                for change in changes:
                    error = self._refusal(change)
                    if error is None:
                        after[change.user] = _changed(self._users.get(change.user, {}), change)
                    else:
                        refused[change.user] = error
                if not after:
                    return refused
                rows = {scram_key(user): ScramRow(found).encode() if found else None for user, found in after.items()}
                expected = {key: versions[key] for key in rows}
                try:
                    with self._shields.shield():
                        await self._manager.commit(rows, expected, lease=self._lease.current)
                        for user, found in after.items():
                            self._put(user, found)
                except ConflictError:
                    if not left:
                        raise
                else:
                    logger.info("credentials of %d users changed", len(after))
                    return refused
        raise AssertionError("the last try returns or raises")

    def _refusal(self, change: ScramChange) -> KafkaError | None:
        if change.credential is None and change.mechanism not in self._users.get(change.user, {}):
            return ResourceNotFoundError("Attempt to delete a user credential that does not exist")
        if change.user not in self._users and not self._memory.has_room(_size(change.user)):
            return PolicyViolationError(
                "there is no memory for more users: delete some, or start the gateway with a higher "
                "connections.max.memory.bytes"
            )
        return None


def _changed(present: Mapping[str, ScramCredential], change: ScramChange) -> dict[str, ScramCredential]:
    after = dict(present)
    if change.credential is None:
        del after[change.mechanism]
    else:
        after[change.mechanism] = change.credential
    return after


def _size(user: str) -> int:
    return _USER + 2 * len(user)
