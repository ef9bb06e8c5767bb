"""Batches of Spark's exactly-once sink without Spark, whose driver dies at each request in turn, and at random.

It is run as a process, which forks one for each driver, so that a death is one: nothing is closed, flushed or aborted.
What it writes is judged by who runs it: each value of `expected` is to be there once.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kclient.net.connection import Connection
from kclient.protocol.messages import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from kclient.spark.sink_driver import commit_batch
from kclient.spark.sink_tasks import TaskOutcome, write_in_transaction
from kclient.spark.write_options import WriteOptions
from kclient.sync import Admin, Producer

TASKS = 4
"""More than the topic has partitions; the last one has no rows."""
ROWS = 3
CHANGES = (InitProducerIdRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest)
DIED = 9


@dataclass(frozen=True)
class FakeTask:
    """A task of Spark's."""

    index: int
    attempt: int
    batch: int

    def partitionId(self) -> int:
        return self.index

    def attemptNumber(self) -> int:
        return self.attempt

    def getLocalProperty(self, key: str) -> str | None:
        return {"streaming.sql.batchId": str(self.batch)}.get(key)


@dataclass(frozen=True)
class Death:
    """When a driver dies.

    Attributes:
        request: at which of its requests that change something, from 1 on: between them it only looks.
        answered: whether the broker has carried that out.
    """

    request: int
    answered: bool


def values(batch: int, index: int) -> list[str]:
    return [] if index == TASKS - 1 else [f"{batch}-{index}-{number}" for number in range(ROWS)]


def expected(batches: int) -> list[str]:
    """Every value of so many batches, in order."""
    return sorted(value for batch in range(batches) for index in range(TASKS) for value in values(batch, index))


def write(options: WriteOptions, index: int, attempt: int, batch: int) -> TaskOutcome:
    """What a task does."""
    rows = pa.record_batch([pa.array(values(batch, index), pa.string())], ["value"])
    return write_in_transaction(options, ["value"], iter([rows]), FakeTask(index, attempt, batch))


def run(options: WriteOptions, batch: int, death: Death | None) -> None:
    """A batch: tasks, one of which was tried before and has written its rows then, and the driver."""
    write(options, 1, 0, batch)
    outcomes = [write(options, index, 1 if index == 1 else 0, batch) for index in range(TASKS)]
    if death is not None:
        arm(death)
    commit_batch(options, batch, outcomes)


def arm(death: Death) -> None:
    """From now on, count requests, and die."""
    count = 0
    asked = Connection.request

    async def request(self: Connection, *arguments: Any, **named: Any) -> Any:
        nonlocal count
        if not isinstance(arguments[0], CHANGES):
            return await asked(self, *arguments, **named)
        count += 1
        number = count
        if number == death.request and not death.answered:
            os._exit(DIED)
        answer = await asked(self, *arguments, **named)
        if number == death.request:
            os._exit(DIED)
        return answer

    Connection.request = request  # type: ignore[method-assign]


def forked(options: WriteOptions, batch: int, death: Death | None) -> int:
    """The exit code of a process that writes a batch."""
    child = os.fork()
    if child == 0:
        try:
            run(options, batch, death)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"batch {batch}, {death}: {code}", file=sys.stderr, flush=True)
    return code


def each_request(options: WriteOptions) -> int:
    """Batches whose drivers die at one request after the other, on each side, and which are done again; how many."""
    batch = 0
    for answered in (False, True):
        code = DIED
        number = 0
        while code == DIED:
            number += 1
            code = forked(options, batch, Death(number, answered))
            if code == DIED:
                code = forked(options, batch, None) or DIED
            assert code in {0, DIED}, f"batch {batch} failed"
            batch += 1
    return batch


def at_random(options: WriteOptions, seed: int, batches: int) -> int:
    """Batches whose drivers die again and again."""
    chance = random.Random(seed)
    for batch in range(batches):
        while True:
            # dead attempts leave ids that the next driver fences, request by request: some have to get through
            death = None if chance.random() < 0.3 else Death(chance.randrange(1, 24), chance.random() < 0.5)
            code = forked(options, batch, death)
            assert code in {0, DIED}, f"batch {batch} failed"
            if code == 0:
                break
    return batches


def start(bootstrap: str, topic: str, *arguments: str, timeout: float) -> int:
    """Run this as a process; returns how many batches were written.

    Args:
        bootstrap: The brokers.
        topic: An existing topic, that the sink is called like.
        arguments: None for a death at each request; a seed and a number of batches for deaths at random.
        timeout: Seconds.
    """
    command = [sys.executable, "-m", "tests.sink_deaths", bootstrap, topic, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=Path(__file__).parents[1], check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(json.loads(done.stdout.splitlines()[-1]))


def options_of(bootstrap: str, topic: str) -> WriteOptions:
    """Of a sink that is called like its topic."""
    settings = {"bootstrap.servers": bootstrap, "transaction.timeout.ms": "600000", "linger.ms": "0"}
    return WriteOptions(settings, topic, exactly_once=True, sink=topic)


def main(bootstrap: str, topic: str, *arguments: str) -> None:
    assert (Admin, Producer) is not None  # imported once, not by each process that is forked
    options = options_of(bootstrap, topic)
    found = at_random(options, *map(int, arguments)) if arguments else each_request(options)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
