"""Broker settings changed while the gateway runs: kept by the manager, in force again after a restart."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import ConfigError, InvalidConfigurationError, InvalidRequestError
from kclient.gateway.connection_quota import SETTINGS, connection_quota
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.htp.rows import parse_object, string

if TYPE_CHECKING:
    from kclient.gateway.core import Core

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

KEY: Final = "kafka/config/broker"
READ_ONLY: Final = frozenset(
    {
        "advertised.listeners", "broker.id", "broker.rack", "connections.max.idle.ms", "connections.max.memory.bytes",
        "listeners", "log.dirs", "max.incremental.fetch.session.cache.slots", "node.id", "producer.id.cache.size",
        "queued.max.request.bytes", "queued.max.requests", "socket.request.max.bytes",
    }
)  # fmt: skip
"""Settings that only a restart changes."""


class DynamicConfig:
    """The broker settings that AlterConfigs has set."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._changing = anyio.Lock()
        self._when_changed: list[Callable[[], object]] = []
        self._ignored: dict[str, str] = {}
        """What another version has set and this one does not know; kept for that one."""
        self.unreadable: bool = False
        """Whether settings were made that cannot be read: until new ones are, nothing may rely on them."""

    def on_change(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called whenever settings have changed."""
        self._when_changed.append(callback)

    async def load(self) -> None:
        """Put the settings of earlier AlterConfigs requests in force."""
        found = (await self._core.manager.get([KEY])).get(KEY)
        if found is None:
            return
        try:
            values = {name: string(value) for name, value in parse_object(found.value).items()}
        except ValueError as error:
            self.unreadable = True
            logger.error(
                "the broker settings that were changed while a gateway ran cannot be read, the others are in force "
                "alone, and retention does nothing: set them again with AlterConfigs (%s)",
                error,
            )
            return
        known = {name: text for name, text in values.items() if _is_known(name, text)}
        self._ignored = {name: text for name, text in values.items() if name not in known}
        self._core.config.set_dynamic(known)

    async def alter(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Change the settings, durably, and put them in force.

        Args:
            change: Makes the new settings, each of them checked, of the present ones; its errors are raised. It is
                called when no other change is under way.
            validate_only: Nothing is changed.

        Raises:
            InvalidConfigurationError: The settings do not go together, or name a host that is not found.
        """
        core = self._core
        async with self._changing:
            values = dict(change(core.config.dynamic))
            await self._check_together(values)
            if validate_only:
                return
            with core.shields.shield():
                row = json.dumps({**self._ignored, **values}).encode()
                await core.manager.commit({KEY: row}, lease=core.lease)
                self.unreadable = False
                core.config.set_dynamic(values)
                for callback in self._when_changed:
                    callback()
                await core.topics.resolve_all()
        logger.info("broker settings changed: %s", ", ".join(f"{name}={text}" for name, text in values.items()))

    async def _check_together(self, values: Mapping[str, str]) -> None:
        present = self._core.config.dynamic
        try:
            config = self._core.config.altered(values)
            if any(present.get(name) != values.get(name) for name in SETTINGS):
                await connection_quota(config)
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
