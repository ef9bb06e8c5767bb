"""Several gateways that serve one store together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kclient.gateway import Gateway
from tests.gateway_wire import Wire, connect


@asynccontextmanager
async def joined(store: Any, node_id: int, **options: Any) -> AsyncIterator[tuple[Gateway, Wire]]:
    """One more gateway on such a store, and a connection to it."""
    config: dict[str, Any] = {"node.id": node_id, **options.pop("config", {})}
    async with Gateway(store, **{"listen": None, **options}, config=config) as gateway:
        wire = connect(gateway)
        try:
            yield gateway, wire
        finally:
            await wire.aclose()
