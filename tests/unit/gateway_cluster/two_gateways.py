"""Several gateways on one store, as if none kept the others out: each has a lease of the store for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio

from kclient.gateway import Gateway
from kclient.gateway.rows.keys import GATEWAYS, LEASE
from kclient.htp import open_store
from kclient.htp.port import Lease
from tests.gateway_wire import Wire, connect

PATIENCE_S = 20.0


class Apart:
    """A store as one of several gateways sees it.

    Args:
        inner: The store, which is open.
        number: Of the gateway.
    """

    def __init__(self, inner: Any, number: int) -> None:
        self._inner = inner
        self._manager = _ApartManager(inner.manager, number)

    @property
    def manager(self) -> Any:
        return self._manager

    @property
    def broker(self) -> Any:
        return self._inner.broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _ApartManager:
    def __init__(self, inner: Any, number: int) -> None:
        self._inner = inner
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def acquire(self, name: str, *args: Any, **options: Any) -> Lease:
        found: Lease = await self._inner.acquire(f"{name}-{self._number}" if name == LEASE else name, *args, **options)
        return found

    async def commit(self, writes: Mapping[str, bytes | None], *args: Any, lease: Lease | None = None) -> int:
        if lease is not None and lease.name.startswith(f"{LEASE}-"):  # who has the store removes the others' rows
            writes = {key: value for key, value in writes.items() if not key.startswith(GATEWAYS)}
        version: int = await self._inner.commit(writes, *args, lease=lease)
        return version


@asynccontextmanager
async def several(url: str, count: int = 2, **options: Any) -> AsyncIterator[list[tuple[Gateway, Wire]]]:
    """So many gateways on one store, `node.id` from 1 on, and a connection to each."""
    config: dict[str, Any] = options.pop("config", {})
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url))
        found = []
        for number in range(1, count + 1):
            apart: Any = Apart(store, number)
            gateway = Gateway(apart, **{"listen": None, **options}, config={"node.id": number, **config})
            await stack.enter_async_context(gateway)
            wire = connect(gateway)
            stack.push_async_callback(wire.aclose)
            found.append((gateway, wire))
        yield found


async def until(true: Callable[[], object]) -> None:
    """Wait until something is so."""
    with anyio.fail_after(PATIENCE_S):
        while not true():
            await anyio.sleep(0.001)
