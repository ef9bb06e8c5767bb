"""Spark's own connector for Kafka, in Java: on real Kafka, and on a gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kclient.sync import Admin
from tests.conftest import require_java
from tests.kafka_artifacts import ROOT, spark_connector_jars
from tests.spark_connector import COUNT

pytestmark = [pytest.mark.spark, pytest.mark.foreign, pytest.mark.long, pytest.mark.timeout(400)]


def test_batches_and_streams(broker: str, topic: str, tmp_path: Path) -> None:
    require_java()
    jars = ",".join(map(str, spark_connector_jars()))
    with Admin(bootstrap_servers=broker) as admin:
        for name in (topic, f"{topic}-copy"):
            admin.create_topic(name, 3)
    command = [sys.executable, "-m", "tests.spark_connector", broker, topic, str(tmp_path), jars]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-8000:]
    told = json.loads(done.stdout.splitlines()[-1])
    sizes = [sum(partition == number for partition, _ in told["offsets"]) for number in range(3)]
    assert sum(sizes) == COUNT
    assert told["offsets"] == [[number, offset] for number, size in enumerate(sizes) for offset in range(size)]
    assert (told["from"], told["to"], told["since"]) == (COUNT - 300, 300, COUNT)
    assert all(told[name] for name in ("batch", "keys", "copied", "copied on"))
