"""What a gateway does where a store that cannot fence does not tell what becomes of a send, in virtual time."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import trio

from kclient.errors import ErrorCode
from kclient.gateway.extents import Enveloped
from kclient.htp.testing import SendFate, SimulatedStore, open_simulated
from kclient.htp.testing.broker import SimulatedTopic
from kclient.records import iter_headers
from tests.all_rows import scan_all
from tests.gateway_wire import batch_of
from tests.unit.gateway_vendor.vendor_bed import batch, serving, virtually


async def forget_positions(store: SimulatedStore) -> None:
    """The rows that tell where offsets lie are lost."""
    rows = await scan_all(store.manager, "kafka/extents/")
    assert rows
    await store.manager.commit(dict.fromkeys(rows))


@virtually
async def test_what_is_stored_and_not_answered() -> None:
    async with serving("test_what_is_stored_and_not_answered") as bed:
        await bed.wire.create("t")
        await bed.wire.produce("t", batch(b"a"))
        bed.plan(SendFate.UNANSWERED)
        row = await bed.wire.produce("t", batch(b"b"))
        assert (row.error_code, row.base_offset) == (0, 1)
        row = await bed.wire.produce("t", batch(b"c"))
        assert (row.error_code, row.base_offset) == (0, 2)
        assert await bed.wire.values("t") == [b"a", b"b", b"c"]
        first = bed.stored()[0][1]
        assert bed.stored() == [(1, first, 0), (0, first, 0), (0, first, 1), (1, first + 1, 0), (0, first + 1, 2)]


@virtually
async def test_what_is_lost_is_stored_once_when_it_comes_again() -> None:
    async with serving("test_what_is_lost_is_stored_once_when_it_comes_again") as bed:
        await bed.wire.create("t")
        producer = {"producer_id": await bed.wire.producer_id(), "producer_epoch": 0}
        await bed.wire.produce("t", batch(b"a", sequence=0, **producer))
        bed.plan(SendFate.LOST)
        again = batch(b"b", sequence=1, **producer)
        assert (await bed.wire.produce("t", bytearray(again))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await bed.wire.produce("t", again)).base_offset == 1
        assert await bed.wire.values("t") == [b"a", b"b"]


@pytest.mark.slow
@virtually
async def test_finding_out_does_not_read_everything() -> None:
    async with serving("test_finding_out_does_not_read_everything") as bed:
        await bed.wire.create("t")
        for _ in range(300):
            await bed.wire.produce("t", batch(bytes(30_000)))
        pulls, pull = 0, SimulatedTopic.pull

        async def counted(self: SimulatedTopic, *arguments: Any, **options: Any) -> Any:
            nonlocal pulls
            pulls += 1
            return await pull(self, *arguments, **options)

        bed.plan(SendFate.UNANSWERED)
        with mock.patch.object(SimulatedTopic, "pull", counted):
            assert (await bed.wire.produce("t", batch(b"x"))).base_offset == 300
        assert 0 < pulls <= 10, "20 messages at a time"


@pytest.mark.slow
@virtually
async def test_what_comes_late_counts_for_nobody() -> None:
    """Neither for this gateway nor for the next one, also where that has to find out everything anew."""
    name = "test_what_comes_late_counts_for_nobody"
    async with serving(name) as bed:
        await bed.wire.create("t")
        producer = {"producer_id": await bed.wire.producer_id(), "producer_epoch": 0}
        await bed.wire.produce("t", batch(b"a", sequence=0, **producer))
        bed.plan(SendFate.LATE)
        again = batch(b"late", sequence=1, **producer)
        assert (await bed.wire.produce("t", bytearray(again))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert bed.store.installation.on_its_way
        assert (await bed.wire.produce("t", batch(b"b"))).base_offset == 1
        await trio.sleep(6)
        assert (await bed.wire.produce("t", batch(b"c", b"d"))).base_offset == 2
        first = bed.stored()[0][1]
        assert (0, first, 1) in bed.stored()[4:], "behind the start of the next epoch"
        assert await bed.wire.values("t") == [b"a", b"b", b"c", b"d"]
        assert [await bed.wire.values("t", offset) for offset in (2, 1)] == [[b"c", b"d"], [b"b", b"c", b"d"]]
        assert (await bed.wire.produce("t", again)).base_offset == 4, "it was told not to be stored"
    for lost in (False, True):
        async with serving(name) as bed:
            assert await bed.wire.values("t") == [b"a", b"b", b"c", b"d", b"late"]
            assert (await bed.wire.produce("t", bytearray(again))).base_offset == 4
            if not lost:
                await bed.gateway.parts.partitions.checkpoint()
        if not lost:
            async with open_simulated(name) as store:
                await forget_positions(store)


@virtually
async def test_a_start_of_an_epoch_that_is_not_answered_is_sent_again() -> None:
    name = "test_a_start_of_an_epoch_that_is_not_answered_is_sent_again"
    async with serving(name) as bed:
        await bed.wire.create("t")
        await bed.wire.produce("t", batch(b"a"))
    for fates in [
        (SendFate.LATE,),
        (SendFate.LOST, SendFate.LOST),
        (SendFate.UNANSWERED,),
        (SendFate.LATE, SendFate.LATE, SendFate.LOST),
    ]:
        async with serving(name) as bed:
            before = len(bed.stored())
            bed.plan(*fates)
            while (row := await bed.wire.produce("t", batch(b"x"))).error_code:
                assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            await trio.sleep(6)
            assert (await bed.wire.produce("t", batch(b"y"))).base_offset == row.base_offset + 1
            starts = [kind for kind, _, _ in bed.stored()[before:]].count(1)
            assert 1 <= starts <= 1 + len(fates)
    async with serving(name) as bed:
        assert await bed.wire.values("t") == [b"a", *[b"x", b"y"] * 4]


@virtually
async def test_a_topic_that_is_made_again_starts_empty() -> None:
    """Its broker has not heard of the deletion, and what its namesake sent comes late."""
    async with serving("test_a_topic_that_is_made_again_starts_empty") as bed:
        await bed.wire.create("t")
        await bed.wire.produce("t", batch(b"a", b"b"))
        bed.plan(SendFate.LATE)
        await bed.wire.produce("t", batch(b"late"))
        assert not await bed.wire.delete("t")
        assert not (await bed.wire.create("t")).error_code
        assert (0, 0) in [(kind, offset) for kind, _, offset in bed.stored()], "what was deleted is still there"
        assert await bed.wire.values("t") == []
        assert (await bed.wire.produce("t", batch(b"new"))).base_offset == 0
        await trio.sleep(6)
        assert not bed.store.installation.on_its_way
        assert await bed.wire.values("t") == [b"new"]
        assert (await bed.wire.produce("t", batch(b"more"))).base_offset == 1


@virtually
async def test_a_topic_is_deleted_of_which_the_store_does_not_tell_yet() -> None:
    """Another gateway has made it a moment ago."""
    name = "test_a_topic_is_deleted_of_which_the_store_does_not_tell_yet"
    async with serving(name) as bed:
        await bed.wire.create("t", 3)
    async with serving(name, 2) as bed:
        assert not await bed.wire.delete("t")
        await trio.sleep(6)
        assert not (await bed.wire.create("t")).error_code
        assert await bed.wire.values("t") == []


@virtually
async def test_what_was_trimmed_leaves_nothing_of_older_epochs_first() -> None:
    name = "test_what_was_trimmed_leaves_nothing_of_older_epochs_first"
    async with serving(name) as bed:
        await bed.wire.create("t")
        for number in range(30):
            if number % 7 == 3:
                bed.plan(SendFate.LATE)
                await bed.wire.produce("t", batch(b"late"))
            await bed.wire.produce("t", batch(b"%d" % number))
            await trio.sleep(2)
        await trio.sleep(6)
        own = set()
        while len(own) < 30:
            records = (await bed.wire.fetch("t", len(own))).records or b""
            own |= {(0, header.partition_leader_epoch, header.base_offset) for _, header in iter_headers(records)}
        assert len({epoch for _, epoch, _ in own}) == 5
        for before in range(1, 30, 3):
            await bed.wire.delete_records("t", before)
            assert bed.stored()[0] in own
        assert len(bed.stored()) < 30
    async with open_simulated(name) as store:
        await forget_positions(store)
    async with serving(name) as bed:
        assert (await bed.wire.offset("t", -2)).offset == 28
        assert await bed.wire.values("t", 28) == [b"28", b"29"]
        assert (await bed.wire.produce("t", batch(b"next"))).base_offset == 30


@virtually
async def test_a_gateway_of_the_same_number_waits_too() -> None:
    name = "test_a_gateway_of_the_same_number_waits_too"
    async with serving(name) as bed:
        await bed.wire.create("t")
    began = trio.current_time()
    async with serving(name) as bed:
        assert trio.current_time() - began < 1, "the lease was given back"
        bed.store.manager.reachable = False  # it cannot be renewed any more
        began = trio.current_time()
        async with serving(name) as other:
            assert 25 < trio.current_time() - began < 45
            assert not (await other.wire.produce("t", batch(b"x"))).error_code


def test_an_envelope_tells_whether_it_counts() -> None:
    own, later = Enveloped(b"a" * 16, 1, 5), Enveloped(b"a" * 16, 1, 6)
    others: Any = [Enveloped(b"a" * 16, 2, 9), Enveloped(b"b" * 16, 1, 9)]
    message = batch_of(b"x")
    start = later.epoch_start(0)
    for data, counts in [
        (own.wrap(message) + start, 1),
        (start + own.wrap(message), 0),
        (start + own.wrap(message) + later.wrap(message), 1),
        (later.wrap(message) + own.wrap(message), 1),
        (start + own.epoch_start(0) + own.wrap(message), 0),
        (b"".join(other.epoch_start(0) for other in others) + own.wrap(message), 1),
    ]:
        assert len(list(own.batches(data))) == counts
        assert not list(own.batches(data, 7))
        assert own.newest_start(data) == (6 if start in data else -1)
    assert own.framing.verify(start)
    assert own.framing.measure(start) == len(start) > own.framing.prefix
