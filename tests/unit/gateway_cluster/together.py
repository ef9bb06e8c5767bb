"""Several gateways that serve one store together, as stores will let them that have the capability for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kclient.gateway import Gateway
from kclient.htp import open_store
from kclient.htp.port import CAP_SHARED
from tests.gateway_wire import Wire, connect


class Shared:
    """A store that several gateways may serve.

    Args:
        inner: The store, which is open.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.manager = inner.manager
        self.broker = _SharedBroker(inner.broker)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _SharedBroker:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def capabilities(self) -> frozenset[str]:
        found: frozenset[str] = self._inner.capabilities
        return found | {CAP_SHARED}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@asynccontextmanager
async def shared_store(url: str) -> AsyncIterator[Any]:
    """A store that several gateways may serve."""
    async with open_store(url) as store:
        yield Shared(store)


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
