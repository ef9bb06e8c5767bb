"""A gateway that is cut off from the name server, and not from the brokers, beside the one that has taken over.

Its lease ends by its own clock before anybody else's begins: after that it says nothing. What remains is a clock that
stands still, as that of a machine that sleeps: the first test shows what happens then, the second that nothing of the
kind does while clocks go.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest
import trio

from kclient.errors import ErrorCode, KafkaError
from kclient.gateway import Gateway
from kclient.htp.testing import SendFate
from tests.gateway_wire import Wire, connect, fetch_request
from tests.unit.gateway_vendor.vendor_bed import batch, serving, virtually


def stand_still(gateway: Gateway) -> None:
    """Its clock does: its lease lasts for ever, as it sees it."""
    held = gateway.parts.lease
    held.current = replace(held.current, expires=math.inf)


async def answered(wire: Wire, value: bytes) -> bool:
    """Whether a record is acknowledged."""
    with suppress(AssertionError, KafkaError, OSError, trio.ClosedResourceError, trio.BrokenResourceError):
        return not (await wire.produce("t", batch(value))).error_code
    return False


async def end_of(wire: Wire) -> int | None:
    """The end that a consumer is told; None if it is told nothing."""
    with suppress(AssertionError, KafkaError, OSError, trio.ClosedResourceError, trio.BrokenResourceError):
        row = await wire.fetch("t", 0)
        return None if row.error_code else int(row.high_watermark)
    return None


@virtually
async def test_a_clock_that_stands_still_is_the_window_that_remains() -> None:
    async with serving("test_a_clock_that_stands_still_is_the_window_that_remains", 1) as old:
        await old.wire.create("t")
        await old.wire.produce("t", batch(b"first"))
        stand_still(old.gateway)
        old.store.manager.reachable = False
        async with serving(old.name, 2) as new:
            assert (await new.wire.produce("t", batch(b"new", b"newer"))).base_offset == 1
            assert await end_of(old.wire) == 1, "it tells of an end that is not the end any more"
            assert await answered(old.wire, b"lost"), "and acknowledges what counts for nobody"
            assert await new.wire.values("t") == [b"first", b"new", b"newer"]
            assert (await new.wire.produce("t", batch(b"newest"))).base_offset == 3
            old.gateway._supervisor.fail(RuntimeError("the test is over"))
            assert await new.wire.values("t") == [b"first", b"new", b"newer", b"newest"]


@pytest.mark.slow
@virtually
async def test_while_clocks_go_an_old_leader_says_nothing() -> None:
    async with serving("test_while_clocks_go_an_old_leader_says_nothing", 1) as old:
        await old.wire.create("t")
        await old.wire.produce("t", batch(b"first"))
        old.store.manager.reachable = False
        heard: list[bytes] = []
        ends: list[int | None] = []

        async def go_on() -> None:
            """As its clients do, all the time, also while the lease ends."""
            for number in range(400):
                wire, value = connect(old.gateway), b"old-%d" % number
                if await answered(wire, value):
                    heard.append(value)
                ends.append(await end_of(wire))
                await wire.aclose()
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            async with serving(old.name, 2) as new:
                taken_over, told = len(heard), len(ends)
                assert not (await new.wire.produce("t", batch(b"new"))).error_code
                assert taken_over > 100
                await trio.sleep(20)
                assert len(heard) == taken_over, "nothing is acknowledged any more"
                assert not [end for end in ends[told:] if end is not None], "nor read"
                found = await new.wire.values("t")
                under_way = [b"old-%d" % len(heard)]  # when the lease ended: it may be stored, and nobody was told
                assert found in ([b"first", *heard, *stored, b"new"] for stored in ([], under_way))
                nursery.cancel_scope.cancel()
                old.gateway._supervisor.fail(RuntimeError("the test is over"))


@virtually
async def test_what_an_old_leader_has_on_its_way_counts_if_it_comes_before_the_epoch_starts() -> None:
    async with serving("test_what_an_old_leader_has_on_its_way_counts_if_it_comes_before_the_epoch_starts", 1) as old:
        await old.wire.create("t")
        await old.wire.produce("t", batch(b"first"))
        old.plan(SendFate.UNANSWERED)
        old.store.manager.reachable = False  # so that it cannot find out
        row = await old.wire.produce("t", batch(b"stored"))
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        async with serving(old.name, 2) as new:
            assert await new.wire.values("t") == [b"first", b"stored"]
            assert (await new.wire.produce("t", batch(b"new"))).base_offset == 2
            old.gateway._supervisor.fail(RuntimeError("the test is over"))


@virtually
async def test_a_fetch_that_waits_while_the_lease_ends_is_not_answered() -> None:
    async with serving("test_a_fetch_that_waits_while_the_lease_ends_is_not_answered", 1) as old:
        await old.wire.create("t")
        await old.wire.produce("t", batch(b"first"))
        old.store.manager.reachable = False
        request = fetch_request("t", 1, max_wait_ms=60_000)
        await old.wire.send(request, 11)
        with trio.fail_after(70):
            assert await old.wire.frame() is None, "the connection is closed"
        old.gateway._supervisor.fail(RuntimeError("the test is over"))
