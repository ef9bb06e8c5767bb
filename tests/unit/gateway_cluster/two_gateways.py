"""Several gateways on one store, as if none kept the others out.

Each has a lease of the store for itself, and generations of its own, so that each leads everything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio

from kclient.gateway import Gateway
from kclient.gateway.rows.keys import ASSIGNMENT, GATEWAYS, LEASE
from kclient.htp import open_store
from kclient.htp.port import ChangePage, Lease, Versioned
from tests.gateway_wire import Wire, connect
from tests.unshared_store import UnsharedBroker

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
        return UnsharedBroker(self._inner.broker)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _ApartManager:
    def __init__(self, inner: Any, number: int) -> None:
        self._inner = inner
        self._number = number
        self._assignment = f"{ASSIGNMENT}-{number}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _own(self, key: str) -> str:
        return self._assignment if key == ASSIGNMENT else key

    def _plain(self, key: str) -> str:
        return ASSIGNMENT if key == self._assignment else key

    async def get(self, keys: Iterable[str]) -> dict[str, Versioned]:
        found = await self._inner.get([self._own(key) for key in keys])
        return {self._plain(key): row for key, row in found.items()}

    async def changes(self, prefixes: Iterable[str], *args: Any, **options: Any) -> ChangePage:
        page: ChangePage = await self._inner.changes([self._own(each) for each in prefixes], *args, **options)
        return page._replace(changes=[each._replace(key=self._plain(each.key)) for each in page.changes])

    async def acquire(self, name: str, *args: Any, **options: Any) -> Lease:
        found: Lease = await self._inner.acquire(f"{name}-{self._number}" if name == LEASE else name, *args, **options)
        return found

    async def commit(
        self,
        writes: Mapping[str, bytes | None],
        expect: Mapping[str, int] | None = None,
        *,
        lease: Lease | None = None,
    ) -> int:
        if lease is not None and lease.name.startswith(f"{LEASE}-"):  # who has the store removes the others' rows
            writes = {key: value for key, value in writes.items() if not key.startswith(GATEWAYS)}
        writes = {self._own(key): value for key, value in writes.items()}
        expect = {self._own(key): version for key, version in (expect or {}).items()}
        version: int = await self._inner.commit(writes, expect, lease=lease)
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
