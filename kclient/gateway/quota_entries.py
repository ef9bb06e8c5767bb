"""The quotas that were set: kept by the manager, the same at all gateways of a store (KIP-546)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from kclient.concurrency import side_by_side
from kclient.errors import KafkaError, PolicyViolationError
from kclient.gateway.quotas.addresses import addresses_of, is_address
from kclient.gateway.quotas.entities import IP, Entity, QuotaKind, Quotas, check_value
from kclient.gateway.rows.keys import QUOTAS
from kclient.gateway.rows.quotas import decode_quotas, encode_quotas, parse_quota_key, quota_key
from kclient.htp.errors import ConflictError
from kclient.htp.rows import scan_pages
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.quotas.addresses import AddressLimits
    from kclient.gateway.quotas.clients import ClientQuotas
    from kclient.gateway.shields import Shields
    from kclient.htp.port import Change, Manager, Versioned
    from kclient.memory_ledger import LimitedAccount
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.quotas")

_TRIES: Final = 10
"""So often a change is tried that other gateways change at the same time."""
_ENTITY: Final = 1_500
"""About how many bytes of memory an entity takes, beside its names."""

_LOOK_UPS: Final = 32
"""Hosts that are looked up at a time."""

Alteration: TypeAlias = Mapping[str, float | None]
"""Values by the names of quotas; None removes one."""


class QuotaEntries:
    """The quotas of all entities.

    Args:
        clients: Has those of users and client ids in force.
        addresses: And those of addresses.
        manager: Keeps them.
        lease: Under which they are kept.
        shields: Keep a change from being left half done.
        memory: Where they count.
        flow: In whose turns long work is done.
    """

    prefixes: tuple[str, ...] = (QUOTAS,)
    """What it follows in the log of changes."""

    def __init__(
        self,
        clients: ClientQuotas,
        addresses: AddressLimits,
        manager: Manager,
        lease: HeldLease,
        shields: Shields,
        memory: LimitedAccount,
        flow: Flow,
    ) -> None:
        self._clients = clients
        self._addresses = addresses
        self._manager = manager
        self._lease = lease
        self._shields = shields
        self._memory = memory
        self._flow = flow
        self._quotas: dict[Entity, Quotas] = {}
        self._changing = anyio.Lock()

    @property
    def quotas(self) -> Mapping[Entity, Quotas]:
        """All there are, by entity."""
        return self._quotas

    async def read_all(self) -> None:
        """Have in force what the rows say now. Raises `HtpError` if the store fails."""
        pace = Pace(self._flow)
        async with self._changing:
            before, there = list(self._quotas), set[str]()
            async for page in scan_pages(self._manager, QUOTAS):
                there |= page.keys()
                for key, row in page.items():
                    await pace.pause()
                    self._take(key, row)
            for entity in before:
                await pace.pause()
                if quota_key(entity) not in there:
                    self._put(entity, None)

    async def apply(self, changes: Sequence[Change]) -> None:
        """Rows have changed, maybe by another gateway. Raises `HtpError` if the store fails."""
        keys = list(dict.fromkeys(change.key for change in changes))
        async with self._changing:
            await self._look(keys, Pace(self._flow))

    async def _look(self, keys: Sequence[str], pace: Pace) -> dict[str, int]:
        """Have in force what some rows say; returns their versions, 0 where there is none."""
        found = await self._manager.get(keys)
        for key in keys:
            await pace.pause()
            self._take(key, found.get(key))
        return {key: found[key].version if key in found else 0 for key in keys}

    def _take(self, key: str, row: Versioned | None) -> None:
        try:
            entity = parse_quota_key(key)
            quotas = None if row is None else decode_quotas(key, row.value)
        except ValueError as error:
            logger.error("quotas that cannot be read hold for nobody; set them again: %s", error)
            try:
                entity, quotas = parse_quota_key(key), None
            except ValueError:
                return
        self._put(entity, quotas)

    def _put(self, entity: Entity, quotas: Quotas | None) -> None:
        before = self._quotas.pop(entity, None)
        if quotas:
            self._quotas[entity] = quotas
        if before == quotas:
            return
        self._memory.add((bool(quotas) - (before is not None)) * _size(entity))
        kind, name = entity[0]
        if kind == IP:
            self._addresses.put(name, None if quotas is None else quotas.get(QuotaKind.CONNECTION.value))
        else:
            self._clients.put(entity, quotas)

    async def alter(
        self, changes: Mapping[Entity, Alteration], *, validate_only: bool = False
    ) -> dict[Entity, KafkaError]:
        """Change quotas, durably, all that can be at once, and have them in force.

        Args:
            changes: By entity.
            validate_only: Nothing is changed.

        Returns:
            Why entities are left as they are: `InvalidRequestError` where there is no such quota, or not of this size,
            or no such host; `PolicyViolationError` where there is no memory for another entity.

        Raises:
            HtpError: The store failed; what it has of it is in force once it is read.
        """
        refused: dict[Entity, KafkaError] = {}
        pace = Pace(self._flow)
        for entity, change in changes.items():
            await pace.pause()
            try:
                for name, value in change.items():
                    if value is not None:
                        check_value(entity, name, value)
            except KafkaError as error:
                refused[entity] = error
        refused |= await _unknown_hosts(
            (
                entity
                for entity, change in changes.items()
                if entity not in refused and any(value is not None for value in change.values())
            ),
            pace,
        )
        wanted = {entity: change for entity, change in changes.items() if entity not in refused}
        async with self._changing:
            for left in reversed(range(_TRIES)):
                versions = await self._look(await _keys(wanted, pace), pace)
                after, full = await self._altered(wanted, pace)
                if validate_only or not after:
                    return refused | full
                rows: dict[str, bytes | None] = {}
                for entity, found in after.items():
                    await pace.pause()
                    rows[quota_key(entity)] = encode_quotas(found) if found else None
                try:
                    with self._shields.shield():
                        await self._manager.commit(
                            rows, {key: versions[key] for key in rows}, lease=self._lease.current
                        )
                        for entity, found in after.items():
                            await pace.pause()
                            self._put(entity, found or None)
                except ConflictError:
                    if not left:
                        raise
                else:
                    logger.info("quotas of %d entities changed", len(after))
                    return refused | full
        raise AssertionError("the last try returns or raises")

    async def _altered(
        self, changes: Mapping[Entity, Alteration], pace: Pace
    ) -> tuple[dict[Entity, Quotas], dict[Entity, KafkaError]]:
        """The quotas of those entities that they change, and why others are left as they are."""
        after: dict[Entity, Quotas] = {}
        refused: dict[Entity, KafkaError] = {}
        more = 0
        for entity, change in changes.items():
            await pace.pause()
            before = self._quotas.get(entity, {})
            quotas = {name: value for name, value in {**before, **change}.items() if value is not None}
            if quotas == before:
                continue
            if not before:
                more += _size(entity)
                if not self._memory.has_room(more):
                    refused[entity] = PolicyViolationError(
                        "there is no memory for the quotas of more entities: remove some, or start the gateway with a "
                        "higher connections.max.memory.bytes"
                    )
                    more -= _size(entity)
                    continue
            after[entity] = quotas
        return after, refused


async def _keys(entities: Iterable[Entity], pace: Pace) -> list[str]:
    """The keys of their rows: names may be long, and are encoded character by character."""
    found = []
    for entity in entities:
        await pace.pause()
        found.append(quota_key(entity))
    return found


async def _unknown_hosts(entities: Iterable[Entity], pace: Pace) -> dict[Entity, KafkaError]:
    """Those entities that are no addresses, nor hosts that are found in ten seconds, and why."""
    found: dict[Entity, KafkaError] = {}
    names = {name: entity for entity in entities for kind, name in entity if kind == IP and name is not None}

    async def look_up(name: str) -> None:
        try:
            await addresses_of(name)
        except KafkaError as error:
            found[names[name]] = error

    async with side_by_side(_LOOK_UPS) as begin:
        for name in names:
            await pace.pause()
            if not is_address(name):
                await begin(look_up, name)
    return found


def _size(entity: Entity) -> int:
    return _ENTITY + sum(4 * len(name or "") for _, name in entity)
