"""Exactly once in real Spark, on Kafka and the gateway: whatever dies, readers of what is committed see a row once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kclient.sync import Admin, Producer
from tests import spark_deaths
from tests.conftest import require_java
from tests.gateway_process import GatewayProcess
from tests.kafka_server import KafkaServer
from tests.spark.archives import create, fill
from tests.spark.test_sink_deaths import committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PATIENCE_S = 400
DRIVER = ("before", "amid", "after")


def numbers(spark: SparkSession, count: int, tasks: int = 4) -> DataFrame:
    return spark.range(0, count, numPartitions=tasks).selectExpr("cast(id as string) as value")


def save(frame: DataFrame, broker: str, topic: str, **options: str) -> None:
    given = {"kafka.bootstrap.servers": broker, "topic": topic, "exactlyOnce": "true", **options}
    frame.write.format("kclient").options(**given).mode("append").save()


def expected(count: int) -> list[str]:
    return sorted(str(number) for number in range(count))


def test_a_batch_by_name_is_written_once(spark: SparkSession, broker: str, topic: str) -> None:
    create(broker, topic)
    for _ in range(2):
        save(numbers(spark, 1000), broker, topic, **{"exactlyOnce.id": topic})
        assert committed(broker, topic) == expected(1000)
    with pytest.raises(Exception, match="is done again with other rows"):
        save(numbers(spark, 1001), broker, topic, **{"exactlyOnce.id": topic})
    assert committed(broker, topic) == expected(1000)
    for number in ("1", "1", "2"):  # the next ones
        save(numbers(spark, 2), broker, topic, **{"exactlyOnce.id": topic, "exactlyOnce.batch": number})
    assert committed(broker, topic) == sorted(expected(1000) + expected(2) * 2)


def test_a_batch_without_a_name_is_all_or_nothing(spark: SparkSession, broker: str, topic: str) -> None:
    create(broker, topic)
    with Admin(bootstrap_servers=broker) as admin:
        before = {group.group_id for group in admin.list_groups()}  # streams of other tests keep theirs
    bad = "if(id = 999, repeat('x', 3000000), cast(id as string)) as value"
    with pytest.raises(Exception, match=r"RecordTooLarge|max.request.size"):
        save(spark.range(0, 1000, numPartitions=4).selectExpr(bad), broker, topic)
    with Admin(bootstrap_servers=broker) as admin:
        # a task that Spark kills may begin after the write was given up: that one ends by its own timeout, of a minute
        deadline = time.monotonic() + PATIENCE_S
        while admin.list_transactions(states=["Ongoing"]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert committed(broker, topic) == []
        save(numbers(spark, 1000), broker, topic)
        assert committed(broker, topic) == expected(1000)
        left = [group.group_id for group in admin.list_groups() if group.group_id.startswith("kclient-")]
        assert set(left) <= before, "nobody can do the write again, so nothing is kept for that"


def test_a_stream_is_by_default(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    target = f"{topic}-copy"
    create(broker, target)
    for begin in (0, 10):
        fill(broker, topic, range(begin, begin + 10))
        query = (
            spark.readStream.format("kclient")
            .options(**{"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"})
            .option("maxOffsetsPerTrigger", "4")
            .load()
            .writeStream.format("kclient")
            .options(**{"kafka.bootstrap.servers": broker, "topic": target})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)
        with Admin(bootstrap_servers=broker) as admin:
            (decided,) = admin.list_group_offsets(f"kclient-{query.id}-driver").values()
        last = query.lastProgress
        assert last is not None
        assert decided.offset == last["batchId"], "its batches are recorded under its own id"
    assert committed(broker, target) == expected(20)


def test_in_foreach_batch(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    """Batches of equal rows are told apart by their numbers; without a number they would be taken for one."""
    create(gateway, topic)
    target = f"{topic}-copy"
    create(gateway, target)

    def run(checkpoint: str) -> None:
        def write(frame: DataFrame, number: int) -> None:
            batch = {"exactlyOnce.batch": str(number)} if checkpoint == "numbered" else {}
            save(frame.selectExpr("'same' as value"), gateway, target, **{"exactlyOnce.id": target}, **batch)

        query = (
            spark.readStream.format("kclient")
            .options(**{"kafka.bootstrap.servers": gateway, "subscribe": topic, "startingOffsets": "earliest"})
            .load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)

    for begin in (0, 1):
        fill(gateway, topic, range(begin, begin + 1))
        run("numbered")
    assert committed(gateway, target) == ["same", "same"]
    with pytest.raises(Exception, match=r"in foreachBatch the option exactlyOnce\.id needs exactlyOnce\.batch"):
        run("unnumbered")


def test_what_cannot_be_is_said_beforehand(spark: SparkSession, gateway: str, topic: str) -> None:
    create(gateway, topic)
    for options, message in (
        ({"kafka.transaction.timeout.ms": "1000000"}, "is more than the brokers allow"),
        ({"kafka.acks": "1"}, "with the option exactlyOnce=false"),
        ({"exactlyOnce": "false", "exactlyOnce.id": "x"}, "is for exactlyOnce=true"),
    ):
        with pytest.raises(Exception, match=message):
            save(numbers(spark, 1), gateway, topic, **options)


# ------------------------------------------------------------------ deaths


class Copying:
    """A query in Spark processes that may die, from a topic of four partitions to one of two.

    Args:
        bootstrap: The brokers.
        topic: The source.
        folder: Of the checkpoint.
    """

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.target = f"{topic}-copy"
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(topic, partitions=4)
            admin.create_topic(self.target, partitions=2)
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(60):
                producer.send(topic, b"%d" % number, partition=number % 4)

    def begin(self, *wanted: str, master: str = spark_deaths.LOCAL) -> subprocess.Popen[str]:
        process = spark_deaths.start(self.bootstrap, self.topic, self.target, self.folder, wanted, master=master)
        self._processes.append(process)
        return process

    def run(self, wanted: Sequence[str], *, master: str = spark_deaths.LOCAL) -> int:
        """Start it until it ends with everything copied; how often it was started."""
        for attempt in range(1, len(wanted) + 2):
            if self.begin(*wanted, master=master).wait(PATIENCE_S) == 0:
                return attempt
        raise AssertionError(self.output())

    def output(self) -> str:
        return (self.folder / "output").read_text()[-5000:]

    def died(self) -> set[str]:
        return {path.name for path in (self.folder / "deaths").iterdir()}

    def check(self) -> None:
        """Each row is there once."""
        assert committed(self.bootstrap, self.target) == expected(60), self.output()
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            for row in admin.list_transactions(states=["Ongoing"]):
                joined = admin.describe_transactions([row.transactional_id])[row.transactional_id].topic_partitions
                assert not any(tp.topic == self.target for tp in joined), "nothing is left open"

    def end(self) -> None:
        """End what is left of the processes: those of Spark make groups of their own, in the session of the first."""
        sessions = {process.pid for process in self._processes}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) in sessions:
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                continue
        for process in self._processes:
            process.wait(20)


@pytest.fixture
def copying(topic: str, tmp_path: Path) -> Iterator[Callable[[str], Copying]]:
    require_java()
    made: list[Copying] = []

    def make(bootstrap: str) -> Copying:
        made.append(Copying(bootstrap, topic, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_a_driver_killed_amid_the_ends(gateway: str, copying: Callable[[str], Copying]) -> None:
    """And a worker, when all rows of its task are written."""
    query = copying(gateway)
    assert query.run(["worker", "twin", "amid"]) == 2, query.output()
    assert query.died() == {"worker", "twin", "amid"}
    query.check()


@pytest.mark.long
def test_a_driver_killed_at_each_step(broker: str, copying: Callable[[str], Copying]) -> None:
    query = copying(broker)
    assert query.run(DRIVER) == 4, query.output()
    assert query.died() == set(DRIVER)
    query.check()


@pytest.mark.long
@pytest.mark.parametrize("brokers", ["gateway", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_executors_killed_and_twins(
    brokers: str, copying: Callable[[str], Copying], request: pytest.FixtureRequest
) -> None:
    """An executor, and a worker; two attempts at a task have both written all its rows.

    (Spark itself speculates on several machines only.)
    """
    found: KafkaServer | str = request.getfixturevalue(brokers)
    query = copying(found if isinstance(found, str) else found.bootstrap)
    assert query.run(["executor", "worker", "twin"], master=spark_deaths.CLUSTER) == 1, query.output()
    assert query.died() == {"executor", "worker", "twin"}
    query.check()


class Restarted:
    """A gateway that is killed, or a Kafka that is stopped: alone it would lose what nobody has synced."""

    def __init__(self, server: GatewayProcess | KafkaServer) -> None:
        self.server = server

    def restart(self) -> None:
        self.server.stop(kill=isinstance(self.server, GatewayProcess))
        self.server.start()


@pytest.fixture(params=["gateway", pytest.param("kafka", marks=pytest.mark.kafka)])
def restarted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restarted]:
    require_java()
    server: GatewayProcess | KafkaServer
    if request.param == "gateway":
        server = GatewayProcess(tmp_path / "data")
    else:
        server = KafkaServer("4.3.1", tmp_path)
        server.format()
    server.start()
    try:
        yield Restarted(server)
    finally:
        server.stop()


@pytest.mark.long
def test_brokers_restarted_between_tasks_and_commit(restarted: Restarted, copying: Callable[[str], Copying]) -> None:
    query = copying(restarted.server.bootstrap)
    process = query.begin("brokers")
    end = time.monotonic() + PATIENCE_S
    while not (query.folder / "deaths" / "brokers").exists():
        assert time.monotonic() < end, query.output()
        assert process.poll() is None, query.output()
        time.sleep(0.05)
    restarted.restart()
    (query.folder / "deaths" / "brokers are back").touch()
    assert process.wait(PATIENCE_S) == 0, query.output()
    query.check()
