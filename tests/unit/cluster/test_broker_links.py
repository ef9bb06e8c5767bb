"""A link to a broker: its states, its back-off, one attempt for all."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kclient.cluster import Backoff
from kclient.cluster.connections import BrokerLink, Link, LinkState
from kclient.errors import BrokerConnectionError, KafkaError
from kclient.net.address import Address
from kclient.testing.cancellation import Cancelled, at_every_checkpoint

ADDRESS = Address("host", 9092)


class FakeConnection:
    closed = False

    def failure(self, what: str) -> KafkaError:
        return BrokerConnectionError(what)

    async def aclose(self) -> None:
        self.closed = True


class Opener:
    """Opens connections, or fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls = 0

    async def __call__(self, address: Address) -> Any:
        self.calls += 1
        await anyio.lowlevel.checkpoint()
        if self.calls <= self.failures:
            raise ConnectionRefusedError("nobody there")
        return FakeConnection()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def link(opener: Opener, clock: Clock | None = None) -> BrokerLink:
    return BrokerLink(ADDRESS, opener, Backoff(1, 1), clock or Clock())


def test_a_failure_asks_for_patience() -> None:
    state = Link(ADDRESS, Backoff(50, 1000, jitter=0.0))
    state.connecting()
    state.failed(OSError("refused"), 10.0)
    assert state.state is LinkState.BACKOFF
    assert state.delay(10.0) == pytest.approx(0.05)
    assert state.delay(11.0) == 0.0
    state.connecting()
    state.failed(OSError("refused"), 20.0)
    assert state.delay(20.0) == pytest.approx(0.1)
    state.connecting()
    state.connected()
    assert (state.failures, state.error) == (0, None)


def test_illegal_moves_raise() -> None:
    state = Link(ADDRESS, Backoff(50, 1000))
    with pytest.raises(RuntimeError, match="IDLE -> READY"):
        state.connected()


@pytest.mark.anyio
async def test_all_share_one_attempt() -> None:
    opener = Opener()
    broker = link(opener)
    found = []

    async def use() -> None:
        found.append(await broker.get())

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(use)
    assert opener.calls == 1
    assert len(set(map(id, found))) == 1
    await broker.aclose()


@pytest.mark.anyio
async def test_a_failed_attempt_names_address_and_reason_and_the_next_waits() -> None:
    opener = Opener(failures=1)
    broker = link(opener)
    with pytest.raises(BrokerConnectionError, match="host:9092: nobody there"):
        await broker.get()
    with pytest.raises(BrokerConnectionError, match="nobody there"):
        await broker.get(wait=False)
    assert opener.calls == 1, "within the back-off nothing is tried"
    assert not broker.available(0.0)
    assert (await broker.get()).closed is False
    assert broker.available(0.0)
    await broker.aclose()


@pytest.mark.anyio
async def test_a_broken_connection_is_replaced() -> None:
    opener = Opener()
    broker = link(opener)
    first: Any = await broker.get()
    first.closed = True
    assert broker.usable is None
    assert broker.link.state is LinkState.BACKOFF
    assert await broker.get() is not first
    assert opener.calls == 2
    await broker.aclose()


@pytest.mark.anyio
async def test_closing_closes_and_nothing_opens_again() -> None:
    broker = link(Opener())
    connection: Any = await broker.get()
    await broker.aclose()
    assert connection.closed
    with pytest.raises(BrokerConnectionError, match="closed"):
        await broker.get()


@pytest.mark.anyio
async def test_a_cancelled_attempt_leaves_the_link_usable() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        broker = link(Opener())
        await cancelled(broker.get())
        assert (await broker.get()).closed is False
        await broker.aclose()

    assert await at_every_checkpoint(scenario) >= 1
