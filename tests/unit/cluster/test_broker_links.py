"""A link to a broker: its states, its back-off, one attempt for all, and outcomes that come too late."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from kclient.cluster import Backoff
from kclient.cluster.connections import BrokerLink, Link, LinkState, Readiness
from kclient.concurrency import Supervisor
from kclient.errors import AuthenticationError, BrokerConnectionError, ClosedError, IllegalStateError, KafkaError
from kclient.net.address import Address
from kclient.testing.cancellation import Cancelled, at_every_checkpoint

ADDRESS = Address("host", 9092)


class FakeConnection:
    closed = False
    waiting = 0.0
    in_flight = 0

    def failure(self, what: str) -> KafkaError:
        return BrokerConnectionError(what)

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


class Opener:
    """Opens connections, or fails as often as it is told; with `held`, it waits until it is let go."""

    def __init__(self, failures: int = 0, error: Exception | None = None, *, held: bool = False) -> None:
        self.failures = failures
        self.error = error or ConnectionRefusedError("nobody there")
        self.calls = 0
        self.opened: list[FakeConnection] = []
        self.let_go = anyio.Event()
        self.stubborn = False
        """Whether cancelling it does not help, as where the outcome has come already."""
        if not held:
            self.let_go.set()

    async def __call__(self, address: Address) -> Any:
        self.calls += 1
        number = self.calls
        with anyio.CancelScope(shield=self.stubborn):
            await self.let_go.wait()
            await anyio.lowlevel.checkpoint()
        if number <= self.failures:
            raise self.error
        self.opened.append(FakeConnection())
        return self.opened[-1]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def link(opener: Opener, clock: Clock | None = None) -> AsyncIterator[BrokerLink]:
    async with Supervisor("link") as supervisor:
        made = BrokerLink(ADDRESS, opener, Backoff(1, 1), clock or Clock(), supervisor)
        yield made
        await made.aclose()


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
    with pytest.raises(IllegalStateError, match=f"link to {ADDRESS}: CONNECTED must not happen in IDLE"):
        state.connected()


@pytest.mark.anyio
async def test_all_share_one_attempt() -> None:
    opener = Opener()
    found = []
    async with link(opener) as broker:

        async def use() -> None:
            found.append(await broker.get())

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(use)
    assert opener.calls == 1
    assert len(set(map(id, found))) == 1


@pytest.mark.anyio
async def test_all_share_its_failure() -> None:
    """A hung broker must not cost each of those who wait a time-out of its own, one after the other."""
    opener = Opener(failures=1, held=True)
    failed = []
    async with link(opener) as broker:

        async def use() -> None:
            with pytest.raises(BrokerConnectionError, match="host:9092: nobody there") as caught:
                await broker.get()
            failed.append(caught.value)

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(use)
            await anyio.wait_all_tasks_blocked()
            opener.let_go.set()
    assert opener.calls == 1
    assert len(set(map(id, failed))) == 5, "one object in several tasks mixes up their tracebacks"


@pytest.mark.anyio
async def test_a_failed_attempt_names_address_and_reason_and_the_next_waits() -> None:
    opener, clock = Opener(failures=1), Clock()
    async with link(opener, clock) as broker:
        with pytest.raises(BrokerConnectionError, match="host:9092: nobody there"):
            await broker.get()
        assert broker.readiness is Readiness.FAILED
        with pytest.raises(BrokerConnectionError, match="nobody there"):
            await broker.get(wait=False)
        assert opener.calls == 1, "within the back-off nothing is tried"
        clock.now += 1
        assert (await broker.get()).closed is False
        assert broker.readiness is Readiness.ANSWERING


@pytest.mark.anyio
async def test_a_refusal_stays_a_refusal_for_all() -> None:
    clock = Clock()
    async with link(Opener(failures=9, error=AuthenticationError("wrong password")), clock) as broker:
        for wait in (False, False, True):
            clock.now += wait
            with pytest.raises(AuthenticationError, match="wrong password"):
                await broker.get(wait=wait)


@pytest.mark.anyio
async def test_what_nobody_expected_is_raised_and_leaves_the_link_usable() -> None:
    async with link(Opener(failures=1, error=ZeroDivisionError("a bug"))) as broker:
        with pytest.raises(ZeroDivisionError):
            await broker.get()
        assert (await broker.get()).closed is False


@pytest.mark.anyio
async def test_a_broken_connection_is_replaced() -> None:
    opener, clock = Opener(), Clock()
    async with link(opener, clock) as broker:
        first: Any = await broker.get()
        first.closed = True
        assert broker.usable is None
        assert broker.link.state is LinkState.BACKOFF
        clock.now += 1
        assert await broker.get() is not first
        assert opener.calls == 2


@pytest.mark.anyio
async def test_closing_closes_and_nothing_opens_again() -> None:
    async with link(Opener()) as broker:
        connection: Any = await broker.get()
        await broker.aclose()
        assert connection.closed
        with pytest.raises(BrokerConnectionError, match="closed"):
            await broker.get()


@pytest.mark.anyio
@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("failures", [0, 1])
async def test_closed_while_connecting_tells_those_who_wait_and_drops_the_outcome(
    stubborn: bool, failures: int
) -> None:
    opener = Opener(failures, held=True)
    opener.stubborn = stubborn
    told = []
    async with Supervisor("link") as supervisor:
        broker = BrokerLink(ADDRESS, opener, Backoff(1, 1), Clock(), supervisor)

        async def use() -> None:
            with pytest.raises(BrokerConnectionError, match="it left") as caught:
                await broker.get()
            assert caught.value.retriable
            told.append(caught.value)

        async with anyio.create_task_group() as group:
            group.start_soon(use)
            group.start_soon(use)
            await anyio.wait_all_tasks_blocked()
            await broker.aclose(BrokerConnectionError("it left"))
        assert len(told) == 2
        opener.let_go.set()
        await anyio.wait_all_tasks_blocked()
        assert broker.link.state is LinkState.CLOSED
        assert all(connection.closed for connection in opener.opened), "no socket stays open"
        assert len(opener.opened) == (stubborn and not failures)
        supervisor.check()


@pytest.mark.anyio
async def test_closed_during_the_back_off_wakes_those_who_wait() -> None:
    opener = Opener(failures=1)
    async with Supervisor("link") as supervisor:
        broker = BrokerLink(ADDRESS, opener, Backoff(600_000, 600_000), Clock(), supervisor)
        with pytest.raises(BrokerConnectionError):
            await broker.get()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:

                async def use() -> None:
                    with pytest.raises(ClosedError):
                        await broker.get()

                group.start_soon(use)
                await anyio.wait_all_tasks_blocked()
                await broker.aclose(ClosedError("The client was closed"))


@pytest.mark.anyio
async def test_a_cancelled_waiter_ends_the_wait_and_not_the_attempt() -> None:
    opener = Opener(held=True)
    async with link(opener) as broker:
        with anyio.move_on_after(0):
            await broker.get()
        assert broker.readiness is Readiness.CONNECTING
        opener.let_go.set()
        await broker.get()
        assert opener.calls == 1


@pytest.mark.anyio
async def test_an_owner_that_ends_leaves_nobody_waiting() -> None:
    opener = Opener(held=True)
    errors = []
    async with anyio.create_task_group() as group, Supervisor("link") as supervisor:
        broker = BrokerLink(ADDRESS, opener, Backoff(1, 1), Clock(), supervisor)

        async def use() -> None:
            try:
                await broker.get()
            except ClosedError as error:
                errors.append(error)

        group.start_soon(use)
        await anyio.wait_all_tasks_blocked()
        supervisor.fail(RuntimeError("the owner failed"))
    assert errors


@pytest.mark.anyio
async def test_a_cancelled_attempt_leaves_the_link_usable() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with link(Opener()) as broker:
            await cancelled(broker.get())
            assert (await broker.get()).closed is False

    assert await at_every_checkpoint(scenario) >= 1


# --------------------------------------------------------------------------- every order of events

EVENTS = ("connect", "connected", "failed", "broke", "closed")


@pytest.mark.slow
@pytest.mark.anyio
async def test_no_order_of_events_is_illegal() -> None:
    """Whatever the network does, and whenever the broker leaves: the link is in a legal state, and its owner lives."""
    for order in itertools.product(EVENTS, repeat=4):
        await go_through(order)


async def settle() -> None:
    """Let the tasks take notice; `wait_all_tasks_blocked` takes a tenth of a second."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def go_through(order: tuple[str, ...]) -> None:
    attempts: list[tuple[anyio.Event, list[str]]] = []

    async def opener(address: Address) -> Any:
        event, how = anyio.Event(), list[str]()
        attempts.append((event, how))
        with anyio.CancelScope(shield=True):  # the outcome comes, wanted or not
            await event.wait()
        if how == ["failed"]:
            raise ConnectionRefusedError("nobody there")
        return FakeConnection()

    async with Supervisor("link") as supervisor, anyio.create_task_group() as group:
        broker = BrokerLink(ADDRESS, opener, Backoff(0, 0), Clock(), supervisor)

        async def use() -> None:
            with suppress(KafkaError):
                await broker.get()

        for event in order:
            if event == "connect":
                group.start_soon(use)
            elif event in {"connected", "failed"}:
                for gate, how in attempts[-1:]:
                    how.append(event)
                    gate.set()
            elif event == "broke":
                if broker.current is not None:
                    broker.current.closed = True
            else:
                await broker.aclose()
            await settle()
            assert broker.readiness in Readiness
        for gate, _ in attempts:
            gate.set()
        await settle()
        supervisor.check()
        await broker.aclose()
