"""A processor cancelled at each checkpoint: nothing is half committed, and its clients go on from there."""

from __future__ import annotations

import anyio
import pytest

from kclient import ConsumerRecord, ProducerRecord
from kclient.errors import KafkaError
from kclient.processing import Processor
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from tests.unit.processing.parts import IN, PARTITIONS, broker, clients, committed, copied, expected, numbers

pytestmark = pytest.mark.anyio

COUNT = 9


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("concurrency", [1, PARTITIONS])
async def test_run(concurrency: int) -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with broker(COUNT) as address, clients(address) as (consumer, producer):

            def processing() -> Processor:
                async def function(record: ConsumerRecord) -> ProducerRecord:
                    await anyio.sleep(0)
                    if int(record.value) == COUNT - 1:
                        processor.stop()
                    return copied(record)

                # several commits, some of them amid what a poll returned
                processor = Processor(consumer, producer, function, concurrency=concurrency, commit_interval=0.001)
                return processor

            with anyio.fail_after(30):
                await cancelled(processing().run())
                before = await numbers(address)
                assert await committed(address) == {tp: len(before[tp.partition]) for tp in IN}
                assert before == [part[: len(found)] for part, found in zip(expected(COUNT), before, strict=True)]
                # the same clients go on; the end may have been processed already
                left = COUNT - sum(map(len, before))
                following = Processor(consumer, producer, copied)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(following.run)
                    while following.progress.records_in < left:
                        await anyio.sleep(0.001)
                    following.stop()
            assert await numbers(address) == expected(COUNT)

    assert await at_every_checkpoint(scenario) >= 10


async def test_the_error_of_a_cancelled_run_is_the_cancellation() -> None:
    """Also where the clean-up cannot succeed, because the producer was closed."""
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        with anyio.CancelScope() as scope:

            async def function(record: ConsumerRecord) -> ProducerRecord:
                await producer.close(timeout=0)
                scope.cancel()
                await anyio.sleep_forever()
                return copied(record)

            try:
                await Processor(consumer, producer, function).run()
            except KafkaError as error:
                raise AssertionError from error
        assert scope.cancelled_caught
        assert await numbers(address) == [[]] * PARTITIONS
