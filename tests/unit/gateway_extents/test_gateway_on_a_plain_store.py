"""The gateway's own tests over a store whose positions are no offsets, and are not told (`tests/plain_store.py`)."""

from __future__ import annotations

import pytest

from tests.all_rows import scan_all
from tests.gateway_wire import batch_of, names, running
from tests.plain_store import PlainStore, PlainTopic
from tests.unit.gateway.test_gateway_admin import *  # noqa: F403
from tests.unit.gateway.test_gateway_fetch_sessions import *  # noqa: F403
from tests.unit.gateway.test_gateway_leadership import *  # noqa: F403
from tests.unit.gateway.test_gateway_produce_fetch import *  # noqa: F403

pytestmark = pytest.mark.anyio


async def test_they_run_over_a_plain_store() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"x"))
        assert isinstance(gateway._store, PlainStore)
        assert [type(topic) for topic in gateway._store.broker.opened.values()] == [PlainTopic]


async def test_retention_drops_what_is_too_much() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", retention_bytes="3000000", segment_bytes="1048576", max_message_bytes="2000000")
        for number in range(20):
            await wire.produce("t", batch_of(b"%d" % number * 250_000))
        assert await gateway.apply_retention() == 1
        start = (await wire.offset("t", -2)).offset
        assert 5 < start < 15
        assert (await wire.values("t", start))[0][:2] == b"%d" % start
        assert gateway._store.broker.opened  # type: ignore[attr-defined]
        (topic,) = gateway._store.broker.opened.values()  # type: ignore[attr-defined]
        assert (await topic.status()).start > 0, "also in the store"
        assert await gateway.apply_retention() == 0


async def test_records_producers_and_log_starts_are_there_after_a_restart() -> None:
    name = f"memory:{next(names)}"
    async with running(name) as (_, wire):
        await wire.create("t")
        first = batch_of(b"a", b"b", producer_id=5, producer_epoch=0, sequence=0)
        assert (await wire.produce("t", first)).base_offset == 0
        for number in range(30):
            await wire.produce("t", batch_of(b"%d" % number, timestamp=1_000 + number))
        await wire.delete_records("t", 10)
    async with running(name) as (_, wire):
        assert (await wire.offset("t", -2)).offset == 10
        assert (await wire.offset("t", -1)).offset == 32
        assert await wire.values("t", 10) == [b"%d" % number for number in range(8, 30)]
        assert (await wire.produce("t", first)).base_offset == 0, "the first one's"
        found = await wire.offset("t", 1_020)
        assert (found.offset, found.timestamp) == (22, 1_020)
        assert (await wire.produce("t", batch_of(b"last"))).base_offset == 32
    async with running(name) as (_, wire):
        assert (await wire.values("t", 30)) == [b"28", b"29", b"last"]


async def test_a_topic_that_was_deleted_leaves_no_rows() -> None:
    name = f"memory:{next(names)}"
    async with running(name) as (gateway, wire):
        await wire.create("t", 2)
        await wire.produce("t", batch_of(b"x"), 1)
    async with running(name) as (gateway, wire):
        assert [key for key in await scan_all(gateway._store.manager, "kafka/extents/") if key.endswith("/1/chunks")]
        await wire.delete("t")
        assert await scan_all(gateway._store.manager, "kafka/extents/") == {}
