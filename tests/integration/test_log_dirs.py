"""Log directories by the admin client and `kclient cluster log-dirs`: on a real Kafka with two, and at a gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio.to_thread
import pytest

from kclient.admin import Admin, PartialFailureError, TopicPartitionReplica
from kclient.cli.app import run
from kclient.errors import BrokerIdNotRegisteredError, LogDirNotFoundError
from kclient.producer import Producer
from kclient.testing import memory_broker
from kclient.types import TopicPartition
from tests.conftest import require_java
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import KafkaServer
from tests.wire_session import until

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]


@pytest.fixture(scope="module")
def two_dirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka with two log directories."""
    require_java()
    folder = tmp_path_factory.mktemp("two-dirs")
    server = KafkaServer(KAFKA_4, folder, {"log.dirs": f"{folder / 'one'},{folder / 'two'}"})
    server.format()
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def admin(two_dirs: KafkaServer) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=two_dirs.bootstrap) as found:
        yield found


async def fill(address: str, topic: str) -> None:
    async with Producer(bootstrap_servers=address) as producer:
        for index in range(2):
            await (await producer.send(topic, b"x" * 1000, partition=index))


async def test_a_replica_moves_to_another_directory(admin: Admin, two_dirs: KafkaServer, topic: str) -> None:
    await admin.create_topic(topic, partitions=2)
    await fill(two_dirs.bootstrap, topic)
    replicas = [TopicPartitionReplica(topic, index, 1) for index in range(2)]
    paths = {str(two_dirs.folder / name) for name in ("one", "two")}
    before = await admin.describe_replica_log_dirs(replicas)
    assert {info.current_log_dir for info in before.values()} <= paths
    assert all(info.future_log_dir is None for info in before.values())
    target = {each: (paths - {str(info.current_log_dir)}).pop() for each, info in before.items()}
    await admin.alter_replica_log_dirs(target)

    await until(
        lambda: admin.describe_replica_log_dirs(replicas),
        lambda found: {each: info.current_log_dir for each, info in found.items()} == target,
    )
    listed = await admin.describe_log_dirs(partitions=[each.topic_partition for each in replicas])
    assert {each.path for each in listed} == paths
    assert {(tp, each.path) for each in listed for tp in each.replicas} == {
        (replica.topic_partition, path) for replica, path in target.items()
    }
    assert all(info.size > 1000 for each in listed for info in each.replicas.values())
    assert all(each.total_bytes and each.usable_bytes and each.error is None for each in listed)


async def test_what_cannot_be_moved_is_told(admin: Admin, topic: str) -> None:
    await admin.create_topic(topic, partitions=2)
    with pytest.raises(LogDirNotFoundError, match=f"Replica {topic}-0 at broker 1"):
        await admin.alter_replica_log_dirs({(topic, 0, 1): "/nowhere"})
    with pytest.raises(PartialFailureError) as caught:
        await admin.alter_replica_log_dirs({(topic, 0, 1): "/nowhere", (topic, 1, 9): "/nowhere"}, timeout=20)
    assert {name: type(error) for name, error in caught.value.failures.items()} == {
        f"{topic}-0 at broker 1": LogDirNotFoundError,
        f"{topic}-1 at broker 9": BrokerIdNotRegisteredError,
    }
    with pytest.raises(BrokerIdNotRegisteredError, match="the id 9 now; it has: 1"):
        await admin.describe_log_dirs([9])
    assert await admin.describe_log_dirs([]) == []
    [there] = (await admin.describe_replica_log_dirs([("never-made", 0, 1)])).values()
    assert (there.current_log_dir, there.current_offset_lag) == (None, -1)


async def test_the_command(two_dirs: KafkaServer, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with Admin(bootstrap_servers=two_dirs.bootstrap) as admin:
        await admin.create_topic(topic, partitions=2)
    await fill(two_dirs.bootstrap, topic)

    async def command(*arguments: str) -> tuple[int, str]:
        at = ["cluster", "log-dirs", *arguments, "--bootstrap", two_dirs.bootstrap, "--output", "json"]
        code = await anyio.to_thread.run_sync(run, at)
        return code, capsys.readouterr().out

    code, text = await command()
    assert code == 0
    found = json.loads(text)["log_dirs"]
    assert {Path(row["directory"]).name for row in found} == {"one", "two"}
    assert all(row["broker"] == 1 and row["state"] == "online" and row["free"] <= row["of"] for row in found)
    code, text = await command("1", "--topic", topic, "--replicas")
    rows = json.loads(text)["replicas"]
    assert [(row["topic"], row["partition"]) for row in sorted(rows, key=lambda row: row["partition"])] == [
        (topic, 0), (topic, 1)
    ]  # fmt: skip
    assert all(row["bytes"] > 1000 and not row["moving in"] for row in rows)
    code, text = await command("9")
    assert code == 1


async def test_at_a_gateway() -> None:
    with memory_broker() as address:
        async with Admin(bootstrap_servers=address) as admin:
            await admin.create_topic("t", partitions=2)
            await fill(address, "t")
            [one] = await admin.describe_log_dirs(partitions=[("t", 0)])
            assert list(one.replicas) == [TopicPartition("t", 0)]
            assert one.size > 1000
            replica = TopicPartitionReplica("t", 1, one.broker_id)
            assert (await admin.describe_replica_log_dirs([replica]))[replica].current_log_dir == one.path
            await admin.alter_replica_log_dirs({replica: one.path})
            with pytest.raises(LogDirNotFoundError):
                await admin.alter_replica_log_dirs({replica: "/elsewhere"})
