"""Kafka Streams, exactly once: instances are killed with -9, and so is the gateway; each word counts once.

By both protocols: groups that an instance leads (`classic`), and those that the coordinator does (`streams`, KIP-1071).
"""

from __future__ import annotations

import platform
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.conftest import require_java
from tests.gateway_process import GatewayProcess
from tests.kafka_artifacts import KAFKA_3, KAFKA_4
from tests.kafka_cluster import NODES, ONE_CLUSTER, KafkaCluster
from tests.kafka_server import KafkaServer
from tests.streams_words import StreamsApplication, WordCount

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.foreign,
    pytest.mark.maven,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True),
]


def made(version: str, folder: Path) -> StreamsApplication:
    require_java()
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("its jar of RocksDB is for Linux on x86-64")
    return StreamsApplication(version, folder)


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> StreamsApplication:
    return made(KAFKA_4, tmp_path_factory.mktemp("streams4"))


@pytest.fixture(scope="module")
def application3(tmp_path_factory: pytest.TempPathFactory) -> StreamsApplication:
    return made(KAFKA_3, tmp_path_factory.mktemp("streams3"))


def seeded() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "streams"])


@PROTOCOLS
async def test_an_instance_is_killed(application: StreamsApplication, gateway: str, topic: str, protocol: str) -> None:
    chance = seeded()
    words = WordCount(application, gateway, topic, instances=1, chance=chance, protocol=protocol)
    await words.run(partial(words.kill, 1, chance))


@pytest.mark.long
@pytest.mark.parametrize(
    ("release", "protocol"), [("application", "classic"), ("application", "streams"), ("application3", "classic")]
)
@pytest.mark.parametrize("server", [pytest.param("kafka", marks=pytest.mark.kafka), "gateway"])
async def test_instances_are_killed(
    request: pytest.FixtureRequest, release: str, protocol: str, server: str, topic: str
) -> None:
    chance = seeded()
    found: KafkaServer | str = request.getfixturevalue(server)
    bootstrap = found if isinstance(found, str) else found.bootstrap
    words = WordCount(request.getfixturevalue(release), bootstrap, topic, instances=2, chance=chance, protocol=protocol)
    await words.run(partial(words.kill, max(2, request.config.getoption("kills") // 3), chance))


@asynccontextmanager
async def gateways(data: Path, number: int) -> AsyncIterator[list[GatewayProcess]]:
    """So many over one directory."""
    found = [GatewayProcess(data, config={"node.id": str(node)}) for node in range(1, number + 1)]
    try:
        for each in found:
            await anyio.to_thread.run_sync(each.start)
        yield found
    finally:
        for each in found:
            await anyio.to_thread.run_sync(partial(each.stop, kill=True))


@pytest.mark.long
@PROTOCOLS
@pytest.mark.parametrize("number", [1, 3])
async def test_gateways_are_killed(
    application: StreamsApplication,
    number: int,
    topic: str,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    protocol: str,
) -> None:
    """One after the other, with an instance now and then; and an instance sleeps until it is a zombie."""
    chance = seeded()

    async def kill() -> None:
        for turn in range(max(3, pytestconfig.getoption("kills") // 4)):
            await words.until_counted(chance.randrange(1, 1000))
            gateway = chance.choice(found)
            await anyio.to_thread.run_sync(partial(gateway.stop, kill=True))
            if turn % 2:
                await words.kill_one(chance)
            if turn % 3 == 2 and number > 1:  # the others go on without it
                await words.until_counted(200)
            await anyio.to_thread.run_sync(gateway.start)
        await words.pause(chance, 15)

    async with gateways(tmp_path / "data", number) as found:
        bootstrap = ",".join(each.bootstrap for each in found)
        words = WordCount(application, bootstrap, topic, instances=2, chance=chance, protocol=protocol)
        await words.run(kill)


@ONE_CLUSTER
@pytest.mark.long
@pytest.mark.kafka
async def test_brokers_are_killed(application: StreamsApplication, cluster: KafkaCluster, topic: str) -> None:
    """What passes on three gateways passes on three brokers."""
    chance = seeded()
    words = WordCount(application, cluster.bootstrap, topic, instances=2, chance=chance, replicas=3)

    async def kill() -> None:
        for node in NODES:
            await words.until_counted(chance.randrange(1, 1000))
            await anyio.to_thread.run_sync(partial(cluster.servers[node].stop, kill=True))
            await words.kill_one(chance)
            await words.until_counted(200)
            await anyio.to_thread.run_sync(cluster.heal)
        await words.pause(chance, 15)

    try:
        await words.run(kill)
    finally:
        await anyio.to_thread.run_sync(cluster.heal)


@pytest.mark.long
@PROTOCOLS
@pytest.mark.parametrize("server", [pytest.param("kafka", marks=pytest.mark.kafka), "gateway"])
async def test_an_instance_sleeps(
    request: pytest.FixtureRequest, application: StreamsApplication, server: str, topic: str, protocol: str
) -> None:
    """Longer than its transactions may be open, and until the group goes on without it."""
    chance = seeded()
    found: KafkaServer | str = request.getfixturevalue(server)
    bootstrap = found if isinstance(found, str) else found.bootstrap
    words = WordCount(application, bootstrap, topic, instances=2, chance=chance, protocol=protocol)

    async def sleep() -> None:
        for _ in range(3):
            await words.pause(chance, 25)  # brokers look for such transactions each ten seconds

    await words.run(sleep)
