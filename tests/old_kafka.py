"""A real Kafka 3.9 that keeps message formats of old: with ZooKeeper, as no KRaft cluster writes them to its logs.

The topic setting `message.format.version` then says what a topic's messages are stored as: 0.9.0 (v0), 0.10.0 (v1) or
2.8 (v2). It can be changed as a cluster's upgrade changes it, and what was written before stays as it is.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.kafka_artifacts import KAFKA_3
from tests.kafka_server import JavaTools, free_ports

FORMATS = ("0.9.0", "0.10.0", "2.8")
"""`message.format.version` of the formats v0, v1 and v2."""

_ZOOKEEPER = """
dataDir={folder}/zookeeper
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
tickTime=500
"""

_KAFKA = """
broker.id=1
zookeeper.connect=127.0.0.1:{zookeeper}
listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={folder}/data
inter.broker.protocol.version=2.8
log.message.format.version=2.8
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class OldKafka:
    """ZooKeeper and one broker; `bootstrap` is its address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tools = JavaTools(KAFKA_3, folder)
        self._zookeeper, self._port = free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.bootstrap = f"127.0.0.1:{self._port}"

    def start(self) -> None:
        zookeeper = _ZOOKEEPER.format(folder=self._folder, port=self._zookeeper)
        kafka = _KAFKA.format(folder=self._folder, port=self._port, zookeeper=self._zookeeper)
        self._run("org.apache.zookeeper.server.quorum.QuorumPeerMain", "zookeeper", zookeeper, "256m")
        broker = self._run("kafka.Kafka", "server", kafka, "512m")
        deadline = time.monotonic() + 60
        while not self._accepts():
            if broker.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the old Kafka did not start:\n{(self._folder / 'server.log').read_text()[-4000:]}")
            time.sleep(0.05)

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=0.5).close()
        except OSError:
            return False
        return True

    def _run(self, main_class: str, name: str, properties: str, heap: str) -> subprocess.Popen[bytes]:
        file = self._folder / f"{name}.properties"
        file.write_text(properties)
        command = self._tools.command(main_class, str(file), heap=heap)
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)  # nothing is kept
            process.wait()
        self._processes.clear()
