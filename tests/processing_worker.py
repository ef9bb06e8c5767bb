"""Instances of an application that processes exactly once, as child processes that tests kill.

Run as a program: copies a topic until it is stopped, each record to the same partition of `TOPIC-copy`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio

import kclient
import kclient.sync
from kclient.processing import BlockingProcessor, Processor

KINDS = ("asyncio", "trio", "blocking")


class Worker:
    """An instance; its `transactional.id` stays the same over restarts."""

    def __init__(self, bootstrap: str, topic: str, number: int, errors: Path) -> None:
        self.kind = KINDS[number % len(KINDS)]
        self._arguments = [bootstrap, topic, f"{topic}-{number}", self.kind]
        self._errors = errors / f"worker-{number}.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.processing_worker", *self._arguments]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(command, stderr=errors, cwd=Path(__file__).parents[1])

    @property
    def running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def told(self) -> str:
        """What it has said about errors."""
        return self._errors.read_text("utf-8")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it in good order; returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(timeout=60)
        finally:
            if self._process.poll() is None:
                self.kill()


def copied(record: kclient.ConsumerRecord) -> kclient.ProducerRecord:
    return kclient.ProducerRecord(f"{record.topic}-copy", record.value, partition=record.partition)


async def copied_slowly(record: kclient.ConsumerRecord) -> kclient.ProducerRecord:
    await anyio.sleep(0.0005)
    return copied(record)


def settings(bootstrap: str, topic: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    reading = {
        "bootstrap_servers": bootstrap, "group_id": topic, "enable_auto_commit": False,
        "isolation_level": "read_committed", "auto_offset_reset": "earliest", "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 500, "max_poll_records": 50,
        "partition_assignment_strategy": "cooperative-sticky",
    }  # fmt: skip
    return reading, {"bootstrap_servers": bootstrap, "transactional_id": name, "transaction_timeout_ms": 20_000}


async def run(bootstrap: str, topic: str, name: str) -> None:
    reading, writing = settings(bootstrap, topic, name)
    async with kclient.Producer(**writing) as producer, kclient.Consumer(topic, **reading) as consumer:
        processor = Processor(consumer, producer, copied_slowly, concurrency=2, commit_interval=0.05)
        async with anyio.create_task_group() as tasks:

            async def stop_at_a_signal() -> None:
                with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                    async for _ in signals:
                        processor.stop()

            tasks.start_soon(stop_at_a_signal)
            await processor.run()
            tasks.cancel_scope.cancel()


def run_blocking(bootstrap: str, topic: str, name: str) -> None:
    reading, writing = settings(bootstrap, topic, name)
    with kclient.sync.Producer(**writing) as producer, kclient.sync.Consumer(topic, **reading) as consumer:
        processor = BlockingProcessor(consumer, producer, copied, commit_interval=0.05)
        signal.signal(signal.SIGTERM, lambda number, frame: processor.stop())
        processor.run()


if __name__ == "__main__":
    *where, kind = sys.argv[1:]
    if kind == "blocking":
        run_blocking(*where)
    else:
        anyio.run(run, *where, backend=kind)
