"""Broker settings changed while the gateway runs: kept by the manager, in force again after a restart."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kclient.gateway.settings import BROKER_SETTINGS

if TYPE_CHECKING:
    from kclient.gateway.core import Core

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

KEY: Final = "kafka/config/broker"
READ_ONLY: Final = frozenset(
    {
        "advertised.listeners", "broker.id", "broker.rack", "listeners", "log.dirs",
        "max.incremental.fetch.session.cache.slots", "node.id", "queued.max.requests", "socket.request.max.bytes",
    }
)  # fmt: skip
"""Settings that only a restart changes."""


async def load_dynamic_config(core: Core) -> None:
    """Put the settings of earlier AlterConfigs requests in force."""
    found = (await core.manager.get([KEY])).get(KEY)
    if found is not None:
        values = {name: text for name, text in json.loads(found.value).items() if name in BROKER_SETTINGS}
        core.config.set_dynamic(values)


async def save_dynamic_config(core: Core, values: Mapping[str, str]) -> None:
    """Keep these settings, which were checked before, and put them in force."""
    await core.manager.commit({KEY: json.dumps(dict(values)).encode()}, lease=core.lease)
    core.config.set_dynamic(values)
    await core.topics.resolve_all()
    logger.info("broker settings changed: %s", ", ".join(f"{name}={text}" for name, text in values.items()))
