"""What partitions hold of a shared topic is told as if all were looked at, and without that."""

from __future__ import annotations

from random import Random

import anyio
import pytest

from kclient.gateway import Gateway
from kclient.gateway.virtual.envelopes import SIZE
from kclient.gateway.virtual.holdings import Holdings
from kclient.gateway.virtual.index import PartitionIndex
from kclient.protocol.messages.fetch import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.gateway_wire import Wire, batch_of, names, running

PARTITIONS = 300


def looked_at(indexes: dict[int, PartitionIndex]) -> tuple[int, int | None]:
    """Bytes that are held, and the oldest ordinal that is needed, of which all partitions are asked."""
    blocks = [block for index in indexes.values() for block in index.blocks]
    needed = [index.needed for index in indexes.values() if index.needed is not None]
    return sum(block.size + SIZE * block.count for block in blocks), min(needed, default=None)


@pytest.mark.parametrize("seed", range(20))
def test_as_if_all_were_looked_at(seed: int) -> None:
    dice = Random(seed)
    indexes = {number: PartitionIndex(number) for number in range(dice.choice([1, 3, 20]))}
    holdings, ordinal, unsynced = Holdings(indexes), 0, list[tuple[PartitionIndex, int, int, int]]()
    for _ in range(600):
        index = dice.choice(list(indexes.values()))
        what = dice.random()
        if what < 0.5:
            size, before = dice.randrange(1, 100), index.after
            holdings.adds(index, ordinal, size)
            index.add(index.next, index.next, ordinal, size, 5, 5)
            unsynced.append((index, ordinal, size, before))
            ordinal += 1
        elif what < 0.8:
            unsynced.clear()  # only what is durable is trimmed
            holdings.trim(index, dice.choice([index.next, dice.randint(index.start, index.next)]))
        elif what < 0.85 and unsynced:  # and what is not may be undone: its ordinals are given again
            while unsynced and dice.random() < 0.8:
                undone, ordinal, size, before = unsynced.pop()
                undone.undo([size], before)
            holdings.forget()
        if dice.random() < 0.5:
            size, oldest = looked_at(indexes)
            found = holdings.slowest
            assert (holdings.size, None if found is None else found[1]) == (size, oldest)
            assert found is None or indexes[found[0]].needed == oldest


async def filled(wire: Wire) -> None:
    await wire.create("t", partitions=PARTITIONS)
    for number in range(PARTITIONS):
        await wire.produce("t", batch_of(b"x"), partition=number)


@pytest.mark.slow
@pytest.mark.anyio
async def test_trimming_one_partition_looks_at_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, needed = 0, PartitionIndex.needed.fget
    assert needed is not None

    def counted(index: PartitionIndex) -> int | None:
        nonlocal looks
        looks += 1
        return needed(index)  # type: ignore[no-any-return]

    monkeypatch.setattr(PartitionIndex, "needed", property(counted))
    async with running(f"memory:{next(names)}", mapping="virtual") as (gateway, wire):
        await filled(wire)
        await trimmed(wire)
        assert standing(gateway) is None
    assert looks < 10 * PARTITIONS


async def trimmed(wire: Wire) -> None:
    wanted = [DeleteRecordsPartition(partition_index=number, offset=-1) for number in range(PARTITIONS)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=wanted)], timeout_ms=30_000)
    with anyio.fail_after(30):
        response = await wire(request, 2)
    assert not any(row.error_code for row in response.topics[0].partitions)


def standing(gateway: Gateway) -> int | None:
    (found,) = (found for _, found in gateway.parts.shared.standings())
    return found.slowest
