"""The generations of gateways: begun at each start, followed while it serves, and obeyed."""

from __future__ import annotations

import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.assignment import Generation, Generations
from kclient.gateway.rows.assignment import decode_generations, encode_generations
from kclient.gateway.rows.inspection import RowInspection, shown_row
from kclient.gateway.rows.keys import ASSIGNMENT, LEADER_EPOCH
from kclient.gateway.rows.numbers import LEADER_EPOCH as EPOCH_ROW
from kclient.htp import FencedError, Store, open_store
from kclient.protocol import messages as m
from tests.gateway_wire import Wire, batch_of, connect
from tests.unit.gateway_cluster.two_gateways import until
from tests.unshared_store import unshared_store

pytestmark = pytest.mark.anyio

OTHER = 9


async def row_of(store: Store) -> Generations:
    return decode_generations((await store.manager.get([ASSIGNMENT]))[ASSIGNMENT].value)


async def leaders_of(wire: Wire, topic: str) -> list[tuple[int, int]]:
    partitions = (await wire.metadata(topic)).topics[0].partitions
    return [(row.leader_id, row.leader_epoch) for row in sorted(partitions, key=lambda row: row.partition_index)]


async def follow(gateway: Gateway, store: Store, generations: Generations) -> None:
    """Have a gateway see other generations, as another one would commit them."""
    rows = {
        ASSIGNMENT: encode_generations(generations),
        LEADER_EPOCH: EPOCH_ROW.encode(generations.newest.number),
    }
    version = await store.manager.commit(rows)
    await until(lambda: gateway.parts.generations.version == version)


async def with_another(gateway: Gateway, store: Store) -> Generations:
    """The same with another gateway in it."""
    current = gateway.parts.generations.current
    joined = current.followed_by({**current.newest.members, OTHER: 1}, current.newest.number + 5)
    await follow(gateway, store, joined)
    return joined


def test_the_row() -> None:
    kept = [Generation(3, {1: 7}), Generation(9, {1: 7, 0: 2, 2**31 - 1: 4}), Generation(10, {2: 1})]
    row = encode_generations(Generations(kept))
    assert decode_generations(row).kept == tuple(kept)
    assert list(RowInspection([]).look(ASSIGNMENT, row)) == []
    assert shown_row(ASSIGNMENT, row).kind == "generations of gateways"


@pytest.mark.parametrize(
    "row",
    [
        b"",
        b"{}",
        b'{"format":1}',
        b'{"format":3,"generations":[[1,[[1,1]]]]}',
        b'{"format":1,"generations":[[1,[[1,1]],[[7,1]]]]}',
        b'{"format":2,"generations":[[1,[[1,1]],[[7,1]],[]]]}',
        b'{"format":2,"generations":[[1,[[1,1]],[[7]]]]}',
        b'{"format":2,"generations":[[1,[[1,1]],[[-1,1]]]]}',
        b'{"format":2,"generations":[[1,[[1,1]],[[7,-2]]]]}',
        b'{"format":2,"generations":[[1,[[1,1]],[[18446744073709551616,1]]]]}',
        b'{"format":1,"generations":7}',
        b'{"format":1,"generations":[]}',
        b'{"format":1,"generations":[[1]]}',
        b'{"format":1,"generations":[[1,[]]]}',
        b'{"format":1,"generations":[[1,3]]}',
        b'{"format":1,"generations":[[1,[[1,1],[1,2]]]]}',
        b'{"format":1,"generations":[[2,[[1,1]]],[1,[[1,1]]]]}',
        b'{"format":1,"generations":[[2147483647,[[1,1]]]]}',
        b'{"format":1,"generations":[[1,[[-1,1]]]]}',
        b'{"format":1,"generations":[[1,{"1":1}]]}',
    ],
)
def test_what_is_no_such_row(row: bytes) -> None:
    with pytest.raises(ValueError):
        decode_generations(row)
    assert len(list(RowInspection([]).look(ASSIGNMENT, row))) == 1


