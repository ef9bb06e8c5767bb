"""What the tests of `archive` share: topics whose records are numbers, and archives read without Spark."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from pathlib import Path

from kclient.sync import Admin, Producer

# An hour before midnight in New York is already the next day in UTC.
START = int(datetime.datetime(2024, 5, 17, 22, tzinfo=datetime.UTC).timestamp() * 1000)


def create(broker: str, topic: str, **configs: str) -> None:
    with Admin(bootstrap_servers=broker) as admin:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        admin.create_topic(topic, partitions=2, configs={"retention.ms": "-1", **settings})


def recreate(broker: str, topic: str) -> None:
    with Admin(bootstrap_servers=broker) as admin:
        admin.delete_topic(topic)
        while topic in {listed.name for listed in admin.list_topics()}:
            time.sleep(0.05)
    create(broker, topic)


def fill(broker: str, topic: str, numbers: range) -> None:
    """Every record an hour later than the one before, in turn to both partitions."""
    with Producer(bootstrap_servers=broker) as producer:
        for number in numbers:
            producer.send(topic, str(number).encode(), partition=number % 2, timestamp=START + 3_600_000 * number)


def fill_many(broker: str, topic: str, count: int) -> None:
    """Records of 100 bytes, all of now."""
    with Producer(bootstrap_servers=broker) as producer:
        for partition in range(2):
            producer.send_batch(
                topic, [b"%0100d" % number for number in range(partition, count, 2)], partition=partition
            )


def archived(destination: Path) -> Counter[tuple[str, str, int]]:
    """Every archived record as (topic, date of its folder, number)."""
    from pyarrow import parquet

    found: Counter[tuple[str, str, int]] = Counter()
    for path in destination.glob("topic=*/date=*/*.parquet"):
        topic, date = (part.split("=", 1)[1] for part in path.parts[-3:-1])
        table = parquet.ParquetFile(path).read()
        for value in table.column("value").to_pylist():
            found[topic, date, int(value)] += 1
    return found


def expected(topic: str, numbers: range) -> Counter[tuple[str, str, int]]:
    def date(number: int) -> str:
        moment = datetime.datetime.fromtimestamp((START + 3_600_000 * number) / 1000, datetime.UTC)
        return moment.date().isoformat()

    return Counter((topic, date(number), number) for number in numbers)


def staged(destination: Path) -> list[Path]:
    """What runs have left behind."""
    return list((destination / "_kclient/staging").iterdir())
