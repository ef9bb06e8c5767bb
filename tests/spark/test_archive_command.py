"""`kclient pipeline archive` as people run it: a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kclient.sync import Producer
from tests.conftest import require_java

pytestmark = pytest.mark.spark


@pytest.mark.timeout(300)
def test_archives(tmp_path: Path, gateway: str, topic: str) -> None:
    require_java()
    target = tmp_path / "archive"
    with Producer(bootstrap_servers=gateway) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number)
    command = [sys.executable, "-m", "kclient", "pipeline", "archive", topic, "--to", str(target)]
    command += ["--bootstrap", gateway, "--master", "local[2]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    header, row = (line.split("\t") for line in done.stdout.splitlines())
    assert header[:3] == ["topic", "partitions", "records"]
    assert (row[0], row[2]) == (topic, "100")
    assert list(target.glob(f"topic={topic}/date=*/*.parquet"))
