"""Archives that are written without Spark and without a broker, by the parts that tasks and the driver use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from kclient.spark.pipelines.columns import packed, stored_schema, stretches
from kclient.spark.pipelines.folder import ArchiveFolder
from kclient.spark.pipelines.layout import BY_DATE, ArchiveLayout
from kclient.spark.pipelines.manifest import ArchivedFile, ArchivedRange, Manifest
from kclient.spark.pipelines.parquet_choices import ParquetChoices
from kclient.spark.pipelines.parquet_files import ParquetFiles

_PLAIN = ParquetChoices("none")


class Row(NamedTuple):
    """A record of an archive; the timestamp is in milliseconds."""

    partition: int
    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0
    headers: list[tuple[str, bytes | None]] | None = None


def make_archive(
    folder: Path,
    topic: str,
    rows: Sequence[Row],
    *,
    topic_id: str = "the-id",
    ends: Mapping[int, int] | None = None,
    begins: Mapping[int, int] | None = None,
    files: int = 1,
    choices: ParquetChoices = _PLAIN,
    layout: ArchiveLayout = BY_DATE,
) -> None:
    """One committed run that archives these records.

    Args:
        folder: The archive's; it may have runs already.
        topic: The topic.
        rows: Its records.
        topic_id: Its id.
        ends: Where each partition goes on; by default behind the last record.
        begins: Where archiving begins in a partition; by default at 0.
        files: How many tasks write: each has every so-many-eth record.
        choices: How they write.
        layout: Into which folders.
    """
    place = ArchiveFolder(folder)
    with place.lock():
        last = place.last()
        number = last.number + 1 if last else 1
        receipts = []
        with place.run(number) as staged:
            for task in range(files):
                with ParquetFiles(staged, f"{task:05d}-{task}", {topic: topic_id}, choices, layout) as writer:
                    for name, day, part in stretches(_batch(topic, rows[task::files], layout)):
                        writer.append(name, day, part)
                receipts += writer.receipts
            found = tuple(ArchivedFile(each.path, each.rows, each.size, topic_id) for each in receipts)
            tops: dict[int, int] = defaultdict(int)
            for row in rows:
                tops[row.partition] = max(tops[row.partition], row.offset + 1)
            ranges = [
                ArchivedRange(topic, topic_id, each, (begins or {}).get(each, 0), end)
                for each, end in {**tops, **(ends or {})}.items()
            ]
            former = last.positions if last else ()
            positions = {each.key: each for each in (*former, *ranges)}
            manifest = Manifest(
                number,
                staged.run,
                tuple(ranges),
                found,
                tuple(positions.values()),
                layout=layout.names,
                expired=last.expired if last else (),
            )
            place.commit(manifest)
        place.publish(manifest)


def _batch(topic: str, rows: Sequence[Row], layout: ArchiveLayout) -> pa.RecordBatch:
    header = stored_schema().field("headers").type
    pairs = [None if row.headers is None else [{"key": k, "value": v} for k, v in row.headers] for row in rows]
    columns = {
        "key": pa.array([row.key for row in rows], pa.binary()),
        "value": pa.array([row.value for row in rows], pa.binary()),
        "topic": pa.array([topic] * len(rows), pa.string()),
        "partition": pa.array([row.partition for row in rows], pa.int32()),
        "offset": pa.array([row.offset for row in rows], pa.int64()),
        "timestamp": pa.array([row.timestamp * 1000 for row in rows], pa.timestamp("us", "UTC")),
        "timestampType": pa.array([0] * len(rows), pa.int32()),
        "headers": pa.array(pairs, header),
    }
    batch = packed(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), layout)
    return batch.sort_by([("period", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
