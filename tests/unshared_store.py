"""A store that one gateway serves at a time, as stores without the capability `shared` are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kclient.htp import open_store
from kclient.htp.port import CAP_SHARED


class Unshared:
    """A store without that capability.

    Args:
        inner: The store, which is open.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.manager = inner.manager
        self.broker = UnsharedBroker(inner.broker)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class UnsharedBroker:
    """A broker without it.

    Args:
        inner: The broker.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def capabilities(self) -> frozenset[str]:
        """All but that one."""
        found: frozenset[str] = self._inner.capabilities
        return found - {CAP_SHARED}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@asynccontextmanager
async def unshared_store(url: str) -> AsyncIterator[Any]:
    """A store, opened, that one gateway serves at a time."""
    async with open_store(url) as store:
        yield Unshared(store)
