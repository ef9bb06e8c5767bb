"""An unmodified kafkajs, the client of Node.js: on real Kafka, and on a gateway."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kafka_artifacts import CACHE

pytestmark = [pytest.mark.foreign, pytest.mark.long, pytest.mark.timeout(150)]

VERSION = "2.2.4"
PROGRAM = Path(__file__).parent.parent / "js" / "kafkajs_client.js"
COUNT = 300


@pytest.fixture(scope="module")
def modules() -> Path:
    """The folder of Node's modules where kafkajs is; npm fills it once."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        message = f"needs {' and '.join(missing)} on PATH"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    folder = CACHE / "kafkajs" / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in other processes may want it, too
        if not (folder / "node_modules" / "kafkajs" / "package.json").exists():
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
            subprocess.run([*command, f"kafkajs@{VERSION}"], check=True, timeout=100)
    return folder / "node_modules"


def test_it_does_what_applications_do(broker: str, modules: Path, topic: str) -> None:
    command = ["node", str(PROGRAM), broker, topic, f"{topic}-group"]
    environment = {**os.environ, "NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    # in each partition, a third, an aborted record with its marker, and a committed one with its own
    last = COUNT // 3 + 2
    offsets = {number: number // 3 if number < COUNT else last for number in range(COUNT + 3)}
    wanted = [[n % 3, str(offsets[n]), f"key {n}", f"value {n}", str(n)] for n in range(COUNT + 3)]
    assert sorted(told["rows"]) == sorted(wanted)
    assert told["committed"] == [[number, str(last + 1)] for number in range(3)]
    assert told["sent"] == [[0, "7"], [1, "-1"], [2, "-1"]]
    assert told["ends"] == [[number, "0", str(last + 2)] for number in range(3)]
    assert told["retention"] == "3600000"
    assert told["groups"] == [["Empty", "consumer"]]
    assert told["nodes"] == 1
    assert told["reset"][0] == [0, "5"]
    assert told["after"] == [[0, "0"], [1, "10"], [2, "0"]]
    assert told["gone"]
