"""A partition that is opened again and again where nothing fences: what is known of its epochs does not grow."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from kclient.errors import KafkaError
from kclient.gateway.extents import Enveloped, EpochStarts, epochs
from kclient.gateway.extents.epochs import Behind
from kclient.gateway.rows.extents import decode_starts
from kclient.gateway.rows.keys import EXTENTS
from kclient.htp.testing import SendFate
from tests.all_rows import scan_all
from tests.gateway_wire import batch_of
from tests.unit.gateway_vendor.vendor_bed import Bed, batch, serving, virtually

LIVES = 50


async def chunks(bed: Bed) -> bytes:
    """The row of the only partition, or the only shared topic."""
    rows = await scan_all(bed.store.manager, EXTENTS)
    (row,) = (row.value for key, row in rows.items() if key.endswith("/chunks"))
    return row


async def starts(bed: Bed) -> int:
    """How many are recorded of it."""
    return len(decode_starts(await chunks(bed)))


class Killed(Exception):
    """The process of a gateway has ended."""


def kill(bed: Bed) -> None:
    """Have nothing more come of it to the store."""
    bed.store.manager.reachable = False
    bed.store.broker.shut()
    bed.gateway._supervisor.fail(Killed())


async def live(name: str, mapping: str) -> None:
    """As many lives, of which every second one is ended by a kill."""
    rows: list[int] = []
    for number in range(LIVES):
        with suppress(Killed, KafkaError, trio.BrokenResourceError, trio.ClosedResourceError):
            async with serving(name, mapping=mapping) as bed:
                if not number:
                    await bed.wire.create("t")
                assert (await bed.wire.produce("t", batch(b"%d" % number))).base_offset == number
                rows.append(len(await scan_all(bed.store.manager, "kafka/")))
                if number:
                    assert await starts(bed) < 5
                if number % 2:
                    kill(bed)
    assert len(rows) == LIVES
    assert rows[-1] <= rows[3]
    async with serving(name, mapping=mapping) as bed:
        assert await bed.wire.values("t") == [b"%d" % number for number in range(LIVES)]
        assert len(await chunks(bed)) < 300


@pytest.mark.slow
@virtually
async def test_a_partition() -> None:
    await live("test_a_partition", "domain")


@pytest.mark.slow
@virtually
async def test_a_shared_topic() -> None:
    await live("test_a_shared_topic", "virtual")


@pytest.mark.slow
@virtually
async def test_what_is_needed_is_kept() -> None:
    """Where an older epoch has left something behind the start of the next."""
    name, late = "test_what_is_needed_is_kept", 5
    for number in range(20):
        async with serving(name) as bed:
            if not number:
                await bed.wire.create("t")
            await bed.wire.produce("t", batch(b"%d" % number))
            if number % 4 == 0:
                bed.plan(SendFate.LATE)
                await bed.wire.produce("t", batch(b"late"))
                await bed.wire.produce("t", batch(b"behind %d" % number))  # under a newer epoch
                await trio.sleep(8)
    async with serving(name) as bed:
        assert 1 <= await starts(bed) <= 2 * late
        values = await bed.wire.values("t")
        assert b"late" not in values
        for offset in range(len(values)):
            assert await bed.wire.values("t", offset) == values[offset:]


@pytest.mark.slow
@virtually
async def test_those_of_large_lives_are_looked_behind() -> None:
    """Each ends in another chunk than it began in, so that opening again does not read all of it."""
    name, before, epochs.MOST = "test_those_of_large_lives_are_looked_behind", epochs.MOST, 4  # type: ignore[misc]
    try:
        for number in range(12):
            async with serving(name) as bed:
                if not number:
                    await bed.wire.create("t")
                for size in (700_000, 700_000, 10):
                    assert not (await bed.wire.produce("t", batch(bytes(size)))).error_code
        async with serving(name) as bed:
            assert await starts(bed) <= epochs.MOST + 2
            assert len(await bed.wire.values("t", 32)) == 4
    finally:
        epochs.MOST = before  # type: ignore[misc]


def test_starts_are_settled() -> None:
    known = [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)]
    for overtaken, reached, whole, expected in [
        (set(), 60, True, [1, 5]),
        ({3}, 60, True, [1, 3, 5]),
        ({5}, 50, True, [1, 5]),
        (set(), 49, True, [1, 2, 3, 4, 5]),
        (set(), 60, False, [1, 2, 3, 4, 5]),
    ]:
        starts, behind = EpochStarts(known), Behind()
        behind.overtaken, behind.reached, behind.whole = set(overtaken), reached, whole
        starts.settle(20, 50, behind)
        assert [epoch for epoch, _ in starts.all] == expected


def test_the_narrowest_are_looked_behind_first(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = EpochStarts([(1, 10), (2, 20), (3, 25), (4, 100)])
    assert starts.narrowest() == []
    monkeypatch.setattr(epochs, "MOST", 3)
    assert starts.narrowest() == [((2, 20), 25), ((1, 10), 20), ((3, 25), 100)]


def test_what_an_envelope_overtakes() -> None:
    old, new = Enveloped(b"a" * 16, 1, 5), Enveloped(b"a" * 16, 1, 6)
    other = Enveloped(b"b" * 16, 1, 4)
    message = batch_of(b"x")
    for data, found in [
        (old.wrap(message) + new.epoch_start(0) + new.wrap(message), set()),
        (new.epoch_start(0) + old.wrap(message), {6}),
        (new.epoch_start(0) + old.epoch_start(0), {6}),
        (new.wrap(message) + old.wrap(message) + new.wrap(message), {6}),
        (new.epoch_start(0) + other.wrap(message), set()),
    ]:
        assert set(new.overtaken(data, 5)) == found
    assert set(new.overtaken(old.wrap(message), 9)) == {9}