async def test_each_start_begins_one_of_its_own(url: str) -> None:
    told = 0
    async with open_store(url) as store:
        for number in (1, 1, 5, 2, 5):
            async with Gateway(store, listen=None, config={"node.id": number}) as gateway:
                wire = connect(gateway)
                await wire.create("t")
                (generation,) = (await row_of(store)).kept
                assert generation.number > told
                assert list(generation.members) == [number]
                told = generation.number
                assert await leaders_of(wire, "t") == [(number, told)]
                assert (await wire.metadata()).controller_id == number
                await wire.aclose()


@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "lost"])
@pytest.mark.parametrize("key", [ASSIGNMENT, LEADER_EPOCH])
async def test_one_row_that_is_damaged_lets_no_epoch_go_back(url: str, key: str, lost: bool) -> None:
    """The other one tells it, and the epoch of the lease does."""
    async with open_store(url) as store:
        told = 0
        for _ in range(3):
            async with Gateway(store, listen=None) as gateway:
                wire = connect(gateway)
                await wire.create("t")
                ((_, epoch),) = await leaders_of(wire, "t")
                assert epoch > told
                told = epoch
                assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
                await wire.aclose()
            await store.manager.commit({key: None if lost else b"{}#12345678"})


async def test_what_is_damaged_while_it_serves_changes_nothing(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with unshared_store(url) as store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        before = await leaders_of(wire, "t")
        for row in (b"nonsense", None):
            caplog.clear()
            await store.manager.commit({ASSIGNMENT: row})
            await until(lambda: "the gateways go on as they knew it" in caplog.text)
            assert await leaders_of(wire, "t") == before
            assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
        await with_another(gateway, store)
        assert {leader for leader, _ in await leaders_of(wire, "t")} <= {1, OTHER}
        await wire.aclose()


async def test_what_the_generations_give_to_another_gateway_is_not_served(url: str) -> None:
    """Under the epoch that they say; what stays here keeps the epoch that it had."""
    count = 12
    async with unshared_store(url) as store, Gateway(store, listen=None, config={"node.id": 1}) as gateway:
        wire = connect(gateway)
        began = gateway.parts.generations.current.newest.number
        joined = await with_another(gateway, store)
        await wire.create("t", count)
        leaders = await leaders_of(wire, "t")
        assert set(leaders) == {(1, began), (OTHER, joined.newest.number)}
        for index, (leader, epoch) in enumerate(leaders):
            row = await wire.produce("t", batch_of(b"a"), index, version=12)
            assert row.error_code == (0 if leader == 1 else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if leader == OTHER:
                assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (leader, epoch)
        groups = [f"g{number}" for number in range(count)]
        found = await wire(m.FindCoordinatorRequest(coordinator_keys=groups), 4)
        codes = {}
        for coordinator in found.coordinators:  # the other one has not registered
            codes[coordinator.key] = await wire.commit(coordinator.key, "t", 1)
            assert (codes[coordinator.key] == 0) == (coordinator.node_id == 1)
        assert set(codes.values()) == {0, ErrorCode.NOT_COORDINATOR}
        await follow(gateway, store, joined.followed_by({1: joined.newest.members[1]}))
        after = await leaders_of(wire, "t")
        assert [epoch for leader, epoch in after if leader == 1] == [
            began if leader == 1 else joined.newest.number + 1 for leader, _ in leaders
        ]
        for index in range(count):
            assert (await wire.produce("t", batch_of(b"b"), index)).error_code == 0
        await wire.aclose()


async def test_one_that_was_followed_by_its_namesake_opens_nothing_more(url: str) -> None:
    async with unshared_store(url) as store, Gateway(store, listen=None, config={"node.id": 1}) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        current = gateway.parts.generations.current
        await follow(gateway, store, current.followed_by({1: current.newest.members[1] + 1}))
        assert (await wire.produce("t", batch_of(b"a"))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await wire.commit("g", "t", 1) == ErrorCode.NOT_COORDINATOR
        await wire.aclose()


async def test_who_has_lost_the_store_begins_none(url: str) -> None:
    from kclient.gateway.cluster_generations import begin_alone

    async with open_store(url) as store:
        first = await store.manager.acquire("kafka/gateway", "node-1", 30)
        await begin_alone(store.manager, 1, 4, first)
        await store.manager.acquire("kafka/gateway", "node-1", 30)
        before = await row_of(store)
        with pytest.raises(FencedError):
            await begin_alone(store.manager, 1, 5, first)
        assert (await row_of(store)).kept == before.kept
