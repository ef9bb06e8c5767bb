"""The access control lists: kept by the manager, the same at all gateways of a store (KIP-140, KIP-290)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from kclient.acls import AclPermissionType
from kclient.errors import KafkaError, PolicyViolationError
from kclient.gateway.acl_entries import AclEntry
from kclient.gateway.rows.acls import acl_key, decode_acl, encode_acl
from kclient.gateway.rows.keys import ACLS
from kclient.htp.errors import ConflictError, TokenTooOldError
from kclient.htp.rows import scan_pages
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.acl_entries import AclFilter
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.security.acl_authorizer import AclAuthorizer
    from kclient.gateway.shields import Shields
    from kclient.htp.port import Manager
    from kclient.memory_ledger import LimitedAccount
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.acls")

_TRIES: Final = 10
"""So often a change is tried that other gateways change at the same time."""
MOST: Final = 10_000
"""Entries that one request may add, or remove, as in Kafka."""
_BATCH: Final = 200
"""Entries of one commit that adds some."""
_PAGE: Final = 1_000
"""Rows that are looked at at once."""
_ENTRY: Final = 1_200
"""About how many bytes of memory an entry takes, beside its texts."""

_Said: TypeAlias = AclEntry | ValueError | None
"""What a row says, or why that cannot be read; None where there is none any more."""


class Acls:
    """The entries by which an authorizer decides.

    Args:
        authorizer: Decides by them.
        manager: Keeps them.
        lease: Under which they are kept.
        shields: Keep a change from being left half done.
        memory: Where they count.
        flow: In whose turns long work is done.
    """

    prefixes: tuple[str, ...] = (ACLS,)
    """What it follows in the log of changes."""

    def __init__(
        self,
        authorizer: AclAuthorizer,
        manager: Manager,
        lease: HeldLease,
        shields: Shields,
        memory: LimitedAccount,
        flow: Flow,
    ) -> None:
        self._authorizer = authorizer
        self._manager = manager
        self._lease = lease
        self._shields = shields
        self._memory = memory
        self._flow = flow
        self._entries: dict[str, AclEntry] = {}
        """By the keys of their rows."""
        self._unreadable: set[str] = set()
        """The keys of rows that say nothing sensible."""
        self._token: str | None = None
        """Up to where changes are known; None if nothing is."""
        self._changing = anyio.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    # What the store says

    async def load(self) -> None:
        """Have in force what the rows say when the gateway starts. Raises `HtpError` if the store fails."""
        await self.read_all()
        if self._authorizer.is_locked():
            logger.warning(
                "nobody may change the access control lists: super.users names nobody, and no entry allows anybody to "
                "ALTER the cluster; to have somebody who may, start the gateway with super.users=User:NAME"
            )

    async def read_all(self) -> None:
        """Have in force what the rows say now. Raises `HtpError` if the store fails."""
        async with self._changing:
            self._token = None
            await self._catch_up()

    async def apply(self, _changes: object) -> None:
        """Rows have changed, maybe by another gateway. Raises `HtpError` if the store fails."""
        async with self._changing:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Have in force what all gateways have changed up to now.

        All of it is read before: a page may have what one commit has allowed, and the next what it has denied.
        """
        pace = Pace(self._flow)
        said: dict[str, _Said] = {}
        token, more = self._token, True
        while more:
            if token is None:
                token = await self._read_rows(said, pace)
            try:
                page = await self._manager.changes(self.prefixes, token)
            except TokenTooOldError:
                token = None
                continue
            await self._read({change.key: change.value for change in page.changes}, said, pace)
            token, more = page.token, page.more
        await self._take(said, pace)
        self._token = token

    async def _read_rows(self, said: dict[str, _Said], pace: Pace) -> str:
        """Note what all rows say; returns up to where changes are known."""
        token = (await self._manager.changes(self.prefixes)).token
        said.clear()
        said.update(dict.fromkeys((*self._entries, *self._unreadable)))
        async for page in scan_pages(self._manager, ACLS):
            await self._read({key: row.value for key, row in page.items()}, said, pace)
        return token

    async def _read(self, rows: Mapping[str, bytes | None], said: dict[str, _Said], pace: Pace) -> None:
        """Note what rows say; None is one that is no more."""
        for key, row in rows.items():
            await pace.pause()
            try:
                said[key] = None if row is None else decode_acl(key, row)
            except ValueError as error:
                said[key] = error
            else:
                if row is not None and key in self._entries:
                    said[key] = self._entries[key]  # which is equal

    async def _take(self, said: Mapping[str, _Said], pace: Pace) -> None:
        """Have in force what rows say.

        While that goes on too little is allowed, never too much: what denies comes first, and goes last.
        """
        added: dict[str, AclEntry] = {}
        removed: dict[str, AclEntry] = {}
        unreadable = self._unreadable - said.keys()
        for key, entry in said.items():
            await pace.pause()
            if isinstance(entry, ValueError):
                unreadable.add(key)
                logger.error("an entry of the access control lists cannot be read: %s", entry)
            if isinstance(entry, AclEntry):
                if key not in self._entries:
                    added[key] = entry
            elif key in self._entries:
                removed[key] = self._entries[key]
        self._authorizer.unreadable = bool(unreadable or self._unreadable)
        if unreadable and not self._unreadable:
            logger.error(
                "nobody but superusers may do anything, since an entry that cannot be read may deny it: remove all "
                "entries (kclient acls remove --all), and add them again"
            )
        await self._put(added, removed, pace)
        if self._unreadable and not unreadable:
            logger.info("all entries of the access control lists can be read again")
        self._unreadable, self._authorizer.unreadable = unreadable, bool(unreadable)

    async def _put(self, added: Mapping[str, AclEntry], removed: Mapping[str, AclEntry], pace: Pace) -> None:
        for permission, entries, adding in (
            (AclPermissionType.DENY, added, True),
            (AclPermissionType.ALLOW, removed, False),
            (AclPermissionType.ALLOW, added, True),
            (AclPermissionType.DENY, removed, False),
        ):
            for count, (key, entry) in enumerate(entries.items(), 1):
                if entry.permission is permission:
                    self._put_one(key, entry, adding=adding)
                if count % 16 == 0 and pace.over:
                    self._authorizer.changed()
                    await pace.pause()
        self._authorizer.changed()

    def _put_one(self, key: str, entry: AclEntry, *, adding: bool) -> None:
        if adding:
            self._entries[key] = entry
            changed = self._authorizer.index.add(entry)
        else:
            self._entries.pop(key, None)
            changed = self._authorizer.index.remove(entry)
        if changed:
            self._memory.add(_size(entry) if adding else -_size(entry))

    # What clients ask for

    async def find(self, wanted: AclFilter) -> list[AclEntry]:
        """The entries that a filter finds, as all gateways have changed them up to now.

        Raises:
            HtpError: The store failed.
        """
        async with self._changing:
            await self._catch_up()
            return await self._find(wanted, Pace(self._flow))

    async def _find(self, wanted: AclFilter, pace: Pace) -> list[AclEntry]:
        found: list[AclEntry] = []
        for part in self._authorizer.index.find(wanted):
            found += part
            await pace.pause()
        return found

    async def _find_all(self, filters: Sequence[AclFilter], pace: Pace) -> list[list[AclEntry]]:
        """What each filter finds. Raises `PolicyViolationError` where that is more than one request may remove."""
        by_filter: dict[AclFilter, list[AclEntry]] = {}
        count = 0
        for each in filters:
            if each not in by_filter:
                by_filter[each] = await self._find(each, pace)
            count += len(by_filter[each])
            if count > MOST:
                raise PolicyViolationError(
                    f"these filters find more than the {MOST} entries that one request may remove: name fewer"
                )
        return [by_filter[each] for each in filters]

    async def create(self, entries: Iterable[AclEntry]) -> dict[AclEntry, KafkaError]:
        """Add entries, durably, and have them in force; those that are there stay.

        Returns:
            Why entries were not added: `PolicyViolationError` where there is no memory for more, or what the store
            said.

        Raises:
            HtpError: The store failed before any was added.
        """
        refused: dict[AclEntry, KafkaError] = {}
        number = 0
        async with self._changing:
            await self._catch_up()
            wanted = iter(dict.fromkeys(entries))
            while batch := list(islice(wanted, _BATCH)):
                try:
                    number += await self._create(batch, refused)
                except KafkaError as error:
                    refused.update(dict.fromkeys([*batch, *wanted], error))
        if number:
            logger.info("%d entries of the access control lists were added", number)
        return refused

    async def _create(self, entries: Sequence[AclEntry], refused: dict[AclEntry, KafkaError]) -> int:
        """Add some; returns how many there were not."""
        pace = Pace(self._flow)
        for left in reversed(range(_TRIES)):
            added: dict[str, AclEntry] = {}
            size = 0
            for entry in entries:
                key = acl_key(entry)
                if key in self._entries:
                    continue
                if not self._memory.has_room(size + _size(entry)):
                    refused[entry] = PolicyViolationError(
                        "there is no memory for more entries of access control lists: remove some, or start the "
                        "gateway with a higher connections.max.memory.bytes"
                    )
                    continue
                added[key] = entry
                size += _size(entry)
            if not added:
                return 0
            await pace.pause()
            rows = {key: encode_acl(entry) for key, entry in added.items()}
            await pace.pause()
            # a row that cannot be read is replaced
            expected = dict.fromkeys(rows.keys() - self._unreadable, 0)
            try:
                with self._shields.shield():
                    await self._manager.commit(rows, expected, lease=self._lease.current)
                    await self._take(added, pace)
                return len(added)
            except ConflictError:
                if not left:
                    raise
                await self._catch_up()
        raise AssertionError("the last try returns or raises")

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[AclEntry]]:
        """Remove what filters find, durably, all or nothing.

        Returns:
            What each filter found; an entry that several have found is told with each.

        Raises:
            PolicyViolationError: These are more than one request may remove.
            HtpError: The store failed; what it has of it is in force once it is read.
        """
        pace = Pace(self._flow)
        async with self._changing:
            for left in reversed(range(_TRIES)):
                await self._catch_up()
                found = await self._find_all(filters, pace)
                removed: dict[str, AclEntry] = {}
                for entry in (entry for entries in found for entry in entries):
                    removed[acl_key(entry)] = entry
                    await pace.pause()
                keys = [*removed]
                if any(each.is_everything for each in filters):
                    keys += self._unreadable
                if not keys:
                    return found
                versions: dict[str, int] = {}
                for start in range(0, len(keys), _PAGE):
                    rows = await self._manager.get(keys[start : start + _PAGE])
                    versions |= {key: row.version for key, row in rows.items()}
                    await pace.pause()
                if removed.keys() - versions.keys() and left:
                    continue  # another gateway was faster
                expected = dict.fromkeys(keys, 0) | versions
                try:
                    with self._shields.shield():
                        await self._manager.commit(dict.fromkeys(keys), expected, lease=self._lease.current)
                        await self._take(dict.fromkeys(keys), pace)
                except ConflictError:
                    if not left:
                        raise
                else:
                    logger.info("%d entries of the access control lists were removed", len(keys))
                    return found
        raise AssertionError("the last try returns or raises")


def _size(entry: AclEntry) -> int:
    return _ENTRY + 4 * (len(entry.name) + len(entry.principal) + len(entry.host))
