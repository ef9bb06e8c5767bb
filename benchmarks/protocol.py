"""Reading and writing a large Metadata response: 1,000 topics of 10 partitions, version 12.

kio's reader is compiled (Rust); everything else here is Python.
"""

from __future__ import annotations

import datetime
import gc
import io
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

import kio.schema.metadata.v12.response as kio_metadata
from kafka.protocol.metadata import MetadataResponse as KafkaPythonResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer

from benchmarks.harness import alternating, report
from kclient.protocol.messages import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

VERSION = 12
TOPICS = 1000
PARTITIONS = 10


def ours() -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=i, host=f"broker-{i}", port=9092) for i in range(3)],
        cluster_id="cluster",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name=f"topic-{topic}",
                topic_id=(topic + 1).to_bytes(16, "big"),
                partitions=[
                    MetadataResponsePartition(
                        partition_index=index,
                        leader_id=1,
                        leader_epoch=3,
                        replica_nodes=[0, 1, 2],
                        isr_nodes=[0, 1, 2],
                    )
                    for index in range(PARTITIONS)
                ],
            )
            for topic in range(TOPICS)
        ],
    )


def kios() -> Any:
    nodes = (BrokerId(0), BrokerId(1), BrokerId(2))
    return kio_metadata.MetadataResponse(
        throttle_time=datetime.timedelta(0),  # type: ignore[arg-type]
        brokers=tuple(
            kio_metadata.MetadataResponseBroker(node_id=node, host=f"broker-{node}", port=9092)  # type: ignore[arg-type]
            for node in nodes
        ),
        cluster_id="cluster",
        controller_id=BrokerId(1),
        topics=tuple(
            kio_metadata.MetadataResponseTopic(
                error_code=ErrorCode.none,
                name=TopicName(f"topic-{topic}"),
                topic_id=uuid.UUID(int=topic + 1),
                is_internal=False,
                partitions=tuple(
                    kio_metadata.MetadataResponsePartition(
                        error_code=ErrorCode.none,
                        partition_index=index,  # type: ignore[arg-type]
                        leader_id=BrokerId(1),
                        leader_epoch=3,  # type: ignore[arg-type]
                        replica_nodes=nodes,
                        isr_nodes=nodes,
                        offline_replicas=(),
                    )
                    for index in range(PARTITIONS)
                ),
            )
            for topic in range(TOPICS)
        ),
    )


CALLS = 7


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Milliseconds of one call, the median of a few: other programs disturb some of them."""

    def measure() -> float:
        figures = []
        for _ in range(CALLS):
            gc.collect()  # else a full collection hits the same contender in every round
            started = time.perf_counter()
            work()
            figures.append((time.perf_counter() - started) * 1000)
        return statistics.median(figures)

    return measure


def main() -> None:
    response, kio_response = ours(), kios()
    encoded = response.encode(VERSION)
    kafka_python = KafkaPythonResponse.decode(encoded, version=VERSION)
    kafka_python._version = VERSION  # encode(version=...) works for requests only
    write_kio = entity_writer(kio_metadata.MetadataResponse)
    read_kio = entity_reader(kio_metadata.MetadataResponse)

    buffer = io.BytesIO()
    write_kio(buffer, kio_response)
    if not buffer.getvalue() == encoded == kafka_python.encode():
        raise AssertionError("the three disagree on the bytes")

    title = f"Metadata v{VERSION}, {TOPICS:,} topics × {PARTITIONS} partitions, {len(encoded):,} bytes"
    written = alternating(
        {
            "kclient": timed(lambda: response.encode(VERSION)),
            "kafka-python": timed(lambda: kafka_python.encode()),
            "kio": timed(lambda: write_kio(io.BytesIO(), kio_response)),
        }
    )
    report(f"{title}: write", written, unit="ms")
    read = alternating(
        {
            "kclient": timed(lambda: MetadataResponse.decode(encoded, VERSION)),
            "kafka-python": timed(lambda: KafkaPythonResponse.decode(encoded, version=VERSION)),
            "kio (compiled)": timed(lambda: read_kio(encoded, 0)),
        }
    )
    report(f"{title}: read", read, unit="ms")


if __name__ == "__main__":
    main()
