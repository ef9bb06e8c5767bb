"""Moving in from Kafka: the mirror that `kclient migrate run` works with, beside the raw client, which only receives.

From the first request to the last record that is durable in the store.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
import uvloop

from benchmarks.gateway import create, fetched
from benchmarks.harness import alternating, kafka, report
from benchmarks.raw_client import RECORDS_PER_BATCH, RawClient
from kclient.gateway import Gateway
from kclient.migration import Mirror, SourceCluster, Target

_LOOK_S = 0.005


async def mirrored(bootstrap: str, topic: str, records: int, htp: str, durability: str) -> float:
    """The rate into a new store."""
    async with (
        Gateway(htp, None, durability=durability) as gateway,
        SourceCluster(bootstrap_servers=bootstrap) as source,
        anyio.create_task_group() as tasks,
    ):
        mirror = Mirror(source, Target(gateway), lambda name: name == topic)
        await mirror.prepare()
        started = time.perf_counter()
        tasks.start_soon(mirror.run)
        while mirror.lag != 0:  # noqa: ASYNC110  (nothing tells of it)
            await anyio.sleep(_LOOK_S)
        took = time.perf_counter() - started
        mirror.stop()
    return records / took


def moved(bootstrap: str, topic: str, records: int, durability: str) -> float:
    """The same, in a loop such as the command has."""
    with tempfile.TemporaryDirectory() as folder:
        work = partial(mirrored, bootstrap, topic, records, f"embedded:{Path(folder) / 'data'}", durability)
        figure = anyio.run(work, backend_options={"loop_factory": uvloop.new_event_loop})
    os.sync()  # what is still to be written of it is not the next one's
    return figure


def main(records: int = 8_000_000) -> None:
    records -= records % RECORDS_PER_BATCH
    with kafka() as source:
        bootstrap, topic = source.bootstrap, create(source.bootstrap)
        with contextlib.closing(RawClient(source.port)) as client:
            client.produce(topic, records)
        report(
            f"{records:,} records of 100 bytes moved from Kafka",
            alternating(
                {
                    "migrate, synced": partial(moved, bootstrap, topic, records, "synced"),
                    "migrate, written": partial(moved, bootstrap, topic, records, "written"),
                    "raw fetch": partial(fetched, bootstrap, topic, records),
                }
            ),
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
