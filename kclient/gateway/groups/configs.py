"""Settings of single groups, in place of the broker's: kept by the manager, the same at all gateways of a store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from kclient.errors import ConfigError, InvalidConfigurationError, PolicyViolationError
from kclient.gateway.config import SOURCE_DEFAULT, Origin
from kclient.gateway.rows.broker import decode_settings, encode_settings
from kclient.gateway.rows.keys import GROUP_SETTINGS as ROWS
from kclient.gateway.rows.keys import group_settings_key, parse_group_settings_key
from kclient.gateway.settings import GROUP_SETTINGS, GROUP_TYPES_WITH_SETTINGS, bounds_of
from kclient.gateway.settings_of_shares import LATEST, READ_COMMITTED, back_ms
from kclient.gateway.shares.settings import DeliverySettings
from kclient.htp.errors import ConflictError
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig
    from kclient.gateway.groups.events import GroupSettings
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.htp.port import Change, Manager, Versioned
    from kclient.memory_ledger import LimitedAccount

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

SOURCE_GROUP: Final = 8
"""What DescribeConfigs calls a setting of a group (`ConfigEntry.ConfigSource`)."""
_TRIES: Final = 10
"""So often a change is tried that other gateways change at the same time."""
_GROUP: Final = 1_000
"""About how many bytes of memory the settings of a group take, beside its name."""
_OF_COORDINATOR: Final = {
    f"{kind}.{name}": f"group_{kind}_{name.replace('.', '_')}"
    for kind in GROUP_TYPES_WITH_SETTINGS
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
} | {
    "streams.num.standby.replicas": "group_streams_num_standby_replicas",
    "streams.initial.rebalance.delay.ms": "group_streams_initial_rebalance_delay_ms",
}
"""The fields of `GroupSettings` of settings of a group."""


class GroupConfigs:
    """The settings that AlterConfigs has set for groups, whether they are there or not.

    Args:
        config: The settings of the broker.
        manager: Keeps what was set.
        lease: Under which it is kept.
        shields: Keep a change from being left half done.
        memory: Where they count.
    """

    prefixes: tuple[str, ...] = (ROWS,)
    """What it follows in the log of changes."""

    def __init__(
        self, config: BrokerConfig, manager: Manager, lease: HeldLease, shields: Shields, memory: LimitedAccount
    ) -> None:
        self._config = config
        self._manager = manager
        self._lease = lease
        self._shields = shields
        self._memory = memory
        self._set: dict[str, dict[str, str]] = {}
        self._changing = anyio.Lock()
        self._when_changed: list[Callable[[str], object]] = []

    def on_change(self, callback: Callable[[str], object]) -> None:
        """Have `callback(group_id)` called whenever settings of a group have changed."""
        self._when_changed.append(callback)

    def of(self, group_id: str) -> Mapping[str, str]:
        """What was set for a group."""
        return self._set.get(group_id, {})

    def names(self) -> list[str]:
        """The groups for which something was set."""
        return list(self._set)

    def apply_to(self, group_id: str, settings: GroupSettings) -> GroupSettings:
        """The settings of the broker for groups, with those of a group in place of them."""
        found = self._set.get(group_id)
        if not found:
            return settings
        values: dict[str, Any] = {field: int(found[name]) for name, field in _OF_COORDINATOR.items() if name in found}
        return replace(settings, **values)

    def delivery(self, group_id: str) -> DeliverySettings:
        """How records are delivered to a share group: its settings, and else those of the broker."""
        found = self.of(group_id)

        def number(name: str) -> int:
            text = found.get(name)
            return self._config.get_int(f"group.{name}") if text is None else int(text)

        reset = found.get("share.auto.offset.reset", LATEST)
        return DeliverySettings(
            lock_ms=number("share.record.lock.duration.ms"),
            deliveries=number("share.delivery.count.limit"),
            locks=number("share.partition.max.record.locks"),
            reset=reset,
            reset_ms=back_ms(reset),
            renewing=found.get("share.renew.acknowledge.enable", "true").lower() == "true",
            committed=found.get("share.isolation.level") == READ_COMMITTED,
        )

    def origins(self, group_id: str, name: str) -> Iterator[Origin]:
        """Where the value of a setting of a group comes from, the one in force first."""
        text = self.of(group_id).get(name)
        if text is not None:
            yield Origin(name, text, SOURCE_GROUP)
        setting = GROUP_SETTINGS[name]
        for synonym, _ in setting.synonyms:
            yield from self._config.origins(synonym)
        if setting.default is not None:
            yield Origin(name, setting.default, SOURCE_DEFAULT)

    # The store

    async def read_all(self) -> None:
        """Have in force what the rows say now. Raises `HtpError` if the store fails."""
        async with self._changing:
            there: dict[str, Versioned] = {}
            async for page in scan_pages(self._manager, ROWS):
                there |= page
            for key in {group_settings_key(group_id) for group_id in self._set} - there.keys():
                self._take(key, None)
            for key, row in there.items():
                self._take(key, row)

    async def apply(self, changes: Sequence[Change]) -> None:
        """Rows have changed, maybe by another gateway. Raises `HtpError` if the store fails."""
        keys = list(dict.fromkeys(change.key for change in changes))
        async with self._changing:
            found = await self._manager.get(keys)
            for key in keys:
                self._take(key, found.get(key))

    def _take(self, key: str, row: Versioned | None) -> None:
        group_id = parse_group_settings_key(key)
        try:
            values = {} if row is None else decode_settings(row.value)
        except ValueError as error:
            logger.error(
                "the settings of group %s cannot be read, those of the broker hold: set them again (%s)",
                group_id[:300], error,
            )  # fmt: skip
            values = {}
        known: dict[str, str] = {}
        for name, text in values.items():
            try:
                self._check({**known, name: text}, bounds=False)
            except InvalidConfigurationError as error:
                logger.warning("a setting of group %s that was made earlier is ignored: %s", group_id[:300], error)
            else:
                known[name] = text
        self._put(group_id, known)

    def _put(self, group_id: str, values: dict[str, str]) -> None:
        before = self._set.pop(group_id, {})
        if values:
            self._set[group_id] = values
        self._memory.add((bool(values) - bool(before)) * (_GROUP + 2 * len(group_id)))
        if values != before:
            for callback in self._when_changed:
                callback(group_id)

    async def alter(
        self,
        group_id: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change the settings of a group, durably, and put them in force.

        Args:
            group_id: The group, which need not be there.
            change: Makes the new settings of the present ones; its errors are raised.
            validate_only: Nothing is changed.

        Raises:
            InvalidConfigurationError: A setting is none, or they do not go together.
            PolicyViolationError: There is no memory for settings of more groups.
            HtpError: The store failed.
        """
        key = group_settings_key(group_id)
        async with self._changing:
            for left in reversed(range(_TRIES)):
                found = (await self._manager.get([key])).get(key)
                self._take(key, found)
                values = dict(change(self.of(group_id)))
                self._check(values)
                if not self._memory.has_room(_GROUP + 2 * len(group_id)) and group_id not in self._set:
                    raise PolicyViolationError(
                        "there is no memory for settings of more groups: delete those of some, or start the gateway "
                        "with a higher connections.max.memory.bytes"
                    )
                if validate_only or values == self.of(group_id):
                    return
                row = encode_settings(values) if values else None
                try:
                    with self._shields.shield():
                        expected = {key: 0 if found is None else found.version}
                        await self._manager.commit({key: row}, expected, lease=self._lease.current)
                        self._put(group_id, values)
                    break
                except ConflictError:
                    if not left:
                        raise
        told = ", ".join(f"{name}={text}" for name, text in values.items())
        logger.info("settings of group %s changed: %s", group_id[:300], told or "those of the broker hold")

    def _check(self, values: Mapping[str, str], *, bounds: bool = True) -> None:
        """Whether settings of a group are such, lie in the broker's bounds and go together."""
        numbers: dict[str, int] = {}
        for name, text in values.items():
            setting = GROUP_SETTINGS.get(name)
            if setting is None:
                raise InvalidConfigurationError(f"Unknown group config name: {name}")
            try:
                setting.parse(text)
            except ConfigError as error:
                raise InvalidConfigurationError(str(error)) from error
            if not setting.synonyms:
                continue
            numbers[name] = int(text)
            if not bounds:
                continue
            low, high = bounds_of(f"group.{name}")
            if low is not None and numbers[name] < self._config.get_int(low):
                raise InvalidConfigurationError(f"{name}={text} is less than {low}={self._config.get_int(low)}")
            if high is not None and numbers[name] > self._config.get_int(high):
                raise InvalidConfigurationError(f"{name}={text} is more than {high}={self._config.get_int(high)}")
        for kind in GROUP_TYPES_WITH_SETTINGS if bounds else ():
            longest, often = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if longest not in numbers and often not in numbers:
                continue
            session = numbers.get(longest, self._config.get_int(f"group.{longest}"))
            heartbeat = numbers.get(often, self._config.get_int(f"group.{often}"))
            if session <= heartbeat:
                raise InvalidConfigurationError(f"{longest}={session} has to be more than {often}={heartbeat}")
