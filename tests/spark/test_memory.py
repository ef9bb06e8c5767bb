"""A task that reads what is tiny on the wire and huge in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kclient.sync import Admin, Producer

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc"),
]

READ = """
import sys
from kclient.spark.cluster import LiveCluster
from kclient.spark.options import parse_read_options
from kclient.spark.ranges import resolve_ranges
from kclient.spark.reading import RangeReader

options = parse_read_options({"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]})
with LiveCluster(options.settings) as cluster:
    (wanted,) = resolve_ranges(cluster, options)
rows = sum(batch.num_rows for batch in RangeReader(options, wanted).batches())
with open("/proc/self/status") as status:  # ru_maxrss would count the process that started this one
    print(rows, next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM:")))
"""


def test_zeros_take_little_memory(gateway: str, topic: str) -> None:
    """800 MiB of zeros, zstd; the whole process, Python and pyarrow included, stays far below that."""
    with Admin(bootstrap_servers=gateway) as admin:
        admin.create_topic(topic, partitions=1)
    settings = {"compression_type": "zstd", "batch_size": 900_000, "linger_ms": 50}
    with Producer(bootstrap_servers=gateway, **settings) as producer:  # type: ignore[arg-type]
        value = bytes(800 * 1024)
        for _ in range(1024):
            producer.send(topic, value)
    done = subprocess.run(
        [sys.executable, "-c", READ, gateway, topic], capture_output=True, text=True, timeout=280, check=True
    )
    rows, peak = map(int, done.stdout.split())
    assert rows == 1024
    assert peak < 350, f"{peak} MiB"
