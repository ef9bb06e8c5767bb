"""Ctrl-C wherever a blocking processor may meet it: nothing is half committed, and the same clients go on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from functools import partial

import anyio
import pytest

from kclient import ConsumerRecord, ProducerRecord
from kclient.processing import BlockingProcessor
from kclient.sync import Admin, Consumer, Producer
from kclient.testing import memory_broker
from tests.sweeps import long, slow
from tests.unit.processing import parts
from tests.unit.processing.parts import IN, PARTITIONS, copied, expected
from tests.unit.sync.test_interrupts import At, Interrupt

MORE = 6
"""Records that are written for each run."""


class Rounds:
    """Runs of one processor after the other, with the same clients."""

    def __init__(self, address: str, producer: Producer, consumer: Consumer, source: Producer) -> None:
        self._address = address
        self._producer = producer
        self._consumer = consumer
        self._source = source
        self._written = 0

    def write(self) -> None:
        """Write what the next run has to do."""
        for number in range(self._written, self._written + MORE):
            self._source.send("in", b"%d" % number, partition=number % PARTITIONS)
        self._source.flush()
        self._written += MORE

    def run(self) -> None:
        """Process everything that is left."""
        left = self._written - sum(anyio.run(parts.committed, self._address).values())
        if left:
            self._processor(left).run()

    def interrupted(self, number: int) -> int:
        """Process everything, interrupted in the n-th function of ours; returns how many more there would have been."""
        processor = self._processor(MORE)
        at = At(number)
        with contextlib.suppress(Interrupt), at:
            processor.run()
        return at.left[0] if at.left else 0

    def check(self) -> None:
        """What is seen is what is committed, and the beginning of what there will be."""
        found = anyio.run(partial(parts.numbers, self._address))
        assert {tp: len(found[tp.partition]) for tp in IN} == anyio.run(parts.committed, self._address)
        assert found == [part[: len(seen)] for part, seen in zip(expected(self._written), found, strict=True)]

    def check_all(self) -> None:
        """Everything was processed once."""
        assert anyio.run(partial(parts.numbers, self._address)) == expected(self._written)

    def _processor(self, count: int) -> BlockingProcessor:
        left = count

        def function(record: ConsumerRecord) -> ProducerRecord:
            nonlocal left
            left -= 1
            if not left:
                processor.stop()
            return copied(record)

        processor = BlockingProcessor(self._consumer, self._producer, function, commit_interval=0.0001)
        return processor


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    with memory_broker() as address:
        with Admin(bootstrap_servers=address) as admin:
            for name in ("in", "out"):
                admin.create_topic(name, partitions=PARTITIONS)
        with (
            Producer(bootstrap_servers=address) as source,
            Producer(bootstrap_servers=address, **parts.WRITING) as producer,
            Consumer(bootstrap_servers=address, **parts.READING) as consumer,
        ):
            consumer.assign(IN)
            yield Rounds(address, producer, consumer, source)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("times", [8, *slow(40), *long(200)])
def test_interrupts(rounds: Rounds, times: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    rounds.write()
    calls = 1_000_000 - rounds.interrupted(1_000_000)
    rounds.check_all()
    assert calls > 500
    for _ in range(times):
        rounds.write()
        number = chance.randrange(1, calls)
        print(f"interrupted at {number} of {calls}")
        rounds.interrupted(number)
        rounds.check()
        rounds.run()
        rounds.check_all()
