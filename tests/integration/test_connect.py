"""Kafka Connect, distributed, with its file connectors: on real Kafka, and on a gateway."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kclient.admin import ConfigResource, ConfigResourceType
from kclient.sync import Admin, Consumer
from tests.conftest import require_java
from tests.connect_workers import ConnectWorker, running

pytestmark = [pytest.mark.foreign, pytest.mark.maven, pytest.mark.long, pytest.mark.timeout(600)]

SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"


@pytest.fixture(autouse=True)
def java() -> None:
    require_java()


def append(file: Path, lines: range) -> None:
    with file.open("a") as stream:
        stream.writelines(f"line {number}\n" for number in lines)


def wanted(count: int) -> list[str]:
    return [f"line {number}" for number in range(count)]


def has_all(file: Path, count: int) -> bool:
    return file.exists() and len(set(file.read_text().splitlines())) == count


@pytest.fixture
def made(broker: str, topic: str) -> str:
    """A topic of one partition, so that there is an order."""
    with Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, 1)
    return topic


def stored(bootstrap: str, topic: str) -> list[str]:
    """Everything committed in the topic's one partition."""
    found: list[str] = []
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([(topic, 0)])
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(place) < end for place, end in ends.items()):
            found += [(record.value or b"").decode() for record in consumer.poll(1.0)]
    return found


def test_a_file_is_copied_once_whatever_happens_to_the_workers(broker: str, made: str, tmp_path: Path) -> None:
    """The source writes exactly once; the sink may write a line again after a worker was killed."""
    topic = made
    read, written = tmp_path / "read.txt", tmp_path / "written.txt"
    append(read, range(1000))
    workers = [ConnectWorker(broker, topic, tmp_path / f"worker{number}") for number in range(2)]
    by_address = {worker.address: worker for worker in workers}
    with running(workers[0]):
        first, second = workers
        first.make(f"{topic}-in", connector_class=SOURCE, tasks_max="1", file=str(read), topic=topic,
                   exactly_once_support="required")  # fmt: skip
        first.make(f"{topic}-out", connector_class=SINK, tasks_max="1", file=str(written), topics=topic)
        first.until(partial(has_all, written, 1000))

        with Admin(bootstrap_servers=broker) as admin:
            for kind, partitions in (("config", 1), ("offset", 25), ("status", 5)):
                own = ConfigResource(ConfigResourceType.TOPIC, f"{topic}-{kind}")
                assert len(admin.describe_topics([own.name])[own.name].partitions) == partitions
                assert admin.describe_configs([own])[own]["cleanup.policy"].value == "compact"

        with running(second):
            second.until(lambda: {first.runs(f"{topic}-in"), first.runs(f"{topic}-out")} == set(by_address))
            append(read, range(1000, 2000))
            holder = by_address[second.until(lambda: second.runs(f"{topic}-in"))]
            other = workers[1 - workers.index(holder)]
            holder.stop(kill=True)
            append(read, range(2000, 3000))
            other.until(lambda: {other.runs(f"{topic}-in"), other.runs(f"{topic}-out")} == {other.address})
            other.until(partial(has_all, written, 3000))
            other.stop()
            append(read, range(3000, 4000))
            holder.start()  # alone: what there is, it knows from the topics
            holder.until(partial(has_all, written, 4000))
            assert sorted(holder.ask("/connectors")) == [f"{topic}-in", f"{topic}-out"]
            assert stored(broker, topic) == wanted(4000)
            holder.stop()


def test_offsets_are_told_changed_and_forgotten(broker: str, made: str, tmp_path: Path) -> None:
    topic = made
    read, written = tmp_path / "read.txt", tmp_path / "written.txt"
    append(read, range(100))
    worker = ConnectWorker(broker, topic, tmp_path / "worker")
    source, sink = f"/connectors/{topic}-in", f"/connectors/{topic}-out"
    with running(worker):
        worker.make(f"{topic}-in", connector_class=SOURCE, tasks_max="1", file=str(read), topic=topic)
        worker.make(f"{topic}-out", connector_class=SINK, tasks_max="1", file=str(written), topics=topic)
        worker.until(partial(has_all, written, 100))

        def told(path: str) -> list[dict[str, dict[str, object]]]:
            found = worker.ask(f"{path}/offsets")
            return list(found["offsets"]) if found else []

        where = [{"partition": {"filename": str(read)}, "offset": {"position": read.stat().st_size}}]
        worker.until(lambda: told(source) == where)
        place = {"kafka_topic": topic, "kafka_partition": 0}
        worker.until(lambda: told(sink) == [{"partition": place, "offset": {"kafka_offset": 100}}])

        def stop(path: str) -> None:
            worker.ask(f"{path}/stop", "PUT")
            worker.until(lambda: (worker.ask(f"{path}/status") or {})["connector"]["state"] == "STOPPED")

        stop(sink)
        written.unlink()
        back = {"offsets": [{"partition": place, "offset": {"kafka_offset": 90}}]}
        assert worker.until(lambda: worker.ask(f"{sink}/offsets", "PATCH", back))
        worker.ask(f"{sink}/resume", "PUT")
        worker.until(lambda: worker.runs(f"{topic}-out"))
        worker.until(partial(has_all, written, 10))
        stop(sink)
        assert worker.until(lambda: worker.ask(f"{sink}/offsets", "DELETE"))
        worker.ask(f"{sink}/resume", "PUT")
        worker.until(partial(has_all, written, 100))

        stop(source)
        assert worker.until(lambda: worker.ask(f"{source}/offsets", "DELETE"))
        assert told(source) == []
        worker.ask(f"{source}/resume", "PUT")
        worker.until(lambda: told(source) == where)
        assert stored(broker, topic) == wanted(100) * 2
        worker.ask(sink, "DELETE")
        worker.until(lambda: worker.ask("/connectors") == [f"{topic}-in"])
        worker.stop()
