"""Bills for orders, exactly once, by two instances of which one dies amid its work.

Usage: python exactly_once.py [BOOTSTRAP]
"""

import asyncio
import random
import sys
from contextlib import AsyncExitStack

import kclient
from kclient.processing import DeadLetter, ProcessingFailure, Processor, Raise

ORDERS = 2000


async def write_orders(bootstrap: str) -> int:
    total = 0
    async with kclient.Producer(bootstrap_servers=bootstrap, key_serializer="str", value_serializer="str") as producer:
        for number in range(ORDERS):
            amount = random.randrange(1, 100)
            total += amount
            await producer.send("orders", f"{amount}", key=f"customer-{number % 7}")
        await producer.send("orders", "a word", key="customer-0")
    return total


def bill(record: kclient.ConsumerRecord) -> kclient.ProducerRecord:
    """What is done to each order; the word is no number, and goes to the topic `orders-refused`."""
    return kclient.ProducerRecord("bills", value=f"{int(record.value)} + {int(record.value) * 0.2:.1f}", key=record.key)


class PowerCutError(Exception):
    """What happens to one of them."""


def on_error(failure: ProcessingFailure) -> DeadLetter | Raise:
    return Raise() if isinstance(failure.error, PowerCutError) else DeadLetter("orders-refused")


class Instance:
    """One instance of the application, with clients of its own. Each has a transactional.id that no other has."""

    def __init__(self, bootstrap: str, number: int, lives_for: int = ORDERS * 2) -> None:
        self._lives_for = lives_for
        self.producer = kclient.Producer(
            bootstrap_servers=bootstrap, transactional_id=f"billing-{number}", key_serializer="str",
            value_serializer="str",
        )  # fmt: skip
        self.consumer = kclient.Consumer(
            "orders", bootstrap_servers=bootstrap, group_id="billing", key_deserializer="str", value_deserializer="str",
            enable_auto_commit=False, isolation_level="read_committed", auto_offset_reset="earliest",
            max_poll_records=50,
        )  # fmt: skip
        self.processor = Processor(self.consumer, self.producer, self.process, on_error=on_error, commit_interval=0.02)

    async def process(self, record: kclient.ConsumerRecord) -> kclient.ProducerRecord:
        self._lives_for -= 1
        if self._lives_for < 0:
            raise PowerCutError
        return bill(record)

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.producer)
            await stack.enter_async_context(self.consumer)
            await self.processor.run()


async def count_bills(bootstrap: str, expected: int) -> tuple[int, int]:
    """How many bills there are, and their sum without tax."""
    bills = amount = 0
    async with kclient.Consumer(
        "bills", bootstrap_servers=bootstrap, group_id="audit", isolation_level="read_committed",
        auto_offset_reset="earliest", value_deserializer="str",
    ) as consumer:  # fmt: skip
        while bills < expected:
            for record in await consumer.poll(timeout=1.0):
                bills += 1
                amount += int(record.value.split()[0])
        assert not await consumer.poll(timeout=0.5), "and no more"
    return bills, amount


async def main(bootstrap: str) -> None:
    async with kclient.Admin(bootstrap_servers=bootstrap) as admin:
        for topic in ("orders", "bills", "orders-refused"):
            await admin.create_topic(topic, partitions=3)
    total = await write_orders(bootstrap)
    unlucky, lucky = Instance(bootstrap, 1, lives_for=150), Instance(bootstrap, 2)
    first, second = asyncio.create_task(unlucky.run()), asyncio.create_task(lucky.run())
    bills, amount = await count_bills(bootstrap, ORDERS)
    lucky.processor.stop()
    await second
    assert isinstance(first.exception(), PowerCutError), (
        "its transaction was aborted, and the other one did its work again"
    )
    assert amount == total
    print(f"the first: {unlucky.processor.progress}")
    print(f"the second: {lucky.processor.progress}")
    print(f"{bills} orders, each billed once")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory:example"))
