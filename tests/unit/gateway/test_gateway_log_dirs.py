"""DescribeLogDirs: each gateway tells how large the partitions are that it leads; and AlterReplicaLogDirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.htp import open_store
from kclient.protocol.messages.replicas import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tests.gateway_wire import Wire, batch_of, connect, names, running
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def sizes(response: DescribeLogDirsResponse) -> dict[tuple[str, int], int]:
    (result,) = response.results
    assert (response.error_code, result.error_code) == (0, 0)
    rows = [(topic.name, row) for topic in result.topics for row in topic.partitions]
    assert all((row.offset_lag, row.is_future_key) == (0, False) for _, row in rows)
    return {(name, row.partition_index): row.partition_size for name, row in rows}


async def asked(wire: Wire, topics: dict[str, list[int]] | None = None, version: int = 4) -> dict[tuple[str, int], int]:
    named = None
    if topics is not None:
        named = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics.items()]
    return sizes(await wire(DescribeLogDirsRequest(topics=named), version))


@pytest.mark.parametrize("mapping", ["domain", "multilevel", "virtual", "broker"])
@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_it_tells_of_what_is_asked_for(kind: str, mapping: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    brokers = {"brokers": 2} if mapping == "broker" else {}
    async with (
        open_store(f"embedded:{path}" if kind == "embedded" else f"memory:{next(names)}", **brokers) as store,
        Gateway(store, listen=None, mapping=mapping) as gateway,
    ):
        wire = connect(gateway)
        for topic in ("a", "b"):
            assert (await wire.create(topic, 2)).error_code == 0
        assert await asked(wire) == {(topic, index): 0 for topic in ("a", "b") for index in (0, 1)}
        batch = batch_of(b"x" * 1000)
        assert (await wire.produce("a", batch, 1)).error_code == 0
        found = await asked(wire)
        assert len(batch) <= found.pop(("a", 1)) < len(batch) + 200
        assert set(found.values()) == {0}
        for version in range(1, 6):
            assert set(await asked(wire, {"a": [1, 7], "nope": [0]}, version)) == {("a", 1)}
        assert await wire(DescribeLogDirsRequest(topics=[]), 4) is not None
        assert await asked(wire, {}) == {}
        await wire.aclose()


async def test_the_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data"
    async with running(f"embedded:{path}?min_free_bytes=1") as (_, wire):
        (result,) = (await wire(DescribeLogDirsRequest(topics=None), 4)).results
        assert result.log_dir == str(path.resolve())


@pytest.mark.parametrize("version", [1, 2])
async def test_there_is_no_other_directory(version: int, tmp_path: Path) -> None:
    path = str((tmp_path / "data").resolve())
    async with running(f"embedded:{path}") as (_, wire):
        await wire.create("t", 2)
        asked = [
            AlterReplicaLogDir(path=where, topics=[AlterReplicaLogDirTopic(name=name, partitions=[1, 2])])
            for where, name in ((path, "t"), ("/other", "t"), (path, "nope"))
        ]
        response = await wire(AlterReplicaLogDirsRequest(dirs=asked), version)
        codes = [[row.error_code for row in topic.partitions] for topic in response.results]
        unknown, elsewhere = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LOG_DIR_NOT_FOUND
        assert codes == [[0, unknown], [elsewhere, unknown], [unknown, unknown]]


async def test_each_gateway_tells_of_what_it_leads() -> None:
    async with open_store(f"memory:{next(names)}") as store:
        gateways = [Gateway(store, listen="127.0.0.1:0", config={"node.id": number}) for number in (1, 2)]
        async with gateways[0], gateways[1]:
            await until(lambda: all(len(each.parts.generations.current.newest.members) == 2 for each in gateways))
            one, other = map(connect, gateways)
            topics = [f"t{number:02}" for number in range(20)]
            for topic in topics:
                await one.create(topic)
            await until(lambda: gateways[1].parts.topics.get(topics[-1]) is not None)
            first, second = await asked(one), await asked(other)
            assert first
            assert second
            assert sorted([*first, *second]) == [(topic, 0) for topic in topics]
            await one.aclose()
            await other.aclose()
