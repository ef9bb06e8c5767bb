"""Stores of every backend, with topics that are called by their names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kclient.htp import memory
from tests.unit.htp.by_name import NamedStore, named_store
from tests.unit.htp.plain_messages import FRAMING, OTHER, TOPIC

BACKENDS = ["memory", "embedded"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store_url(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a new store; opening it again finds what was stored."""
    if backend == "embedded":
        yield f"embedded:{tmp_path / 'data'}"
    else:
        yield f"memory:{request.node.nodeid}"
        memory.reset(request.node.nodeid)


OpenStore = Callable[..., NamedStore]


@pytest.fixture
def reopen(store_url: str) -> OpenStore:
    """Open the store, with options."""

    def opening(**options: Any) -> NamedStore:
        return named_store(store_url, **options)

    return opening


@pytest.fixture
async def store(reopen: OpenStore) -> AsyncIterator[NamedStore]:
    """An open store with two open topics."""
    async with reopen() as store:
        await prepare(store)
        yield store


async def prepare(store: NamedStore) -> None:
    """Create the domain and two topics, and open them."""
    await store.manager.create_domain(TOPIC.domain)
    for topic in (TOPIC, OTHER):
        await store.manager.create_topic(topic)
        await store.broker.open(topic, FRAMING)
