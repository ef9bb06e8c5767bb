"""Broker settings changed while the gateway runs: kept by the manager, in force again after a restart."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from kclient.errors import ConfigError, InvalidConfigurationError, InvalidRequestError, KafkaError
from kclient.gateway.config import BrokerConfig
from kclient.gateway.connection_quota import SETTINGS, LimitSettings, connection_quota
from kclient.gateway.reloading import Reloaded
from kclient.gateway.rows.broker import decode_settings, encode_settings
from kclient.gateway.rows.keys import SETTINGS as SETTINGS_KEY
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_logins import BROKER_SETTINGS_OF_OAUTH, BROKER_SETTINGS_OF_TOKENS
from kclient.gateway.settings_of_quotas import MUTATION_WINDOW, QUOTA_WINDOW
from kclient.gateway.settings_of_tls import BROKER_SETTINGS_OF_TLS
from kclient.htp.errors import ConflictError
from kclient.net.thread_switches import call_giving_way

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.htp.port import Change, Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

READ_ONLY: Final = frozenset(
    {
        "advertised.listeners", "allow.everyone.if.no.acl.found", "authorizer.class.name", "broker.id", "broker.rack",
        "connection.failed.authentication.delay.ms",
        "connections.max.idle.ms", "connections.max.memory.bytes", "connections.max.reauth.ms",
        "controller.listener.names",
        "listener.security.protocol.map", "listeners", "log.cleaner.enable", "log.dir.min.free.bytes", "log.dirs",
        "max.incremental.fetch.session.cache.slots", "node.id", "offsets.topic.num.partitions",
        "producer.id.cache.size", "queued.max.request.bytes", "queued.max.requests", "sasl.enabled.mechanisms",
        "sasl.server.max.receive.size", "socket.request.max.bytes", "super.users", "telemetry.max.bytes",
        "transaction.state.log.num.partitions",
        *QUOTA_WINDOW, *MUTATION_WINDOW,
        *(
            setting.name
            for setting in (*BROKER_SETTINGS_OF_OAUTH, *BROKER_SETTINGS_OF_TLS, *BROKER_SETTINGS_OF_TOKENS)
        ),
    }
)  # fmt: skip
"""Settings that only a restart changes."""


_TRIES: Final = 10
"""So often a change is tried that other gateways change at the same time."""


class DynamicConfig:
    """The broker settings that AlterConfigs has set.

    Args:
        config: The settings in force.
        manager: Keeps what was set.
        lease: Under which it is kept.
        shields: Keep a change from being left half done.
    """

    def __init__(self, config: BrokerConfig, manager: Manager, lease: HeldLease, shields: Shields) -> None:
        self._config = config
        self._manager = manager
        self._lease = lease
        self._shields = shields
        self._changing = anyio.Lock()
        self._when_changed: list[Callable[[], object]] = []
        self._taking_over: list[Callable[[], Awaitable[object]]] = []
        self._ignored: dict[str, str] = {}
        """What is kept and not in force: another version knows it, or it does not go together with what was given."""
        self._half_told = False
        """Whether not all have taken over what has changed, as when the store failed: the next time they do."""
        self.unreadable: bool = False
        """Whether settings were made that cannot be read: until new ones are, nothing may rely on them."""

        self._version = 0
        """Of the row that is in force; 0 if there is none."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What it follows in the log of changes."""
        return (SETTINGS_KEY,)

    def on_change(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called whenever settings have changed."""
        self._when_changed.append(callback)

    def hold_for(self, take_over: Callable[[], Awaitable[object]]) -> None:
        """Have `await take_over()` done whenever settings have changed; until it returns they stay as they are."""
        self._taking_over.append(take_over)

    async def load(self) -> None:
        """Put the settings of earlier AlterConfigs requests in force."""
        found = (await self._manager.get([SETTINGS_KEY])).get(SETTINGS_KEY)
        if found is not None:
            self._read(found)

    def _read(self, found: Versioned | None) -> None:
        """Take a row over, or that there is none any more."""
        self._version = 0 if found is None else found.version
        try:
            values = {} if found is None else decode_settings(found.value)
        except ValueError as error:
            self.unreadable = True
            logger.error(
                "the broker settings that were changed while a gateway ran cannot be read, the others are in force "
                "alone, and retention does nothing: set them again with AlterConfigs (%s)",
                error,
            )
            return
        known = self._going_together({name: text for name, text in values.items() if _is_known(name, text)})
        self._ignored = {name: text for name, text in values.items() if name not in known}
        self.unreadable = False
        self._config.set_dynamic(known)

    async def apply(self, _changes: Sequence[Change]) -> None:
        """Settings have changed, maybe by another gateway: have them in force. Raises `HtpError` if the store fails."""
        await self.read_all()

    async def read_all(self) -> None:
        """Have in force what the row says now. Raises `HtpError` if the store fails."""
        async with self._changing:
            await self._catch_up()

    async def _catch_up(self) -> None:
        found = (await self._manager.get([SETTINGS_KEY])).get(SETTINGS_KEY)
        if (0 if found is None else found.version) == self._version:
            return
        with self._shields.shield():
            before = dict(self._config.dynamic)
            self._read(found)
            if self._config.dynamic != before:
                logger.info("another gateway has changed broker settings")
            try:
                await self._tell()
            except KafkaError as error:
                logger.error("not all topics follow changed broker settings: %s", error)

    def _going_together(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Those of the settings that were made earlier which go together with what this gateway was given."""
        if self._conflict(values) is None:
            return values
        kept: dict[str, str] = {}
        for name, text in values.items():
            conflict = self._conflict({**kept, name: text})
            if conflict is None:
                kept[name] = text
            else:
                logger.error("the broker setting %s=%s that was made earlier is left out: %s", name, text, conflict)
        return kept

    def _conflict(self, values: Mapping[str, str]) -> ConfigError | None:
        try:
            self._config.altered(values)
        except ConfigError as error:
            return error
        return None

    async def alter(
        self,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        names: Collection[str],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change the settings, durably, and put them in force.

        Args:
            change: Makes the new settings, each of them checked, of the present ones; its errors are raised. It is
                called when no other change is under way.
            names: What it is about: of that nothing is kept which was left out at the start.
            validate_only: Nothing is changed.

        Raises:
            InvalidConfigurationError: The settings do not go together, or name a host that is not found.
        """
        async with self._changing:
            for left in reversed(range(_TRIES)):
                values = dict(change(self._config.dynamic))
                await self._check_together(values)
                if validate_only:
                    return
                try:
                    with self._shields.shield():
                        await self._alter(values, names)
                    break
                except ConflictError as error:
                    if not left:
                        raise
                    logger.info("another gateway has changed broker settings meanwhile: %s", error)
                    await self._catch_up()
        logger.info("broker settings changed: %s", ", ".join(f"{name}={text}" for name, text in values.items()))

    async def reload(self, given: Mapping[str, Any]) -> Reloaded:
        """Take over what is given by now in place of what was given at the start; the store is told nothing.

        Args:
            given: All settings, by their names.

        Returns:
            What was changed, and what was not.

        Raises:
            ConfigError: They are wrong, or do not go together with one another or with what AlterConfigs has set.
        """
        # in a thread: variables are looked up in files, and names that nobody knows are many when it is the wrong file
        making = partial(call_giving_way, partial(BrokerConfig, dict(given)))
        other = await anyio.to_thread.run_sync(making, abandon_on_cancel=True)
        async with self._changing:
            names = self._config.differences(other)
            changed = {name: other.given(name) for name in names if name in BROKER_SETTINGS and name not in READ_ONLY}
            config = self._config.given_anew(changed)
            if not set(SETTINGS).isdisjoint(changed):
                (await connection_quota(LimitSettings.of(config))).check({})
            with self._shields.shield():
                self._config.take_given(changed)
                if self._take_up_ignored() or changed or self._half_told:
                    await self._tell()
        altered = tuple(name for name in changed if name in self._config.dynamic)
        return Reloaded(
            changed=tuple(name for name in changed if name not in altered),
            altered=altered,
            restart=tuple(name for name in names if name not in changed),
        )

    def _take_up_ignored(self) -> bool:
        """Have in force what was left out and goes together with the others by now; whether there is any."""
        if not self._ignored:
            return False
        before = dict(self._config.dynamic)
        left = {name: text for name, text in self._ignored.items() if _is_known(name, text)}
        known = self._going_together({**before, **left})
        if known.keys() == before.keys():
            return False
        self._ignored = {name: text for name, text in self._ignored.items() if name not in known}
        self._config.set_dynamic(known)
        taken = known.keys() - before.keys()
        logger.info("broker settings that were made earlier are in force again: %s", ", ".join(sorted(taken)))
        return True

    async def _alter(self, values: Mapping[str, str], names: Collection[str]) -> None:
        ignored = {name: text for name, text in self._ignored.items() if name not in names}
        self._version = await self._write(encode_settings({**ignored, **values}))
        self._ignored = ignored
        self.unreadable = False
        self._config.set_dynamic(values)
        await self._tell()

    async def _tell(self) -> None:
        """Settings have changed."""
        self._half_told = True
        for callback in self._when_changed:
            callback()
        for take_over in self._taking_over:
            await take_over()
        self._half_told = False

    async def _write(self, row: bytes) -> int:
        """Have the store keep settings, and return the row's version; where it fails though it has them, they are made.

        Raises:
            ConflictError: Another gateway has changed them.
            HtpError: It failed.
        """
        try:
            expected = {SETTINGS_KEY: self._version}
            return await self._manager.commit({SETTINGS_KEY: row}, expected, lease=self._lease.current)
        except ConflictError:
            raise
        except BaseException:  # cancelled too: whether it was written is not known
            try:
                found = (await self._manager.get([SETTINGS_KEY])).get(SETTINGS_KEY)
            except KafkaError as error:
                logger.error(
                    "whether the store has taken changed broker settings is not known, and they are not in force; the "
                    "next start may find them: make the change again (%s)", error,
                )  # fmt: skip
                found = None
            if found is None or found.value != row:
                raise
            return found.version

    async def _check_together(self, values: Mapping[str, str]) -> None:
        present = self._config.dynamic
        try:
            config = self._config.altered(values)
            if any(present.get(name) != values.get(name) for name in SETTINGS):
                (await connection_quota(LimitSettings.of(config))).check({})
        except ConfigError as error:
            raise InvalidConfigurationError(str(error)) from error


def check_dynamic(values: Mapping[str, str]) -> None:
    """Whether these settings may be set while a gateway runs. Raises `InvalidRequestError` and the like."""
    for name, text in values.items():
        if name in READ_ONLY:
            raise InvalidRequestError(f"Cannot update this config dynamically: {name}")
        try:
            BROKER_SETTINGS[name].parse(text)
        except ConfigError as error:
            raise InvalidConfigurationError(str(error)) from error


def _is_known(name: str, text: str) -> bool:
    """Whether a setting that was kept means something to this version."""
    try:
        check_dynamic({name: text})
    except (KeyError, InvalidRequestError, InvalidConfigurationError) as error:
        logger.warning("the broker setting %s=%s that was made earlier is ignored: %r", name, text, error)
        return False
    return True
