"""What happens to the brokers of a real cluster while clients work, and who looks on: which partitions are well."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from kclient.types import TopicPartition
from tests.cluster_clients import Waits
from tests.kafka_cluster import NODES, KafkaCluster

MIN_IN_SYNC = 2


class Trouble:
    """Hurts a cluster, and heals it. A context that watches meanwhile which partitions are well."""

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int, waits: Waits, seed: int = 0) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.waits = waits
        self.random = random.Random(seed)
        self.history: list[tuple[float, str]] = []
        """What happened, and when."""
        self._well = dict.fromkeys(NODES, 0.0)
        """Since when which brokers are well."""
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch")

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watcher.join(30)

    # ------------------------------------------------------------------ what can happen

    def pause(self, *nodes: int, seconds: float) -> None:
        """SIGSTOP: connections stay, the system accepts more, nobody answers."""
        with self._hurt(f"pause for {seconds} s", *nodes):
            for node in nodes:
                self.cluster.servers[node].pause()
            time.sleep(seconds)
            for node in nodes:
                self.cluster.servers[node].resume()

    def kill(self, *nodes: int, seconds: float) -> None:
        """kill -9: connections break, new ones are refused."""
        with self._hurt(f"kill for {seconds} s", *nodes):
            for node in nodes:
                self.cluster.servers[node].stop(kill=True)
            time.sleep(seconds)

    def restart(self, node: int) -> None:
        """A clean stop, which gives the leaderships away before, and a start."""
        with self._hurt("restart", node):
            self.cluster.servers[node].stop()

    def swallow(self, node: int, seconds: float) -> None:
        """A host that swallows packets: killed, and a port in its place whose backlog is full and who never accepts."""
        with self._hurt(f"swallow for {seconds} s", node):
            self.cluster.servers[node].stop(kill=True)
            with black_hole(self.cluster.servers[node].port):
                time.sleep(seconds)

    def move(self) -> None:
        """Every leader moves to another broker."""
        placement = {}
        for partition, leader in self.cluster.leaders(self.topic).items():
            others = [node for node in NODES if node != leader]
            self.random.shuffle(others)
            placement[TopicPartition(self.topic, partition)] = [*others, leader]
        self._tell("move")
        self.cluster.reassign(placement)

    def anything(self) -> None:
        """One of all that, or an outage: nobody is left who could be elected."""
        node, other = self.random.sample(NODES, 2)
        seconds = self.random.choice([0.5, 3.0, 8.0, 25.0])
        happens: list[Callable[[], None]] = [
            self.move,
            lambda: self.restart(node),
            lambda: self.pause(node, seconds=seconds),
            lambda: self.kill(node, seconds=seconds),
            lambda: self.swallow(node, seconds=seconds),
            lambda: self.pause(node, other, seconds=seconds),
            lambda: self.kill(node, other, seconds=seconds),
            lambda: self.pause(*NODES, seconds=seconds),
        ]
        self.random.choice(happens)()

    @contextmanager
    def _hurt(self, what: str, *nodes: int) -> Iterator[None]:
        self._tell(f"{what}: {nodes}")
        for node in nodes:
            del self._well[node]
        try:
            yield
        finally:
            self.cluster.heal()
        self._tell("healed")
        for node in nodes:
            self._well[node] = time.monotonic()
        self.waits.forgive("group")  # its coordinator may have been loading

    def recovered(self) -> None:
        """Wait until all replicas are in sync again, and have the preferred ones lead."""
        self._until(lambda: len(self._led(MIN_IN_SYNC + 1)) == self.partitions, "replicas in sync")
        self._tell("recovered")
        self.cluster.elect()

    def _tell(self, what: str) -> None:
        self.history.append((time.monotonic(), what))

    def told(self) -> str:
        """What happened, with the longest waits between."""
        waits = [
            (now, f"{client}, partition {partition}: {waited:.1f} s")
            for client, (waited, partition, now) in self.waits.longest.items()
        ]
        lines = sorted([*self.history, *waits])
        return "\n".join(f"{now - lines[0][0]:7.1f} {what}" for now, what in lines)

    # ------------------------------------------------------------------ the watch

    def _watch(self) -> None:
        while not self._stop.wait(0.3):
            asked = time.monotonic()
            try:
                led = self._led(MIN_IN_SYNC)
            except Exception as error:  # nobody can be asked now, nor could they since
                self._tell(f"nobody was asked: {error!r}")
                self.waits.leaders({}, until=asked)
            else:
                self.waits.leaders(led)

    def _led(self, in_sync: int) -> dict[int, int]:
        """The leaders of the partitions that can take records, where all who count are well."""
        well = dict(self._well)
        if not well:
            return {}
        node = min(well, key=lambda node: well[node])  # the others' metadata may be old
        (described,) = self.cluster.metadata(self.topic, node).topics
        return {
            found.partition_index: found.leader_id
            for found in described.partitions
            if found.leader_id in well and len(found.isr_nodes) >= in_sync and set(found.isr_nodes) <= set(well)
        }

    def _until(self, met: Callable[[], bool], what: str, timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while not met():
            assert time.monotonic() < deadline, f"{what} not there after {timeout} s"
            time.sleep(0.2)


@contextmanager
def black_hole(port: int) -> Iterator[None]:
    """A port of this host that swallows packets: nobody accepts, and the backlog is full."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        try:
            yield
        finally:
            for filler in fillers:
                filler.close()
